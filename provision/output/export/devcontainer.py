"""A development container: https://containers.dev/implementors/json_reference/

Its schema: https://github.com/devcontainers/spec/blob/c95ffee/schemas/devContainer.base.schema.json
"""

from __future__ import annotations

import json

from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.export.deployment import STACK_BYTES, Deployment, reference_of, remark, size


def to_devcontainer(one: Deployment) -> str:
    """devcontainer.json. BadInputError: a value has ${, which is always expanded there."""
    for name, value in one.environment:
        if "${" in value:
            raise BadInputError(
                f"--env {name}={quoted(value)}: devcontainer.json expands ${{...}}, and has no "
                "way to write it as it is.",
                fix="Set this variable in the container instead.",
            )
    rows = [
        ("name", one.name),
        ("image", reference_of(one, "A development container", engine=True)),
    ]
    lines = [f"  {json.dumps(key)}: {_json(value)}," for key, value in rows]
    lines += [
        "  // Passes --gpus all where the engine has GPUs.",
        '  "hostRequirements": { "gpu": true },',
        '  "runArgs": [',
        "    // For NCCL and DataLoader workers: Docker's default of 64 MB ends in a bus error.",
        f'    "--shm-size={size(one.shm, ("g", "m", "b"))}",',
        '    "--ulimit=memlock=-1",',
        f'    "--ulimit=stack={STACK_BYTES}"',
        "  ]",
    ]
    if one.environment:
        lines[-1] += ","
        pairs = [f"    {_json(name)}: {_json(value)}" for name, value in one.environment]
        lines += ['  "containerEnv": {', ",\n".join(pairs), "  }"]
    head = remark(f"{one.title}: .devcontainer/devcontainer.json", "//")
    return "\n".join([head, "{", *lines, "}", ""])


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
