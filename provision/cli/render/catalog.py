"""`provision catalog show`: rows of the catalog for a person, or as JSON.

A question is a kind and, for most, a name: `torch 2.0.1`, `gpu "RTX 3090"`, `driver 515.65.01`.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from provision.catalog.catalog import Catalog
from provision.errors import BadInputError
from provision.model.request import parse_cuda, quoted
from provision.output.style import width as columns
from provision.output.text import row, table

Rows = Sequence[Any]
_MOST = 40


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogRows:
    """The rows of one question: a title, and the rows of each table, by the table's name."""

    title: str
    tables: Mapping[str, Rows]


def find(catalog: Catalog, kind: str, name: str | None) -> CatalogRows:
    """The rows that a query matches. BadInputError: no such kind, or nothing of that name."""
    seeker = _KINDS.get(kind)
    if seeker is None:
        raise BadInputError(
            f"catalog show {quoted(kind)}: there is no such kind."
            if kind
            else "catalog show needs to know what.",
            fix=f"Use one of: {', '.join(_KINDS)}",
        )
    tables = {table: rows for table, rows in seeker(catalog, name).items() if rows}
    if not tables:
        near = _near(catalog, kind, name)
        raise BadInputError(
            f"The catalog has no {kind} {quoted(name or '')}.",
            fix=f"See what there is: provision catalog show {kind}" + near,
        )
    return CatalogRows(f"{kind} {name}" if name else kind, tables)


def to_json(found: CatalogRows) -> dict[str, Any]:
    """Every column of every row; capabilities as "8.6"."""
    return {
        "schema": 1,
        "tables": {
            table: [_plain(row_._asdict()) for row_ in rows] for table, rows in found.tables.items()
        },
        "error": None,
    }


def describe(found: CatalogRows) -> str:
    """One row as label and value; several as a table of the columns that differ; sources last."""
    lines: list[str] = []
    for name, rows in found.tables.items():
        if len(rows) == 1:
            lines += _one(rows[0])
        else:
            lines += _many(name, rows)
    sources = {text for rows in found.tables.values() for r in rows for text in _sources(r)}
    for position, text in enumerate(sorted(sources)[:8]):
        lines += row("source" if position == 0 else "", text)
    if len(sources) > 8:
        lines += row("", f"and {len(sources) - 8} more: --json")
    return "\n".join(lines)


def _one(found: Any) -> list[str]:  # noqa: ANN401  any row
    shown = {
        key.replace("_", " "): _cell(found, key)
        for key in _plain(found._asdict())
        if not key.endswith("source") and getattr(found, key) not in (None, (), {}, "confirmed")
    }
    width = max(len(key) for key in shown) + 2
    lines: list[str] = []
    for key, value in shown.items():
        words = textwrap.wrap(value, columns() - width) or [""]
        lines += [f"{key:<{width}}{words[0]}", *(f"{'':<{width}}{w}" for w in words[1:])]
    return lines


def _many(name: str, rows: Rows) -> list[str]:
    columns = _COLUMNS[name]
    shown = [
        tuple(_shortened(_cell(r, column), width) for column, width in columns)
        for r in rows[-_MOST:]
    ]
    head = tuple(column.replace("_", " ")[: max(width, 5)] for column, width in columns)
    lines = table([head, *shown])
    if len(rows) > _MOST:
        lines.append(f"  the newest {_MOST} of {len(rows)}; all: --json")
    return lines


def _cell(found: Any, column: str) -> str:  # noqa: ANN401  any row
    """One value as people write it: architectures as 37 50 86, Pythons as 3.8 to 3.11."""
    if column == "code":
        code = _cell(found, "sm")
        return f"{code} +PTX" if found.ptx else code
    value = getattr(found, {"capability": "compute_capability"}.get(column, column), None)
    if column in {"sm", "sm_targets"} and value:
        return " ".join(f"{major}{minor}" for major, minor in value)
    if column == "ptx" and value:
        return f"compute_{value[0]}{value[1]}"
    if column == "python_tags" and value:
        return " ".join(dict.fromkeys(_python(tag) for tag in value))
    return _words(_plain(value, column))


def _python(tag: str) -> str:
    """cp311-cp311 -> 3.11, cp313-cp313t -> 3.13t."""
    interpreter, _, abi = tag.partition("-")
    return f"3.{interpreter[3:]}{'t' if abi.endswith('t') else ''}"


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _sources(found: Any) -> Iterable[str]:  # noqa: ANN401  any row
    for key in ("source", "sm_source", "dropped_source", "adds_source", "driver_source"):
        if text := getattr(found, key, None):
            yield text


def _plain(value: Any, key: str = "") -> Any:  # noqa: ANN401  any value of a row
    if isinstance(value, Mapping):
        return {k: _plain(v, str(k)) for k, v in value.items()}
    if isinstance(value, tuple | list):
        if len(value) == 2 and all(type(v) is int for v in value) and "branches" not in key:
            return f"{value[0]}.{value[1]}"
        return [_plain(v, key) for v in value]
    return value


def _words(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(_words(v) for v in value) or "-"
    return str(value)


# ---- the kinds: what each word after `show` finds ----

Seeker = Callable[[Catalog, str | None], Mapping[str, Rows]]


def _torch(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"releases": catalog.torch_releases}
    release, _, tag = name.partition("+")
    return {
        "releases": [r for r in catalog.torch_releases if _same(r.version, release)],
        "builds": [b for b in catalog.torch if _same(b.version, release) and tag in {"", b.tag}],
    }


def _tensorflow(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"tensorflow_releases": [r for r in catalog.tensorflow_releases if not r.prerelease]}
    return {
        "tensorflow_releases": [r for r in catalog.tensorflow_releases if _same(r.version, name)],
        "tensorflow_wheels": [r for r in catalog.tensorflow_wheels if _same(r.version, name)],
    }


def _tensorflow_gpu(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    return {
        "tensorflow_gpu": [
            r for r in catalog.tensorflow_gpu if name is None or _same(r.version, name)
        ]
    }


def _jax(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"jax_releases": catalog.jax_releases}
    return {
        "jax_releases": [r for r in catalog.jax_releases if _same(r.version, name)],
        "jax_plugins": [r for r in catalog.jax_plugins if _same(r.version, name)],
    }


def _cuda(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"families": catalog.families, "toolkits": catalog.toolkits}
    cuda = parse_cuda(name)
    family = catalog.family(cuda)
    compat = catalog.forward_compat(cuda)
    return {
        "toolkits": catalog.toolkits_of(cuda),
        "families": [family] if family else [],
        "forward_compat": [compat] if compat else [],
    }


def _driver(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"branches": catalog.branches}
    branch = name.partition(".")[0]
    return {"branches": [r for r in catalog.branches if str(r.branch) == branch]}


def _gpu(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"gpus": catalog.gpus}
    head, dot, tail = name.partition(".")
    if dot and head.isdigit() and tail.isdigit():
        wanted = (int(head), int(tail))
        return {"gpus": [r for r in catalog.gpus if r.compute_capability == wanted]}
    return {"gpus": catalog.find_gpu(name).rows}


def _cudnn(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    return {"cudnn": [r for r in catalog.cudnn if name is None or _starts(r.version, name)]}


def _nccl(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    return {"nccl": [r for r in catalog.nccl if name is None or _starts(r.version, name)]}


def _image(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    if name is None:
        return {"images": catalog.images}
    tag = name.rpartition(":")[2]
    found = [r for r in catalog.images if r.tag == tag] or [
        r for r in catalog.images if tag in r.tag
    ]
    rule = catalog.start_rule(found[0].full, found[0].os) if len(found) == 1 else None
    return {"images": found, "start_rules": [rule] if rule else []}


def _conflicts(catalog: Catalog, name: str | None) -> Mapping[str, Rows]:
    del name
    return {"conflicts": catalog.conflicts}


_KINDS: Mapping[str, Seeker] = {
    "torch": _torch,
    "pytorch": _torch,
    "tensorflow": _tensorflow,
    "tensorflow-gpu": _tensorflow_gpu,
    "jax": _jax,
    "cuda": _cuda,
    "driver": _driver,
    "gpu": _gpu,
    "cudnn": _cudnn,
    "nccl": _nccl,
    "image": _image,
    "conflicts": _conflicts,
}
# Columns that tell the rows of a table apart, with how many letters they get.
_COLUMNS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "releases": (("version", 8), ("requires_python", 15), ("torchvision", 11), ("torchaudio", 10)),
    "builds": (("tag", 5), ("arch", 7), ("cudnn", 9), ("nccl", 6), ("existence", 9),
               ("code", 28)),
    "tensorflow_releases": (("version", 11), ("cuda", 5), ("cudnn", 5), ("libraries", 9),
                            ("code", 30)),
    "tensorflow_wheels": (("arch", 7), ("gpu", 3), ("glibc", 5), ("python_tags", 30)),
    "tensorflow_gpu": (("version", 10), ("content", 7), ("python_tags", 30)),
    "jax_releases": (("version", 10), ("glibc", 5), ("archs", 16), ("python_tags", 40)),
    "jax_plugins": (("package", 18), ("cuda_runtime", 14), ("cudnn", 18), ("min_driver", 10),
                    ("sm_min", 6)),
    "families": (("major", 5), ("min_driver", 12)),
    "toolkits": (("full", 8), ("driver", 12), ("on_pypi", 7), ("sm_targets", 44)),
    "branches": (("branch", 6), ("max_cuda", 8), ("type", 11), ("end_of_life", 11),
                 ("dropped_below", 13), ("latest_seen", 11)),
    "forward_compat": (("package", 16), ("official_base_branches", 24)),
    "gpus": (("name", 38), ("capability", 10), ("architecture", 12), ("memory_gb", 9)),
    "cudnn": (("version", 10), ("cuda_major", 10), ("min_driver", 10), ("capabilities", 40)),
    "nccl": (("version", 10), ("cuda_major", 10), ("sm_min", 6), ("upload_date", 11)),
    "images": (("tag", 40), ("status", 11), ("python", 6), ("cudnn_version", 13)),
    "start_rules": (("cuda", 8), ("min_cuda", 8), ("os", 40)),
    "conflicts": (("what", 34), ("use", 40)),
}  # fmt: skip


def _same(version: str, asked: str) -> bool:
    """2.0.1 means 2.0.1; 2.0 means 2.0.0 and 2.0.1."""
    return version == asked or (version.startswith(f"{asked}.") and asked.count(".") == 1)


def _starts(version: str, asked: str) -> bool:
    return version == asked or version.startswith(f"{asked}.")


def _near(catalog: Catalog, kind: str, name: str | None) -> str:
    if kind == "gpu" and name:
        near = catalog.find_gpu(name).suggestions
        return f" (near: {', '.join(near)})" if near else ""
    try:
        Version(name or "")
    except InvalidVersion:
        return ""
    return " (is it newer? provision catalog refresh)"
