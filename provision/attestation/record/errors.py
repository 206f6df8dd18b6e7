"""Unusable records. The content of a valid record is a `Judgement`, never an error."""

from __future__ import annotations

from provision.attestation.signing.errors import StatementError


class RecordUnreadableError(StatementError):
    """Not a record, or one that is incomplete or of a later version."""

    code = "record-unreadable"


class RecordTamperedError(StatementError):
    """The record was changed after it was signed."""

    code = "record-tampered"


class RecordUnknownKeyError(StatementError):
    """The record is signed with an untrusted key."""

    code = "record-unknown-key"
