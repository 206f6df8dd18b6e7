"""A signed statement in the form that Sigstore's tools read from a registry: a bundle, version 0.3.

https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_bundle.proto
https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md
It contains our DSSE envelope unchanged, and names the key as the envelope does; it has no
certificate and no transparency log entry.
"""

from __future__ import annotations

import json
from typing import Any

from provision.attestation.signing.parser import read_json

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_ALIKE = (BUNDLE, "application/vnd.dev.sigstore.bundle+json;version=0.3")
CONTENT = "dev.sigstore.bundle.content"
PREDICATE = "dev.sigstore.bundle.predicateType"
CREATED = "org.opencontainers.image.created"


def bundle(envelope: bytes) -> bytes:
    """The bundle of an envelope that `provision.attestation.signing.envelope.seal` has made."""
    sealed: dict[str, Any] = json.loads(envelope)
    document = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": sealed["signatures"][0]["keyid"]}},
        "dsseEnvelope": sealed,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def envelope_in(data: bytes) -> bytes:
    """The envelope in a bundle; other content is returned unchanged, for its reader to judge.

    The bundle around it is not signed, so nothing in it is trusted, not even the key's name.
    """
    try:
        document = read_json(data)
    except ValueError:
        return data
    if not isinstance(document, dict) or document.get("mediaType") not in _ALIKE:
        return data
    return json.dumps(document.get("dsseEnvelope")).encode()


def bundle_annotations(predicate_type: str, created: str) -> dict[str, str]:
    """What a registry's list of attachments says of a bundle; `created` is the statement's time."""
    return {CONTENT: "dsse-envelope", PREDICATE: predicate_type, CREATED: created}
