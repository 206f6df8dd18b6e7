"""How the making of an image without an engine can fail."""

from __future__ import annotations

from images.errors import Failure


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
    """There is such an image, but not for the machine that it is needed for."""

    code = "platform-missing"
    exit_code = 3


class ImagePlaceError(Failure):
    """What was named is no place that an image can be read from or written to."""

    code = "bad-image-place"
    exit_code = 2
