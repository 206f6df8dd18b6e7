"""`provision build`: the whole job, and the account of it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from images.scratch import scratch_directory
from provision.build.destination import Choice, Destination, EngineState, choose
from provision.build.documents import (
    BuildDone,
    Documenting,
    OneImage,
    keep_documents,
    refuse_documents,
    signer_for,
)
from provision.build.maker import Made, Maker
from provision.build.pipeline import (
    PinnedBase,
    Settings,
    apt_packages,
    base_from_lock,
    builder_here,
    default_tag,
    dry_run_argv,
    lock_for,
    pin_base,
    pinned,
    refuse_missing_places,
    require_plan,
    show_remarks,
    show_warnings,
)
from provision.build.words import made_in_short, next_words
from provision.catalog import Catalog
from provision.errors import BadInputError, Exit
from provision.host import in_short
from provision.lock.lockfile import Lock, read_lock_file, write_lock
from provision.model.plan import TITLES, HostFacts, Plan, Request
from provision.model.planfile import plan_to_json
from provision.output.console import Console
from provision.resolve import resolve
from provision.verification.suite import (
    Asked,
    check_names,
    gpu_runtime_warning,
    gpus_to_request,
    proven,
    run_suite,
)

if TYPE_CHECKING:
    from images.buildkit import Builder
    from images.runner import DockerRunner
    from provision.build.wheels import Making


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One build: of what, by whom, for where, and what is asked of it.

    `locks` are the files that decide instead of the request: several make one index of platforms.
    `images` is the layout of this user's own images.
    """

    request: Request
    catalog: Catalog
    settings: Settings
    asked: Asked
    making: Making
    images: Path
    documenting: Documenting
    locks: tuple[Path, ...] = ()
    tag: str | None = None
    builder: str = "auto"
    destination: Destination | None = None
    verify: bool = True
    dry_run: bool = False


@dataclass(slots=True)
class _Engine:
    """The engine of this machine, if one answers, and what drives BuildKit."""

    engine: DockerRunner | None = None
    builder: Builder | None = None
    problem: Failure | None = None

    @property
    def state(self) -> EngineState:
        return EngineState(
            answers=self.engine is not None,
            problem=self.problem.message if self.problem else None,
        )


@dataclass(slots=True, kw_only=True)
class _Work:
    """What is known by now of one image: grows from step to step."""

    plan: Plan
    base: PinnedBase | None = None
    lock: Lock | None = None
    path: Path = field(default_factory=Path)
    made: Made | None = None


def build(
    job: Job,
    *,
    hosts: Callable[[], Sequence[HostFacts]],
    facts: Callable[[], HostFacts],
    console: Console,
) -> tuple[dict[str, Any], int]:
    """Do it. Gives the account (the JSON of the command) and the exit code.

    `hosts` are those the plan is for; `facts` are this machine's, where the suite runs. Failures
    come as `Failure`; the exit code is 0, or 1 when a check failed in the image that was built.
    """
    started = datetime.now(timezone.utc)
    locks = [read_lock_file(path) for path in job.locks]
    refuse_documents(job.documenting, len(locks))
    check_names(job.asked, locks[0].plan.framework if locks else job.request.framework)
    planned_for: Sequence[HostFacts] = ()
    if locks:
        works = [_Work(plan=lock.plan, lock=lock) for lock in locks]
        _refuse_twins(works)
    else:
        refuse_missing_places(job.request.base, job.making.cache_from)
        with console.step("detect", "reading the host"):
            planned_for = hosts()
            console.result("; ".join(dict.fromkeys(map(in_short, planned_for))))
        with console.step("plan", "deciding"):
            plan = require_plan(resolve(planned_for, job.request, job.catalog))
            console.result(_in_words(plan))
        show_remarks(plan, console)
        works = [_Work(plan=plan)]
    tag = job.tag or default_tag(works[0].plan)
    found = _find_engine(job)
    if job.dry_run:
        choice = _choose(job, found, works)
        return _dry_run(works[0].plan, tag, choice, job), Exit.DONE
    here = facts()
    if job.verify and (warning := gpu_runtime_warning(here)):
        show_warnings([warning], console)
    with console.step("base", "pinning the base image"):
        for work in works:
            _pin(work, planned_for, job, found, console)
    if not locks:
        with console.step("lock", "choosing the wheels"):
            works[0].lock = lock_for(
                works[0].plan, planned_for, job.request, job.catalog, job.settings, console
            )
    choice = _choose(job, found, works)
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory())
        maker = stack.enter_context(_maker(job, choice, tag, works, found, console))
        with console.step("build", f"{tag} ({choice.builder})", named=True):
            console.progress(choice.why)
            for number, work in enumerate(works):
                assert work.lock is not None
                work.path = scratch / str(number) / "pylock.toml"  # its name in the image, too
                work.path.parent.mkdir()
                write_lock(work.lock, work.path)
                work.made = maker.make(work.lock, work.path)
                console.result(made_in_short(work.made))
        kept = [_keep_lock(work.path, tag, work.plan, job.settings) for work in works]
        report, notes, shell = _verify(job, maker, works, here, console)
        unfit = report is not None and report["verdict"] == "unfit"
        made = tuple(work.made for work in works if work.made)
        image = made[0] if unfit else maker.publish(made)
        documents: dict[str, object] = {}
        signer = None if unfit else signer_for(job.documenting, console)
        if signer is not None:
            done = BuildDone(
                name=choice.destination.where if choice.destination.kind == "registry" else tag,
                choice=choice,
                place=maker.place,
                images=_images(works, kept),
                whole=image.manifest,
                started=started,
                request=None if locks else job.request,
                options=_options(job),
            )
            documents = keep_documents(done, job.documenting, signer, job.settings, console)
        account = _account(
            works,
            tag=None if unfit else tag,
            choice=choice,
            place=maker.place,
            image=image,
            kept=kept,
            documents=documents,
            console=console,
            report=report,
            notes=notes,
            shell=shell,
            not_verified=_not_verified(job, works, here),
            gpus=gpus_to_request(here),
            elsewhere=not any(_runs_here(work.plan, here) for work in works),
        )
    return account, Exit.UNFIT if unfit else Exit.DONE


def _refuse_twins(works: Sequence[_Work]) -> None:
    """An index has one image a platform."""
    arches = [work.plan.arch for work in works]
    if len(set(arches)) < len(arches):
        raise BadInputError(
            f"Two of the locks are for {next(a for a in arches if arches.count(a) > 1)}; an index "
            "has one image for each platform.",
            fix="Give --lock once for each architecture.",
        )


def _find_engine(job: Job) -> _Engine:
    """Look for an engine where it may be needed; not for a file or a registry."""
    if job.builder != "docker" and job.destination is not None:
        return _Engine()
    return _connect(job)


def _connect(job: Job) -> _Engine:
    from images.engine_setup import fix_text
    from images.runner import DockerRunner

    found = _Engine()
    try:
        engine = DockerRunner.connect(fix=fix_text())
        assert isinstance(engine, DockerRunner)
        found.engine = engine
        found.builder = builder_here(job.settings.env)
    except Failure as failure:
        if job.builder == "docker" and not job.dry_run:
            raise
        found.problem = failure
    return found


def _choose(job: Job, found: _Engine, works: Sequence[_Work]) -> Choice:
    needs = next((reason for work in works if (reason := _needs_engine(work.plan))), None)
    asked, why = job.builder, None
    if any(work.plan.base and work.plan.base.kind == "local" for work in works):
        if asked == "docker":
            raise BadInputError(
                "An engine builds on images of its own or of a registry, and --base names a place "
                "on this machine.",
                fix="Use --builder oci, or load the base (docker load) and name it by its tag.",
            )
        asked, why = "oci", "the base lies on this machine"
    choice = choose(asked, job.destination, engine=found.state, needs_engine=needs)
    choice = replace(choice, why=why or choice.why)
    if choice.builder == "docker" and len(works) > 1:
        raise BadInputError(
            f"Several locks make an index, which an engine does not ({choice.why}).",
            fix="Name a place that needs none: --push REF, or --output DIR",
        )
    if choice.builder == "docker" and found.engine is None:
        again = _connect(job)
        found.engine, found.builder, found.problem = again.engine, again.builder, again.problem
        if found.problem is not None and not job.dry_run:
            raise found.problem
    return choice


def _needs_engine(plan: Plan) -> str | None:
    if packages := apt_packages(plan):
        base = plan.base.reference if plan.base else "the base"
        return f"{base} has to get {packages[0]} by apt-get"
    return None


def _pin(
    work: _Work, planned_for: Sequence[HostFacts], job: Job, found: _Engine, console: Console
) -> None:
    if work.lock is None:
        work.plan, archive = pin_base(
            work.plan, planned_for, job.request, job.catalog, job.settings, console, found.engine
        )
        work.base = pinned(work.plan, archive)
    else:
        by_engine = job.builder == "docker" or _needs_engine(work.plan) is not None
        engine = found.engine if by_engine else None
        work.base = base_from_lock(work.plan, engine, job.settings, console)
    console.result(work.base.reference)


def _maker(
    job: Job, choice: Choice, tag: str, works: Sequence[_Work], found: _Engine, console: Console
) -> Any:  # noqa: ANN401  either maker is a context manager of itself
    bases = [work.base for work in works if work.base is not None]
    if choice.builder == "docker":
        from provision.build.engine import EngineMaker

        assert found.engine is not None
        assert found.builder is not None
        return EngineMaker(
            found.engine,
            found.builder,
            choice=choice,
            tag=tag,
            base=bases[0],
            request=job.request,
            settings=job.settings,
            console=console,
        )
    from provision.build.wheels import WheelMaker

    return WheelMaker(
        choice=choice,
        tag=tag,
        bases=bases,
        request=job.request,
        making=job.making,
        images=job.images,
        engine=found.engine,
        settings=job.settings,
        console=console,
    )


def _verify(
    job: Job, maker: Maker, works: Sequence[_Work], here: HostFacts, console: Console
) -> tuple[dict[str, Any] | None, tuple[str, ...], str | None]:
    """Run the suite in the image that is for this machine, if one is. Gives the report, what could
    not be granted, and how to get into the image where no engine has it.
    """
    from images.sandbox.run import Sandbox

    work = next((work for work in works if _runs_here(work.plan, here)), None)
    if not job.verify or work is None or work.made is None:
        return None, (), None
    gpus = gpus_to_request(here)
    with (
        console.step("verify", f"inside the image, at level {job.asked.level}"),
        maker.ready(work.made) as ready,
    ):
        report, notes = run_suite(
            ready.runner,
            ready.handle,
            work.plan,
            here,
            job.asked,
            image_id=work.made.image_id,
            gpus=gpus,
            catalog=job.catalog,
            console=console,
        )
        unpacked = isinstance(ready.runner, Sandbox)
        shell = ready.runner.shell_command(ready.handle, gpus=gpus, notes=notes)
    return report, notes, shell if unpacked else None


def _images(works: Sequence[_Work], kept: Sequence[Path | None]) -> list[OneImage]:
    return [
        OneImage(
            lock=work.lock,
            image_id=work.made.image_id,
            manifest=work.made.manifest,
            kept_lock=path,
        )
        for work, path in zip(works, kept, strict=True)
        if work.lock is not None and work.made is not None
    ]


def _options(job: Job) -> dict[str, object]:
    """What the user chose of how it was built, as far as it shows in the image."""
    return {"bytecode": job.making.bytecode, "exclude-unneeded": job.making.exclude_unneeded}


def _runs_here(plan: Plan, here: HostFacts) -> bool:
    machine = here.arch or os.uname().machine
    return plan.arch in {None, machine}


def _not_verified(job: Job, works: Sequence[_Work], here: HostFacts) -> str | None:
    if not job.verify:
        return "--no-verify"
    others = [str(work.plan.arch) for work in works if not _runs_here(work.plan, here)]
    return f"for {', '.join(others)}, which this machine is not" if others else None


def _keep_lock(path: Path, tag: str, plan: Plan, settings: Settings) -> Path | None:
    """A copy for `build --lock`; failing to keep it is no reason to fail the build."""
    name = "".join(c if c.isalnum() else "-" for c in tag)
    other = "" if plan.arch in {None, "x86_64"} else f"-{plan.arch}"
    kept = settings.state / "locks" / f"pylock.{name}{other}.toml"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    except OSError:
        return None
    return kept


def _in_words(plan: Plan) -> str:
    return (
        f"{TITLES[plan.framework]} {plan.framework_version} for CUDA {plan.cuda}, "
        f"Python {plan.python}: {plan.verdict}"
    )


def _dry_run(plan: Plan, tag: str, choice: Choice, job: Job) -> dict[str, Any]:
    """What would be done, and by which command where one would be run."""
    where = choice.destination.where or (
        str(job.images) if choice.destination.kind == "local" else choice.destination.kind
    )
    told = (
        shlex.join(dry_run_argv(plan, job.settings.env))
        if choice.builder == "docker"
        else f"nothing is run: {tag} is written to {where} from wheels ({choice.why})"
    )
    return {
        **_account([_Work(plan=plan)], tag=tag, choice=choice, place=where),
        "command": told,
    }


def _account(
    works: Sequence[_Work],
    *,
    tag: str | None,
    choice: Choice,
    place: str,
    image: Made | None = None,
    kept: Sequence[Path | None] = (),
    documents: Mapping[str, object] | None = None,
    console: Console | None = None,
    report: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
    shell: str | None = None,
    not_verified: str | None = None,
    gpus: str = "none",
    elsewhere: bool = False,
) -> dict[str, Any]:
    """`elsewhere`: the image is for another processor than this machine's."""
    gpus = "runtime" if elsewhere else gpus
    passed, missing = proven(report) if report else ([], [])
    name = tag or (image.image_id if image else "IMAGE")
    lock = works[0].lock
    digest = image.manifest.digest if image and image.manifest else image and image.image_id
    return {
        "schema": 1,
        "builder": {"name": choice.builder, "why": choice.why},
        "image": {
            "tag": tag,
            "digest": digest,
            "image_id": image.image_id if image else None,
            "size_bytes": image.size_bytes if image else None,
            "destination": choice.destination.kind,
            "place": place,
            "layers": list(image.layers) if image else [],
            "platforms": [
                {"platform": str(made.manifest.platform), "digest": made.manifest.digest}
                for work in works
                if (made := work.made) and made.manifest
            ],
        },
        "plan": plan_to_json(works[0].plan),
        "lock": {
            "path": str(kept[0]) if kept and kept[0] else None,
            "sha256": lock.sha256,
            "packages": len(lock.wheels),
            "download_bytes": lock.download_bytes,
        }
        if lock and image
        else None,
        "documents": {"sbom": None, "provenance": None, "attached": False, **(documents or {})},
        "steps": [
            {"name": step.name, "seconds": round(step.seconds, 1)}
            for step in (console.steps if console else ())
        ],
        "verify": report,
        "not_verified": not_verified,
        "proven": passed,
        "not_proven": missing,
        "notes": list(notes),
        "next": shell or next_words(choice.destination, place, name, gpus=gpus, notes=notes),
        "next_on_gpu_host": next_words(choice.destination, place, name, gpus="runtime", notes=())
        if gpus == "none"
        else None,
        "next_on_arch": works[0].plan.arch if elsewhere else None,
        "command": None,
        "error": None,
    }
