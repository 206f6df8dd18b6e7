"""Errors from building and reading images without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from images.errors import Failure

if TYPE_CHECKING:
    from images.oci.model import Platform


class ImageUnreadableError(Failure):
    """A layout, archive, manifest or configuration that is damaged or invalid."""

    code = "image-unreadable"
    exit_code = 5


class DigestMismatchError(Failure):
    """Content that does not match its digest: it is not used."""

    code = "digest-mismatch"
    exit_code = 5


class TableMismatchError(Failure):
    """The table of contents of a lazy layer shows other files than its tar has."""

    code = "table-mismatch"
    exit_code = 1


class TargetError(Failure):
    """The image cannot be written to its destination."""

    code = "target-unwritable"
    exit_code = 5


class PlatformMissingError(Failure):
    """The image exists, but not for this platform. `offered`: those it names."""

    code = "platform-missing"
    exit_code = 3

    def __init__(self, message: str, *, fix: str, offered: tuple[Platform, ...] = ()) -> None:
        super().__init__(message, fix=fix)
        self.offered = offered


class ImagePlaceError(Failure):
    """Not a valid image source or destination."""

    code = "bad-image-place"
    exit_code = 2


class BadReference(Failure):
    """A malformed image reference."""

    code = "bad-reference"
    exit_code = 2
