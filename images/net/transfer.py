"""Downloads a part of a file, redirects included, in a thread that may be abandoned.

A DNS lookup or a server that sends a byte now and then cannot be sped up, so the caller waits for
each piece only as long as its patience. A short queue holds pieces, so that the download goes on
while the caller inflates.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import urllib.parse
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path

from images.net.address import origin_of, without_login
from images.net.connections import proxy_for
from images.net.errors import BrokenOff
from images.net.head import Head
from images.net.http import PIECE_BYTES, HttpClient, Incoming
from images.net.retries import Retries

_QUEUED_PIECES = 16


class _Unwanted(Exception):  # noqa: N818  never leaves this module
    """Nobody waits any more for what this thread downloads."""


Answer = Generator[Head | bytes, None, None]


def transfer_client(
    *,
    ca_bundle: Path | str | None,
    patience_s: float,
    connections: int = 1,
    proxy: Callable[[str], str | None] = proxy_for,
) -> HttpClient:
    """Make the HTTP client for transfers."""
    # the caller waits half as long; this only makes sure that an abandoned thread ends
    limit_s = 2 * patience_s
    retries = Retries(connect_s=limit_s, silence_s=limit_s, answer_s=limit_s)
    return HttpClient(ca_bundle=ca_bundle, retries=retries, connections=connections, proxy=proxy)


class Transfers:
    """Requests one file from any offset, any number of times; sends a login only to its host."""

    def __init__(
        self, url: str, client: HttpClient, *, login: Mapping[str, str], patience_s: float
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # ValueError if it is not a number
        if not parts.hostname:
            raise ValueError("it names no host")
        self.origin = without_login(parts)
        self.has_login = bool(login)
        self._login = dict(login)
        self._client = client
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._reading: Incoming | None = None

    @property
    def host(self) -> str:
        """The server's host, for messages."""
        return urllib.parse.urlsplit(self.origin).netloc

    def close(self) -> None:
        """Cancel the transfer under way; its reader gets an error."""
        self._closed.set()
        if self._reading is not None:
            self._reading.stop()

    def ask(
        self,
        offset: int,
        length: int | None = None,
        *,
        tag: str | None = None,
        url: str | None = None,
    ) -> Answer:
        """Yield the head of the answer, then the bytes from `offset` on; BrokenOff: it failed.

        `length`: this many bytes, else all. With a `tag` (ETag) a server sends the whole file if
        it has changed. `url`: the target of an earlier redirect.
        """
        headers: dict[str, str] = {}
        if offset or length is not None:
            end = "" if length is None else offset + length - 1
            headers["Range"] = f"bytes={offset}-{end}"
            if tag:
                headers["If-Range"] = tag
        return aside(
            lambda: self._exchange(url or self.origin, headers), self._patience_s, self._closed
        )

    def _exchange(self, url: str, headers: Mapping[str, str]) -> Answer:
        with self._client.open("GET", url, headers, login=self._shown_to) as incoming:
            self._reading = incoming
            yield Head(url=incoming.url, status=incoming.status, headers=incoming.headers)
            yield from _collected(incoming.pieces())

    def _shown_to(self, url: str) -> Mapping[str, str]:
        """Send the login only to its own server, not to the storage that it redirects to."""
        return self._login if origin_of(url) == origin_of(self.origin) else {}


def pieces_of(answer: Answer) -> Iterator[bytes]:
    """Yield the body of an answer whose head was read."""
    return (piece for piece in answer if isinstance(piece, bytes))


def head_of(answer: Answer) -> Head:
    """Read the head of an answer. BrokenOff: it ended before that."""
    head = next(answer, None)
    if not isinstance(head, Head):
        raise BrokenOff("gave no answer")
    return head


def _collected(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join small pieces into larger ones, to hand fewer over."""
    held = bytearray()
    try:
        for piece in pieces:
            held += piece
            if len(held) >= PIECE_BYTES:
                yield bytes(held)
                held = bytearray()
    except BrokenOff:
        # what arrived counts: the next request begins behind it
        if held:
            yield bytes(held)
        raise
    if held:
        yield bytes(held)


def aside(work: Callable[[], Answer], patience_s: float, closed: threading.Event) -> Answer:
    """Run `work` in a thread; BrokenOff if one of its pieces takes longer than `patience_s`."""
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
        with contextlib.suppress(queue.Full):  # after a cancel, the caller may still wait
            waiting.put_nowait(BrokenOff("was called off"))

    # a daemon: a look-up that hangs must not keep the program from ending
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
