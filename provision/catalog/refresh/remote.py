"""Reads small files from large wheels: separate METADATA, or ranges of the wheel itself.

Of a wheel of half a gigabyte only the table of contents (about a megabyte for PyTorch and three for
TensorFlow) and the wanted files are downloaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping

from images.errors import Failure
from provision.catalog.refresh.fetch import PageFetcher
from provision.catalog.refresh.model import SourceError
from provision.catalog.refresh.wheels import IndexMetadata, LinuxWheel, parse_metadata

_FIX = "Try again later, or name another index: --index URL"


def read_metadata(wheel: LinuxWheel, fetcher: PageFetcher) -> IndexMetadata:
    """A wheel's METADATA: separately if the index offers that (PEP 658), else from the wheel.

    SourceError: unreachable, not what the index promised, or another wheel's.
    """
    data = _beside(wheel, fetcher) if wheel.file.metadata else _inside(wheel, fetcher)
    try:
        metadata = parse_metadata(data)
    except ValueError as error:
        raise SourceError(
            f"The METADATA of {wheel.file.name} is not valid: {error}.", fix=_FIX
        ) from None
    if metadata.name != wheel.project or metadata.version != wheel.version:
        raise SourceError(
            f"The METADATA of {wheel.file.name} is that of {metadata.name} {metadata.version}.",
            fix=_FIX,
        )
    return metadata


def peek(wheel: LinuxWheel, names: tuple[str, ...], fetcher: PageFetcher) -> Mapping[str, bytes]:
    """Some files of a wheel. SourceError: missing, damaged, or the server gives no ranges."""
    from images.inspect.archive import WheelArchive

    limit = fetcher.limits.metadata_bytes
    try:
        archive = WheelArchive(_Ranges(wheel, fetcher))
        found = {name: archive.read(name, limit) for name in names if name in archive.members}
    except SourceError:
        raise
    except Failure as error:
        raise SourceError(error.message, fix=error.fix) from error
    if missing := [name for name in names if name not in found]:
        raise SourceError(f"{wheel.file.name} has no {', '.join(missing)}.", fix=_FIX)
    return found


def _beside(wheel: LinuxWheel, fetcher: PageFetcher) -> bytes:
    url = f"{wheel.file.url}.metadata"
    answer = fetcher.get(url, accept="*/*", limit_bytes=fetcher.limits.metadata_bytes)
    wanted = wheel.file.metadata_sha256
    found = hashlib.sha256(answer.body).hexdigest()
    if wanted is not None and found != wanted:
        raise SourceError(
            f"The METADATA of {wheel.file.name} has sha256 {found}; the index says {wanted}: "
            "it was damaged in transit, or a proxy changed it.",
            fix=_FIX,
        )
    return answer.body


def _inside(wheel: LinuxWheel, fetcher: PageFetcher) -> bytes:
    project, version = wheel.file.name.split("-")[:2]
    name = f"{project}-{version}.dist-info/METADATA"
    return peek(wheel, (name,), fetcher)[name]


class _Ranges:
    """A wheel on a server, with the interface that `images.inspect` reads."""

    def __init__(self, wheel: LinuxWheel, fetcher: PageFetcher) -> None:
        self.shown = wheel.file.name
        self.file_name = wheel.file.name
        self.bytes_read = 0
        self.notes: tuple[str, ...] = ()
        self._url = wheel.file.url
        self._fetcher = fetcher
        self.size = wheel.file.size or fetcher.length(self._url)

    def stream(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """The bytes from `offset` on, in one piece."""
        if length > self._fetcher.limits.directory_bytes:
            raise SourceError(f"{self.shown} has too large a table of contents.", fix=_FIX)
        if length:
            yield self._fetcher.part(self._url, offset, offset + length)
            self.bytes_read += length

    def close(self) -> None:
        """No resources to release."""
