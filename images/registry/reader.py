"""Reads a repository: manifests and blobs, checked against their digests, from mirrors first.

A blob comes in pieces, and resumes where a connection broke. Redirect targets, such as a storage on
another host, get no login.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pull
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from images.errors import Failure
from images.net.address import host_of
from images.net.errors import BrokenOff
from images.net.head import Reply
from images.net.http import MAX_BYTES, HttpClient, Incoming
from images.net.retries import AGAIN, Retries, busy
from images.oci.errors import DigestMismatchError
from images.oci.model import INDEXES, MANIFESTS, MOST_MANIFEST_BYTES, is_digest
from images.oci.reference import DIGEST, Reference, parse_reference
from images.registry.answers import parse_json_object
from images.registry.auth import Login, read_login
from images.registry.errors import CONNECT_FIX, RegistryAnswerError
from images.registry.mirrors import Mirror, Mirrors, read_mirrors
from images.registry.referrers import ReferrersReader
from images.registry.session import RepositorySession

if TYPE_CHECKING:
    from hashlib import _Hash

_ACCEPT = ", ".join((*sorted(INDEXES), *sorted(MANIFESTS)))
_PROGRESS_BYTES = 1 << 20
_ANEW_FIX = "A proxy changed it, or the registry is damaged; try another."


class ManifestBytes(NamedTuple):
    """The bytes of a manifest or an index, and their digest."""

    content: bytes
    media_type: str
    digest: str


class RepositoryReader(ReferrersReader):
    """Reads one repository, from mirrors that may have it first."""

    def __init__(
        self, session: RepositorySession, mirrors: Sequence[RepositorySession] = ()
    ) -> None:
        self._session = session
        self._mirrors = list(mirrors)
        self.reference = session.reference
        self.notes: list[str] = []
        """Which mirrors were skipped, and why."""

    @classmethod
    def open(
        cls,
        reference: str | Reference,
        *,
        ca_bundle: Path | None = None,
        login: Callable[[], Login] | None = None,
        mirrors: Mirrors | None = None,
        retries: Retries | None = None,
    ) -> RepositoryReader:
        """Prepare to read; sends nothing yet. `mirrors`: None: those of this host's engines.

        `login` is for the registry itself; a mirror gets the login that docker has for it.
        """
        parsed = parse_reference(reference) if isinstance(reference, str) else reference
        client = HttpClient(ca_bundle=ca_bundle, retries=retries)
        table = read_mirrors() if mirrors is None else mirrors
        # a mirror cannot reach a registry on this machine's own address
        found = [] if parsed.is_loopback else table.get(parsed.registry, ())
        return cls(
            RepositorySession(parsed, client, purpose="pull", login=login),
            [_mirror_session(mirror, parsed, client) for mirror in found],
        )

    def close(self) -> None:
        """Close the connections."""
        self._session.client.close()

    def manifest(self, reference: str | None = None) -> ManifestBytes:
        """Read a manifest or an index by its tag or digest; None: the reference's.

        ImageNotFoundError: it does not exist. RegistryAnswerError: it is not a manifest.
        DigestMismatchError: it does not match its digest.
        """
        wanted = reference or self.reference.pinned
        return self._from_any(lambda session: read_manifest(session, wanted))

    def blob(
        self, digest: str, size: int, *, offset: int = 0, hashed: _Hash | None = None
    ) -> Generator[bytes, None, None]:
        """Yield a blob's bytes from `offset` on; DigestMismatchError if they do not match.

        `hashed` is the hash of the bytes before `offset`; it is updated with those that follow.
        """
        if not is_digest(digest) or not 0 <= offset <= size or (offset and hashed is None):
            raise ValueError("a blob is read by a sha256 digest; from its middle with its hash")
        progress = _Progress(offset, hashlib.sha256() if hashed is None else hashed)
        for session in self._mirrors:
            try:
                yield from _blob(session, digest, size, progress)
            except DigestMismatchError:  # noqa: PERF203  as below
                raise  # its bytes were yielded already
            except Failure as error:
                self._pass_over(session, error)
            else:
                return
        yield from _blob(self._session, digest, size, progress)

    def _from_any(self, ask: Callable[[RepositorySession], ManifestBytes]) -> ManifestBytes:
        for session in list(self._mirrors):
            try:
                return ask(session)
            except Failure as error:  # noqa: PERF203  few mirrors, and each may fail
                self._pass_over(session, error)
        return ask(self._session)

    def _pass_over(self, session: RepositorySession, error: Failure) -> None:
        self.notes.append(f"The mirror {session.reference.registry} was passed over: {error}")


@dataclass(slots=True)
class _Progress:
    """How much of a blob has arrived, and its hash so far."""

    at: int
    state: _Hash


def _mirror_session(mirror: Mirror, reference: Reference, client: HttpClient) -> RepositorySession:
    """A session with fewer tries: the registry itself is the alternative."""
    retries = replace(client.retries, tries=min(2, client.retries.tries))
    return RepositorySession(
        mirror.of(reference),
        client,
        purpose="pull",
        login=lambda: read_login(mirror.registry),
        retries=retries,
    )


def read_manifest(session: RepositorySession, wanted: str) -> ManifestBytes:
    """Read a manifest or an index by its tag or digest. DigestMismatchError: it does not match."""
    what = f"give the manifest {wanted}"
    reply = session.request("GET", f"manifests/{wanted}", what=what, headers={"Accept": _ACCEPT})
    if reply.status != 200:
        raise session.refusal(reply, what)
    where = f"{session.reference.registry}/{session.reference.repository}:{wanted}"
    if len(reply.body) > MOST_MANIFEST_BYTES:
        raise RegistryAnswerError(
            f"{where} has more than {MOST_MANIFEST_BYTES} bytes; a manifest is smaller.",
            fix=CONNECT_FIX,
        )
    digest = f"sha256:{hashlib.sha256(reply.body).hexdigest()}"
    told = reply.headers.get("docker-content-digest")
    for promised in filter(None, (wanted if DIGEST.fullmatch(wanted) else None, told)):
        if not has_digest(reply.body, promised):
            raise DigestMismatchError(
                f"{where} was answered with {digest}, {promised[:140]} was expected: "
                "it was damaged in transit, or a proxy changed it.",
                fix=_ANEW_FIX,
            )
    document = parse_json_object(reply.body, where)
    kind = document.get("mediaType") or reply.headers.get("content-type", "").partition(";")[0]
    return ManifestBytes(reply.body, str(kind).strip(), digest)


def has_digest(content: bytes, digest: str) -> bool:
    """Whether bytes match a sha256 or sha512 digest."""
    algorithm, _, value = digest.partition(":")
    return (
        algorithm in {"sha256", "sha512"} and hashlib.new(algorithm, content).hexdigest() == value
    )


def _blob(
    session: RepositorySession, digest: str, size: int, progress: _Progress
) -> Generator[bytes, None, None]:
    """Yield the rest of a blob; resumes a broken connection, a few times in a row."""
    tries, what = session.tries(session.retries.tries), f"give {digest}"
    while progress.at < size:
        before, refused = progress.at, None
        try:
            refused = yield from _rest(session, digest, size, progress)
            if refused is None:
                continue
            trouble = busy(refused)
        except BrokenOff as error:
            trouble = error
        may_help = refused is None or refused.status in AGAIN
        if not may_help or not tries.again(
            trouble, progress=progress.at - before >= _PROGRESS_BYTES
        ):
            how_far = f" {progress.at} of {size} bytes had arrived."
            raise (
                session.refusal(refused, what)
                if refused
                else session.unreachable(trouble, what, how_far)
            )
    found = f"sha256:{progress.state.hexdigest()}"
    if found != digest:
        raise DigestMismatchError(
            f"{session.reference.registry} gave {found} for {digest}; the answer was discarded.",
            fix=_ANEW_FIX,
        )


def _rest(
    session: RepositorySession, digest: str, size: int, progress: _Progress
) -> Generator[bytes, None, Reply | None]:
    """Yield what one connection delivers; return the answer if it is a refusal."""
    headers = {"Accept": "*/*"}
    if progress.at:
        headers["Range"] = f"bytes={progress.at}-{size - 1}"
    with session.open(f"blobs/{digest}", headers) as incoming:
        start = _start_of(incoming, progress.at)
        if start is None:
            return incoming.reply(MAX_BYTES, session.retries.answer_s)
        # a server without ranges sends the blob from its beginning
        skipped = progress.at - start
        for received in incoming.pieces():
            piece = received
            if skipped:
                piece = received[skipped:]
                skipped -= len(received) - len(piece)
            if len(piece) > size - progress.at:
                raise DigestMismatchError(
                    f"{session.reference.registry} gave more than the {size} bytes of {digest}.",
                    fix=_ANEW_FIX,
                )
            if piece:
                progress.at += len(piece)
                progress.state.update(piece)
                yield piece
    if progress.at < size:
        raise BrokenOff("broke off: it ended early", host=host_of(incoming.url))
    return None


def _start_of(incoming: Incoming, wanted: int) -> int | None:
    """The offset at which an answer's body begins; None: it is not an answer with the blob."""
    if incoming.status == 200:
        return 0
    found = incoming.range
    return wanted if incoming.status == 206 and found and found[0] == wanted else None
