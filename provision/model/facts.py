"""Host facts <-> JSON: what `provision detect --json` prints and `--host FILE` reads.

Reading is strict about what is present and lenient about what is missing: a missing or null field
is unknown, an unknown key is ignored (a newer version may write it), but a value of the wrong shape
is refused, because a guess here becomes a wrong image. All problems of a file are reported
together. Version numbers must be quoted: JSON cannot tell 8.10 from 8.1.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from images.text.printable import printable
from provision.errors import HostFileError
from provision.model.plan import Absent, ComputeCapability, Engine, Gpu, HostFacts

SCHEMA = 1
SIZE_LIMIT_BYTES = 1 << 20
LABEL_LIMIT = 64

_TEXT_LIMIT = 1000
_ITEM_LIMIT = 1024
_SHOWN_PROBLEMS = 20
_DRIVER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}")
_TWO_PARTS = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_PYTHON = re.compile(r"([0-9]{1,3}\.[0-9]{1,3})(?:\.[0-9]{1,3}\S{0,20})?")
_ARCH = re.compile(r"[A-Za-z0-9_]{1,32}")
_ARCH_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_FIX = (
    "Write the file with `provision detect --json > host.json` on that machine, "
    "or correct the fields named above; unknown fields may be omitted."
)
T = TypeVar("T")


def host_to_json(facts: HostFacts) -> dict[str, object]:
    """The documented format, which `parse_host` accepts. `label` is not part of it."""
    return {
        "schema": SCHEMA,
        "driver": facts.driver,
        "user_mode_driver": facts.user_mode_driver,
        "driver_cuda": facts.driver_cuda,
        "arch": facts.arch,
        "glibc": facts.glibc,
        "os": {"id": facts.os_id, "version": facts.os_version},
        "python": facts.python,
        "wsl": facts.wsl,
        "gpus": None if facts.gpus is None else [_gpu_to_json(gpu) for gpu in facts.gpus],
        "engines": None if facts.engines is None else [_engine_to_json(e) for e in facts.engines],
        "sources": dict(facts.sources),
        "absent": [{"fact": a.fact, "source": a.source, "reason": a.reason} for a in facts.absent],
    }


def _gpu_to_json(gpu: Gpu) -> dict[str, object]:
    capability = gpu.compute_capability
    return {
        "name": gpu.name,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "memory_mib": gpu.memory_mib,
        "uuid": gpu.uuid,
        "mig": gpu.mig,
    }


def _engine_to_json(engine: Engine) -> dict[str, object]:
    return {
        "name": engine.name,
        "client": engine.client,
        "server": engine.server,
        "buildkit": engine.buildkit,
        "gpu_runtime": engine.gpu_runtime,
        "cdi_devices": None if engine.cdi_devices is None else list(engine.cdi_devices),
        "problem": engine.problem,
    }


class HostParser(Protocol):
    """What makes facts of a file's text. HostFileError: it has none."""

    def __call__(self, text: str, *, label: str) -> HostFacts:
        """The facts; `label` names the file."""
        ...


def read_host_file(path: str, parse: HostParser | None = None) -> HostFacts:
    """The facts in that file, or on standard input for "-"; `label` names the file. `parse`: what
    reads its text (default: `parse_host`). HostFileError: it cannot be read, or has no facts.
    """
    label = "standard input" if path == "-" else _label(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(SIZE_LIMIT_BYTES + 1)
        else:
            with open(path, "rb") as file:  # noqa: PTH123  pathlib starts slowly
                data = file.read(SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError as exc:
        from images.text.suggestions import no_such, or_nearby

        fix = or_nearby(label, "Write one on that machine: provision detect --json > host.json")
        raise HostFileError(no_such("host file", label), fix=fix) from exc
    except IsADirectoryError as exc:
        fix = "Give the host facts file inside it."
        raise HostFileError(f"{label}: is a directory, not a file.", fix=fix) from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        fix = "Make it readable by this user, or pass its content: provision plan --host - < FILE"
        raise HostFileError(f"{label}: cannot be read: {reason}.", fix=fix) from exc
    if len(data) > SIZE_LIMIT_BYTES:
        _refuse_size(label)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        fix = "Give a JSON file in UTF-8 (PowerShell: Out-File -Encoding utf8)."
        raise HostFileError(f"{label}: is not UTF-8 text.", fix=fix) from exc
    return (parse or parse_host)(text, label=label)


def _label(path: str) -> str:
    """The path; for a long one its end, which has the file's name."""
    shown = printable(path)
    return shown if len(shown) <= LABEL_LIMIT else f"...{shown[3 - LABEL_LIMIT :]}"


def parse_host(text: str, *, label: str) -> HostFacts:
    """Facts from JSON text. HostFileError names every wrong field, by its path."""
    if len(text) > SIZE_LIMIT_BYTES:
        _refuse_size(label)
    if not text.strip():
        raise HostFileError(f"{label}: is empty.", fix=_FIX)
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as exc:
        raise HostFileError(f"{label}: is nested too deeply.", fix=_FIX) from exc
    except ValueError as exc:
        raise HostFileError(
            f"{label}: is not valid JSON: {printable(str(exc), limit=80)}.", fix=_FIX
        ) from exc
    if not isinstance(data, dict):
        message = f"{label}: expected a JSON object with host facts, got {_kind(data)}."
        raise HostFileError(message, fix=_FIX)
    reader = _Reader()
    facts = _read_facts(reader, data, label)
    if reader.problems:
        _refuse(label, reader.problems)
    return facts


class _Reader:
    """Takes fields out of one JSON document and collects what is wrong with them.

    Every `take` returns None for a missing, null or wrong value; a wrong one is also recorded.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def take(
        self,
        data: dict[str, Any],
        key: str,
        path: str,
        wanted: str,
        parse: Callable[[Any], T | None],
    ) -> T | None:
        value = data.get(key)
        if value is None:
            return None
        parsed = parse(value)
        if parsed is None:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            quoted = number and parse(repr(value)) is not None
            hint = f'; put it in quotes, as in "{value!r}"' if quoted else ""
            self.wrong(f"{path}{key}", wanted, value, hint)
        return parsed

    def text(self, data: dict[str, Any], key: str, path: str) -> str | None:
        return self.take(
            data, key, path, f"printable text of at most {_TEXT_LIMIT} characters", _text
        )

    def flag(self, data: dict[str, Any], key: str, path: str) -> bool | None:
        value = data.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(f"{path}{key}", "true, false or null", value)
        return None

    def matching(
        self, data: dict[str, Any], key: str, path: str, wanted: str, pattern: re.Pattern[str]
    ) -> str | None:
        def parse(value: object) -> str | None:
            fits = isinstance(value, str) and pattern.fullmatch(value)
            return str(value) if fits else None

        return self.take(data, key, path, wanted, parse)

    def items(self, data: dict[str, Any], key: str, wanted: str) -> list[tuple[str, Any]] | None:
        """(path, item) of a list; None if there is none."""
        value = data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > _ITEM_LIMIT:
            self.wrong(key, f"a list of at most {_ITEM_LIMIT} {wanted}, or null", value)
            return None
        return [(f"{key}[{index}]", item) for index, item in enumerate(value)]

    def mapping(self, value: object, path: str) -> dict[str, Any]:
        """The value if it is an object; else records a problem and returns an empty one."""
        if isinstance(value, dict):
            return value
        if value is not None:
            self.wrong(path, "an object", value)
        return {}

    def wrong(self, path: str, wanted: str, got: object, hint: str = "") -> None:
        self.problems.append(f"{path}: expected {wanted}, got {_kind(got)}{hint}")


def _read_facts(reader: _Reader, data: dict[str, Any], label: str) -> HostFacts:
    schema = data.get("schema", SCHEMA)
    if schema != SCHEMA or isinstance(schema, (bool, float)):
        reader.wrong("schema", f"{SCHEMA}, the only version this program reads", schema)
    system = reader.mapping(data.get("os"), "os")
    arch = reader.matching(data, "arch", "", 'a name such as "x86_64"', _ARCH)
    python = reader.matching(data, "python", "", 'a version such as "3.10"', _PYTHON)
    driver = 'a driver version such as "515.65.01"'
    major_minor = '"major.minor"'
    return HostFacts(
        driver=reader.matching(data, "driver", "", driver, _DRIVER),
        user_mode_driver=reader.matching(data, "user_mode_driver", "", driver, _DRIVER),
        driver_cuda=reader.matching(data, "driver_cuda", "", major_minor, _TWO_PARTS),
        arch=_ARCH_NAMES.get(arch.lower(), arch) if arch else None,
        glibc=reader.matching(data, "glibc", "", major_minor, _TWO_PARTS),
        os_id=reader.text(system, "id", "os."),
        os_version=reader.text(system, "version", "os."),
        python=".".join(python.split(".")[:2]) if python else None,
        wsl=reader.flag(data, "wsl", ""),
        gpus=_read_gpus(reader, data),
        engines=_read_engines(reader, data),
        sources=_read_sources(reader, data),
        absent=_read_absent(reader, data),
        label=label,
    )


def _read_gpus(reader: _Reader, data: dict[str, Any]) -> tuple[Gpu, ...] | None:
    items = reader.items(data, "gpus", "GPUs")
    if items is None:
        return None
    return tuple(_read_gpu(reader, item, path) for path, item in items)


def _read_gpu(reader: _Reader, item: object, path: str) -> Gpu:
    data, at = reader.mapping(item, path), f"{path}."
    return Gpu(
        name=reader.text(data, "name", at),
        compute_capability=reader.take(
            data, "compute_capability", at, '"major.minor"', _capability
        ),
        memory_mib=reader.take(data, "memory_mib", at, "a whole number of MiB", _mebibytes),
        uuid=reader.text(data, "uuid", at),
        mig=reader.flag(data, "mig", at),
    )


def _read_engines(reader: _Reader, data: dict[str, Any]) -> tuple[Engine, ...] | None:
    items = reader.items(data, "engines", "engines")
    if items is None:
        return None
    engines = [_read_engine(reader, item, path) for path, item in items]
    return tuple(engine for engine in engines if engine is not None)


def _read_engine(reader: _Reader, item: object, path: str) -> Engine | None:
    data, at = reader.mapping(item, path), f"{path}."
    name: Literal["docker", "podman"] | None = reader.take(
        data, "name", at, '"docker" or "podman"', _engine_name
    )
    engine_of = {
        key: reader.text(data, key, at) for key in ("client", "server", "buildkit", "problem")
    }
    runtime = reader.flag(data, "gpu_runtime", at)
    devices = reader.take(data, "cdi_devices", at, "a list of CDI names", _texts)
    if name is None:
        return None
    return Engine(name=name, gpu_runtime=runtime, cdi_devices=devices, **engine_of)


def _read_sources(reader: _Reader, data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    sources = reader.mapping(data.get("sources"), "sources")
    found = []
    for fact in sources:
        shown = fact if _text(fact) is not None else printable(repr(fact), limit=80)
        source = reader.text({shown: sources[fact]}, shown, "sources.")
        if source is not None:
            found.append((shown, source))
    return tuple(found)


def _read_absent(reader: _Reader, data: dict[str, Any]) -> tuple[Absent, ...]:
    rows = []
    for path, item in reader.items(data, "absent", "rows") or ():
        row, at = reader.mapping(item, path), f"{path}."
        fact, source, reason = (reader.text(row, key, at) for key in ("fact", "source", "reason"))
        rows.append(Absent(fact=fact or "", source=source or "", reason=reason or ""))
    return tuple(rows)


def _text(value: object) -> str | None:
    """Text safe for a terminal: no control characters, no lone surrogates."""
    fits = isinstance(value, str) and len(value) <= _TEXT_LIMIT and value.isprintable()
    return str(value) if fits else None


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or len(value) > _ITEM_LIMIT:
        return None
    texts = [_text(item) for item in value]
    return None if None in texts else tuple(text for text in texts if text is not None)


def _capability(value: object) -> ComputeCapability | None:
    found = _TWO_PARTS.fullmatch(value) if isinstance(value, str) else None
    return (int(found.group(1)), int(found.group(2))) if found else None


def _mebibytes(value: object) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
    return int(value) if fits and isinstance(value, int) else None


def _engine_name(value: object) -> Literal["docker", "podman"] | None:
    if value == "docker":
        return "docker"
    return "podman" if value == "podman" else None


def _kind(value: object) -> str:
    """A wrong value for display: short, printable, containers by their type."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return printable(json.dumps(value), limit=80)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_size(label: str) -> NoReturn:
    message = f"{label}: larger than {SIZE_LIMIT_BYTES >> 20} MiB, which no host facts file is."
    raise HostFileError(message, fix=_FIX)


def _refuse(label: str, problems: list[str]) -> NoReturn:
    if len(problems) == 1:
        raise HostFileError(f"{label}: {problems[0]}", fix=_FIX)
    shown = [f"  {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        shown.append(f"  and {len(problems) - _SHOWN_PROBLEMS} more")
    message = "\n".join([f"{label}: {len(problems)} fields are wrong:", *shown])
    raise HostFileError(message, fix=_FIX)
