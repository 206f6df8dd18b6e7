"""Downloads one wheel; resumes a broken download where it stopped, a limited number of times."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

from images.errors import Failure
from images.net.errors import REACH_FIX as _INSPECT_FIX
from images.net.errors import BrokenOff
from images.net.head import Head
from images.net.retries import AGAIN, Retries, Tries, busy
from images.net.transfer import Transfers, head_of, pieces_of
from images.store.errors import REACH_FIX, CalledOffError, in_units
from images.store.incoming import IncomingFile
from images.store.store import mismatch
from images.wheels.errors import WheelUnreachableError

MAX_BYTES = 32 << 30
"""The most that is downloaded if the size is unknown."""
PATIENCE = Retries(first_wait_s=0.8)
_WORTH_BYTES = 1 << 20
"""A try that downloads this much resets the count of tries ..."""
_NOT_SIGNED = frozenset({400, 401, 403, 404, 409, 410})
"""What storage answers without the signature of an address: each service another one."""
_MOST_TRIES = 100
"""... up to this many tries in all."""


class Download:
    """The download of one wheel into an `IncomingFile`. `named`: the requirement that names
    it by its address, without login and query ("a @ https://HOST/a.whl"); `whole`: whether they
    are known.
    """

    def __init__(
        self,
        exchange: Transfers,
        incoming: IncomingFile,
        *,
        title: str,
        named: str = "",
        whole: bool = True,
        size: int | None,
        called_off: threading.Event,
        on_bytes: Callable[[int], None],
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.pieced = bool(incoming.size)
        """Whether it was assembled from several answers."""
        self.fetched = 0
        """The bytes downloaded."""
        self._exchange = exchange
        self._incoming = incoming
        self._title = title
        self._named = named
        self._whole = whole
        self._size = size
        self._called_off = called_off
        self._on_bytes = on_bytes
        self._on_note = on_note
        self._tag: str | None = None
        self._may_range = True
        self._over = False
        self._best = 0

    def run(self) -> None:
        """Download all of it, or raise. What has arrived stays in the file."""
        if self._size is not None and self._incoming.size > self._size:
            self._restart()
        self._over = self._size is not None and self._incoming.size == self._size
        retries = replace(
            PATIENCE, on_wait=lambda text: self._on_note(f"{self._title}: the server {text}")
        )
        tries = Tries(retries, sleep=self._called_off.wait)
        for _ in range(_MOST_TRIES):
            if self._over:
                return
            self._best = max(self._best, self._incoming.size)
            before = self._best
            try:
                self._once()
            except BrokenOff as error:
                self._stop_if_called_off()
                progress = self._incoming.size > before + _WORTH_BYTES
                if not tries.again(error, progress=progress):
                    raise self._failure(error.why, error.fix) from error
        if not self._over:
            raise self._failure(f"broke off {_MOST_TRIES} times", REACH_FIX)

    def _once(self) -> None:
        """Send one request and write what arrives; BrokenOff if the next try may succeed."""
        self._stop_if_called_off()
        offset = self._incoming.size if self._may_range else 0
        answer = self._exchange.ask(offset, tag=self._tag)
        with contextlib.closing(answer):
            head = head_of(answer)
            self._refuse(head)
            if head.status == 206 and not offset:
                raise BrokenOff("answered with a part (HTTP 206), and was asked for all")
            if head.status == 416 or (head.status == 206 and not self._goes_on(head, offset)):
                self._may_range = False
                self._restart()
                return
            if head.status == 200 and self._incoming.size:
                self._restart()
            total = self._total(head)
            tag = head.headers.get("etag", "")
            self._tag = tag if tag.startswith('"') else None  # weak: bytes may differ
            self.pieced = self.pieced or bool(self._incoming.size)
            for piece in pieces_of(answer):
                self._take(piece, total)
        if total is not None and self._incoming.size < total:
            raise BrokenOff(f"stopped {total - self._incoming.size} bytes before the end")
        self._over = True

    def _take(self, piece: bytes, total: int | None) -> None:
        self._stop_if_called_off()
        limit = MAX_BYTES if total is None else total
        if self._incoming.size + len(piece) > limit:
            raise mismatch(self._title, f"{limit} bytes", "more")
        self._incoming.write(piece)
        self.fetched += len(piece)
        self._on_bytes(len(piece))

    def _total(self, head: Head) -> int | None:
        """The expected size of the file; raises at once if the server reports another one."""
        whole = head.range[2] if head.range else None
        told = head.length if head.status == 200 else whole
        if self._size is None:
            return told
        if told is not None and told != self._size:
            raise mismatch(self._title, f"{self._size} bytes", f"{told} bytes")
        return self._size

    def _goes_on(self, head: Head, offset: int) -> bool:
        found = head.range
        same = not (self._tag and head.headers.get("etag", self._tag) != self._tag)
        return bool(found and found[0] == offset and same)

    def _restart(self) -> None:
        self._on_bytes(-self._incoming.size)
        self._incoming.restart()
        self._tag = None

    def _stop_if_called_off(self) -> None:
        if self._called_off.is_set():
            raise CalledOffError(
                f"The download of {self._title} was cancelled.",
                fix="Build again: what has arrived is kept.",
            )

    def _refuse(self, head: Head) -> None:
        """Raise the error for a status that brings no file."""
        status = head.status
        if status in {200, 206}:
            self._refuse_other_than_file(head)
        elif status in AGAIN:
            raise busy(head, REACH_FIX)
        elif self._named and status in _NOT_SIGNED:
            raise self._not_signed(status)
        elif status in {401, 403}:
            raise self._denied(status)
        elif status == 407:
            raise self._failure(
                "was not asked: the proxy wants a login (HTTP 407)",
                "Give it in the proxy's address: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
            )
        elif status in {404, 410}:
            raise self._failure(
                f"does not have it any more (HTTP {status})",
                "Lock again, which asks the index where it is now: provision lock",
            )
        elif status != 416 or not self._incoming.size:
            raise self._failure(f"answered HTTP {status}", REACH_FIX)

    def _refuse_other_than_file(self, head: Head) -> None:
        if head.headers.get("content-encoding", "identity").lower() not in {"", "identity"}:
            raise self._failure("compresses what was asked for as it is", REACH_FIX)
        page = head.headers.get("content-type", "").lower().startswith("text/html")
        if page and (self._size is None or head.length != self._size):
            raise self._failure(
                "answered with a web page: a proxy or a login page may have answered instead",
                REACH_FIX,
            )

    def _not_signed(self, status: int) -> Failure:
        why = f"does not hand it over (HTTP {status})"
        if self._whole:
            return self._failure(
                f"{why}: the login or the signature of its address may have expired",
                f"Give its present address, in the project's file or by --with: {self._named}?...",
            )
        return self._failure(
            f"{why} at the address without login and query, which is all that a lock has",
            f"Give the whole address again: --with '{self._named}?...'; or build with the project "
            f"whose file has it: provision build DIR --lock FILE; or put a login for {self._host} "
            "into ~/.netrc",
        )

    def _denied(self, status: int) -> Failure:
        entry = f"machine {self._host} login USER password TOKEN"
        if self._exchange.has_login:
            return self._failure(
                f"does not hand it over (HTTP {status}), and was shown a login",
                f"See that the login may read it; in ~/.netrc: {entry}",
            )
        return self._failure(
            f"does not hand it over (HTTP {status}), and there is no login for it",
            f"Put one into ~/.netrc: {entry}",
        )

    @property
    def _host(self) -> str:
        return self._exchange.host.rpartition(":")[0] or self._exchange.host

    def _failure(self, why: str, fix: str) -> WheelUnreachableError:
        size, here = self._size, self._incoming.size
        so_far = f", after {in_units(here)} of {in_units(size)}" if size and here else ""
        return WheelUnreachableError(
            f"{self._title} could not be fetched: the server {self._exchange.host} {why}{so_far}.",
            fix=REACH_FIX if fix == _INSPECT_FIX else fix,
        )
