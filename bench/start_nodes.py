"""Engines of a node, each with an empty storage, and a registry behind a link of a given speed.

All run in a network namespace that has only a loopback, shaped by tc.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.engines.lazy_place import node

ADDRESS = "127.0.0.1:5078"
LIMIT_S = 900
REGISTRY = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: false}}}}
storage: {{filesystem: {{rootdirectory: {storage}}}}}
http: {{addr: "{address}"}}
"""
# the last two columns of a line of the Apache kind: status, bytes
_SENT = re.compile(r'" 20[06] (\d+) "')


def call(*words: str, **env: str) -> str:
    """A command that must succeed; what it printed."""
    done = subprocess.run(
        words, env={**os.environ, **env}, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        shown = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        sys.exit(f"{' '.join(words)[:200]}: {done.returncode}\n{shown}")
    return done.stdout


def drop_page_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def timed(work: Callable[[], str]) -> float:
    """Wall seconds of a job that must say that it is done, after the page cache was dropped."""
    drop_page_cache()
    began = time.perf_counter()
    said = work()
    spent = time.perf_counter() - began
    if "job done" not in said:
        sys.exit(f"The job did not end well: {said[-2000:]}")
    return spent


def shape(mbit_s: int) -> None:
    """Bring the namespace's loopback up with this rate, and packets as on Ethernet."""
    call("ip", "link", "set", "lo", "mtu", "1500", "up")
    rate = ("rate", f"{mbit_s}mbit", "burst", "256kb", "latency", "50ms")
    call("tc", "qdisc", "add", "dev", "lo", "root", "tbf", *rate)


class Registry:
    """Debian's registry. `sent()`: the bytes of images that it has sent since the last call."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self._log = storage.with_suffix(".log")
        self._read = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        settings = self.storage.with_suffix(".yml")
        settings.write_text(REGISTRY.format(storage=self.storage, address=ADDRESS))
        with self._log.open("wb") as log:
            server = subprocess.Popen(
                ["docker-registry", "serve", str(settings)], stdout=log, stderr=log
            )
        try:
            wait_for(lambda: urllib.request.urlopen(f"http://{ADDRESS}/v2/", timeout=1))
            yield
        finally:
            server.terminate()
            server.wait()

    def sent(self) -> int:
        text = self._log.read_text(errors="replace")
        new, self._read = text[self._read :], len(text)
        lines = (line for line in new.splitlines() if '"GET ' in line and "/blobs/" in line)
        return sum(int(found[1]) for line in lines if (found := _SENT.search(line)))


def wait_for(ready: Callable[[], object]) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError, SystemExit):
            ready()
            return
        time.sleep(0.1)
    sys.exit("A server does not answer.")


@contextlib.contextmanager
def daemon(place: Path, *words: str) -> Iterator[None]:
    """A program that ends with the block; what it leaves in `place` is removed."""
    with (place.parent / f"{place.name}.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        unmount(place)
        shutil.rmtree(place)


def unmount(place: Path) -> None:
    """What engines leave mounted below a directory, the last first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for path in reversed([line.split()[1] for line in lines]):
        if path.startswith(f"{place}/"):
            subprocess.run(["umount", "--lazy", "--recursive", path], check=False)


def by_containerd(
    name: str, job: str, work: Path, *, snapshotter: Path, lazily: bool = False
) -> float:
    """Pull and run it, or start it lazily by stargz-snapshotter."""
    with (
        tempfile.TemporaryDirectory(dir=work) as place,
        node(snapshotter, Path(place) / "node", ADDRESS) as here,
    ):

        def start() -> str:
            if lazily:
                here.pull_lazily(name)
            else:
                pulled = here.ctr("images", "pull", "--plain-http", name)
                assert pulled.returncode == 0, pulled.stderr
            return here.run(name, "/opt/venv/bin/python3", "-c", job, lazy=lazily).stdout

        return timed(start)


def by_podman(name: str, job: str, work: Path) -> float:
    """Pull and run it, as root."""
    place = work / "podman"
    place.mkdir()
    storage = (f"--root={place}/root", f"--runroot={place}/run", "--runtime=runc")
    words = ("--cgroup-manager=cgroupfs", "run", "--rm", "--tls-verify=false", "--network=none")
    limits = ("--pull=always", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    try:
        return timed(lambda: call("podman", *storage, *words, *limits, name, "python3", "-c", job))
    finally:
        unmount(place)
        shutil.rmtree(place)


def by_docker(name: str, job: str, work: Path, archive: Path | None = None) -> float:
    """Pull it, or load it from an archive, and run it, in an engine of its own."""
    place = work / "docker"
    place.mkdir()
    at = f"unix://{place}/socket"
    own = (f"--data-root={place}/root", f"--exec-root={place}/run", f"--pidfile={place}/pid")
    none = ("--bridge=none", "--iptables=false", f"--host={at}", f"--config-file={place}/settings")
    (place / "settings").write_text("{}")
    with daemon(place, "dockerd", *own, *none):
        wait_for(lambda: call("docker", "--host", at, "version"))
        docker = ("docker", "--host", at)

        def start() -> str:
            if archive is not None:
                call(*docker, "load", "--quiet", "--input", str(archive))
            return call(*docker, "run", "--rm", "--network=none", name, "python3", "-c", job)

        return timed(start)
