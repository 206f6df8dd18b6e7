"""Plan <-> JSON, in the documented format.

Besides the documented keys the object has what rebuilds it from a lock: `arch`, `flavour`, `base`,
`compat_package`, `requirements`, `indexes`; `notes`, which need no action; `limited_by`, the hosts
that limit the plan; and, if nothing fits all, `blocked`, the table of which GPU blocks what. No URL
in it has a password.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from provision.errors import LockFileError
from provision.model import grammar
from provision.model.plan import Base, Cell, LimitedBy, Plan

SCHEMA = 1
TOOL = "gpu-provision"
"""The table of a lock, under [tool], that has the plan."""


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan in the documented format."""
    from images.net.address import shown_url  # 2 ms that most plans do not need

    return {
        "schema": SCHEMA,
        "verdict": plan.verdict,
        "cuda": plan.cuda,
        "wheel_tag": plan.wheel_tag,
        "index": plan.index_url,
        "framework": {"name": plan.framework, "version": plan.framework_version},
        "python": plan.python,
        "cudnn": plan.cudnn,
        "nccl": plan.nccl,
        "driver": {"have": plan.driver_have, "need": plan.driver_need},
        "gpus": [gpu._asdict() for gpu in plan.gpus],
        "reasons": [reason._asdict() for reason in plan.reasons],
        "warnings": [warning._asdict() for warning in plan.warnings],
        "notes": [note._asdict() for note in plan.notes],
        "alternatives": [alternative._asdict() for alternative in plan.alternatives],
        "error": plan.error._asdict() if plan.error else None,
        "arch": plan.arch,
        "flavour": plan.flavour,
        "base": _base_to_json(plan.base) if plan.base else None,
        "compat_package": plan.compat_package,
        "requirements": list(plan.requirements),
        "indexes": [
            {**row._asdict(), "url": shown_url(row.url) if row.url else None}
            for row in plan.indexes
        ],
        "blocked": [row._asdict() for row in plan.blocked],
        "limited_by": _limited_to_json(plan.limited_by),
    }


def _base_to_json(base: Base) -> dict[str, Any]:
    """Debian packages are only in the table of a base that some were added to."""
    row = base._asdict()
    apt, added = row.pop("apt"), row.pop("added")
    return {**row, "apt": list(apt), "added": [one._asdict() for one in added]} if apt else row


def _limited_to_json(limited: LimitedBy | None) -> dict[str, Any] | None:
    return None if limited is None else {**limited._asdict(), "hosts": list(limited.hosts)}


def matrix_to_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One object per build, newest release first."""
    return [cell._asdict() for cell in cells]


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan from a lock's table; LockFileError names the key that does not match our format:
    its type, its grammar, or its size.
    """
    flat = {}
    for name in _hints(Plan):
        *table, key = _PLACES.get(name, (name,))
        inner = data.get(table[0], {}) if table else data
        flat[name] = inner.get(key) if isinstance(inner, Mapping) else _wrong(table[0], "a table")
    plan: Plan = _row(Plan, flat, "")
    return plan


def without_nulls(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """TOML has no null: the keys are left out instead."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


_PLACES = {
    "index_url": ("index",),
    "framework": ("framework", "name"),
    "framework_version": ("framework", "version"),
    "driver_have": ("driver", "have"),
    "driver_need": ("driver", "need"),
}
"""The fields of a plan that have another name in the file, or are in a table of it."""
_GRAMMARS = {
    **dict.fromkeys(("cuda", "cudnn", "nccl", "python", "glibc"), grammar.NUMBERS),
    **dict.fromkeys(("driver_have", "driver_need"), grammar.NUMBERS),
    **dict.fromkeys(("wheel_tag", "arch", "suite", "snapshot"), grammar.NAME),
    **dict.fromkeys(("compat_package", "code"), grammar.NAME),
    **dict.fromkeys(("index_url", "url"), grammar.ADDRESS),
    **dict.fromkeys(("requirement", "requirements"), grammar.REQUIREMENT),
    "framework_version": grammar.VERSION,
    "compute_capability": grammar.CAPABILITY,
    "digest": grammar.DIGEST,
    "apt": grammar.DEBIAN_NAME,
    "version": grammar.DEBIAN_VERSION,
    "sha256": grammar.SHA256,
}
"""The kinds of texts by the names of the fields; all others are sentences and names of things."""


_hints = functools.cache(get_type_hints)


def _wrong(key: str, want: str) -> NoReturn:
    raise LockFileError(
        f"tool.gpu-provision.plan.{key}: expected {want}.",
        fix="The lock was edited or made by another version: lock again with provision lock",
    )


def _row(make: Any, value: object, path: str) -> Any:  # noqa: ANN401  the row's own type
    """One row, each field by its type and its grammar."""
    if not isinstance(value, dict):
        _wrong(path, "a table")
    fields = {}
    for name, hint in _hints(make).items():
        given = value.get(name)
        if given is None and make._field_defaults.get(name) == ():
            given = []
        place = ".".join(_PLACES.get(name, (name,)) if make is Plan else (path, name))
        fields[name] = _field(hint, given, place, name)
    return make(**fields)


def _field(hint: Any, value: Any, path: str, name: str) -> Any:  # noqa: ANN401  JSON in, typed out
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in choices:
            _wrong(path, f"one of {', '.join(choices)}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or len(value) > grammar.MOST_ITEMS:
            _wrong(path, f"a list of at most {grammar.MOST_ITEMS} items")
        items = enumerate(value)
        return tuple(_field(choices[0], item, f"{path}[{i}]", name) for i, item in items)
    if type(None) in choices:
        return None if value is None else _field(choices[0], value, path, name)
    if hint is bool:
        return value if isinstance(value, bool) else _wrong(path, "true or false")
    if hint is not str:
        return _row(hint, value, path)
    kind = _GRAMMARS.get(name, grammar.TEXT)
    if not isinstance(value, str) or not kind.fits(value):
        _wrong(path, kind.wanted)
    return value
