"""Explain why nothing fits: what was found, what was needed and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provision.catalog.catalog import Catalog
from provision.model.plan import TITLES, Blocked, PlanError, Request
from provision.resolve.builds import Build
from provision.resolve.candidates import Candidate, Examiner, choose, in_order
from provision.resolve.fleet import Fleet, show_capability
from provision.resolve.specifiers import version

_SHOWN = 4
_NVIDIA_OWN = "https://docs.nvidia.com/deeplearning/frameworks/"


def not_nvidia(fleet: Fleet) -> PlanError | None:
    """A host without any NVIDIA GPU, but with GPUs of other vendors."""
    alone = [one for one in fleet.foreign if one.alone]
    if not alone:
        return None
    named = [
        f"{'' if fleet.one_host else f'{one.label}: '}{one.name} is not an NVIDIA GPU "
        f"({one.vendor})"
        for one in alone
    ]
    more = f"; and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return PlanError(
        code="gpu-not-nvidia",
        message=f"{'; '.join(named[:_SHOWN])}{more}. CUDA builds run on NVIDIA GPUs only.",
        fix="Use a machine with an NVIDIA GPU, or the builds for that vendor's GPUs (for PyTorch: "
        "https://pytorch.org/get-started/locally/).",
    )


def no_build(request: Request, arch: str, builds: Sequence[Build]) -> PlanError:
    """No such build was ever published."""
    title = TITLES[request.framework]
    asked = (request.framework_version or "").removeprefix("==")
    what = f"{title} {asked}".strip()
    on_cuda = f" for CUDA {request.cuda}" if request.cuda else ""
    by_cuda: dict[str, list[str]] = {}
    for build in builds:
        if build.prerelease:
            continue
        by_cuda.setdefault(build.cuda, []).append(build.version)
    if not by_cuda:
        return PlanError(
            code="no-such-build",
            message=f"There is no build of {title} with GPU code for {arch} Linux"
            + (": its wheels for that CPU are CPU builds." if request.framework != "jax" else "."),
            fix=f"Use NVIDIA's own container: {_NVIDIA_OWN}",
        )
    having = sorted(by_cuda, key=version)
    everything = [v for versions in by_cuda.values() for v in versions]
    if request.framework_version is not None and not _is_within(everything, request):
        return PlanError(
            code="no-such-build",
            message=f"The catalog has no {what} for {arch} Linux; it has {_span(everything)}.",
            fix="Update the catalog: provision catalog refresh"
            if _is_newer(max(everything, key=version), request)
            else "",
        )
    of_asked = [cuda for cuda in having if _is_within(by_cuda[cuda], request)]
    spans = ", ".join(f"{cuda} ({_span(by_cuda[cuda])})" for cuda in of_asked)
    if request.framework != "tensorflow":
        spans = ", ".join(of_asked)
    verb = "runs on" if builds[0].compiled_on_host else "was built for"
    libraries = ""
    major = [c for c in having if request.cuda and c.split(".")[0] == request.cuda.split(".")[0]]
    if any(build.libraries == "system" for build in builds if build.cuda in major):
        libraries = (
            f" Libraries of one CUDA major share their sonames, so that a build for {major[0]} "
            f"would load those of {request.cuda} too; that pair is untested."
        )
    return PlanError(
        code="no-such-build",
        message=f"There is no build of {what}{on_cuda} for {arch} Linux; it {verb} CUDA {spans}."
        f"{libraries}",
        fix="",
    )


def _is_newer(newest: str, request: Request) -> bool:
    """Whether a release is requested that is newer than the newest of the catalog."""
    from packaging.specifiers import SpecifierSet

    return any(
        one.operator in {"==", "===", ">=", ">", "~="}
        and version(one.version.removesuffix(".*")) > version(newest)
        for one in SpecifierSet(request.framework_version or "")
    )


def _is_within(versions: Sequence[str], request: Request) -> bool:
    if request.framework_version is None:
        return True
    from packaging.specifiers import SpecifierSet

    wanted = SpecifierSet(request.framework_version)
    return any(wanted.contains(v, prereleases=True) for v in versions)


def why_blocked(
    nearest: Candidate, request: Request, examiner: Examiner, builds: Sequence[Build]
) -> PlanError:
    """Why the build of `builds` that came closest does not fit."""
    found = examiner.blockers(nearest.build, request)
    sentences = dict.fromkeys(
        f"{where}: {blocker.message}" if where else blocker.message for where, blocker in found
    )
    fixes = dict.fromkeys(
        fix
        for _, blocker in found
        for fix in (
            _code_fixes(nearest.build, examiner, builds)
            if blocker.code == "no-gpu-code"
            else [blocker.fix]
        )
        if fix
    )
    more = len(sentences) - _SHOWN
    text = " ".join(list(sentences)[:_SHOWN]) + (f" And {more} more." if more > 0 else "")
    return PlanError(
        code=found[0][1].code if found else "nothing-compatible",
        message=text or "Nothing fits.",
        fix=" ".join(list(fixes)[:_SHOWN]),
    )


def _code_fixes(refused: Build, examiner: Examiner, builds: Sequence[Build]) -> Iterator[str]:
    """The GPUs that no build of the framework has code for."""
    title = TITLES[refused.framework]
    for device in examiner.fleet.devices:
        if examiner.code(refused, device) != "none":
            continue
        if any(examiner.code(b, device) not in {"none", "unknown"} for b in builds):
            continue
        if device.capability in examiner.catalog.tegra_capabilities:
            yield f"Use NVIDIA's own builds of {title} for {device.words}: {_NVIDIA_OWN}"
        else:
            yield f"The catalog has no build of {title} with code for {device.words}."


def who_blocks_what(
    builds: Sequence[Build], request: Request, fleet: Fleet, catalog: Catalog, nearest: Candidate
) -> tuple[Blocked, ...]:
    """Each kind of GPU with the builds for it alone, where there is more than one kind."""
    if len({(site.where, device) for site, device in fleet.gpus}) < 2:
        return ()
    rows: dict[tuple[object, ...], Blocked] = {}
    for site, device in fleet.gpus:
        key = (device, site.driver, site.driver_cuda)
        if key in rows or len(rows) >= 100:
            continue
        alone = Examiner(fleet.alone(site, device), catalog)
        fitting = [c for b in builds if (c := alone.examine(b, request, whole=True)).fits]
        against = alone.blockers(nearest.build, request)
        rows[key] = Blocked(
            host=site.where or None,
            gpu=device.name,
            compute_capability=show_capability(device.capability) if device.capability else None,
            served_by=_served_by(fitting),
            message=" ".join(dict.fromkeys(blocker.message for _, blocker in against))
            or f"{nearest.build.name} would run on it.",
        )
    return tuple(rows.values())


def no_common_build(rows: Sequence[Blocked], request: Request, fleet: Fleet) -> PlanError | None:
    """Each GPU has builds of its own, but no build supports all."""
    if len(rows) < 2 or any(row.served_by is None for row in rows):
        return None
    each = "; ".join(f"{_who(row)}: {row.served_by}" for row in rows[:_SHOWN])
    more = f"; and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    drivers = {site.where or None: site.driver for site in fleet.sites}
    machines = [
        f"--gpu '{row.gpu or row.compute_capability}'"
        + (f" --driver {driver}" if (driver := drivers.get(row.host)) else "")
        for row in rows[:_SHOWN]
    ]
    return PlanError(
        code="no-common-build",
        message=f"No single build of {TITLES[request.framework]} supports all of these GPUs. "
        f"Each on its own: {each}{more}.",
        fix=f"Build one image for each kind, with {' / '.join(dict.fromkeys(machines))}",
    )


def _served_by(fitting: Sequence[Candidate]) -> str | None:
    if not fitting:
        return None
    newest = choose(in_order(fitting)).build
    cudas = sorted({c.build.cuda for c in fitting}, key=version)
    span = f"CUDA {cudas[0]} to {cudas[-1]}" if len(cudas) > 1 else f"CUDA {cudas[0]}"
    build = f"{newest.version}+{newest.tag}" if newest.tag else newest.version
    return f"{span}, up to {build}"


def _who(row: Blocked) -> str:
    name = row.gpu or f"compute capability {row.compute_capability}"
    return f"{name} on {row.host}" if row.host else name


def _span(versions: Sequence[str]) -> str:
    ordered = sorted(set(versions), key=version)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
