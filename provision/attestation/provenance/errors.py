"""Unusable statements. The value of a valid one is a `Judgement`, never an error."""

from __future__ import annotations

from images.errors import Failure
from provision.attestation.signing.errors import StatementError
from provision.errors import Exit


class ProvenanceError(StatementError):
    """A statement that is not trustworthy."""

    code = "provenance-unreadable"


class ProvenanceUnreadableError(ProvenanceError):
    """Not a statement of a build in our format, incomplete, or of a later version."""


class ProvenanceTamperedError(ProvenanceError):
    """The signature does not match the content."""

    code = "provenance-tampered"


class ProvenanceUnknownKeyError(ProvenanceError):
    """Signed with a key that is not trusted here."""

    code = "provenance-unknown-key"


class DocumentNotWrittenError(Failure):
    """A document that was requested by name could not be kept."""

    code = "document-not-written"
    exit_code = Exit.USAGE
