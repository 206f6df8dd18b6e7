"""The only way to read a machine: files, directories, a few programs, NVML, and nothing else.

Everything that reads a machine queries a `ProbedMachine`, which sends a source one plain question
at a time. So the same code reads this machine, a tree of files, a bundle that somebody sent, and
what a script printed inside a container. Questions and answers are plain values that JSON can hold
(and bytes), so they can be recorded and replayed.

A source answers None if it does not know: no such file, no permission, not recorded.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from provision.host.runner import ProgramResult, ProgramRunner

if TYPE_CHECKING:
    from typing import TypeAlias

TEXT_LIMIT_BYTES = 1 << 20
# An index of a distribution (modules.dep, an installed package's list) may be larger.
INDEX_LIMIT_BYTES = 16 << 20

# A question to a source: an operation and its arguments.
Question: TypeAlias = "tuple[str, ...]"
Answer: TypeAlias = "bool | int | str | bytes | list[Answer] | dict[str, Answer] | None"
Source: TypeAlias = "Callable[[Question], Answer]"


class PathStatus(NamedTuple):
    """What is at a path, links followed. `kind`: "file", "directory", "socket", "device" or
    "other"; `mode` holds the permission bits only; `modified` is in seconds since the epoch;
    `device` tells file systems apart.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    modified: int
    device: str


class DiskSpace(NamedTuple):
    """A file system's space: sizes in bytes, counts of inodes (0: it has no such limit)."""

    total: int
    free: int
    inodes: int
    inodes_free: int


class RunningProgram(NamedTuple):
    """A running program: its arguments, its owner, and when it started (seconds since epoch)."""

    name: str
    argv: tuple[str, ...]
    uid: int
    started: int


class User(NamedTuple):
    """The current user: name ("" if unknown), effective id, ids of all active groups."""

    name: str
    uid: int
    gids: frozenset[int]


class ProbedMachine(NamedTuple):
    """A machine to read. `root` is the directory of its files, `env` its environment; `run` starts
    its programs, and without it there are only files. `source` replaces all three.
    """

    root: Path = Path("/")
    env: Mapping[str, str] = MappingProxyType({})
    run: ProgramRunner | None = None
    source: Source | None = None

    def ask(self, *question: str) -> Answer:
        """Sends one question to the source."""
        from provision.host.tree import tree_source

        source = self.source or tree_source(self.root, self.run, self.env)
        return source(question)

    def data(self, path: str, limit: int = TEXT_LIMIT_BYTES) -> bytes | None:
        """A regular file's content; None for a larger one, and for anything else."""
        answer = self.ask("read", path, str(limit))
        return answer if isinstance(answer, bytes) else None

    def text(self, path: str, limit: int = TEXT_LIMIT_BYTES) -> str | None:
        """The same as text; invalid UTF-8 becomes the replacement character."""
        data = self.data(path, limit)
        return None if data is None else data.decode("utf-8", "replace")

    def word(self, path: str) -> str | None:
        """The only word or line of a kernel file, stripped."""
        text = self.text(path)
        return None if text is None else text.strip("\0 \t\r\n")

    def tail(self, path: str, limit: int) -> bytes | None:
        """The last bytes of a file."""
        answer = self.ask("tail", path, str(limit))
        return answer if isinstance(answer, bytes) else None

    def lines(self, path: str, word: str) -> tuple[str, ...] | None:
        """Those lines of a file that contain the word; the rest is neither kept nor recorded."""
        answer = self.ask("lines", path, word)
        return _words(answer)

    def names(self, path: str) -> tuple[str, ...] | None:
        """What a directory holds, in order."""
        return _words(self.ask("names", path))

    def paths(self, folder: str, pattern: str) -> tuple[str, ...]:
        """Paths of the entries whose whole name matches the pattern; () if there are none."""
        found = re.compile(pattern)
        return tuple(
            f"{folder.rstrip('/')}/{name}"
            for name in self.names(folder) or ()
            if found.fullmatch(name)
        )

    def link(self, path: str) -> str | None:
        """The target of a symbolic link."""
        answer = self.ask("link", path)
        return answer if isinstance(answer, str) else None

    def real(self, path: str) -> str | None:
        """Where a path ends when all links are followed, inside the root; None: nowhere."""
        answer = self.ask("real", path)
        return answer if isinstance(answer, str) else None

    def status(self, path: str) -> PathStatus | None:
        answer = self.ask("status", path)
        if not isinstance(answer, dict):
            return None
        kind, device = answer.get("kind"), answer.get("device")
        names = ("mode", "uid", "gid", "size", "modified")
        numbers = {name: value for name in names if isinstance(value := answer.get(name), int)}
        if not isinstance(kind, str) or not isinstance(device, str) or len(numbers) != len(names):
            return None
        return PathStatus(kind=kind, device=device, **numbers)

    def exists(self, path: str) -> bool:
        return self.status(path) is not None

    def usable(self, path: str) -> bool | None:
        """Whether we may read and write it."""
        answer = self.ask("usable", path)
        return answer if isinstance(answer, bool) else None

    def room(self, path: str) -> DiskSpace | None:
        answer = self.ask("room", path)
        if not isinstance(answer, dict):
            return None
        names = ("total", "free", "inodes", "inodes_free")
        numbers = {name: value for name in names if isinstance(value := answer.get(name), int)}
        return DiskSpace(**numbers) if len(numbers) == len(names) else None

    def processes(self, name: str) -> tuple[RunningProgram, ...] | None:
        """Running programs of that name; None: unknown."""
        answer = self.ask("processes", name)
        if not isinstance(answer, list):
            return None
        return tuple(_process(one) for one in answer if isinstance(one, dict))

    def user(self) -> User | None:
        answer = self.ask("user")
        if not isinstance(answer, dict):
            return None
        name, uid, gids = answer.get("name"), answer.get("uid"), answer.get("gids")
        if not isinstance(name, str) or not isinstance(uid, int) or not isinstance(gids, list):
            return None
        ids = frozenset(gid for gid in gids if isinstance(gid, int))
        return User(name=name, uid=uid, gids=ids)

    def command(self, argv: Sequence[str], timeout_s: float) -> ProgramResult | None:
        """What a program printed and how it ended; None if none may be run."""
        answer = self.ask("run", f"{timeout_s:g}", *argv)
        if not isinstance(answer, dict):
            return None
        code, problem = answer.get("code"), answer.get("problem")
        out, err = answer.get("out"), answer.get("err")
        return ProgramResult(
            code=code if isinstance(code, int) else None,
            out=out if isinstance(out, str) else "",
            err=err if isinstance(err, str) else "",
            problem=problem if isinstance(problem, str) else None,
        )

    def nvml(self) -> Mapping[str, Answer] | None:
        """NVML's answers; see `provision.host.nvml.ask_nvml`. None: it cannot be queried."""
        answer = self.ask("nvml")
        return answer if isinstance(answer, dict) else None

    def on_path(self, program: str) -> tuple[str, ...]:
        """Every program of that name on PATH, in its order, each file once."""
        entries = self.env.get("PATH", os.defpath).split(":")
        folders = [entry for entry in entries if entry.startswith("/")]
        return self._programs(folders, program)

    def which(self, program: str, places: Sequence[str] = ()) -> str | None:
        """The first of that name on PATH, in the usual folders of programs, or at `places`."""
        found = self.on_path(program) or self._programs(_PROGRAM_FOLDERS, program)
        return next(iter(found), None) or next(filter(self.exists, places), None)

    def _programs(self, folders: Sequence[str], program: str) -> tuple[str, ...]:
        found: dict[str, str] = {}
        for folder in dict.fromkeys(folders):
            path = f"{folder.rstrip('/')}/{program}"
            status = self.status(path)
            if status is not None and status.kind == "file" and status.mode & 0o111:
                found.setdefault(self.real(path) or path, path)
        return tuple(found.values())

    def why(self, path: str) -> str:
        """Why a path gave nothing, in the system's words: "no such file", "permission denied"."""
        answer = self.ask("why", path)
        return answer if isinstance(answer, str) else "it cannot be read"

    def home(self) -> str | None:
        """The home directory, by the environment."""
        home = self.env.get("HOME", "")
        return home.rstrip("/") if home.startswith("/") and home != "/" else None


_PROGRAM_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)


class Remembering:
    """A source that sends each question once, even if several threads send it together."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._answers: dict[Question, Answer] = {}
        self._locks: dict[Question, threading.Lock] = {}
        self._guard = threading.Lock()

    def __call__(self, question: Question) -> Answer:
        with self._guard:
            lock = self._locks.setdefault(question, threading.Lock())
        with lock:
            if question not in self._answers:
                self._answers[question] = self._source(question)
            return self._answers[question]


def _words(answer: Answer) -> tuple[str, ...] | None:
    if not isinstance(answer, list):
        return None
    return tuple(word for word in answer if isinstance(word, str))


def _process(answer: Mapping[str, Answer]) -> RunningProgram:
    name, argv = answer.get("name"), answer.get("argv")
    uid, started = answer.get("uid"), answer.get("started")
    return RunningProgram(
        name=name if isinstance(name, str) else "",
        argv=_words(argv) or (),
        uid=uid if isinstance(uid, int) else 0,
        started=started if isinstance(started, int) else 0,
    )
