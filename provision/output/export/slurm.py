"""A batch script for Slurm: https://slurm.schedmd.com/sbatch.html

Containers: Apptainer, enroot, Docker or pyxis: https://github.com/NVIDIA/pyxis/blob/v0.24.0/args.c
"""

from __future__ import annotations

import shlex
from typing import Literal, TypeAlias, get_args

from images.engines.run_arguments import enroot_name
from provision.output.export.deployment import (
    GATE,
    STACK_BYTES,
    WORKSPACE,
    Deployment,
    over_the_network,
    reference_of,
    remark,
    size,
)
from provision.output.export.launch import needs_launcher, on_one_node, torchrun
from provision.output.export.names import apptainer_uri, enroot_uri, squashfs_name

ContainerTool: TypeAlias = Literal["pyxis", "apptainer", "enroot", "docker"]
TOOLS: tuple[ContainerTool, ...] = get_args(ContainerTool)

# What JAX and others read to find their place in the job; a container does not get them by itself.
_PASSED_ON = (
    *("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"),
    *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
)


def to_sbatch(one: Deployment, tool: ContainerTool, *, mount: bool) -> str:
    """The script. With `mount` the directory of the job is /workspace in the container."""
    tasks, reason = _tasks(one)
    lines = [
        "#!/bin/bash",
        remark(f"{one.title}: {one.room}, with {_TITLES[tool]}."),
        "#",
        remark(f"  sbatch {shlex.quote(one.name)}.sbatch"),
        "#",
        f"#SBATCH --job-name={quoted(one.name)}",
        "#SBATCH --output=%j.out",
        f"#SBATCH --nodes={one.nodes}",
        f"#SBATCH --gpus-per-node={one.gpus or 1}",
        f"# {reason}",
        f"#SBATCH --ntasks-per-node={tasks}",
        "# Set these for your cluster; a line with one # is read.",
        "##SBATCH --partition=gpu",
        "##SBATCH --time=24:00:00",
        "##SBATCH --cpus-per-task=16",
        "",
        "set -euo pipefail",
        "",
        *over_the_network(one, _HOW_RDMA[tool]),
        "# Where the processes meet: on the first node, by the address that Slurm has for it: its",
        "# name may be known only to itself. Jobs that share it have different ports.",
        'FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        f'MASTER_ADDR=$(scontrol show node "$FIRST_NODE" | {_NODE_ADDRESS})',
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        "export MASTER_ADDR MASTER_PORT",
        *(f"export {name}={shlex.quote(value)}" for name, value in one.environment),
        "",
        *_container(one, tool, mount=mount),
        "",
    ]
    if one.gate:
        lines += [
            "# The job starts only if the suite passes on each of its nodes.",
            f'srun --ntasks={one.nodes} --ntasks-per-node=1 "${{container[@]}}" {shlex.join(GATE)}',
            "",
        ]
    command = _command(one)
    if "$SLURM_NODEID" in command:
        lines.append("# shellcheck disable=SC2016  # expanded on each node")
    return "\n".join([*lines, f'srun "${{container[@]}}" {command}', ""])


def quoted(text: str) -> str:
    """A value in a line of #SBATCH, which sbatch splits as a shell does, without expansions."""
    return (
        text
        if shlex.quote(text) == text
        else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )


_DOCKER_RUN = r'exec docker run --gpus "\"device=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}\"" "$@"'
_TITLES = {
    "pyxis": "pyxis and enroot",
    "apptainer": "Apptainer",
    "enroot": "enroot",
    "docker": "Docker",
}


_NODE_ADDRESS = r"sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p'"
_MEMLOCK = (
    "and set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf: nodes keep their own limit."
)
_HOW_RDMA = {
    "pyxis": f"Export MELLANOX_VISIBLE_DEVICES=all, which a hook of enroot reads, {_MEMLOCK}",
    "enroot": f"Pass --env MELLANOX_VISIBLE_DEVICES=all, which a hook of enroot reads, {_MEMLOCK}",
    "apptainer": f"The container has the devices of the node: raise `ulimit -l` there, {_MEMLOCK}",
    "docker": "Add --device=/dev/infiniband to the options of docker run, which lifts the limit of "
    "locked memory already.",
}


def _tasks(one: Deployment) -> tuple[int, str]:
    if needs_launcher(one):
        return 1, "One task on each node: torchrun starts a process for each GPU."
    if one.framework == "jax" and one.nodes > 1:
        return one.gpus or 1, "One task for each GPU, as jax.distributed.initialize() expects."
    return 1, "One task on each node, with all of its GPUs."


def _command(one: Deployment) -> str:
    if one.nodes == 1 or not needs_launcher(one):
        return shlex.join(on_one_node(one) if one.nodes == 1 else one.command)
    # The rank differs from node to node, so that a shell on each node has to fill it in.
    ranked = """sh -c 'exec torchrun --node-rank="$SLURM_NODEID" "$@"' torchrun"""
    where = '--master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    _, *words = torchrun(one)
    return " \\\n    ".join([ranked, f"{shlex.join(words[:2])} {where}", shlex.join(words[2:])])


def _container(one: Deployment, tool: ContainerTool, *, mount: bool) -> list[str]:
    return {"pyxis": _pyxis, "apptainer": _apptainer, "enroot": _enroot, "docker": _docker}[tool](
        one, mount
    )


def _array(*lines: str) -> list[str]:
    return ["container=(", *(f"    {line}" for line in lines), ")"]


def _pyxis(one: Deployment, mount: bool) -> list[str]:  # noqa: FBT001  the signature of all
    image = f"--container-image={shlex.quote(enroot_name(reference_of(one, 'pyxis')))}"
    place = [
        f'--container-mounts="$SLURM_SUBMIT_DIR:{WORKSPACE}"',
        f"--container-workdir={WORKSPACE}",
    ]
    own = ",".join(name for name, _ in one.environment)
    options = ["--no-container-mount-home", *([f"--container-env={own}"] if own else [])]
    return [
        "# Without the home directory: Python packages in ~/.local would come before the image's.",
        *_array(image, *options, *(place if mount else ())),
    ]


def _apptainer(one: Deployment, mount: bool) -> list[str]:  # noqa: FBT001
    place = [f'--bind "$SLURM_SUBMIT_DIR:{WORKSPACE}" --pwd {WORKSPACE}']
    return [
        "# --nv brings the driver's libraries. Without the home directory: Python packages in",
        "# ~/.local would come before the image's. The first run converts the image; to do that",
        "# once, build a .sif from `provision export apptainer`, and name that here.",
        *_array(
            "apptainer exec --nv --no-home",
            *(place if mount else ()),
            shlex.quote(apptainer_uri(one.image)),
        ),
        "unset PYTHONPATH",
    ]


def _enroot(one: Deployment, mount: bool) -> list[str]:  # noqa: FBT001
    name = squashfs_name(one.image.name)
    place = [f'--mount "$SLURM_SUBMIT_DIR:{WORKSPACE}"'] if mount else []
    return [
        "# Imported once, into the directory of the job, which all nodes share.",
        f'image="$SLURM_SUBMIT_DIR/"{shlex.quote(name)}',
        'if [ ! -e "$image" ]; then',
        f'    enroot import --output "$image.$SLURM_JOB_ID" {shlex.quote(enroot_uri(one.image))}',
        '    mv "$image.$SLURM_JOB_ID" "$image"',
        "fi",
        *_array("enroot start", *_passed(one), *place, '"$image"'),
    ]


def _docker(one: Deployment, mount: bool) -> list[str]:  # noqa: FBT001
    shm = size(one.shm, ("g", "m", "b"))
    place = [f'--volume "$SLURM_SUBMIT_DIR:{WORKSPACE}" --workdir {WORKSPACE}'] if mount else []
    return [
        "# Docker does not know which GPUs of the node Slurm gave the job.",
        "# Containers have the host's network, so that the nodes reach each other.",
        "# shellcheck disable=SC2016  # expanded on each node",
        *_array(
            f"bash -c '{_DOCKER_RUN}' docker",
            '--rm --init --network host --user "$(id -u):$(id -g)" --env HOME=/tmp',
            f"--shm-size={shm} --ulimit memlock=-1 --ulimit stack={STACK_BYTES}",
            *_passed(one),
            *place,
            shlex.quote(reference_of(one, "Docker", engine=True)),
        ),
    ]


def _passed(one: Deployment) -> list[str]:
    names = (*_PASSED_ON, *(name for name, _ in one.environment))
    rows = [names[start : start + 3] for start in range(0, len(names), 3)]
    return [" ".join(f"--env {name}" for name in row) for row in rows]
