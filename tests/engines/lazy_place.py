"""containerd and a snapshotter that starts lazy images, with all of their state in one place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests import need
from tests.kit.programs import run_program

PACKAGE = "golang-github-containerd-stargz-snapshotter-dev"
SOURCES = Path("/usr/share/gocode")
PROGRAMS = Path(__file__).parent
CONFIG = {
    "NoPrometheus": True,
    "NoBackgroundFetch": True,
    "Direct": True,
    "ChunkSize": 1 << 20,
    "HTTPCacheType": "memory",
}
_UNUSED = ("btrfs", "aufs", "zfs", "devmapper")
_DAEMON = """\
version = 2
root = "{place}/root"
state = "{place}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", {unused}]
[grpc]
  address = "{place}/containerd.sock"
[ttrpc]
  address = "{place}/containerd.ttrpc.sock"
[proxy_plugins.stargz]
  type = "snapshot"
  address = "{place}/lazy.sock"
"""


@dataclass(frozen=True)
class Node:
    """A node: its containerd, and the log of its snapshotter."""

    place: Path

    def ctr(self, *words: str, program: str = "ctr") -> subprocess.CompletedProcess[str]:
        argv = [need.program(program, "containerd"), "-a", str(self.place / "containerd.sock")]
        return run_program([*argv, *words])

    def pull_lazily(self, reference: str) -> None:
        words = ("images", "rpull", "--plain-http", reference)
        done = self.ctr(*words, program="ctr-remote")
        assert done.returncode == 0, done.stderr

    def run(self, reference: str, *words: str, lazy: bool) -> subprocess.CompletedProcess[str]:
        snapshotter = ("--snapshotter", "stargz") if lazy else ()
        return self.ctr("run", "--rm", *snapshotter, reference, f"job{time.monotonic_ns()}", *words)

    def said(self) -> list[dict[str, str]]:
        """The lines of the snapshotter's log."""
        return [json.loads(line) for line in (self.place / "lazy.log").read_text().splitlines()]

    def mounted_lazily(self) -> int:
        """How many layers it has mounted without pulling them."""
        return sum(line.get("remote-snapshot-prepared") == "true" for line in self.said())


def built(place: Path, name: str = "snapshotter") -> Path:
    """The snapshotter or the converter, of Debian's libraries."""
    go = need.program("go", "golang-go")
    if not (SOURCES / "src/github.com/containerd/stargz-snapshotter").is_dir():
        need.lacking("stargz-snapshotter's libraries are not here", f"apt-get install {PACKAGE}")
    own = place / "go" / "src" / name
    own.mkdir(parents=True)
    shutil.copy(PROGRAMS / name / "main.go", own)
    env = {
        "GOPATH": f"{place / 'go'}:{SOURCES}",
        "GO111MODULE": "off",
        "GOCACHE": os.environ.get("GOCACHE", f"{os.environ.get('TESTS_SHARED', place)}/go-cache"),
        "GOFLAGS": "-p=2",
    }
    argv = [go, "build", "-o", str(place / f"lazy-{name}"), name]
    done = run_program(argv, env={**os.environ, **env}, timeout=3600)
    assert done.returncode == 0, done.stderr
    return place / f"lazy-{name}"


@contextmanager
def node(program: Path, place: Path, registry: str) -> Iterator[Node]:
    """A node that may ask this registry without TLS; nothing of it stays."""
    need.root()
    containerd = need.program("containerd")
    need.program("runc")
    if not Path("/dev/fuse").exists():
        need.lacking("there is no /dev/fuse", "modprobe fuse")
    place.mkdir()
    (place / "lazy.json").write_text(json.dumps(CONFIG))
    unused = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in _UNUSED)
    (place / "containerd.toml").write_text(_DAEMON.format(place=place, unused=unused))
    lazy = [str(program), "-root", str(place / "snapshots"), "-socket", str(place / "lazy.sock")]
    lazy += ["-config", str(place / "lazy.json"), "-plain-http", registry]
    daemon = [containerd, "--config", str(place / "containerd.toml")]
    with ExitStack() as stack:
        stack.callback(_unmount, place)
        stack.enter_context(_started(lazy, place / "lazy.log", place / "lazy.sock"))
        log, socket = place / "containerd.log", place / "containerd.sock"
        stack.enter_context(_started(daemon, log, socket))
        yield Node(place)


@contextmanager
def _started(argv: list[str], log: Path, socket: Path) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 30
        while not socket.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()
        process.wait()


def _unmount(place: Path) -> None:
    """What a daemon has left mounted, the innermost first."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((one for one in mounts if one.startswith(f"{place}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False, capture_output=True, timeout=20)
