"""The requirements of the lock: where the framework is available, and what is installed with it.

A companion with a requested version must match the build: torchvision and torchaudio its release
and its CUDA, NumPy its ABI, any other package with a CUDA in its local version
("2.5.6+cu118torch2.2") its CUDA major.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.pairs import may_go_with, pairs_of, versions_for
from provision.model.environment import environment_of, is_met
from provision.model.plan import PACKAGES, TITLES, Framework, IndexCandidate, Plan, Request
from provision.resolve.blockers import Blocker
from provision.resolve.builds import Build
from provision.resolve.specifiers import version as version_of

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

EVERYWHERE = ("pip",)  # users run pip in an image
FOR_COMPILING = ("ninja", "setuptools")  # torch.utils.cpp_extension needs them
PYTORCH_INDEXES = "https://pytorch.org/get-started/locally/"
PAIRED = ("torchvision", "torchaudio")
"""The packages of which each PyTorch release has a version of its own."""
FRAMEWORKS: Mapping[str, Framework] = {package: name for name, package in PACKAGES.items()}
"""The framework that a package is."""
_OWN: Mapping[str, Framework] = {**FRAMEWORKS, "jaxlib": "jax"}
_MOST_NAMED = 4
_CUDA_IN_LOCAL = r"cu(?:da)?(\d{2,3})(?!\d)"
_CUDA_IN_NAME = r"-cu(?:da)?(\d{2})x?(?=-|$)"


def in_few(names: Sequence[str]) -> str:
    """The first names in words: "vllm and peft"; of many, how many more there are."""
    if len(names) <= _MOST_NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED:,} more"


def index_candidates(
    build: Build, request: Request, catalog: Catalog
) -> tuple[IndexCandidate, ...]:
    """The named index, then the PyTorch index, then PyPI if its default build is this one. The lock
    uses the first that answers and has it.
    """
    plain = build.requirement
    exact = f"{plain}+{build.tag}" if build.tag else plain
    found: list[IndexCandidate] = []
    if request.index_url is not None:
        spellings = [exact, plain] if "pypi" in build.at else [exact]
        found += [
            IndexCandidate(
                name="--index", url=request.index_url, requirement=line, why="given by you"
            )
            for line in dict.fromkeys(spellings)
        ]
    if "pytorch" in build.at:
        found.append(
            IndexCandidate(
                name=f"PyTorch index ({build.tag})",
                url=catalog.pytorch_index(build.tag or ""),
                requirement=exact,
                why="the project's own index, with one directory for each CUDA version",
            )
        )
    if "pypi" in build.at:
        why = f"its torch {build.version} is the {build.tag} build"
        if build.framework != "pytorch":
            why = f"{TITLES[build.framework]} is published there"
        found.append(IndexCandidate(name="PyPI", url=None, requirement=plain, why=why))
    return tuple(found)


def companion_requirements(
    build: Build,
    cudnn: str | None,
    request: Request,
    catalog: Catalog,
    beside: Mapping[str, str],
) -> tuple[str, ...]:
    """The packages beside the framework: torchvision and torchaudio at the release's own version;
    NumPy (which torch needs for half of its interface) with the ABI the wheel was compiled for,
    whatever else is requested of it; the lines that narrow an open range; and the compiler, if no
    base brings it. `beside` are the requirements of other frameworks, by name.
    """
    lines = [*build.lines]
    paired = paired_versions(build, catalog)
    if build.framework == "pytorch":
        release = catalog.torch_release(build.version)
        assert release is not None
        lines.append(f"numpy{release.numpy or ''}")
    elif build.cudnn is None and cudnn is not None and not beside:  # the other may fix it
        lines.append(f"nvidia-cudnn-cu{build.cuda.partition('.')[0]}=={cudnn}")
    lines += EVERYWHERE
    if request.flavour == "devel":
        lines += FOR_COMPILING
    compiler = catalog.compiler_wheels(build.cuda)
    if compiler and request.flavour == "devel" and request.bootstraps:
        lines.append(compiler.requirement)
    for text, wanted in zip(request.companions, _read(request.companions), strict=True):
        pair = paired.get(wanted.name)
        # An index has the pair under its plain version or with its tag; the plain one asks both.
        exactly = text == wanted.name or wanted.pin is not None
        if _OWN.get(wanted.name) == build.framework and not wanted.more:
            continue
        exactly &= pair is not None and wanted.allows(pair)
        exact = f"{wanted.name}=={pair}" if exactly and not wanted.more else text
        if build.framework == "pytorch" and wanted.pin is None:
            exact = paired_line(exact, wanted.name, build.version)
        lines.append(beside.get(wanted.name, exact))
    return tuple(dict.fromkeys(lines))


def paired_line(line: str, name: str, release: str) -> str:
    """A requirement of a package, limited to the versions for a release of PyTorch, where only the
    catalog says which these are: "torchcodec" beside 2.7.1 -> "torchcodec<0.6,>=0.3".
    """
    versions = versions_for(name, release)
    if versions is None:
        return line
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    read = Requirement(line)
    if read.url is None:
        read.specifier &= SpecifierSet(versions)
    return str(read)


def asked_for(plan: Plan) -> frozenset[str]:
    """The packages that the user requested beside the framework; not those that every plan has,
    nor those that a marker leaves out of the image.
    """
    from packaging.requirements import Requirement

    ours = {"numpy", *EVERYWHERE, *FOR_COMPILING}
    environment = environment_of(plan.python or "", plan.arch or "")
    requirements = map(Requirement, plan.requirements)
    names = {one.name for one in requirements if is_met(one.marker, environment)}
    return frozenset(name for name in names - ours if not name.startswith("nvidia-"))


def paired_versions(build: Build, catalog: Catalog) -> Mapping[str, str | None]:
    """The companions that a build's release has versions of, and which; None: unknown."""
    release = catalog.torch_release(build.version) if build.framework == "pytorch" else None
    return {name: getattr(release, name) for name in PAIRED} if release else {}


def companion_blockers(build: Build, request: Request, catalog: Catalog) -> tuple[Blocker, ...]:
    """Requested companions that do not match this build."""
    if not request.companions:
        return ()
    found = (_against(build, wanted, catalog) for wanted in _read(request.companions))
    return tuple(blocker for blockers in found for blocker in blockers)


def ties(wanted: Companion, framework: Framework) -> bool:
    """Whether a companion limits which build of the framework it can be beside."""
    named = wanted.name in (*PAIRED, "numpy") or bool(pairs_of(wanted.name))
    paired = framework == "pytorch" and named
    local = re.search(_CUDA_IN_LOCAL, wanted.local) or re.search(_CUDA_IN_NAME, wanted.name)
    return paired or wanted.name in _OWN or local is not None


def partner(wanted: Companion, build: Build, catalog: Catalog) -> str | None:
    """The requirement for a companion that goes with a build; None: no version of it does."""
    if wanted.name == "numpy" and (abi := _numpy(build, catalog)):
        return f"numpy{abi}"
    if build.framework == "pytorch" and (versions := versions_for(wanted.name, build.version)):
        return f"{wanted.name}{versions}"
    pair = pair_for(build, wanted.name, catalog)
    return f"{wanted.name}=={pair}" if pair else None


def leading(request: Request) -> dict[str, str]:
    """The requested packages that decide the framework's release: name -> requirement.

    Not the framework itself, and not its companions, of which each release has its own version.
    """
    if request.settled:
        return {}
    return {
        wanted.name: wanted.text
        for wanted in _read(request.companions)
        if wanted.name not in _OWN and wanted.name not in PAIRED
    }


def frameworks_in(plan: Plan) -> dict[str, str]:
    """The requirements of a plan for other frameworks than its own, by the name of the package."""
    named = {name_of(line): line for line in plan.requirements}
    return {n: line for n, line in named.items() if FRAMEWORKS.get(n) not in {None, plan.framework}}


def seen_by(plan: Plan, framework: Framework) -> Plan:
    """What the suite may expect of another framework in the image of a plan: not its release, which
    the lock chose.
    """
    return plan._replace(
        framework=framework,
        framework_version=None,
        wheel_tag=None,
        cuda=None,
        cudnn=None,
        nccl=None,
        requirements=(),
    )


def companions_of(request: Request) -> tuple[Companion, ...]:
    """What --with requests."""
    return _read(request.companions)


def name_of(requirement: str) -> str:
    """The canonical name of the package that a requirement asks for."""
    return _read((requirement,))[0].name


class Companion(NamedTuple):
    """A companion as requested. `pin` is the only version it may have, `more` whether it has extras
    or a marker.
    """

    text: str
    name: str
    specifier: SpecifierSet
    pin: Version | None
    more: bool

    @property
    def local(self) -> str:
        """The local part of the pinned version: "cu118"."""
        return (self.pin.local if self.pin else None) or ""

    def allows(self, version: str) -> bool:
        """Whether this version is allowed; a local part is not compared."""
        if self.pin is None:
            return self.specifier.contains(version, prereleases=True)
        return version_of(self.pin.public) == version_of(version)


def _read(companions: tuple[str, ...]) -> tuple[Companion, ...]:
    return _parsed(companions) if companions else ()


@lru_cache(maxsize=64)
def _parsed(companions: tuple[str, ...]) -> tuple[Companion, ...]:
    from packaging.requirements import Requirement  # 17 ms that most plans do not need
    from packaging.utils import canonicalize_name

    def read(text: str) -> Companion:
        asked = Requirement(text)
        exact = [s.version for s in asked.specifier if s.operator == "==" and "*" not in s.version]
        return Companion(
            text,
            canonicalize_name(asked.name),
            asked.specifier,
            version_of(exact[0]) if len(exact) == 1 else None,
            bool(asked.extras or asked.marker),
        )

    return tuple(read(text) for text in companions)


def _against(build: Build, wanted: Companion, catalog: Catalog) -> Iterator[Blocker]:
    own = _OWN.get(wanted.name) == build.framework
    pair = pair_for(build, wanted.name, catalog)
    if own and not wanted.allows(build.version):
        yield _blocker(build, f"{wanted.text} conflicts with {build.name}.")
    elif pair and not wanted.allows(pair) and not _may_pair(wanted, pair, catalog):
        yield _blocker(
            build, f"{wanted.text} does not match {build.name}, which needs {wanted.name} {pair}."
        )
    elif wanted.name == "numpy" and (abi := _numpy(build, catalog)) and not _may(wanted, abi):
        yield _blocker(
            build,
            f"{wanted.text} does not fit {build.name}, which was compiled for numpy{abi}.",
        )
    elif build.framework == "pytorch" and not may_go_with(
        wanted.name, wanted.specifier, build.version
    ):
        yield _not_paired(build, wanted)
    yield from _against_cuda(build, wanted, pair or (build.version if own else None))


def _not_paired(build: Build, wanted: Companion) -> Blocker:
    versions = versions_for(wanted.name, build.version)
    needs = f", which needs {wanted.name} {versions}" if versions else ""
    return _blocker(
        build,
        f"{wanted.text} does not match {build.name}"
        f"{needs or f': no release of {wanted.name} is for it'}.",
    )


def pair_for(build: Build, name: str, catalog: Catalog) -> str | None:
    """The version of a companion beside a build: its release's own; where the companion has had no
    release since, its last one, which asks for no PyTorch in particular.
    """
    if build.framework != "pytorch" or name not in PAIRED:
        return None
    pairs = [
        getattr(row, name)
        for row in catalog.torch_releases
        if getattr(row, name) and version_of(row.version) <= version_of(build.version)
    ]
    return max(pairs, key=version_of, default=None)


def _against_cuda(build: Build, wanted: Companion, pair: str | None) -> Iterator[Blocker]:
    """A package that names a CUDA, in its local version or its name, must name that of the build:
    the framework and its companions exactly, any other package the major.
    """
    if pair is not None and wanted.local and build.tag and wanted.local != build.tag:
        theirs = _cuda_of(re.search(_CUDA_IN_LOCAL, wanted.local))
        yield _blocker(
            build,
            f"{wanted.text} is for CUDA {theirs}, but {build.name} for CUDA {build.cuda}."
            if theirs
            else f"{wanted.text} is not a build for CUDA {build.cuda}, but {build.name} is.",
        )
        return
    said = re.search(_CUDA_IN_LOCAL, wanted.local) or re.search(_CUDA_IN_NAME, wanted.name)
    theirs = _cuda_of(said)
    if pair is None and theirs and theirs.partition(".")[0] != build.cuda.partition(".")[0]:
        yield _blocker(
            build,
            f"{wanted.text} is for CUDA {theirs}, but {build.name} for CUDA {build.cuda}.",
        )


def _cuda_of(found: re.Match[str] | None) -> str | None:
    """118 -> "11.8", 92 -> "9.2"; two digits from 10 on are a major: 12 -> "12"."""
    if found is None:
        return None
    figures = found[1]
    if len(figures) == 2 and figures.startswith("1"):
        return figures
    return f"{figures[:-1]}.{figures[-1]}"


def _may_pair(wanted: Companion, pair: str, catalog: Catalog) -> bool:
    """Whether a version that is no release's own in the catalog may match, since it is of the same
    series: torchvision 0.15.0 was withdrawn for 0.15.1, and requires PyTorch 2.0.0, too. Its
    metadata decides.
    """
    if wanted.pin is None or wanted.pin.release[:2] != version_of(pair).release[:2]:
        return False
    rows = (getattr(row, wanted.name) for row in catalog.torch_releases)
    return not any(own and wanted.allows(own) for own in rows)


def _numpy(build: Build, catalog: Catalog) -> str | None:
    release = catalog.torch_release(build.version) if build.framework == "pytorch" else None
    return release.numpy if release else None


def _may(wanted: Companion, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return wanted.pin is None or SpecifierSet(specifier).contains(wanted.pin, prereleases=True)


def _blocker(build: Build, message: str) -> Blocker:
    return Blocker(code="companion-mismatch", message=message, source=build.source)
