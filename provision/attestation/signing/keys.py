"""The Ed25519 keys that sign records: this user's own, created on first use, or a named one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images.system.ownership import another_owner
from provision.attestation.signing.errors import BadKeyError
from provision.output.files import read_named, write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PRIVATE, PUBLIC = "record-ed25519.pem", "record-ed25519.pub.pem"
_LARGEST = 64 * 1024
_MAKE = "openssl genpkey -algorithm ed25519 -out KEY.pem"
_ELSEWHERE_FIX = (
    "Keep your keys and records in a directory of your own: XDG_STATE_HOME=DIR provision ... "
    "To trust another user's key, name it: --trust KEY.pub.pem"
)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Verifies signatures. `keyid`: SHA-256 of the key's SPKI DER."""

    keyid: str
    _key: Ed25519PublicKey

    def verifies(self, data: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Signer:
    """Creates signatures."""

    public: PublicKey
    _key: Ed25519PrivateKey

    @property
    def keyid(self) -> str:
        return self.public.keyid

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def own_signer(folder: Path) -> Signer:
    """This user's key. It is created if there is none, and no other process sees half of it."""
    signer = _own(folder)
    if signer is None:
        _make(folder / PRIVATE)
        signer = _own(folder)
        assert signer is not None, folder
    public = folder / PUBLIC
    if not public.exists():
        write_whole(public, public_pem(signer.public))
    return signer


def own_public(folder: Path) -> PublicKey | None:
    """The public half of this user's key, if there is one. It is computed from the private one: a
    public key proves nothing, as in a directory that users share anybody can have put it there.
    """
    signer = _own(folder)
    return signer.public if signer is not None else None


def _own(folder: Path) -> Signer | None:
    """The key in `folder` if only this user can have made it; None if there is none.

    BadKeyError: it is another user's, others may read it, or it cannot be read.
    """
    private, data = folder / PRIVATE, b""
    try:
        status = private.lstat()  # if it is another user's, it cannot be opened
        another = another_owner(private, status)
        if not another:
            file = os.open(private, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(file, "rb") as opened:
                status = os.fstat(file)
                another, data = another_owner(private, status), opened.read(_LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadKeyError(
            f"Your key {private} cannot be read: {error.strerror}.", fix=_ELSEWHERE_FIX
        ) from error
    if another:
        raise BadKeyError(f"The key {another}: what it signed is not trusted.", fix=_ELSEWHERE_FIX)
    mode = status.st_mode & 0o777
    if mode & 0o077:
        raise BadKeyError(
            f"Your key {private} is readable by others (mode {mode:04o}), so anybody "
            "here could sign in your name.",
            fix="Delete it; the next run creates a new one. Then verify again what it signed.",
        )
    return _signer(data, private)


def read_signer(path: Path) -> Signer:
    """The private key in a PEM file."""
    return _signer(_read(path), path)


def _signer(data: bytes, path: Path) -> Signer:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise BadKeyError(
            f"The key {path} is protected by a passphrase, and there is no terminal to type it on.",
            fix="Give a key without one, readable by you alone: "
            "openssl pkey -in KEY.pem -out PLAIN.pem",
        ) from error
    except Exception as error:
        raise _no_key(path, "private") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private")
    return Signer(_public(key.public_key()), key)


def read_public(path: Path) -> PublicKey:
    """The public key in a PEM file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read(path)
    try:
        key = load_pem_public_key(data)
    except Exception as error:
        raise _no_key(path, "public") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public")
    return _public(key)


def public_pem(public: PublicKey) -> bytes:
    """The public half, for others to trust."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # noqa: SLF001


def _public(key: Ed25519PublicKey) -> PublicKey:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(hashlib.sha256(spki).hexdigest(), key)


def _make(private: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=private.parent, prefix=".key-")  # made with mode 0600
    try:
        with os.fdopen(number, "wb") as file:
            file.write(pem)
        with contextlib.suppress(FileExistsError):  # another process was first, so its key is used
            os.link(name, private)
    finally:
        Path(name).unlink()


def _read(path: Path) -> bytes:
    return read_named("key", path, _LARGEST, BadKeyError, "Name a PEM file that you may read.")


def _no_key(path: Path, half: str) -> BadKeyError:
    made = f"{_MAKE}; openssl pkey -in KEY.pem -pubout -out KEY.pub.pem gives its public half"
    return BadKeyError(f"{path} holds no {half} Ed25519 key in PEM form.", fix=f"Make one: {made}")
