"""Signed statements and keys that are no use. What a sound statement says is never an error."""

from __future__ import annotations

from images.errors import Failure
from provision.errors import Exit


class StatementError(Failure):
    """A statement that cannot be taken for what it says, or a key that cannot be used."""

    exit_code = Exit.USAGE


class BadKeyError(StatementError):
    """A key file that holds no Ed25519 key, or that others may read."""

    code = "bad-record-key"
