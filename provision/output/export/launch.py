"""The command that starts a job's processes on one node."""

from __future__ import annotations

from provision.output.export.deployment import Deployment

_PYTHONS = frozenset({"python", "python3"})


def needs_launcher(one: Deployment) -> bool:
    """Whether the command runs once for each GPU. PyTorch has a process for each, which torchrun
    starts; JAX and TensorFlow use all GPUs of a node from one process.
    """
    many = one.nodes > 1 or (one.gpus or 1) > 1
    return many and one.framework == "pytorch" and one.command[0] != "torchrun"


def torchrun(one: Deployment, *meeting: str) -> list[str]:
    """torchrun with the words that say where the processes meet, up to the user's own words.

    It runs a script or a module with its own Python, and other programs with --no-python:
    https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    program, *rest = one.command
    words = ["torchrun", f"--nnodes={one.nodes}", f"--nproc-per-node={one.gpus or 'gpu'}", *meeting]
    if program in _PYTHONS and rest and (not rest[0].startswith("-") or rest[0] == "-m"):
        return [*words, *rest]
    return [*words, "--no-python", *one.command]


def on_one_node(one: Deployment) -> list[str]:
    """The words for a job that has only one node."""
    return torchrun(one, "--standalone") if needs_launcher(one) else list(one.command)
