"""Makes wheels, right and wrong in every byte, and reads layers with other people's tools."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from images.layers.transcode import wheel_layer
from images.oci.sources import Stream, Unpacked
from images.wheels.remote_file import Wheel

SITE = "opt/venv/lib/python3.11/site-packages"
PLACE = {"site": SITE, "prefix": "opt/venv", "interpreter": "/opt/venv/bin/python"}
REGULAR = 0o100644 << 16


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A member of a zip; `said` and `said_before` are what directory and local header say of it.

    Where they say nothing it is the truth.
    """

    name: str | bytes
    content: bytes = b""
    method: int = 8
    data: bytes | None = None
    attributes: int = REGULAR
    said: Mapping[str, int | bytes] = field(default_factory=dict)
    said_before: Mapping[str, int | bytes] = field(default_factory=dict)
    extra: bytes = b""
    extra_before: bytes = b""
    behind: bytes = b""


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def craft(pieces: Iterable[Piece], *, before: bytes = b"", comment: bytes = b"") -> bytes:
    """Write a zip byte by byte."""
    body, directory, count = bytearray(before), bytearray(), 0
    for piece in pieces:
        name = piece.name.encode() if isinstance(piece.name, str) else piece.name
        data = piece.data
        if data is None:
            data = deflated(piece.content) if piece.method == 8 else piece.content
        true: dict[str, int | bytes] = {
            "flags": 0 if name.isascii() else 1 << 11,
            "method": piece.method,
            "crc": zlib.crc32(piece.content),
            "packed": len(data),
            "size": len(piece.content),
            "name": name,
            "offset": len(body),
        }
        local, central = {**true, **piece.said_before}, {**true, **piece.said}
        body += struct.pack(
            "<4sHHHHHIIIHH", b"PK\x03\x04", 20, local["flags"], local["method"], 0, 0x21,
            local["crc"], local["packed"], local["size"], len(bytes(local["name"])),
            len(piece.extra_before),
        )  # fmt: skip
        body += bytes(local["name"]) + piece.extra_before + data + piece.behind
        directory += struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", 3 << 8 | 20, 20, central["flags"],
            central["method"], 0, 0x21, central["crc"], central["packed"], central["size"],
            len(bytes(central["name"])), len(piece.extra), 0, 0, 0, piece.attributes,
            central["offset"],
        )  # fmt: skip
        directory += bytes(central["name"]) + piece.extra
        count += 1
    end = struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(directory), len(body), len(comment)
    )
    return bytes(body + directory + end + comment)


def row(name: str, content: bytes, *, algorithm: str = "sha256") -> str:
    digest = hashlib.new(algorithm, content).digest()
    text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    shown = f'"{name}"' if "," in name else name
    return f"{shown},{algorithm}={text},{len(content)}"


def pieces_of(
    *files: Piece,
    name: str = "example",
    version: str = "1.0",
    wheel: str = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    metadata: str | None = None,
    record: Callable[[list[str]], list[str]] = lambda rows: rows,
) -> list[Piece]:
    """The members of a wheel of these files; `record` may change the rows of its RECORD."""
    info = f"{name}-{version}.dist-info"
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    pieces = [
        *files,
        Piece(name=f"{info}/METADATA", content=(metadata or said).encode()),
        Piece(name=f"{info}/WHEEL", content=wheel.encode()),
    ]
    rows = [
        row(piece.name if isinstance(piece.name, str) else piece.name.decode(), piece.content)
        for piece in pieces
        if not str(piece.name).endswith("/")
    ]
    listing = "\n".join(record([*rows, f"{info}/RECORD,,"])) + "\n"
    return [*pieces, Piece(name=f"{info}/RECORD", content=listing.encode())]


def change(pieces: Iterable[Piece], end: str, **fields: object) -> list[Piece]:
    """Change the members whose name ends so."""
    return [
        replace(piece, **fields) if str(piece.name).endswith(end) else piece  # type: ignore[arg-type]
        for piece in pieces
    ]


def locked(
    name: str = "example", version: str = "1.0", *, file: str = "", digest: str = ""
) -> Wheel:
    """A line of a lock."""
    return Wheel(
        name=name,
        version=version,
        url=f"https://index.invalid/{file or f'{name}-{version}-py3-none-any.whl'}",
        size=None,
        sha256=digest or hashlib.sha256(f"{name}{version}".encode()).hexdigest(),
    )


def stream_of(
    data: bytes, directory: Path, known: Unpacked | None = None, *, wheel: Wheel | None = None,
    **options: object,
) -> Stream:  # fmt: skip
    """The layer of one wheel of these bytes."""
    path = directory / "it.whl"
    path.write_bytes(data)
    given = {**PLACE, "exclude_unneeded": False, "fetch": lambda _: path, **options}
    return wheel_layer([wheel or locked()], **given).stream(known)  # type: ignore[arg-type]


def collect(stream: Stream) -> tuple[bytes, Unpacked]:
    """Run a stream to its end."""
    ended: list[Unpacked] = []

    def pieces() -> Iterator[bytes]:
        ended.append((yield from stream))

    with contextlib.closing(stream):
        return b"".join(pieces()), ended[0]


@dataclass(frozen=True)
class Read:
    """What tarfile reads of one path."""

    kind: str
    mode: int
    content: bytes = b""


def unpack(layer: bytes) -> dict[str, Read]:
    """Read a layer by Python's own gzip and tarfile."""
    found: dict[str, Read] = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as archive:
        for member in archive:
            assert member.name not in found, f"{member.name} is there twice"
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                found[member.name] = Read("file", member.mode, file.read())
            elif member.issym():
                found[member.name] = Read("symlink", member.mode, member.linkname.encode())
            else:
                assert member.isdir()
                found[member.name] = Read("dir", member.mode)
    return found


def files_of(layer: bytes) -> dict[str, bytes]:
    """The files of a layer with their content."""
    return {path: read.content for path, read in unpack(layer).items() if read.kind == "file"}
