"""Rules for the environment that an image gives its containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provision.catalog.catalog import Catalog
from provision.doctor.lint.dockerfile import Dockerfile, Instruction, Stage
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.images import cuda_base
from provision.doctor.lint.installs import pip_install
from provision.doctor.lint.setting import NO_GPUS
from provision.sources.packages import Position


def env_rules(file: Dockerfile, _: Catalog) -> Iterator[RuleHit]:
    told: set[tuple[str, int]] = set()
    for stage in file.shipped():
        for found in _of_stage(stage):
            key = (found.rule, found.at.line)
            if key not in told:
                told.add(key)
                yield found


def capabilities_without_compute(value: str) -> bool:
    """Whether NVIDIA_DRIVER_CAPABILITIES leaves CUDA's own library out of the container."""
    said = {word.strip() for word in value.split(",")}
    return bool(value) and not said & {"all", "compute", "graphics", "display"}


def _of_stage(stage: Stage) -> Iterator[RuleHit]:
    environment = stage.environment()
    if is_for_cuda(stage):
        yield from _gpu_switches(environment)
    value, instruction = environment.get("LD_LIBRARY_PATH", (None, None))
    if value and instruction:
        yield from _library_path(
            value, instruction, is_cuda=cuda_base(stage.root_image) is not None
        )


def is_for_cuda(stage: Stage) -> bool:
    """Whether CUDA programs run in it: an image with only the driver's tools does not need both."""
    frameworks = frozenset(table("known.toml")["python"]["frameworks"])
    installs = [pip_install(command) for command in stage.all_commands()]
    return cuda_base(stage.root_image) is not None or any(
        package.name in frameworks for one in installs if one for package in one.packages
    )


def _gpu_switches(
    environment: Mapping[str, tuple[str | None, Instruction]],
) -> Iterator[RuleHit]:
    value, instruction = environment.get("NVIDIA_DRIVER_CAPABILITIES", (None, None))
    if (
        value is not None
        and instruction
        and "$" not in value
        and capabilities_without_compute(value)
    ):
        yield RuleHit(
            rule="capabilities-without-compute",
            at=_place(instruction, "NVIDIA_DRIVER_CAPABILITIES"),
            message=f"With NVIDIA_DRIVER_CAPABILITIES={value} the driver's libcuda.so.1 is not "
            "mounted, and no CUDA program finds a GPU.",
            fix="Add compute: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    value, instruction = environment.get("NVIDIA_VISIBLE_DEVICES", (None, None))
    if value in NO_GPUS and instruction:
        yield RuleHit(
            rule="visible-devices-none",
            at=_place(instruction, "NVIDIA_VISIBLE_DEVICES"),
            message=f"NVIDIA_VISIBLE_DEVICES={value} takes all GPUs from the containers of this "
            "image that are started with the nvidia runtime.",
            fix="Leave it out, or write NVIDIA_VISIBLE_DEVICES=all",
        )


def _library_path(value: str, instruction: Instruction, *, is_cuda: bool) -> Iterator[RuleHit]:
    at = _place(instruction, "LD_LIBRARY_PATH")
    parts = [part.rstrip("/") for part in value.split(":")]
    if any(part.endswith("/stubs") and "cuda" in part for part in parts):
        yield RuleHit(
            rule="library-path-stubs",
            at=at,
            message="LD_LIBRARY_PATH holds the stubs of the toolkit: programs can load the stub "
            "of libcuda in the place of the driver's.",
            fix="Name the stubs in LIBRARY_PATH, which is for linking only.",
        )
    if any(part.endswith("/compat") and "cuda" in part for part in parts):
        yield RuleHit(
            rule="library-path-compat",
            at=at,
            message="LD_LIBRARY_PATH always takes the forward compatibility libraries: they work "
            "on data-centre GPUs only, and on a newer driver they are older than its own.",
            fix="Leave it out: the container toolkit adds it where it helps."
            if is_cuda
            else "Leave it out.",
        )


def _place(instruction: Instruction, name: str) -> Position:
    offset = instruction.text.text.find(name)
    return instruction.text.at(max(offset, 0))
