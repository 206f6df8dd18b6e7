"""Judges whether the base is new enough for the compiled files: versions of glibc and others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from posixpath import basename
from typing import Any

from images.inspect.image import Inspection
from images.inspect.tree import ImageFile
from images.inspect.versions import newest_of
from provision.verification.inspection.outcome import (
    InspectionOutcome,
    and_more,
    path_of,
    table,
    tables,
    yes,
)


def judge_versions(found: Inspection) -> InspectionOutcome:
    """Whether the libraries have the versions that were linked against."""
    needs = found.needs
    if needs is None or not needs.files:
        return InspectionOutcome(status="skip", message="Nothing in it requires symbol versions.")
    failed = [one for one in needs.versions if one.required]
    measured = {
        "newest_asked": dict(needs.newest_asked),
        "provided": provided_versions(found),
        **tables(
            table(
                "Required versions that are missing",
                ("file", "version", "of", "newest available", "must load"),
                [
                    (
                        path_of(found, v.file),
                        v.version,
                        path_of(found, v.library),
                        v.newest or "none",
                        yes(v.required),
                    )
                    for v in sorted(needs.versions, key=lambda v: (not v.required, v.file))
                ],
            )
        ),
    }
    if failed:
        first = failed[0]
        what = "glibc" if first.version.startswith("GLIBC_") else basename(first.library)
        files = {one.file for one in failed}
        return InspectionOutcome(
            status="fail",
            message=f"{path_of(found, first.file)} needs {first.version} of "
            f"{path_of(found, first.library)}, which has at most {first.newest or 'none'}"
            f"{and_more(len(files) - 1, 'file that needs a newer version')}",
            cause=f"It was compiled against a newer {what} than the image has.",
            fix=f"Use a base with a newer {what} (--base IMAGE), or a build for an older one.",
            measured=measured,
        )
    if found.contents.kind == "wheel":
        return _versions_of_wheel(found, measured)
    glibc = measured["provided"].get("GLIBC")
    asked = needs.newest_asked.get("GLIBC")
    said = f"the newest required glibc is {asked.removeprefix('GLIBC_')}" if asked else ""
    has = f"the base has {glibc.removeprefix('GLIBC_')}" if glibc else "it contains no glibc"
    return InspectionOutcome(
        status="pass",
        message=", ".join(filter(None, (said, has))),
        measured=measured,
    )


def _versions_of_wheel(found: Inspection, measured: Mapping[str, Any]) -> InspectionOutcome:
    """Check a wheel against its own promise: its tag says that it runs on every glibc from a
    version on.
    """
    needs = found.needs
    asked = needs.newest_asked.get("GLIBC") if needs else None
    if asked is None:
        return InspectionOutcome(
            status="pass", message="it requires no version of glibc", measured=measured
        )
    promised = _promised(found.contents.tags)
    wanted = _numbers(asked.partition(" ")[0].removeprefix("GLIBC_"))
    said = f"it needs glibc {asked.removeprefix('GLIBC_')}"
    if promised is None:
        return InspectionOutcome(
            status="skip",
            message=f"{said}, but its tags name no version, and there is no base to check",
            cause="A wheel alone has no base.",
            fix="Inspect the image that it goes into: provision inspect IMAGE",
            measured=measured,
        )
    tag = ".".join(map(str, promised))
    if wanted > promised:
        return InspectionOutcome(
            status="skip",
            message=f"{said}, but its tags say {tag}: check it against a base",
            cause="The tags claim an older glibc than the wheel needs, as with many CUDA wheels.",
            fix="Inspect the image that it goes into: provision inspect IMAGE",
            measured=measured,
        )
    return InspectionOutcome(
        status="pass",
        message=f"{said}, and its tags require {tag} or newer",
        measured=measured,
    )


_OLD_TAGS = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}  # PEP 600


def _promised(tags: Sequence[str]) -> tuple[int, ...] | None:
    """Give the oldest glibc on which a wheel says it runs."""
    found = []
    for tag in tags:
        kind = tag.partition("_")[0]
        if kind in _OLD_TAGS:
            found.append(_OLD_TAGS[kind])
        elif match := re.match(r"manylinux_(\d+)_(\d+)_", tag):
            found.append((int(match[1]), int(match[2])))
    return min(found, default=None)


def provided_versions(found: Inspection) -> dict[str, str]:
    """The newest versions that the image's own runtime libraries have, by series."""
    best: dict[str, str] = {}
    wanted = {"libc.so.6": "GLIBC_0", "libstdc++.so.6": "GLIBCXX_0"}
    for path, node in found.contents.tree.walk():
        first = wanted.get(basename(path))
        file = found.contents.tree.file(path) if first else node
        if first and isinstance(file, ImageFile) and file.elf and file.elf.machine == found.machine:
            newest = newest_of(first, file.elf.provides)
            if newest:
                best.setdefault(first.partition("_")[0], newest)
    return best


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
