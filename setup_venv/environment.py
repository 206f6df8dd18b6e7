""".venv: its lock, its stamp, its contents.

.venv/lock is held while this works, also by the pip that it starts: a second call waits, even if
the first was killed. .venv/stamp is written last; without it the environment is unfinished. Its
lines: the requirements file; the interpreter that PYTHON named, or nothing; the checkout's path;
the checksums of what it was made from.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from setup_venv.client import Client
from setup_venv.errors import PipFailedError, SetupError
from setup_venv.pip import disk_is_full, explain, fetch, install, pinned_pip
from setup_venv.settings import pages_of, pip_environment, pip_settings

ROOMS = ("provision", "images", "verify")
# The Python for .venv, with links and other environments resolved. So its name has its version
# (python3.11), and an upgrade to another leaves a dangling link in .venv, which `./run` detects.
# Looked up before anything is removed: we may run from .venv itself.
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"setup    {text}\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Venv:
    """An environment whose lock we hold. `root` is the checkout."""

    root: Path
    lock: int

    @property
    def path(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.path / "bin/python"

    @property
    def unpacked(self) -> Path:
        """Where the fetched pip is, until it has installed itself."""
        return self.path / "pip"

    def stamp(self) -> list[str]:
        """The stamp's lines; [] if the environment is unfinished."""
        try:
            return os.fsdecode((self.path / "stamp").read_bytes()).split("\n")[:-1]
        except FileNotFoundError:
            return []

    def write_stamp(self, lines: list[str]) -> None:
        new = self.path / "stamp.new"
        # As file system bytes: ./run compares them, whatever the locale.
        new.write_bytes(os.fsencode("".join(f"{line}\n" for line in lines)))
        new.replace(self.path / "stamp")

    def remove_stamp(self) -> None:
        (self.path / "stamp").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything but the lock."""
        self.remove_stamp()
        for entry in os.scandir(self.path):
            if entry.name == "lock":
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()

    def fault(self) -> str:
        """Why it must be created from scratch; "" if packages can be installed into it."""
        stamp = self.stamp()
        if len(stamp) < 3:
            return "unfinished" if self.python.is_symlink() else "new"
        if stamp[2] != str(self.root):
            return f"the checkout was moved from {stamp[2]}"
        if os.path.realpath(self.python) != INTERPRETER or not self.python.exists():
            return "it was made with another Python"
        return "" if (self.path / "bin/pip").exists() else "it has no pip"


def set_up(requirements: str, named: str, key: str) -> None:
    """Bring .venv to what the requirements list. Raises SetupError.

    `key` is the checkout's path and then the checksums, as `./run` compares them.
    """
    root = Path(key.partition("\n")[0])
    wanted = [requirements, named, *key.split("\n")]
    try:
        with _locked(root) as venv:
            _set_up(venv, wanted)
    except OSError as error:
        raise _refused(root, error) from error


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[Venv]:
    path = root / ".venv"
    path.mkdir(exist_ok=True)
    with (path / "lock").open("a", encoding="utf-8") as file:
        _wait(file, path)
        yield Venv(root, file.fileno())


def _wait(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for another ./run, which is setting up {path}")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        pass  # a network file system without locks


def _refused(root: Path, error: OSError) -> SetupError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_is_full(root)
    what = f"Cannot set up {root / '.venv'}: {error.strerror or error}"
    if error.filename and str(error.filename) != str(root / ".venv"):
        what += f" ({error.filename})"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        fix = f"Use a checkout that you can write to: git clone '{root}' DIRECTORY"
    else:
        fix = f"Remove {root / '.venv'}, then run this again."
    return SetupError(what, fix)


def _set_up(venv: Venv, wanted: list[str]) -> None:
    fault, had = venv.fault(), venv.stamp()
    if not fault and [had[0], *had[2:]] == [wanted[0], *wanted[2:]]:
        if had != wanted:
            venv.write_stamp(wanted)
        return
    if os.statvfs(venv.path).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise SetupError(
            f"{venv.path} is on a file system mounted noexec, from which no program can run.",
            f"Use a checkout on another file system: git clone '{venv.root}' DIRECTORY",
        )
    began = time.monotonic()
    requirements = venv.root / wanted[0]
    settings = pip_settings(os.environ)
    client = Client(settings, os.environ)
    variables = pip_environment(settings, os.environ)
    pip = None
    if fault:
        again = "" if fault == "new" else f" again ({fault})"
        say(f"creating {venv.path}{again} with Python {platform.python_version()}")
        name, digests = pinned_pip(requirements.read_text(encoding="utf-8"))
        pip = (name, fetch(client, pages_of("pip", settings), name, digests))
        venv.clear()
    else:
        say(f"updating {venv.path} to {wanted[0]}")
        venv.remove_stamp()
    try:
        if pip:
            _make_empty(venv, *pip)
        _install(venv, requirements, variables)
        venv.write_stamp(wanted)
    except BaseException as error:
        known = error
        if isinstance(error, PipFailedError):
            known = explain(error, requirements, client, settings)
        if fault:
            with contextlib.suppress(OSError):
                venv.clear()
        elif isinstance(error, PipFailedError) and not error.changed_packages:
            venv.write_stamp(had)
        raise known from error
    say(f"done in {time.monotonic() - began:.1f} s")


def _make_empty(venv: Venv, name: str, wheel: bytes) -> None:
    """Create an environment without packages; pip is unpacked next to its packages."""
    argv = [INTERPRETER, "-I", "-m", "venv", "--without-pip", str(venv.path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(
            f"{' '.join(argv)} failed: {(done.stderr or done.stdout).strip()[-500:]}",
            "Name another Python: PYTHON=/path/to/python3 ./run ...",
        )
    venv.unpacked.mkdir()
    (venv.unpacked / name).write_bytes(wheel)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        # Without its metadata: else pip would consider itself installed.
        members = [member for member in archive.namelist() if member.startswith("pip/")]
        archive.extractall(venv.unpacked, members)


def _install(venv: Venv, requirements: Path, variables: Mapping[str, str]) -> None:
    python = [str(venv.python), "-I"]
    pip = [*python, "-m", "pip"]
    words = ["--require-hashes", "--only-binary=:all:", f"--requirement={requirements}"]
    if venv.unpacked.exists():
        words.append(f"--find-links={venv.unpacked}")
        install([*python, str(venv.unpacked / "pip")], words, variables, venv.lock)
        shutil.rmtree(venv.unpacked)
    else:
        install(pip, words, variables, venv.lock)
    own = ["--no-deps", "--no-index", "--no-build-isolation", f"--editable={venv.root}"]
    install(pip, own, variables, venv.lock)
    # On all cores, unlike pip's compiling. For this checkout, too: for a user who cannot write
    # here, half of a short command's time would be compiling.
    places = [str(venv.path / "lib"), *(str(venv.root / room) for room in ROOMS)]
    for jobs in (min(os.cpu_count() or 1, 8), 1):  # several need /dev/shm
        argv = [*python, "-m", "compileall", "-q", f"-j{jobs}", *places]
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            break
