"""The result of a refresh as text of 80 columns and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.catalog.refresh.model import (
    AnsweredRequest,
    Kind,
    Refreshed,
    Row,
    SourceFailure,
)
from provision.output.text import row as labelled

_MOST_SENTENCES = 40
_MOST_WORDS = 8
_NAMES = {
    "releases": "PyTorch {version}",
    "builds": "PyTorch {version} {tag} for {arch}",
    "toolkits": "CUDA {full}",
    "tensorflow_releases": "TensorFlow {version}",
    "tensorflow_wheels": "TensorFlow {version} for {arch}",
    "jax_releases": "JAX {version}",
    "jax_plugins": "JAX {version} with CUDA {cuda_major}",
    "cudnn": "cuDNN {version} for CUDA {cuda_major}",
    "nccl": "NCCL {version} for CUDA {cuda_major}",
    "branches": "Driver branch {branch}",
    "forward_compat": "{package}",
    "images": "nvidia/cuda:{tag}",
    "python_images": "python:{python}-slim-{suite}",
}
_COLUMNS = {
    "archs": "machines",
    "at": "places",
    "cuda": "CUDA",
    "cuda_runtime": "CUDA runtime",
    "cudnn": "cuDNN",
    "latest_date": "its day",
    "latest_seen": "newest version",
    "max_cuda": "CUDA",
    "min_driver": "driver",
    "nccl": "NCCL",
    "on_pypi": "on the index",
    "python_tags": "Pythons",
    "requires_python": "Python",
    "size_max_bytes": "largest wheel",
    "size_min_bytes": "smallest wheel",
    "yanked": "withdrawn",
}
# Columns that describe a new row to the user.
_TOLD = (
    "cuda",
    "max_cuda",
    "latest_seen",
    "cudnn",
    "nccl",
    "torchvision",
    "torchaudio",
    "requires_python",
)
_KINDS: tuple[Kind, ...] = ("new", "changed", "confirmed", "gone", "conflict")


def name_of(table: str, key: Row) -> str:
    """How a fact is named in sentences."""
    return _NAMES[table].format_map(key)


def say_change(
    table: str, key: Row, kind: Kind, before: Row | None, after: Row | None, source: str
) -> str:
    """One change as a sentence."""
    subject, after, before = name_of(table, key), after or {}, before or {}
    if kind == "new":
        said = [f"{_COLUMNS.get(c, c)} {after[c]}" for c in _TOLD if after.get(c)]
        if table == "builds" and after.get("sm") is None and after.get("cuda"):
            said.append("for which GPUs is not measured yet")
        return f"{subject} is new at {source}" + (f": {', '.join(said)}." if said else ".")
    columns = [column for column in after if not column.endswith(("confidence", "_source"))]
    if kind == "confirmed":
        return f"{subject} is there: {source} lists it."
    told = "; ".join(_moved(column, before.get(column), after[column]) for column in columns)
    if kind == "conflict":
        return f"{subject}: {source} contradicts the catalog, which is kept: {told}."
    return f"{subject}: {told} ({source})."


def say_seen(table: str, key: Row, words: str) -> str:
    """One finding that is reported and changes no column."""
    return f"{name_of(table, key)}: {words}."


def say_asked(asked: AnsweredRequest) -> str:
    """One answered request as a line."""
    return f"{asked.url}: HTTP {asked.status}, {asked.received} bytes, {asked.seconds:.2f} s"


def describe_changes(refreshed: Refreshed) -> str:
    """The result of a refresh for the user, in lines of 80 columns."""
    lines: list[str] = []
    for kind in _KINDS:
        told = [change.sentence for change in refreshed.changes if change.kind == kind]
        for position, sentence in enumerate(told[:_MOST_SENTENCES]):
            lines += labelled(kind if position == 0 else "", sentence)
        if len(told) > _MOST_SENTENCES:
            lines += labelled("", f"and {len(told) - _MOST_SENTENCES} more: --json")
    if refreshed.exit_code:
        lines += labelled("changes", "Not known: no source could be read.")
    elif not refreshed.changes:
        lines += labelled("changes", "None: the catalog says what the sources say.")
    for note in refreshed.notes:
        lines += labelled("note", note)
    for (message, fix, partial), names in _by_reason(refreshed.failures).items():
        head = f"{', '.join(names)}{', in part' if partial else ''}"
        lines += labelled("not read", f"{head}: {message}")
        lines += labelled("  fix", fix)
    asked = refreshed.asked
    size = sum(row.received for row in asked)
    lines += labelled(
        "asked",
        f"{len(asked)} requests, {size / 1e6:.1f} MB, {refreshed.seconds:.1f} s; "
        f"sources: {', '.join(refreshed.names)}",
    )
    return "\n".join(lines)


def refreshed_to_json(refreshed: Refreshed) -> dict[str, Any]:
    """The same for programs; `requests` are summed by host and path."""
    return {
        "schema": 1,
        "date": refreshed.today,
        "sources": list(refreshed.names),
        "changes": [
            {
                "table": change.table,
                "key": dict(change.key),
                "kind": change.kind,
                "before": None if change.before is None else dict(change.before),
                "after": None if change.after is None else dict(change.after),
                "sentence": change.sentence,
            }
            for change in refreshed.changes
        ],
        "counts": dict(Counter(change.kind for change in refreshed.changes)),
        "notes": list(refreshed.notes),
        "failures": [
            {
                "source": failure.name,
                "message": failure.message,
                "fix": failure.fix,
                "partial": failure.partial,
            }
            for failure in refreshed.failures
        ],
        "asked": {
            "requests": len(refreshed.asked),
            "bytes": sum(row.received for row in refreshed.asked),
            "seconds": round(refreshed.seconds, 3),
        },
        "error": None,
    }


def _by_reason(failures: Iterable[SourceFailure]) -> dict[tuple[str, str, bool], list[str]]:
    """Sources of one server fail for one reason, which is said once."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    for failure in failures:
        reason = (failure.message, failure.fix, failure.partial)
        found.setdefault(reason, []).append(failure.name)
    return found


def _moved(column: str, before: object, after: object) -> str:
    name = _COLUMNS.get(column, column.replace("_", " "))
    if isinstance(before, list) and isinstance(after, list):
        more = [str(item) for item in after if item not in before]
        fewer = [str(item) for item in before if item not in after]
        said = [f"also {_clipped(more)}"] if more else []
        said += [f"no longer {_clipped(fewer)}"] if fewer else []
        return f"{name}: {' and '.join(said)}"
    return f"{name} was {_word(before)}, is {_word(after)}"


def _clipped(words: Sequence[str]) -> str:
    rest = f" and {len(words) - _MOST_WORDS} more" if len(words) > _MOST_WORDS else ""
    return " ".join(words[:_MOST_WORDS]) + rest


def _word(value: object) -> str:
    if value is None:
        return "not read"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping | list):
        return " ".join(str(item) for item in value) or "none"
    return str(value)
