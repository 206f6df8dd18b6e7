"""One request for a part of a file, redirects included, made by a thread that may be left behind.

Neither a name look-up nor a server that sends a byte now and then can be told to hurry, so the
asking side waits for each piece no longer than its patience. The pieces wait in a short queue, so
that the network works while the caller inflates.
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
from images.net.patience import Patience

_QUEUED_PIECES = 16


class _Unwanted(Exception):  # noqa: N818  never leaves this module
    """Nobody waits any more for what a thread fetches."""


Answer = Generator[Head | bytes, None, None]


def transfer_client(
    *,
    ca_bundle: Path | str | None,
    patience_s: float,
    connections: int = 1,
    proxy: Callable[[str], str | None] = proxy_for,
) -> HttpClient:
    """Make connections for transfers."""
    # who asks waits for half as long; this is only so that a thread left behind ends some day
    limit_s = 2 * patience_s
    patience = Patience(connect_s=limit_s, silence_s=limit_s, answer_s=limit_s)
    return HttpClient(ca_bundle=ca_bundle, patience=patience, connections=connections, proxy=proxy)


class Transfers:
    """Asks for one file, from any byte on, as often as needed; a login is for its host alone."""

    def __init__(
        self, url: str, client: HttpClient, *, login: Mapping[str, str], patience_s: float
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # ValueError where it is no number
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
        """For people: who is asked."""
        return urllib.parse.urlsplit(self.origin).netloc

    def close(self) -> None:
        """Call off what is under way: who waits for it hears of an end."""
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
        """Give the head of the answer, then the bytes from `offset` on; BrokenOff: there are none.

        `length`: so many, else all. With a `tag` (ETag) a server gives all where its file is
        another one by now. `url`: where a redirect has led before.
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
        """The login is for its own server, not for the storage that it redirects to."""
        return self._login if origin_of(url) == origin_of(self.origin) else {}


def pieces_of(answer: Answer) -> Iterator[bytes]:
    """Give the body of an answer whose head was read."""
    return (piece for piece in answer if isinstance(piece, bytes))


def head_of(answer: Answer) -> Head:
    """Read the head of an answer. BrokenOff: it ended before."""
    head = next(answer, None)
    if not isinstance(head, Head):
        raise BrokenOff("gave no answer")
    return head


def _collected(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Collect what comes into pieces of a size worth handing over."""
    held = bytearray()
    try:
        for piece in pieces:
            held += piece
            if len(held) >= PIECE_BYTES:
                yield bytes(held)
                held = bytearray()
    except BrokenOff:
        if held:
            yield bytes(held)
        raise
    if held:
        yield bytes(held)


def aside(work: Callable[[], Answer], patience_s: float, closed: threading.Event) -> Answer:
    """Let a thread do the work, and wait for each of its pieces no longer than this (BrokenOff)."""
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
