"""How the layers of an image are written: as they are, compressed again, or to be started lazily.

A lazy image is one that nodes start before they have pulled it: all our layers as one, with a
landmark. It ends the small files that an import of the framework opens: nodes fetch them in one
request. Which they are is recorded here, in a sandbox without GPUs and with the same variables
everywhere, and kept in the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import cast

from images.assembly.build import LayerMemory, Recipe, known_blob, known_from
from images.assembly.opening import open_image
from images.engines.emulation import OtherMachineError
from images.engines.sandbox.errors import SandboxError
from images.engines.spec import RunJob
from images.errors import DiskFullError, Failure
from images.layers.lazy.formats import FORMATS
from images.layers.lazy.layer import MOST_FIRST_BYTES, LazyLayer, OwnBaseLayer
from images.layers.own import key_of
from images.layers.shared import shared_layer
from images.layers.transcode import WheelLayer, spared_in, written_twice
from images.layers.zstd import ZstdLayer
from images.oci.assemble import image_config
from images.oci.blobfiles import take
from images.oci.model import Platform, read_object
from images.oci.sources import Image, ImageLayer, KnownLayer, LayerSource
from images.store.fetch import Fetcher
from images.store.store import Store
from images.system.errors import NoRunnerError
from provision.build.base import BuildSettings
from provision.build.destination import Compression, Lazy
from provision.lock.lockfile import Lock
from provision.model.plan import ComputeCapability
from provision.output.console import Console
from provision.verification.subject import prepared, sandbox_here

FORMAT = 1
"""Part of what the store keeps a list under: raise it when `opened_files` records other files."""

_FACTS = "first-files"
_SECONDS = 600.0
_MOST_NAMES = 100_000
# no settings of a user
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """The user's options for making layers. `cut`: the compute capabilities whose code is kept; ():
    all. `store_limit` is in bytes.
    """

    exclude_unneeded: bool = False
    bytecode: bool = False
    compression: Compression = "gzip"
    cut: tuple[ComputeCapability, ...] = ()
    lazy: Lazy | None = None
    cache_from: str | None = None
    store_limit: int | None = None

    @property
    def not_by_engine(self) -> str | None:
        """What was requested that an engine does not write."""
        if self.lazy is not None:
            return "a lazy image"
        return "layers compressed by zstd" if self.compression == "zstd" else None


def compressed(recipe: Recipe, compression: Compression) -> Recipe:
    """The image with layers compressed like this."""
    if compression == "gzip":
        return recipe
    return replace(recipe, sources=tuple(ZstdLayer(source=one) for one in recipe.sources))


@dataclass(frozen=True, slots=True)
class ImportRecording:
    """What is imported, and what that needs here. `cache`: where a sandbox unpacks images."""

    module: str
    memory: LayerMemory
    store: Store
    fetcher: Fetcher
    cache: Path
    console: Console


def lazy(recipe: Recipe, kind: Lazy, recording: ImportRecording, *, own_base: bool) -> Recipe:
    """The image with one lazy layer, and below it another if the base was made here.

    Another base's layers stay as they are. They cost more than their pull: containerd fetches all
    layers above the first that is not lazy, until it has unpacked that one.
    """
    first = first_files(recipe, recording)
    base, parts = recipe.base, [recipe.sources]
    if own_base:
        created_by = "gpu-provision: the base made from Debian packages"
        below = [OwnBaseLayer(layer, created_by) for layer in base.layers]
        base, parts = replace(base, layers=()), [*((layer,) for layer in below), *parts]
    else:
        recording.console.warn(
            f"The layers of {base.shown} stay as they are: nodes pull them before a start.",
            "--base bootstrap makes a base that is lazy, too.",
        )
    form = FORMATS[kind]
    layers = [LazyLayer(sources=tuple(part), format=form, first=first) for part in parts]
    return replace(recipe, base=base, sources=tuple(layers))


def first_files(recipe: Recipe, recording: ImportRecording) -> tuple[str, ...] | None:
    """The files that the import opens, recorded now or before. None: this machine cannot run the
    image; a warning says why.
    """
    key = _key(recipe, recording.module)
    found = _names((recording.store.facts(_FACTS, key) or {}).get("files"))
    if found is not None:
        return found
    console = recording.console
    console.progress(f"recording which files import {recording.module} opens")
    wheels = [wheel for source in recipe.sources for wheel in source.wheels]
    recording.fetcher.prefetch(wheels)
    try:
        found = _record(recipe, key, recording)
    except Failure as failure:
        # these say that the image cannot be run here, and nothing about the image
        if not isinstance(failure, (NoRunnerError, OtherMachineError, DiskFullError, SandboxError)):
            raise
        console.warn(
            f"The image has no landmark, since this machine cannot run it: {failure.message}",
            "Its start makes a request for each small file, and its digest differs from one with "
            "a landmark. Build it where a sandbox runs it: provision doctor",
        )
        return None
    if found is not None:
        recording.store.remember_facts(_FACTS, key, {"files": list(found)})
    return found


def _record(recipe: Recipe, key: str, recording: ImportRecording) -> tuple[str, ...] | None:
    program = (
        resources.files("provision.build").joinpath("opened_files.py").read_text(encoding="utf-8")
    )
    words = (recording.module, "/", str(MOST_FIRST_BYTES))
    runner = sandbox_here(recording.cache)
    image = _runnable(recipe, key, recording.memory)
    with prepared(image, runner, recording.console) as (_, handle):
        try:
            done = runner.run(
                RunJob(
                    image=handle,
                    command=("/opt/venv/bin/python3", "-c", program, *words),
                    timeout_s=_SECONDS,
                    environment=_ENVIRONMENT,
                ),
                lambda _: None,
            )
        finally:
            runner.remove(handle)
    found = _read(done.stdout) if done.exit_code == 0 else None
    if found is None:
        last = done.stderr_tail.strip().rpartition("\n")[2]
        recording.console.warn(
            f"The image has no landmark: import {recording.module} failed in the sandbox, without "
            f"a GPU (exit code {done.exit_code}): {last[:300]}",
            "Build without --no-verify: the suite shows the cause.",
        )
    return found


def _key(recipe: Recipe, module: str) -> str:
    """A digest of all that the list of files depends on."""
    keys = tuple(source.key for source in recipe.sources)
    environment = tuple(sorted(recipe.settings.env.items()))
    return key_of(_FACTS, FORMAT, recipe.base.digest, environment, module, keys)


def _runnable(recipe: Recipe, key: str, memory: LayerMemory) -> Image:
    """The image as it would be without lazy layers, named by what it is made of."""
    digest = f"sha256:{key}"
    own = tuple(_as_layer(source, _known(source, memory)) for source in recipe.sources)
    return Image(
        shown="the image",
        digest=digest,
        image_id=digest,
        platform=recipe.base.platform,
        layers=(*recipe.base.layers, *own),
        config=read_object(image_config(recipe.base, (), recipe.settings), "the configuration"),
    )


def _known(source: LayerSource, memory: LayerMemory) -> KnownLayer:
    """Its digests; if nobody knows them, it is made once."""
    known = memory.known(source.key)
    if known is None:
        with Path(os.devnull).open("wb") as nowhere:
            made = take(source.stream(None), nowhere, None, lambda _: None)
        known = KnownLayer(
            digest=made.digest,
            size=made.size,
            unpacked=made.unpacked,
            media_type=source.media_type,
        )
        memory.remember(source.key, known)
    return known


def _as_layer(source: LayerSource, known: KnownLayer) -> ImageLayer:
    def stream() -> Generator[bytes, None, None]:
        yield from source.stream(known.unpacked)

    blob = known_blob(source, known)
    assert blob is not None
    return ImageLayer(blob=blob, diff_id=known.unpacked.diff_id, stream=stream)


def _read(text: str) -> tuple[str, ...] | None:
    """The program's answer, without the first slash of each path."""
    try:
        names = _names(json.loads(text.strip().rpartition("\n")[2]))
    except (ValueError, RecursionError):
        return None
    return None if names is None else tuple(name.lstrip("/") for name in names)


def _names(found: object) -> tuple[str, ...] | None:
    if not isinstance(found, list) or not 0 < len(found) <= _MOST_NAMES:
        return None
    names = {name for name in found if isinstance(name, str)}
    return tuple(sorted(names)) if len(names) == len(found) else None


def report_spared(lock: Lock, store: Store, console: Console) -> None:
    """What --exclude-unneeded left out, from the directories of the wheels that are here; layers
    that are known need none.
    """
    here = {wheel.sha256: store.wheel(wheel.sha256) for wheel in lock.wheels}
    wheels = [wheel for wheel in lock.wheels if here[wheel.sha256] is not None]
    spared = spared_in(wheels, lambda wheel: cast("Path", here[wheel.sha256]))
    others = len(lock.wheels) - len(wheels)
    unseen = f" (not counting {others} wheels that are not downloaded)" if others else ""
    console.note(
        f"excluded: {spared.files} files, {spared.compressed / 1e6:.1f} MB of the layers, "
        f"{spared.unpacked / 1e6:.1f} MB unpacked{unseen}"
    )


def report_written_twice(sources: Sequence[LayerSource], store: Store, console: Console) -> None:
    """From the wheels that are here; a build that fetched none has reported it before."""
    wheels = [w for source in sources if isinstance(source, WheelLayer) for w in source.wheels]
    here = {wheel.sha256: path for wheel in wheels if (path := store.wheel(wheel.sha256))}
    for found in written_twice(
        (wheel for wheel in wheels if wheel.sha256 in here), lambda wheel: here[wheel.sha256]
    ):
        more = f" and {len(found.paths) - 1} more files" if len(found.paths) > 1 else ""
        console.note(
            f"{found.first} and {found.last} both install {found.paths[0]}{more}, with "
            f"different content; the image has those of {found.last}"
        )


def learned(
    cache_from: str | None, platform: Platform, settings: BuildSettings, console: Console
) -> dict[str, KnownLayer]:
    """What the image named by --cache-from says about its layers."""
    if cache_from is None:
        return {}
    try:
        older = open_image(
            cache_from, platform=platform, ca_bundle=settings.ca, offline=settings.offline
        )
    except Failure as failure:  # the very first build has nothing to learn from
        console.note(f"cannot use --cache-from {cache_from}: {failure}")
        return {}
    return known_from(
        [layer.blob for layer in older.layers], [layer.diff_id for layer in older.layers]
    )


@dataclass(frozen=True, slots=True)
class BuildMemory:
    """Looks layers up in the store, then in an older image, then in the table of shared layers."""

    store: Store
    older: Mapping[str, KnownLayer]

    def known(self, key: str) -> KnownLayer | None:
        return self.store.known(key) or self.older.get(key) or shared_layer(key)

    def remember(self, key: str, known: KnownLayer) -> None:
        self.store.remember(key, known)
