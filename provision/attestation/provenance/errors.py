"""Unusable statements. The value of a valid one is a `Judgement`, never an error."""

from __future__ import annotations

from images.errors import Failure
from provision.attestation.signing.errors import StatementError
from provision.errors import Exit


class ProvenanceUnreadableError(StatementError):
    """Not a signed provenance, or one that is incomplete or of a later version."""

    code = "provenance-unreadable"


class ProvenanceTamperedError(StatementError):
    """The provenance was changed after it was signed."""

    code = "provenance-tampered"


class ProvenanceUnknownKeyError(StatementError):
    """The provenance is signed with an untrusted key."""

    code = "provenance-unknown-key"


class DocumentNotWrittenError(Failure):
    """A requested SBOM or provenance file could not be written."""

    code = "document-not-written"
    exit_code = Exit.USAGE
