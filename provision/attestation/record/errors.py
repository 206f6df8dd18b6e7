"""Records that are no use. What a sound record says is a `Judgement`, never an error."""

from __future__ import annotations

from provision.attestation.signing.errors import StatementError


class RecordError(StatementError):
    """A record that cannot be taken for what it says."""

    code = "record-unreadable"


class RecordUnreadableError(RecordError):
    """It is no record of ours, or not whole, or of a later version."""


class RecordTamperedError(RecordError):
    """The signature is not that of this content."""

    code = "record-tampered"


class RecordUnknownKeyError(RecordError):
    """Signed with a key that is not trusted here."""

    code = "record-unknown-key"
