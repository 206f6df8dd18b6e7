"""From a manifest to an image, wherever its parts are: a layout, an archive, a registry.

Everything small is checked before use: digests, sizes, the number of layers, that a configuration
matches its manifest. A layer is checked at its end, while it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from images.oci.errors import DigestMismatchError, ImageUnreadableError, PlatformMissingError
from images.oci.inflate import ANEW_FIX
from images.oci.model import (
    CONFIG,
    DOCKER_CONFIG,
    DOCKER_LAYER_GZIP,
    INDEXES,
    LAYER,
    LAYER_GZIP,
    LAYER_ZSTD,
    MANIFESTS,
    MOST_MANIFEST_BYTES,
    Descriptor,
    Platform,
    descriptor_of,
    is_digest,
    read_descriptor,
    read_descriptors,
    read_object,
)
from images.oci.sources import Image, ImageLayer

MOST_CONFIG_BYTES = 8 << 20
_MOST_LAYERS = 1000
_MOST_DEPTH = 4
_MOST_MANIFESTS = 1000
_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+"
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
LAYERS = frozenset(
    {LAYER, LAYER_GZIP, LAYER_ZSTD, DOCKER_LAYER_GZIP, _DOCKER_LAYER, f"{_DOCKER_LAYER}.zstd"}
)
_DEFAULT_VARIANTS = {"arm64": "v8"}


class ImageParts(Protocol):
    """Where the parts of an image are. It may return bytes that do not match the descriptor."""

    @property
    def shown(self) -> str:
        """For messages: the image, or its location."""

    def small(self, blob: Descriptor) -> bytes:
        """Return a manifest or a configuration; stops reading past its descriptor's size."""

    def stream(self, blob: Descriptor) -> Generator[bytes, None, None]:
        """Yield a layer in pieces."""

    def origin(self) -> tuple[str | None, str | None]:
        """(registry, repository) that a registry's layers can be mounted from; else (None, None)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedManifest:
    """A parsed manifest: its descriptor, its bytes and its content."""

    descriptor: Descriptor
    content: bytes
    document: Mapping[str, Any]

    @property
    def is_index(self) -> bool:
        return self.descriptor.media_type in INDEXES


def checked_pieces(
    pieces: Iterable[bytes], blob: Descriptor, shown: str
) -> Generator[bytes, None, None]:
    """Yield the pieces. DigestMismatchError: size or digest do not match the descriptor."""
    digest = hashlib.sha256()
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > blob.size:
                break
            digest.update(piece)
            yield piece
    finally:
        if isinstance(pieces, Generator):
            pieces.close()
    found = f"sha256:{digest.hexdigest()}"
    if size != blob.size:
        more = "more than " if size > blob.size else ""
        raise DigestMismatchError(
            f"{shown}: {blob.digest} has {more}{min(size, blob.size)} bytes instead of"
            f" {blob.size}.",
            fix=ANEW_FIX,
        )
    if found != blob.digest:
        raise DigestMismatchError(
            f"{shown}: the bytes of {blob.digest} are those of {found}.", fix=ANEW_FIX
        )


def read_small(parts: ImageParts, blob: Descriptor, most: int, what: str) -> bytes:
    """Read a manifest or a configuration, and check it against its descriptor."""
    if blob.size > most:
        raise ImageUnreadableError(
            f"{parts.shown}: the {what} says it has {blob.size} bytes; {most} are allowed.",
            fix=ANEW_FIX,
        )
    return b"".join(checked_pieces([parts.small(blob)], blob, parts.shown))


def read_manifest(parts: ImageParts, blob: Descriptor) -> ParsedManifest:
    """Read a manifest or an index by its descriptor."""
    content = read_small(parts, blob, MOST_MANIFEST_BYTES, "manifest")
    return parse_manifest(content, blob.media_type, parts.shown, blob)


def parse_manifest(
    content: bytes, media_type: str, shown: str, blob: Descriptor | None = None
) -> ParsedManifest:
    """Parse a manifest and determine its type. ImageUnreadableError: the type is unknown, or
    ambiguous, so that readers could disagree. DigestMismatchError: it does not match `blob`.
    """
    document = read_object(content, f"{shown}: its manifest")
    says = document.get("mediaType")
    kind = says if isinstance(says, str) and says else media_type
    if kind.startswith(_SCHEMA_1) or document.get("schemaVersion") == 1:
        raise ImageUnreadableError(
            f"{shown} is an image of Docker's first schema, which has no content"
            " digests and was replaced in 2015.",
            fix="Push it again with a current docker, or name another image.",
        )
    is_index, is_manifest = "manifests" in document, "layers" in document or "config" in document
    wrong = (kind in INDEXES and not is_index) or (kind in MANIFESTS and not is_manifest)
    if kind not in INDEXES | MANIFESTS or wrong or is_index == is_manifest:
        raise ImageUnreadableError(
            f"{shown} has a manifest of an unsupported type ({kind or 'no media type'}); an"
            " OCI or Docker version 2 image was needed.",
            fix="Name another image.",
        )
    described = descriptor_of(kind, content)
    if blob is not None and blob.digest != described.digest:
        raise DigestMismatchError(
            f"{shown}: the manifest {blob.digest} is {described.digest}.", fix=ANEW_FIX
        )
    return ParsedManifest(descriptor=described, content=content, document=document)


def children_of(document: Mapping[str, Any], shown: str) -> Generator[Descriptor, None, None]:
    """Yield the parts of a manifest, its configuration first; of an index, its manifests."""
    if "manifests" in document:
        yield from read_descriptors(document["manifests"], f"{shown}: its manifests")
        return
    yield read_descriptor(document.get("config"), f"{shown}: its configuration")
    yield from read_descriptors(document.get("layers"), f"{shown}: its layers")


def read_image(parts: ImageParts, found: ParsedManifest, platform: Platform | None) -> Image:
    """Read the image of a platform from a manifest, or from the one that an index has for it."""
    return _image(parts, choose(parts, found, platform), platform)


def choose(parts: ImageParts, found: ParsedManifest, platform: Platform | None) -> ParsedManifest:
    """Follow an index to the manifest of a platform; None: the only image's. PlatformMissingError:
    the index has none for it; ImageUnreadableError: no platform was given and it has several.
    """
    if not found.is_index:
        return found
    images = list(_images_of(parts, found, {found.descriptor.digest}, 0))
    fitting = [one for one in images if _fits(one.platform, platform)]
    # a descriptor may omit its platform; the image's configuration has it, too
    candidates = fitting or [one for one in images if one.platform is None]
    if not candidates:
        offered = ", ".join(dict.fromkeys(str(one.platform) for one in images)) or "none"
        raise PlatformMissingError(
            f"{parts.shown} does not exist for {platform}; it exists for: {offered}.",
            fix="Name an image that exists for this architecture.",
            offered=tuple(one.platform for one in images if one.platform is not None),
        )
    if platform is None and len({one.digest for one in candidates}) > 1:
        raise ImageUnreadableError(
            f"{parts.shown} exists for several platforms"
            f" ({', '.join(str(one.platform) for one in candidates)}); one was needed.",
            fix="Choose one: --arch x86_64 or --arch aarch64",
        )
    return read_manifest(parts, candidates[0])


def _images_of(
    parts: ImageParts, found: ParsedManifest, seen: set[str], depth: int
) -> Generator[Descriptor, None, None]:
    """Yield the descriptors of all images in an index, and in nested indexes."""
    entries = read_descriptors(found.document.get("manifests"), f"{parts.shown}: its index")
    for entry in entries:
        seen.add(entry.digest)
        if len(seen) > _MOST_MANIFESTS or depth >= _MOST_DEPTH:
            raise ImageUnreadableError(
                f"{parts.shown}: its index is nested too deeply.", fix=ANEW_FIX
            )
        if entry.media_type in INDEXES:
            yield from _images_of(parts, read_manifest(parts, entry), seen, depth + 1)
        elif not (entry.platform and entry.platform.os == "unknown"):  # attestations
            yield entry


def _fits(offered: Platform | None, wanted: Platform | None) -> bool:
    if wanted is None:
        return True
    if offered is None or (offered.os, offered.architecture) != (wanted.os, wanted.architecture):
        return False
    default = _DEFAULT_VARIANTS.get(wanted.architecture)
    return (offered.variant or default) == (wanted.variant or default) or wanted.variant is None


def _image(parts: ImageParts, found: ParsedManifest, platform: Platform | None) -> Image:
    shown = parts.shown
    document = found.document
    described = read_descriptor(document.get("config"), f"{shown}: its configuration")
    if described.media_type not in {CONFIG, DOCKER_CONFIG}:
        raise ImageUnreadableError(
            f"{shown} is not an image that can run: its configuration is of type"
            f" {described.media_type}.",
            fix="Name an image, not something that is attached to one.",
        )
    blobs = read_descriptors(document.get("layers"), f"{shown}: its layers")
    for blob in blobs:
        check_layer_type(blob, shown)
    raw = read_small(parts, described, MOST_CONFIG_BYTES, "configuration")
    config = read_object(raw, f"{shown}: its configuration")
    registry, repository = parts.origin()
    return Image(
        shown=shown,
        digest=found.descriptor.digest,
        image_id=described.digest,
        platform=check_platform(config, platform, shown),
        layers=tuple(
            ImageLayer(
                blob=blob,
                diff_id=diff_id,
                stream=partial(checked_layer, parts, blob),
                registry=registry,
                mount_from=repository,
            )
            for blob, diff_id in zip(blobs, diff_ids_of(config, len(blobs), shown), strict=True)
        ),
        config=config,
    )


def checked_layer(parts: ImageParts, blob: Descriptor) -> Generator[bytes, None, None]:
    """Yield a layer's bytes; raises at the end if they do not match its descriptor."""
    return checked_pieces(parts.stream(blob), blob, parts.shown)


def check_layer_type(blob: Descriptor, shown: str) -> None:
    """Refuse a layer that the registry does not have, or that is not a tar of files."""
    kind = blob.media_type
    if "nondistributable" in kind or "foreign" in kind:
        raise ImageUnreadableError(
            f"{shown} has a layer that its registry does not keep ({kind}).",
            fix="Name an image whose layers are all in its registry.",
        )
    if kind not in LAYERS:
        raise ImageUnreadableError(
            f"{shown} has a layer of an unsupported type ({kind}).",
            fix="Name an image whose layers are tar files, plain or compressed by gzip or zstd.",
        )


def diff_ids_of(config: Mapping[str, Any], count: int, shown: str) -> tuple[str, ...]:
    """Read the diffIDs of a configuration, one for each layer."""
    rootfs = config.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list) or not all(map(is_digest, found)):
        raise ImageUnreadableError(
            f"{shown}: its configuration names no layers by sha256.", fix=ANEW_FIX
        )
    if len(found) != count or count > _MOST_LAYERS:
        raise ImageUnreadableError(
            f"{shown}: its configuration names {len(found)} layers, its manifest {count}.",
            fix=ANEW_FIX,
        )
    return tuple(found)


def check_platform(config: Mapping[str, Any], wanted: Platform | None, shown: str) -> Platform:
    """Read the platform of a configuration, which must be the wanted one. ImageUnreadableError: it
    names none; PlatformMissingError: it is another.
    """
    architecture, system, variant = (config.get(key) for key in ("architecture", "os", "variant"))
    if not isinstance(architecture, str) or not isinstance(system, str):
        raise ImageUnreadableError(f"{shown}: its configuration names no platform.", fix=ANEW_FIX)
    found = Platform(
        architecture=architecture,
        os=system,
        variant=variant if isinstance(variant, str) and variant else None,
    )
    if not _fits(found, wanted):
        raise PlatformMissingError(
            f"{shown} is an image for {found}; one for {wanted} was needed.",
            fix="Name an image that exists for this architecture.",
            offered=(found,),
        )
    return found


def small_file(pieces: Callable[[], Iterable[bytes]], most: int) -> bytes:
    """Join pieces up to `most` bytes, plus one more byte if there are more."""
    found = bytearray()
    source = pieces()
    try:
        for piece in source:
            found += piece
            if len(found) > most:
                break
    finally:
        if isinstance(source, Generator):
            source.close()
    return bytes(found[: most + 1])
