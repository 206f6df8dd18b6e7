"""Runs the product as a user does: a process of its own, in a world of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.bootstrap.make import DEFAULT_PACKAGES, bootstrap
from images.bootstrap.store import BootstrapBase
from provision.build.base import _EPOCH

ROOT = Path(__file__).parents[2]
TAG = "gpu-provision-test:cu117"
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
MARK = "GPU_PROVISION_TEST_WORLD"
LIMIT_S = 1500.0


@dataclass(frozen=True)
class Done:
    """How the product ended."""

    code: int
    out: str
    err: str

    @property
    def account(self) -> Any:
        """Standard output under --json, which must be JSON and nothing else."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Built:
    """The image of the main job, and what the job said."""

    tag: str
    account: Any
    lock: bytes


@dataclass(frozen=True)
class World:
    """Directories of a test's own; only the Debian bases are shared, since making one is slow.

    What the product starts bears the world's mark in its environment, so that it can be found.
    """

    place: Path
    env: Mapping[str, str]

    @property
    def cache(self) -> Path:
        return self.place / "cache"

    @property
    def temporary(self) -> Path:
        return self.place / "tmp"

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "provision", *args],
            cwd=ROOT,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def provision(self, *args: str, **env: str) -> Done:
        return finish(self.start(*args, **env))

    def processes(self) -> list[int]:
        """What runs on behalf of this world."""
        mark = f"{MARK}={self.place}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                marked = mark in environ.read_bytes().split(b"\0")
            except OSError:  # it ended, or is not ours
                marked = False
            found += [int(environ.parent.name)] * marked
        return found


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for the end, and see that it ended as a program for people does."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode != 70, err + "".join(
        Path(line.split()[7]).read_text() for line in err.splitlines() if "with the file" in line
    )
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def ca_bundle() -> str:
    """Of this machine, for mirrors behind a company's proxy."""
    file = os.environ.get("SSL_CERT_FILE")
    return Path(file).read_text(encoding="utf-8") if file else ""


def debian(packages: tuple[str, ...] = DEFAULT_PACKAGES) -> BootstrapBase:
    """A Debian base with Python 3.11, made once for all tests: by default that which worlds build
    on.
    """
    return bootstrap(
        "bookworm",
        python="3.11",
        arch=ARCH,
        store=Path(os.environ["TESTS_SHARED"]),
        epoch=_EPOCH,
        packages=packages,
        ca_bundle=ca_bundle(),
    )


@contextmanager
def new_world(**env: str) -> Iterator[World]:
    """A world, gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="gpu-provision-world-"))
    bases = Path(os.environ["TESTS_SHARED"]) / "bases"
    bases.mkdir(exist_ok=True)
    ours = place / "cache" / "gpu-provision"
    ours.mkdir(parents=True)
    (ours / "bases").symlink_to(bases)
    (place / "tmp").mkdir()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own = {
        MARK: str(place),
        "XDG_CACHE_HOME": str(place / "cache"),
        "XDG_STATE_HOME": str(place / "state"),
        "XDG_DATA_HOME": str(place / "data"),
        "TMPDIR": str(place / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        yield World(place, {**kept, **own, **env})
    finally:
        shutil.rmtree(place)
