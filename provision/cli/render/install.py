"""Render a plan as commands for a host without containers: for uv, for pip, or a conda file.

The wheels are those of the image. What the image would have brought beside them is named in
comments, since no package installer brings it.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from provision.model.plan import RUNS, TITLES, Plan
from provision.output.style import WIDTH
from provision.resolve.builds import Build
from provision.resolve.packages import EVERYWHERE

_VENV = ".venv"


class HostInstall(NamedTuple):
    """What is installed on a host, whatever installs it.

    `packages` are requirement lines, the framework's first. `index_url` is that of the index to use
    beside the installer's default one; None: only the default one. `remarks` are sentences.
    """

    name: str
    python: str
    index_url: str | None
    packages: tuple[str, ...]
    remarks: tuple[str, ...]


def host_install(plan: Plan, build: Build) -> HostInstall:
    """What installs a plan that fits, from the first of its indexes; `build` is the plan's."""
    first = plan.indexes[0]
    return HostInstall(
        name=f"{plan.framework}-{plan.framework_version}-{plan.wheel_tag or f'cuda{plan.cuda}'}",
        python=str(plan.python),
        index_url=first.address if first.url else None,
        packages=(first.requirement, *plan.requirements),
        remarks=(
            f"{build.name} for {plan.arch} and Python {plan.python}: {RUNS[plan.verdict]}.",
            *_needs(plan, build),
            *_indexes(plan),
        ),
    )


def as_uv(install: HostInstall) -> str:
    """A shell script. uv takes a package from the first index that has it, and asks --index before
    the default one: https://docs.astral.sh/uv/concepts/indexes/
    """
    remarks = [f"uv downloads Python {install.python} if the host has none."]
    if install.index_url:
        remarks.append(
            f"uv prefers {install.index_url}; only packages that it lacks come from the default "
            "index."
        )
    index = [("--index", install.index_url)] if install.index_url else []
    return _script(
        (*install.remarks, *remarks),
        [("uv", "venv", "--python", install.python, _VENV)],
        [("uv", "pip", "install", "--python", _VENV), *index, *zip(install.packages)],
    )


def as_pip(install: HostInstall) -> str:
    """A shell script. pip takes the highest version of all indexes, so a framework's local version
    must name its build: https://pip.pypa.io/en/stable/cli/pip_install/#finding-packages
    """
    python = f"python{install.python}"
    remarks = [
        f"{python} must be installed on the host; --python plans for another version.",
        *_without_priority(install),
    ]
    return _script((*install.remarks, *remarks), *_pip(install))


def pip_commands(install: HostInstall) -> tuple[str, ...]:
    """The commands of `as_pip`, each on a line, what is installed first."""
    return tuple(
        shlex.join(word for part in sorted(one, key=_is_index) for word in part)
        for one in _pip(install)
    )


def _is_index(part: Sequence[str]) -> bool:
    return part[0] == "--extra-index-url"


def _pip(install: HostInstall) -> tuple[Sequence[Sequence[str]], ...]:
    return (
        [(f"python{install.python}", "-m", "venv", _VENV)],
        [
            (f"{_VENV}/bin/python", "-m", "pip", "install"),
            *([("--extra-index-url", install.index_url)] if install.index_url else []),
            *zip(_beside_pip(install)),
        ],
    )


def as_conda(install: HostInstall) -> str:
    """An environment.yml. conda brings Python and pip, and pip the same wheels as elsewhere: the
    catalog has no conda packages.
    """
    remarks = [
        "Create it with: conda env create -f environment.yml",
        *install.remarks,
        "conda installs Python and pip; pip installs the wheels.",
        *_without_priority(install),
    ]
    index = [f"--extra-index-url {install.index_url}"] if install.index_url else []
    return "\n".join(
        [
            *_comments(remarks),
            f"name: {install.name}",
            "channels:",
            "  - conda-forge",
            "dependencies:",
            f"  - python={install.python}",
            "  - pip",
            "  - pip:",
            # A JSON string is a YAML string, and needs no rule for what YAML reads otherwise.
            *(f"      - {json.dumps(line)}" for line in (*index, *_beside_pip(install))),
        ]
    )


FORMATS: Mapping[str, Callable[[HostInstall], str]] = {
    "uv": as_uv,
    "pip": as_pip,
    "conda": as_conda,
}
"""What --format can be."""


def _needs(plan: Plan, build: Build) -> Iterator[str]:
    """What the host must have."""
    if plan.compat_package:
        yield (
            f"Driver {plan.driver_have} runs CUDA {plan.cuda} only with NVIDIA's "
            f"{plan.compat_package}, which the image would contain and pip cannot install. Install "
            "it on the host and put its directory first in LD_LIBRARY_PATH, or upgrade to driver "
            f"{plan.driver_need} or newer."
        )
    elif plan.driver_need:
        have = f"it has {plan.driver_have}" if plan.driver_have else "none was found"
        yield f"The host needs NVIDIA driver {plan.driver_need} or newer ({have})."
    if build.glibc:
        yield f"The {TITLES[plan.framework]} wheel needs glibc {build.glibc} or newer."
    yield from _beside_wheels(plan, build)


def is_alone(plan: Plan, build: Build) -> bool:
    """Whether the host needs nothing but a driver and what the commands install."""
    return plan.compat_package is None and not [*_beside_wheels(plan, build)]


def _beside_wheels(plan: Plan, build: Build) -> Iterator[str]:
    """What the plan's image would have brought beside the wheels."""
    title = TITLES[plan.framework]
    if build.libraries == "system":
        cudnn = f" and cuDNN {plan.cudnn}" if plan.cudnn else " and cuDNN"
        yield (
            f"{title} {plan.framework_version} loads CUDA {plan.cuda}{cudnn} from the system: "
            "install them on the host, where the dynamic loader finds them."
        )
    elif plan.framework == "tensorflow":
        yield "Only an image lists the CUDA libraries of the wheels for the dynamic loader."
        yield "If TensorFlow sees no GPU: provision doctor explain tf-gpu-libraries-missing"
    if plan.flavour == "devel":
        toolkit = f"the CUDA Toolkit {plan.cuda}, "
        if plan.base is not None and plan.base.kind == "bootstrap":  # then nvcc is in a wheel
            toolkit = "CUDA_HOME set to the directory of the wheels that has bin/nvcc, "
        yield f"To compile extensions, the host needs {toolkit}g++, make and Python's headers."


def _indexes(plan: Plan) -> Iterator[str]:
    """The credentials that are not printed, and the indexes that are not used."""
    first, *others = plan.indexes
    if first.url is not None and first.url != first.address:
        yield (
            f"The login for {first.address} is not printed: put it into ~/.netrc, which uv and "
            "pip read."
        )
    for other in others:
        place = other.address if other.url else other.name
        yield f"Alternative: {other.requirement} from {place} ({other.why})."


def _without_priority(install: HostInstall) -> Iterator[str]:
    """Why pip cannot take the framework from the wrong index; or that it may take either."""
    if install.index_url is None:
        return
    framework = install.packages[0]
    if "+" in framework:
        yield (
            "pip has no order of indexes, but PyPI has no local versions, so "
            f"{framework} comes from {install.index_url}."
        )
    else:
        yield (
            f"pip has no order of indexes: {framework} comes from {install.index_url} or from the "
            "default index."
        )


def _beside_pip(install: HostInstall) -> list[str]:
    """The packages of an environment that has pip."""
    return [line for line in install.packages if line not in EVERYWHERE]


def _script(remarks: Sequence[str], *commands: Sequence[Sequence[str]]) -> str:
    """Comments, then commands of which each runs only if the one before succeeded."""
    lines = [" \\\n  ".join(shlex.join(words) for words in command) for command in commands]
    return "\n".join([*_comments(remarks), " &&\n".join(lines)])


def _comments(remarks: Sequence[str]) -> list[str]:
    """Each remark in lines that all begin with a number sign, whatever is in it."""
    return [
        line
        for remark in remarks
        for line in textwrap.wrap(
            remark,
            WIDTH,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
