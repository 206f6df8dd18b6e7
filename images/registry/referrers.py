"""Artifacts attached to an image: manifests that name it as their subject.

A registry that supports OCI 1.1 keeps the list itself. In others it is an index under a tag derived
from the image's digest, which clients read, change and write; concurrent writes may lose an entry,
so the index is read again after writing. Entries of others are kept as they are.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from images.oci.errors import DigestMismatchError
from images.oci.model import (
    EMPTY,
    INDEX,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    Descriptor,
    descriptor_of,
    digest_of,
    read_descriptor,
    read_descriptors,
    read_object,
    to_bytes,
)
from images.registry.errors import RegistryAnswerError
from images.registry.session import RepositorySession
from images.registry.tags import next_page

EMPTY_CONFIG = b"{}"
MOST_ARTIFACT_BYTES = 64 << 20
_MOST_PAGES = 100
_MOST_ROUNDS = 4
_UNKNOWN = frozenset({400, 404, 405, 406, 501})
"""The answers of registries that do not support the referrers list."""


class ReferrersReader:
    """Reads the artifacts attached to the images of a repository."""

    _session: RepositorySession

    def referrers(
        self, subject: Descriptor, artifact_type: str | None = None
    ) -> tuple[Descriptor, ...]:
        """The artifacts attached to an image, of one type or all. Does not query mirrors."""
        return list_referrers(self._session, subject, artifact_type)

    def read_artifact(self, artifact: Descriptor) -> bytes:
        """The content of an attached artifact, checked against its digests."""
        return read_artifact(self._session, artifact)


def artifact_manifest(
    subject: Descriptor, artifact_type: str, content: Descriptor, annotations: Mapping[str, str]
) -> bytes:
    """Make the manifest of an artifact that is attached to `subject`."""
    named = Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size)
    return to_bytes({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact_type,
        "config": descriptor_of(EMPTY, EMPTY_CONFIG).to_json(),
        "layers": [content.to_json()],
        "subject": named.to_json(),
        **({"annotations": dict(sorted(annotations.items()))} if annotations else {}),
    })  # fmt: skip


def fallback_tag(subject: Descriptor) -> str:
    """The tag of the list in registries that do not support OCI 1.1: "sha256-0123..."."""
    return subject.digest.replace(":", "-")


def list_in_tag(session: RepositorySession, subject: Descriptor, artifact: Descriptor) -> None:
    """Add an artifact to the list under the fallback tag, and verify that it is there."""
    path = f"manifests/{fallback_tag(subject)}"
    what = f"take the list of artifacts attached to {subject.digest}"
    for _ in range(_MOST_ROUNDS):
        entries = _entries(_read_tag(session, subject), subject)
        if any(entry.get("digest") == artifact.digest for entry in entries):
            return
        index = to_bytes({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [*entries, artifact.to_json()],
        })  # fmt: skip
        if len(index) > MOST_MANIFEST_BYTES:
            raise RegistryAnswerError(
                f"The list of artifacts attached to {subject.digest} is full.",
                fix="Remove attached artifacts that are no longer needed.",
            )
        reply = session.request("PUT", path, what=what, headers={"Content-Type": INDEX}, body=index)
        if reply.status not in {200, 201}:
            raise session.refusal(reply, what)
    if not any(
        entry.get("digest") == artifact.digest
        for entry in _entries(_read_tag(session, subject), subject)
    ):
        raise RegistryAnswerError(
            f"{session.reference.registry} does not keep the list of artifacts attached to "
            f"{subject.digest}: each time it was written, it changed again.",
            fix="Make sure that nothing else writes to it, then attach it again.",
        )


def list_referrers(
    session: RepositorySession, subject: Descriptor, artifact_type: str | None
) -> tuple[Descriptor, ...]:
    """The artifacts attached to an image, from the registry's list or from the fallback tag."""
    entries = _from_api(session, subject, artifact_type)
    if entries is None:
        entries = _entries(_read_tag(session, subject), subject)
    where = f"the list of artifacts attached to {subject.digest}"
    found = {one.digest: one for one in read_descriptors(entries, where)}
    return tuple(one for one in found.values() if artifact_type in {None, one.artifact_type})


def read_artifact(session: RepositorySession, artifact: Descriptor) -> bytes:
    """The content of an attached artifact: the first layer of its manifest, checked."""
    what = f"give {artifact.digest}"
    reply = session.request(
        "GET", f"manifests/{artifact.digest}", what=what, headers={"Accept": MANIFEST}
    )
    if reply.status != 200:
        raise session.refusal(reply, what)
    manifest = read_object(
        checked(reply.body, artifact, session), f"the artifact {artifact.digest}"
    )
    layers = manifest.get("layers")
    first = layers[0] if isinstance(layers, list) and layers else None
    content = read_descriptor(first, f"the artifact {artifact.digest}: layers[0]")
    if content.size > MOST_ARTIFACT_BYTES:
        raise RegistryAnswerError(
            f"The artifact {artifact.digest} has {content.size} bytes; "
            f"at most {MOST_ARTIFACT_BYTES} are read.",
            fix="This program did not attach it.",
        )
    parts = bytearray()
    with session.open(f"blobs/{content.digest}", {"Accept": "*/*"}) as incoming:
        if incoming.status != 200:
            refused = incoming.reply(20_000, session.retries.answer_s)
            raise session.refusal(refused, f"give {content.digest}")
        for piece in incoming.pieces():
            parts += piece
            if len(parts) > content.size:
                break
    return checked(bytes(parts), content, session)


def checked(content: bytes, wanted: Descriptor, session: RepositorySession) -> bytes:
    """Return the bytes if they match the descriptor. DigestMismatchError: they do not."""
    if len(content) != wanted.size or digest_of(content) != wanted.digest:
        raise DigestMismatchError(
            f"{session.reference.registry} returned other bytes than {wanted.digest} "
            f"({wanted.size} bytes): the answer was discarded.",
            fix="A proxy changed them, or the registry is damaged; try another.",
        )
    return content


def _from_api(
    session: RepositorySession, subject: Descriptor, artifact_type: str | None
) -> list[dict[str, Any]] | None:
    """Read every page of the registry's list; None: it does not support one."""
    what = f"list what is attached to {subject.digest}"
    base = f"referrers/{subject.digest}"
    query = urllib.parse.urlencode({"artifactType": artifact_type}) if artifact_type else ""
    entries: list[dict[str, Any]] = []
    asked: set[str] = set()
    for _ in range(_MOST_PAGES):
        path = f"{base}?{query}" if query else base
        asked.add(query)
        reply = session.request("GET", path, what=what, headers={"Accept": INDEX})
        kind = reply.headers.get("content-type", "").partition(";")[0].strip()
        if reply.status in _UNKNOWN or (reply.status == 200 and kind != INDEX):
            return None
        if reply.status != 200:
            raise session.refusal(reply, what)
        entries += _entries(reply.body, subject)
        following = next_page(reply.headers.get("link", ""))
        if following is None:
            return entries
        if following in asked:
            break
        query = following
    raise RegistryAnswerError(
        f"{session.reference.registry}: the list of artifacts attached to {subject.digest} "
        "does not end.",
        fix="Check whether a proxy answers in its place; otherwise this registry is not supported.",
    )


def _read_tag(session: RepositorySession, subject: Descriptor) -> bytes | None:
    what = f"list what is attached to {subject.digest}"
    path = f"manifests/{fallback_tag(subject)}"
    reply = session.request("GET", path, what=what, headers={"Accept": INDEX})
    if reply.status == 404:
        return None
    if reply.status != 200:
        raise session.refusal(reply, what)
    return reply.body


def _entries(content: bytes | None, subject: Descriptor) -> list[dict[str, Any]]:
    """Parse a list; an invalid one is an error: taking it for empty would delete its entries."""
    if content is None:
        return []
    where = f"the list of artifacts attached to {subject.digest}"
    manifests = read_object(content, where).get("manifests")
    for i, entry in enumerate(manifests if isinstance(manifests, list) else [manifests]):
        read_descriptor(entry, f"{where}[{i}]")
    return list(manifests) if isinstance(manifests, list) else []
