"""One request for a part of a file, redirects included, made by a thread that may be left behind.

Neither a name look-up nor a server that sends a byte now and then can be told to hurry, so the
asking side waits for each piece no longer than its patience. The pieces wait in a short queue, so
that the network works while the caller inflates.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images.inspect.errors import REACH_FIX
from images.inspect.source import PIECE_BYTES
from images.registry.http import pool_for, tls_context

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

_MAX_REDIRECTS = 5
_MOVED = {301, 302, 303, 307, 308}
_QUEUED_PIECES = 16


class BrokenOff(Exception):  # noqa: N818  never leaves `remote`
    """A request that came to nothing, and may go better the next time, unless it is `final`.

    `why` completes "the server ...".
    """

    def __init__(self, why: str, *, fix: str = REACH_FIX, final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix
        self.final = final


class _Unwanted(Exception):  # noqa: N818  never leaves this module
    """Nobody waits any more for what a thread fetches."""


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins; header names in lower case. `url` gave it, after redirects."""

    url: str
    status: int
    headers: Mapping[str, str]

    @property
    def range(self) -> tuple[int, int, int] | None:
        """(first byte, last byte, size of the whole) that the answer says it has."""
        text = self.headers.get("content-range", "")
        match = re.fullmatch(r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18})", text.strip())
        return (int(match[1]), int(match[2]), int(match[3])) if match else None

    @property
    def length(self) -> int | None:
        """The size of the body, where it is told."""
        text = self.headers.get("content-length", "")
        return int(text) if re.fullmatch(r"\d{1,18}", text) else None


Answer = Generator[Head | bytes, None, None]


class Transfers:
    """Makes requests to one server, and to those that it redirects to."""

    def __init__(self, url: str, *, ca_bundle: Path | None, patience_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # ValueError where it is no number
        if not parts.hostname:
            raise ValueError("it names no host")
        self.origin = without_login(parts)
        self._login = _login(parts)
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._pool: PoolManager = pool_for(self.origin, tls_context(ca_bundle))

    def close(self) -> None:
        """Call off what is still under way."""
        self._closed.set()
        self._pool.clear()

    def ask(self, url: str, offset: int, length: int) -> Answer:
        """Give the head of the answer, then its body in pieces; BrokenOff where there is none."""
        headers = {
            "User-Agent": "gpu-provision",
            "Accept-Encoding": "identity",
            "Range": f"bytes={offset}-{offset + length - 1}",
        }
        return _aside(lambda: self._exchange(url, headers), self._patience_s, self._closed)

    def _exchange(self, url: str, headers: Mapping[str, str]) -> Answer:
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._send(url, headers)
            try:
                if answer.status not in _MOVED:
                    names = {name.lower(): value for name, value in answer.headers.items()}
                    yield Head(url=url, status=answer.status, headers=names)
                    yield from _body(answer)
                    return
                target = urllib.parse.urljoin(url, answer.headers.get("location", ""))
            finally:
                answer.close()  # a connection whose answer was read to its end is kept all the same
            url = _followed(url, target)
        raise BrokenOff(f"redirects more than {_MAX_REDIRECTS} times", final=True)

    def _send(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        import urllib3

        # the login is for its own server alone, not for the storage that it redirects to
        own = _place(url) == _place(self.origin)
        # only so that a thread that was left behind ends some day
        limit_s = 2 * self._patience_s
        try:
            return self._pool.request(
                "GET",
                url,
                headers={**headers, **(self._login if own else {})},
                timeout=urllib3.Timeout(connect=limit_s, read=limit_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _broken(error) from error


def shown_url(url: str) -> str:
    """Strip an address of what may be secret: a login, and the query, which may be a signature."""
    return without_login(urllib.parse.urlsplit(url)._replace(query=""))


def without_login(parts: urllib.parse.SplitResult) -> str:
    """Put an address together again without user, password and fragment."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def pieces_of(answer: Answer) -> Iterator[bytes]:
    """Give the body of an answer whose head was read."""
    return (piece for piece in answer if isinstance(piece, bytes))


def head_of(answer: Answer) -> Head:
    """Read the head of an answer."""
    head = next(answer, None)
    if not isinstance(head, Head):
        raise BrokenOff("gave no answer")
    return head


def _place(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _login(parts: urllib.parse.SplitResult) -> dict[str, str]:
    import urllib3

    if parts.username is None:
        return {}
    words = (urllib.parse.unquote(word or "") for word in (parts.username, parts.password))
    return dict(urllib3.make_headers(basic_auth=":".join(words)))


def _followed(url: str, target: str) -> str:
    parts = urllib.parse.urlsplit(target)
    weaker = urllib.parse.urlsplit(url).scheme == "https" and parts.scheme == "http"
    if parts.scheme not in {"http", "https"} or not parts.hostname or weaker:
        raise BrokenOff(
            f"redirects to {shown_url(target) or 'nowhere'}, which is not followed", final=True
        )
    return without_login(parts)


def _body(answer: BaseHTTPResponse) -> Iterator[bytes]:
    """Collect what comes into pieces of a size worth handing over."""
    import urllib3

    held = bytearray()
    while True:
        try:
            got = answer.read1(PIECE_BYTES, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if held:
                yield bytes(held)
            raise _broken(error) from error
        held += got
        if held and (not got or len(held) >= PIECE_BYTES):
            yield bytes(held)
            held = bytearray()
        if not got:
            return


def _broken(error: Exception) -> BrokenOff:
    """Say what went wrong, in words that hold no address: it may have a signature in it."""
    import urllib3

    reason = getattr(error, "original_error", None) or getattr(error, "reason", None) or error
    text = str(reason)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return BrokenOff(
            "shows a certificate that this host does not trust",
            fix="Name your organisation's certificates: --ca-bundle FILE, or set SSL_CERT_FILE.",
            final=True,
        )
    if isinstance(error, urllib3.exceptions.ProxyError):
        return BrokenOff(f"is out of reach through the proxy ({type(reason).__name__})")
    if isinstance(reason, urllib3.exceptions.NameResolutionError):
        return BrokenOff("has no address: the name look-up failed")
    if "refused" in text:
        return BrokenOff("refuses connections")
    if isinstance(reason, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return BrokenOff("did not answer in time")
    return BrokenOff(f"broke off ({type(reason).__name__})")


def _aside(work: Callable[[], Answer], patience_s: float, closed: threading.Event) -> Answer:
    """Let a thread do the work, and wait for each of its pieces no longer than this."""
    waiting: queue.Queue[Head | bytes | Exception | None] = queue.Queue(_QUEUED_PIECES)
    unwanted = threading.Event()

    def hand_over(item: Head | bytes | Exception | None) -> None:
        while not (unwanted.is_set() or closed.is_set()):
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                return
        raise _Unwanted

    def body() -> None:
        with contextlib.suppress(_Unwanted):
            try:
                with contextlib.closing(work()) as pieces:
                    for piece in pieces:
                        hand_over(piece)
            except _Unwanted:
                raise
            except Exception as error:  # noqa: BLE001  raised again in the caller's thread
                hand_over(error)
            hand_over(None)
        with contextlib.suppress(queue.Full):  # where it was called off, somebody may still wait
            waiting.put_nowait(BrokenOff("was called off"))

    threading.Thread(target=body, name="wheel", daemon=True).start()
    try:
        while True:
            try:
                item = waiting.get(timeout=patience_s)
            except queue.Empty:
                why = f"was silent for {patience_s:g} s, or hardly said anything"
                raise BrokenOff(why) from None
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        unwanted.set()
