"""What an image's name says: an NVIDIA CUDA image, a distribution, a Python."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.doctor.lint.findings import table

_CUDA_TAG = re.compile(
    r"(?P<full>(?P<cuda>\d+\.\d+)(?:\.\d+)?)(?P<cudnn>-cudnn\d*)?(?:-tensorrt\d*)?"
    r"(?:-(?P<flavour>base|runtime|devel))?(?:-(?P<os>[a-z]+[\d.]+))?",
    re.ASCII,
)
_PYTHON = re.compile(r"(?:.*/)?python:(3\.\d+)(?:[.-].*)?")
_SYSTEM = re.compile(r"(?:.*/)?(ubuntu|debian|centos):(\d+(?:\.\d+)?)(?:[.-].*)?")
_SUITE = re.compile(r"(?:.*/)?(?:ubuntu|debian|python):(?:.*-)?([a-z]+)(?:-\d+)?(?:-slim)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaBase:
    """An image of NVIDIA's; `tag` "" if there is none. What the tag does not say is None."""

    name: str
    tag: str
    cuda: str | None
    full: str | None
    flavour: str | None
    os: str | None
    cudnn: bool

    @property
    def major(self) -> str | None:
        return self.cuda.partition(".")[0] if self.cuda else None


def cuda_base(reference: str | None) -> CudaBase | None:
    """The CUDA image of a reference; None: another image, or one named by digest alone."""
    if reference is None or "@" in reference:
        return None
    name, _, tag = reference.partition(":")
    if name not in table("known.toml")["image"]["cuda"]:
        return None
    match = _CUDA_TAG.fullmatch(tag)
    said = match.groupdict() if match else {}
    return CudaBase(
        name=name,
        tag=tag,
        cuda=said.get("cuda"),
        full=said.get("full"),
        flavour=said.get("flavour"),
        os=said.get("os"),
        cudnn=bool(said.get("cudnn")),
    )


def python_of(reference: str | None) -> str | None:
    """The Python of an official image: "3.12"."""
    match = _PYTHON.fullmatch(reference or "")
    return match[1] if match else None


def system_python_of(reference: str | None) -> str | None:
    """The Python that the distribution in an image has as python3."""
    pythons: dict[str, str] = table("known.toml")["image"]["pythons"]
    return pythons.get(system_of(reference) or "")


def system_of(reference: str | None) -> str | None:
    """The distribution in an image, as CUDA's tags name it: "ubuntu22.04", "debian12"."""
    base = cuda_base(reference)
    if base is not None:
        return base.os
    match = _SYSTEM.fullmatch(reference or "")
    if match:
        return match[1] + (match[2] if match[1] == "ubuntu" else match[2].partition(".")[0])
    match = _SUITE.fullmatch(reference or "")
    suites: dict[str, str] = table("known.toml")["image"]["suites"]
    return suites.get(match[1]) if match else None
