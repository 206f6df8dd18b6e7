"""Layers of wheels whose libraries keep only the GPU code that some GPUs load."""

from __future__ import annotations

import base64
import hashlib
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.inspect.library import read_library
from images.inspect.model import Capability
from images.layers import cut as module
from images.layers.cut import CutLayer, without
from images.layers.install import InstallLocation
from images.layers.transcode import WheelLayer
from images.layers.zstd import ZstdLayer
from images.oci.inflate import inflate
from images.oci.sources import Stream
from tests.kit.cases import cases
from tests.kit.layer_maker import PLACE, SITE, Piece, collect, craft, files_of, locked, pieces_of
from tests.kit.wheel_maker import entry, fatbin, library

AMPERE: tuple[Capability, ...] = ((8, 6),)
CODE = {word: word.encode() * 40 for word in ("sm_70", "sm_80", "sm_86", "compute_86")}


def code(*words: str) -> bytes:
    """A fatbin with a payload of its own for each target."""
    return fatbin(
        *(
            entry(
                1 if word.startswith("compute") else 2,
                int(word.rpartition("_")[2]),
                payload=CODE[word],
            )
            for word in words
        )
    )


LIBRARY = library({".text": b"x" * 100, ".nv_fatbin": code(*CODE), ".data": b"y" * 100})
SMALL = library({".nv_fatbin": code("sm_86")})
NAME = "example/lib/libcode.so.11"


def layer(directory: Path, *pieces: Piece, gpus: tuple[Capability, ...] = AMPERE) -> CutLayer:
    path = directory / "example-1.0-py3-none-any.whl"
    path.write_bytes(craft(pieces_of(*pieces)))
    source = WheelLayer(
        wheels=(locked(),),
        place=InstallLocation(**PLACE),
        exclude_unneeded=False,
        fetch=lambda _: path,
    )
    return CutLayer(source=source, gpus=gpus)


def written(stream: Stream) -> dict[str, bytes]:
    return files_of(collect(stream)[0])


def test_code_of_other_gpus_becomes_zeros_and_nothing_moves(tmp_path: Path) -> None:
    found = written(layer(tmp_path, Piece(name=NAME, content=LIBRARY)).stream(None))
    library_now = found[f"{SITE}/{NAME}"]
    expected = LIBRARY
    for word in ("sm_70", "sm_80", "compute_86"):
        expected = expected.replace(CODE[word], bytes(len(CODE[word])))
    assert library_now == expected != LIBRARY


def test_record_has_the_new_digest_and_the_old_size(tmp_path: Path) -> None:
    found = written(layer(tmp_path, Piece(name=NAME, content=LIBRARY)).stream(None))
    rows = found[f"{SITE}/example-1.0.dist-info/RECORD"].decode().splitlines()
    row = next(line for line in rows if line.startswith(NAME))
    digest = hashlib.sha256(found[f"{SITE}/{NAME}"]).digest()
    said = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert row == f"{NAME},sha256={said},{len(LIBRARY)}"


def test_a_wheel_in_which_nothing_is_removed_has_the_bytes_of_before(tmp_path: Path) -> None:
    cut = layer(tmp_path, Piece(name=NAME, content=SMALL), Piece(name="a.py", content=b"1"))
    assert collect(cut.stream(None)) == collect(cut.source.stream(None))


def test_its_tar_by_zstd_and_its_members_are_the_same(tmp_path: Path) -> None:
    cut = layer(tmp_path, Piece(name=NAME, content=LIBRARY), Piece(name="a.py", content=b"1"))
    packed, unpacked = collect(cut.stream(None))
    tar = b"".join(inflate([packed], "it"))
    assert hashlib.sha256(tar).hexdigest() == unpacked.diff_id.removeprefix("sha256:")
    assert len(tar) == unpacked.size
    assert collect(cut.stream(unpacked))[0] == packed
    by_zstd, same = collect(ZstdLayer(source=cut).stream(None))
    assert (b"".join(inflate([by_zstd], "it")), same) == (tar, unpacked)
    members = {m.name: file.read() for m, file in cut.members() if file is not None}
    assert members[f"{SITE}/{NAME}"] == files_of(packed)[f"{SITE}/{NAME}"]


def test_its_key_says_what_was_removed_and_by_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = Piece(name=NAME, content=LIBRARY)
    cut = layer(tmp_path, piece)
    keys = {cut.source.key, cut.key, layer(tmp_path, piece, gpus=((8, 0),)).key}
    twice = layer(tmp_path, piece, gpus=(*AMPERE, *AMPERE))
    assert twice.key == cut.key
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.0.1")
    keys.add(cut.key)
    monkeypatch.setattr(module, "FORMAT", 0)
    keys.add(cut.key)
    assert len(keys) == 5


def test_its_bytes_do_not_depend_on_the_pieces_of_the_decompressor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("images.layers.transcode.MADE_BYTES", 100)
    seen = set()
    for most in (1 << 20, 37, 1):
        monkeypatch.setattr("images.layers.wheel_file.INFLATED_BYTES", most)
        cut = layer(tmp_path, Piece(name=NAME, content=LIBRARY))
        seen.add(collect(cut.stream(None))[0])
    assert len(seen) == 1


def test_a_large_library_needs_little_memory(tmp_path: Path) -> None:
    """Eighty megabytes of code, of which half is removed."""
    large = [entry(2, arch, payload=bytes([arch]) * (40 << 20)) for arch in (70, 86)]
    cut = layer(tmp_path, Piece(name=NAME, content=library({".nv_fatbin": fatbin(*large)})))
    del large
    tracemalloc.start()
    for _ in cut.stream(None):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20
    (one,) = cut.cuts()
    assert (one.before, one.after) == (80 << 20, 40 << 20)


def test_it_says_by_library_what_was_removed(tmp_path: Path) -> None:
    damaged = bytearray(LIBRARY)
    struct.pack_into("<H", damaged, LIBRARY.index(CODE["sm_80"]) - 62, 77)
    cut = layer(
        tmp_path,
        Piece(name=NAME, content=LIBRARY),
        Piece(name="b.so", content=SMALL),
        Piece(name="c.so", content=bytes(damaged)),
        Piece(name="d.so", content=b"a linker's script"),
        Piece(name="e.so", content=library({".text": b"x"})),
    )
    size = {word: len(text) for word, text in CODE.items()}
    assert [(one.path, one.before, one.after, bool(one.kept_why)) for one in cut.cuts()] == [
        (NAME, sum(size.values()), size["sm_86"], False),
        ("b.so", size["sm_86"], size["sm_86"], False),
        ("c.so", 0, 0, True),
    ]


@cases(
    "content",
    ("no section table", library({".nv_fatbin": code(*CODE)}, table=False)),
    ("not a library", code(*CODE)),
)
def test_what_is_not_understood_is_kept(tmp_path: Path, content: bytes) -> None:
    found = written(layer(tmp_path, Piece(name=NAME, content=content)).stream(None))
    assert found[f"{SITE}/{NAME}"] == content


@pytest.mark.parametrize("section", ["__nv_relfatbin", ".rodata"])
def test_of_code_that_others_select_only_what_cannot_run_is_removed(
    tmp_path: Path, section: str
) -> None:
    content = library({section: code(*CODE)})
    found = written(layer(tmp_path, Piece(name=NAME, content=content)).stream(None))
    now = found[f"{SITE}/{NAME}"]
    assert [word for word, text in CODE.items() if text not in now] == ["sm_70"]


def test_inspection_does_not_count_code_that_was_removed(tmp_path: Path) -> None:
    found = written(layer(tmp_path, Piece(name=NAME, content=LIBRARY)).stream(None))
    now = found[f"{SITE}/{NAME}"]
    read, _ = read_library(NAME, len(now), [now])
    assert (read.fatbins, read.sass, read.ptx) == (1, {"sm_86": 1}, {})
    assert read.other == {"removed": 1}


@given(
    st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 50)), max_size=8),
    st.lists(st.integers(1, 60), min_size=1, max_size=10),
)
def test_ranges_become_zeros_whatever_the_pieces(
    data: bytes, ranges: list[tuple[int, int]], steps: list[int]
) -> None:
    from images.inspect.selection import normalized

    expected = bytearray(data)
    for at, size in ranges:
        expected[at : at + size] = bytes(len(expected[at : at + size]))
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        step = steps[len(pieces) % len(steps)]
        pieces.append(data[at : at + step])
        at += step
    assert b"".join(without(pieces, normalized(ranges))) == bytes(expected)
