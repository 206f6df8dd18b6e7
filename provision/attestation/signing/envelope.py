"""The DSSE envelope: what is signed is the payload together with its type.

https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
One Ed25519 signature; the algorithm belongs to the key and is not named in the envelope, so that
nobody can choose a weaker one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from images.text.printable import printable
from provision.attestation.signing.keys import PublicKey, Signer
from provision.attestation.signing.parser import StatementKind, read_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b" ".join([b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload])


def seal(statement: Mapping[str, Any], signer: Signer) -> bytes:
    """The signed envelope, as it is written to a file."""
    payload = json.dumps(statement, separators=(",", ":"), allow_nan=False).encode()
    signature = signer.sign(pae(PAYLOAD_TYPE, payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": signer.keyid, "sig": base64.b64encode(signature).decode()}],
    }
    return (json.dumps(envelope, indent=2) + "\n").encode()


def unseal(data: bytes, trusted: Mapping[str, PublicKey], kind: StatementKind) -> tuple[bytes, str]:
    """The payload, and the id of the key that signed it; nothing is trusted before the signature is
    verified.
    """
    try:
        envelope = read_json(data)
    except ValueError:
        envelope = None
    if not isinstance(envelope, dict) or set(envelope) != {"payload", "payloadType", "signatures"}:
        raise kind.unlike("its members are not payload, payloadType and signatures")
    signatures = envelope["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise kind.unlike("it does not have exactly one signature")
    (entry,) = signatures
    if not isinstance(entry, dict) or set(entry) != {"keyid", "sig"}:
        raise kind.unlike("its signature's members are not keyid and sig")
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise kind.unlike(f"its payloadType is not {PAYLOAD_TYPE}")
    payload = _bytes(envelope["payload"], "payload", kind)
    signature = _bytes(entry["sig"], "sig", kind)
    keyid = entry["keyid"]
    key = trusted.get(keyid) if isinstance(keyid, str) else None
    if key is None:
        raise kind.unknown_key(
            f"The {kind.name} is signed with a key that is not trusted here "
            f"({printable(str(keyid), limit=64)}).",
            fix="If you know whose it is, give its public half, fetched from them and not from "
            f"where the {kind.name} was: --trust KEY.pub.pem",
        )
    if not key.verifies(pae(PAYLOAD_TYPE, payload), signature):
        raise kind.tampered(
            f"The {kind.name} was changed after it was signed: its signature does not match.",
            fix=f"Do not rely on it. Find out who changed it. {kind.renew}",
        )
    return payload, key.keyid


def _bytes(text: object, name: str, kind: StatementKind) -> bytes:
    """Base64 in its canonical spelling: no other text encodes the same bytes."""
    if isinstance(text, str) and text.isascii():
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            data = b""
        if data and base64.b64encode(data).decode() == text:
            return data
    raise kind.unlike(f"{name} is not base64")
