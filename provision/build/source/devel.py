"""The devel image of a plan: the same framework, CUDA, Python and base, with the compilers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from images.system.scratch import scratch_directory
from provision.build.base import PlanInputs, require_plan
from provision.build.builder import choose_builder, find_engine, maker_for
from provision.build.job import PlannedImage, lock_image
from provision.build.maker import LockedImage, RunnableImage
from provision.build.next_commands import made_in_short
from provision.build.packages import PackageChoice
from provision.build.pipeline import default_tag
from provision.build.source.refusal import devel_request, no_compiler
from provision.build.work import BuildJob
from provision.catalog.catalog import Catalog
from provision.lock.lockfile import write_lock
from provision.model.plan import HostFacts, Plan, Request
from provision.output.console import Console
from provision.resolve import resolve


def devel_plan(
    plan: Plan, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> tuple[Plan, Request]:
    """The plan of that image, and its request; on a base of Debian packages, if no registry's image
    has the plan's Python. NothingCompatibleError: neither has.
    """
    asked = devel_request(plan, request)
    found = resolve(hosts, asked, catalog)
    if found.error is not None and asked.base is None:
        instead = asked._replace(base="bootstrap")
        other = resolve(hosts, instead, catalog)
        if other.error is None:
            return other, instead
    if (lacks := no_compiler(plan, hosts, request, catalog)) is not None:
        found = found._replace(error=lacks)
    return require_plan(found), asked


@contextmanager
def devel_image(
    plan: Plan, hosts: Sequence[HostFacts], job: BuildJob, console: Console
) -> Iterator[tuple[LockedImage, RunnableImage]]:
    """The devel image of a plan, ready to run; it gets no name."""
    its_plan, asked = devel_plan(plan, hosts, job.request, job.catalog)
    job = replace(job, request=asked)
    found = find_engine(job)
    packages = PackageChoice(PlanInputs(hosts, asked, job.catalog, job.settings, console))
    image = lock_image(PlannedImage(its_plan, packages), job, found, console)
    choice, found = choose_builder(job, found, [image.plan])
    tag = default_tag(image.plan)
    with scratch_directory() as scratch, maker_for(job, choice, tag, found, console) as maker:
        with console.step("build", f"the devel image ({choice.builder})"):
            path = scratch / "pylock.toml"
            write_lock(image.lock, path)
            made = maker.make(image, path)
            console.result(made_in_short(made))
        with maker.ready(made) as ready:
            yield image, ready
