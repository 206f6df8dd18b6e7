"""A project's declaration and the options of the command line -> the request.

What the project pins holds, and an option may narrow it further; one that contradicts it is an
error that names both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.net.address import shown_url
from provision.errors import BadInputError
from provision.model.environment import environment_of, is_met
from provision.model.plan import PACKAGES, TITLES, Framework, Note, Request
from provision.model.request import parse_cuda
from provision.resolve.packages import FRAMEWORKS, PAIRED
from provision.sources.declaration import Declaration, Declared, allowed_by
from provision.sources.errors import ProjectIncompleteError
from provision.sources.find import Project
from provision.sources.packages import pin_of

_FRAMEWORKS: dict[str, Framework] = {
    **FRAMEWORKS,
    "tensorflow-gpu": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "jaxlib": "jax",
}
_OWN: dict[Framework, frozenset[str]] = {
    framework: frozenset(name for name, own in _FRAMEWORKS.items() if own == framework)
    for framework in TITLES
}
# What comes with a build of a framework, and changes with its CUDA. NVIDIA's other packages
# (nvidia-dali, nvidia-ml-py, cuda-python) do not.
_BROUGHT = re.compile(
    r"nvidia-(cublas|cuda-(cupti|nvrtc|runtime|nvcc|cccl|crt|nvvm|opencl|culibos|profiler-api)"
    r"|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|npp|nvjitlink|nvjpeg|nvtx"
    r"|nvshmem|nvvm|cuda-cccl)(-cu\d+)?"
    r"|cuda-(bindings|toolkit|pathfinder)|(pytorch-)?triton|jax-cuda\d+-(plugin|pjrt)"
)
_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_TAG = re.compile(r"cu\d{2,3}")
_EXTRA = re.compile(r"cuda(\d+)")


class ProjectConflictError(BadInputError):
    """An option of the command line contradicts what the project declares."""

    code = "project-conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPin:
    """The framework of a project, and what it says about its release. `specifier`: "" for any;
    `pythons`: those that have this release and its companions, if other Pythons have others; () for
    any.
    """

    framework: Framework
    declared: tuple[Declared, ...] = ()
    specifier: str = ""
    cuda: Declared | None = None
    pythons: tuple[str, ...] = ()


def request_of(
    project: Project, given: Request, *, named: bool, arch: str, known: Sequence[str]
) -> Request:
    """The request for a project. `given` are the options of the command line, `named` whether they
    name the framework, `arch` the architecture of the hosts, `known` all Pythons, oldest first.

    ProjectConflictError: an option contradicts what the project declares.
    ProjectIncompleteError: its framework is only in an extra or group that is not installed.
    """
    declared = project.declared
    python, pythons, python_notes = _python(project, given, known)
    wanted = given.framework if named else None
    pin = framework_pin(declared, wanted, arch, [python] if python else pythons or known)
    if not pin.declared and not named:
        _refuse_without_framework(declared)
    allowed = [python] if python else pin.pythons or pythons or known
    packages = [one for one in declared.packages if _is_for_any(one, allowed, arch)]
    companions = tuple(_companions(packages, pin, given))
    constraints = tuple(_constraints(declared, pin, allowed, arch))
    exact = declared.locked or all(pin_of(one.requirement) for one in declared.packages)
    release = _release(pin, given)
    own = bool(given.companions)
    return given._replace(
        framework=pin.framework,
        framework_version=release or None,
        cuda=_cuda(pin, given),
        python=python,
        declared_in=declared.source,
        pythons=() if python else pin.pythons or pythons,
        companions=tuple(dict.fromkeys((*given.companions, *companions))),
        constraints=constraints,
        addresses=(*given.addresses, *declared.addresses),
        indexes=declared.indexes,
        settled=exact and not own and any(pin_of(one.requirement) for one in pin.declared),
        notes=(*_notes(project, pin, named=named), *python_notes),
    )


def _refuse_without_framework(declared: Declaration) -> None:
    """Refuse a project whose framework is in its extras or groups, of which none is installed: the
    image would get another release of it.
    """
    having = [
        (one, package)
        for one in declared.optional
        for package in one.declared.packages
        if package.name in _FRAMEWORKS
    ]
    if not having:
        return
    names = dict.fromkeys(f"{one.kind} {one.name}" for one, _ in having)
    package = having[0][1]
    raise ProjectIncompleteError(
        f"{declared.source} requires {package.name} only in its {' and '.join(names)} "
        f"({package.where}: {package.text}).",
        fix=f"Add one: {' or '.join(f'--{name}' for name in names)}; or name the framework: "
        f"--framework {_FRAMEWORKS[package.name]}",
    )


def with_locked_cuda(
    request: Request,
    declared: Declaration,
    *,
    arch: str,
    known: Sequence[str],
    cudas: Sequence[str],
    fits: Callable[[Request], bool],
) -> Request:
    """The request for the newest CUDA of an extra (`jax[cuda12]`), or for that whose runtime the
    project pins beside its framework, if it fits the hosts: the other packages of a lock are
    compiled for it. Else the plan chooses. `known`: all Pythons, oldest first; `cudas`: all CUDA
    versions. ProjectConflictError: an option names another CUDA than the extra.
    """
    python = request.python or (request.pythons or known)[-1]
    for one in declared.packages:
        of_extra = _cudas_of(one, cudas)
        if not of_extra or request.framework != "jax" or not _is_for(one, python, arch):
            continue
        asked = [request._replace(cuda=cuda) for cuda in of_extra]
        if request.cuda is None:
            return next(filter(fits, asked), asked[0])
        if request.cuda not in of_extra:
            raise ProjectConflictError(
                f"--cuda {request.cuda} contradicts {one.where}, which requires {one.text}.",
                fix=f"Remove --cuda, or change {one.file}.",
            )
    if request.cuda is not None:
        return request
    for one in (*declared.packages, *declared.constraints):
        version = pin_of(one.requirement) if _RUNTIME.fullmatch(one.name) else None
        if version is None or not _is_for(one, python, arch):
            continue
        found = request._replace(cuda=f"{version.major}.{version.minor}")
        if not fits(found):
            return request
        said = f"CUDA {found.cuda} is that of {one.name} {version} ({one.where})."
        return found._replace(notes=(*request.notes, Note(code="project-read", message=said)))
    return request


def _cudas_of(one: Declared, cudas: Sequence[str]) -> list[str]:
    """The CUDA versions that an extra of a requirement names, the newest first."""
    majors = {found[1] for extra in one.requirement.extras if (found := _EXTRA.match(extra))}
    return sorted((c for c in cudas if c.partition(".")[0] in majors), key=Version, reverse=True)


def framework_pin(
    declared: Declaration, wanted: Framework | None, arch: str, pythons: Sequence[str]
) -> FrameworkPin:
    """The framework of a project: the one that is wanted, else the first of PyTorch, TensorFlow and
    JAX that it requires, else that its lock has, else PyTorch. `pythons` are the allowed ones.
    """
    rows = [*declared.packages, *declared.constraints]
    names = [one.name for one in rows]
    direct = {one.name for one in declared.packages}
    framework = wanted or _first(direct) or _first(names) or "pytorch"
    own = [one for one in rows if one.name in _OWN[framework]]
    package = PACKAGES[framework]
    main = [one for one in own if one.name == package] or own
    paired = [one for one in rows if one.name in PAIRED] if framework == "pytorch" else []
    by_python = {
        python: tuple(one for one in (*main, *paired) if _is_for(one, python, arch))
        for python in pythons
    }
    groups = Counter(by_python.values())
    chosen = max(groups, key=lambda group: (_height(group, own), groups[group]), default=())
    main = [one for one in chosen if one in main]
    specifiers = dict.fromkeys(
        _public(clause) for one in main for clause in one.requirement.specifier
    )
    tags = [
        one._replace(text=parse_cuda(tag[0]))
        for one in main
        for version in [pin_of(one.requirement)]
        if version is not None and (tag := _TAG.fullmatch(version.local or ""))
    ]
    return FrameworkPin(
        framework=framework,
        declared=tuple(main),
        specifier=",".join(specifiers),
        cuda=next(iter(tags), declared.cuda),
        pythons=tuple(p for p, found in by_python.items() if found == chosen)
        if len(groups) > 1
        else (),
    )


def _height(rows: Iterable[Declared], own: Collection[Declared]) -> tuple[bool, Version]:
    """Sorts what a lock has for one Python: the newest release of the framework is the highest."""
    pins = [version for one in rows if one in own and (version := pin_of(one.requirement))]
    return bool(pins), max(pins, default=Version("0"))


def _first(names: Collection[str]) -> Framework | None:
    return next((known for known in TITLES if not _OWN[known].isdisjoint(names)), None)


def is_of_the_build(name: str, framework: Framework) -> bool:
    """Whether the plan chooses a package with the build of the framework: the framework itself, the
    libraries that come with it, and what each of its releases has a version of.
    """
    return name in _OWN[framework] or name in PAIRED or _BROUGHT.fullmatch(name) is not None


def _is_for(one: Declared, python: str, arch: str) -> bool:
    """Whether a line counts for a Python, by its marker."""
    return is_met(one.requirement.marker, environment_of(python, arch))


def _is_for_any(one: Declared, pythons: Iterable[str], arch: str) -> bool:
    """Whether a line counts for one of these Pythons."""
    return one.requirement.marker is None or any(_is_for(one, p, arch) for p in pythons)


def _public(clause: object) -> str:
    """A clause without a local part ("==2.5.1+cu121" -> "==2.5.1"): the plan chooses the build."""
    return str(clause).partition("+")[0].replace("===", "==")


def _cuda(pin: FrameworkPin, given: Request) -> str | None:
    if pin.cuda is None or given.cuda in {None, pin.cuda.text}:
        return given.cuda or (pin.cuda.text if pin.cuda else None)
    raise ProjectConflictError(
        f"--cuda {given.cuda} contradicts {pin.cuda.where}, which names CUDA {pin.cuda.text}.",
        fix=f"Remove --cuda, or change {pin.cuda.where}.",
    )


def _release(pin: FrameworkPin, given: Request) -> str:
    """The specifier for the framework; an option narrows that of the project."""
    asked = given.framework_version or ""
    if not asked or not pin.specifier:
        return asked or pin.specifier
    package = PACKAGES[pin.framework]
    mine, theirs = Requirement(f"{package}{asked}"), Requirement(f"{package}{pin.specifier}")
    for one, other in ((mine, theirs), (theirs, mine)):
        version = pin_of(one)
        if version is not None and not other.specifier.contains(version, prereleases=True):
            line = pin.declared[0]
            raise ProjectConflictError(
                f"--framework-version {asked.removeprefix('==')} contradicts {line.where}, which "
                f"requires {line.text}.",
                fix=f"Remove --framework-version, or change {line.where}.",
            )
    return str(SpecifierSet(f"{asked},{pin.specifier}")) if asked != pin.specifier else asked


def _python(
    project: Project, given: Request, known: Sequence[str]
) -> tuple[str | None, tuple[str, ...], tuple[Note, ...]]:
    """The Python, the ones that are allowed, and what is worth saying about them."""
    limit = project.declared.python
    allowed = allowed_by(limit.text, known) if limit else ()
    if limit is not None and not allowed:
        raise ProjectConflictError(
            f"{limit.where} requires Python {limit.text}; the known ones are {known[0]} to "
            f"{known[-1]}.",
            fix=f"Correct it in {limit.file}, or update the catalog: provision catalog refresh",
        )
    if given.python is not None:
        if allowed and given.python not in allowed:
            assert limit is not None
            raise ProjectConflictError(
                f"--python {given.python} contradicts {limit.where}, which allows Python "
                f"{limit.text}.",
                fix=f"Remove --python, or change {limit.where}.",
            )
        return given.python, (), ()
    if project.python is not None and project.python.text in (allowed or [project.python.text]):
        note = f"Python {project.python.text} is that of {project.python.file}."
        return project.python.text, (), (Note(code="project-read", message=note),)
    return None, allowed, ()


def _companions(packages: Iterable[Declared], pin: FrameworkPin, given: Request) -> Iterator[str]:
    """The packages that are installed beside the framework, as requirements."""
    asked: dict[str, str] = {
        canonicalize_name(Requirement(text).name): text for text in given.companions
    }
    for one in packages:
        requirement = one.requirement
        if one.name in _OWN[pin.framework]:
            continue  # the plan has it, with its build for the GPU
        if pin.declared and _BROUGHT.fullmatch(one.name):
            continue
        if one.name in asked:
            _refuse_contradiction(asked[one.name], one)
        yield _without_build(requirement) if one.name in PAIRED else one.text


def _constraints(
    declared: Declaration, pin: FrameworkPin, pythons: Sequence[str], arch: str
) -> Iterator[str]:
    for one in declared.constraints:
        if one.name in PAIRED and not _is_for_any(one, pythons, arch):
            continue
        if one.name in _OWN[pin.framework]:
            continue
        if pin.declared and _BROUGHT.fullmatch(one.name):
            continue
        requirement = one.requirement
        requirement.extras = set()
        yield _without_build(requirement) if one.name in PAIRED else str(requirement)


def _without_build(requirement: Requirement) -> str:
    """torchvision==0.20.1+cpu -> torchvision==0.20.1; its build is that of the framework."""
    clauses = [_public(clause) for clause in requirement.specifier]
    requirement.specifier = SpecifierSet(",".join(clauses))
    return str(requirement)


def _refuse_contradiction(text: str, declared: Declared) -> None:
    mine, theirs = Requirement(text), declared.requirement
    for one, other in ((mine, theirs), (theirs, mine)):
        version = pin_of(one)
        if version is not None and not other.specifier.contains(version, prereleases=True):
            raise ProjectConflictError(
                f"--with {text} contradicts {declared.where}, which requires {declared.text}.",
                fix=f"Remove --with {text!r}, or change {declared.where}.",
            )


def _notes(project: Project, pin: FrameworkPin, *, named: bool) -> Iterator[Note]:
    for text in project.notes:
        yield Note(code="project-read", message=text)
    title = TITLES[pin.framework]
    if not pin.declared and not named:
        yield Note(
            code="project-framework",
            message=f"{project.declared.source} requires no framework; the image gets {title} "
            "(another one: --framework).",
        )
    others = _others(project.declared.packages, pin.framework)
    if others and not named:
        yield Note(
            code="project-framework",
            message=f"The plan is for {title}; {' and '.join(others)} "
            f"{'is' if len(others) == 1 else 'are'} installed beside it (to "
            "plan for it instead: --framework).",
        )
    for one in pin.declared:
        version = pin_of(one.requirement)
        if (version and version.local and not _TAG.fullmatch(version.local)) or (
            one.name == "tensorflow-cpu"
        ):
            yield Note(
                code="project-left-out",
                message=f"{one.text} ({one.where}) is not a build for CUDA; the image gets the "
                "same release for CUDA.",
            )
    if project.declared.indexes:
        places = "; ".join(f"{shown_url(p.url)} ({p.where})" for p in project.declared.indexes)
        yield Note(code="project-read", message=f"Packages are looked for there, too: {places}.")
    if project.declared.left_out:
        yield Note(
            code="project-left-out",
            message=f"Not taken from the project: {'; '.join(project.declared.left_out)}.",
        )


def _others(packages: Sequence[Declared], framework: Framework) -> list[str]:
    names: Iterable[str] = (one.name for one in packages)
    found = dict.fromkeys(_FRAMEWORKS[name] for name in names if name in _FRAMEWORKS)
    return [TITLES[other] for other in found if other != framework]
