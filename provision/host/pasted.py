"""What nvidia-smi printed on another machine, as host facts: its table, -q, -L or --format=csv.

The page of answers reads the same (`paste.js`). What the output does not say is unknown.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence

from provision.errors import HostFileError
from provision.host.smi import FIELDS, SOURCE, parse_header, parse_query
from provision.host.source_facts import version_or_none
from provision.model.facts import parse_host, read_host_file
from provision.model.plan import Gpu, HostFacts

_LONGEST_LINE = 500
_DRIVER = re.compile(r"^\s*(?:Driver|KMD) Version\s*:\s*(\S+)", re.MULTILINE)
_CUDA = re.compile(r"^\s*CUDA(?: UMD)? Version\s*:\s*([0-9]{1,3}\.[0-9]{1,3})\s*$", re.MULTILINE)
_ROW = re.compile(r"\|\s+[0-9]+\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s+\|")
_MEMORY = re.compile(r"/\s*([0-9]{1,9})MiB\s*\|")
_MIG = re.compile(r"\|\s+(Enabled|Disabled)\*?\s+\|$")
_LISTED = re.compile(r"GPU [0-9]+: (?P<name>.+?)(?: \(UUID: (?P<uuid>GPU-[0-9a-fA-F-]+)\))?$")
_NAMED = re.compile(r"(?:NVIDIA(?!-SMI)|Tesla|Quadro|GeForce|TITAN|GRID)\b[^,|:]*")
_COLUMN = re.compile(r"([a-z_.]+)(?: \[MiB\])?")
_VERSION = re.compile(r"[0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{2})?")


def read_host(path: str) -> HostFacts:
    """The facts in a file, or on standard input for "-": JSON, or what nvidia-smi printed.
    HostFileError: it cannot be read, or is neither.
    """
    return read_host_file(path, parse_host_text)


def parse_host_text(text: str, *, label: str) -> HostFacts:
    """The facts of a text. HostFileError: it has none."""
    if (facts := parse_smi(text)) is not None:
        return facts._replace(label=label)
    if text.strip() and text.lstrip()[0] not in "{[":
        raise HostFileError(
            f"{label}: is neither host facts (JSON) nor what nvidia-smi prints.",
            fix="Write them on that machine: provision detect --json > host.json, or nvidia-smi -q "
            "> host.txt",
        )
    return parse_host(text, label=label)


def parse_smi(text: str) -> HostFacts | None:
    """The driver and the GPUs that nvidia-smi printed; None: the text is no output of it, or names
    neither.
    """
    if text.lstrip().startswith(("{", "[", "<")):
        return None
    lines = [line.rstrip() for line in text.splitlines() if len(line) < _LONGEST_LINE]
    header = parse_header(text)
    said = _DRIVER.search(text)
    driver = header.driver or version_or_none(said[1] if said else None)
    cuda = _CUDA.search(text)
    gpus, beside = _gpus(lines)
    driver = driver or beside
    if not gpus and (driver is None or not (header.driver or "NVSMI LOG" in text)):
        return None
    newest = header.cuda or (cuda[1] if cuda else None)
    found = {"driver": driver, "gpus": gpus, "driver_cuda": newest}
    return HostFacts(
        driver=driver,
        gpus=gpus or None,
        driver_cuda=newest,
        sources=tuple((fact, SOURCE) for fact, value in found.items() if value),
    )


def _gpus(lines: Sequence[str]) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs, and the driver that a table of values names beside them."""
    for read in (_of_table, _of_query, _of_list):
        if gpus := tuple(read(lines)):
            return gpus, None
    return _of_csv(lines)


def _of_table(lines: Sequence[str]) -> Iterator[Gpu]:
    for at, line in enumerate(lines):
        if (row := _ROW.match(line)) is None:
            continue
        below = lines[at + 1 : at + 3]
        memory = next((found for one in below if (found := _MEMORY.search(one))), None)
        mig = next((found for one in below if (found := _MIG.search(one))), None)
        yield Gpu(
            name=row["name"],
            memory_mib=int(memory[1]) if memory else None,
            mig=mig[1] == "Enabled" if mig else None,
        )


def _of_query(lines: Sequence[str]) -> Iterator[Gpu]:
    """Of nvidia-smi -q: a section for each GPU, in which names of values are indented."""
    for at, line in enumerate(lines):
        name, colon, value = line.partition(" : ")
        if not colon or name.strip() != "Product Name":
            continue
        rest = [one.partition(" : ") for one in lines[at + 1 :]]
        end = next((i for i, one in enumerate(rest) if one[0].strip() == "Product Name"), len(rest))
        texts = [(one[0].strip(), one[2].strip()) for one in rest[:end]]
        keys = [key for key, _ in texts]
        memory = texts[keys.index("FB Memory Usage") + 1][1] if "FB Memory Usage" in keys else ""
        uuid = dict(reversed(texts)).get("GPU UUID", "")
        yield Gpu(
            name=value.strip(),
            uuid=uuid if uuid.startswith("GPU-") else None,
            memory_mib=int(memory.split()[0]) if re.fullmatch(r"[0-9]{1,9} MiB", memory) else None,
        )


def _of_list(lines: Sequence[str]) -> Iterator[Gpu]:
    found: list[Gpu] = []
    for line in map(str.strip, lines):
        if (gpu := _LISTED.fullmatch(line)) is not None:
            found.append(Gpu(name=gpu["name"], uuid=gpu["uuid"]))
        elif found and line.startswith("MIG "):
            found[-1] = found[-1]._replace(mig=True)
    yield from found


def _of_csv(lines: Sequence[str]) -> tuple[tuple[Gpu, ...], str | None]:
    """Of --query-gpu: by its header; without one by the names that NVIDIA gives its GPUs."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(filter(None, lines))]
    heads = [_COLUMN.fullmatch(cell) for cell in rows[0]] if rows else []
    columns = [head[1] for head in heads if head]
    if len(columns) == len(heads) > 0 and "name" in columns:
        tables = [dict(zip(columns, row)) for row in rows[1:] if len(row) == len(columns)]  # noqa: B905  not before Python 3.10
        kept = [field for field in FIELDS if field in columns]
        text = "\n".join(", ".join(row[field] for field in kept) for row in tables)
        drivers = [row["driver_version"] for row in tables if "driver_version" in row]
        return parse_query(text, kept)[0], version_or_none(drivers[0]) if drivers else None
    named = [row for row in rows if row and _NAMED.fullmatch(row[0])]
    if len(named) < len(rows):  # other texts may hold such a line, too
        return (), None
    versions = [cell for row in named for cell in row[1:] if _VERSION.fullmatch(cell)]
    return tuple(Gpu(name=row[0]) for row in named), versions[0] if versions else None
