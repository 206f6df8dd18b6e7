"""The target of an image built without an engine: a layout, an archive, a registry, a squashfs; or
none.

An engine loads an image from its layers as they are made, so nothing has to be written for it: its
target only learns their digests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from images.net.retries import Retries
from images.oci.archive import ArchiveTarget
from images.oci.blobfiles import take
from images.oci.layout import LayoutTarget
from images.oci.model import Descriptor, descriptor_of
from images.oci.sources import ImageLayer, Stream, Target, Written
from provision.build.base import BuildSettings
from provision.build.destination import Destination
from provision.build.maker import MadeImage
from provision.output.console import Console

Mount = Callable[[ImageLayer], bool]


@contextmanager
def open_target(
    destination: Destination,
    settings: BuildSettings,
    *,
    images: Path,
    on_wait: Callable[[str], None],
) -> Iterator[tuple[Target, Mount]]:
    """The target, and what can get a base's layer into it without transferring its bytes. `on_wait`
    receives the reason why a registry request is repeated.
    """
    if destination.kind == "registry":
        from images.registry.target import RegistryTarget

        opened = RegistryTarget.open(
            destination.where, ca_bundle=settings.ca, retries=Retries(on_wait=on_wait)
        )
        with closing(opened) as registry:
            yield registry, lambda layer: _mount(registry.reference.registry, layer, registry.mount)
    elif destination.kind == "engine":
        yield LearningTarget(), _no_mount
    elif destination.kind == "squashfs":
        with closing(SquashfsTarget(Path(destination.where))) as file:
            yield file, _no_mount
    elif destination.kind == "archive":
        with closing(ArchiveTarget.open(Path(destination.where))) as archive:
            yield archive, _no_mount
    else:
        where = Path(destination.where) if destination.where else images
        with closing(LayoutTarget.open(where)) as layout:
            yield layout, _no_mount


class LearningTarget:
    """Stores nothing, and learns the digests of layers: known layers need not be made again."""

    shown = "the engine"

    def has(self, blob: Descriptor) -> bool:
        del blob
        return True

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        with Path(os.devnull).open("wb") as nowhere:
            return take(open_stream(), nowhere, expected, on_bytes)

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        return descriptor_of(media_type, content)

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        del name
        return descriptor_of(media_type, manifest)


class SquashfsTarget(LearningTarget):
    """Writes an image as a squashfs once all layers are known; it needs no blobs for that."""

    def __init__(self, path: Path) -> None:
        from images.engines.squashfs.write import SquashfsFile

        self._file = SquashfsFile.open(path)
        self.shown = str(path)

    def write_image(self, made: MadeImage, console: Console) -> MadeImage:
        """Write the file, which has no name yet, and return the image as it is there."""
        assert made.image is not None
        console.progress("writing the squashfs with tar2sqfs")
        with console.transfer() as progress:
            image = self._file.write(made.image, lambda count: progress.wrote("squashfs", count))
        assert image.squashfs is not None
        size = image.squashfs.state.size
        return replace(made, image=image, image_id=image.image_id, size_bytes=size, layers=())

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        if name is not None:
            self._file.publish()
        return descriptor_of(media_type, manifest)

    def go_to(self, path: Path) -> None:
        """Name the file `path` instead, in the same directory."""
        self._file.path, self.shown = path.absolute(), str(path)

    def close(self) -> None:
        self._file.close()


def _mount(registry: str, layer: ImageLayer, mount: Callable[[Descriptor, str], bool]) -> bool:
    if layer.registry != registry or layer.mount_from is None:
        return False
    return mount(layer.blob, layer.mount_from)


def _no_mount(layer: ImageLayer) -> bool:
    del layer
    return False
