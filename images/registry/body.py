"""A layer as the body of uploads: from any offset, any number of times, hashed in order.

The source generates the same bytes each time. To resume at an offset it runs again up to there:
generating bytes is as fast as copying, and keeping them would take memory or disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from images.net.http import PIECE_BYTES
from images.oci.errors import DigestMismatchError
from images.oci.model import Descriptor
from images.oci.sources import Stream, Unpacked


class BodySourceError(Exception):
    """The source failed, not the connection; `Body.failure` has the error."""


class Body:
    """The bytes of one layer for an upload to one registry."""

    def __init__(
        self,
        open_stream: Callable[[], Stream],
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._open_stream = open_stream
        self.expected = expected
        self._on_bytes = on_bytes
        self._reported = 0
        self._stream: Stream | None = None
        self._held = memoryview(b"")
        self._hash = hashlib.sha256()
        self.position = 0
        """The number of bytes returned since the source was restarted."""
        self.furthest = 0
        """The highest offset that was ever returned."""
        self.unpacked: Unpacked | None = None
        """The source's return value; None until its end."""
        self.failure: BaseException | None = None

    @property
    def size(self) -> int | None:
        """The total size, once it is known."""
        if self.expected is not None:
            return self.expected.size
        return self.position if self.is_done else None

    @property
    def is_done(self) -> bool:
        """Whether all bytes were returned."""
        return self.unpacked is not None and not self._held

    def digest(self) -> str:
        """The digest of all bytes. DigestMismatchError: they are not the expected ones."""
        digest = f"sha256:{self._hash.hexdigest()}"
        if not self.is_done or (
            self.expected is not None
            and (digest, self.position) != (self.expected.digest, self.expected.size)
        ):
            raise self._mismatch(digest)
        return digest

    def pieces(self, start: int, most: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes from `start` on, at most `most`.

        BodySourceError: the source failed, or generates more bytes than expected.
        """
        self._seek(start)
        left = most
        while left is None or left > 0:
            if not self._held and not self._pull():
                return
            piece = self._held[: PIECE_BYTES if left is None else min(left, PIECE_BYTES)]
            self._held = self._held[len(piece) :]
            self.position += len(piece)
            self.furthest = max(self.furthest, self.position)
            left = None if left is None else left - len(piece)
            if self.expected is not None and self.position > self.expected.size:
                raise self._fail(self._mismatch("others"))
            yield piece
            self._report()

    def rest(self, start: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` to the expected size, which was announced: no fewer."""
        yield from self.pieces(start)
        if self.expected is not None and self.position != self.expected.size:
            raise self._fail(self._mismatch("others"))

    def close(self) -> None:
        """Close the source."""
        stream, self._stream = self._stream, None
        self._held = memoryview(b"")
        if stream is not None:
            stream.close()

    def _report(self) -> None:
        """Report how many bytes were sent; bytes that are sent again are not counted twice."""
        if self.position > self._reported:
            self._on_bytes(self.position - self._reported)
            self._reported = self.position

    def _seek(self, start: int) -> None:
        if self._stream is None or start != self.position:
            self.close()
            self._hash = hashlib.sha256()
            self.position, self.unpacked = 0, None
            self._stream = self._guarded(self._open_stream)
        while self.position < start:
            if not self._held and not self._pull():
                raise self._fail(self._mismatch("fewer"))
            skipped = min(len(self._held), start - self.position)
            self._held = self._held[skipped:]
            self.position += skipped

    def _pull(self) -> bool:
        """Read the source's next piece; False at its end."""
        if self._stream is None or self.unpacked is not None:
            return False
        while not self._held:
            try:
                piece = next(self._stream)
            except StopIteration as end:
                self.unpacked = end.value
                if not isinstance(self.unpacked, Unpacked):
                    raise self._fail(TypeError("a layer's stream must return Unpacked")) from end
                return False
            except BaseException as error:
                raise self._fail(error) from error
            self._hash.update(piece)
            self._held = memoryview(piece)
        return True

    def _guarded(self, work: Callable[[], Stream]) -> Stream:
        try:
            return work()
        except BaseException as error:
            raise self._fail(error) from error

    def _fail(self, error: BaseException) -> BodySourceError:
        # a separate class: an OSError of the source must not look like one of the connection
        self.failure = error
        return BodySourceError(str(error))

    def _mismatch(self, digest: str) -> DigestMismatchError:
        if self.expected is None:
            return DigestMismatchError(
                f"A layer ended after {self.position} bytes, and was longer before.",
                fix="Something changed its files while they were read: build again.",
            )
        return DigestMismatchError(
            f"A layer has other bytes than {self.expected.digest} ({self.expected.size} bytes): "
            f"{digest}, {self.position} bytes or more.",
            fix="Something changed its files, or what was remembered of them is damaged: "
            "see what `provision store verify` says, and build again.",
        )
