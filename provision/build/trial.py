"""Tests an image that was built, and keeps one that failed under another name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from images.errors import Failure
from provision.attestation.record.store import last_verdict, write_verdict
from provision.build.destination import Choice
from provision.build.maker import KeptImage, LockedImage, MadeImage, Maker
from provision.build.work import BuildJob, FinishedImage
from provision.errors import Exit
from provision.host.gpu_request import gpus_to_request
from provision.lock.labels import targets_of
from provision.model.plan import TITLES, HostFacts, Plan
from provision.output.console import Console
from provision.resolve.packages import FRAMEWORKS, frameworks_in, seen_by
from provision.verification.cut import other_gpu
from provision.verification.scope import SuiteScope, scope_of
from provision.verification.suite import SuiteRequest, interruption, run_suite


def test(
    job: BuildJob, maker: Maker, built: Sequence[FinishedImage], here: HostFacts, console: Console
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Run the suite in the image for this machine, if there is one: for the plan's framework, then
    for others, as far as they say something here. Returns the reports, and what could not be
    granted.
    """
    image = next((one for one in built if runs_here(one.plan, here)), None)
    if not job.verify or image is None or other_gpu(job.making.cut, here, job.catalog):
        return [], ()
    gpus = gpus_to_request(here)
    scope = test_scope(job, built, here)
    what = f"at level {job.suite.level}" if scope is None else scope.words
    with (
        console.step("verify", f"inside the image, {what}"),
        maker.ready(image.produced) as ready,
    ):
        reports = []
        notes: tuple[str, ...] = ()
        for plan, request in _suites(image.plan, job.suite):
            console.progress(f"the suite for {TITLES[plan.framework]}")
            report, notes = run_suite(
                ready.runner,
                ready.handle,
                plan,
                here,
                request,
                image_id=image.produced.image_id,
                gpus=gpus,
                catalog=job.catalog,
                console=console,
                cut=job.making.cut,
                scope=scope,
            )
            if interruption(report):  # by another than this program, which ends without it
                raise KeyboardInterrupt
            reports.append(report)
    return reports, notes


def test_scope(job: BuildJob, built: Sequence[FinishedImage], here: HostFacts) -> SuiteScope | None:
    """How much is tested here; a level that the user named is tested whole."""
    image = next((one for one in built if runs_here(one.plan, here)), None)
    if image is None or job.suite.whole or not job.verify:
        return None
    return scope_of(image.plan, here, job.catalog)


def _suites(plan: Plan, request: SuiteRequest) -> Iterator[tuple[Plan, SuiteRequest]]:
    """What the suite is run for. Named checks are those of the plan's framework."""
    yield plan, request
    for name in () if request.only else frameworks_in(plan):
        yield seen_by(plan, FRAMEWORKS[name]), replace(request, require=())


@contextmanager
def kept_if_untested(
    maker: Maker, built: Sequence[FinishedImage], console: Console
) -> Iterator[None]:
    """An image that was announced has a name, also if it could not be tested."""
    try:
        yield
    except Failure as failure:
        state = "unfit" if failure.exit_code == Exit.UNFIT else "untested"
        with suppress(Failure):  # the reason why it was not tested matters more
            kept = maker.keep(tuple(one.produced for one in built), state)
            console.note(f"the image is kept, {state}, as {_place_of(kept)}")
        raise


def keep_unfit(maker: Maker, made: tuple[MadeImage, ...], console: Console) -> KeptImage | None:
    """Keep an image that failed; None: it could not be kept, which does not hide its report."""
    try:
        return maker.keep(made, "unfit")
    except Failure as failure:
        console.warn(f"The unfit image was not kept: {failure.message}", failure.fix)
        return None


def keep_verdict(
    home: Path,
    built: Sequence[FinishedImage],
    reports: Sequence[Mapping[str, Any]],
    here: HostFacts,
    known: str | None,
) -> None:
    """Keep the worst verdict of the image that was tested, for the list of images, and of its lock,
    for images that differ in the project's code alone. `known`: that of its packages, instead.
    """
    verdicts = {known, *(report["verdict"] for report in reports)}
    tested = next((one for one in built if runs_here(one.plan, here)), None)
    worst = next((one for one in ("unfit", "no-verdict", "fit") if one in verdicts), None)
    if tested is not None and worst is not None:
        write_verdict(home, tested.produced.image_id, worst)
        write_verdict(home, f"sha256:{tested.lock.sha256}", worst)


def known_verdict(home: Path, images: Sequence[LockedImage]) -> str | None:
    """The verdict of the last image of the same lock that was tested here; None: it was unfit, or
    none was tested.
    """
    (image,) = images if len(images) == 1 else (None,)
    found = None if image is None else last_verdict(home, f"sha256:{image.lock.sha256}")
    return None if found == "unfit" else found


def _place_of(kept: KeptImage) -> str:
    is_file = kept.destination.kind in {"archive", "squashfs"}
    return kept.destination.where if is_file else kept.tag


def withheld(
    choice: Choice, tag: str, reports: Sequence[Mapping[str, Any]]
) -> dict[str, str | None]:
    """The name that an unfit image did not get, and the first check that failed."""
    failed = (
        check["id"]
        for report in reports
        for check in report["checks"]
        if check["status"] in {"fail", "error"}
    )
    is_named_by_place = choice.destination.kind in {"registry", "archive", "squashfs"}
    return {
        "name": choice.destination.where if is_named_by_place else tag,
        "because": f"{next(failed, 'a check')} failed",
    }


def runs_here(plan: Plan, here: HostFacts) -> bool:
    machine = here.arch or os.uname().machine
    return plan.arch in {None, machine}


def not_verified(job: BuildJob, built: Sequence[FinishedImage], here: HostFacts) -> str | None:
    if not job.verify:
        return "--no-verify"
    if other := other_gpu(job.making.cut, here, job.catalog):
        kept = " and ".join(targets_of(job.making.cut))
        return f"it has GPU code for {kept} alone, and this machine has {other.name or 'another'}"
    others = [str(one.plan.arch) for one in built if not runs_here(one.plan, here)]
    return f"for {', '.join(others)}, which this machine is not" if others else None
