"""Where the digest of a file is remembered, and where it is not."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engines.squashfs import identity
from images.store.store import Store
from images.system.hashed_file import HashedFile, hash_file, hash_open_file
from tests import need
from tests.kit.cases import cases
from tests.kit.programs import run_program


def identify(file: Path, cache: Path | None) -> HashedFile:
    told: list[str] = []
    found = identity.identify(file, cache, told.append)
    assert told == []
    return found


class Hashes:
    """Counts how often a file was read as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def hashed(file: FileIO, path: Path) -> HashedFile:
            self.count += 1
            return hash_open_file(file, path)

        monkeypatch.setattr(identity, "hash_open_file", hashed)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> Hashes:
    """On a local file system, a while after the last change."""
    monkeypatch.setattr(identity, "_SETTLED_S", 0.0)
    monkeypatch.setattr(identity, "_file_system", lambda _: "ext4")
    return Hashes(monkeypatch)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "image.sqfs"
    path.write_bytes(b"hsqs and more")
    path.chmod(0o644)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_file_of_its_owner_is_hashed_once(file: Path, cache: Path, hashes: Hashes) -> None:
    found = [identify(file, cache) for _ in range(3)]
    assert found == [hash_file(file)] * 3
    assert hashes.count == 1


def test_a_changed_file_is_hashed_again(file: Path, cache: Path, hashes: Hashes) -> None:
    first = identify(file, cache)
    before = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"x")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = identify(file, cache)
    assert second.digest == hash_file(file).digest != first.digest
    assert hashes.count == 2


def test_a_user_is_told_what_takes_seconds(
    file: Path, cache: Path, hashes: Hashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_LARGE_BYTES", 10)
    told: list[str] = []
    for _ in range(2):
        identity.identify(file, cache, told.append)
    assert told == [f"hashing {file} (13 bytes)"]
    identity.identify(file, None, told.append)
    assert len(told) == hashes.count == 2


def shared_store(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del file, cache
    said = "images.store.store.changed_by_others"
    monkeypatch.setattr(said, lambda place: f"{place} belongs to user 3")


def mode(value: int) -> Callable[[Path, Path, pytest.MonkeyPatch], None]:
    return lambda file, _, __: file.chmod(value)


def on(kind: str) -> Callable[[Path, Path, pytest.MonkeyPatch], None]:
    return lambda _, __, patch: patch.setattr(identity, "_file_system", lambda _: kind)


def another_group(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del cache, monkeypatch
    if os.geteuid():
        pytest.skip("only root can give a file to another group")
    os.chown(file, -1, 12_345)
    file.chmod(0o664)


def no_proc(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del file, cache

    def fails(_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(identity, "_file_system", fails)


@cases(
    "arrange",
    ("everybody may write it", mode(0o666)),
    ("a group may write it", another_group),
    ("its server shows any mode and time", on("fuse.sshfs")),
    ("its modes are made up", on("cifs")),
    ("some writes change no time there", on("tmpfs")),
    ("its file system is not known", on("")),
    ("there is no /proc", no_proc),
    ("others may write to the cache", shared_store),
    ("it was changed just now", lambda _, __, patch: patch.setattr(identity, "_SETTLED_S", 60.0)),
    ("it was changed in the future", lambda _, __, patch: patch.setattr("time.time_ns", lambda: 1)),
    ("there can be no directory", lambda _, cache, __: cache.write_text("a file")),
)
def test_elsewhere_it_is_hashed_each_time(
    file: Path,
    cache: Path,
    hashes: Hashes,
    monkeypatch: pytest.MonkeyPatch,
    arrange: Callable[[Path, Path, pytest.MonkeyPatch], None],
) -> None:
    arrange(file, cache, monkeypatch)
    assert identify(file, cache) == identify(file, cache) == hash_file(file)
    assert hashes.count == 2


def test_a_memo_that_is_no_digest_counts_as_missing(
    file: Path, cache: Path, hashes: Hashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "facts", lambda *_: {"digest": "sha256:../../x"})
    assert identify(file, cache) == hash_file(file)
    assert hashes.count == 1


def test_after_a_boot_it_is_hashed_again(
    file: Path, cache: Path, hashes: Hashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify(file, cache)
    monkeypatch.setattr(identity, "boot_id", lambda: "another")
    identify(file, cache)
    assert hashes.count == 2


def test_the_file_system_is_the_one_that_the_file_is_on(file: Path) -> None:
    findmnt = need.program("findmnt", "util-linux")
    told = run_program([findmnt, "-no", "FSTYPE", "-T", file], check=True)
    with file.open("rb", buffering=0) as opened:
        assert identity._file_system(opened) == told.stdout.split("\n")[0]


# The access list of NFSv4 ------------------------------------------------------------------------

READ, WRITE, ALLOW, DENY = 0x1, 0x2, 0, 1


def packed(*entries: tuple[int, int, bytes]) -> bytes:
    rows = [
        struct.pack(">IIII", kind, 0, rights, len(who)) + who + bytes(-len(who) % 4)
        for kind, rights, who in entries
    ]
    return struct.pack(">I", len(rows)) + b"".join(rows)


@cases(
    "entries others",
    ("an empty list", [], False),
    ("plain", [(ALLOW, WRITE, b"OWNER@"), (ALLOW, READ, b"EVERYONE@")], False),
    ("another user", [(ALLOW, READ | WRITE, b"bob@example")], True),
    ("a group may change the list", [(ALLOW, 0x40000, b"GROUP@")], True),
    ("everybody may append", [(ALLOW, 0x4, b"EVERYONE@")], True),
    ("somebody is denied", [(DENY, WRITE, b"bob@example")], False),
)
def test_an_access_list_may_let_others_write(
    entries: list[tuple[int, int, bytes]],
    others: bool,  # noqa: FBT001
) -> None:
    assert identity._nfs4_list_lets_others(packed(*entries)) is others


@given(st.binary(max_size=80))
def test_a_malformed_list_is_a_value_error_or_an_answer(data: bytes) -> None:
    try:
        assert identity._nfs4_list_lets_others(data) in {True, False}
    except ValueError:
        assert data != packed()


def test_a_list_that_lets_others_write_is_believed_before_the_mode(
    file: Path, cache: Path, hashes: Hashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getxattr", lambda *_, **__: packed((ALLOW, WRITE, b"bob@example")))
    identify(file, cache)
    identify(file, cache)
    assert hashes.count == 2


def test_an_access_list_of_the_kernel_is_seen(file: Path, cache: Path, hashes: Hashes) -> None:
    rows = ((1, 6, 0), (2, 6, 12_345), (4, 4, 0), (0x10, 6, 0), (0x20, 4, 0))
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    try:
        os.setxattr(file, "system.posix_acl_access", listed)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error.strerror}")
    identify(file, cache)
    identify(file, cache)
    assert hashes.count == 2
