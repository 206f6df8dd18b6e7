"""The certificate authorities that TLS trusts, as update-ca-certificates writes them: a bundle, a
link for each, and the links by hashed name that OpenSSL looks up.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

from images.bootstrap.tree import PackageTree

WANTED = r"usr/share/ca-certificates/.+\.crt"
_SHARED = "usr/share/ca-certificates"
_DIRECTORY = "etc/ssl/certs"
_HEADING = (
    "# The certificates of /usr/share/ca-certificates that update-ca-certificates(8) puts into\n"
    "# /etc/ssl/certs. A line that begins with ! leaves one out.\n"
)
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1A, 0x1C, 0x1E})
_UTF8_STRING, _BMP_STRING, _UNIVERSAL_STRING, _T61_STRING = 0x0C, 0x1E, 0x1C, 0x14
_SET, _SEQUENCE, _VERSION = 0x31, 0x30, 0xA0
_SUBJECT = 4
"""Its index in a certificate, after serial number, algorithm, issuer and validity."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


def add_certificates(tree: PackageTree) -> None:
    """Add all certificates of the tree."""
    paths = sorted(path for path in tree.texts if re.fullmatch(WANTED, path))
    if not paths:
        return
    names = [path.removeprefix(f"{_SHARED}/") for path in paths]
    listed = "".join(f"{name}\n" for name in names)
    tree.add_file("etc/ca-certificates.conf", (_HEADING + listed).encode())
    bundle = []
    taken: dict[str, int] = {}
    links = sorted((_pem_name(name), path) for name, path in zip(names, paths, strict=True))
    for path in paths:
        content = tree.texts[path]
        bundle.append(content if content.endswith(b"\n") else content + b"\n")
    for pem, path in links:
        tree.add_link(f"{_DIRECTORY}/{pem}", f"/{path}")
        for subject in _subjects(tree.texts[path]):
            hashed = f"{subject_hash(subject):08x}"
            tree.add_link(f"{_DIRECTORY}/{hashed}.{taken.get(hashed, 0)}", pem)
            taken[hashed] = taken.get(hashed, 0) + 1
    tree.add_file(f"{_DIRECTORY}/ca-certificates.crt", b"".join(bundle))


def _pem_name(name: str) -> str:
    stem = name.rpartition("/")[2].removesuffix(".crt")
    return re.sub(r"[()]", "=", re.sub(r"[ ,]", "_", stem)) + ".pem"


def _subjects(pem: bytes) -> Iterator[bytes]:
    """Return the subject of each certificate, in DER.

    Parsed here: some authorities are old, and current parsers refuse them, but OpenSSL accepts them
    and their hashed names exist.
    """
    for text in _PEM.findall(pem):
        certificate = _inside(base64.b64decode(text))
        _, to_be_signed = next(_elements(certificate))
        fields = [element for element in _elements(to_be_signed) if element[0] != _VERSION]
        yield _element(*fields[_SUBJECT])


def subject_hash(name: bytes) -> int:
    """Return the hash that OpenSSL finds a certificate by, from its subject's canonical form.

    X509_NAME_hash of OpenSSL 1.0 and later: the first four bytes, little-endian, of the SHA-1 of
    the name's parts, their texts as UTF-8 in lower case, with single blanks.
    https://docs.openssl.org/master/man3/X509_NAME_hash/
    """
    canonical = b"".join(_canonical_set(part) for tag, part in _elements(_inside(name)))
    digest = hashlib.sha1(canonical, usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "little")


def _canonical_set(content: bytes) -> bytes:
    pairs = sorted(_canonical_pair(pair) for _, pair in _elements(content))
    return _element(_SET, b"".join(pairs))


def _canonical_pair(content: bytes) -> bytes:
    (kind, identifier), (tag, value) = _elements(content)
    if tag in _STRINGS:
        encodings = {
            _BMP_STRING: "utf-16-be",
            _UNIVERSAL_STRING: "utf-32-be",
            _T61_STRING: "latin1",
        }
        text = value.decode(encodings.get(tag, "utf-8"), "replace")
        # OpenSSL considers only ASCII blanks and letters
        text = re.sub(r"[ \t\n\v\f\r]+", " ", text.strip(" \t\n\v\f\r"))
        text = re.sub(r"[A-Z]", lambda letter: letter[0].lower(), text)
        tag, value = _UTF8_STRING, text.encode()
    return _element(_SEQUENCE, _element(kind, identifier) + _element(tag, value))


def _inside(element: bytes) -> bytes:
    ((_, content),) = _elements(element)
    return content


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Read DER elements: the tag and the content of each."""
    at = 0
    while at < len(content):
        tag, length = content[at], content[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(content[at : at + count], "big")
            at += count
        yield tag, content[at : at + length]
        at += length


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
