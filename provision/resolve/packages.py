"""What the lock will ask for: where the framework can be had, and what goes beside it."""

from __future__ import annotations

from provision.catalog import Catalog
from provision.model import TITLES, IndexCandidate, Request
from provision.resolve.builds import Build

EVERYWHERE = ("pip",)  # people type pip in an image
FOR_COMPILING = ("ninja", "setuptools")  # torch.utils.cpp_extension asks for them
PYTORCH_INDEXES = "https://pytorch.org/get-started/locally/"


def index_candidates(
    build: Build, request: Request, catalog: Catalog
) -> tuple[IndexCandidate, ...]:
    """The index that was named, then the PyTorch index, then PyPI where its default build is this
    one. The first that answers and has it serves, which the lock finds out.
    """
    plain = build.requirement
    exact = f"{plain}+{build.tag}" if build.tag else plain
    found: list[IndexCandidate] = []
    if request.index is not None:
        spellings = [exact, plain] if "pypi" in build.at else [exact]
        found += [
            IndexCandidate(name="--index", url=request.index, requirement=line, why="named by you")
            for line in dict.fromkeys(spellings)
        ]
    if "pytorch" in build.at:
        found.append(
            IndexCandidate(
                name=f"PyTorch index ({build.tag})",
                url=catalog.pytorch_index(build.tag or ""),
                requirement=exact,
                why="the project's own index, one folder a CUDA version",
            )
        )
    if "pypi" in build.at:
        why = f"its torch {build.version} is the {build.tag} build"
        if build.framework != "pytorch":
            why = f"{TITLES[build.framework]} is published there"
        found.append(IndexCandidate(name="PyPI", url=None, requirement=plain, why=why))
    return tuple(found)


def companion_requirements(
    build: Build, cudnn: str | None, request: Request, catalog: Catalog
) -> tuple[str, ...]:
    """The packages beside the framework: torchvision and torchaudio at the release's own version,
    NumPy (which torch needs for half of its interface) with the ABI the wheel was compiled for,
    which holds beside whatever else is asked of it; what makes an open range ours; and the
    compiler, where no base brings it.
    """
    lines = [*build.lines]
    paired: dict[str, str | None] = {}
    if build.framework == "pytorch":
        release = catalog.torch_release(build.version)
        assert release is not None
        paired = {"torchvision": release.torchvision, "torchaudio": release.torchaudio}
        lines.append(f"numpy{release.numpy or ''}")
    elif build.cudnn is None and cudnn is not None:
        lines.append(f"nvidia-cudnn-cu{build.cuda.partition('.')[0]}=={cudnn}")
    lines += EVERYWHERE
    if request.flavour == "devel":
        lines += FOR_COMPILING
    compiler = catalog.compiler_wheels(build.cuda)
    if compiler and request.flavour == "devel" and request.base == "bootstrap":
        lines.append(compiler.requirement)
    for text in request.companions:
        name = name_of(text)
        pair = paired.get(name)
        lines.append(f"{name}=={pair}" if pair and text == name else text)
    return tuple(dict.fromkeys(lines))


def name_of(requirement: str) -> str:
    """The canonical name of the package that a requirement asks for."""
    from packaging.requirements import Requirement  # 17 ms that most plans do without
    from packaging.utils import canonicalize_name

    return canonicalize_name(Requirement(requirement).name)
