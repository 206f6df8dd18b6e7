"""How the making of an image without an engine can fail."""

from __future__ import annotations

from images.errors import Failure


class ImageUnreadableError(Failure):
    """A layout, an archive, a manifest or a configuration that is damaged, or none at all."""

    code = "image-unreadable"
    exit_code = 5


class DigestMismatchError(Failure):
    """Bytes that are not those that their digest promises: what was damaged is not used."""

    code = "digest-mismatch"
    exit_code = 5


class TargetError(Failure):
    """The image cannot be written to where it was wanted."""

    code = "target-unwritable"
    exit_code = 5
