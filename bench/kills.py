"""Kills builds at any moment, two at once and `store gc` beside them, and sees what is left.

    ./run python -m bench.kills [ROUNDS] [SEED]

Each round begins two builds of one lock, into one layout and into the images of this machine, and
kills one or both with SIGKILL. Whoever is not killed ends well, with the digest of an undisturbed
build. After each round every blob has the content that its name says; after the last the store
holds, a build gives that digest again, and what is left in the temporary directory is counted.

The packages are small ones, of an index on loopback; the Debian base is made once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines.lab import Done, World, debian, finish, new_world
from tests.engines.small_build import NUMPY, PASSWORD, PIP, TORCH
from tests.kit.private_index import Authority, Index, make_authority, make_wheel, serve

ROUNDS = 100
BLOB = re.compile("[0-9a-f]{64}")
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


@dataclass
class Counts:
    """What happened."""

    rounds: int = 0
    killed: int = 0
    ended: int = 0
    blobs: int = 0
    collected: int = 0
    left: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """One lock, and what it is built with."""

    world: World
    authority: Authority
    index: Index
    lock: Path

    def words(self, *more: str) -> tuple[str, ...]:
        return (
            *("build", "--json", "--builder", "oci", "--no-verify", "--lock", str(self.lock)),
            *("--ca-bundle", str(self.authority.bundle), *more),
        )

    def build(self, *more: str) -> Done:
        return self.world.provision(*self.words(*more), UV_DEFAULT_INDEX=self.index.url)


@contextlib.contextmanager
def job() -> Iterator[Job]:
    """A lock of small packages, of which one is large enough to be caught while it comes."""
    with tempfile.TemporaryDirectory() as place, new_world(**NO_ENGINE) as world:
        _lend_base(world)
        authority = make_authority(Path(place), "")
        code = {"torch/__init__.py": b"__version__ = '2.0.1+cu117'\n"}
        code["torch/weights.bin"] = random.Random(1).randbytes(24 << 20)
        wheels = (make_wheel(TORCH, code), NUMPY, PIP)
        with serve(authority, *wheels, password=PASSWORD) as index:
            lock = world.place / "pylock.toml"
            asked = ("--cuda", "11.7", "--python", "3.11", "--base", "bootstrap")
            done = world.provision(
                "lock", *asked, "--index", index.url, "--output", str(lock),
                "--ca-bundle", str(authority.bundle), UV_DEFAULT_INDEX=index.url,
            )  # fmt: skip
            assert done.code == 0, done.err
            yield Job(world, authority, index, lock)


def _lend_base(world: World) -> None:
    """Give it the Debian base of all worlds, as a file of its own: `store gc --all` removes it."""
    place, base = world.cache / "gpu-provision" / "bases", debian().archive
    if place.is_symlink():
        place.unlink()
        place.mkdir(mode=0o700)
    for name in (base.name, "index.json"):
        (place / name).unlink(missing_ok=True)
        os.link(base.with_name(name), place / name)


def sweep(rounds: int, seed: int) -> Counts:
    """That many rounds. What is not as it must be is in `faults`."""
    chance, counts = random.Random(seed), Counts()
    began = time.monotonic()
    with job() as one:
        layout = one.world.place / "layout"
        started = time.monotonic()
        first = one.build("--output", str(one.world.place / "undisturbed"))
        takes = time.monotonic() - started
        assert first.code == 0, first.err
        digest = first.account["image"]["digest"]
        for _ in range(rounds):
            _round(one, layout, digest, takes, chance, counts)
        counts.left = len(list(one.world.temporary.iterdir()))
        last = one.build("--output", str(layout))
        if last.code != 0 or last.account["image"]["digest"] != digest:
            counts.faults.append(f"the last build: {last.err}")
        held = one.world.provision("store", "verify", "--json")
        if held.code != 0:
            counts.faults.append(f"store verify: {held.out}{held.err}")
    counts.seconds = time.monotonic() - began
    return counts


def _round(
    one: Job, layout: Path, digest: str, takes: float, chance: random.Random, counts: Counts
) -> None:
    if chance.random() < 0.4:  # else nothing would be left to fetch
        collected = one.world.provision("store", "gc", "--all")
        counts.collected += collected.code == 0
        _lend_base(one.world)
    builds = [
        one.world.start(*one.words(*more), UV_DEFAULT_INDEX=one.index.url)
        for more in (("--output", str(layout)), ("--tag", "killed:1"))
    ]
    beside = one.world.start("store", "gc", "--json") if chance.random() < 0.5 else None
    victims = chance.choice((builds[:1], builds[1:], builds))
    for victim in victims:
        time.sleep(chance.uniform(0, takes * 0.7))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(victim.pid, signal.SIGKILL)
    counts.rounds += 1
    for build in builds:
        done = finish(build)
        if done.code == -signal.SIGKILL:
            counts.killed += 1
        elif done.code == 0 and json.loads(done.out)["image"]["digest"] == digest:
            counts.ended += 1
        else:
            counts.faults.append(f"a build ended with {done.code}: {done.out[-500:]}{done.err}")
    if beside is not None and (done := finish(beside)).code != 0:
        counts.faults.append(f"store gc ended with {done.code}: {done.err}")
    for blob in one.world.place.rglob("sha256/*"):
        if BLOB.fullmatch(blob.name) and blob.is_file():
            counts.blobs += 1
            if is_damaged(blob):
                counts.faults.append(f"{blob} has other content")


def is_damaged(blob: Path) -> bool:
    """Whether a blob has other content than its name says."""
    return hashlib.sha256(blob.read_bytes()).hexdigest() != blob.name


def main() -> int:
    """Print the counts; 1 where something was not as it must be."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as shared:
        os.environ.setdefault("TESTS_SHARED", shared)
        counts = sweep(rounds, seed)
    print(
        f"{counts.rounds} rounds in {counts.seconds:.0f} s: {counts.killed} builds killed, "
        f"{counts.ended} ended well, {counts.collected} times all collected; {counts.blobs} blobs "
        f"held to their names; {counts.left} left in the temporary directory; "
        f"{len(counts.faults)} faults"
    )
    print("\n".join(counts.faults))
    return 1 if counts.faults else 0


if __name__ == "__main__":
    sys.exit(main())
