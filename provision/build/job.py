"""`provision build`: the whole job, step by step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from images.engines.docker import Docker
from images.system.scratch import scratch_directory
from provision.build.account import account, dry_run
from provision.build.base import (
    BuildSettings,
    PlanInputs,
    base_from_lock,
    pin_base,
    pinned,
    refuse_missing_places,
    require_plan,
)
from provision.build.builder import (
    BuildEngine,
    choose_builder,
    find_engine,
    maker_for,
    needs_engine,
)
from provision.build.cut import LICENCE, refuse_without_code
from provision.build.destination import check_writer
from provision.build.documents import (
    BuildDone,
    OneImage,
    keep_documents,
    refuse_documents,
    signer_for,
)
from provision.build.maker import LockedImage
from provision.build.next_commands import made_in_short
from provision.build.packages import PackageChoice
from provision.build.pipeline import (
    choose_packages,
    default_tag,
    gigabytes,
    lock_for,
    show_remarks,
    show_warnings,
)
from provision.build.project.import_check import check_imports
from provision.build.project.pins import check_hashes, naming_pins
from provision.build.source.source_wheels import with_built_wheels
from provision.build.trial import (
    keep_unfit,
    keep_verdict,
    kept_if_untested,
    known_verdict,
    not_verified,
    runs_here,
    test,
    test_scope,
    withheld,
)
from provision.build.work import BuildJob, FinishedImage
from provision.errors import BadInputError, Exit
from provision.host import in_short
from provision.lock.labels import targets_of
from provision.lock.lockfile import Lock, read_lock_file, refuse_unlocked, write_lock
from provision.model.plan import RUNS, HostFacts, Plan
from provision.output.console import Console
from provision.resolve import resolve
from provision.resolve.run_time import plan_for_needs, requested_needs, with_remarks
from provision.verification.suite import (
    check_names,
    gpu_runtime_warning,
)

_PINNING = "pinning the base image"


def build(
    job: BuildJob,
    *,
    hosts: Callable[[], Sequence[HostFacts]],
    facts: Callable[[], HostFacts],
    console: Console,
) -> tuple[dict[str, Any], int]:
    """Run the whole job. Returns the account (the JSON of the command) and the exit code.

    `hosts` are those the plan is for; `facts` are this machine's, where the suite runs. Failures
    are raised as `Failure`; the exit code is 0, or 1 if a check failed in the image that was built.
    """
    started = datetime.now(timezone.utc)
    if job.making.cut:
        console.warn(LICENCE, "Without --cut no file of a package is changed.")
    if not job.dry_run:
        check_writer(job.destination)
    locks = _read_locks(job.locks, console)
    if locks:
        refuse_unlocked(job.request.companions, locks)
    refuse_documents(job.documenting, len(locks))
    check_names(job.suite, locks[0].plan.framework if locks else job.request.framework)
    planned = None
    engine = cache(lambda: find_engine(job))
    if locks:
        plans = [lock.plan for lock in locks]
        _refuse_twins(plans)
        refuse_without_code(plans, job.making.cut, job.catalog)
    else:
        planned = plan_image(job, hosts, console, engine=lambda: engine().engine)
        plans = [planned.plan]
    for note in job.code.notes if job.code else ():
        console.note(note)
    found = engine()
    tag = job.tag or default_tag(plans[0], job.code.program.name if job.code else None)
    if job.dry_run:
        choice, _ = choose_builder(job, found, plans)
        return dry_run(plans[0], tag, choice, job), Exit.DONE
    here = facts()
    if job.verify and (warning := gpu_runtime_warning(here)):
        show_warnings([warning], console)
    if planned is None:
        images = _bases_of(locks, job, found, console)
    else:
        images = [lock_image(planned, job, found, console)]
    if job.code is not None:
        of_wheels = [image.lock for image in images]
        check_imports(job.code, of_wheels, job.without, job.settings, console)
    known = None if job.again else known_verdict(job.documenting.home, images)
    if known is not None:
        console.note(f"not tested again: an image with these packages was tested here ({known})")
        job = replace(job, verify=False)
    choice, found = choose_builder(job, found, [image.plan for image in images])
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory())
        maker = stack.enter_context(maker_for(job, choice, tag, found, console))
        with console.step("build", f"{tag} ({choice.builder})", named=True):
            console.progress(choice.why)
            built = []
            for number, image in enumerate(images):
                path = scratch / str(number) / "pylock.toml"  # its name in the image, too
                path.parent.mkdir()
                write_lock(image.lock, path)
                one = FinishedImage(lock=image.lock, path=path, produced=maker.make(image, path))
                built.append(one)
                console.result(made_in_short(one.produced))
        kept = [_keep_lock(one.path, tag, one.plan, job.settings) for one in built]
        with kept_if_untested(maker, built, console):
            reports, notes = test(job, maker, built, here, console)
        images_made = tuple(one.produced for one in built)
        unfit = any(report["verdict"] == "unfit" for report in reports)
        keep_verdict(job.documenting.home, built, reports, here, known)
        failed = keep_unfit(maker, images_made, console) if unfit else None
        whole = images_made[0] if unfit else maker.publish(images_made)
        documents: dict[str, object] = {}
        signer = None if unfit else signer_for(job.documenting, console)
        if signer is not None:
            done = BuildDone(
                name=choice.destination.where if choice.destination.kind == "registry" else tag,
                choice=choice,
                place=maker.place,
                images=_images(built, kept),
                whole=whole.manifest,
                started=started,
                request=None if locks else job.request,
                options=_options(job),
            )
            documents = keep_documents(done, job.documenting, signer, job.settings, console)
        told = account(
            built[0].plan,
            built,
            tag=tag if not unfit else failed.tag if failed else None,
            choice=replace(choice, destination=failed.destination) if failed else choice,
            place=maker.place,
            image=whole,
            withheld=withheld(choice, tag, reports) if unfit else None,
            kept=kept,
            documents=documents,
            console=console,
            reports=reports,
            notes=notes,
            not_verified=not_verified(job, built, here),
            scope=test_scope(job, built, here) if reports else None,
            code=job.code,
            elsewhere=not any(runs_here(one.plan, here) for one in built),
        )
    return told, Exit.UNFIT if unfit else Exit.DONE


def _refuse_twins(plans: Sequence[Plan]) -> None:
    """An index has only one image per platform."""
    arches = [plan.arch for plan in plans]
    if len(set(arches)) < len(arches):
        raise BadInputError(
            f"Two of the locks are for {next(a for a in arches if arches.count(a) > 1)}; an index "
            "has one image for each platform.",
            fix="Give --lock once for each architecture.",
        )


def _read_locks(paths: Sequence[Path], console: Console) -> list[Lock]:
    """The locks to build; shows what each is of."""
    locks = [read_lock_file(path) for path in paths]
    for path, lock in zip(paths, locks, strict=True):
        with console.step("lock", str(path)):
            base = f" on {lock.plan.base.reference}" if lock.plan.base else ""
            size = f"{len(lock.wheels)} packages, {gigabytes(lock.download_bytes)}"
            console.result(f"{lock.plan.title} ({lock.plan.arch}){base}, {size}")
    return locks


def _bases_of(
    locks: Sequence[Lock], job: BuildJob, found: BuildEngine, console: Console
) -> list[LockedImage]:
    """The images of given locks, each with the base that its lock pins."""
    images = []
    with console.step("base", _PINNING):
        for lock in locks:
            by_engine = job.builder == "docker" or needs_engine(lock.plan) is not None
            engine = found.engine if by_engine else None
            base = base_from_lock(lock.plan, engine, job.settings, console)
            console.result(base.reference)
            whole = with_built_wheels(lock, job.request.places, job.settings, console)
            images.append(LockedImage(lock=whole, base=base))
    return images


class PlannedImage(NamedTuple):
    """The plan of a job without a lock, and its packages, which know what it was planned from."""

    plan: Plan
    packages: PackageChoice


def plan_image(
    job: BuildJob,
    hosts: Callable[[], Sequence[HostFacts]],
    console: Console,
    *,
    engine: Callable[[], Docker | None] = lambda: None,
) -> PlannedImage:
    """The plan of a job without a lock, with what its packages need. `engine` may have the base."""
    refuse_missing_places(job.request.base, job.making.cache_from)
    with console.step("detect", "reading the host"):
        planned_for = hosts()
        console.result("; ".join(dict.fromkeys(map(in_short, planned_for))))
    with naming_pins(job.project, planned_for, job.request, job.catalog):
        with console.step("plan", "finding a compatible combination"):
            plan = require_plan(resolve(planned_for, job.request, job.catalog))
            console.result(f"{plan.title}: {RUNS[plan.verdict]}")
        inputs = PlanInputs(planned_for, job.request, job.catalog, job.settings, console)
        packages = PackageChoice(inputs)
        if job.dry_run:
            needs = requested_needs(job.request)
            request, plan = plan_for_needs(planned_for, job.request, job.catalog, needs)
            plan = with_remarks(plan, planned_for, request, job.catalog, needs)
        else:
            plan, packages = choose_packages(plan, inputs, engine)
    show_remarks(plan, console)
    return PlannedImage(plan, packages)


def lock_image(
    planned: PlannedImage, job: BuildJob, found: BuildEngine, console: Console
) -> LockedImage:
    """The image of a plan: pin its base, choose its wheels."""
    packages, inputs = planned.packages, planned.packages.inputs
    with naming_pins(job.project, inputs.hosts, job.request, job.catalog):
        with console.step("base", _PINNING):
            plan, archive = pin_base(
                planned.plan, inputs, found.engine, packages.choose_on_bootstrap
            )
            base = pinned(plan, archive)
            console.result(base.reference)
        with console.step("lock", "resolving the wheels"):
            lock = lock_for(plan, packages)
        check_hashes(job.project, lock)
    return LockedImage(lock=lock, base=base)


def _images(built: Sequence[FinishedImage], kept: Sequence[Path | None]) -> list[OneImage]:
    return [
        OneImage(
            lock=one.lock,
            image_id=one.produced.image_id,
            manifest=one.produced.manifest,
            kept_lock=path,
            cut=one.produced.cut,
        )
        for one, path in zip(built, kept, strict=True)
    ]


def _options(job: BuildJob) -> dict[str, object]:
    """The user's build options, as far as they affect the image, and a digest of its project."""
    return {
        "bytecode": job.making.bytecode,
        **({"compression": "zstd"} if job.making.compression == "zstd" else {}),
        **({"cut": targets_of(job.making.cut)} if job.making.cut else {}),
        **({"lazy": job.making.lazy} if job.making.lazy else {}),
        "exclude-unneeded": job.making.exclude_unneeded,
        **({"project-sha256": job.code.digest} if job.code else {}),
    }


def _keep_lock(path: Path, tag: str, plan: Plan, settings: BuildSettings) -> Path | None:
    """A copy for `build --lock`; a failure to keep it does not fail the build."""
    name = "".join(c if c.isalnum() else "-" for c in tag)
    other = "" if plan.arch in {None, "x86_64"} else f"-{plan.arch}"
    kept = settings.state / "locks" / f"pylock.{name}{other}.toml"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    except OSError:
        return None
    return kept
