"""What was read of a fleet, and a plan for it, as JSON; docs/json.md has the formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from provision.fleet.classes import NodeClass
from provision.fleet.images import FleetImage, FleetPlan, UnservedClass
from provision.fleet.nodes.collect import NodeReading
from provision.fleet.what_if import DriverChange
from provision.model.planfile import plan_to_json

SCHEMA = 1


def fleet_to_json(
    plan: FleetPlan,
    classes: Sequence[NodeClass],
    change: DriverChange | None,
    command: Callable[[FleetImage], str],
) -> dict[str, Any]:
    """The documented format; `command` is what to type for an image."""
    places = {one.nodes: number for number, one in enumerate(classes)}
    return {
        "schema": SCHEMA,
        "nodes": sum(len(one.nodes) for one in classes),
        "classes": [class_to_json(one) for one in classes],
        "images": [{**_image(one, places), "command": command(one)} for one in plan.images],
        "fewest": _fewest(plan, places),
        "against_one_image": [
            {
                "classes": [places[one.nodes] for one in refusal.classes],
                "error": None if refusal.plan.error is None else refusal.plan.error._asdict(),
                "blocked": [row._asdict() for row in refusal.plan.blocked],
                "limited_by": plan_to_json(refusal.plan)["limited_by"],
            }
            for refusal in plan.against_one
        ],
        "unserved": [_unserved(one, places) for one in plan.unserved],
        "without_gpu": list(plan.without_gpu),
        "if_driver": None if change is None else _change(change, places),
        "error": None,
    }


def class_to_json(one: NodeClass) -> dict[str, Any]:
    """A class of nodes, as all commands of a fleet print it."""
    facts = one.facts
    return {
        "driver": facts.driver,
        "arch": facts.arch,
        "gpus": None if facts.gpus is None else list(one.gpus),
        "host_file": one.path,
        "nodes": list(one.nodes),
    }


def _image(image: FleetImage, places: dict[tuple[str, ...], int]) -> dict[str, Any]:
    return {
        "classes": [places[one.nodes] for one in image.classes],
        "nodes": list(image.nodes),
        "plan": plan_to_json(image.plan),
    }


def _fewest(plan: FleetPlan, places: dict[tuple[str, ...], int]) -> dict[str, Any]:
    return {
        "images": len(plan.images),
        "at_least": plan.at_least,
        "proven": plan.proven,
        "apart": [places[one.nodes] for one in plan.apart],
    }


def _unserved(one: UnservedClass, places: dict[tuple[str, ...], int]) -> dict[str, Any]:
    return {
        "class": places[one.node_class.nodes],
        "nodes": list(one.node_class.nodes),
        **one.error._asdict(),
    }


def _change(change: DriverChange, places: dict[tuple[str, ...], int]) -> dict[str, Any]:
    return {
        "driver": change.driver,
        "change": [
            {"class": places[one.nodes], "nodes": list(one.nodes)} for one in change.changed
        ],
        "not_supported": [_unserved(one, places) for one in change.lost],
        "images": [_image(one, places) for one in change.plan.images],
        "fewest": _fewest(change.plan, places),
        "unserved": [_unserved(one, places) for one in change.plan.unserved],
    }


def nodes_to_json(readings: Sequence[NodeReading], folder: Path) -> dict[str, Any]:
    """The documented format; `seconds` is null for nodes that were not asked."""
    return {
        "schema": SCHEMA,
        "directory": str(folder),
        **{
            status: sum(one.status == status for one in readings)
            for status in ("read", "kept", "failed")
        },
        "nodes": [
            {
                "name": one.name,
                "status": one.status,
                "host_file": None if one.path is None else str(one.path),
                "code": None if one.failure is None else one.failure.code,
                "message": None if one.failure is None else one.failure.message,
                "fix": None if one.failure is None else one.failure.fix,
                "seconds": round(one.seconds, 2) if one.seconds else None,
            }
            for one in readings
        ],
        "error": None,
    }
