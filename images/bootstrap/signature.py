"""Verifies the signature of a suite's InRelease file, so that mirrors need not be trusted.

It uses Sequoia's implementation of OpenPGP from a wheel (pysequoia): the host needs no gpg. The
public keys of Debian are shipped with this package.

https://wiki.debian.org/SecureApt https://www.rfc-editor.org/rfc/rfc9580
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from images.bootstrap.errors import MirrorError

if TYPE_CHECKING:
    from pysequoia import Cert

_CLEARSIGNED = re.compile(
    r"-----BEGIN PGP SIGNED MESSAGE-----\n(?:[^\n]+\n)*\n(.*?)\n-----BEGIN PGP SIGNATURE-----",
    re.DOTALL,
)


@functools.cache
def debian_keys() -> tuple[Cert, ...]:
    """Return the keys that sign Debian's releases."""
    keys = resources.files("images.bootstrap").joinpath("data/debian-archive.asc").read_bytes()
    return _certificates(keys)


def keys_in(file: Path) -> tuple[Cert, ...]:
    """Read the keys of a mirror with its own signing key (apt's option signed-by)."""
    try:
        return _certificates(file.read_bytes())
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not an OpenPGP keyring"
        raise MirrorError(
            f"The keyring {file}, which the host's apt sources name, could not be read: {why}.",
            fix=f"Check the option signed-by in /etc/apt/sources.list.d, and that {file} exists.",
        ) from error


def _certificates(content: bytes) -> tuple[Cert, ...]:
    from pysequoia import Cert

    return tuple(Cert.split_bytes(content))


def verified(signed: bytes, keys: Sequence[Cert], *, shown: str) -> str:
    """Return the text of a clear-signed file, if one of the keys signed it.

    MirrorError: the file is not signed, not by these keys, or was changed. Expired and revoked keys
    do not count.
    """
    from pysequoia import verify

    try:
        found = verify(signed, store=lambda _ids: list(keys))
    except RuntimeError as error:
        raise MirrorError(
            f"The signature of {shown} is not valid: {str(error).splitlines()[0]}",
            fix="Check this machine's clock (date), and that no proxy changes what it passes on."
            " A mirror that signs with its own key needs signed-by=/path/to/KEYRING in the host's"
            " /etc/apt/sources.list.d.",
        ) from error
    return (found.bytes or b"").decode("utf-8", "replace")


def unverified(signed: bytes) -> str:
    """Return the text of a file whose mirror is trusted without a signature (trusted=yes)."""
    text = signed.decode("utf-8", "replace").replace("\r\n", "\n")
    match = _CLEARSIGNED.search(text)
    return re.sub(r"(?m)^- ", "", match[1]) if match else text
