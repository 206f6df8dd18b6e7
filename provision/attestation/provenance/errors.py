"""Statements that are no use. What a sound one is worth is a `Judgement`, never an error."""

from __future__ import annotations

from images.errors import Failure
from provision.attestation.signing.errors import StatementError
from provision.errors import Exit


class ProvenanceError(StatementError):
    """A statement that cannot be taken for what it says."""

    code = "provenance-unreadable"


class ProvenanceUnreadableError(ProvenanceError):
    """It is no statement of a build as we write one, or not whole, or of a later version."""


class ProvenanceTamperedError(ProvenanceError):
    """The signature is not that of this content, or the content is not what was signed."""

    code = "provenance-tampered"


class ProvenanceUnknownKeyError(ProvenanceError):
    """Signed with a key that is not trusted here."""

    code = "provenance-unknown-key"


class DocumentNotWrittenError(Failure):
    """A document that was asked for by name could not be kept."""

    code = "document-not-written"
    exit_code = Exit.USAGE
