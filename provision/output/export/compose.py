"""A service for Docker Compose: https://docs.docker.com/reference/compose-file/"""

from __future__ import annotations

import re
import shlex

from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.export.deployment import (
    STACK_BYTES,
    WORKSPACE,
    Deployment,
    reference_of,
    remark,
    size,
)
from provision.output.export.launch import on_one_node
from provision.output.export.yaml import Node, Remark, to_yaml

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def to_compose(one: Deployment, *, cdi: bool, mount: bool) -> str:
    """The file. With `cdi` the engine injects the GPUs by its CDI devices, without NVIDIA's
    runtime. BadInputError: the name is not one of a service.
    """
    if not _NAME.fullmatch(one.name):
        raise BadInputError(
            f"--name {quoted(one.name)} is not a name of a service.",
            fix="Use letters, digits, hyphens and underscores: --name train",
        )
    service: dict[str, Node] = {
        "image": literal(reference_of(one, "Compose", engine=True)),
        "command": [literal(word) for word in on_one_node(one)],
    }
    if one.environment:
        service["environment"] = {name: literal(value) for name, value in one.environment}
    service["shm_size"] = Remark(
        "for NCCL and DataLoader workers: Docker's default of 64 MB ends in a bus error",
        size(one.shm, ("gb", "mb", "b")),
    )
    service["ulimits"] = {
        "stack": STACK_BYTES,
        "memlock": Remark("pinned host memory", -1),
    }
    if mount:
        service["volumes"] = [f"./:{WORKSPACE}"]
    service["deploy"] = {"resources": {"reservations": {"devices": [_devices(one, cdi=cdi)]}}}
    run = remark(f"  docker compose run --rm {shlex.quote(one.name)}")
    document = to_yaml({"services": {one.name: service}})
    return "\n".join([remark(f"{one.title}."), "#", run, document])


def literal(text: str) -> str:
    """A value in which Compose expands variables: $$ is $."""
    return text.replace("$", "$$")


def _devices(one: Deployment, *, cdi: bool) -> dict[str, Node]:
    if not cdi:
        count: Node = "all" if one.gpus is None else one.gpus
        return {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
    which = ["all"] if one.gpus is None else [str(number) for number in range(one.gpus)]
    names: Node = [f"nvidia.com/gpu={number}" for number in which]
    return {"driver": "cdi", "device_ids": names, "capabilities": ["gpu"]}
