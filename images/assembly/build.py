"""Writes an image to a target; skips blobs that the target has and layers that are known.

Layers are written in parallel; each is downloaded, transcoded, hashed and uploaded in one stream,
so that these steps overlap and memory stays flat. The manifest is written last, after everything
that it names: until then nothing has the image's name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from images.oci.assemble import Added, ContainerSettings, base_blob, image_config, image_manifest
from images.oci.errors import DigestMismatchError
from images.oci.model import (
    CONFIG,
    MANIFEST,
    Descriptor,
    descriptor_of,
    read_object,
)
from images.oci.sources import (
    Image,
    ImageLayer,
    KnownLayer,
    LayerSource,
    Stream,
    Target,
    Unpacked,
    Written,
)

KEY = "org.gpu-provision.layer.key"
TITLE = "org.gpu-provision.layer.title"
_ASKERS = 8  # a request to a registry is mostly waiting
How = Literal["there", "mounted", "written"]


class LayerMemory(Protocol):
    """Remembers layers that were built before."""

    def known(self, key: str) -> KnownLayer | None:
        """Digest, size and diffID of the layer with this key."""

    def remember(self, key: str, known: KnownLayer) -> None:
        """Store it."""


class BuildObserver(Protocol):
    """Receives the progress of a build."""

    def expect(self, total_bytes: int) -> None:
        """This many bytes are still to be written."""

    def wrote(self, title: str, count: int) -> None:
        """This many more bytes have arrived at the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that makes up one image of one platform."""

    base: Image
    sources: tuple[LayerSource, ...]
    settings: ContainerSettings
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDone:
    """The result for one layer; `size` in bytes as stored in the target."""

    title: str
    digest: str
    size: int
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image whose blobs are in its target. `content` is its manifest, still to be published;
    `image_id` is the digest of its configuration; `size` in bytes, compressed; `image` can be run.
    """

    manifest: Descriptor
    content: bytes
    image_id: str
    size: int
    layers: tuple[LayerDone, ...]
    image: Image

    @property
    def written(self) -> int:
        """The bytes of layers that had to be written."""
        return sum(layer.size for layer in self.layers if layer.how == "written")


def build(
    recipe: Recipe,
    target: Target,
    memory: LayerMemory,
    watch: BuildObserver,
    *,
    workers: int,
    mount: Callable[[ImageLayer], bool] = lambda _: False,
    wanted: Callable[[Sequence[LayerSource]], None] = lambda _: None,
    give_up: Callable[[], None] = lambda: None,
    beside: Callable[[Callable[[], bool]], None] = lambda _: None,
) -> Built:
    """Write an image's blobs; it has no name until its manifest is published.

    `mount` may get a base's layer into the target without sending its bytes. `wanted` is called
    with the layers to build before the first is built, so that their files can be fetched ahead.
    When a layer fails, `give_up` ends what the others may be waiting for. `beside` runs while the
    layers are written, and the build fails if it raises; what it is called with returns whether the
    build has failed.
    """
    with _pool(_ASKERS) as pool:
        known = {source.key: memory.known(source.key) for source in recipe.sources}
        blobs = [known_blob(source, known[source.key]) for source in recipe.sources]
        asked = [pool.submit(_is_there, blob, target) for blob in blobs]
        base_asked = [pool.submit(_base_how, layer, target, mount) for layer in recipe.base.layers]
        there = [future.result() for future in asked]
        base_how = [future.result() for future in base_asked]
    missing = [s for s, is_there in zip(recipe.sources, there, strict=True) if not is_there]
    wanted(missing)
    work = _Work(target, memory, watch, give_up)
    watch.expect(_expected_bytes(recipe, known, there, base_how))
    with _pool(workers + 1) as pool:
        work.futures.append(pool.submit(beside, work.stop.is_set))
        for layer, how in zip(recipe.base.layers, base_how, strict=True):
            if how is None:
                work.futures.append(pool.submit(work.write_base, layer))
        # largest first, so that no large layer is left for one thread at the end
        by_size = sorted(missing, key=lambda source: -source.about_bytes)
        makers = {s.key: pool.submit(work.make, s, known[s.key]) for s in by_size}
        work.futures.extend(makers.values())
        work.wait()
    results = [
        makers[source.key].result() if source.key in makers else _there(source, known[source.key])
        for source in recipe.sources
    ]
    return _built(recipe, target, results, base_how, set(makers))


def known_blob(source: LayerSource, known: KnownLayer | None) -> Descriptor | None:
    """The descriptor of a known layer, as in a manifest; None if the layer is unknown."""
    if known is None:
        return None
    return Descriptor(
        media_type=known.media_type,
        digest=known.digest,
        size=known.size,
        annotations={**known.unpacked.annotations, KEY: source.key, TITLE: source.title},
    )


def known_from(
    manifest_layers: Sequence[Descriptor], diff_ids: Sequence[str]
) -> dict[str, KnownLayer]:
    """The layers of an image that we built earlier, by key: from its manifest's annotations and
    the diffIDs of its configuration. No manifest has the sizes of plain tars; they are 0 here.
    """
    pairs = zip(manifest_layers, diff_ids, strict=False)
    return {
        layer.annotations[KEY]: KnownLayer(
            digest=layer.digest,
            size=layer.size,
            unpacked=Unpacked(diff_id=diff_id, size=0, annotations=layer.of_table),
            media_type=layer.media_type,
        )
        for layer, diff_id in pairs
        if KEY in layer.annotations
    }


class _Cancelled(Exception):  # noqa: N818  never leaves this module
    """Another layer failed, so this one stops."""


class _Work:
    """State that the threads share."""

    def __init__(
        self, target: Target, memory: LayerMemory, watch: BuildObserver, give_up: Callable[[], None]
    ) -> None:
        self._target = target
        self._memory = memory
        self._watch = watch
        self._give_up = give_up
        self.stop = threading.Event()
        self.futures: list[Future[Any]] = []

    def make(self, source: LayerSource, known: KnownLayer | None) -> KnownLayer:
        """Write one of the added layers, and remember its digests."""
        try:
            written = self._write_own(source, known)
        except DigestMismatchError:
            if known is None:
                raise
            # what was recorded elsewhere is wrong: compute it here
            written = self._write_own(source, None)
        made = KnownLayer(
            digest=written.digest,
            size=written.size,
            unpacked=written.unpacked,
            media_type=source.media_type,
        )
        if made != known:
            self._memory.remember(source.key, made)
        return made

    def _write_own(self, source: LayerSource, known: KnownLayer | None) -> Written:
        unpacked = known.unpacked if known else None
        return self._write(source.title, lambda: source.stream(unpacked), known_blob(source, known))

    def write_base(self, layer: ImageLayer) -> Written:
        """Write a layer of the base, as it is."""
        return self._write("base", lambda: _as_stream(layer), base_blob(layer.blob))

    def wait(self) -> None:
        """Wait for all layers; the first failure stops the others and is raised."""
        try:
            done, _ = wait(self.futures, return_when=FIRST_EXCEPTION)
            errors = [e for f in self.futures if f in done and (e := f.exception()) is not None]
            if errors:
                self._end()
                wait(self.futures)
        except BaseException:
            self._end()
            raise
        if errors:  # those that came later came of being stopped
            raise errors[0]

    def _end(self) -> None:
        self.stop.set()
        self._give_up()

    def _write(
        self, title: str, open_stream: Callable[[], Stream], expected: Descriptor | None
    ) -> Written:
        return self._target.write(
            lambda: self._stoppable(open_stream()),
            expected=expected,
            on_bytes=lambda count: self._watch.wrote(title, count),
        )

    def _stoppable(self, stream: Stream) -> Stream:
        try:
            while True:
                if self.stop.is_set():
                    raise _Cancelled
                try:
                    piece = next(stream)
                except StopIteration as end:
                    unpacked: Unpacked = end.value
                    return unpacked
                yield piece
        finally:
            stream.close()


def _as_stream(layer: ImageLayer) -> Stream:
    pieces: Generator[bytes, None, None] = layer.stream()
    try:
        yield from pieces
    finally:
        pieces.close()
    return Unpacked(diff_id=layer.diff_id, size=0)


def _base_how(layer: ImageLayer, target: Target, mount: Callable[[ImageLayer], bool]) -> How | None:
    if target.has(base_blob(layer.blob)):
        return "there"
    return "mounted" if mount(layer) else None


def _expected_bytes(
    recipe: Recipe,
    known: Mapping[str, KnownLayer | None],
    there: Sequence[bool],
    base_how: Sequence[How | None],
) -> int:
    """Estimate how much will be written: an unknown layer is about as large as its wheels."""
    total = sum(
        layer.blob.size
        for layer, how in zip(recipe.base.layers, base_how, strict=True)
        if how is None
    )
    for source, is_there in zip(recipe.sources, there, strict=True):
        found = known[source.key]
        if not is_there:
            total += found.size if found else source.about_bytes
    return total


def _is_there(blob: Descriptor | None, target: Target) -> bool:
    return blob is not None and target.has(blob)


def _there(source: LayerSource, known: KnownLayer | None) -> KnownLayer:
    assert known is not None, source.title
    return known


def _built(
    recipe: Recipe,
    target: Target,
    results: Sequence[KnownLayer],
    base_how: Sequence[How | None],
    made: set[str],
) -> Built:
    blobs = [_blob_of(*pair) for pair in zip(recipe.sources, results, strict=True)]
    added = [
        Added(blob=blob, diff_id=known.unpacked.diff_id, created_by=source.created_by)
        for source, known, blob in zip(recipe.sources, results, blobs, strict=True)
    ]
    config = target.write_bytes(image_config(recipe.base, added, recipe.settings), CONFIG)
    content = image_manifest(recipe.base, added, config, recipe.annotations)
    manifest = descriptor_of(MANIFEST, content, platform=recipe.base.platform)
    layers = [
        LayerDone(title="base", digest=b.blob.digest, size=b.blob.size, how=how or "written")
        for b, how in zip(recipe.base.layers, base_how, strict=True)
    ] + [
        LayerDone(
            title=source.title,
            digest=blob.digest,
            size=blob.size,
            how="written" if source.key in made else "there",
        )
        for source, blob in zip(recipe.sources, blobs, strict=True)
    ]
    return Built(
        manifest=manifest,
        content=content,
        image_id=config.digest,
        size=sum(layer.size for layer in layers) + config.size,
        layers=tuple(layers),
        image=_as_image(recipe, manifest, config, results, blobs),
    )


def _blob_of(source: LayerSource, known: KnownLayer) -> Descriptor:
    blob = known_blob(source, known)
    assert blob is not None
    return blob


def _as_image(
    recipe: Recipe,
    manifest: Descriptor,
    config: Descriptor,
    results: Sequence[KnownLayer],
    blobs: Sequence[Descriptor],
) -> Image:
    """The image, to run or inspect: its layers are generated again, wherever it was sent."""
    own = [
        ImageLayer(
            blob=blob,
            diff_id=known.unpacked.diff_id,
            stream=partial(_remade, source, known.unpacked),
            members=getattr(source, "members", None),
        )
        for source, known, blob in zip(recipe.sources, results, blobs, strict=True)
    ]
    added = [
        Added(blob=layer.blob, diff_id=layer.diff_id, created_by=source.created_by)
        for layer, source in zip(own, recipe.sources, strict=True)
    ]
    return Image(
        shown="the image just made",
        digest=manifest.digest,
        image_id=config.digest,
        platform=recipe.base.platform,
        layers=(*recipe.base.layers, *own),
        config=read_object(image_config(recipe.base, added, recipe.settings), "the configuration"),
    )


def _remade(source: LayerSource, unpacked: Unpacked) -> Generator[bytes, None, None]:
    yield from source.stream(unpacked)


@contextmanager
def _pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A thread pool whose pending work is cancelled when the block fails."""
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown(wait=True)
