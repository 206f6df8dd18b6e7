"""What a container of an image sees, for the same probes: one POSIX shell script prints it all.

The image needs a shell and nothing else: no Python, and of the usual programs (`head`, `ls`, `df`,
`id`) those of busybox are enough. Who runs the script is hidden
behind a function from its text to what it printed.

The script prints frames: a line with a mark that nobody can know before, an operation and what it
is about, then the content up to the next mark. What an image's entry point prints besides is no
frame.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from images.engines.spec import RunJob, RunResult
from provision.doctor.listing import ListedFile, parse_df, parse_listing
from provision.doctor.model import Fact
from provision.doctor.probes import INSIDE, ProbedMachine, commands, read_facts
from provision.errors import BadInputError
from provision.host import loader
from provision.host.machine import Answer, Question
from provision.host.tree import may_use

TIMEOUT_S = 60.0
# What an engine gives where nobody asks for more.
SHM_BYTES = 64 << 20

_SCRIPT = "/gpu-provision-look.sh"
_FILES = (
    "/etc/os-release",
    "/usr/lib/os-release",
    "/etc/group",
    "/etc/passwd",
    "/etc/pip.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d/*.conf",
    "/etc/nv_tegra_release",
    "/proc/version",
    "/proc/modules",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self/limits",
    "/proc/self/mounts",
    "/proc/self/cgroup",
    "/proc/1/cgroup",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/arch",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/gpus/*/information",
    "/sys/module/nvidia/version",
    "/sys/hypervisor/type",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/product_name",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    '"${HOME:-/root}"/.config/pip/pip.conf',
    '"${VIRTUAL_ENV:-/nowhere}"/lib/python3*/site-packages/torch/version.py',
    '"${CONDA_PREFIX:-/nowhere}"/lib/python3*/site-packages/torch/version.py',
    "/usr/local/lib/python3*/*-packages/torch/version.py",
    "/usr/lib/python3*/*-packages/torch/version.py",
    "/opt/conda/lib/python3*/*-packages/torch/version.py",
)
_FOLDERS = (
    "/",
    "/dev",
    "/dev/char",
    "/etc",
    "/etc/alternatives",
    "/etc/ld.so.conf.d",
    "/opt",
    "/opt/conda",
    "/opt/conda/lib",
    "/proc/driver/nvidia/gpus",
    "/run",
    "/sys/module",
    "/sys/module/nvidia",
    "/usr",
    "/usr/local",
    "/usr/local/cuda*",
    "/usr/local/cuda*/compat",
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/lib64/stubs",
    "/usr/local/cuda*/targets/*/lib",
    "/usr/local/cuda*/targets/*/lib/stubs",
    "/usr/local/cuda*/bin",
    "/usr/local/lib",
    "/usr/local/lib/python3*",
    "/usr/local/lib/python3*/*-packages",
    "/usr/lib/python3*",
    "/usr/lib/python3*/*-packages",
    "/opt/conda/lib/python3*",
    "/opt/conda/lib/python3*/site-packages",
    '"${VIRTUAL_ENV:-/nowhere}"/lib',
    '"${VIRTUAL_ENV:-/nowhere}"/lib/python3*',
    '"${VIRTUAL_ENV:-/nowhere}"/lib/python3*/site-packages',
    '"${CONDA_PREFIX:-/nowhere}"/lib/python3*/site-packages',
)
_COMMANDS = (
    commands.SMI,
    commands.UNAME,
    commands.DPKG,
    commands.RPM,
    commands.NVCC,
    commands.GCC,
    commands.PYTHON,
)
_ROOMS = ("/", "/tmp", "/dev/shm")  # noqa: S108  they are asked for their size
_BEHIND_ID = {"uid": "id -u", "gids": "id -G", "name": "id -un"}
_PRELUDE = r"""
m='{mark}'
frame() {{ printf '\n%s %s %s\n' "$m" "$1" "${{2:-}}"; }}
limited() {{ if command -v timeout >/dev/null 2>&1; then timeout 5 "$@"; else "$@"; fi; }}
file() {{ [ -f "$1" ] && [ -r "$1" ] && {{ frame file "$1"; head -c {limit} "$1"; }}; }}
folder() {{
  [ -d "$1" ] || return 0
  place=$(cd -P "$1" 2>/dev/null && pwd -P) || return 0
  case "$seen" in *":$place:"*) return 0 ;; esac
  seen="$seen:$place:"
  frame folder "$place"
  LC_ALL=C ls -lAn "$place/" 2>/dev/null
}}
seen=
"""
_LINKS_LIMIT = 40


class Runs(Protocol):
    """What can run a command in an image: an engine, or a sandbox."""

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run it to its end."""


def look_inside(runner: Runs, handle: str, gpus: str = "none") -> dict[str, Fact]:
    """Facts from inside a container of a prepared image. `gpus`: how they are asked for
    (`RunJob.gpus`). What the runner refuses is its own failure.
    """

    def run(script: bytes) -> bytes:
        job = RunJob(
            image=handle,
            command=("sh", _SCRIPT),
            gpus=gpus,
            files={_SCRIPT: script},
            shm_bytes=SHM_BYTES,
            memlock_unlimited=False,
            stack_bytes=8 << 20,
            timeout_s=TIMEOUT_S,
        )
        return runner.run(job, lambda _: None).stdout.encode("utf-8", "surrogateescape")

    return read_facts(inside_machine(run), probes=INSIDE)


def inside_machine(run: Callable[[bytes], bytes]) -> ProbedMachine:
    """The machine that a container is. BadInputError where no script runs in the image."""
    mark = f"@@{secrets.token_hex(12)}"
    frames = parse(run(script(mark)), mark)
    if ("end", "-") not in frames:
        raise BadInputError(
            "The image cannot be looked into: it did not run a shell script to its end.",
            fix="Give it a shell (busybox is enough), or diagnose a log of it instead: "
            "provision doctor FILE",
        )
    seen = _FrameSource.of(frames)
    return ProbedMachine(env=seen.env, source=seen)


def script(mark: str) -> bytes:
    """The script; `mark` starts each of its frames and may stand nowhere else."""
    lines = [_PRELUDE.format(mark=mark, limit=1 << 20)]
    lines.append("frame env -; env")
    lines += [f"frame id {name}; {words} 2>/dev/null" for name, words in _BEHIND_ID.items()]
    lines.append(f'for f in {" ".join(_FILES)}; do file "$f"; done')
    lines.append(f'for d in {" ".join((*_FOLDERS, *loader.FOLDERS))}; do folder "$d"; done')
    lines.append("old=$IFS; IFS=:; set -f")
    lines.append('for d in $LD_LIBRARY_PATH $PATH; do folder "$d"; done')
    lines.append("IFS=$old; set +f")
    lines += [f"frame room {path}; df -Pk {path} 2>/dev/null" for path in _ROOMS]
    lines += [f"frame inodes {path}; df -Pi {path} 2>/dev/null" for path in _ROOMS]
    for number, command in enumerate(_COMMANDS):
        words = shlex.join((command.program, *command.arguments))
        lines.append(f"if command -v {command.program} >/dev/null 2>&1; then frame out {number}")
        lines.append(f'limited {words} 2>/dev/null; c=$?; frame code {number}; printf %s "$c"; fi')
    lines.append("frame end -")
    return "\n".join((*lines, "")).encode()


def parse(printed: bytes, mark: str) -> dict[tuple[str, str], bytes]:
    """Frames by operation and subject; what stands before the first is no frame."""
    frames: dict[tuple[str, str], bytes] = {}
    for piece in printed.replace(b"\r\n", b"\n").split(f"\n{mark} ".encode())[1:]:
        head, _, content = piece.partition(b"\n")
        operation, _, subject = head.decode("utf-8", "replace").partition(" ")
        frames.setdefault((operation, subject), content)
    return frames


@dataclass(frozen=True, kw_only=True)
class _FrameSource:
    """A source that answers out of frames."""

    env: Mapping[str, str]
    files: Mapping[str, bytes]
    folders: Mapping[str, Mapping[str, ListedFile]]
    frames: Mapping[tuple[str, str], bytes] = field(repr=False)

    @classmethod
    def of(cls, frames: Mapping[tuple[str, str], bytes]) -> _FrameSource:
        return cls(
            env={"container": "oci", **dict(_environment(_text(frames.get(("env", "-"), b""))))},
            files={subject: data for (name, subject), data in frames.items() if name == "file"},
            folders={
                subject: parse_listing(_text(data))
                for (name, subject), data in frames.items()
                if name == "folder"
            },
            frames=frames,
        )

    def __call__(self, question: Question) -> Answer:
        operation, *arguments = question
        table: Mapping[str, Callable[..., Answer]] = {
            "read": self._read,
            "lines": self._lines,
            "names": self._names,
            "link": self._link,
            "real": self._real,
            "status": self._status,
            "usable": self._usable,
            "room": self._room,
            "user": self._user,
            "run": self._run,
        }
        answer = table.get(operation)
        return answer(*arguments) if answer is not None else None

    def _read(self, path: str, limit: str) -> Answer:
        data = self.files.get(path)
        if data is None:
            data = self.files.get(self._resolved(path))
        return None if data is None or len(data) > int(limit) else data

    def _lines(self, path: str, word: str) -> Answer:
        data = self.files.get(path)
        if data is None:
            return None
        return [line for line in _text(data).splitlines() if word in line]

    def _names(self, path: str) -> Answer:
        listed = self.folders.get(self._resolved(path))
        return None if listed is None else list[Answer](sorted(listed))

    def _link(self, path: str) -> Answer:
        folder, _, name = path.rstrip("/").rpartition("/")
        entry = self._entry(f"{self._resolved(folder or '/').rstrip('/')}/{name}")
        return entry.target if entry is not None and entry.kind == "link" else None

    def _real(self, path: str) -> Answer:
        place = self._resolved(path)
        return place if self._is_there(place) else None

    def _status(self, path: str) -> Answer:
        place = self._resolved(path)
        entry = self._entry(place)
        if entry is None and not self._is_there(place):
            return None
        if entry is None:
            kind = "directory" if place in self.folders else "file"
            entry = ListedFile(kind=kind, mode=0o755, uid=0, gid=0, size=0)
        if entry.kind == "link":  # it leads to nothing
            return None
        return {
            "kind": entry.kind,
            "mode": entry.mode,
            "uid": entry.uid,
            "gid": entry.gid,
            "size": entry.size,
            "modified": 0,
            "device": "",
        }

    def _usable(self, path: str) -> Answer:
        entry, user = self._entry(self._resolved(path)), self._user()
        if entry is None or not isinstance(user, dict):
            return None
        uid, gids = user["uid"], user["gids"]
        if not isinstance(uid, int) or not isinstance(gids, list):
            return None
        ours = frozenset(gid for gid in gids if isinstance(gid, int))
        return may_use(entry.mode, entry.uid, entry.gid, uid, ours)

    def _room(self, path: str) -> Answer:
        sizes = parse_df(_text(self.frames.get(("room", path), b"")))
        if sizes is None:
            return None
        inodes = parse_df(_text(self.frames.get(("inodes", path), b""))) or (0, 0)
        total, free = sizes
        return {
            "total": total << 10,
            "free": free << 10,
            "inodes": inodes[0],
            "inodes_free": inodes[1],
        }

    def _user(self) -> Answer:
        told = {name: _text(self.frames.get(("id", name), b"")).strip() for name in _BEHIND_ID}
        with contextlib.suppress(ValueError):
            gids = [int(word) for word in told["gids"].split()]
            return {"name": told["name"], "uid": int(told["uid"]), "gids": list[Answer](gids)}
        return None

    def _run(self, timeout_s: str, *argv: str) -> Answer:
        del timeout_s
        for number, command in enumerate(_COMMANDS):
            same = command.program == argv[0].rpartition("/")[2] and command.arguments == argv[1:]
            out = self.frames.get(("out", str(number)))
            if same and out is not None:
                code = _text(self.frames.get(("code", str(number)), b"")).strip()
                return {
                    "code": int(code) if code.isdecimal() else None,
                    "out": _text(out),
                    "err": "",
                    "problem": None,
                }
        return None

    def _entry(self, place: str) -> ListedFile | None:
        folder, _, name = place.rpartition("/")
        return self.folders.get(folder or "/", {}).get(name)

    def _is_there(self, place: str) -> bool:
        return place in self.folders or place in self.files or self._entry(place) is not None

    def _resolved(self, path: str) -> str:
        """Where a path leads, as far as links are known."""
        here: list[str] = []
        todo = [part for part in reversed(path.split("/")) if part]
        links = 0
        while todo and links < _LINKS_LIMIT:
            part = todo.pop()
            if part in {".", ".."}:
                here = here if part == "." else here[:-1]
                continue
            entry = self._entry("/" + "/".join((*here, part)))
            if entry is None or entry.kind != "link":
                here.append(part)
                continue
            links += 1
            here = [] if entry.target.startswith("/") else here
            todo.extend(word for word in reversed(entry.target.split("/")) if word)
        return "/" + "/".join(here)


def _environment(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            yield name, value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
