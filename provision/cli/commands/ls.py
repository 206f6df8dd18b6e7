"""`provision ls`: the images on this machine that provision built."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from images.store.errors import in_units
from provision.cli.paths import image_home, record_home, state_directory
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_either
from provision.output.text import table

if TYPE_CHECKING:
    from provision.verification.own_images import OwnImage, OwnImages

_NONE = "no images; provision build makes one"


def run(args: argparse.Namespace, console: Console) -> int:
    """List the images in Docker, in podman and in this user's own layout."""
    found = images_here(console)
    result = {
        "schema": 1,
        "images": [image_json(one) for one in found.images],
        "skipped": skipped_json(found),
        "error": None,
    }
    lines = [line.removeprefix("  ") for line in image_table(found.images, time.time())]
    print_either(args.json, result, lambda: "\n".join(lines) or _NONE)
    return Exit.DONE


def images_here(console: Console | None = None) -> OwnImages:
    """All images of this machine; says which engines were left out, if there is a console."""
    from provision.verification.own_images import list_images

    found = list_images(image_home(), roots=state_directory() / "roots", home=record_home())
    if console is not None:
        for one in found.skipped:
            console.note(f"without {one.where}: {one.problem.message}")
    return found


def image_table(images: Sequence[OwnImage], now: float) -> list[str]:
    """A line for each image below a heading; no lines if there are none."""
    from images.store.upkeep import in_age

    rows = [
        (
            one.title,
            one.packages or "-",
            one.verdict,
            in_units(one.size),
            "-" if one.created is None else in_age(now - one.created),
            one.where,
        )
        for one in images
    ]
    return table([("image", "plan", "verdict", "size", "age", "where"), *rows]) if rows else []


def image_json(one: OwnImage) -> dict[str, Any]:
    """An image, in the JSON of `ls`, `rm` and `clean`."""
    plan = one.plan
    return {
        "names": list(one.names),
        "id": one.image_id or None,
        "where": one.where,
        "path": str(image_home()) if one.where == "layout" else None,
        "plan": plan
        and {
            "framework": {"name": plan.framework, "version": plan.framework_version},
            "cuda": plan.cuda,
            "wheel_tag": plan.wheel_tag,
            "python": plan.python,
            "arch": plan.arch,
        },
        "verdict": one.verdict,
        "bytes": one.size,
        "made": one.created
        and datetime.fromtimestamp(one.created, timezone.utc).isoformat(timespec="seconds"),
        "in_use": list(one.users),
    }


def skipped_json(found: OwnImages) -> list[dict[str, str]]:
    """The engines that were left out."""
    return [
        {"where": one.where, "code": one.problem.code, "message": one.problem.message}
        for one in found.skipped
    ]
