"""A runtime environment for Ray, as `ray job submit --runtime-env FILE` reads it:
https://docs.ray.io/en/latest/ray-core/handling-dependencies.html
"""

from __future__ import annotations

import shlex

from provision.output.export.deployment import Deployment, reference_of, remark
from provision.output.export.yaml import Node, to_yaml


def to_runtime_env(one: Deployment) -> str:
    """The file; its first lines have the command that submits the job."""
    words = shlex.join(one.command)
    command = words if words.isprintable() else "COMMAND"
    value: dict[str, Node] = {"image_uri": reference_of(one, "Ray")}
    if one.environment:
        value["env_vars"] = dict(one.environment)
    return (
        f"{remark(one.title)}.\n"
        "#\n"
        f"#   ray job submit --runtime-env {shlex.quote(one.name)}.yaml "
        f"--entrypoint-num-gpus {one.gpus or 1} \\\n"
        f"#       -- {command}\n"
        "#\n"
        "# The image needs the cluster's own releases of Ray and Python, and the nodes podman:\n"
        "# provision build --with ray==VERSION --python X.Y. Tasks and actors request GPUs for\n"
        "# themselves: @ray.remote(num_gpus=1).\n"
    ) + to_yaml(value)
