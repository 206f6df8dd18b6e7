"""The result of a refresh as text of 80 columns and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from provision.catalog.refresh.current_rows import Row
from provision.output.text import row as labelled

if TYPE_CHECKING:
    from provision.catalog.refresh.model import CatalogSource, Kind, Refreshed

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
    "branches": "Driver branch {branch}",
    "forward_compat": "{package}",
}
# Columns that describe a new row to the user.
_SHOWN = {
    "cuda": "CUDA",
    "max_cuda": "CUDA",
    "latest_seen": "newest version",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "requires_python": "Python",
}


def say_change(
    table: str, key: Row, kind: Kind, before: Row | None, after: Row, source: str
) -> str:
    """One change as a sentence."""
    words = " ".join(map(str, key.values()))
    subject = _NAMES[table].format_map(key) if table in _NAMES else f"{table} {words}"
    if kind == "new":
        said = [f"{name} {after[c]}" for c, name in _SHOWN.items() if after.get(c)]
        if table == "builds" and after.get("sm") is None and after.get("cuda"):
            said.append("for which GPUs is not measured yet")
        return f"{subject} is new at {source}" + (f": {', '.join(said)}." if said else ".")
    if kind == "confirmed":
        return f"{subject} is there: {source} lists it."
    columns = [column for column in after if not column.endswith(("confidence", "_source"))]
    moved = "; ".join(
        _moved(column, (before or {}).get(column), after[column]) for column in columns
    )
    return f"{subject}: {moved} ({source})."


def describe_changes(refreshed: Refreshed, among: Mapping[str, CatalogSource]) -> str:
    """The result of a refresh for the user, in lines of 80 columns; `among`: what was asked."""
    lines: list[str] = []
    for kind in dict.fromkeys(change.kind for change in refreshed.changes):
        sentences = [change.sentence for change in refreshed.changes if change.kind == kind]
        for position, sentence in enumerate(sentences[:_MOST_SENTENCES]):
            lines += labelled(kind if position == 0 else "", sentence)
        if len(sentences) > _MOST_SENTENCES:
            lines += labelled("", f"and {len(sentences) - _MOST_SENTENCES} more: --json")
    if refreshed.exit_code:
        lines += labelled("changes", "Not known: no source could be read.")
    elif not refreshed.changes:
        lines += labelled("changes", "None: the catalog says what the sources say.")
    for note in refreshed.notes:
        lines += labelled("note", note)
    # sources of one server fail for one reason, which is given once
    reasons: dict[tuple[str, str, bool], list[str]] = {}
    for failure in refreshed.failures:
        reason = (failure.message, failure.fix, failure.partial)
        gives = among[failure.source].gives
        reasons.setdefault(reason, []).append(f"{failure.source} ({gives})")
    for (message, fix, partial), names in reasons.items():
        part = ", in part" if partial else ""
        lines += labelled("not read", f"{', '.join(names)}{part}: {message}")
        lines += labelled("  fix", fix)
    size = sum(row.received for row in refreshed.requests)
    lines += labelled(
        "asked",
        f"{len(refreshed.requests)} requests, {size / 1e6:.1f} MB, {refreshed.seconds:.1f} s; "
        f"sources: {', '.join(refreshed.names)}",
    )
    return "\n".join(lines)


def refreshed_to_json(refreshed: Refreshed) -> dict[str, Any]:
    """The same for programs."""
    return {
        "schema": 1,
        "date": refreshed.today,
        "sources": list(refreshed.names),
        "changes": [asdict(change) for change in refreshed.changes],
        "counts": dict(Counter(change.kind for change in refreshed.changes)),
        "notes": refreshed.notes,
        "failures": [asdict(failure) for failure in refreshed.failures],
        "asked": {
            "requests": len(refreshed.requests),
            "bytes": sum(row.received for row in refreshed.requests),
            "seconds": round(refreshed.seconds, 3),
        },
        "error": None,
    }


def _moved(column: str, before: object, after: object) -> str:
    if not (isinstance(before, list) and isinstance(after, list)):
        return f"{column} was {_word(before)}, is {_word(after)}"
    more = [str(item) for item in after if item not in before]
    fewer = [str(item) for item in before if item not in after]
    said = [
        f"{what} {' '.join(items[:_MOST_WORDS])}{' ...' if len(items) > _MOST_WORDS else ''}"
        for what, items in (("also", more), ("no longer", fewer))
        if items
    ]
    return f"{column}: {' and '.join(said)}"


def _word(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return {"None": "not read", "True": "yes", "False": "no"}.get(str(value), str(value))
