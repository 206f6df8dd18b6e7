"""`provision wheel`: builds packages from source in the devel image of a plan, and keeps wheels."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.engines.emulation import check_runs
from images.oci.model import platform_of
from images.store.store import Store
from images.system.scratch import scratch_directory
from images.wheels.remote_file import RemoteFile
from provision.build.base import OfflineError, pin_base
from provision.build.job import plan_image
from provision.build.maker import LockedImage, RunnableImage
from provision.build.source.devel import devel_image
from provision.build.source.key import CachedWheel, WheelKey, key_for
from provision.build.source.recipe import CompileOrder, build_requirements, compile_wheel
from provision.build.source.rules import capabilities_of, environment_of, requirements_for
from provision.build.source.sdists import (
    declared_requirements,
    download,
    find_sdist,
    read_requirement,
    suffix_of,
)
from provision.build.source.substitute import without
from provision.build.source.wheel_cache import WheelCache
from provision.build.source.wheel_check import check_name, inspect, judge_built, needed_glibc
from provision.build.work import BuildJob
from provision.errors import BadInputError
from provision.model.plan import ComputeCapability, HostFacts, Plan
from provision.output.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelOrder:
    """The packages to build, as requirements; how their devel image is built; where the wheels are
    kept, and where copies of them go.
    """

    requirements: tuple[str, ...]
    job: BuildJob
    wheels: Path
    output: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A source archive that was chosen, and the key that its wheel will have."""

    file: RemoteFile
    key: WheelKey


def build_wheels(
    order: WheelOrder, *, hosts: Callable[[], Sequence[HostFacts]], console: Console
) -> dict[str, Any]:
    """Build the wheels that are not there yet. Returns the JSON of the command.

    BadInputError: a requirement or the GPUs do not say what to build; NoSdistError: there is no
    source; WheelBuildError, BuiltWheelUnfitError: it could not be compiled, or not for the plan.
    """
    asked = {_name(read): read for read in map(read_requirement, order.requirements)}
    job = replace(order.job, request=without(order.job.request, asked))
    if order.output is not None:
        _refuse_output(order.output)
    plan, packages = plan_image(job, hosts, console)
    capabilities = capabilities_of(plan)
    if plan.base is not None and plan.base.kind == "registry" and job.request.base is None:
        with console.step("base", "looking for the base of the plan"):
            inputs = packages.inputs._replace(request=job.request)
            plan, _ = pin_base(plan, inputs, None, packages.choose_on_bootstrap)
    kept = WheelCache(order.wheels)
    if job.settings.offline:
        found = {name: _kept_before(kept, read, plan) for name, read in asked.items()}
        built: frozenset[str] = frozenset()
    else:
        with console.step("source", f"looking for {' and '.join(map(str, asked.values()))}"):
            sources = [_source(read, plan, capabilities, job) for read in asked.values()]
            console.result(", ".join(f"{one.key.name} {one.key.version}" for one in sources))
        before = {one.key.name: kept.with_key(one.key) for one in sources}
        found = {name: one for name, one in before.items() if one is not None}
        missing = [one for one in sources if one.key.name not in found]
        built = frozenset(one.key.name for one in missing)
        if missing:
            found |= _build(missing, plan, capabilities, packages.inputs.hosts, job, kept, console)
    return {
        "schema": 1,
        "wheels": [_account(found[name], order.output, new=name in built) for name in asked],
        "error": None,
    }


def _build(
    sources: Sequence[_Source],
    plan: Plan,
    capabilities: Sequence[ComputeCapability],
    hosts: Sequence[HostFacts],
    job: BuildJob,
    kept: WheelCache,
    console: Console,
) -> dict[str, CachedWheel]:
    check_runs(platform_of(plan.arch or ""), "The devel image")
    found: dict[str, CachedWheel] = {}
    with ExitStack() as stack:
        image, ready = stack.enter_context(devel_image(plan, hosts, job, console))
        store = stack.enter_context(Store.open(job.settings.state, on_note=console.note))
        for source in sources:
            key = source.key
            gpus = " ".join(key.capabilities)
            with (
                console.step("compile", f"{key.name} {key.version} for {gpus}", named=True),
                scratch_directory(job.settings.state) as to,
            ):
                wheel, compiler = _compile(source, image, ready, store, to, job, console)
                check_name(wheel.name, key, plan)
                contents = inspect(wheel)
                console.result(judge_built(contents, key, plan, capabilities))
                glibc = needed_glibc(contents)
                found[key.name] = kept.keep(wheel, key, glibc=glibc, compiler=compiler)
    return found


def _compile(
    source: _Source,
    image: LockedImage,
    ready: RunnableImage,
    store: Store,
    to: Path,
    job: BuildJob,
    console: Console,
) -> tuple[Path, tuple[str, ...]]:
    indexes, settings, key = job.request.places, job.settings, source.key
    archive = download(source.file, store, indexes=indexes, settings=settings)
    declared = declared_requirements(archive, source.file.url.rpartition("/")[2])
    lines = requirements_for(key.name, declared)
    there = {wheel.name: wheel.version for wheel in image.lock.wheels}
    wheels = build_requirements(lines, image.plan, there, indexes, settings)
    order = CompileOrder(
        title=f"{key.name} {key.version}",
        file=f"{key.name}-{key.version}{suffix_of(source.file)}",
        environment=key.environment,
    )
    made = compile_wheel(
        order,
        archive,
        wheels,
        ready,
        store=store,
        to=to,
        log=settings.state / "logs" / f"wheel-{key.name}-{key.version}.log",
        indexes=indexes,
        settings=settings,
        console=console,
    )
    return made.wheel, made.compiler


def _source(
    requirement: Requirement, plan: Plan, capabilities: Sequence[ComputeCapability], job: BuildJob
) -> _Source:
    file = find_sdist(requirement, str(plan.python), job.request.places, job.settings)
    key = key_for(
        plan,
        name=file.name,
        version=file.version,
        sdist_sha256=file.sha256,
        capabilities=capabilities,
        environment=environment_of(file.name, capabilities),
    )
    return _Source(file=file, key=key)


def _kept_before(kept: WheelCache, requirement: Requirement, plan: Plan) -> CachedWheel:
    found = kept.fitting(str(requirement), plan)
    if found is None:
        raise OfflineError(f"The source of {requirement.name}")
    return found


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def _refuse_output(output: Path) -> None:
    """Check the directory for copies before the work for them is done."""
    if not output.is_dir() or not os.access(output, os.W_OK | os.X_OK):
        raise BadInputError(
            f"--output {str(output)[:100]} is not a directory that can be written to.",
            fix="Name one that exists: --output DIR",
        )


def _account(kept: CachedWheel, output: Path | None, *, new: bool) -> dict[str, Any]:
    path = Path(kept.path)
    copy = None if output is None else _copied(path, output)
    return {
        "name": kept.key.name,
        "version": kept.key.version,
        "path": kept.path,
        "output": None if copy is None else str(copy),
        "sha256": kept.sha256,
        "bytes": kept.size,
        "built": new,
        "glibc": kept.glibc,
        "compiler": list(kept.compiler),
        "key": kept.key.to_json(),
    }


def _copied(wheel: Path, output: Path) -> Path:
    """A copy under the same name, whole or not at all."""
    number, name = tempfile.mkstemp(dir=output, prefix=".partial-")
    partial = Path(name)
    try:
        with os.fdopen(number, "wb") as to, wheel.open("rb") as source:
            shutil.copyfileobj(source, to)
        partial.chmod(0o644)
        return partial.replace(output / wheel.name)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
