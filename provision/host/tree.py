"""A source that reads a root directory and runs programs of this machine.

Links are followed inside the root, as after chroot, so an absolute link of another machine's tree
does not lead into ours. Nothing here raises, and only regular files are opened: a FIFO would block.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from provision.host.machine import INDEX_LIMIT_BYTES, Answer, Question, Source
from provision.host.runner import ProgramRunner
from provision.host.source_facts import one_line

_LINKS_LIMIT = 40
_NAMES_LIMIT = 20_000
_LINES_LIMIT = 200
_LINE_LIMIT = 4096
_TICKS_A_SECOND = 100  # USER_HZ, the same on every Linux that NVIDIA's driver knows


def tree_source(root: Path, run: ProgramRunner | None, env: Mapping[str, str]) -> Source:
    """A source for the tree at `root`. The kernel's answers (rights, the process table) are used
    only for the running system.
    """
    files = _Tree(root, env)
    table: dict[str, Callable[..., Answer]] = {
        "read": files.read,
        "tail": files.tail,
        "lines": files.lines,
        "names": files.names,
        "link": files.link,
        "real": files.real,
        "status": files.status,
        "usable": files.usable,
        "room": files.room,
        "processes": files.processes,
        "user": files.user,
        "why": files.why,
    }

    def ask(question: Question) -> Answer:
        operation, *arguments = question
        if operation == "run":
            return _completed(run, *arguments) if run else None
        answer = table.get(operation)
        if answer is None:
            return None
        try:
            return answer(*arguments)
        except (OSError, ValueError):  # ValueError: a NUL in a path
            return None

    return ask


def _completed(run: ProgramRunner, timeout_s: str, *argv: str) -> Answer:
    done = run(argv, float(timeout_s))
    return {"code": done.code, "out": done.out, "err": done.err, "problem": done.problem}


class _Tree:
    def __init__(self, root: Path, env: Mapping[str, str]) -> None:
        self._root = root
        self._env = env
        self._is_ours = root == Path("/")

    def read(self, path: str, limit: str) -> Answer:
        data = self._bytes(path, int(limit))
        return None if data is None or len(data) > int(limit) else data

    def tail(self, path: str, limit: str) -> Answer:
        with self._open(path) as number:
            if number is None:
                return None
            size = os.fstat(number).st_size
            os.lseek(number, max(0, size - int(limit)), os.SEEK_SET)
            return _read(number, int(limit))

    def lines(self, path: str, word: str) -> Answer:
        data = self._bytes(path, INDEX_LIMIT_BYTES)
        if data is None:
            return None
        found = [line for line in data.split(b"\n") if os.fsencode(word) in line]
        return [line[:_LINE_LIMIT].decode("utf-8", "replace") for line in found[:_LINES_LIMIT]]

    def names(self, path: str) -> Answer:
        place = self._place(path)
        return None if place is None else [*sorted(os.listdir(place))[:_NAMES_LIMIT]]  # noqa: PTH208

    def link(self, path: str) -> Answer:
        folder, _, name = path.rstrip("/").rpartition("/")
        place = self._place(folder or "/")
        return None if place is None else os.readlink(place / name)  # noqa: PTH115  Path has it since 3.9

    def real(self, path: str) -> Answer:
        place = self._place(path)
        if place is None or not os.path.lexists(place):
            return None
        return "/" + str(place.relative_to(self._root)) if place != self._root else "/"

    def status(self, path: str) -> Answer:
        place = self._place(path)
        if place is None:
            return None
        found = place.stat()
        return {
            "kind": _kind(found.st_mode),
            "mode": stat.S_IMODE(found.st_mode),
            "uid": found.st_uid,
            "gid": found.st_gid,
            "size": found.st_size,
            "modified": int(found.st_mtime),
            "device": f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}",
        }

    def usable(self, path: str) -> Answer:
        place = self._place(path)
        if place is None or not place.exists():
            return None
        if self._is_ours:
            return os.access(place, os.R_OK | os.W_OK)
        user, found = self.user(), place.stat()
        if not isinstance(user, dict):
            return None
        uid, gids = user["uid"], user["gids"]
        if not isinstance(uid, int) or not isinstance(gids, list):
            return None
        return may_use(
            found.st_mode, found.st_uid, found.st_gid, uid, frozenset(map(_number, gids))
        )

    def why(self, path: str) -> Answer:
        try:
            if (place := self._place(path)) is None:
                return "too many links"
            if place.is_dir():
                os.listdir(place)  # noqa: PTH208
                return None
            with self._open(path) as number:
                return "not a regular file" if number is None else None
        except FileNotFoundError:
            return "no such file"
        except OSError as exc:
            return os.strerror(exc.errno or errno.EIO).lower()

    def room(self, path: str) -> Answer:
        place = self._place(path)
        if place is None:
            return None
        found = os.statvfs(place)
        return {
            "total": found.f_blocks * found.f_frsize,
            "free": found.f_bavail * found.f_frsize,
            "inodes": found.f_files,
            "inodes_free": found.f_favail,
        }

    def processes(self, name: str) -> Answer:
        pids = [one for one in os.listdir(self._root / "proc") if one.isdigit()]  # noqa: PTH208
        if not pids:
            return None
        kept_name = os.fsencode(name)[:15]  # of a name the kernel keeps so much
        return [
            self._process(name, pid)
            for pid in sorted(pids, key=int)
            if (self._bytes(f"/proc/{pid}/comm", 64) or b"").strip() == kept_name
        ]

    def user(self) -> Answer:
        fields = dict(
            line.split(":", 1)
            for line in (self._bytes("/proc/self/status", 1 << 16) or b"").decode().splitlines()
            if ":" in line
        )
        try:
            uid, gid = int(fields["Uid"].split()[1]), int(fields["Gid"].split()[1])
            gids = [gid, *(int(one) for one in fields.get("Groups", "").split())]
        except (KeyError, IndexError, ValueError):
            return None
        return {"name": self._user_name(uid), "uid": uid, "gids": [*sorted(set(gids))]}

    def _user_name(self, uid: int) -> str:
        for line in (self._bytes("/etc/passwd", INDEX_LIMIT_BYTES) or b"").split(b"\n"):
            parts = line.split(b":")
            if len(parts) > 2 and parts[2] == b"%d" % uid:
                return parts[0].decode("utf-8", "replace")
        return self._env.get("USER", "")

    def _process(self, name: str, pid: str) -> Answer:
        argv = (self._bytes(f"/proc/{pid}/cmdline", 1 << 16) or b"").split(b"\0")
        status = (self._bytes(f"/proc/{pid}/status", 1 << 16) or b"").decode("utf-8", "replace")
        uid = next((x.split()[1] for x in status.splitlines() if x.startswith("Uid:")), "0")
        return {
            "name": name,
            "argv": [one_line(word.decode("utf-8", "replace")) for word in argv if word],
            "uid": int(uid),
            "started": self._started(pid),
        }

    def _started(self, pid: str) -> int:
        """Seconds since the epoch; 0 where the kernel does not say. See proc(5), field 22."""
        text = (self._bytes(f"/proc/{pid}/stat", 4096) or b"").decode("utf-8", "replace")
        boot = [
            x
            for x in (self._bytes("/proc/stat", 1 << 20) or b"").split(b"\n")
            if x.startswith(b"btime ")
        ]
        after_name = text.rpartition(")")[2].split()
        if len(after_name) < 20 or not boot:
            return 0
        return int(boot[0].split()[1]) + int(after_name[19]) // _TICKS_A_SECOND

    def _bytes(self, path: str, limit: int) -> bytes | None:
        """At most one byte more than the limit, which shows that the file is larger."""
        with contextlib.suppress(OSError), self._open(path) as number:
            return None if number is None else _read(number, limit + 1)
        return None

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[int | None]:
        place = self._place(path)
        if place is None:
            yield None
            return
        number = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            yield number if stat.S_ISREG(os.fstat(number).st_mode) else None
        finally:
            os.close(number)

    def _place(self, path: str) -> Path | None:
        """The path with all links followed inside the root; it may not exist."""
        here: list[str] = []
        todo = [part for part in reversed(path.split("/")) if part]
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                here = here[:-1]
                continue
            try:
                target = os.readlink(self._root.joinpath(*here, part))  # noqa: PTH115
            except OSError:
                here.append(part)
                continue
            links += 1
            if links > _LINKS_LIMIT:
                return None
            if target.startswith("/"):
                # what the kernel gives for /proc/self/root and its like is not a path
                here = []
            todo.extend(part for part in reversed(target.split("/")) if part)
        return self._root.joinpath(*here)


def may_use(mode: int, uid: int, gid: int, our_uid: int, our_gids: frozenset[int]) -> bool:
    """Whether permission bits let us read and write; the first class that applies to us decides."""
    if our_uid == 0:
        return True
    if our_uid == uid:
        return mode & 0o600 == 0o600
    if gid in our_gids:
        return mode & 0o060 == 0o060
    return mode & 0o006 == 0o006


def _read(number: int, limit: int) -> bytes:
    """Files of /proc and /sys have no size, so they are read until they end."""
    pieces: list[bytes] = []
    left = limit
    while left > 0 and (piece := os.read(number, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _kind(mode: int) -> str:
    for test, kind in (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    ):
        if test(mode):
            return kind
    return "other"


def _number(value: Answer) -> int:
    return value if isinstance(value, int) else -1
