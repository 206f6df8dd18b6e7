"""The rows of images: what their tags say, and which of NVIDIA's to prefer.

A tag of NVIDIA's says everything: "12.8.1-cudnn-devel-ubuntu24.04". It named cuDNN's major until
NVIDIA dropped it ("-cudnn8-", "-cudnn-"); the images of 10.2 have no third number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from provision.catalog.rows.bases import (
    CudaImage,
    DebianSuite,
    DevelImage,
    PythonImage,
    StartRule,
    UbuntuRelease,
)
from provision.catalog.values import WrongError

_TAG = re.compile(
    r"(?P<full>(?P<cuda>\d+\.\d+)(?:\.\d+)?)(?P<cudnn>-cudnn\d*)?(?P<tensorrt>-tensorrt\d*)?"
    r"-(?P<flavour>base|runtime|devel)-(?P<os>[a-z]+[\d.]+)",
    re.ASCII,
)


def image_maker(template: str, ubuntus: Iterable[UbuntuRelease]) -> Callable[..., CudaImage]:
    """Returns a function that makes the row of a tag; its Python and glibc are those of its
    Ubuntu.
    """
    by_name = {f"ubuntu{row.release}": row for row in ubuntus}

    def make(*, tag: str, cudnn: str | None = None, **values: object) -> CudaImage:
        said = _TAG.fullmatch(tag)
        if said is None:
            raise WrongError(f"{tag!r} is not a tag such as 12.8.1-cudnn-devel-ubuntu24.04")
        below = by_name.get(said["os"])
        devel = said["flavour"] == "devel" and below is not None
        image: Callable[..., CudaImage] = DevelImage if devel else CudaImage
        return image(
            tag=tag,
            cuda=said["cuda"],
            full=said["full"],
            flavour=said["flavour"],
            cudnn=said["cudnn"] is not None,
            cudnn_version=cudnn,
            tensorrt=said["tensorrt"] is not None,
            os=said["os"],
            reference=template.format(tag=tag),
            python=below.python if below else None,
            glibc=below.glibc if below else None,
            **values,
        )

    return make


def python_image_maker(template: str, suites: Iterable[DebianSuite]) -> Callable[..., PythonImage]:
    """Returns a function that makes the row of an official Python image; its glibc is that of its
    suite.
    """
    by_name = {row.suite: row for row in suites}
    image: Callable[..., PythonImage] = PythonImage

    def make(*, python: str, suite: str, **values: object) -> PythonImage:
        below = by_name.get(suite)
        if below is None:
            raise WrongError(f"suite {suite} is not among debian_suites")
        reference = template.format(python=python, suite=suite)
        return image(python=python, suite=suite, reference=reference, glibc=below.glibc, **values)

    return make


def newest_first(images: Iterable[CudaImage]) -> tuple[CudaImage, ...]:
    """The newest toolkit first; for one toolkit the newest Ubuntu, then the other systems."""
    return tuple(sorted(images, key=lambda row: (_figures(row.full), _ubuntu(row)), reverse=True))


def best_first(images: Iterable[DevelImage]) -> tuple[DevelImage, ...]:
    """The newest Ubuntu first; for each, images that NVIDIA lists before those only seen elsewhere,
    the newest toolkit first.
    """
    return tuple(
        sorted(
            images,
            key=lambda row: (_ubuntu(row), row.listed, _figures(row.full)),
            reverse=True,
        )
    )


def rules_by_image(rules: Iterable[StartRule]) -> dict[tuple[str, str], StartRule]:
    """Start rules by (full CUDA version, system)."""
    return {(rule.cuda, os): rule for rule in rules for os in rule.os}


def _figures(version: str) -> tuple[int, ...]:
    return tuple([int(figure) for figure in version.split(".")])


def _ubuntu(row: CudaImage) -> tuple[int, ...]:
    return _figures(row.os.removeprefix("ubuntu")) if row.os.startswith("ubuntu") else ()
