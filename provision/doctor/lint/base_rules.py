"""Rules for the images that a Dockerfile builds from."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows.bases import CudaImage
from provision.doctor.lint.dockerfile import Dockerfile, Stage
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.images import CudaBase, cuda_base
from provision.sources.packages import Position


def base_rules(file: Dockerfile, catalog: Catalog) -> Iterator[RuleHit]:
    for stage in file.stages:
        at = _image_place(stage)
        if stage.image is not None:
            yield from judge_image(stage.image, at, stage.instruction.text.text, catalog)
            yield from _ended(stage, at)


def judge_image(image: str, at: Position, written: str, catalog: Catalog) -> Iterator[RuleHit]:
    """Check the tag of a CUDA image: missing, malformed, or not published by NVIDIA.

    `written` is the text in the file, where the change is to be made.
    """
    base = cuda_base(image)
    if base is None:
        return
    if base.tag in {"", "latest"}:
        yield RuleHit(
            rule="cuda-tag-none",
            at=at,
            message=f"{base.name} has no tag latest: NVIDIA removed it, and the pull fails.",
            fix=f"Write a whole tag, for example {base.name}:{_newest(catalog)}",
        )
        return
    row = catalog.cuda_image(base.tag)
    if row is not None and base.cuda is not None:
        yield from _ending(base, row, at, catalog)
    if row is not None or base.full is None:
        return
    siblings = [row for row in catalog.images if row.full == base.full]
    newest = max(Version(row.full) for row in catalog.images if row.listed)
    whole = any(row.listed for row in siblings)
    if Version(base.full) > newest or (siblings and not whole):
        return  # newer than NVIDIA's list: of such images only some have been seen
    instead = _nearest(base, catalog)
    known = bool(siblings) or base.flavour is None or base.os is None
    yield RuleHit(
        rule="cuda-tag-unknown",
        at=at,
        level="error" if known else "warning",
        message=f"{base.tag} is not among NVIDIA's images: it never was, or it was removed."
        if known
        else f"{base.tag} is not in NVIDIA's list of images any more; removed tags cannot be "
        "pulled.",
        fix=f"Write {base.name}:{instead}" if instead else "Choose a tag of NVIDIA's list.",
        swap=(base.tag, instead) if instead and written.count(base.tag) == 1 else None,
    )


def _ending(base: CudaBase, row: CudaImage, at: Position, catalog: Catalog) -> Iterator[RuleHit]:
    """NVIDIA ends the images of a CUDA when two newer majors are released."""
    newest = max(int(one.partition(".")[0]) for one in catalog.cuda_versions())
    if row.status != "end-of-life" and newest - int(base.major or newest) < 2:
        return
    yield RuleHit(
        rule="cuda-tag-ending",
        at=at,
        message=f"{base.name}:{base.tag} is past its end of life by NVIDIA's policy, and NVIDIA "
        "deletes such tags.",
        fix="Copy it to your own registry and build from there, or take a newer CUDA.",
    )


def _newest(catalog: Catalog) -> str:
    rows = [row for row in catalog.devel if row.listed]
    return max(rows, key=lambda row: (Version(row.full), row.os, not row.cudnn)).tag


def _nearest(base: CudaBase, catalog: Catalog) -> str | None:
    """The newest image of the same CUDA, flavour and system, else with the newest Ubuntu."""
    rows = [
        row
        for row in catalog.images
        if row.cuda == base.cuda
        and row.flavour == (base.flavour or "devel")
        and row.cudnn == base.cudnn
        and not row.tensorrt
        and row.os.startswith("ubuntu")
    ]
    same = [row for row in rows if row.os == base.os] or rows
    best = max(same, key=lambda row: (Version(row.full), row.os), default=None)
    return best.tag if best else None


def _ended(stage: Stage, at: Position) -> Iterator[RuleHit]:
    base = cuda_base(stage.image)
    row = table("known.toml")["ended"].get(base.os) if base else None
    if base is None or row is None:
        return
    gone = " Its package mirrors have moved, so installing packages fails." if row["gone"] else ""
    yield RuleHit(
        rule="base-ended",
        at=at,
        level="warning" if row["gone"] else "note",
        message=f"{base.os} has had no standard support since {row['since']}.{gone}",
        fix="Build from a newer system of the same CUDA.",
    )


def _image_place(stage: Stage) -> Position:
    text = stage.instruction.text
    flags = text.text
    offset = 0
    for word in flags.split():
        if not word.startswith("--"):
            offset = flags.index(word, offset)
            break
        offset = flags.index(word, offset) + len(word)
    return text.at(offset)
