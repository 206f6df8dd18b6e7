"""A script that runs an image with enroot: https://github.com/NVIDIA/enroot/tree/v4.1.2/doc/cmd

Its hook gives a container GPUs by `NVIDIA_VISIBLE_DEVICES` and `NVIDIA_DRIVER_CAPABILITIES`, which
images of `provision build` set: https://github.com/NVIDIA/enroot/blob/v4.1.2/conf/hooks/98-nvidia.sh
"""

from __future__ import annotations

import shlex

from images.engines.run_arguments import enroot_name
from provision.output.export.deployment import WORKSPACE, Deployment, remark
from provision.output.export.launch import on_one_node
from provision.output.export.names import enroot_uri, squashfs_name


def to_script(one: Deployment) -> str:
    """Imports the image once, creates the container once, and runs the command in it."""
    image = shlex.quote(squashfs_name(one.image.name))
    name = shlex.quote(container_name(one.name))
    pyxis = []
    if one.image.kind == "reference":
        pulled = shlex.quote(enroot_name(one.image.name))
        run = f"srun --container-image={pulled} COMMAND"
        pyxis = ["#", remark(f"In a job of Slurm with pyxis: {run}")]
    place = f"in the current directory, which is {WORKSPACE} inside"
    words = shlex.join(on_one_node(one))
    passed = "".join(f" --env {shlex.quote(f'{key}={value}')}" for key, value in one.environment)
    return "\n".join(
        [
            "#!/bin/sh",
            remark(f"{one.title}, with enroot: {place}."),
            "# enroot's own hook brings the GPUs and the driver; /dev/shm is the host's.",
            *pyxis,
            "set -eu",
            "",
            f"image={image}",
            f"name={name}",
            'if [ ! -e "$image" ]; then',
            f'    enroot import --output "$image.$$" {shlex.quote(enroot_uri(one.image))}',
            '    mv "$image.$$" "$image"',
            "fi",
            'if ! enroot list | grep -Fqx -- "$name"; then',
            '    enroot create --name "$name" "$image"',
            "fi",
            f'exec enroot start --mount "$PWD:{WORKSPACE}"{passed} "$name" {words}',
            "",
        ]
    )


def container_name(name: str) -> str:
    """A name that is one directory, as enroot keeps containers."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name).lstrip("-.") or "job"
