"""The base that packages without compiled parts are built on: one that runs on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable

from images.assembly.opening import open_image
from images.errors import Failure
from images.oci.archive_reader import open_archive
from images.oci.model import host_platform, platform_of
from images.oci.sources import Image
from images.store.store import Store
from provision.build.base import BuildSettings, base_from_lock, has_python, make_bootstrap
from provision.errors import Exit
from provision.model.plan import Plan
from provision.output.console import Console


class NoBuildBaseError(Failure):
    """No base has a Python that could build a package here."""

    code = "no-build-base"
    exit_code = Exit.BUILD_FAILED

    def __init__(self, python: str) -> None:
        super().__init__(
            f"A package must be built from its source, and no base with Python {python} is known.",
            fix="Use a base that has Python: --base bootstrap",
        )


def base_with_python(
    plans: Iterable[Plan], python: str, settings: BuildSettings, console: Console, store: Store
) -> tuple[Plan, Image]:
    """The first base of these plans that runs on this machine and has a Python, and its plan.
    NoBuildBaseError: none has; else the failure of the last one.
    """
    failed: Failure | None = None
    for plan in plans:
        if plan.error is not None or plan.base is None or not has_python(plan):
            continue
        try:
            local = _here(plan)
            assert local.base is not None
            if local.base.kind == "bootstrap" and local.base.digest is None:
                runtime = local._replace(flavour="runtime")
                _, archive = make_bootstrap(runtime, settings, console)
                return plan, open_archive(archive, None, host_platform())
            base = base_from_lock(local, None, settings, console)
            if base.archive is not None:
                return plan, open_archive(base.archive, None, host_platform())
            return plan, open_image(
                base.reference,
                platform=host_platform(),
                store=store,
                ca_bundle=settings.ca,
                offline=settings.offline,
                on_wait=console.note,
            )
        except Failure as failure:
            console.progress(failure.message)
            failed = failure
    raise failed or NoBuildBaseError(python)


def _here(plan: Plan) -> Plan:
    """The plan for this machine: a wheel for any machine is built on this one."""
    if host_platform() == platform_of(plan.arch or ""):
        return plan
    assert plan.base is not None
    return plan._replace(arch=os.uname().machine, base=plan.base._replace(digest=None))
