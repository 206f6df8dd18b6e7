"""nvidia-smi, used if NVML failed: its header and its CSV query.

Branch 610 renamed the header's labels: "Driver Version" became "KMD Version" and "CUDA Version"
became "CUDA UMD Version". Old branches do not know every query field; nvidia-smi then names the
unknown one, and is run again without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from provision.host.machine import ProbedMachine
from provision.host.nvml import CODES as NVML_CODES
from provision.host.runner import ProgramResult
from provision.host.source_facts import Fact, SourceFacts, one_line, version_or_none
from provision.model.plan import Absent, ComputeCapability, Gpu

SOURCE = "nvidia-smi"
GIVES: tuple[Fact, ...] = ("driver", "driver_cuda", "gpus")
TIMEOUT_S = 10.0
FIELDS = ("name", "uuid", "compute_cap", "memory.total", "mig.mode.current")

_FACTS = {
    "name": "name",
    "uuid": "uuid",
    "compute_cap": "compute_capability",
    "memory.total": "memory_mib",
    "mig.mode.current": "mig",
}
# Its path if it is not on PATH: WSL under sudo, GKE-like hosts.
PLACES = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
_NOT_FOUND = ProgramResult(problem="nvidia-smi was not found")
_DRIVER = re.compile(r"\b(?:Driver|KMD) Version:\s*(\S+)")
_CUDA = re.compile(r"\bCUDA(?: UMD)? Version:\s*(\S+)")
_UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field to query')
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")

# The program's documented return codes are NVML's; these two it puts in its own words.
_REASONS = {
    **NVML_CODES,
    8: "a GPU's external power cables are not attached",
    12: "libnvidia-ml.so.1 was not found",
    14: "a GPU's infoROM is corrupted",
}
# Codes whose own text adds nothing to ours.
_PLAIN = {9, 12, 17, 18}


class Header(NamedTuple):
    """The versions in the box's first line; `cuda_text` is the text for CUDA."""

    driver: str | None = None
    cuda: str | None = None
    cuda_text: str | None = None


def parse_header(text: str) -> Header:
    """Both label forms; "N/A" and "ERR!" are not versions."""
    for line in text.splitlines():
        if "NVIDIA-SMI" not in line:
            continue
        driver, cuda = _DRIVER.search(line), _CUDA.search(line)
        if driver or cuda:
            said = one_line(cuda.group(1)) if cuda else None
            return Header(
                driver=version_or_none(driver.group(1)) if driver else None,
                cuda=said if said and re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", said) else None,
                cuda_text=said,
            )
    return Header()


def parse_query(text: str, fields: Sequence[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """(GPUs, lines that cannot be parsed). A name is the first field and may itself have commas."""
    gpus: list[Gpu] = []
    strange: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        parts = [one_line(part) for part in line.split(",")]
        extra = len(parts) - len(fields)
        if extra < 0 or (len(fields) == 1 and line.endswith(".")):
            strange.append(one_line(line))
            continue
        if extra and fields[0] == "name":
            parts = [", ".join(parts[: extra + 1]), *parts[extra + 1 :]]
        values = dict(zip(fields, parts))  # noqa: B905  not before Python 3.10
        if "uuid" in values and not values["uuid"].startswith(("GPU-", "[", "N/A")):
            strange.append(one_line(line))
            continue
        gpus.append(
            Gpu(
                name=_value(values.get("name")),
                uuid=_value(values.get("uuid")),
                compute_capability=_capability(values.get("compute_cap")),
                memory_mib=_number(values.get("memory.total")),
                mig=_mig(values.get("mig.mode.current")),
            )
        )
    return tuple(gpus), tuple(strange)


def failure(done: ProgramResult) -> str:
    """Why nvidia-smi gave nothing: our text for its exit code, and its own."""
    if done.problem:
        return done.problem
    own = done.message if done.out.strip() or done.err.strip() else ""
    known = _REASONS.get(done.code) if done.code is not None else None
    if known is None:
        return f"exit {done.code}: {own}" if own else f"exit {done.code}, no output"
    if done.code in _PLAIN or not own:
        return f"{known} (exit {done.code})"
    return one_line(f"{known} (exit {done.code}: {own})")


def read_smi(machine: ProbedMachine, *, timeout_s: float = TIMEOUT_S) -> SourceFacts:
    program = machine.which(SOURCE, PLACES)
    done = _run(machine, [program], timeout_s) if program else _NOT_FOUND
    header = parse_header(done.out)
    if program is None or header == Header():
        why = "it printed no header that we know" if done.ok else failure(done)
        return SourceFacts(source=SOURCE, gives=GIVES, failed=why)
    absent: list[Absent] = []
    if header.driver is None:
        absent.append(_absent("driver", "its header holds no driver version"))
    if header.cuda is None:
        said = f"its header says {header.cuda_text!r}" if header.cuda_text else "not in its header"
        absent.append(_absent("driver_cuda", said))
    gpus = _query(machine, program, timeout_s, absent)
    return SourceFacts(
        source=SOURCE,
        gives=GIVES,
        driver=header.driver,
        driver_cuda=header.cuda,
        gpus=gpus,
        absent=tuple(absent),
    )


def _run(machine: ProbedMachine, argv: Sequence[str], timeout_s: float) -> ProgramResult:
    return machine.command(argv, timeout_s) or _NOT_FOUND


def _query(
    machine: ProbedMachine, program: str, timeout_s: float, absent: list[Absent]
) -> tuple[Gpu, ...] | None:
    fields = list(FIELDS)
    done = _ask(machine, program, fields, timeout_s)
    while unknown := _UNKNOWN_FIELD.search(done.out + done.err):
        field = unknown.group(1)
        if field not in fields or len(fields) == 1:
            break
        fields.remove(field)
        absent.append(_absent(f"gpus[*].{_FACTS[field]}", f"this version has no field {field}"))
        done = _ask(machine, program, fields, timeout_s)
    if done.ok and "No devices were found" in done.out:
        return ()
    gpus, strange = parse_query(done.out, fields)
    if done.ok or gpus:
        absent.extend(_absent("gpus[?]", line) for line in strange)
    if not done.ok:
        absent.append(_absent("gpus", failure(done)))
    return gpus or None


def _ask(
    machine: ProbedMachine, program: str, fields: Sequence[str], timeout_s: float
) -> ProgramResult:
    query = f"--query-gpu={','.join(fields)}"
    return _run(machine, [program, query, "--format=csv,noheader,nounits"], timeout_s)


def _absent(fact: str, why: str) -> Absent:
    return Absent(fact=fact, source=SOURCE, reason=why)


def _value(text: str | None) -> str | None:
    """None for "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "N/A"."""
    if not text or text.startswith("[") or text in {"N/A", "ERR!"}:
        return None
    return text


def _capability(text: str | None) -> ComputeCapability | None:
    found = _CAPABILITY.fullmatch(text or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def _number(text: str | None) -> int | None:
    found = re.fullmatch(r"([0-9]{1,9})(?: MiB)?", text or "")
    return int(found.group(1)) if found else None


def _mig(text: str | None) -> bool | None:
    """ "[N/A]" is how it says that the GPU has no MIG."""
    return {"Enabled": True, "Disabled": False, "[N/A]": False, "N/A": False}.get(text or "")
