"""An engine of the tests' own, which they may kill and fill up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from tests import need
from tests.kit.programs import run_program

START_LIMIT_S = 60.0


class PrivateEngine:
    """A dockerd with its own socket and data. It keeps the default bridge: one started with
    --bridge=none would delete the interface that the machine's other engine stands on.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = place / "data"
        self.url = f"unix://{place / 's'}"
        # Not the folder's name: a temporary one may begin or end with an underscore, and a
        # namespace may not hold a word that does.
        self._namespace = f"gp-{uuid.uuid4().hex[:12]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [need.program("dockerd", "docker.io"), "--host", self.url, "--iptables=false"]
        argv += ["--data-root", str(self.data), "--exec-root", str(self.place / "exec")]
        argv += ["--pidfile", str(self.place / "pid"), "--ip6tables=false"]
        # One containerd may serve the whole machine.
        name = self._namespace
        argv += ["--containerd-namespace", name, "--containerd-plugins-namespace", f"{name}-p"]
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_end = (self.place / "log").read_text(errors="replace")[-2000:]
                self.stop()
                need.lacking(f"no private engine can be started here: {log_end}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as probe:  # the SDK leaves one open that is refused
                probe.connect(self.url.removeprefix("unix://"))
            with self.client() as client:
                return bool(client.ping())
        except (docker.errors.DockerException, requests.RequestException, OSError):
            return False

    @contextmanager
    def client(self) -> Iterator[Any]:
        client = docker.DockerClient(base_url=self.url, timeout=60)
        with contextlib.closing(client):
            yield client

    def kill(self) -> None:
        """Let it die at once with its containerd, as in a crash of the machine."""
        self._end(signal.SIGKILL)
        file = self.place / "exec" / "containerd" / "containerd.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink(missing_ok=True)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def tags(self) -> list[str]:
        with self.client() as client:
            return sorted(tag for image in client.images.list() for tag in image.tags)

    def containers(self) -> list[tuple[str, str]]:
        """Each as (id, state)."""
        with self.client() as client:
            found = client.containers.list(all=True, sparse=True)
            return [(str(container.id), str(container.status)) for container in found]


@contextmanager
def private_engine(place: Path | None = None) -> Iterator[PrivateEngine]:
    """A running engine, and no trace of it afterwards; `place` may be a disk of its own."""
    need.root()
    own = Path(tempfile.mkdtemp(prefix="gp-"))
    engine = PrivateEngine(own)
    if place is not None:
        engine.data = place / "data"
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
        unmount_below(own)
        unmount_below(engine.data)
        shutil.rmtree(engine.data, ignore_errors=True)
        shutil.rmtree(own)


def unmount_below(folder: Path) -> None:
    """dockerd binds its data onto itself, and a killed one leaves that behind."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", mount], check=True, timeout=60)


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A disk in a file."""
    need.root()
    make, mount = need.program("mkfs.ext4", "e2fsprogs"), need.program("mount")
    with tempfile.TemporaryDirectory(prefix="gp-disk-") as name:
        image, place = Path(name) / "image", Path(name) / "disk"
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run([make, "-q", "-m", "0", str(image)], check=True, timeout=60)
        mounted = run_program([mount, "-o", "loop", str(image), str(place)])
        if mounted.returncode != 0:
            need.lacking(f"no disk can be mounted here: {mounted.stderr}")
        try:
            yield place
        finally:
            subprocess.run(["umount", str(place)], check=True, timeout=60)
