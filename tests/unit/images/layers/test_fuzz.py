"""Wheels with damage anywhere: refused, or read as Python's own zipfile reads them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from images.layers.errors import WheelRefusedError
from images.oci.sources import Unpacked
from tests.kit.layer_maker import SITE, Piece, collect, craft, files_of, pieces_of, stream_of

POINTS = b"[console_scripts]\ngo = example:main\n"
DATA = craft(
    [
        Piece(name="example/", attributes=0o40755 << 16),
        *pieces_of(
            Piece(name="example/__init__.py", content=b"def main():\n    return 0\n" * 30),
            Piece(name="example/stored.bin", content=bytes(range(256)) * 2, method=0),
            Piece(name="example/empty.py"),
            Piece(name="example-1.0.data/scripts/run", content=b"#!python\nprint()\n"),
            Piece(name="example-1.0.data/data/share/x", content=b"x" * 50),
            Piece(name="example-1.0.dist-info/entry_points.txt", content=POINTS),
        ),
    ]
)
KNOWN = Unpacked(diff_id="sha256:" + "0" * 64, size=0)
VALUES = st.one_of(
    st.integers(0, 255).map(lambda byte: bytes([byte])),
    st.binary(min_size=1, max_size=6),
    st.sampled_from([b"\xff\xff\xff\xff", bytes(4), b"PK\x01\x02", b"PK\x05\x06", b"../", b"\0"]),
)
DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(["over", "over", "over", "insert", "cut"]),
        st.integers(0, len(DATA) - 1),
        VALUES,
    ),
    min_size=1,
    max_size=4,
)


def damaged(damages: list[tuple[str, int, bytes]]) -> bytes:
    data = bytearray(DATA)
    for how, at, value in damages:
        end = at + (0 if how == "insert" else len(value))
        data[at:end] = b"" if how == "cut" else value
    return bytes(data)


def read_by_zipfile(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}


def assert_read_the_same(data: bytes, layer: bytes) -> None:
    theirs, ours = read_by_zipfile(data), files_of(layer)
    for name, content in theirs.items():
        top, _, rest = name.partition("/")
        if top == "example-1.0.dist-info" and rest in {"RECORD", "INSTALLER"}:
            continue
        if top.endswith(".data"):
            assert name in {"example-1.0.data/scripts/run", "example-1.0.data/data/share/x"}
            continue
        assert ours[f"{SITE}/{name}"] == content
    assert all(path.startswith("opt/venv/") and ".." not in path for path in ours)


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=DAMAGES)
@example(damages=[("over", 1986, b"\x00\x00\x01\x00")])  # a NUL in a member's name
def test_damage_anywhere_is_refused_or_does_not_matter(
    damages: list[tuple[str, int, bytes]], tmp_path: Path
) -> None:
    data = damaged(damages)
    try:
        layer, unpacked = collect(stream_of(data, tmp_path))
    except WheelRefusedError as error:
        assert error.message.isprintable()  # noqa: PT017
        return
    assert_read_the_same(data, layer)
    assert collect(stream_of(data, tmp_path, unpacked)) == (layer, unpacked)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=DAMAGES)
def test_the_known_way_ends_too(damages: list[tuple[str, int, bytes]], tmp_path: Path) -> None:
    try:
        layer, unpacked = collect(stream_of(damaged(damages), tmp_path, KNOWN))
    except WheelRefusedError:
        return
    assert layer
    assert unpacked is KNOWN


def test_a_wheel_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    for at in range(0, len(DATA), 7):
        with pytest.raises(WheelRefusedError):
            collect(stream_of(DATA[:at], tmp_path))


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_any_content_is_found(bit: int, tmp_path: Path) -> None:
    """The checksum of the zip, or deflate itself, says so."""
    with zipfile.ZipFile(io.BytesIO(DATA)) as archive:
        places = [
            (info.header_offset + 30 + len(info.filename), info.compress_size)
            for info in archive.infolist()
        ]
    for begin, size in places:
        for at in range(begin, begin + size, max(1, size // 5)):
            data = bytearray(DATA)
            data[at] ^= 1 << bit
            try:
                layer, _ = collect(stream_of(bytes(data), tmp_path))
            except WheelRefusedError:
                continue
            # a bit of a code's padding may be either
            assert_read_the_same(DATA, layer)
