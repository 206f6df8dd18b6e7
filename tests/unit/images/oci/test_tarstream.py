"""Layers as streams of members: what tarfile reads from a sound tar, an error from others."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.errors import Failure
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.inflate import inflate, zstd_library
from images.oci.model import Descriptor, digest_of
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_members, layer_tar, members, scan
from tests.kit.cases import cases
from tests.kit.oci_images import a_layer, a_tar, in_members

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)


def fields(member: tarfile.TarInfo) -> tuple[Any, ...]:
    numbers = (member.mode, member.uid, member.gid, member.size, member.mtime)
    return (member.name, member.type, member.linkname, member.uname, member.gname, *numbers)


def ours(layer: ImageLayer) -> list[tuple[Any, bytes | None]]:
    return [(fields(m), f.read() if f else None) for m, f in layer_members(layer)]


def theirs(tar: bytes) -> list[tuple[Any, bytes | None]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [(fields(m), f.read() if (f := read(archive, m)) else None) for m in archive]


def read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    return archive.extractfile(member) if member.isreg() else None


names = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/"), min_size=1
)
paths = st.lists(names, min_size=1, max_size=4).map("/".join) | st.text("ab/é", max_size=300).map(
    lambda text: f"x{text}x"
)


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """A tar as Python's own library writes it, in any of its forms."""
    form = draw(st.sampled_from(FORMATS[1:]))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name in draw(st.lists(paths, max_size=6)):
            info = tarfile.TarInfo(name)
            info.type = draw(st.sampled_from(KINDS))
            info.mode = draw(st.integers(0, 0o7777))
            info.uid = draw(st.integers(0, 1 << 31))
            info.mtime = draw(st.integers(0, 1 << 40))
            content = draw(st.binary(max_size=1500)) if info.isreg() else b""
            info.size = len(content)
            if info.issym() or info.islnk():
                info.linkname = draw(paths)
            if form == tarfile.PAX_FORMAT:
                info.pax_headers = {"SCHILY.xattr.user.x": draw(names)}
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@given(tars(), st.integers(1, 5000), st.sampled_from([1, 2, 7]))
def test_a_sound_tar_is_read_as_tarfile_reads_it(tar: bytes, pieces: int, count: int) -> None:
    expected = theirs(tar)
    assert ours(a_layer(tar, tar, pieces=pieces)) == expected
    assert ours(a_layer(in_members(tar, count), tar, pieces=pieces)) == expected


@given(tars(), st.data())
def test_a_damaged_layer_is_a_failure_and_nothing_else(tar: bytes, data: st.DataObject) -> None:
    packed = in_members(tar) if data.draw(st.booleans()) else tar
    at = data.draw(st.integers(0, len(packed) - 1))
    broken = bytearray(packed)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(packed)))
    for wrong in (bytes(broken), packed[:cut]):
        try:
            found = ours(a_layer(wrong, tar))
        except (ImageUnreadableError, DigestMismatchError):
            continue
        assert found == theirs(tar)  # a bit of a gzip header that says nothing about the content


@given(st.binary(max_size=2000))
def test_bytes_that_are_no_tar_are_a_failure(content: bytes) -> None:
    try:
        list(members([content], "It"))
    except ImageUnreadableError:
        return
    assert not content.strip(b"\0")


def header(name: str = "a", **changes: Any) -> bytes:
    info = tarfile.TarInfo(name)
    for field, value in changes.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def pax(*records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    content = b"".join(records)
    return header("pax", type=kind, size=len(content)) + padded(content)


def record(key: str, value: str) -> bytes:
    text = f" {key}={value}\n".encode()
    length = len(text) + 1
    while len(f"{length}".encode() + text) != length:
        length += 1
    return f"{length}".encode() + text


END = bytes(1024)
FILE = header(size=3) + padded(b"abc")


@cases(
    "tar words",
    ("a header without checksum", FILE + b"\1" * 512 + END, "header is damaged"),
    ("a header cut off", FILE + header("b")[:300], "middle of a member"),
    ("a size beyond the end", header(size=1 << 40), "middle of a member"),
    ("a size below zero", header(size=-1), "-1 bytes"),
    ("files behind one zero", bytes(512) + FILE + END, "zeros stands between"),
    ("files behind the end", FILE + END + FILE, "follows its end"),
    ("something behind the end", FILE + END + b"x", "follows its end"),
    ("a name of gigabytes", header("l", type=tarfile.GNUTYPE_LONGNAME, size=1 << 33),
     "extended header says"),
    ("a pax header of a gigabyte", header("p", type=tarfile.XHDTYPE, size=1 << 30),
     "extended header says"),
    ("a record cut off", pax(b"5 a=") + FILE + END, "pax header is damaged"),
    ("a record too long", pax(b"999 a=b\n") + FILE, "pax header is damaged"),
    ("a record of no length", pax(b"0 a=b\n") + FILE, "pax header is damaged"),
    ("a record without length", pax(b"x a=b\n") + FILE, "pax header is damaged"),
    ("a record without name", pax(b"5 =b\n") + FILE, "pax header is damaged"),
    ("a pax size below zero", pax(record("size", "-5")) + FILE, "size is '-5'"),
    ("a pax size beyond all", pax(record("size", "9" * 19)) + FILE, "size is"),
    ("a time that is no number", pax(record("mtime", "nan")) + FILE, "mtime is"),
    ("a zero in a name", pax(record("path", "a\0b")) + FILE, "no name"),
    ("two pax headers", pax(record("path", "a")) * 2 + FILE + END, "two pax headers"),
    ("a pax sparse file", pax(record("GNU.sparse.major", "1")) + FILE + END, "sparse"),
    ("a GNU sparse file", header(type=tarfile.GNUTYPE_SPARSE) + END, "sparse"),
    ("a kind that engines refuse", header(type=b"V") + END, "unknown kind"),
    ("a pax header alone", pax(record("path", "x")) + END, "behind an extended"),
)  # fmt: skip
def test_a_hostile_tar_is_refused(tar: bytes, words: str) -> None:
    with pytest.raises(ImageUnreadableError, match="is not a complete tar") as caught:
        ours(a_layer(tar, tar))
    assert words in caught.value.message


@cases(
    "tar names",
    ("no end at all", FILE, ["a"]),
    ("half an end", FILE + bytes(512), ["a"]),
    ("more zeros than needed", FILE + END + bytes(9000), ["a"]),
    ("no bytes", b"", []),
    ("no files", bytes(10240), []),
    ("what git says of its commit", pax(record("comment", "x"), kind=tarfile.XGLTYPE) + FILE + END,
     ["a"]),
    ("an empty pax record", pax(record("path", "")) + FILE + END, ["a"]),
    ("an old directory", header("d/", type=tarfile.AREGTYPE) + END, ["d"]),
    ("a directory that has a size", header("d", type=tarfile.DIRTYPE, size=99) + FILE + END,
     ["d", "a"]),
    ("the root itself", header("/", type=tarfile.DIRTYPE) + END, ["."]),
)  # fmt: skip
def test_an_odd_but_sound_tar_is_read(tar: bytes, names: list[str]) -> None:
    assert [member.name for member, _ in layer_members(a_layer(tar, tar))] == names


def test_tarfile_would_not_have_noticed() -> None:
    """The reason for a reader of our own: an archive that ends at its first damaged header."""
    hidden = FILE + b"\1" * 512 + header("evil", size=0) + END
    with tarfile.open(fileobj=io.BytesIO(hidden)) as archive:
        assert archive.getnames() == ["a"]


def test_content_that_nobody_read_is_passed_over() -> None:
    tar = a_tar({"a": b"1" * 3000, "b": b"2" * 10, "c": b"3" * 2000})
    seen = {}
    for member, content in layer_members(a_layer(in_members(tar), tar, pieces=77)):
        assert content is not None
        if member.name == "b":
            seen["b"] = content.read()
            assert content.read() == content.read(5) == b""
        elif member.name == "c":
            seen["c"] = content.read(1000) + content.read(1)
    assert seen == {"b": b"2" * 10, "c": b"3" * 1001}


def test_a_content_is_gone_with_its_member() -> None:
    tar = a_tar({"a": b"1" * 3000, "b": b""})
    found = layer_members(a_layer(tar, tar))
    _, first = next(found)
    next(found)
    assert first is not None
    with pytest.raises(ValueError, match=r"closed|gone by"):
        first.read()
    found.close()


def test_a_layer_that_is_another_one_is_refused_at_its_end() -> None:
    tar = a_tar({"a": b"1"})
    with pytest.raises(DigestMismatchError, match="unpacks to"):
        ours(a_layer(in_members(tar), a_tar({"a": b"2"})))


def test_who_stops_early_lets_go_of_the_stream() -> None:
    ended: list[bool] = []

    def stream() -> Generator[bytes, None, None]:
        try:
            yield from (tar[at : at + 100] for at in range(0, len(tar), 100))
        finally:
            ended.append(True)

    tar = a_tar({"a": b"1" * 9000})
    blob = Descriptor(media_type="x", digest=digest_of(tar), size=len(tar))
    found = layer_members(ImageLayer(blob=blob, diff_id=digest_of(tar), stream=stream))
    next(found)
    found.close()
    assert ended


def test_a_failure_of_the_stream_comes_through() -> None:
    def stream() -> Generator[bytes, None, None]:
        yield in_members(a_tar({"a": b"1" * 9000}))[:40]
        raise Failure("the network is gone", fix="wait")

    blob = Descriptor(media_type="x", digest=digest_of(b""), size=0)
    with pytest.raises(Failure, match="the network is gone"):
        ours(ImageLayer(blob=blob, diff_id=digest_of(b""), stream=stream))


def test_memory_stays_flat_whatever_is_unpacked() -> None:
    """120 MB of zeros in 120 kB."""
    info = tarfile.TarInfo("zeros")
    info.size = 120 << 20
    one = gzip.compress(bytes(1 << 20), mtime=0)
    packed = gzip.compress(info.tobuf(), mtime=0) + one * 120

    def pieces() -> Iterator[bytes]:
        yield packed

    tracemalloc.start()
    try:
        for member, content in members(inflate(pieces(), "It"), "It"):
            assert content is not None
            size = 0
            while piece := content.read(1 << 20):
                size += len(piece)
            assert size == member.size == 120 << 20
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def zstd_of(*parts: bytes) -> bytes:
    return b"".join(map(zstd_library().compress, parts))


SKIPPED = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"five "


@pytest.mark.parametrize("frames", ["one", "two", "one that is skipped, and two"])
def test_zstd_is_read_with_all_its_frames(frames: str) -> None:
    tar = a_tar({"a": bytes(range(256)) * 9000})
    whole = zstd_of(tar) if frames == "one" else zstd_of(tar[:5000], tar[5000:])
    layer = a_layer(SKIPPED + whole if "skipped" in frames else whole, tar)
    assert b"".join(layer_tar(layer)) == tar
    early = layer_members(layer)
    next(early)
    early.close()


@pytest.mark.parametrize("damage", ["cut", "changed", "more behind it"])
def test_damaged_zstd_is_refused(damage: str) -> None:
    tar = a_tar({"a": bytes(range(256)) * 9000})
    whole = zstd_of(tar)
    packed = {
        "cut": whole[:-9],
        "changed": whole[:30] + b"xxxx" + whole[34:],
        "more behind it": whole + b"more",
    }
    # without a checksum in the frame, only the diffID shows that content was changed
    expected = DigestMismatchError if damage == "changed" else ImageUnreadableError
    with pytest.raises(expected, match=r"unpacks to|zstd data says"):
        list(layer_tar(a_layer(packed[damage], tar)))


def test_a_file_is_scanned_without_reading_it() -> None:
    tar = a_tar({"a": b"1" * 3000, "b": b"2"})
    file = io.BytesIO(tar)
    found = [(m.name, tar[m.offset_data : m.offset_data + m.size]) for m in scan(file, "It")]
    assert found == [("a", b"1" * 3000), ("b", b"2")]
    with pytest.raises(ImageUnreadableError, match="middle of a member"):
        list(scan(io.BytesIO(tar[:2000]), "It"))
