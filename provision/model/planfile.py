"""Plan <-> JSON, in the documented format.

Besides the documented keys the object has what rebuilds it from a lock: `arch`, `flavour`, `base`,
`compat_package`, `requirements`, `indexes`; `notes`, which need no action; `limited_by`, the hosts
that limit the plan; and, if nothing fits all, `blocked`, the table of which GPU blocks what. No URL
in it has a password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from provision.errors import LockFileError
from provision.model.frozen import asdict
from provision.model.plan import (
    Alternative,
    Base,
    Blocked,
    Cell,
    Flavour,
    Framework,
    GpuVerdict,
    IndexCandidate,
    LimitedBy,
    Note,
    Plan,
    PlanError,
    Reason,
    Verdict,
    Warned,
)

SCHEMA = 1


def without_credentials(url: str) -> str:
    """The URL without `user:password@`."""
    if "@" not in url:
        return url
    from urllib.parse import urlsplit, urlunsplit  # 2 ms that most plans do not need

    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan in the documented format."""
    return {
        "schema": SCHEMA,
        "verdict": plan.verdict,
        "cuda": plan.cuda,
        "wheel_tag": plan.wheel_tag,
        "index": plan.index,
        "framework": {"name": plan.framework, "version": plan.framework_version},
        "python": plan.python,
        "cudnn": plan.cudnn,
        "nccl": plan.nccl,
        "driver": {"have": plan.driver_have, "need": plan.driver_need},
        "gpus": [asdict(gpu) for gpu in plan.gpus],
        "reasons": [asdict(reason) for reason in plan.reasons],
        "warnings": [asdict(warning) for warning in plan.warnings],
        "notes": [asdict(note) for note in plan.notes],
        "alternatives": [asdict(alternative) for alternative in plan.alternatives],
        "error": asdict(plan.error) if plan.error else None,
        "arch": plan.arch,
        "flavour": plan.flavour,
        "base": asdict(plan.base) if plan.base else None,
        "compat_package": plan.compat_package,
        "requirements": list(plan.requirements),
        "indexes": [
            {**asdict(row), "url": without_credentials(row.url) if row.url else None}
            for row in plan.indexes
        ],
        "blocked": [asdict(row) for row in plan.blocked],
        "limited_by": _limited_to_json(plan.limited_by),
    }


def _limited_to_json(limited: LimitedBy | None) -> dict[str, Any] | None:
    return None if limited is None else {**asdict(limited), "hosts": list(limited.hosts)}


def matrix_to_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One object per build, newest release first."""
    return [cell._asdict() for cell in cells]


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan from a lock's table; LockFileError names the key that does not match our format."""
    take = _Table(data, "tool.gpu-provision.plan")
    framework = take.table("framework")
    driver = take.table("driver")
    return Plan(
        verdict=cast("Verdict", take.one_of("verdict", get_args(Verdict))),
        framework=cast("Framework", framework.one_of("name", get_args(Framework))),
        framework_version=framework.text("version"),
        cuda=take.text("cuda"),
        wheel_tag=take.text("wheel_tag"),
        index=take.text("index"),
        python=take.text("python"),
        cudnn=take.text("cudnn"),
        nccl=take.text("nccl"),
        arch=take.text("arch"),
        flavour=cast("Flavour", take.one_of("flavour", get_args(Flavour))),
        driver_have=driver.text("have"),
        driver_need=driver.text("need"),
        gpus=take.rows("gpus", GpuVerdict),
        base=take.row("base", Base),
        compat_package=take.text("compat_package"),
        requirements=tuple(take.texts("requirements")),
        indexes=take.rows("indexes", IndexCandidate),
        reasons=take.rows("reasons", Reason),
        warnings=take.rows("warnings", Warned),
        notes=take.rows("notes", Note),
        alternatives=take.rows("alternatives", Alternative),
        blocked=take.rows("blocked", Blocked),
        limited_by=take.row("limited_by", LimitedBy),
        error=take.row("error", PlanError),
    )


def without_nulls(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """TOML has no null: the keys are left out instead."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


class _Table:
    """Reads one table and names the key that is wrong."""

    def __init__(self, data: Mapping[str, Any], path: str) -> None:
        self._data = data
        self._path = path

    def wrong(self, key: str, want: str) -> LockFileError:
        return LockFileError(
            f"{self._path}.{key}: expected {want}.",
            fix="The lock was edited or made by another version: lock again with provision lock",
        )

    def text(self, key: str) -> str | None:
        value = self._data.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return value

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self._data.get(key)
        if value not in allowed:
            raise self.wrong(key, f"one of {', '.join(allowed)}")
        return str(value)

    def table(self, key: str) -> _Table:
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return _Table(value, f"{self._path}.{key}")

    def row(self, key: str, make: Callable[..., Any]) -> Any:  # noqa: ANN401  the caller's type
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return self._make(key, make, value)

    def rows(self, key: str, make: Callable[..., Any]) -> tuple[Any, ...]:
        value = self._data.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "an array of tables")
        return tuple(self._make(f"{key}[{i}]", make, item) for i, item in enumerate(value))

    def _make(self, key: str, make: Callable[..., Any], value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        values = {}
        for name, hint in get_type_hints(make).items():
            values[name] = _as_tuple(value.get(name))
            if not _fits(values[name], hint):
                raise self.wrong(f"{key}.{name}", _in_words(hint))
        return make(**values)


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401  a type's own description
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if choices := get_args(hint):
        return any(_fits(value, choice) for choice in choices)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:  # noqa: ANN401
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return "true or false" if hint is bool else "a string"
