"""The main job: detect, plan, lock, base, build, verify; each step a function of the one before.

The image is tagged only after every check has passed; a failed build never moves a tag.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet

from images.engines.buildkit import Builder, ask, build_argv, find_builder
from images.engines.docker import Docker
from images.engines.spec import BuiltImage, ImageSpec
from images.errors import DiskFullError, Failure
from images.net.address import shown_url
from images.net.secrets import Secrets
from images.store.local import local_path
from provision.build.base import BuildSettings, PlanInputs, base_first, has_python, require_plan
from provision.build.packages import PackageChoice
from provision.build.source.refusal import far_behind, with_passed_over
from provision.build.source.source_wheels import with_built_wheels
from provision.build.source.substitute import (
    with_local_wheels,
)
from provision.catalog.needs import RunTimeNeed
from provision.errors import (
    IndexUnreachableError,
)
from provision.host.indexes import pip_index
from provision.host.uv import builtin_index
from provision.lock import network
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock, for_installer
from provision.lock.places import naming_silent, refuse_silent, with_silent_pages
from provision.lock.solve import NoSolutionError, ask_index, find_wheels, lock_of
from provision.lock.sources import passed_over
from provision.model.plan import RUNS, TITLES, Note, Plan, Request, Warned
from provision.output.console import Console
from provision.resolve import nearest_at, resolve
from provision.resolve.run_time import plan_for_needs, requested_needs, with_remarks
from provision.verification.suite import suite_directory
from provision.version import VERSION

# 2.33 GB of wheels made a layer of 4.5 GB (the cu117 set, measured); uv's cache holds them unpacked
# once more beside it.
_DISK_PER_DOWNLOADED_BYTE = 4
_THREADS = 4


def check_disk(lock: Lock, engine: Docker) -> None:
    """Refuse before the download a build that would fill the disk."""
    need = lock.download_bytes * _DISK_PER_DOWNLOADED_BYTE
    free = engine.free_bytes()
    if free is None or free >= need:
        return
    raise DiskFullError(
        f"The engine's disk has {gigabytes(free)} free; this build needs about "
        f"{gigabytes(need)} ({gigabytes(lock.download_bytes)} of wheels).",
        fix="Free space: docker builder prune, docker image prune, or move the engine's data-root.",
    )


def image_spec(
    lock: Lock, lock_path: Path, base: str, fetched: Mapping[str, Path] = MappingProxyType({})
) -> ImageSpec:
    """The specification for the builder. `fetched` are wheels that it cannot download, by their
    addresses in the lock.
    """
    return ImageSpec(
        base=base,
        lock=lock_path,
        labels=labels_for(lock, VERSION),
        apt_packages=apt_packages(lock.plan),
        nvcc_flags=nvcc_flags(lock.plan),
        wheels={
            **{wheel.url: path for wheel in lock.wheels if (path := local_path(wheel.url))},
            **fetched,
        },
        installed=for_installer(lock),
    )


def nvcc_flags(plan: Plan) -> str:
    """Some CUDA versions' packages have only the shared runtime; nvcc would link the static one."""
    wheels = plan.flavour == "devel" and plan.base is not None and plan.base.kind == "bootstrap"
    return "--cudart=shared" if wheels else ""


def apt_packages(plan: Plan) -> tuple[str, ...]:
    """What an engine installs in a base of a registry: Python in NVIDIA's images, which have none,
    and what the plan's packages need.
    """
    python = () if has_python(plan) else ("python3", "python3-venv", "python3-dev")
    asked = plan.base.apt if plan.base and plan.base.kind == "registry" else ()
    return tuple(dict.fromkeys((*python, *asked)))


def default_tag(plan: Plan, project: str | None = None) -> str:
    """gpu-provision:pytorch2.0.1-cu117, or with the name of a project."""
    flavour = "" if plan.flavour == "runtime" else f"-{plan.flavour}"
    cuda = plan.wheel_tag or f"cu{(plan.cuda or '').replace('.', '')}"
    return f"{project or 'gpu-provision'}:{plan.framework}{plan.framework_version}-{cuda}{flavour}"


def choose_packages(
    plan: Plan, inputs: PlanInputs, engine: Callable[[], Docker | None]
) -> tuple[Plan, PackageChoice]:
    """The plan for the packages of a request. Its base is decided first, since the packages are
    resolved for its Python.
    """
    request, settings = inputs.request, inputs.settings
    if not settings.offline:
        refuse_silent(request, settings.env)
        request = with_silent_pages(request, settings.ca)
    for one in request.indexes:
        if one.kind == "silent":
            said = f"{one.where}: {shown_url(one.url)} does not answer, and is left out."
            inputs.console.note(said)
    needs, inputs = requested_needs(request), inputs._replace(request=request)
    try:
        return _chosen(plan, inputs, engine, needs)
    except NoSolutionError:
        # the CUDA that the packages are compiled for may have no nvcc: then a warning says so
        others = [need for need in needs if need.kind != "nvcc"]
        if len(others) == len(needs) or request.flavour is not None:
            raise
        return _chosen(plan, inputs, engine, others)


def _chosen(
    plan: Plan,
    inputs: PlanInputs,
    engine: Callable[[], Docker | None],
    needs: Sequence[RunTimeNeed],
) -> tuple[Plan, PackageChoice]:
    """As `choose_packages`, for what the requested packages need when they run. NoSolutionError."""
    hosts, request, catalog, settings, _ = inputs
    if needs:
        request, plan = plan_for_needs(hosts, request, catalog, needs)
    inputs = inputs._replace(request=request)
    if PackageChoice(inputs).leads(plan) or request.settled:
        with ThreadPoolExecutor(_THREADS) as threads:
            threads.submit(pip_index, settings.env)  # what uv is asked with is known meanwhile
            threads.submit(builtin_index)
            for url in (one.url for one in plan.indexes if one.url and not settings.offline):
                threads.submit(network.no_such_host, url)
            plan, request = base_first(plan, inputs, engine)
    packages = PackageChoice(inputs._replace(request=request))
    with naming_silent(request):
        chosen = packages.choose(plan)
        needs = packages.run_time_needs()
        other = plan_for_needs(hosts, request, catalog, needs, chosen).request
        if other != request:  # what was requested brought packages that need more
            packages = PackageChoice(inputs._replace(request=other))
            chosen = packages.choose(require_plan(packages.inputs.plan()))
        return with_remarks(chosen, hosts, other, catalog, needs), packages


def lock_for(plan: Plan, packages: PackageChoice) -> Lock:
    """Make the lock, and report it with the packages that are old.

    If no index that has the build can be reached, PyPI's own build of a pinned release is taken if
    it runs; else the failure (IndexUnreachableError) names the build that the installer's default
    index has instead, if that one answers.
    """
    inputs = packages.inputs
    request, settings, console = inputs.request, inputs.settings, inputs.console
    packages.sources.for_plan(plan)
    try:
        found = find_wheels(
            plan,
            request,
            ca_bundle=settings.ca,
            offline=settings.offline,
            tell=console.progress,
            answers=settings.answers,
            sources=packages.sources,
        )
    except (IndexUnreachableError, NoSolutionError) as failure:
        if blocked := packages.sources.blocked:
            with naming_silent(request):
                raise packages.source_only(blocked, plan) from failure
        if (missing := packages.without_wheels()) is not None:
            with naming_silent(request):
                raise missing from failure
        if isinstance(failure, NoSolutionError):
            raise
        cudas = packages.same_cuda(plan)
        own = pypis_own(plan, inputs, cudas)
        if own is not None and not settings.offline:
            with suppress(IndexUnreachableError):
                return lock_for(own, packages)
        instead = within_reach(plan, inputs, cudas)
        if instead is None:
            raise
        rest = failure.fix[:1].lower() + failure.fix[1:]
        raise IndexUnreachableError(
            failure.message, fix=f"{instead} Else {rest}", detail=failure.detail, log=failure.log
        ) from failure
    if (passed := passed_over(found.text)) is not None:
        if far_behind(found, passed):
            raise packages.source_only(passed.packages, plan)
        found = with_passed_over(found, passed)
    judged = with_local_wheels(packages.judge(found))
    names = request.places.names
    lock = lock_of(judged, ca_bundle=settings.ca, offline=settings.offline, names=names)
    console.note(f"{lock.plan.reasons[-1].message}")
    console.result(f"{len(lock.wheels)} wheels, {gigabytes(lock.download_bytes)}")
    show_warnings([w for w in lock.plan.warnings if w not in plan.warnings], console)
    return with_built_wheels(lock, request.places, settings, console)


def pypis_own(plan: Plan, inputs: PlanInputs, cudas: Sequence[str]) -> Plan | None:
    """The plan for PyPI's own build of the same release, on the same base; for one of `cudas`, if
    the packages need one of these. None: the request does not pin the release or names a CUDA, the
    plan already has that build, or the hosts do not run it.
    """
    request = inputs.request
    pinned_here = request.framework_version == f"=={plan.framework_version}"
    if not pinned_here or request.cuda or any(one.url is None for one in plan.indexes):
        return None
    base = "bootstrap" if plan.base and plan.base.kind == "bootstrap" else request.base
    asked = request._replace(base=base, python=plan.python)
    own = resolve(inputs.hosts, asked, inputs.catalog, at="pypi")
    if own.error is not None or request.index_url is not None or (cudas and own.cuda not in cudas):
        return None
    note = Note(
        code="pypi-build",
        message=f"No index that has {TITLES[plan.framework]} {plan.framework_version} for CUDA "
        f"{plan.cuda} could be reached; PyPI has it for CUDA {own.cuda} ({RUNS[own.verdict]}).",
    )
    indexes = tuple(one for one in own.indexes if one.url is None)
    return own._replace(base=plan.base, indexes=indexes, notes=(*own.notes, note))


def within_reach(plan: Plan, inputs: PlanInputs, cudas: Sequence[str]) -> str | None:
    """The replacement for a build whose index is unreachable: the closest build on the default
    index, which is queried for it; for one of `cudas`, if the packages need one of these. None:
    nothing, or that index does not answer either.
    """
    request, settings = inputs.request, inputs.settings
    if settings.offline or any(candidate.url is None for candidate in plan.indexes):
        return None
    base = "bootstrap" if plan.base and plan.base.kind == "bootstrap" else request.base
    asked = [request._replace(base=base)]
    if cudas and request.cuda is None:
        asked = [asked[0]._replace(cuda=cuda, framework_version=None) for cuda in cudas]
    found = (nearest_at("pypi", inputs.hosts, one, inputs.catalog) for one in asked)
    fitting = (one for one in found if one and (not cudas or one.cuda in cudas))
    other = next((one for one in fitting if _is_declared(one, request)), None)
    default = next((c for c in other.indexes if c.url is None), None) if other else None
    if other is None or default is None:
        return None
    answer = ask_index(
        default,
        other,
        request,
        ca_bundle=settings.ca,
        offline=False,
        answers=settings.answers,
    )
    if answer.outcome != "locked":
        return None
    return (
        f"{default.name} answers and has {TITLES[other.framework]} {other.framework_version} for "
        f"CUDA {other.cuda}: --cuda {other.cuda} --framework-version {other.framework_version}."
    )


def _is_declared(plan: Plan, request: Request) -> bool:
    """Whether a project, if there is one, allows the release of the framework of a plan."""
    limits = (request.framework_version or "") if request.declared_in else ""
    return SpecifierSet(limits).contains(plan.framework_version or "", prereleases=True)


def secrets_for(lock: Lock, request: Request, settings: BuildSettings) -> Secrets:
    """The CA bundle, the logins for the hosts that the lock names, and the addresses of wheels with
    what the lock leaves out of them.
    """
    hosts = {urlsplit(wheel.url).hostname or "" for wheel in lock.wheels}
    return network.make_secrets(
        ca=settings.ca,
        index=request.index_url,
        hosts=hosts,
        env=settings.env,
        addresses=(*lock.addresses, *request.addresses),
        names={**lock.index_names, **request.places.names},
    )


def build_image(
    engine: Docker,
    builder: Builder,
    lock: Lock,
    spec: ImageSpec,
    secrets: Secrets,
    console: Console,
) -> BuiltImage:
    """Build, with progress on stderr."""
    sizes = {wheel.name: wheel.size or 0 for wheel in lock.wheels}
    with console.build_progress(sizes) as progress:
        return engine.build(
            builder, spec, suite=suite_directory(), secrets=secrets, on_line=progress.line
        )


def builder_here(env: Mapping[str, str]) -> Builder:
    """The CLI that will run BuildKit."""
    return find_builder(env.get("PATH") or os.defpath, ask)


def dry_run_argv(plan: Plan, env: Mapping[str, str]) -> list[str]:
    """The builder's command line as it would be, with placeholders for what was not made."""
    try:
        builder = builder_here(env)
    except Failure:
        builder = Builder(cli="docker", kind="buildx", version="?")
    base = plan.base.reference if plan.base else "BASE"
    spec = ImageSpec(
        base=base, lock=Path("pylock.toml"), labels={}, apt_packages=apt_packages(plan)
    )
    return build_argv(
        builder, context=Path("CONTEXT"), spec=spec, iid=Path("IIDFILE"), secrets={}, network=None
    )


def gigabytes(count: int) -> str:
    """4508876800 -> "4.51 GB" (powers of ten, as docker prints)."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def show_remarks(plan: Plan, console: Console) -> None:
    """The warnings and notes of a plan, and the host that limits it if there are several."""
    if plan.limited_by is not None:
        console.note(f"limited by {plan.limited_by.words(plan.framework)}")
    show_warnings(plan.warnings, console)
    for note in plan.notes:
        console.note(note.message)


def show_warnings(warnings: Sequence[Warned], console: Console) -> None:
    """Each warning once."""
    for warning in warnings:
        console.warn(warning.message, warning.fix)
