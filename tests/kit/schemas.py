"""The schemas of the results of `--json`, closed: a key that a schema does not name is an error."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import jsonschema
from referencing import Registry, Resource

from tests import ROOT

SCHEMAS = ROOT / "docs" / "schemas"
_OF_A_FAILURE = {"schema", "verdict", "error", "doctor"}
_GROUPS = ("fleet", "store", "catalog")


def schema_of(words: Sequence[str], result: object) -> str | None:
    """The name of the schema that a command's result has to fit; None: it has none here."""
    if not isinstance(result, dict) or not words:
        return None
    if result.keys() <= _OF_A_FAILURE:
        return "error"
    name = "-".join(words[:2]) if words[0] in _GROUPS else words[0]
    kinds = {
        "detect": "host",
        "doctor": "findings" if "findings" in result else None,
        "verify": next(
            (f"{kind}-check" for kind in ("record", "provenance") if f"--check-{kind}" in words),
            None,
        ),
    }
    name = kinds.get(name, name) or ""
    return name if (SCHEMAS / f"{name}.schema.json").exists() else None


def problems(name: str, result: object) -> list[str]:
    """What of a result is not as its schema says. `name` may have a part: "plan#/$defs/gpu"."""
    found = _validator(*name.partition("#")[::2]).iter_errors(result)
    return [f"{name}: {error.json_path}: {error.message[:200]}" for error in found]


@functools.cache
def _validator(name: str, part: str) -> jsonschema.Draft202012Validator:
    ref = {"$ref": f"{name}.schema.json#{part}"}
    return jsonschema.Draft202012Validator(ref, registry=_registry())


@functools.cache
def _registry() -> Registry[Any]:
    read = {path.name: json.loads(path.read_text("utf-8")) for path in SCHEMAS.glob("*.json")}
    return Registry().with_resources(
        (name, Resource.from_contents(_closed(schema))) for name, schema in read.items()
    )


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in schema and "required" in schema:
        closed["additionalProperties"] = False
    return closed
