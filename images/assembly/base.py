"""The image that a build starts from or that is inspected, from a registry through the store.

A registry's layers are downloaded only when they are read, and then kept, so that the next build
needs no network for them. A push to the same registry mounts them instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from images.oci.blobfiles import read_pieces
from images.oci.image_reader import (
    MOST_CONFIG_BYTES,
    ParsedManifest,
    choose,
    parse_manifest,
    read_image,
    small_file,
)
from images.oci.model import (
    INDEX,
    INDEXES,
    MANIFEST,
    MANIFESTS,
    MOST_MANIFEST_BYTES,
    Descriptor,
    Platform,
    digest_of,
    read_object,
)
from images.oci.sources import Image

if TYPE_CHECKING:
    from images.oci.reference import Reference


class BlobStore(Protocol):
    """Where blobs are kept between builds."""

    def blob(self, digest: str, *, size: int | None = None) -> Path | None:
        """Return the blob's file, or None."""

    def add(
        self,
        kind: Literal["blob"],
        digest: str,
        pieces: Iterator[bytes],
        expected_size: int | None = None,
    ) -> Path:
        """Store a blob, whose content must match its digest."""


class RegistryManifest(Protocol):
    """A manifest from a registry, whose digest was verified."""

    @property
    def content(self) -> bytes: ...
    @property
    def media_type(self) -> str: ...
    @property
    def digest(self) -> str: ...


class Repository(Protocol):
    """A registry's repository, whose blobs and manifests are verified as they arrive."""

    @property
    def reference(self) -> Reference:
        """The image that was named."""

    def manifest(self, reference: str | None = None) -> RegistryManifest:
        """Read a manifest by tag or digest."""

    def blob(self, digest: str, size: int) -> Generator[bytes, None, None]:
        """Read a blob."""


class OfflineRepository:
    """A repository that may not be queried: everything needed must be in the store."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def manifest(self, reference: str | None = None) -> RegistryManifest:
        raise self._failure(f"its manifest {reference or self.reference.pinned}")

    def blob(self, digest: str, size: int) -> Generator[bytes, None, None]:
        raise self._failure(f"its part {digest} ({size} bytes)")

    def _failure(self, what: str) -> Exception:
        from images.store.errors import OfflineError

        return OfflineError(
            f"{self.reference}: {what} is not on this machine, and --offline forbids "
            "downloading it.",
            fix="Run this once without --offline, or name an image that is on this machine.",
        )


class RegistryParts:
    """The parts of a registry's image, from the store if it has them."""

    def __init__(self, repository: Repository, store: BlobStore | None) -> None:
        self._repository = repository
        self._store = store
        self.shown = str(repository.reference)

    def origin(self) -> tuple[str | None, str | None]:
        reference = self._repository.reference
        return reference.registry, reference.repository

    def root(self) -> ParsedManifest:
        """The manifest or index that was named. One named by its digest may be in the store."""
        wanted = self._repository.reference.digest
        kept = self._store.blob(wanted) if self._store and wanted else None
        if kept is not None and kept.stat().st_size <= MOST_MANIFEST_BYTES:
            content = kept.read_bytes()
            if digest_of(content) == wanted:  # else it is damaged there, and is downloaded again
                # manifests may omit their type, and the store does not keep the Content-Type header
                is_index = "manifests" in read_object(content, self.shown)
                return parse_manifest(content, INDEX if is_index else MANIFEST, self.shown)
        answer = self._asked(None)
        return parse_manifest(answer.content, answer.media_type, self.shown)

    def small(self, blob: Descriptor) -> bytes:
        if blob.media_type in INDEXES | MANIFESTS:
            return self._manifest(blob)
        return small_file(lambda: self.stream(blob), min(blob.size, MOST_CONFIG_BYTES))

    def stream(self, blob: Descriptor) -> Generator[bytes, None, None]:
        if self._store is None:
            yield from self._repository.blob(blob.digest, blob.size)
            return
        kept = self._store.blob(blob.digest, size=blob.size)
        if kept is None:
            pieces = self._repository.blob(blob.digest, blob.size)
            with contextlib.closing(pieces):
                kept = self._store.add("blob", blob.digest, pieces, blob.size)
        yield from read_pieces(kept.open("rb"))

    def _manifest(self, blob: Descriptor) -> bytes:
        """A registry serves manifests at another address than blobs."""
        kept = self._store.blob(blob.digest, size=blob.size) if self._store else None
        if kept is not None:
            content = kept.read_bytes()
            if digest_of(content) == blob.digest:
                return content
        return self._asked(blob.digest).content

    def _asked(self, reference: str | None) -> RegistryManifest:
        answer = self._repository.manifest(reference)
        if self._store is not None:
            self._store.add("blob", answer.digest, iter([answer.content]), len(answer.content))
        return answer


def registry_image(
    repository: Repository, platform: Platform | None, store: BlobStore | None
) -> Image:
    """Read an image of a repository, for a platform if there are several."""
    parts = RegistryParts(repository, store)
    return read_image(parts, choose(parts, parts.root(), platform), platform)
