"""A wheel on a server, read by HTTP range requests."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import urllib.parse
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from images.inspect.source import ByteSource, FileSource, Progress
from images.net.address import shown_url
from images.net.errors import REACH_FIX, BrokenOff
from images.net.head import Head
from images.net.logins import authorization
from images.net.retries import AGAIN, Retries, Tries, busy
from images.net.transfer import Answer, Transfers, head_of, pieces_of, transfer_client
from images.wheels.errors import WheelUnreachableError, WheelUnreadableError

PATIENCE_S = 20.0
"""The limit for the answer's first piece, and between two pieces of 256 KiB."""
MAX_DOWNLOAD_BYTES = 8 << 30
"""The largest wheel that is downloaded whole if the server does not support range requests."""
TRIES = Retries(tries=3, first_wait_s=0.4, longest_wait_s=5.0)
_PROBE_BYTES = 4
_ZIP_MAGIC = b"PK\x03\x04"


def is_url(source: str) -> bool:
    """Whether a source is an http(s) URL, and not a path."""
    return re.match(r"https?://", source, re.IGNORECASE) is not None


def open_url(
    url: str,
    *,
    ca_bundle: Path | None = None,
    patience_s: float | None = None,
    on_progress: Progress = lambda *_: None,
    parts_only: bool = False,
) -> ByteSource:
    """Open a wheel on a server; without range requests, download it whole into a temporary file.

    WheelUnreachableError: the server does not answer, or sends whole files only and `parts_only`
    is set. WheelUnreadableError: the file is no wheel. `on_progress` reports the download:
    the file's name, the bytes that are here, and the total (0 if the server does not say).
    """
    try:
        remote = RemoteSource(
            url,
            ca_bundle=ca_bundle,
            patience_s=PATIENCE_S if patience_s is None else patience_s,
            on_progress=on_progress,
            parts_only=parts_only,
        )
    except ValueError as error:  # an address such as http://[
        raise WheelUnreadableError(
            f"The address of the wheel cannot be understood: {error}.",
            fix="Give an address such as https://HOST/NAME.whl, or a path.",
        ) from error
    try:
        whole = remote.probe()
    except BaseException:
        remote.close()
        raise
    if whole is None:
        return remote
    remote.close()
    return whole


class RemoteSource:
    """A wheel on a server that supports range requests."""

    def __init__(
        self,
        url: str,
        *,
        ca_bundle: Path | None,
        patience_s: float,
        on_progress: Progress,
        parts_only: bool = False,
    ) -> None:
        self.shown = shown_url(url)
        path = urllib.parse.urlsplit(url).path
        self.file_name = urllib.parse.unquote(path.rpartition("/")[2])
        self.size = 0
        self.bytes_read = 0
        self.notes: tuple[str, ...] = ()
        self._client = transfer_client(ca_bundle=ca_bundle, patience_s=patience_s)
        login = authorization(url, {})
        self._transfers = Transfers(url, self._client, login=login, patience_s=patience_s)
        self._here = self._transfers.origin
        self._tag: str | None = None
        self._on_progress = on_progress
        self._parts_only = parts_only

    def close(self) -> None:
        """Close the connections."""
        self._transfers.close()
        self._client.close()

    def probe(self) -> FileSource | None:
        """Query the size; if the server answers with the whole file, download it."""
        tries = Tries(TRIES)
        while True:
            try:
                return self._probe_once()
            except BrokenOff as error:  # noqa: PERF203  at most three times
                self._pause(error, tries)

    def stream(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Yield `length` bytes from `offset` on; resumes where a connection broke."""
        end = offset + length
        tries = Tries(TRIES)
        while offset < end:
            try:
                for piece in self._part(offset, end - offset):
                    offset += len(piece)
                    self.bytes_read += len(piece)
                    yield piece
            except BrokenOff as error:  # noqa: PERF203
                self._pause(error, tries)

    def _pause(self, error: BrokenOff, tries: Tries) -> None:
        """Wait before the next try, if there is to be one."""
        if not tries.again(error):
            raise self._unreachable(error.why, fix=error.fix) from error

    def _probe_once(self) -> FileSource | None:
        with contextlib.closing(self._transfers.ask(0, _PROBE_BYTES, url=self._here)) as answer:
            head = head_of(answer)
            self._refuse(head)
            if head.status == 416:
                raise WheelUnreadableError(
                    f"{self.shown} is empty.", fix="Give the address of a wheel."
                )
            if head.status == 200:
                if self._parts_only:
                    raise self._unreachable("sends whole files only")
                return self._download(head, answer)
            found = head.range
            if not found or not found[2] or found[:2] != (0, min(_PROBE_BYTES, found[2]) - 1):
                raise self._contradiction(head, 0, _PROBE_BYTES)
            start = b"".join(pieces_of(answer))
        self.bytes_read += len(start)
        self._refuse_other_than_zip(start)
        self.size, self._tag, self._here = found[2], head.headers.get("etag"), head.url
        return None

    def _part(self, offset: int, length: int) -> Iterator[bytes]:
        """Request a part once, and yield it; BrokenOff if it ends too early."""
        with contextlib.closing(self._transfers.ask(offset, length, url=self._here)) as answer:
            head = head_of(answer)
            if head.status in {401, 403, 404, 410} and self._here != self._transfers.origin:
                self._here = self._transfers.origin  # a redirect's target may expire
                raise BrokenOff(f"answered HTTP {head.status}")
            self._refuse(head)
            self._refuse_other_file(head)
            if head.status != 206 or head.range != (offset, offset + length - 1, self.size):
                raise self._contradiction(head, offset, length)
            left = length
            for piece in pieces_of(answer):
                left -= len(piece)
                if left < 0:
                    raise self._contradiction(head, offset, length)
                yield piece
            if left:
                raise BrokenOff(f"stopped {left} bytes before the end of a part")

    def _download(self, head: Head, answer: Answer) -> FileSource:
        """Store the whole in an unnamed file, which is deleted when it is closed."""
        place, free = _room()
        expected = head.length
        if expected is not None and expected > min(MAX_DOWNLOAD_BYTES, free):
            raise WheelUnreachableError(
                f"The server does not support range requests for {self.shown}, of {expected} "
                f"bytes; {place} has {free} free, and more than {MAX_DOWNLOAD_BYTES} are never "
                "fetched.",
                fix="Name a place with room: TMPDIR=DIRECTORY; "
                "or give the wheel from a server that answers range requests.",
            )
        file = tempfile.TemporaryFile(prefix="gpu-provision-")  # noqa: SIM115  the source closes it
        try:
            got = self._keep(answer, file, expected)
        except OSError as error:
            file.close()
            raise WheelUnreachableError(
                f"{self.shown} could not be kept in {place}: {error.strerror}.",
                fix="Name a place with room: TMPDIR=DIRECTORY",
            ) from error
        except BaseException:
            file.close()
            raise
        note = f"The server does not answer range requests: all {got} bytes were fetched."
        source = FileSource(file, shown=self.shown, file_name=self.file_name, notes=(note,))
        source.fetched = got
        return source

    def _keep(self, answer: Answer, file: IO[bytes], expected: int | None) -> int:
        """Write the body to the file, and return its size, which must be the expected one."""
        got = 0
        for piece in pieces_of(answer):
            if not got:
                self._refuse_other_than_zip(piece)
            got += len(piece)
            if got > (MAX_DOWNLOAD_BYTES if expected is None else expected):
                raise self._unreachable("sends more bytes than it said, or than are ever fetched")
            file.write(piece)
            self._on_progress(self.file_name, got, expected or 0)
        if expected is not None and got < expected:
            raise BrokenOff(f"stopped {expected - got} bytes before the end")
        file.flush()
        return got

    def _refuse(self, head: Head) -> None:
        """Raise the error for a status that brings no data."""
        status = head.status
        if head.headers.get("content-encoding", "identity").lower() not in {"", "identity"}:
            raise self._unreachable("compresses what was asked for as it is")
        if status in {200, 206} or (status == 416 and not self.size):
            return
        if status in AGAIN:
            raise busy(head)
        if status in {401, 403, 407}:
            raise self._unreachable(
                f"does not hand it to us (HTTP {status})",
                fix="Give an address with a login that may read it: https://USER:TOKEN@HOST/...",
            )
        if status in {404, 410}:
            raise self._unreachable(f"does not have it (HTTP {status})", fix="Check the URL.")
        if status == 416:
            raise self._unreachable(
                f"first reported a size of {self.size} bytes, and now says that this part does "
                "not exist",
                fix="Try again.",
            )
        raise self._unreachable(f"answered HTTP {status}")

    def _refuse_other_file(self, head: Head) -> None:
        tag = head.headers.get("etag")
        size = (head.range[2] if head.range else None) or self.size
        if size != self.size or (self._tag and tag and tag != self._tag):
            raise WheelUnreachableError(
                f"{self.shown} changed while it was read: it was {self.size} bytes "
                f"({_short(self._tag)}), it is {size} ({_short(tag)}).",
                fix="Try again.",
            )

    def _refuse_other_than_zip(self, start: bytes) -> None:
        if not start.startswith(_ZIP_MAGIC):
            what = "a web page" if start.lstrip()[:1] == b"<" else "something that is no wheel"
            raise WheelUnreadableError(
                f"{self.shown} is {what}: it begins with {start[:4].hex(' ')}, "
                f"a wheel with {_ZIP_MAGIC.hex(' ')}.",
                fix="Give the URL of the .whl file itself; "
                "a proxy or a login page may have answered instead.",
            )

    def _contradiction(self, head: Head, offset: int, length: int) -> WheelUnreachableError:
        found = head.headers.get("content-range") or "no Content-Range"
        return self._unreachable(
            f"answered a request for bytes {offset}-{offset + length - 1} "
            f"with HTTP {head.status} and {found[:100]}"
        )

    def _unreachable(self, why: str, fix: str = REACH_FIX) -> WheelUnreachableError:
        host = urllib.parse.urlsplit(self._here).netloc
        return WheelUnreachableError(
            f"{self.shown} could not be read: the server {host} {why}.", fix=fix
        )


def _room() -> tuple[str, int]:
    """The directory for temporary files, and how many bytes are free there."""
    try:
        place = tempfile.gettempdir()
        return place, shutil.disk_usage(place).free
    except OSError:
        return "the directory for temporary files", 0


def _short(tag: str | None) -> str:
    return tag[:80] if tag else "no ETag"
