"""Finds a Python that compiles exactly as the base's does: one of this machine, or the base's.

Interpreters of the same full version produce the same byte code, and all releases of the original
zlib compress it to the same bytes; faster reimplementations produce others. Each candidate must
prove both, so the bytes are the same whichever is used, and a machine without one gets an error.

The base's interpreter needs no container: the base's loader runs it in a directory with the few
files of the base that it needs, in a sandbox that shows it nothing else of this machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path

from images.layers.base_facts import BaseFacts
from images.layers.base_tree import plain_path
from images.layers.own_errors import BytecodeError
from images.oci.sources import Image
from images.oci.tarstream import layer_members
from images.system.errors import NoRunnerError
from images.system.process import environment
from images.system.scratch import scratch_directory

ORIGINAL_ZLIB = "9809ebd5 136628"
"""Checksum and size of `compiling.sample` compressed with zlib. Recorded with 1.2.13; the same with
1.2.3, 1.2.8, 1.2.11, 1.2.12, 1.3 and 1.3.1. zlib-ng gives b904a73b 136079."""

Confine = Callable[
    [Path, str, Sequence[str], Mapping[str, str]], tuple[tuple[str, ...], Mapping[str, str]]
]
"""Gets a directory, its path in the sandbox, a command and its variables; returns the command that
starts it in the sandbox, and its variables. NoRunnerError: this machine has no sandbox."""

_IN_THE_SANDBOX = "/base"
_GREETING_SECONDS = 30
_MOST_FILE_BYTES = 256 << 20
_STDLIB_PARTS = frozenset({"", "encodings", "collections", "importlib", "re"})
_ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}
_OPTIONS = ("-S", "-s", "-B", "-W", "ignore", "-X", "utf8")
_HEAD_BYTES = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """How to start a Python that compiles like the base's."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    shown: str

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start it with `compiling.py`, without any of the user's settings."""
        return subprocess.Popen(
            [*self.argv, *_OPTIONS, "-c", _script(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(self.environment),
            cwd="/",
            bufsize=0,
        )


class Compiler:
    """The interpreter for one base, found on first use. Thread-safe."""

    def __init__(self, facts: BaseFacts, *, python: str, base: Image, confine: Confine) -> None:
        """`base` has this interpreter: the base itself, or the same image for this machine."""
        self._confine = confine
        self.full = facts.python_full
        self.python = python
        self._facts = facts
        self._base = base
        self._lock = threading.Lock()
        self._found: Interpreter | None = None

    def interpreter(self) -> Interpreter:
        """Return the interpreter. BytecodeError: this machine has none, with the reasons."""
        with self._lock:
            if self._found is None:
                self._found = self._find()
            return self._found

    def _find(self) -> Interpreter:
        if self.full is None:
            raise BytecodeError(
                f"The version of {self._facts.python} in {self._base.shown} is not in the program.",
                fix="Build without --bytecode; or give another base: --base IMAGE",
            )
        seen = []
        try:
            for candidate in chain(_of_this_machine(self.python), self._of_the_base()):
                greeting = greet(candidate)
                if greeting == self.full:
                    return candidate
                seen.append(f"{candidate.shown}: {greeting or 'does not run'}")
        except NoRunnerError as error:
            seen.append(f"{self._facts.python} of {self._base.shown}: {error.message}")
        raise BytecodeError(
            f"Byte code for {self._base.shown} is made by Python {self.full} with the original"
            " zlib; this machine has none, and the base's own does not run on it.",
            fix=f"Build without --bytecode; or install Python {self.full}.",
            detail="\n".join(seen),
        )

    def _of_the_base(self) -> Iterator[Interpreter]:
        facts = self._facts
        here = _ARCHITECTURES.get(platform.machine())
        if here != self._base.platform.architecture or not (facts.loader and facts.stdlib):
            return
        scratch = contextlib.ExitStack()
        root = scratch.enter_context(scratch_directory()) / "base"
        root.mkdir()
        weakref.finalize(self, scratch.close)
        take_runtime(self._base, facts, self.python, root)
        shown = f"{facts.python} of {self._base.shown}"
        # It is third-party code, and runs in a sandbox or not at all.
        at = _IN_THE_SANDBOX
        argv = (f"{at}/loader", "--library-path", f"{at}/so", f"{at}/bin/python")
        command, environment = self._confine(root, at, argv, {**_settings(), "PYTHONHOME": at})
        yield Interpreter(argv=command, environment=environment, shown=shown)


def greet(candidate: Interpreter) -> str | None:
    """Query an interpreter's version; None without an answer.

    For another implementation or another zlib, the text matches no version.
    """
    try:
        process = candidate.start("greet")
    except OSError:
        return None
    with process:
        try:
            answer, _ = process.communicate(timeout=_GREETING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    words = answer[_HEAD_BYTES:].decode("ascii", "replace").split()
    if answer[:1] != b"G" or len(words) != 5 or process.returncode:
        return None
    kind, version, _, *zlib = words
    wrong = [kind] if kind != "cpython" else []
    wrong += [f"zlib {' '.join(zlib)}"] if " ".join(zlib) != ORIGINAL_ZLIB else []
    return " ".join((version, *wrong))


def _of_this_machine(python: str) -> Iterator[Interpreter]:
    """Yield this machine's Pythons of a version, each once."""
    own: str = getattr(sys, "_base_executable", sys.executable) or ""
    names = [own] if python == f"{sys.version_info[0]}.{sys.version_info[1]}" else []
    path = os.environ.get("PATH", os.defpath)
    searched = (*path.split(os.pathsep), "/usr/local/bin", "/usr/bin")
    names += [
        str(Path(directory, f"python{python}"))
        for directory in searched
        if directory.startswith("/")
    ]
    seen = set()
    for name in names:
        real = os.path.realpath(name)
        if real not in seen and os.access(real, os.X_OK):
            seen.add(real)
            yield Interpreter(argv=(name,), environment=_environment(), shown=name)


def _environment() -> dict[str, str]:
    found = environment()
    return {name: found[name] for name in ("PATH", "HOME") if name in found} | _settings()


def _settings() -> dict[str, str]:
    """Our settings. The order of string sets depends on the hash seed."""
    return {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


def _script() -> str:
    return resources.files("images.layers").joinpath("compiling.py").read_text(encoding="utf-8")


def take_runtime(base: Image, facts: BaseFacts, python: str, root: Path) -> None:
    """Copy the files that a base's interpreter needs into `root`, an empty directory.

    We choose the paths in it: no path of the base is used on this machine.
    """
    libraries: dict[str, list[str]] = {}
    for name, path in facts.runtime.items():
        libraries.setdefault(path.lstrip("/"), []).append(name)
    (root / "lib64").symlink_to("lib")  # where some builds look
    for layer in base.layers:
        for member, content in layer_members(layer):
            path = plain_path(member.name)
            if content is None or member.size > _MOST_FILE_BYTES:
                continue
            places = _places(path, facts, libraries, f"lib/python{python}")
            if places:
                data = content.read()
                for place in places:
                    to = root / place
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(data)
                    to.chmod(0o755)


def _places(
    path: str, facts: BaseFacts, libraries: Mapping[str, list[str]], stdlib: str
) -> list[str]:
    """The paths in our directory to which a file of the base is copied; `stdlib` is one of ours."""
    places = []
    if f"/{path}" == facts.python:
        places.append("bin/python")
    if f"/{path}" == facts.loader:
        places.append("loader")
    for name in libraries.get(path, ()):
        kind, _, file = name.rpartition("/")
        if re.fullmatch(r"\w[\w.+-]*", file) and kind in {"", "lib-dynload"}:
            places.append(f"{stdlib}/lib-dynload/{file}" if kind else f"so/{file}")
    directory, _, file = path.rpartition("/")
    inside = f"/{directory}/".removeprefix(f"{facts.stdlib}/").rstrip("/")
    if inside in _STDLIB_PARTS and re.fullmatch(r"\w+\.py", file):
        places.append("/".join(filter(None, (stdlib, inside, file))))
    return places
