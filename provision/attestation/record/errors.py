"""Records and keys that are no use. What a sound record says is a `Judgement`, never an error."""

from __future__ import annotations

from images.errors import Failure
from provision.errors import Exit


class RecordError(Failure):
    """A record that cannot be taken for what it says."""

    code = "record-unreadable"
    exit_code = Exit.USAGE


class RecordUnreadableError(RecordError):
    """It is no record of ours, or not whole, or of a later version."""


class RecordTamperedError(RecordError):
    """The signature is not that of this content."""

    code = "record-tampered"


class RecordUnknownKeyError(RecordError):
    """Signed with a key that nobody here vouches for."""

    code = "record-unknown-key"


class BadKeyError(RecordError):
    """A key file that holds no Ed25519 key, or that others may read."""

    code = "bad-record-key"
