"""The main job: detect, plan, lock, base, build, verify; each step a function of the one before.

The final tag is given last, to an image in which no check failed: whatever happens before leaves
that name alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from images.buildkit import Builder, ask, build_argv, find_builder
from images.docker import Docker
from images.errors import Failure
from images.spec import BuiltImage, ImageSpec, Secrets
from provision.catalog import Catalog
from provision.errors import (
    BadInputError,
    Exit,
    IndexUnreachableError,
    NothingCompatibleError,
    exit_of_refusal,
)
from provision.lock import network
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from provision.lock.solve import ask_index, make_lock
from provision.model.plan import TITLES, Base, HostFacts, Plan, Request, Warned
from provision.model.request import is_local, quoted
from provision.output.console import Console
from provision.resolve import nearest_at, resolve
from provision.verification.suite import suite_directory
from provision.version import VERSION

_COMPILER_PACKAGES = ("g++", "make", "python3-dev")  # the host compiler that nvcc drives
# Every file of a base made here bears this time, so that the same packages give the same digest.
_EPOCH = 1_700_000_000
# 2.33 GB of wheels made a layer of 4.5 GB (the cu117 set, measured); uv's cache holds them unpacked
# once more beside it.
_DISK_PER_DOWNLOADED_BYTE = 4


class DiskTooSmallError(Failure):
    """Found out before anything is downloaded."""

    code = "disk-too-small"
    exit_code = Exit.HOST_UNFIT


class NoDevelBaseError(Failure):
    """A devel image needs NVIDIA's compilers, which only a registry's image brings."""

    code = "no-devel-base"
    exit_code = Exit.UNREACHABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What steers a job beside the request. `snapshot`: the time whose Debian a base made here is
    ("20260301T000000Z"; None: today's, or the lock's).
    """

    ca: Path | None
    offline: bool
    state: Path
    env: Mapping[str, str]
    snapshot: str | None = None


def require_plan(plan: Plan) -> Plan:
    """The plan, or the failure that it describes."""
    if plan.error is None:
        return plan
    limit = plan.limited_by
    message = plan.error.message
    if limit is not None:
        message += f" Limited by {limit.words(plan.framework, message)}"
    nearest = [
        f"--cuda {a.cuda} ({TITLES[plan.framework]} {a.framework_version}, {a.why})"
        for a in plan.alternatives
    ]
    error = NothingCompatibleError(
        message,
        fix=plan.error.fix + ("".join(f"\n       {line}" for line in nearest)),
    )
    error.code = plan.error.code
    error.exit_code = exit_of_refusal(plan.error.code)
    raise error


def pin_base(
    plan: Plan,
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    settings: Settings,
    console: Console,
    engine: Docker | None,
) -> tuple[Plan, Path | None]:
    """Give the base its digest: from its registry, or from an engine that has it, or by making it.

    Where no registry answers and the base was ours to choose, the plan is made again for the
    bootstrap base, since base, Python and wheel belong together. Returns the plan, and the archive
    of the base when it was made here.
    """
    base = plan.base
    assert base is not None
    if base.kind == "local":
        return replace(plan, base=replace(base, digest=_local_digest(plan))), None
    if base.kind == "registry":
        try:
            return replace(plan, base=replace(base, digest=_digest(plan, settings, engine))), None
        except Failure as failure:
            if request.base is not None:
                failure.fix += " Or use another base: --base IMAGE or --base bootstrap."
                raise
            if request.flavour == "devel" and not catalog.compiler_wheels(plan.cuda or ""):
                raise NoDevelBaseError(
                    f"A devel image stands on {base.reference}, whose registry is out of reach, "
                    f"and NVIDIA's packages for CUDA {plan.cuda} hold no nvcc to replace it.",
                    fix="Name a mirror of it with --base, or use --flavour runtime.",
                    detail=failure.message,
                ) from failure
            console.note(f"{failure.message}")
            plan = require_plan(resolve(hosts, replace(request, base="bootstrap"), catalog))
            console.note(
                "So the base is made here, from Debian's packages (--base bootstrap), "
                f"with Python {plan.python}."
            )
    return make_bootstrap(plan, settings, console)


def refuse_missing_places(*images: str | None) -> None:
    """Images on this machine that are not there, found out before any work for them."""
    from images.oci.opening import check_path, parse_place

    for image in images:
        if image is not None and is_local(image):
            check_path(parse_place(image))


def _local_digest(plan: Plan) -> str:
    """Of the image of this platform that lies on this machine."""
    from images.oci.opening import open_path, parse_place, platform_of

    assert plan.base is not None
    place = parse_place(plan.base.reference)
    return open_path(place, platform_of(plan.arch or "x86_64")).digest


def _digest(plan: Plan, settings: Settings, engine: Docker | None) -> str:
    from images.registry import resolve_digest

    assert plan.base is not None
    reference = plan.base.reference
    try:
        if settings.offline:
            raise OfflineError(reference)
        return resolve_digest(reference, arch=plan.arch or "x86_64", ca_bundle=settings.ca)
    except Failure:
        known = engine.repo_digest(reference) if engine else None
        if known is None:
            raise
        return known


class OfflineError(Failure):
    """Something is needed that is not on this machine, and the network may not be used."""

    code = "offline"
    exit_code = Exit.UNREACHABLE

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not on this machine, and --offline does not fetch it.",
            fix="Run this once without --offline, or use a base that is on this machine: --base.",
        )


def make_bootstrap(plan: Plan, settings: Settings, console: Console) -> tuple[Plan, Path]:
    """Make the Debian base of the plan, or take the one made before."""
    from images.bootstrap import DEFAULT_PACKAGES, bootstrap

    base = plan.base
    assert base is not None
    assert base.suite is not None
    snapshot = base.snapshot or settings.snapshot
    made = bootstrap(
        base.suite,
        python=base.python,
        arch=plan.arch or "x86_64",
        store=settings.state,
        packages=(*DEFAULT_PACKAGES, *(_COMPILER_PACKAGES if plan.flavour == "devel" else ())),
        epoch=_epoch(settings.env),
        on_line=console.detail,
        snapshot=snapshot,
        ca_bundle=settings.ca.read_text(encoding="utf-8") if settings.ca else "",
        offline=settings.offline,
    )
    pinned = replace(base, reference=made.reference, digest=made.image_id, snapshot=snapshot)
    return replace(plan, base=pinned), made.archive


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBase:
    """What is built on, exactly: a reference (with its digest where a registry has it), and the
    archive that holds it where it was made here.
    """

    reference: str
    archive: Path | None = None


def pinned(plan: Plan, archive: Path | None) -> PinnedBase:
    """The base of a plan that was pinned just now."""
    base = plan.base
    assert base is not None
    if base.kind != "registry":
        return PinnedBase(reference=base.reference, archive=archive)
    name = base.reference.partition("@")[0]
    return PinnedBase(reference=f"{name}@{base.digest}" if base.digest else name)


def _epoch(env: Mapping[str, str]) -> int:
    """No file of a base made here is younger. https://reproducible-builds.org/specs/source-date-epoch/"""
    text = env.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return _EPOCH
    if not text.isascii() or not text.isdigit() or len(text) > 11:
        raise BadInputError(
            f"SOURCE_DATE_EPOCH {quoted(text)} is no number of seconds since 1970.",
            fix="For example: SOURCE_DATE_EPOCH=1700000000, or unset it",
        )
    return int(text)


def base_from_lock(
    plan: Plan, engine: Docker | None, settings: Settings, console: Console
) -> PinnedBase:
    """What to build on, exactly as the lock pins it."""
    base = plan.base
    assert base is not None
    if base.kind == "local" and base.digest != (found_here := _local_digest(plan)):
        raise BaseChangedError(base, replace(base, digest=found_here))
    if base.kind != "bootstrap":
        return pinned(plan, None)
    if engine is not None and base.digest and engine.has(base.digest):
        return PinnedBase(reference=base.reference)
    from images.bootstrap import find

    if base.digest and (found := find(settings.state, base.digest)):
        return PinnedBase(reference=found.reference, archive=found.archive)
    console.note("The lock's base is not on this machine; it is made again.")
    made, archive = make_bootstrap(plan, settings, console)
    assert made.base is not None
    if base.digest and made.base.digest != base.digest:
        raise BaseChangedError(base, made.base)
    return PinnedBase(reference=made.base.reference, archive=archive)


class BaseChangedError(Failure):
    """Debian has moved on since the lock was made, so its base cannot be made again."""

    code = "base-changed"
    exit_code = Exit.BUILD_FAILED

    def __init__(self, locked: Base, made: Base) -> None:
        super().__init__(
            f"The base made from Debian's packages today is {_short(made.digest)}, and the lock "
            f"names {_short(locked.digest)}.",
            fix="Lock again (provision lock), with --snapshot today to be able to repeat it, or "
            f"copy the base from where the lock was made: docker save {locked.reference}",
        )


def check_disk(lock: Lock, engine: Docker) -> None:
    """Refuse before the download what would fill the disk after it."""
    need = lock.download_bytes * _DISK_PER_DOWNLOADED_BYTE
    free = engine.free_bytes()
    if free is None or free >= need:
        return
    raise DiskTooSmallError(
        f"The engine's disk has {gigabytes(free)} free; this build needs about "
        f"{gigabytes(need)} ({gigabytes(lock.download_bytes)} of wheels).",
        fix="Make room: docker builder prune, docker image prune, or move the engine's data-root.",
    )


def image_spec(lock: Lock, lock_path: Path, base: str) -> ImageSpec:
    """What the builder is told."""
    return ImageSpec(
        base=base,
        lock=lock_path,
        labels=labels_for(lock, VERSION),
        apt_packages=apt_packages(lock.plan),
        nvcc_flags=nvcc_flags(lock.plan),
    )


def nvcc_flags(plan: Plan) -> str:
    """Some CUDA versions' packages hold the shared runtime only; nvcc would link the static one."""
    wheels = plan.flavour == "devel" and plan.base is not None and plan.base.kind == "bootstrap"
    return "--cudart=shared" if wheels else ""


def apt_packages(plan: Plan) -> tuple[str, ...]:
    """NVIDIA's images bring compilers and no Python; their Ubuntu has it."""
    nvidia = plan.base is not None and "/nvidia/cuda" in f"/{plan.base.reference}"
    return ("python3", "python3-venv", "python3-dev") if nvidia else ()


def default_tag(plan: Plan) -> str:
    """gpu-provision:pytorch2.0.1-cu117."""
    flavour = "" if plan.flavour == "runtime" else f"-{plan.flavour}"
    cuda = plan.wheel_tag or f"cu{(plan.cuda or '').replace('.', '')}"
    return f"gpu-provision:{plan.framework}{plan.framework_version}-{cuda}{flavour}"


def lock_for(
    plan: Plan,
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    settings: Settings,
    console: Console,
) -> Lock:
    """Lock, and say what was locked. Where no index that has the build can be reached, the failure
    names the build that the installer's default index has instead, if that one answers.
    """
    try:
        lock = make_lock(
            plan, request, ca_bundle=settings.ca, offline=settings.offline, tell=console.progress
        )
    except IndexUnreachableError as failure:
        instead = within_reach(plan, hosts, request, catalog, settings)
        if instead is None:
            raise
        rest = failure.fix[:1].lower() + failure.fix[1:]
        raise IndexUnreachableError(
            failure.message, fix=f"{instead} Else {rest}", detail=failure.detail
        ) from failure
    console.note(f"{lock.plan.reasons[-1].message}")
    console.result(f"{len(lock.wheels)} wheels, {gigabytes(lock.download_bytes)} to download")
    return lock


def within_reach(
    plan: Plan,
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    settings: Settings,
) -> str | None:
    """What to ask for instead of a build whose index is out of reach: the nearest that the default
    index has, which is asked for it. None: nothing, or that index does not answer either.
    """
    if settings.offline or any(candidate.url is None for candidate in plan.indexes):
        return None
    base = "bootstrap" if plan.base and plan.base.kind == "bootstrap" else request.base
    other = nearest_at("pypi", hosts, replace(request, base=base), catalog)
    default = next((c for c in other.indexes if c.url is None), None) if other else None
    if other is None or default is None:
        return None
    answer = ask_index(default, other, ca_bundle=settings.ca, offline=False)
    if answer.outcome != "locked":
        return None
    return (
        f"{default.name} answers and has {TITLES[other.framework]} {other.framework_version} for "
        f"CUDA {other.cuda}: --cuda {other.cuda} --framework-version {other.framework_version}."
    )


def secrets_for(lock: Lock, request: Request, settings: Settings) -> Secrets:
    """The CA bundle and the logins for the hosts that the lock names."""
    hosts = {urlsplit(wheel.url).hostname or "" for wheel in lock.wheels}
    return network.make_secrets(ca=settings.ca, index=request.index, hosts=hosts, env=settings.env)


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
    """The CLI that will drive BuildKit."""
    return find_builder(env.get("PATH") or os.defpath, ask)


def dry_run_argv(plan: Plan, env: Mapping[str, str]) -> list[str]:
    """The builder's command line as it would be, with placeholders where nothing was made."""
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
    """What a plan warns of, what it notes, and which of several hosts it is limited by."""
    if plan.limited_by is not None:
        console.note(f"limited by {plan.limited_by.words(plan.framework)}")
    show_warnings(plan.warnings, console)
    for note in plan.notes:
        console.note(note.message)


def show_warnings(warnings: Sequence[Warned], console: Console) -> None:
    """Each once."""
    for warning in warnings:
        console.warn(warning.message, warning.fix)


def _short(digest: str | None) -> str:
    return (digest or "unknown").removeprefix("sha256:")[:12]
