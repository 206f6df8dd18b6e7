"""Chooses the builder: the engine of this machine, if one answers and is needed, or the wheel
maker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from images.engines.buildkit import Builder
from images.engines.runner import DockerRunner
from images.engines.setup import fix_text
from images.errors import Failure
from provision.build.base import has_python
from provision.build.destination import Choice, EngineState, choose
from provision.build.engine import EngineMaker
from provision.build.pipeline import apt_packages, builder_here
from provision.build.wheels import WheelMaker
from provision.build.work import BuildJob
from provision.errors import BadInputError
from provision.model.plan import Plan
from provision.output.console import Console


@dataclass(frozen=True, slots=True)
class BuildEngine:
    """The engine of this machine, if one answers, the CLI that runs BuildKit on it, and the problem
    of either. An engine without BuildKit still runs images.
    """

    engine: DockerRunner | None = None
    builder: Builder | None = None
    problem: Failure | None = None

    @property
    def state(self) -> EngineState:
        """What the choice of a builder needs to know about it."""
        return EngineState(
            answers=self.engine is not None,
            problem=self.problem.message if self.problem else None,
        )


def find_engine(job: BuildJob) -> BuildEngine:
    """Look for an engine if it may be needed; not for a file or a registry."""
    if job.builder != "docker" and job.destination is not None:
        return BuildEngine()
    return _connect(job)


def _connect(job: BuildJob) -> BuildEngine:
    engine = None
    try:
        engine = DockerRunner.connect(fix=fix_text())
        return BuildEngine(engine, builder_here(job.settings.env))
    except Failure as failure:
        if job.builder == "docker" and not job.dry_run:
            raise
        return BuildEngine(engine, problem=failure)


def choose_builder(
    job: BuildJob, found: BuildEngine, plans: Sequence[Plan]
) -> tuple[Choice, BuildEngine]:
    """Builder and destination of a build, and the engine, which is looked for now if it turns out
    to be needed only now.
    """
    needs = next((reason for plan in plans if (reason := needs_engine(plan))), None)
    asked, why = job.builder, None
    if any(plan.base and plan.base.kind == "local" for plan in plans):
        if asked == "docker":
            raise BadInputError(
                "An engine builds only on its own images or a registry's; --base names a place "
                "on this machine.",
                fix="Use --builder oci, or load the base (docker load) and name it by its tag.",
            )
        asked, why = "oci", "the base is on this machine"
    if job.making.cut:
        asked, why = "oci", "--cut changes libraries, which an engine does not"
    if job.settings.unpacked is not None:
        asked, why = "oci", "an engine would need the network"
    choice = choose(asked, job.destination, engine=found.state, needs_engine=needs)
    choice = replace(choice, why=why or choice.why)
    if choice.builder == "docker" and (what := job.making.not_by_engine):
        raise BadInputError(
            f"An engine does not write {what}, and this image needs an engine ({choice.why}).",
            fix="Use a base that has Python: --base bootstrap",
        )
    if choice.builder == "docker" and len(plans) > 1:
        raise BadInputError(
            f"Several locks make an image index, which an engine cannot build ({choice.why}).",
            fix="Use a destination that needs no engine: --push REF, or --output DIR",
        )
    if choice.destination.kind == "squashfs" and len(plans) > 1:
        raise BadInputError(
            "Several locks make an image index, and a squashfs is one image.",
            fix="Build one file for each lock, or use --output DIR or --push REF.",
        )
    if choice.builder == "docker" and found.builder is None:
        found = _connect(job)
        if found.problem is not None and not job.dry_run:
            if any(plan.base and plan.base.apt and has_python(plan) for plan in plans):
                found.problem.message = (
                    f"{choice.why}, which an engine runs. {found.problem.message}"
                )
                found.problem.fix = f"Use --base bootstrap, which needs none. {found.problem.fix}"
            raise found.problem
    return choice, found


def needs_engine(plan: Plan) -> str | None:
    """Why an image cannot be made from wheels alone; None: it can."""
    if packages := apt_packages(plan):
        base = plan.base.reference if plan.base else "the base"
        return f"{base} needs {packages[0]} from apt-get"
    return None


def maker_for(job: BuildJob, choice: Choice, tag: str, found: BuildEngine, console: Console) -> Any:  # noqa: ANN401  either maker is a context manager of itself
    """The chosen maker, for all images of a build."""
    if choice.builder == "docker":
        assert found.engine is not None
        assert found.builder is not None
        return EngineMaker(
            found.engine,
            found.builder,
            choice=choice,
            tag=tag,
            request=job.request,
            code=job.code,
            settings=job.settings,
            console=console,
        )
    return WheelMaker(
        choice=choice,
        tag=tag,
        request=job.request,
        making=job.making,
        code=job.code,
        images=job.images,
        engine=found.engine,
        verify=job.verify,
        settings=job.settings,
        console=console,
    )
