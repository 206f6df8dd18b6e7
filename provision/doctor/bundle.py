"""A bundle: everything that the probes asked a machine, with its answers, redacted, in one file.

    manifest.json       version, time, what was redacted
    environment.json    the variables that probes read
    answers.json        [[question, answer], ...]; long answers name a member
    files/...           files, under their path
    commands/NN-name    what programs printed

A bundle answers the same questions again, so the probes run on it as on the machine: what they
find is what they found there, with other names. It is read into memory, member by member, within
limits; nothing of it is ever unpacked.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from images.text.printable import printable
from images.text.suggestions import no_such, or_nearby
from provision.doctor.probes import ProbedMachine, kernel_log, read_facts, source_of
from provision.doctor.probes.environment import VARIABLE_PREFIXES, VARIABLES
from provision.doctor.redact import Redactor
from provision.errors import BadInputError
from provision.host.machine import Answer, Question, Source
from provision.host.nvml import NvmlLoader, load_nvml
from provision.output.files import write_whole
from provision.version import VERSION

FORMAT = 1
TOTAL_LIMIT_BYTES = 128 << 20
MEMBER_LIMIT_BYTES = 32 << 20
MEMBERS_LIMIT = 5000

_MAKE_ONE = "Make one on the machine in question: provision doctor collect machine.tar.gz"
_MANIFEST, _ENVIRONMENT, _ANSWERS = "manifest.json", "environment.json", "answers.json"
_HOST_NAMES = ("/proc/sys/kernel/hostname", "/etc/hostname")
_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")
# Programs whose dotted numbers are versions, never addresses.
_VERSIONS = frozenset(
    {"dpkg-query", "rpm", "nvcc", "gcc", "python3", "modinfo", "dkms", "nvidia-ctk", "uname"}
)
_PCI_EXTENDED_AT, _SERIAL_CAPABILITY = 0x100, 0x0003


class BundleRecorder:
    """A source that remembers what it was asked and what it answered."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._answers: dict[Question, Answer] = {}
        self._guard = threading.Lock()

    def __call__(self, question: Question) -> Answer:
        answer = self._source(question)
        with self._guard:
            return self._answers.setdefault(question, answer)

    def answers(self) -> dict[Question, Answer]:
        """All so far, in the order of the questions; a program that hangs adds nothing more."""
        with self._guard:
            return dict(sorted(self._answers.items()))


def collect(machine: ProbedMachine, out: Path, *, nvml_loader: NvmlLoader = load_nvml) -> None:
    """Write the bundle of a machine. OSError where the file cannot be written."""
    source = source_of(machine, nvml_loader)
    recorder = BundleRecorder(source)
    recorded = ProbedMachine(root=machine.root, env=machine.env, source=recorder)
    read_facts(recorded)
    kernel_log(recorded)
    answers = recorder.answers()
    redactor = learn(ProbedMachine(env=machine.env, source=source), answers)
    members = _members(answers, kept_environment(machine.env), redactor)
    write_whole(out, _packed(members), mode=0o600)


@contextlib.contextmanager
def open_bundle(path: Path) -> Iterator[ProbedMachine]:
    """The machine that a bundle was made of. BadInputError where it is no bundle of ours."""
    members = _read_members(path)
    try:
        answers = _answers(members)
        env = json.loads(members[_ENVIRONMENT])
        known = json.loads(members[_MANIFEST])["format"] == FORMAT
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _bad(path, "it holds no answers of a machine") from error
    if not known:
        raise _bad(path, "it is of another version of gpu-provision")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise _bad(path, "its environment is not valid")
    yield ProbedMachine(env=env, source=answers.get)


def kept_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that go into a bundle: those that a probe reads."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name in VARIABLES or name.startswith(VARIABLE_PREFIXES)
    }


def learn(machine: ProbedMachine, answers: Mapping[Question, Answer]) -> Redactor:
    """A redactor that knows the machine's names: of the host, of users, of members of groups."""
    hosts = [machine.env.get("HOSTNAME", ""), *(machine.word(path) or "" for path in _HOST_NAMES)]
    user = machine.user()
    users = [user.name if user else "", *(machine.env.get(name, "") for name in _USER_VARIABLES)]
    for question, answer in answers.items():
        if question[0] == "lines" and isinstance(answer, list):
            users += _listed(question[1], [line for line in answer if isinstance(line, str)])
        if question[0] == "run" and isinstance(answer, dict) and "info" in question:
            hosts += _named(str(answer.get("out")))
    redactor = Redactor(users=users, hosts=hosts)
    for value in (*machine.env.values(), *_texts(answers)):
        redactor.learn_homes(value)
    return redactor


def redacted(question: Question, answer: Answer, redactor: Redactor) -> tuple[Question, Answer]:
    """Both without names and numbers. What is asked about is redacted like what was answered, since
    the one comes out of the other.
    """
    operation = question[0]
    if operation == "run":
        addresses = question[2].rpartition("/")[2] not in _VERSIONS
    else:
        addresses = operation != "nvml"
    asked = tuple(redactor.text(word) for word in question)
    if operation == "read" and isinstance(answer, bytes):
        if question[1] == "/proc/net/route":
            return asked, without_gateways(answer)
        if question[1].endswith("/config") and question[1].startswith("/sys/bus/pci/"):
            return asked, without_serial(answer)
    return asked, _blotted(answer, redactor, addresses=addresses)


def without_gateways(routes: bytes) -> bytes:
    """/proc/net/route with its addresses taken out: which way leads out is still to be seen."""
    lines = [line.split("\t") for line in routes.decode("ascii", "replace").splitlines()]
    for parts in lines[1:]:
        if len(parts) >= 8:
            parts[2] = "00000000"
            if parts[1] != "00000000":
                parts[1] = "010200C0"
    return "".join("\t".join(parts) + "\n" for parts in lines).encode("ascii", "replace")


def without_serial(config: bytes) -> bytes:
    """A PCI configuration space without the device's serial number (capability 0x0003)."""
    data, at, seen = bytearray(config), _PCI_EXTENDED_AT, 0
    while at and len(data) >= at + 12 and seen < 48:
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == _SERIAL_CAPABILITY:
            data[at + 4 : at + 12] = bytes(8)
        at, seen = header >> 20, seen + 1
    return bytes(data)


# --- writing ------------------------------------------------------------------------------------


def _members(
    answers: Mapping[Question, Answer], env: Mapping[str, str], redactor: Redactor
) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    rows: list[list[Any]] = []
    for question, answer in answers.items():
        asked, said = redacted(question, answer, redactor)
        rows.append([list(asked), _row(asked, said, members)])
    kept = {name: redactor.variable(name, value) for name, value in env.items()}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "redacted": redactor.counts,
    }
    head = {_MANIFEST: _json(manifest), _ENVIRONMENT: _json(kept), _ANSWERS: _json(rows)}
    return {**head, **dict(sorted(members.items()))}


def _row(question: Question, answer: Answer, members: dict[str, bytes]) -> Any:  # noqa: ANN401
    """The answer as JSON holds it; contents become members."""
    if isinstance(answer, bytes):
        folder = "tails" if question[0] == "tail" else "files"
        return {"member": _place(f"{folder}/{question[1].strip('/')}", answer, members)}
    if question[0] == "run" and isinstance(answer, dict):
        name = question[2].rpartition("/")[2]
        kept: dict[str, Any] = dict(answer)
        for stream in ("out", "err"):
            text = str(answer.get(stream) or "")
            if text:
                place = f"commands/{len(members):02d}-{name}.{stream}"
                data = text.encode("utf-8", "replace")
                kept[stream] = {"member": _place(place, data, members)}
        return kept
    return answer


def _place(name: str, data: bytes, members: dict[str, bytes]) -> str:
    """A member's name: the path, or the path and a number where that is taken by other bytes."""
    parts = [part for part in name.split("/") if part not in {"", ".", ".."}]
    base = "/".join(parts)
    number, chosen = 1, base
    while members.get(chosen, data) != data:
        number, chosen = number + 1, f"{base}.{number}"
    members[chosen] = data
    return chosen


def _packed(members: Mapping[str, bytes]) -> bytes:
    """The same members give the same bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _blotted(answer: Answer, redactor: Redactor, *, addresses: bool) -> Answer:
    if isinstance(answer, str):
        return redactor.text(answer, addresses=addresses)
    if isinstance(answer, bytes):
        return redactor.data(answer, addresses=addresses)
    if isinstance(answer, list):
        return [_blotted(one, redactor, addresses=addresses) for one in answer]
    if isinstance(answer, dict):
        return {
            key: _blotted(value, redactor, addresses=addresses) for key, value in answer.items()
        }
    return answer


def _listed(path: str, lines: list[str]) -> Iterator[str]:
    """Users that lines of /etc/group or /etc/subuid name."""
    for line in lines:
        parts = line.split(":")
        if path == "/etc/group" and len(parts) == 4:
            yield from parts[3].split(",")
        elif path in {"/etc/subuid", "/etc/subgid"}:
            yield parts[0]


def _named(info: str) -> Iterator[str]:
    """The host's name in what `docker info` or `podman info` print."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        value = json.loads(info)
        host = value.get("host")
        for name in (value.get("Name"), host.get("hostname") if isinstance(host, dict) else None):
            if isinstance(name, str):
                yield name


def _texts(value: object) -> Iterator[str]:
    """Every text inside answers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "surrogateescape")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


# --- reading ------------------------------------------------------------------------------------


class _Limited(io.RawIOBase):
    """At most so many bytes: a small file may unpack to any size."""

    def __init__(self, stream: io.BufferedIOBase, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError
        return data


class _TooLargeError(Exception):
    """More bytes than a bundle of ours has."""


def _read_members(path: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    try:
        with gzip.open(path, "rb") as packed:
            stream: Any = _Limited(packed, TOTAL_LIMIT_BYTES)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for entry in tar:
                    problem = _refusal(entry, members)
                    if problem:
                        raise _bad(path, problem)
                    file = tar.extractfile(entry)
                    members[entry.name] = file.read() if file is not None else b""
    except _TooLargeError as error:
        raise _bad(path, f"it unpacks to more than {TOTAL_LIMIT_BYTES >> 20} MiB") from error
    except FileNotFoundError as error:
        raise BadInputError(no_such("bundle", path), fix=or_nearby(path, _MAKE_ONE)) from error
    except OSError as error:
        why = error.strerror.lower() if error.strerror else "it is no gzip file"
        raise _bad(path, why) from error
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise _bad(path, "it is broken, or no bundle") from error
    return members


def _refusal(entry: tarfile.TarInfo, members: Mapping[str, bytes]) -> str:
    """Why a member cannot be of a bundle of ours; "" where it can."""
    name = PurePosixPath(entry.name)
    shown = printable(entry.name, limit=100)
    if name.is_absolute() or ".." in name.parts or "\0" in entry.name:
        return f"its member {shown} leads out of it"
    if not entry.isreg() or entry.issparse():
        return f"its member {shown} is no plain file"
    if entry.size > MEMBER_LIMIT_BYTES:
        return f"its member {shown} is larger than {MEMBER_LIMIT_BYTES >> 20} MiB"
    if entry.name in members:
        return f"its member {shown} comes twice"
    if len(members) >= MEMBERS_LIMIT:
        return f"it has more than {MEMBERS_LIMIT} members"
    return ""


def _answers(members: Mapping[str, bytes]) -> dict[Question, Answer]:
    rows = json.loads(members[_ANSWERS])
    found: dict[Question, Answer] = {}
    for question, answer in rows:
        if not question or not all(isinstance(word, str) for word in question):
            raise TypeError(question)
        found[tuple(question)] = _answer(question, answer, members)
    return found


def _answer(question: list[str], answer: Any, members: Mapping[str, bytes]) -> Answer:  # noqa: ANN401
    if question[0] in {"read", "tail"}:
        return None if answer is None else members[answer["member"]]
    if question[0] == "run" and answer is not None:
        kept: dict[str, Answer] = dict(answer)
        for stream in ("out", "err"):
            text = answer[stream]
            if isinstance(text, dict):
                kept[stream] = members[text["member"]].decode("utf-8", "replace")
        return kept
    return answer  # type: ignore[no-any-return]  # plain JSON; each method of Machine checks it


def _bad(path: Path, why: str) -> BadInputError:
    return BadInputError(
        f"{path} cannot be read as a bundle: {why}.",
        fix=_MAKE_ONE,
    )
