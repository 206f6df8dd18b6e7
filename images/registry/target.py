"""Pushes an image to a registry; skips blobs that the registry has.

Several threads may write blobs at once. A manifest is written last, after everything that it names,
so that an incomplete image is never visible.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#push
"""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path

from images.net.head import Reply
from images.net.http import HttpClient
from images.net.retries import Retries
from images.oci.errors import BadReference
from images.oci.model import EMPTY, MANIFEST, MOST_MANIFEST_BYTES, Descriptor, descriptor_of
from images.oci.reference import TAG, Reference, parse_reference
from images.oci.sources import Stream, Unpacked, Written
from images.registry import referrers
from images.registry.auth import Login
from images.registry.errors import PushRefusedError, RegistryDeniedError
from images.registry.session import RepositorySession
from images.registry.tokens import scope
from images.registry.upload import Upload, cancel, lying


class RegistryTarget(referrers.ReferrersReader):
    """Pushes to one repository. See `images.oci.sources.Target`."""

    def __init__(self, session: RepositorySession) -> None:
        self._session = session
        self.reference = session.reference
        self._lock = threading.Lock()
        self._there: set[tuple[str, int]] = set()
        self._begun: dict[str, str] = {}

    @classmethod
    def open(
        cls,
        reference: str | Reference,
        *,
        ca_bundle: Path | None = None,
        login: Callable[[], Login] | None = None,
        retries: Retries | None = None,
    ) -> RegistryTarget:
        """Prepare to push to REGISTRY/REPOSITORY[:TAG]; sends nothing yet.

        BadReference: it is malformed, or has a digest, to which one cannot push.
        """
        parsed = parse_reference(reference) if isinstance(reference, str) else reference
        if parsed.digest is not None:
            raise BadReference(
                f"{parsed} cannot be pushed to a digest: the digest follows from the content.",
                fix="Give a tag: REGISTRY/PATH:TAG",
            )
        client = HttpClient(ca_bundle=ca_bundle, retries=retries)
        return cls(RepositorySession(parsed, client, purpose="push", login=login))

    def close(self) -> None:
        """Close the connections, and cancel uploads that a mount began."""
        with self._lock:
            begun, self._begun = self._begun, {}
        for location in begun.values():
            cancel(self._session, location)
        self._session.client.close()

    @property
    def shown(self) -> str:
        """The image's name."""
        return str(self.reference)

    def has(self, blob: Descriptor) -> bool:
        """Whether the registry has this blob; a positive answer is remembered."""
        return self._has(blob.digest, blob.size)

    def mount(self, blob: Descriptor, from_repository: str) -> bool:
        """Mount a blob from another repository of this registry, without sending it.

        False: it is not there or not readable, or the registry does not support mounting.
        """
        query = urllib.parse.urlencode({"mount": blob.digest, "from": from_repository})
        right = (*self._session.right, scope(from_repository, "pull"))
        what = f"mount {blob.digest}"
        try:
            reply = self._session.request(
                "POST", f"blobs/uploads/?{query}", what=what, body=b"", right=right
            )
        except RegistryDeniedError:  # no token for the other repository; one for this may work
            return False
        if reply.status == 201:
            told = reply.headers.get("docker-content-digest", blob.digest)
            if told != blob.digest:
                raise lying(self._session, blob.digest, told)
            return self._remember(blob.digest, blob.size)
        if reply.status == 202 and reply.headers.get("location"):
            location = self._session.locate(reply.headers["location"], reply.url)
            with self._lock:
                unused = self._begun.pop(blob.digest, None)
                self._begun[blob.digest] = location
            if unused is not None:
                cancel(self._session, unused)
        return False

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        """Send a layer; `images.registry.upload` describes what happens when it breaks off."""
        with self._lock:
            begun = self._begun.pop(expected.digest, None) if expected else None
        written = Upload(
            self._session,
            open_stream,
            expected=expected,
            on_bytes=on_bytes,
            is_there=self._has,
            begun=begun,
        ).run()
        self._remember(written.digest, written.size)
        return written

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        """Send a small blob, such as a configuration, if it is not there."""
        blob = descriptor_of(media_type, content)
        if not self.has(blob):

            def stream() -> Stream:
                yield content
                return Unpacked(diff_id=blob.digest, size=blob.size)

            self.write(stream, expected=blob, on_bytes=lambda _: None)
        return blob

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        """Write a manifest or an index under a tag, or only under its digest.

        `name`: a tag, or the image's whole name as `shown`.
        """
        published, _ = self._publish(manifest, media_type, name)
        return published

    def attach(
        self,
        subject: Descriptor,
        *,
        artifact_type: str,
        content: bytes,
        media_type: str,
        annotations: Mapping[str, str] | None = None,
    ) -> Descriptor:
        """Attach an artifact to an image in this repository; idempotent."""
        notes = dict(annotations or {})
        blob = self.write_bytes(content, media_type)
        self.write_bytes(referrers.EMPTY_CONFIG, EMPTY)
        manifest = referrers.artifact_manifest(subject, artifact_type, blob, notes)
        published, reply = self._publish(manifest, MANIFEST, None)
        artifact = descriptor_of(MANIFEST, manifest, annotations=notes, artifact_type=artifact_type)
        if reply.headers.get("oci-subject") != subject.digest:
            referrers.list_in_tag(self._session, subject, artifact)
        return artifact if artifact.digest == published.digest else published

    def _publish(
        self, manifest: bytes, media_type: str, name: str | None
    ) -> tuple[Descriptor, Reply]:
        if len(manifest) > MOST_MANIFEST_BYTES:
            raise PushRefusedError(
                f"A manifest of {len(manifest)} bytes is larger than registries accept "
                f"({MOST_MANIFEST_BYTES}).",
                fix="Use fewer layers or shorter labels.",
            )
        described = descriptor_of(media_type, manifest)
        place = described.digest if name is None else self._tag(name)
        what = f"take the manifest {place}"
        reply = self._session.request(
            "PUT",
            f"manifests/{place}",
            what=what,
            headers={"Content-Type": media_type},
            body=manifest,
        )
        if reply.status not in {200, 201}:
            raise self._session.refusal(reply, what)
        told = reply.headers.get("docker-content-digest") or self._digest_of(place, media_type)
        if told not in {None, described.digest}:
            raise lying(self._session, described.digest, told)
        return described, reply

    def _digest_of(self, place: str, media_type: str) -> str | None:
        """Query a manifest's digest, if the registry's answer did not have it."""
        reply = self._session.request(
            "HEAD", f"manifests/{place}", what=f"show {place}", headers={"Accept": media_type}
        )
        return reply.headers.get("docker-content-digest") if reply.status == 200 else "none"

    def _tag(self, name: str) -> str:
        if name in {self.shown, self.shown.removeprefix("docker.io/")} and self.reference.tag:
            return self.reference.tag
        if not TAG.fullmatch(name):
            raise BadReference(
                f"{name[:200]!r} is not a tag.",
                fix="A tag has letters, digits, dots, dashes and underscores, 128 at most.",
            )
        return name

    def _has(self, digest: str, size: int) -> bool:
        with self._lock:
            if (digest, size) in self._there:
                return True
        what = f"say whether it has {digest}"
        reply = self._session.request("HEAD", f"blobs/{digest}", what=what)
        if reply.status in {401, 403} and reply.url.startswith(self._session.url("")):
            raise self._session.refusal(reply, what)
        if reply.status != 200:
            return False  # a storage behind it may not support HEAD; then send it again
        length = reply.headers.get("content-length")
        told = reply.headers.get("docker-content-digest")
        right = told == digest if length is None else length == str(size)
        return right and told in {None, digest} and self._remember(digest, size)

    def _remember(self, digest: str, size: int) -> bool:
        with self._lock:
            self._there.add((digest, size))
        return True
