"""How the making of an image without an engine can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from images.errors import Failure

if TYPE_CHECKING:
    from images.oci.model import Platform


class ImageUnreadableError(Failure):
    """A layout, an archive, a manifest or a configuration that is damaged, or none at all."""

    code = "image-unreadable"
    exit_code = 5


class LayerCompressionError(Failure):
    """A layer is compressed in a way that this host cannot read."""

    code = "layer-compression"
    exit_code = 5


class DigestMismatchError(Failure):
    """Bytes that are not those that their digest promises: what was damaged is not used."""

    code = "digest-mismatch"
    exit_code = 5


class TargetError(Failure):
    """The image cannot be written to where it was wanted."""

    code = "target-unwritable"
    exit_code = 5


class PlatformMissingError(Failure):
    """There is such an image, but not for the machine that it is needed for; `offered` are the
    platforms that it exists for, as far as it names them.
    """

    code = "platform-missing"
    exit_code = 3

    def __init__(self, message: str, *, fix: str, offered: tuple[Platform, ...] = ()) -> None:
        super().__init__(message, fix=fix)
        self.offered = offered


class ImagePlaceError(Failure):
    """What was named is no place that an image can be read from or written to."""

    code = "bad-image-place"
    exit_code = 2


class BadReference(Failure):
    """A text that does not name an image."""

    code = "bad-reference"
    exit_code = 2
