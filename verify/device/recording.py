"""Records and replays a machine's answers: `verify --record-device`, `--replay-device`.

A recording is JSON:

    {"schema": 1, "kind": "gpu-provision machine", "recorded": DAY, "environ": {NAME: TEXT},
     "nodes": [PATH], "pci": [{FIELD OF PciGpu: VALUE}] or null,
     "libcuda": PATH, "kernel_module": VERSION,
     "log": {"lines": [[TEXT, SECONDS SINCE START]], "source": TEXT, "error": TEXT},
     "libraries": {NAME: {"error": TEXT} or {"lacks": [FUNCTION], "calls": [CALL]}}}

A CALL is [FUNCTION, [ARGUMENT], RETURNED, [ANSWER]]. An argument is a number, null, "@N" for the
N-th handle that the library returned, or memory: its size and its content in hex ("8:01000000");
for texts and lists of processes only the size. An answer is what the call wrote to each memory, in
hex, or "@N". UUIDs are replaced with numbered ones; serial numbers are never read.
"""

from __future__ import annotations

import ctypes
import json
import re
import time
from dataclasses import asdict, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from verify.device import driver, nvml, state
from verify.device.kernel_log import CONCERNS, Line, Log
from verify.device.machine import Machine
from verify.device.pci import PciGpu

KIND = "gpu-provision machine"
MAX_BYTES = 64 << 20
_NOT_FOUND = 13  # NVML_ERROR_FUNCTION_NOT_FOUND: for a call that was not recorded
_POINTER = 1 << 20  # handles of a replay, which are never followed
_UUID = re.compile(rb"(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CLUSTER_AT = {"nvmlDeviceGetGpuFabricInfo": 0}  # where the fabric's UUID begins, if not at 4
_PROGRAM = re.compile(r"\bname=[^,]*")  # of the program that an Xid hit


class RecordingError(Exception):
    """The file is not a valid recording of a machine."""


# What goes into a call and comes out of it


def _memory(argument: Any) -> Any:
    """The ctypes object in an argument that a call may write to; None for a plain value."""
    if hasattr(argument, "_obj"):  # byref()
        return argument._obj  # noqa: SLF001
    return argument if isinstance(argument, ctypes.Array) else None


def _is_text(memory: Any) -> bool:
    return isinstance(memory, ctypes.Array) and memory._type_ is ctypes.c_char


def _describe(argument: Any, handles: Mapping[int, str]) -> Any:
    """An argument as a recording stores it."""
    memory = _memory(argument)
    if memory is None:
        value = getattr(argument, "value", argument)
        return handles.get(value, value) if isinstance(argument, ctypes.c_void_p) else value
    size = ctypes.sizeof(memory)
    if _is_text(memory) or isinstance(memory, ctypes.c_void_p):
        return "{}:".format(size)
    return "{}:{}".format(size, bytes(memory).rstrip(b"\0").hex())


def _key(name: str, described: List[Any]) -> str:
    return json.dumps([name, described])


class _Pointers(Dict[int, str]):
    """The handles of a replay: the pointer's value encodes the handle's number."""

    def get(self, pointer: Any, default: Any = None) -> Any:
        """The handle's name."""
        known = isinstance(pointer, int) and pointer >= _POINTER
        return "@{}".format(pointer - _POINTER) if known else default


class _Recorded:
    """A library that forwards each call and records its answer."""

    def __init__(self, library: Any, kept: Dict[str, List[Any]]) -> None:
        self._library, self._kept = library, kept
        self._handles: Dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            if name not in self._kept["lacks"]:
                self._kept["lacks"].append(name)
            raise
        if name == "nvmlErrorString":
            return _TextFunction(lambda code: self._text(name, function, code))
        return lambda *arguments: self._call(name, function, arguments)

    def _text(self, name: str, function: Any, code: int) -> bytes:
        function.restype = ctypes.c_char_p
        text = bytes(function(code))
        self._kept["calls"].append([name, [code], 0, [text.hex()]])
        return text

    def _call(self, name: str, function: Any, arguments: Tuple[Any, ...]) -> int:
        described = [_describe(argument, self._handles) for argument in arguments]
        memories = [m for m in map(_memory, arguments) if m is not None]
        before = [bytes(memory) for memory in memories]
        code = int(function(*arguments))
        answers = [self._answer(memory, was) for memory, was in zip(memories, before)]
        self._kept["calls"].append([name, described, code, answers])
        return code

    def _answer(self, memory: Any, before: bytes) -> str:
        if isinstance(memory, ctypes.c_void_p) and memory.value:
            return self._handles.setdefault(memory.value, "@{}".format(len(self._handles)))
        if isinstance(memory, ctypes.c_char_p):
            return (memory.value or b"").hex()
        after = bytes(memory)
        changed = [i for i, (new, old) in enumerate(zip(after, before)) if new != old]
        return after[: changed[-1] + 1].hex() if changed else ""


class _TextFunction:
    """A function that returns a text; ctypes lets a caller set what a function returns."""

    restype: Any = None

    def __init__(self, work: Callable[[int], bytes]) -> None:
        self._work = work

    def __call__(self, code: int) -> bytes:
        return self._work(code)


def take(machine: Machine) -> Dict[str, Any]:
    """Query everything from a machine once and record it. Starts CUDA: call it in a child."""
    libraries: Dict[str, Any] = {}

    def load(name: str) -> Any:
        kept = libraries.setdefault(name, {"lacks": [], "calls": []})
        try:
            return _Recorded(machine.load(name), kept)
        except OSError as error:
            libraries[name] = {"error": str(error)}
            raise

    state.read(load)
    nvml.read(load)
    driver.read(load)
    log, pci = machine.log(), machine.pci()
    lines = [[line.text, line.since_start_s] for line in log.lines if CONCERNS.search(line.text)]
    document = {
        "schema": 1,
        "kind": KIND,
        "recorded": time.strftime("%Y-%m-%d", time.gmtime()),
        "environ": dict(machine.environ()),
        "nodes": machine.nodes(),
        "pci": None
        if pci is None
        else [asdict(replace(gpu, closed=machine.is_closed(gpu))) for gpu in pci],
        "libcuda": machine.libcuda(),
        "kernel_module": machine.kernel_module(),
        "log": {"lines": lines, "source": log.source, "error": log.error},
        "libraries": libraries,
    }
    return redacted(document)


def redacted(document: Mapping[str, Any]) -> Dict[str, Any]:
    """A recording without what identifies a machine: UUIDs, fabric cluster, program names."""
    numbers: Dict[bytes, int] = {}

    def number(match: Any) -> bytes:
        known = numbers.setdefault(match.group(), len(numbers))
        return b"%s-00000000-0000-0000-0000-%012d" % (match.group(1), known)

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(one) for key, one in value.items()}
        if isinstance(value, list):
            return [clean(one) for one in value]
        if isinstance(value, str):
            return _UUID.sub(number, value.encode()).decode()
        return value

    libraries = {
        name: {**library, "calls": [_clean_call(call, number) for call in library["calls"]]}
        if "calls" in library
        else library
        for name, library in document["libraries"].items()
    }
    log = document["log"]
    lines = [[_PROGRAM.sub("name=...", text), since] for text, since in log["lines"]]
    return {**clean({**document, "log": {**log, "lines": lines}}), "libraries": libraries}


def _clean_call(call: Any, number: Callable[[Any], bytes]) -> List[Any]:
    name, described, code, answers = call
    kept = []
    for answer in answers:
        raw = b"" if answer.startswith("@") else bytes.fromhex(answer)
        raw = _UUID.sub(number, raw)
        if name.startswith("nvmlDeviceGetGpuFabricInfo"):
            start = _CLUSTER_AT.get(name, 4)
            raw = raw[:start] + bytes(len(raw[start : start + 16])) + raw[start + 16 :]
        kept.append(answer if answer.startswith("@") else raw.hex())
    return [name, described, code, kept]


def dump(document: Mapping[str, Any]) -> str:
    """A recording as text for a file: one line per call."""
    head = {name: part for name, part in document.items() if name != "libraries"}
    libraries = [
        "{}: {}".format(json.dumps(n), _dumped(x)) for n, x in document["libraries"].items()
    ]
    body = ",\n".join(libraries)
    return '{},\n"libraries": {{\n{}\n}}}}\n'.format(json.dumps(head, indent=1)[:-2], body)


def _dumped(library: Mapping[str, Any]) -> str:
    if "calls" not in library:
        return json.dumps(library)
    calls = ",\n".join(json.dumps(call) for call in library["calls"])
    return '{{"lacks": {}, "calls": [\n{}]}}'.format(json.dumps(library["lacks"]), calls)


# The replay


class _Replayed:
    """A library that returns the answers of a recording, for each call in recorded order."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._answers: Dict[str, List[Tuple[int, List[str]]]] = {}
        self._names = set()
        self._texts: List[bytes] = []  # keeps memory alive that was returned as char *
        for name, described, code, answers in library["calls"]:
            self._names.add(name)
            self._answers.setdefault(_key(name, described), []).append((code, answers))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return _TextFunction(lambda code: bytes.fromhex(self._next(name, [code])[1][0]))
        return lambda *arguments: self._call(name, arguments)

    def _next(self, name: str, described: List[Any]) -> Tuple[int, List[str]]:
        left = self._answers.get(_key(name, described))
        if not left:
            return _NOT_FOUND, [b"not in this recording".hex()]
        return left.pop(0) if len(left) > 1 else left[0]

    def _call(self, name: str, arguments: Tuple[Any, ...]) -> int:
        described = [_describe(argument, _Pointers()) for argument in arguments]
        code, answers = self._next(name, described)
        memories = [m for m in map(_memory, arguments) if m is not None]
        for memory, answer in zip(memories, answers if code != _NOT_FOUND else []):
            self._write(memory, answer)
        return code

    def _write(self, memory: Any, answer: str) -> None:
        if answer.startswith("@"):
            memory.value = _POINTER + int(answer[1:])
            return
        raw = bytes.fromhex(answer)
        if isinstance(memory, ctypes.c_char_p):
            self._texts.append(raw)
            memory.value = raw
        else:
            ctypes.memmove(ctypes.addressof(memory), raw, min(len(raw), ctypes.sizeof(memory)))


def _card(row: Mapping[str, Any]) -> PciGpu:
    return PciGpu(**{**row, "ports": tuple(row.get("ports", ()))})


class Replay(Machine):
    """A machine that was recorded."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.recorded = str(document["recorded"])
        self._libraries = {
            name: _Replayed(library)
            for name, library in document["libraries"].items()
            if "calls" in library
        }

    def load(self, name: str) -> Any:
        """The recorded library."""
        if name in self._libraries:
            return self._libraries[name]
        said = self._document["libraries"].get(name, {}).get("error")
        raise OSError(said or name + ": cannot open shared object file: not recorded")

    def pause(self, seconds: float) -> None:
        """Do not wait: a recording does not change."""

    def nodes(self) -> List[str]:
        """The recorded device nodes."""
        return list(self._document["nodes"])

    def pci(self) -> Optional[Tuple[PciGpu, ...]]:
        """The recorded PCI bus, which recordings before 2026-11-30 do not have."""
        rows = self._document.get("pci")
        return None if rows is None else tuple(map(_card, rows))

    def is_closed(self, gpu: PciGpu) -> bool:
        """As it was recorded."""
        return gpu.closed

    def environ(self) -> Mapping[str, str]:
        """The recorded variables."""
        return dict(self._document["environ"])

    def log(self) -> Log:
        """The recorded lines of the kernel's log."""
        log = self._document["log"]
        lines = tuple(Line(text, since) for text, since in log["lines"])
        return Log(lines, log["source"], log["error"])

    def libcuda(self) -> Optional[str]:
        """The recorded path."""
        return self._document["libcuda"]  # type: ignore[no-any-return]

    def kernel_module(self) -> Optional[str]:
        """The recorded version."""
        return self._document["kernel_module"]  # type: ignore[no-any-return]


def read(path: str) -> Replay:
    """A recording in a file. Raises RecordingError, and OSError where it cannot be read."""
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RecordingError("larger than {} MiB".format(MAX_BYTES >> 20))
    try:
        return parse(json.loads(data.decode()))
    except (ValueError, RecursionError) as error:
        raise RecordingError("not JSON: {}".format(error)) from error


def parse(document: Any) -> Replay:
    """A recording, checked. Raises RecordingError."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise RecordingError("not a recording by --record-device")
    if document.get("schema") != 1:
        raise RecordingError("schema {!r:.20}, expected 1".format(document.get("schema")))
    try:
        _check(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = "damaged: {}: {!s:.80}".format(type(error).__name__, error)
        raise RecordingError(said) from error
    return Replay(document)


def _check(document: Mapping[str, Any]) -> None:
    """Raise if the document is not as the docstring of this module describes."""
    texts = [document["recorded"], *document["nodes"], *document["environ"].values()]
    log = document["log"]
    texts += [text for text in (log["source"], log["error"]) if text is not None]
    texts += [t for t in (document["libcuda"], document["kernel_module"]) if t is not None]
    texts += [text for text, _ in log["lines"]]
    numbers = [since for _, since in log["lines"] if since is not None]
    for row in document.get("pci") or ():
        known = asdict(_card(row))
        texts += [known["address"], *known.pop("ports")]
        values = [value for value in known.values() if value not in (None, False)]
        texts += [value for value in values if isinstance(value, str)]
        numbers += [v for v in values if v is not True and not isinstance(v, str)]
    for library in document["libraries"].values():
        if "error" in library:
            texts.append(library["error"])
            continue
        for name, described, code, answers in library["calls"]:
            texts.append(name)
            numbers.append(code)
            _key(name, described)
            for answer in answers:
                int(answer[1:]) if answer.startswith("@") else bytes.fromhex(answer)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("expected a text")
    if not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers):
        raise TypeError("expected a number")
