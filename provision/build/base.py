"""What an image is built on: its base pinned to a digest, made here, or taken from a lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from images.assembly.opening import check_path, open_path, parse_place
from images.engines.docker import Docker
from images.errors import Failure
from images.oci.model import platform_of
from images.registry.errors import ImageNotFoundError
from provision.catalog.catalog import Catalog
from provision.catalog.needs import debian_packages
from provision.errors import BadInputError, Exit, NothingCompatibleError, exit_of_refusal
from provision.lock.uv_answers import UvAnswers
from provision.model.plan import Base, DebianPackage, HostFacts, Plan, Request
from provision.model.request import is_local, quoted
from provision.output.console import Console
from provision.resolve import resolve

# The time of every file of a base made here, so that the same packages give the same digest.
_EPOCH = 1_700_000_000


class NoDevelBaseError(Failure):
    """A devel image needs NVIDIA's compilers, which only a registry's image brings."""

    code = "no-devel-base"
    exit_code = Exit.UNREACHABLE


def pin_base(
    plan: Plan, inputs: PlanInputs, engine: Docker | None, with_packages: Callable[[Plan], Plan]
) -> tuple[Plan, Path | None]:
    """Pin the base to a digest: from its registry, or from an engine that has it, or by making it.

    If no registry answers and the user named no base, the plan is made again for the bootstrap
    base, since base, Python and wheel belong together, and `with_packages` for the packages that
    were requested. Returns the plan, and the archive of the
    base when it was made here. NoDevelBaseError: only a registry's image has the compilers; else
    the error of the place.
    """
    base, settings, console = plan.base, inputs.settings, inputs.console
    assert base is not None
    if base.kind == "local":
        return plan._replace(base=base._replace(digest=_local_digest(plan))), None
    if base.kind == "registry":
        try:
            return plan._replace(base=base._replace(digest=_digest(plan, settings, engine))), None
        except Failure as failure:
            if inputs.request.base is not None:
                failure.fix += " Or use another base: --base IMAGE or --base bootstrap."
                raise
            if not _can_replace(plan, inputs):
                or_runtime = inputs.plan(flavour="runtime", base="bootstrap").error is None
                raise NoDevelBaseError(
                    f"A devel image is built on {base.reference}, whose registry is out of reach, "
                    f"and NVIDIA's packages for CUDA {plan.cuda} hold no nvcc to replace it.",
                    fix="Name a mirror of it with --base"
                    f"{', or use --flavour runtime' if or_runtime else ''}.",
                    detail=failure.message,
                ) from failure
            plan = with_packages(require_plan(inputs.plan(base="bootstrap")))
            _note_replaced(failure, console)
    return make_bootstrap(plan, settings, console)


def base_first(
    plan: Plan, inputs: PlanInputs, engine: Callable[[], Docker | None]
) -> tuple[Plan, Request]:
    """The plan and its request, before packages are resolved for the Python of its base: for the
    bootstrap base if the registry is out of reach and the user named no base.
    """
    base, request = plan.base, inputs.request
    if base is None or base.kind != "registry" or request.base is not None:
        return plan, request
    try:
        _digest(plan, inputs.settings, engine())
    except ImageNotFoundError:  # the packages may choose another Python, whose image is there
        return plan, request
    except Failure as failure:
        if not _can_replace(plan, inputs):
            return plan, request
        plan = require_plan(inputs.plan(base="bootstrap"))
        _note_replaced(failure, inputs.console)
        return plan, request._replace(base="bootstrap")
    return plan, request


def _can_replace(plan: Plan, inputs: PlanInputs) -> bool:
    wheels = inputs.catalog.compiler_wheels(plan.cuda or "")
    return inputs.request.flavour != "devel" or bool(wheels)


def _note_replaced(failure: Failure, console: Console) -> None:
    console.note(failure.message)
    console.note("Building the base from Debian packages instead (--base bootstrap).")


def has_python(plan: Plan) -> bool:
    """Whether the base of a plan has Python: NVIDIA's images have compilers, and none."""
    return plan.base is None or "/nvidia/cuda" not in f"/{plan.base.reference}"


def refuse_missing_places(*images: str | None) -> None:
    """Fail if an image on this machine does not exist, before any work for it."""
    for image in images:
        if image is not None and is_local(image):
            check_path(parse_place(image))


def _local_digest(plan: Plan) -> str:
    """The digest of this platform's image on this machine."""
    assert plan.base is not None
    place = parse_place(plan.base.reference)
    return open_path(place, platform_of(plan.arch or "x86_64")).digest


def _digest(plan: Plan, settings: BuildSettings, engine: Docker | None) -> str:
    from images.registry.digest import resolve_digest

    assert plan.base is not None
    reference = plan.base.reference
    if known := settings.digests.get(reference):
        return known
    try:
        if settings.offline:
            raise OfflineError(reference)
        found = resolve_digest(reference, arch=plan.arch or "x86_64", ca_bundle=settings.ca)
    except Failure:
        known = engine.repo_digest(reference) if engine else None
        if known is None:
            raise
        found = known
    settings.digests[reference] = found
    return found


class OfflineError(Failure):
    """Something is missing on this machine, and the network may not be used."""

    code = "offline"
    exit_code = Exit.UNREACHABLE

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not on this machine, and --offline forbids downloading it.",
            fix="Run this once without --offline, or use a base that is on this machine: --base.",
        )


def make_bootstrap(plan: Plan, settings: BuildSettings, console: Console) -> tuple[Plan, Path]:
    """Make the Debian base of the plan, or take the one made before."""
    from images.bootstrap.make import DEFAULT_PACKAGES, bootstrap

    base = plan.base
    assert base is not None
    assert base.suite is not None
    snapshot = base.snapshot or settings.snapshot
    compilers = debian_packages(["compiler"]) if plan.flavour == "devel" else ()
    made = bootstrap(
        base.suite,
        python=base.python,
        arch=plan.arch or "x86_64",
        store=settings.state,
        packages=(*DEFAULT_PACKAGES, *compilers),
        more=base.apt,
        epoch=_epoch(settings.env),
        on_line=console.detail,
        snapshot=snapshot,
        ca_bundle=settings.ca.read_text(encoding="utf-8") if settings.ca else "",
        offline=settings.offline,
    )
    pinned = base._replace(
        reference=made.reference,
        digest=made.image_id,
        snapshot=snapshot,
        added=tuple(DebianPackage(**one._asdict()) for one in made.added),
    )
    return plan._replace(base=pinned), made.archive


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBase:
    """The exact base: a reference (with its digest if a registry has it), and its archive if it was
    made here.
    """

    reference: str
    archive: Path | None = None


def pinned(plan: Plan, archive: Path | None) -> PinnedBase:
    """The base of a plan that has just been pinned."""
    base = plan.base
    assert base is not None
    if base.kind != "registry":
        return PinnedBase(reference=base.reference, archive=archive)
    name = base.reference.partition("@")[0]
    return PinnedBase(reference=f"{name}@{base.digest}" if base.digest else name)


def _epoch(env: Mapping[str, str]) -> int:
    """The latest time of files in a base made here.
    https://reproducible-builds.org/specs/source-date-epoch/
    """
    text = env.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return _EPOCH
    if not text.isascii() or not text.isdigit() or len(text) > 11:
        raise BadInputError(
            f"SOURCE_DATE_EPOCH {quoted(text)} is not a number of seconds since 1970.",
            fix="For example: SOURCE_DATE_EPOCH=1700000000, or unset it",
        )
    return int(text)


def base_from_lock(
    plan: Plan, engine: Docker | None, settings: BuildSettings, console: Console
) -> PinnedBase:
    """The base, exactly as the lock pins it. BaseChangedError: it can no longer be made."""
    base = plan.base
    assert base is not None
    if base.kind == "local" and base.digest != (found_here := _local_digest(plan)):
        raise BaseChangedError(base, base._replace(digest=found_here))
    if base.kind != "bootstrap":
        return pinned(plan, None)
    if settings.unpacked is not None:
        return PinnedBase(reference=base.reference, archive=settings.unpacked.base)
    if engine is not None and base.digest and engine.has(base.digest):
        return PinnedBase(reference=base.reference)
    from images.bootstrap.store import find

    if base.digest and (found := find(settings.state, base.digest)):
        return PinnedBase(reference=found.reference, archive=found.archive)
    console.note("The lock's base is not on this machine; building it again.")
    made, archive = make_bootstrap(plan, settings, console)
    assert made.base is not None
    if base.digest and made.base.digest != base.digest:
        raise BaseChangedError(base, made.base)
    return PinnedBase(reference=made.base.reference, archive=archive)


class BaseChangedError(Failure):
    """A base of Debian packages built today differs from the one in the lock."""

    code = "base-changed"
    exit_code = Exit.BUILD_FAILED

    def __init__(self, locked: Base, made: Base) -> None:
        changed = changed_packages(locked.added, made.added)
        super().__init__(
            f"The base made from Debian's packages today is {_short(made.digest)}, and the lock "
            f"names {_short(locked.digest)}.{f' Other versions: {changed}.' if changed else ''}",
            fix="Lock again (provision lock), with --snapshot today to be able to repeat it, or "
            f"copy the base from where the lock was made: docker save {locked.reference}",
        )


def changed_packages(
    locked: Sequence[DebianPackage], made: Sequence[DebianPackage], most: int = 5
) -> str:
    """The first packages that differ, in words: "ffmpeg 7:5.1.8 is now 7:5.1.9"."""
    before, now = ({one.name: one.version for one in some} for some in (locked, made))
    words = []
    for name in sorted({*before, *now}):
        if name not in now:
            words.append(f"{name} {before[name]} is no longer needed")
        elif before.get(name) != now[name]:
            was = f"{name} {before[name]} is now" if name in before else f"new is {name}"
            words.append(f"{was} {now[name]}")
    more = [f"{len(words) - most} more"] if len(words) > most else []
    return ", ".join([*words[:most], *more])


def _short(digest: str | None) -> str:
    return (digest or "unknown").removeprefix("sha256:")[:12]


def require_plan(plan: Plan) -> Plan:
    """The plan, or the failure that it describes: NothingCompatibleError with the
    refusal's code.
    """
    if plan.error is None:
        return plan
    limit = plan.limited_by
    message = plan.error.message
    if limit is not None:
        message += f" Limited by {limit.words(plan.framework, message)}"
    error = NothingCompatibleError(message, fix=plan.error.fix)
    error.code = plan.error.code
    error.exit_code = exit_of_refusal(plan.error.code)
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedBundle:
    """What a build takes from the directory of an unpacked offline bundle: the suite, and the
    archive of a base made from Debian's packages. The store has the wheels and a registry's base.
    """

    suite: Path
    base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """Settings of a job beside the request. `snapshot`: the date of Debian's packages for a base
    made here ("20260301T000000Z"; None: today, or the lock's). `wheels`: where the wheels are that
    this user has built from source. `typed`: the options that decide the plan, for a fix.
    `unpacked`: the offline bundle that the build is from. `answers`: uv's, of this job;
    `digests`: those of bases, by their reference.
    """

    ca: Path | None
    offline: bool
    state: Path
    env: Mapping[str, str]
    snapshot: str | None = None
    wheels: Path | None = None
    typed: str = ""
    unpacked: UnpackedBundle | None = None
    answers: UvAnswers = field(default_factory=UvAnswers, compare=False, repr=False)
    digests: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


class PlanInputs(NamedTuple):
    """What an image is planned from: for which hosts, what was requested, and how it is built."""

    hosts: Sequence[HostFacts]
    request: Request
    catalog: Catalog
    settings: BuildSettings
    console: Console

    def plan(self, **changes: Any) -> Plan:  # noqa: ANN401  fields of a request
        """The plan for the request with these changes."""
        return resolve(self.hosts, self.request._replace(**changes), self.catalog)
