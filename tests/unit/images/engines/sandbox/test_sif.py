"""The header of a SIF: what Debian's siftool reads of ours, and what is refused of others'."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engines.sandbox.sif import DATA_OFFSET, sif_header, squashfs_offset
from images.engines.squashfs.reader import is_squashfs
from images.oci.errors import ImageUnreadableError
from tests import need
from tests.kit.cases import cases

DIGEST = f"sha256:{'a' * 64}"
SQUASHFS = b"hsqs" + bytes(5000)
DESCRIPTOR, KIND_OF_SYSTEM = 4096, 4096 + 73 + 128


def write(path: Path, change: Callable[[bytearray], object] = lambda _: None) -> Path:
    content = bytearray(sif_header(DIGEST, "amd64", len(SQUASHFS)) + SQUASHFS)
    change(content)
    path.write_bytes(content)
    return path


def put(at: int, form: str, *values: int) -> Callable[[bytearray], object]:
    return lambda content: struct.pack_into(form, content, at, *values)


@pytest.mark.parametrize(
    ("cpu", "shown"), [("amd64", "amd64"), ("arm64", "arm64"), ("mips", "unknown")]
)
def test_siftool_reads_it(tmp_path: Path, cpu: str, shown: str) -> None:
    file = tmp_path / "image.sif"
    file.write_bytes(sif_header(DIGEST, cpu, len(SQUASHFS)) + SQUASHFS)
    siftool = need.program("siftool", "siftool")

    def said(*words: str) -> str:
        done = subprocess.run(
            [siftool, *words, str(file)], capture_output=True, check=True, timeout=60
        )
        return done.stdout.decode()

    assert f"FS (Squashfs/*System/{shown})" in said("list")
    assert "32768-37772 " in said("list")
    assert (f"Primary Architecture: {shown}" in said("header")) is (shown != "unknown")
    dumped = subprocess.run([siftool, "dump", "1", file], capture_output=True, check=True)
    assert dumped.stdout == SQUASHFS


def test_equal_images_have_equal_headers_and_others_another_identity() -> None:
    one = sif_header(DIGEST, "amd64", 1)
    assert one == sif_header(DIGEST, "amd64", 1)
    assert one != sif_header(f"sha256:{'b' * 64}", "amd64", 1)
    assert len(one) == DATA_OFFSET


def test_its_squashfs_is_found(tmp_path: Path) -> None:
    assert squashfs_offset(write(tmp_path / "image.sif")) == DATA_OFFSET
    assert is_squashfs(tmp_path / "image.sif")


@cases(
    "content",
    ("empty", b""),
    ("a script", b"#!/usr/bin/env run-singularity\n"),
    ("zeros", bytes(100_000)),
)
def test_another_file_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert squashfs_offset(tmp_path / "file") is None


def test_a_plain_squashfs_begins_at_zero(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(SQUASHFS)
    assert squashfs_offset(tmp_path / "file") == 0


@cases(
    "change message",
    ("half a header", lambda c: c.__delitem__(slice(100, None)), "damaged"),
    ("half a table", lambda c: c.__delitem__(slice(5000, None)), "damaged"),
    ("too short", lambda c: c.__delitem__(slice(36_000, None)), "damaged"),
    ("a trillion descriptors", put(88, "<q", 1 << 40), "damaged"),
    ("fewer than no descriptors", put(88, "<q", -1), "damaged"),
    ("descriptors before the file", put(96, "<q", -5), "damaged"),
    ("descriptors far behind it", put(96, "<q", (1 << 63) - 1), "damaged"),
    ("the data before the file", put(DESCRIPTOR + 17, "<q", -1), "damaged"),
    ("the data far behind it", put(DESCRIPTOR + 17, "<q", 1 << 62), "damaged"),
    ("data that is no squashfs", put(DESCRIPTOR + 17, "<q", 32_769), "damaged"),
    ("a negative size", put(DESCRIPTOR + 25, "<q", -1), "damaged"),
    ("an unused one", put(DESCRIPTOR + 4, "<B", 0), "has no file system"),
    ("another object", put(DESCRIPTOR, "<i", 0x4001), "has no file system"),
    ("an encrypted one", put(KIND_OF_SYSTEM, "<i", 5), "another kind"),
    ("an overlay", put(KIND_OF_SYSTEM + 4, "<i", 4), "has no file system"),
)
def test_a_damaged_one_is_refused(
    tmp_path: Path, change: Callable[[bytearray], object], message: str
) -> None:
    file = write(tmp_path / "image.sif", change)
    with pytest.raises(ImageUnreadableError, match=message) as caught:
        squashfs_offset(file)
    assert caught.value.fix


@given(st.lists(st.tuples(st.integers(42, 6000), st.integers(0, 255)), max_size=20))
def test_any_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    def change(content: bytearray) -> None:
        for at, value in changes:
            content[at] = value

    file = write(tmp_path_factory.mktemp("sif") / "image.sif", change)
    try:
        found = squashfs_offset(file)
    except ImageUnreadableError:
        return
    assert found is None or file.read_bytes()[found:].startswith(b"hsqs")
