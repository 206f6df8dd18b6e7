"""Runs the build of a wheel in a devel image, without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.engines.spec import RunJob
from images.errors import Failure
from images.store.fetch import Fetcher
from images.store.store import Store
from images.text.printable import printable
from images.wheels.remote_file import Wheel
from provision.build.base import BuildSettings
from provision.build.maker import RunnableImage
from provision.build.source.progress import FirstErrors, status_of
from provision.build.source.rules import memory_per_job, missing_in
from provision.errors import Exit
from provision.lock import network
from provision.lock.solve import NoSolutionError, Solution, lock_of, run_uv, uv_broken
from provision.lock.uv import target_of
from provision.model.plan import PACKAGES, PackageIndexes, Plan
from provision.output.console import Console

_PROGRAM = Path(__file__).with_name("inside.py")
_PLACE = "/run/gpu-provision"
_INPUT, _OUTPUT = f"{_PLACE}/input", f"{_PLACE}/output"
_NO_LIMIT_S = 30 * 86400.0  # flash-attn takes hours on a small machine
_SHOWN = ("MAX_JOBS", "NVCC_THREADS")
_MOST_MADE_BYTES = 1 << 16


class WheelBuildError(Failure):
    """A package's own build failed, in the devel image."""

    code = "wheel-build-failed"
    exit_code = Exit.BUILD_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a build made: the wheel's file, and what the compilers said about themselves."""

    wheel: Path
    compiler: tuple[str, ...]


def build_requirements(
    lines: Sequence[str],
    plan: Plan,
    there: Mapping[str, str],
    indexes: PackageIndexes,
    settings: BuildSettings,
) -> tuple[Wheel, ...]:
    """The wheels that a build needs and the image of a plan lacks, which has the packages `there`
    (name -> version). NoSolutionError: an index has not all.
    """
    missing = missing_in(lines, there)
    if not missing:
        return ()
    outcome, reason, text = run_uv(
        missing,
        target_of(plan),
        index=indexes.given,
        ca_bundle=settings.ca,
        offline=settings.offline,
        declared=indexes.declared,
    )
    if outcome == "broken":
        raise uv_broken(reason, text)
    if outcome != "locked":
        raise NoSolutionError(
            f"The build requirements {', '.join(missing)} cannot be installed: {reason}",
            fix="Name an index that has wheels of them with --index, or request another version.",
        )
    solution = Solution(text=text, plan=plan)
    found = lock_of(solution, ca_bundle=settings.ca, offline=settings.offline).wheels
    asked = {canonicalize_name(Requirement(line).name) for line in missing}
    asked.discard(canonicalize_name(PACKAGES[plan.framework]))
    return tuple(wheel for wheel in found if wheel.name not in there or wheel.name in asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOrder:
    """What to build: a package's title ("jieba 0.42"), the name of its archive, the directory in it
    that has the package ("": the top), and the variables of the build.
    """

    title: str
    file: str
    environment: Mapping[str, str]
    subdirectory: str = ""
    timeout_s: float = _NO_LIMIT_S


def compile_wheel(
    order: CompileOrder,
    archive: Path,
    wheels: Sequence[Wheel],
    ready: RunnableImage,
    *,
    store: Store,
    to: Path,
    log: Path,
    indexes: PackageIndexes,
    settings: BuildSettings,
    console: Console,
) -> Compiled:
    """Build the wheel of a source archive into the empty directory `to`; the output goes to `log`.
    `wheels` are installed for the build; if pip is among them, it builds, else the image's.
    WheelBuildError: the build failed.
    """
    source = f"{_INPUT}/{order.file}"
    files = {source: archive.read_bytes()}
    names = []
    hosts = {urlsplit(wheel.url).hostname or "" for wheel in wheels}
    secrets = network.make_secrets(
        ca=settings.ca, index=indexes.given, hosts=hosts, env=settings.env, names=indexes.names
    )
    with Fetcher(store, secrets=secrets, offline=settings.offline) as fetcher:
        for wheel in wheels:
            path = fetcher.fetch(wheel)
            names.append(f"{_INPUT}/{path.name}")
            files[names[-1]] = path.read_bytes()
    users = {name: settings.env[name] for name in _SHOWN if settings.env.get(name)}
    pips = [name for name in names if name.startswith(f"{_INPUT}/pip-")]
    work = {
        "sdist": f"file://{source}#subdirectory={order.subdirectory}"
        if order.subdirectory
        else source,
        "wheels": names,
        "pip": pips[0] if pips else None,
        "output": _OUTPUT,
        "environment": {**order.environment, **users},
        "memory_per_job": memory_per_job(),
    }
    files[f"{_PLACE}/work.json"] = json.dumps(work).encode()
    files[f"{_PLACE}/build.py"] = _PROGRAM.read_bytes()
    job = RunJob(
        image=ready.handle,
        command=("python3", f"{_PLACE}/build.py", f"{_PLACE}/work.json"),
        files=files,
        outputs={_OUTPUT: to},
        timeout_s=order.timeout_s,
    )
    errors = FirstErrors()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", errors="backslashreplace") as file:

        def follow(line: str) -> None:
            file.write(f"{line}\n")
            errors.add(line)
            console.detail(line)
            if (status := status_of(line)) is not None:
                console.progress(printable(status))

        result = ready.runner.run(job, follow)
    found = [path for path in sorted((to / "wheel").glob("*.whl")) if _is_file(path)]
    if result.exit_code != 0 or len(found) != 1:
        raise _failed(order.title, errors.lines, log, result.exit_code, result.stderr_tail)
    return Compiled(wheel=found[0], compiler=_compiler(to / "made.json"))


def _failed(title: str, lines: Sequence[str], log: Path, code: int, tail: str) -> WheelBuildError:
    why = f": {printable(lines[0], limit=300)}" if lines else f" (exit code {code})."
    memory = any("Killed" in line for line in lines) or code == 137
    return WheelBuildError(
        f"{title} could not be built{why}",
        fix=("Too little memory: allow fewer compilers at a time, MAX_JOBS=1. " if memory else "")
        + f"Read its whole output: {log}. Another version of the package may fit this framework.",
        detail="\n".join(lines) or tail,
        log=tail,
    )


def _compiler(made: Path) -> tuple[str, ...]:
    """What the program in the image wrote: not trusted, and only shown."""
    try:
        if not _is_file(made):
            return ()
        with made.open("rb") as file:
            found = json.loads(file.read(_MOST_MADE_BYTES))
        return tuple(printable(str(line), limit=200) for line in found["compiler"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def _is_file(path: Path) -> bool:
    """Whether it is a file, and no link: the image's programs wrote it."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()
