"""A file by its content, and whether it is still in the state in which it was hashed."""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from images.system.hashed_file import (
    FileChangedError,
    HashedFile,
    check_unchanged,
    hash_file,
    hash_open_file,
    state_of,
)
from tests.kit.cases import cases

CONTENT = hashlib.shake_128(b"x").digest(3_000_001)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.sqfs"
    path.write_bytes(CONTENT)
    return path


def test_the_digest_is_that_of_the_whole_file(file: Path) -> None:
    found = hash_file(file)
    assert found.digest == f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    assert found.state.size == len(CONTENT)
    check_unchanged(found)


def in_place(path: Path) -> None:
    """A byte differs; size and time of modification are as before."""
    before = path.stat()
    with path.open("r+b") as opened:
        opened.write(b"y")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def longer(path: Path) -> None:
    with path.open("ab") as opened:
        opened.write(b"y")


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(CONTENT)
    other.replace(path)


@cases(
    "change",
    ("a byte was changed and the time set back", in_place),
    ("another file with the same content has its name", replaced),
    ("it grew", longer),
    ("it was cut", lambda path: os.truncate(path, 10)),
    ("it is gone", Path.unlink),
)
def test_a_change_is_seen(file: Path, change: Callable[[Path], object]) -> None:
    found = hash_file(file)
    change(file)
    with pytest.raises(FileChangedError) as caught:
        check_unchanged(found)
    assert (caught.value.code, caught.value.exit_code) == ("file-changed", 7)


def test_a_file_that_is_written_while_it_is_hashed_has_no_digest(file: Path) -> None:
    with file.open("rb", buffering=0) as opened, pytest.raises(FileChangedError):
        hash_open_file(opened, file, lambda _: in_place(file))


def test_reading_is_no_change(file: Path) -> None:
    found = hash_file(file)
    assert file.read_bytes() == CONTENT
    with file.open("rb", buffering=0) as opened:
        assert state_of(opened) == found.state


def test_a_write_through_a_mapping_that_was_there_before_is_seen(file: Path) -> None:
    """A page that was written through the mapping before is clean when the file is hashed."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as pages:
        before = hash_file(file)
        pages[5000] = 1
        time.sleep(0.02)  # a tick of the file system's clock
        if not was_changed(before):
            pytest.skip("this file system keeps no time of such writes, as tmpfs")
        found = hash_file(file)
        pages[5001] ^= 1
        with pytest.raises(FileChangedError):
            check_unchanged(found)


def was_changed(found: HashedFile) -> bool:
    try:
        check_unchanged(found)
    except FileChangedError:
        return True
    return False
