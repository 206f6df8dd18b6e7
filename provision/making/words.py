"""What a person types next, by where the image is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from provision.destination import Destination
from provision.suite import run_command


def next_words(
    destination: Destination, place: str, tag: str, *, gpus: str, notes: Sequence[str]
) -> str:
    """A command that runs the image. `place`: the layout's or the archive's path."""
    if destination.kind == "registry":
        return run_command(destination.where, gpus=gpus, notes=notes)
    if destination.kind == "archive":
        load = f"docker load --input {shlex.quote(place)}"
        return f"{load} && {run_command(tag, gpus=gpus, notes=notes)}"
    if destination.kind == "engine":
        return run_command(tag, gpus=gpus, notes=notes)
    words = run_command(shlex.quote(f"oci:{place}:{tag}"), gpus=gpus and "cdi", notes=notes)
    return words.replace("docker", "podman", 1)
