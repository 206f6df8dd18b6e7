"""Unusable records. The content of a valid record is a `Judgement`, never an error."""

from __future__ import annotations

from provision.attestation.signing.errors import StatementError


class RecordError(StatementError):
    """A record that is not trustworthy."""

    code = "record-unreadable"


class RecordUnreadableError(RecordError):
    """Not a record of ours, incomplete, or of a later version."""


class RecordTamperedError(RecordError):
    """The signature does not match the content."""

    code = "record-tampered"


class RecordUnknownKeyError(RecordError):
    """Signed with a key that is not trusted here."""

    code = "record-unknown-key"
