"""Documents inside an OCI layout: listed as in a registry that does not know referrers.

The layout's own specification has no list of what is attached to an image. So the list is an index
under the name that the distribution specification gives it, `sha256-DIGEST`: tools that copy
layouts to registries carry it along, and registries and clients understand it there.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#referrers-tag-schema
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from images.oci.errors import ImageUnreadableError
from images.oci.layout import LayoutTarget
from images.oci.layout_reading import LayoutParts, read_index
from images.oci.model import (
    EMPTY,
    INDEX,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    REF_NAME,
    Descriptor,
    descriptor_of,
    read_descriptor,
    read_descriptors,
    read_object,
    to_bytes,
)
from images.oci.reading import read_small
from images.registry.referrers import EMPTY_CONFIG, artifact_manifest, fallback_tag

_MOST_BYTES = 64 << 20
_ANEW = "Make or fetch the image anew."


class LayoutReferrers:
    """What is attached to the images of a layout (`provision.provenance.attach.Referrers`)."""

    def __init__(self, target: LayoutTarget, root: Path) -> None:
        self._target = target
        self._root = root.absolute()
        self._parts = LayoutParts(self._root, target.shown)

    def attach(
        self,
        subject: Descriptor,
        *,
        artifact_type: str,
        content: bytes,
        media_type: str,
        annotations: Mapping[str, str],
    ) -> Descriptor:
        """Put it into the layout and into the image's list; equal content is there once."""
        self._target.write_bytes(EMPTY_CONFIG, EMPTY)
        blob = self._target.write_bytes(content, media_type)
        manifest = artifact_manifest(subject, artifact_type, blob, annotations)
        self._target.publish(manifest, MANIFEST, name=None)
        found = descriptor_of(
            MANIFEST, manifest, annotations=dict(annotations), artifact_type=artifact_type
        )
        with self._locked():
            listed = {one.digest: one for one in self.referrers(subject)}
            if found.digest not in listed:
                entries = [one.to_json() for one in (*listed.values(), found)]
                index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
                self._target.publish(to_bytes(index), INDEX, name=fallback_tag(subject))
        return found

    def referrers(
        self, subject: Descriptor, artifact_type: str | None = None
    ) -> tuple[Descriptor, ...]:
        """What is attached to the image, of one type or of all."""
        where = f"{self._target.shown}: its index"
        name = fallback_tag(subject)
        entries = read_descriptors(read_index(self._root)["manifests"], where)
        index = next((one for one in entries if one.annotations.get(REF_NAME) == name), None)
        if index is None:
            return ()
        where = f"the list of what is attached to {subject.digest}"
        content = read_small(self._parts, index, MOST_MANIFEST_BYTES, "list")
        listed = read_descriptors(read_object(content, where).get("manifests"), where)
        return tuple(one for one in listed if artifact_type in {None, one.artifact_type})

    def read_artifact(self, descriptor: Descriptor) -> bytes:
        """The content of something attached, held against its digests."""
        where = f"the attachment {descriptor.digest}"
        manifest = read_small(self._parts, descriptor, MOST_MANIFEST_BYTES, "manifest")
        layers = read_object(manifest, where).get("layers")
        if not isinstance(layers, list) or len(layers) != 1:
            raise ImageUnreadableError(f"{where} has not one content.", fix=_ANEW)
        content = read_descriptor(layers[0], f"{where}: its content")
        return read_small(self._parts, content, _MOST_BYTES, "attachment")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others who attach out, as far as this file system has locks."""
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
