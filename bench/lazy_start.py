"""From a registry to the end of a first job: pulled by containerd, and started lazily.

    provision build --lock pylock.toml --lazy --no-verify --output lazy/
    provision build --lock pylock.toml --no-verify --output plain/
    sudo -E ./run python bench/lazy_start.py plain/ lazy/

Each layout is copied to a registry on this machine. Each round starts a containerd and a
snapshotter with no content, drops the page cache, and times pull and job, for each layout in both
ways (a layer that is not lazy is pulled in both). The bytes are those that the registry has
answered with, from its log. The job is that of `start.py`. Needs what tests/engines/lazy_place.py
needs, and skopeo.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.start import JOB
from tests.engines.lazy_place import built, node

ANSWER = re.compile(r'"GET \S+ HTTP/1\.1" 20[06] (\d+)')


@contextlib.contextmanager
def registry(work: Path) -> Iterator[str]:
    """An empty registry that logs each answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(work / "registry")}},
        "http": {"addr": address},
    }
    file = work / "registry.yml"
    file.write_text(json.dumps(settings))
    with (work / "registry.log").open("w") as log:
        server = subprocess.Popen(["docker-registry", "serve", str(file)], stdout=log, stderr=log)
    try:
        time.sleep(1)
        yield address
    finally:
        server.terminate()
        server.wait()


def answered(work: Path) -> list[int]:
    """The bytes of each answer so far."""
    return [int(found[1]) for found in ANSWER.finditer((work / "registry.log").read_text())]


def start(program: Path, work: Path, reference: str, *, lazy: bool) -> tuple[float, int, int]:
    """Seconds, bytes and requests of one start on an empty node."""
    address = reference.partition("/")[0]
    before = len(answered(work))
    with (
        tempfile.TemporaryDirectory(prefix="n-", dir=work) as place,
        node(program, Path(place) / "node", address) as here,
    ):
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        begin = time.monotonic()
        if lazy:
            here.pull_lazily(reference)
        else:
            pulled = here.ctr("images", "pull", "--plain-http", reference)
            assert pulled.returncode == 0, pulled.stderr
        done = here.run(reference, "/opt/venv/bin/python3", "-c", JOB, lazy=lazy)
        spent = time.monotonic() - begin
        assert "job done" in done.stdout, done.stderr
    found = answered(work)[before:]
    return spent, sum(found), len(found)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("layouts", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a directory with room for all of it")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lazy-", dir=args.work) as place,
        registry(Path(place)) as address,
    ):
        work = Path(place)
        program = built(work)
        ways: dict[str, tuple[str, bool]] = {}
        for number, layout in enumerate(args.layouts):
            reference = f"{address}/bench:{number}"
            words = ["skopeo", "copy", "-q", "--dest-tls-verify=false", "--preserve-digests"]
            subprocess.run([*words, f"oci:{layout}", f"docker://{reference}"], check=True)
            ways |= {f"{layout.name}, pulled": (reference, False)}
            ways |= {f"{layout.name}, lazily": (reference, True)}
        found: dict[str, list[tuple[float, int, int]]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, (reference, lazy) in ways.items():
                found[way].append(start(program, work, reference, lazy=lazy))
                print(f"{way}: {found[way][-1]}", file=sys.stderr, flush=True)
    print("| way | s (median) | MB fetched | requests |\n| --- | --- | --- | --- |")
    for way, runs in found.items():
        seconds, sizes, requests = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {way} | {seconds:.1f} | {sizes / 1e6:.0f} | {requests:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
