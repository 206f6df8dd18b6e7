"""A Debian of the tests' own: a root file system with its own processes, in which packages are
installed, files are broken and engines started, and of which nothing stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from images.oci.archive_reader import open_archive
from images.oci.tarstream import layer_tar
from images.system import process
from tests import need
from tests.engines.lab import debian

_ENTER = """
set -e
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir old
pivot_root . old
umount -l /old
rmdir /old
touch /run/entered
sleep infinity &
wait  # it also takes in those that daemons leave behind when they end
"""
_READY_S = 60.0


class DebianMachine:
    """It shares the network of this machine, and nothing else."""

    def __init__(self, tree: Path, pid: int) -> None:
        self.tree = tree
        self._pid = pid

    def run(
        self, command: str, limit_s: float = 600.0, on_line: Callable[[str], None] = print
    ) -> int | None:
        """The exit code of one command of /bin/sh; None where its time was up."""
        env: dict[str, str | None] = {"HOME": "/root", "SUDO_USER": None, "DOCKER_HOST": None}
        env["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = [need.program("nsenter"), "--target", str(self._pid), "--mount", "--pid", "--root"]
        try:
            done = process.run(
                [*enter, "/bin/sh", "-c", 'cd / && exec sh -ec "$0"', command],
                timeout_s=limit_s,
                env=env,
                on_line=on_line,
            )
        except process.CommandTimedOut:
            return None
        return done.code

    def output(self, command: str) -> tuple[int | None, str]:
        lines: list[str] = []
        code = self.run(command, on_line=lines.append)
        return code, "\n".join(lines)

    def must(self, command: str) -> str:
        code, said = self.output(command)
        assert code == 0, f"{command}: {said}"
        return said

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of its tree; /run and /tmp are not in it."""
        file = self.tree / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)

    def restart_engine(self) -> None:
        self.must("service docker restart || service docker start")
        self.until("docker version")

    def until(self, command: str) -> str:
        """What the command says once it succeeds."""
        deadline = time.monotonic() + _READY_S
        while True:
            code, said = self.output(command)
            if code == 0:
                return said
            assert time.monotonic() < deadline, f"{command}: {said}"
            time.sleep(0.1)


@contextmanager
def debian_machine(packages: Sequence[str]) -> Iterator[DebianMachine]:
    need.root()
    place = Path(tempfile.mkdtemp(prefix="gp-machine-"))
    tree = place / "tree"
    holder: subprocess.Popen[bytes] | None = None
    try:
        make_tree(tree, packages)
        shutil.copy("/etc/resolv.conf", tree / "etc" / "resolv.conf")
        unshare = [need.program("unshare"), "--mount", "--pid", "--fork", "--kill-child"]
        holder = subprocess.Popen(
            [*unshare, "--propagation", "private", "sh", "-c", _ENTER, "sh", str(tree)],
            stdin=subprocess.DEVNULL,
        )
        yield DebianMachine(tree, _first_process(holder))
    finally:
        if holder is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                os.kill(_child(holder.pid), signal.SIGKILL)  # with it goes all that runs there
            holder.kill()
            holder.wait()
        shutil.rmtree(place)


def make_tree(tree: Path, packages: Sequence[str]) -> None:
    """A Debian with these packages, in a folder: the base that the product makes of them."""
    (layer,) = open_archive(debian((*packages,)).archive).layers
    tree.mkdir(parents=True)
    argv = [need.program("tar"), "--extract", "--preserve-permissions", "--numeric-owner"]
    subprocess.run(
        [*argv, "--directory", str(tree)], input=b"".join(layer_tar(layer)), check=True, timeout=600
    )


def _first_process(holder: subprocess.Popen[bytes]) -> int:
    """The process that holds the machine, once it has entered it."""
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = _child(holder.pid)
            if Path(f"/proc/{pid}/root/run/entered").exists():
                return pid
        if holder.poll() is not None or time.monotonic() > deadline:
            need.lacking("no mount and process namespaces can be made here")
        time.sleep(0.05)


def _child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return int(children.split()[0])
