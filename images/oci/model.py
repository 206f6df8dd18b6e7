"""The terms of the OCI image specification: descriptors, platforms, media types.

Everything is parsed from JSON once, here, and not trusted: digests, sizes and types are checked,
because they become file names and addresses.
https://github.com/opencontainers/image-spec/blob/main/descriptor.md
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from images.oci.errors import ImageUnreadableError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"

TABLE_DIGEST = "containerd.io/snapshot/stargz/toc.digest"
"""Of a layer with a table of contents; stargz-snapshotter mounts none with another digest."""
CHUNKED_DIGEST = "io.containers.zstd-chunked.manifest-checksum"
CHUNKED_POSITION = "io.containers.zstd-chunked.manifest-position"
PODMAN_DIGEST = "io.github.containers.zstd-chunked.manifest-checksum"
PODMAN_POSITION = "io.github.containers.zstd-chunked.manifest-position"
"""Podman's names for the same two since 4.4."""
UNPACKED_BYTES = "io.containers.estargz.uncompressed-size"
"""The stargz store of CRI-O and Podman wants to know it."""
_TABLE_DIGESTS = frozenset({TABLE_DIGEST, CHUNKED_DIGEST, PODMAN_DIGEST})
TABLE_ANNOTATIONS = _TABLE_DIGESTS | {CHUNKED_POSITION, PODMAN_POSITION, UNPACKED_BYTES}

MANIFESTS = frozenset({MANIFEST, DOCKER_MANIFEST})
INDEXES = frozenset({INDEX, DOCKER_INDEX})

MOST_MANIFEST_BYTES = 4 << 20
"""The largest manifest that registries must accept, according to the distribution specification."""

REF_NAME = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ANEW = "Rebuild the image or pull it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The machine that an image is for, in Go's names ("amd64", "arm64")."""

    architecture: str
    os: str = "linux"
    variant: str | None = None

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    def to_json(self) -> dict[str, Any]:
        variant = {"variant": self.variant} if self.variant else {}
        return {"architecture": self.architecture, "os": self.os, **variant}


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Digest ("sha256:..."), size and type of some bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Platform | None = None
    artifact_type: str | None = None

    @property
    def hex(self) -> str:
        """The digest as a file name in `blobs/sha256`."""
        return self.digest.removeprefix("sha256:")

    @property
    def of_table(self) -> Mapping[str, str]:
        """Its annotations that say where a table of contents is."""
        return {name: text for name, text in self.annotations.items() if name in TABLE_ANNOTATIONS}

    @property
    def has_table(self) -> bool:
        """Whether it is a layer with a table of contents that nodes may read instead of its tar:
        they use none whose digest they do not know.
        """
        return not _TABLE_DIGESTS.isdisjoint(self.annotations)

    def to_json(self) -> dict[str, Any]:
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            **({"annotations": dict(sorted(self.annotations.items()))} if self.annotations else {}),
            **({"platform": self.platform.to_json()} if self.platform else {}),
            **({"artifactType": self.artifact_type} if self.artifact_type else {}),
        }


def descriptor_of(media_type: str, content: bytes, **more: Any) -> Descriptor:  # noqa: ANN401
    """Make the descriptor of some bytes."""
    return Descriptor(media_type=media_type, digest=digest_of(content), size=len(content), **more)


def digest_of(content: bytes) -> str:
    """The digest of bytes as OCI writes it: "sha256:" and 64 hex digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_digest(text: object) -> bool:
    """Whether this is a sha256 digest, and so safe as a file name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def to_bytes(document: Mapping[str, Any]) -> bytes:
    """Serialize a document so that equal ones have equal bytes, and so equal digests."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object; `where` names it in errors. ImageUnreadableError: it is not one."""
    try:
        document = json.loads(content)
        if b"\\u" in content:
            document = _in_whole_characters(document)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ImageUnreadableError(f"{where} is not a JSON object.", fix=_ANEW)
    return document


def _in_whole_characters(found: object) -> object:
    """Replace lone surrogates, as engines do."""
    if isinstance(found, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", found)
    if isinstance(found, list):
        return [_in_whole_characters(one) for one in found]
    if isinstance(found, dict):
        return {
            str(_in_whole_characters(name)): _in_whole_characters(one)
            for name, one in found.items()
        }
    return found


def read_descriptor(found: object, where: str) -> Descriptor:
    """Read one descriptor. ImageUnreadableError, which names `where`: a field is missing or
    invalid.
    """
    if not isinstance(found, dict):
        raise ImageUnreadableError(f"{where} is not a descriptor.", fix=_ANEW)
    digest, size, kind = found.get("digest"), found.get("size"), found.get("mediaType")
    if not is_digest(digest) or not isinstance(digest, str):
        raise ImageUnreadableError(f"{where} has no sha256 digest.", fix=_ANEW)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 53:
        raise ImageUnreadableError(f"{where} has no size.", fix=_ANEW)
    if not isinstance(kind, str) or not kind:
        raise ImageUnreadableError(f"{where} has no media type.", fix=_ANEW)
    artifact = found.get("artifactType")
    return Descriptor(
        media_type=kind,
        digest=digest,
        size=size,
        annotations=_texts(found.get("annotations")),
        platform=_platform(found.get("platform")),
        artifact_type=artifact if isinstance(artifact, str) else None,
    )


def read_descriptors(found: object, where: str) -> tuple[Descriptor, ...]:
    """Read a list of descriptors; `where` is the list's name. ImageUnreadableError: it is not a
    list, or one of them is wrong.
    """
    if not isinstance(found, list):
        raise ImageUnreadableError(f"{where} is not a list.", fix=_ANEW)
    return tuple(read_descriptor(one, f"{where}[{i}]") for i, one in enumerate(found))


def _texts(found: object) -> dict[str, str]:
    items = found.items() if isinstance(found, dict) else ()
    return {str(key): value for key, value in items if isinstance(value, str)}


def _platform(found: object) -> Platform | None:
    if not isinstance(found, dict) or not isinstance(found.get("architecture"), str):
        return None
    variant = found.get("variant")
    return Platform(
        architecture=found["architecture"],
        os=str(found.get("os", "linux")),
        variant=variant if isinstance(variant, str) else None,
    )


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def platform_of(arch: str) -> Platform:
    """The platform of a machine ("x86_64"), also by its name in images ("amd64")."""
    return Platform(architecture=_ARCHITECTURES.get(arch, arch))


def host_platform() -> Platform:
    """The platform of this machine."""
    return platform_of(os.uname().machine)
