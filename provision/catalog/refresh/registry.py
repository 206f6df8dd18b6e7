"""Image tags of a registry -> rows of `images` and `python_images`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.refresh.known import CurrentRows
from provision.catalog.refresh.model import Sighting, SourceError, SourceReading
from provision.catalog.refresh.shared import note_absent

_CUDA_TAG = re.compile(
    r"(\d+\.\d+)(?:\.\d+)?(?:-cudnn\d*)?(?:-tensorrt\d*)?-(?:base|runtime|devel)-[a-z]+[\d.]+",
    re.ASCII,
)
_PYTHON_TAG = re.compile(r"(3\.\d+)-slim-([a-z]+)", re.ASCII)


def cuda_repository(catalog: Catalog, registry: str | None) -> str:
    """Where NVIDIA's images are: "docker.io/nvidia/cuda", or the same below another registry."""
    return _moved((row.reference for row in catalog.images), registry)


def python_repository(catalog: Catalog, registry: str | None) -> str:
    """Where the official Python images are."""
    return _moved((row.reference for row in catalog.python_images), registry)


def read_cuda_images(
    tags: Sequence[str], name: str, known: CurrentRows, *, is_own: bool
) -> SourceReading:
    """The images that a tag list shows. `is_own`: not a mirror, so a tag that is not listed does
    not exist; a mirror lists only what it has been asked for.
    """
    reading = SourceReading(source="cuda-images")
    listed = {tag: cuda for tag in tags if (cuda := cuda_of_image(tag)) is not None}
    if not listed:
        raise _nothing(name, "nvidia/cuda")
    oldest = min((v for t in _tags(known) if (v := cuda_of_image(t))), default=Version("0"))
    for tag in sorted(listed, key=lambda tag: (listed[tag], tag)):
        row = known.row("images", {"tag": tag})
        if row is None and listed[tag] >= oldest:
            reading.add("images", tag=tag, archs=None, status="seen")
        elif row is not None and row["status"] == "inferred":
            reading.add("images", tag=tag, status="seen", confidence="confirmed")
    if is_own:
        for row in known.rows("images"):
            if row["tag"] not in listed and row["status"] in {"supported", "seen"}:
                patch = {"status": "end-of-life"}
                note_absent(reading, "images", row, patch, f"{name} does not have it any more")
    return reading


def read_python_images(
    tags: Sequence[str], name: str, known: CurrentRows, *, is_own: bool
) -> SourceReading:
    """The official Python images of the Debian releases that the catalog knows."""
    reading = SourceReading(source="python-images")
    listed = {(found[1], found[2]) for tag in tags if (found := _PYTHON_TAG.fullmatch(tag))}
    if not listed:
        raise _nothing(name, "python")
    suites = [row.suite for row in known.catalog.debian_suites]
    pythons = [Version(str(row["python"])) for row in known.rows("python_images")]
    oldest, newest = min(pythons), max(pythons)
    for python, suite in sorted(
        listed, key=lambda pair: (_rank(suites, pair[1]), Version(pair[0]))
    ):
        key = {"python": python, "suite": suite}
        row = known.row("python_images", key)
        if row is not None:
            reading.add("python_images", **key, confidence="confirmed")
        elif suite in suites and Version(python) >= oldest:
            reading.add("python_images", **key)
        elif suite not in suites and Version(python) >= newest:  # newer than the known ones
            words = f"{name} has python for {suite}, a release of Debian that the catalog lacks"
            reading.seen.append(Sighting(table="python_images", key=key, kind="new", words=words))
    if is_own:
        for row in known.rows("python_images"):
            gone = (row["python"], row["suite"]) not in listed
            if gone and row["confidence"] != "doubtful":
                patch = {"confidence": "doubtful"}
                words = f"{name} does not have it any more"
                note_absent(reading, "python_images", row, patch, words)
    return reading


def cuda_of_image(tag: str) -> Version | None:
    """The CUDA X.Y of an image's tag; None: not one of NVIDIA's finished images."""
    found = _CUDA_TAG.fullmatch(tag)
    return Version(found[1]) if found else None


def _moved(references: Iterable[str], registry: str | None) -> str:
    first = next(iter(references), None)
    if first is None:
        raise SourceError("The catalog has no image.", fix="Reinstall gpu-provision.")
    repository = first.rpartition(":")[0]
    return f"{registry.rstrip('/')}/{repository.partition('/')[2]}" if registry else repository


def _tags(known: CurrentRows) -> list[str]:
    return [str(row["tag"]) for row in known.rows("images")]


def _rank(suites: Sequence[str], suite: str) -> tuple[int, str]:
    return (suites.index(suite) if suite in suites else len(suites), suite)


def _nothing(name: str, repository: str) -> SourceError:
    return SourceError(
        f"{name} lists no tag of {repository} that the catalog could use.",
        fix="Name a registry that has it: --registry HOST",
    )
