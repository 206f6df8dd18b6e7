"""Unusable signed statements and keys. The content of a valid statement is never an error."""

from __future__ import annotations

from images.errors import Failure
from provision.errors import Exit


class StatementError(Failure):
    """A statement that is not trustworthy, or a key that cannot be used."""

    exit_code = Exit.USAGE


class BadKeyError(StatementError):
    """A key file without an Ed25519 key, or one that others may read."""

    code = "bad-record-key"
