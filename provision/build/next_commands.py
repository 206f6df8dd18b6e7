"""The commands to type next, depending on where the image is."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from images.engines.run_arguments import gpu_words
from provision.build.destination import Destination
from provision.build.maker import MadeImage
from provision.build.pipeline import gigabytes
from provision.verification.suite import STACK_BYTES


def run_command(image: str, *, gpus: str, notes: Sequence[str]) -> str:
    """The command to type next."""
    words = ["docker", "run", "--rm", "-it"]
    words += [*gpu_words("docker", gpus), "--shm-size", "1g"]
    refused = " ".join(notes)
    for name, value in (("memlock", -1), ("stack", STACK_BYTES)):
        if f"ulimit {name}" not in refused:
            words += ["--ulimit", f"{name}={value}"]
    return " ".join([*words, image])


def made_in_short(made: MadeImage) -> str:
    """The size of an image, and how much of it was written: "2.37 GB in 27 layers, all new"."""
    size = gigabytes(made.size_bytes)
    if not made.layers:
        return size
    new = sum(layer["size"] for layer in made.layers if layer["how"] == "written")
    old = sum(layer["size"] for layer in made.layers) - new
    share = "all new" if not old else f"{gigabytes(new)} new" if new else "none new"
    return f"{size} in {len(made.layers)} layers, {share}"


_MOST_TAG = 128  # characters, by the OCI distribution specification


def kept_name(name: str, state: str) -> str:
    """The name of an image that may not have its own: "team/torch:1" -> "team/torch:1-unfit"."""
    path, slash, last = name.rpartition("/")
    base, _, tag = last.partition(":")
    tag = (tag or "latest")[: _MOST_TAG - len(state) - 1]
    return f"{path}{slash}{base}:{tag}-{state}"


CARRIED = ("registry", "archive", "squashfs")
"""Where other machines can take an image from."""


def run_words(destination: Destination, place: str, tag: str) -> str:
    """The command that runs the image here, with the GPUs of this machine. `place`: the path of
    what is on this disk.
    """
    return f"provision run {_name(destination, place, tag)}"


def verify_words(destination: Destination, place: str, tag: str) -> str:
    """The command that tests the image on another machine, which can get it from there."""
    return f"provision verify {_name(destination, place, tag)}"


def _name(destination: Destination, place: str, tag: str) -> str:
    """The image as commands find it, quoted for a shell."""
    if destination.kind == "registry":
        name = destination.where
    elif destination.kind == "squashfs":
        name = place
    elif destination.kind == "archive":
        name = place if place.endswith(".tar") else f"oci-archive:{place}"
    else:
        name = f"oci:{place}:{tag}" if destination.kind == "layout" else tag
    return shlex.quote(name)


def elsewhere_words(destination: Destination, place: str, tag: str) -> str:
    """The command that runs an image of `CARRIED` with GPUs where gpu-provision is not."""
    if destination.kind == "registry":
        return run_command(destination.where, gpus="runtime", notes=())
    if destination.kind == "squashfs":
        file = shlex.quote(os.path.abspath(place))  # noqa: PTH100  no links
        if place.endswith(".sif"):
            return f"apptainer run --nv {file}"
        return f"enroot start {file}"  # which gives it the GPUs of a host by itself
    load = f"docker load --input {shlex.quote(place)}"
    return f"{load} && {run_command(tag, gpus='runtime', notes=())}"
