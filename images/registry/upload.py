"""Uploads one blob to a registry: starts it, sends it, resumes where it broke, and commits it.

The body is sent as one PATCH in chunked encoding, which every registry supports. When it breaks
off, we query how far the registry got, and send the rest from there; a registry that has lost the
upload gets it again. If bodies of that size are refused (a proxy's limit), or if it broke twice at
the same place, it is sent in parts, each in a separate request.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-blobs
"""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Callable, Iterator

from images.errors import Failure
from images.net.errors import BrokenOff
from images.net.head import Reply
from images.net.retries import AGAIN, busy
from images.oci.model import Descriptor
from images.oci.sources import Stream, Written
from images.registry.body import Body, BodySourceError
from images.registry.errors import PUSH_FIX, RegistryAnswerError, RegistryUnreachableError
from images.registry.session import RepositorySession

_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})")
_PARTS = (16 << 20, 4 << 20, 1 << 20)
"""The size of a part, and the sizes after one was refused; some proxies refuse more than 1 MB."""
# A part is held in memory, whatever the registry demands.
_MOST_PART = 64 << 20
_PROGRESS_BYTES = 1 << 20
"""At least this much must arrive after a break to count as progress."""
_TAKEN = frozenset({200, 201, 202, 204})
_GONE = frozenset({400, 404, 405, 410, 501})
_LOST = frozenset({404, 410, 416})
_CANCEL_S = 5.0


class _AgainError(Exception):
    """The upload stopped and should be retried; `reply`: the registry's answer, if there is one."""

    def __init__(self, why: str, *, reply: Reply | None = None, counts: bool = True) -> None:
        super().__init__(why)
        self.reply = reply
        self.counts = counts


class Upload:
    """The upload of one blob."""

    def __init__(
        self,
        session: RepositorySession,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
        is_there: Callable[[str, int], bool],
        begun: str | None = None,
    ) -> None:
        """Prepare it. `is_there` checks for a blob by digest and size; `begun`: resume this one."""
        self._session = session
        self._body = Body(open_stream, expected, on_bytes)
        self._is_there = is_there
        self._location = begun
        self._at = 0
        self._is_sure = True
        self._part = 0  # an index into _PARTS plus one; 0: all at once
        self._least_part = 0
        self._breaks_here = 0
        self._best = 0
        self._tries = session.tries(session.retries.tries)
        self._was_damaged = False
        self._what = f"take {expected.digest if expected else 'a layer'}"

    def run(self) -> Written:
        """Send it, with a limited number of retries."""
        try:
            return self._run()
        except BaseException as error:
            self._cancel()
            if isinstance(error, BodySourceError) and self._body.failure is not None:
                raise self._body.failure from self._body.failure.__cause__
            if isinstance(error, RegistryUnreachableError) and self._how_far() not in str(error):
                raise RegistryUnreachableError(
                    f"{error.message} {self._how_far().capitalize()}.",
                    fix=error.fix,
                    detail=error.detail,
                ) from error
            raise
        finally:
            self._body.close()

    def _run(self) -> Written:
        while True:
            written = self._try()
            if written is not None:
                return written

    def _try(self) -> Written | None:
        try:
            if self._location is None:
                self._begin()
            elif not self._is_sure:
                self._ask()
            self._send()
            return self._commit()
        except _AgainError as again:
            self._count(again)
            return None

    def _begin(self) -> None:
        reply = self._session.request("POST", "blobs/uploads/", what=self._what, body=b"")
        if reply.status != 202:
            raise self._session.refusal(reply, self._what)
        self._location = self._session.locate(reply.headers.get("location", ""), reply.url)
        self._at, self._is_sure = 0, True
        # storage behind a registry may refuse small parts (S3: below 5 MiB)
        least = reply.headers.get("oci-chunk-min-length", "")
        self._least_part = int(least) if least.isascii() and re.fullmatch(r"\d{1,9}", least) else 0

    def _ask(self) -> None:
        """Query how far the registry got; if it has lost the upload, start again."""
        reply = self._session.request("GET", self._place, what=self._what)
        found = _RANGE.fullmatch(reply.headers.get("range", "").strip())
        end = int(found[1]) if found else 0
        # "0-0" can mean no byte or one: neither is worth keeping
        if reply.status in _GONE:
            self._location = None
            return self._begin()
        if reply.status not in {200, 202, 204, 416}:
            raise self._session.refusal(reply, self._what)
        if reply.status == 416 or end == 0 or end >= self._body.furthest:
            self._forget()
            return self._begin()
        self._move(reply)
        self._at, self._is_sure = end + 1, True
        if self._at >= self._best + _PROGRESS_BYTES:
            self._tries.failures = self._breaks_here = 0
        self._best = max(self._best, self._at)
        return None

    def _send(self) -> None:
        while not (self._body.is_done and self._at == self._body.position):
            if self._part:
                self._send_part()
            elif self._at and self._body.expected is None:
                self._part = 1  # the size of the rest must be announced, and is unknown
            else:
                self._send_rest()

    def _send_rest(self) -> None:
        """Send everything from here on."""
        size = self._body.size
        if self._at and size is not None:
            headers = {
                "Content-Range": f"{self._at}-{size - 1}",
                "Content-Length": str(size - self._at),
            }
            self._patch(headers, self._body.rest(self._at))
        else:
            self._patch({}, self._body.pieces(self._at))

    def _send_part(self) -> None:
        """Send one part; its length must be known before, so it is buffered."""
        most = min(max(_PARTS[self._part - 1], self._least_part), _MOST_PART)
        held = [bytes(piece) for piece in self._body.pieces(self._at, most)]
        length = sum(map(len, held))
        if not length:
            return
        # as the specification writes it: RFC 9110 would begin with "bytes "
        headers = {
            "Content-Range": f"{self._at}-{self._at + length - 1}",
            "Content-Length": str(length),
        }
        self._patch(headers, map(memoryview, held))

    def _patch(self, headers: dict[str, str], body: Iterator[memoryview]) -> None:
        self._is_sure = False
        headers = {"Content-Type": "application/octet-stream", **headers}
        try:
            reply, shown = self._session.once("PATCH", self._place, headers, body)
        except BrokenOff as error:
            if error.final:
                raise self._session.unreachable(error, self._what) from error
            raise _AgainError(str(error)) from error
        if reply.status in _TAKEN:
            self._take(reply)
        elif reply.status == 401 and self._session.renew(reply, shown):
            raise _AgainError("its token had expired", reply=reply)
        elif reply.status == 413 and self._part < len(_PARTS):
            self._part += 1
            self._forget()
            raise _AgainError("it does not accept a body of this size", counts=False)
        elif reply.status in {307, 308}:
            self._move(reply)
            self._is_sure = True
            raise _AgainError("it redirects too often", reply=reply)
        elif reply.status in AGAIN | _LOST or (reply.status == 400 and self._at):
            raise _AgainError(f"it answered HTTP {reply.status}", reply=reply)
        else:
            raise self._session.refusal(reply, self._what)

    def _take(self, reply: Reply) -> None:
        """Record that a PATCH arrived, unless the registry says that only a part did."""
        self._move(reply)
        found = _RANGE.fullmatch(reply.headers.get("range", "").strip())
        # some registries are off by one here; the digest at the end decides
        if found and int(found[1]) + 2 < self._body.position:
            raise _AgainError("it accepted only a part of what was sent")
        self._at, self._is_sure = self._body.position, True
        self._best = max(self._best, self._at)

    def _commit(self) -> Written:
        digest, size = self._body.digest(), self._body.position
        unpacked = self._body.unpacked
        if unpacked is None:  # digest() makes sure of that
            raise BodySourceError("the layer is not complete")
        joint = "&" if urllib.parse.urlsplit(self._place).query else "?"
        url = f"{self._place}{joint}{urllib.parse.urlencode({'digest': digest})}"
        self._is_sure = False
        try:
            wait_s = self._session.retries.commit_s
            reply = self._session.request(
                "PUT", url, what=f"take {digest}", body=b"", wait_s=wait_s, tries=1
            )
        except RegistryUnreachableError as error:
            # the answer is lost, and the commit may have succeeded
            if not self._is_there(digest, size):
                raise _AgainError("it did not confirm it") from error
            return Written(digest=digest, size=size, unpacked=unpacked)
        self._check_committed(reply, digest, size)
        return Written(digest=digest, size=size, unpacked=unpacked)

    def _check_committed(self, reply: Reply, digest: str, size: int) -> None:
        if reply.status in _LOST and self._is_there(digest, size):
            self._location = None
            return
        if reply.status == 400 and not self._was_damaged:
            self._was_damaged = True  # perhaps in transit: try once more
            self._forget()
        elif reply.status not in {200, 201, 204} | AGAIN | _LOST:
            raise self._session.refusal(reply, self._what)
        if reply.status not in {200, 201, 204}:
            raise _AgainError(f"it answered HTTP {reply.status}", reply=reply)
        told = reply.headers.get("docker-content-digest")
        if told not in {None, digest} or (told is None and not self._is_there(digest, size)):
            raise lying(self._session, digest, told)
        self._location = None

    def _count(self, again: _AgainError) -> None:
        """Count a break: retry, or give up with a Failure that says how far it got."""
        if not again.counts:
            return
        self._breaks_here += 1
        trouble = busy(again.reply) if again.reply else BrokenOff(str(again))
        if not self._tries.count(trouble):
            raise self._given_up(again)
        if self._breaks_here >= 2 and not self._part:
            self._part = 1
        if again.reply is None or again.reply.status not in {307, 308, 401}:
            self._tries.pause(trouble)

    def _given_up(self, again: _AgainError) -> Exception:
        reply = again.reply
        if reply is not None and reply.status not in AGAIN | _LOST | {307, 308}:
            return self._session.refusal(reply, self._what)
        return RegistryUnreachableError(
            f"{self._session.reference.registry} could not {self._what}: it failed "
            f"{self._tries.failures} times, the last time because {again}; {self._how_far()}.",
            fix=PUSH_FIX,
            detail="" if reply is None else self._session.refusal(reply, self._what).detail,
        )

    def _how_far(self) -> str:
        of = f" of {self._body.size}" if self._body.size is not None else ""
        return f"{self._best}{of} bytes had arrived"

    @property
    def _place(self) -> str:
        if self._location is None:
            raise _AgainError("the upload has no location")
        return self._location

    def _move(self, reply: Reply) -> None:
        """Use the location in the answer: it has the upload's state, and the old one is invalid."""
        location = reply.headers.get("location")
        if location:
            self._location = self._session.locate(location, reply.url)

    def _forget(self) -> None:
        self._cancel()
        self._location, self._at, self._is_sure = None, 0, True

    def _cancel(self) -> None:
        location, self._location = self._location, None
        if location is not None:
            cancel(self._session, location)


def cancel(session: RepositorySession, location: str) -> None:
    """Cancel an upload at the registry, which also expires it by itself."""
    with contextlib.suppress(Failure, BrokenOff):
        session.request("DELETE", location, what="forget", wait_s=_CANCEL_S, tries=1)


def lying(session: RepositorySession, digest: str, told: str | None) -> RegistryAnswerError:
    """The error for a registry that stored other content than was sent."""
    other = f"{told[:100]!r}" if told else "nothing by that digest"
    return RegistryAnswerError(
        f"{session.reference.registry} took {digest} and says that it has {other}: "
        "its content is not what was sent.",
        fix="Check whether a proxy answers in its place; otherwise this registry is not supported.",
    )
