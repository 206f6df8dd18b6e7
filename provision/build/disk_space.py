"""Whether the disks can hold a build, all of it, checked before anything is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from images.assembly.build import Recipe
from images.engines.runner import DockerRunner, choose_runner
from images.engines.sandbox.roots import Roots
from images.errors import DiskFullError, Failure
from images.oci.model import Descriptor, Platform, host_platform
from images.oci.sources import Image, KnownLayer, LayerSource
from images.store.errors import in_units
from provision.build.destination import Destination

UNPACKED = 2
"""How many times the size of its layers an image has when it is unpacked, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes that will be written below a directory, which may not exist yet, and what they are."""

    directory: Path
    size: int
    what: str


def needs_of(
    *,
    fetched: int,
    written: int,
    packed: int,
    store: Path,
    destination: Destination,
    images: Path,
    root: Path | None,
) -> tuple[Need, ...]:
    """What a build without an engine writes on this machine: the wheels to fetch, the layers to
    write (`packed`: the size of all layers of the image), and the image unpacked in `root` for the
    suite (None: it is not unpacked here).
    """
    where = Path(destination.where or images)
    layers = {
        "local": Need(directory=images, size=written, what="layers"),
        "layout": Need(directory=where, size=written, what="layers"),
        # the archive is written from the layers, which are beside it until it is complete
        "archive": Need(directory=where.parent, size=2 * written, what="the archive"),
        "squashfs": Need(directory=where.parent, size=packed, what="the squashfs"),
    }.get(destination.kind)
    return (
        Need(directory=store, size=fetched, what="wheels"),
        *([layers] if layers else []),
        *([Need(directory=root, size=UNPACKED * packed, what="unpacking")] if root else []),
    )


def check_disk_space(needs: Sequence[Need], free_up: Callable[[int], None]) -> None:
    """Refuse a build that would fill a disk. DiskFullError: which, how much is free, and what needs
    how much. `free_up` is called with the bytes that a disk must have, before it is refused.
    """
    disks: dict[int, list[Need]] = {}
    for need in needs:
        if need.size:
            disks.setdefault(_existing(need.directory).stat().st_dev, []).append(need)
    for together in disks.values():
        place, total = _existing(together[0].directory), sum(need.size for need in together)
        if _free(place) >= total:
            continue
        free_up(total)
        if (free := _free(place)) >= total:
            continue
        parts = ", ".join(f"{in_units(need.size)} for {need.what}" for need in together)
        untested = sum(need.size for need in together if need.what != "unpacking")
        raise DiskFullError(
            f"The disk of {place} has {in_units(free)} free; this build needs about "
            f"{in_units(total)} there: {parts}.",
            fix=f"Free space (df -h {place}; provision store gc), or use another disk "
            "(XDG_CACHE_HOME, XDG_DATA_HOME, --output)"
            + (", or do not test the image here: --no-verify" if untested <= free else ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpace:
    """The places on this machine that a build without an engine writes to; `verify`: the image is
    tested here; `has`: the destination has a blob.
    """

    destination: Destination
    images: Path
    state: Path
    engine: DockerRunner | None
    verify: bool
    has: Callable[[Descriptor], bool]

    def check(
        self,
        recipe: Recipe,
        missing: Sequence[LayerSource],
        known: Callable[[str], KnownLayer | None],
        *,
        fetched: int,
        make_room: Callable[[int], None],
    ) -> None:
        """Refuse a build that would fill a disk, before anything is fetched. `missing` are the
        layers to write; `make_room` clears the store of what is not in use. DiskFullError.
        """
        layers = ((source, known(source.key)) for source in recipe.sources)
        sizes = {source.key: one.size if one else source.about_bytes for source, one in layers}
        base = sum(layer.blob.size for layer in recipe.base.layers)
        needs = needs_of(
            fetched=fetched,
            written=self._of_base(recipe.base) + sum(sizes[source.key] for source in missing),
            packed=base + sum(sizes.values()),
            store=self.state,
            destination=self.destination,
            images=self.images,
            root=self._root(recipe.base.platform) if missing else None,
        )

        def free_up(needed: int) -> None:
            Roots(self.state / "roots").clear()  # as before another image is unpacked
            with suppress(DiskFullError):
                make_room(needed)

        check_disk_space(needs, free_up)

    def _of_base(self, base: Image) -> int:
        """The bytes of the base's layers that a directory or a file does not have."""
        if self.destination.kind not in {"local", "layout", "archive"}:
            return 0
        return sum(layer.blob.size for layer in base.layers if not self.has(layer.blob))

    def _root(self, platform: Platform) -> Path | None:
        """Where the image will be unpacked here, or loaded; None: nowhere, or not known."""
        if self.destination.kind == "engine" and self.engine is not None:
            return self.engine.storage()
        is_here = platform.architecture == host_platform().architecture
        if not self.verify or not is_here or self.destination.kind == "squashfs":
            return None
        with suppress(Failure):  # what cannot run it says so when it is to be run
            return (self.engine or choose_runner(cache=self.state).runner).storage()
        return None


def _existing(directory: Path) -> Path:
    absolute = Path(os.path.abspath(directory))  # noqa: PTH100  links are followed by stat
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _free(directory: Path) -> int:
    return shutil.disk_usage(directory).free
