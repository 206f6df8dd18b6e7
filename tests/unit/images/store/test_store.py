"""The store: what is under a name is whole, what is given out stays, damage is not used."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.errors import DiskFullError
from images.oci.errors import DigestMismatchError
from images.store import locks, upkeep
from images.store import store as store_module
from images.store.entries import store_directory
from images.store.errors import StoreUnusableError
from images.store.incoming import receiving
from images.store.store import Store
from tests.kit.cases import cases
from tests.kit.programs import run_program

NAME = "torch-2.0.1-cp311-cp311-linux_x86_64.whl"
BODY = bytes(range(256)) * 4096
HEX = hashlib.sha256(BODY).hexdigest()


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def pieces(body: bytes = BODY, size: int = 1 << 16) -> Iterator[bytes]:
    return (body[i : i + size] for i in range(0, len(body), size))


class Never:
    """Pieces that nobody may ask for."""

    def __iter__(self) -> Never:
        return self

    def __next__(self) -> bytes:
        raise AssertionError("this was asked for")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def partial(store: Store) -> list[str]:
    return sorted(path.name for path in (store.directory / "partial").iterdir())


def test_a_wheel_comes_back_under_its_name(store: Store) -> None:
    path = store.add("wheel", HEX, pieces(), len(BODY), file_name=NAME)
    assert path.name == NAME
    assert path.read_bytes() == BODY
    assert store.wheel(HEX) == store.wheel(HEX.upper(), file_name=NAME) == path
    assert partial(store) == []


def test_a_blob_comes_back_by_its_digest(store: Store) -> None:
    path = store.add("blob", f"sha256:{HEX}", pieces())
    assert store.blob(f"sha256:{HEX}") == path
    assert store.wheel(HEX) is None


def test_what_is_there_is_not_asked_for_again(store: Store) -> None:
    first = store.add("wheel", HEX, pieces(), file_name=NAME)
    assert store.add("wheel", HEX, Never(), file_name=NAME) == first


def test_a_wheel_that_came_under_another_name_is_given_under_the_one_that_is_asked_for(
    store: Store,
) -> None:
    store.add("wheel", HEX, pieces(), file_name="evil-9-py3-none-any.whl")
    found = store.wheel(HEX, file_name=NAME)
    assert found is not None
    assert (found.name, found.read_bytes()) == (NAME, BODY)
    wheels = store.du()[0]
    assert (wheels.count, wheels.size) == (1, len(BODY))


@cases(
    "name",
    ("a way out of the store", "../../outside.whl"),
    ("an absolute path", "/etc/outside.whl"),
    ("a hidden file", ".hidden.whl"),
    ("the directory above", ".."),
    ("no name", ""),
    ("a NUL", "nul\0.whl"),
    ("longer than a name may be", "x" * 300 + ".whl"),
)
def test_a_name_that_cannot_be_one_is_replaced(store: Store, name: str) -> None:
    path = store.add("wheel", HEX, pieces(), file_name=name)
    assert path == store.directory / "wheels" / HEX / f"{HEX}.whl"
    assert store.wheel(HEX, file_name=name) == path


@pytest.mark.parametrize("digest", ["", "sha256:", "../../x", "sha256:" + "g" * 64, "ab" * 31])
def test_a_digest_that_is_none_never_becomes_a_path(store: Store, digest: str) -> None:
    for ask in (store.wheel, store.blob):
        with pytest.raises(DigestMismatchError, match="not a sha256 digest"):
            ask(digest)
    with pytest.raises(DigestMismatchError):
        store.add("blob", digest, Never())


@cases(
    "body size said",
    ("other bytes", BODY[:-1] + b"?", len(BODY), sha(BODY[:-1] + b"?")),
    ("fewer", BODY[:-1], None, sha(BODY[:-1])),
    ("more", BODY + b"?", None, sha(BODY + b"?")),
    ("far more", BODY * 3, len(BODY), f"more than {len(BODY)} bytes"),
    ("nothing", b"", 0, sha(b"")),
)
def test_other_bytes_are_refused_and_nothing_is_left(
    store: Store, body: bytes, size: int | None, said: str
) -> None:
    with pytest.raises(DigestMismatchError) as caught:
        store.add("wheel", HEX, pieces(body), size, file_name=NAME)
    assert NAME in caught.value.message
    assert said in caught.value.message
    assert store.wheel(HEX) is None
    assert partial(store) == []


def test_a_source_that_fails_leaves_nothing(store: Store) -> None:
    def broken() -> Iterator[bytes]:
        yield BODY[:1000]
        raise RuntimeError("the line is dead")

    with pytest.raises(RuntimeError):
        store.add("blob", HEX, broken())
    assert store.blob(HEX) is None
    assert partial(store) == []
    assert store.add("blob", HEX, pieces()).read_bytes() == BODY


def test_a_file_has_its_name_only_once_it_is_on_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        did.append(f"sync {kind}")
        real_sync(descriptor)

    def replace(source: Any, target: Any) -> None:
        did.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(Path, "replace", replace)
    store.add("wheel", HEX, pieces(), file_name=NAME)
    assert did == ["sync file", "rename", "sync directory", "sync directory"]


def test_damage_is_found_on_reading_when_that_is_asked_for(store: Store) -> None:
    path = store.add("wheel", HEX, pieces(), file_name=NAME)
    with path.open("r+b") as file:
        file.write(b"?")
    assert store.wheel(HEX) == path
    assert store.wheel(HEX, check=True) is None
    assert not path.exists()


def test_a_file_that_was_cut_short_is_found_by_its_size(store: Store) -> None:
    path = store.add("wheel", HEX, pieces(), file_name=NAME)
    os.truncate(path, 10)
    assert store.wheel(HEX, size=len(BODY)) is None
    assert not path.exists()


def test_a_wrong_size_in_the_lock_does_not_cost_a_good_wheel(store: Store) -> None:
    path = store.add("wheel", HEX, pieces(), file_name=NAME)
    assert store.wheel(HEX, size=len(BODY) + 1) == path


def test_a_link_in_the_place_of_a_file_is_no_file(store: Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    (store.directory / "blobs" / HEX).symlink_to(other)
    assert store.blob(HEX) is None
    store.add("blob", HEX, pieces())
    assert other.read_bytes() == b"other"


def test_threads_that_want_the_same_get_it_from_one(store: Store) -> None:
    began: list[int] = []

    def slow(number: int) -> Iterator[bytes]:
        began.append(number)
        for piece in pieces():
            time.sleep(0.005)
            yield piece

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(store.add("blob", HEX, slow(i))))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(began) == 1
    assert found == [store.directory / "blobs" / HEX] * 4


def test_only_the_owner_may_look_in(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store.open(tmp_path).close()
    finally:
        os.umask(before)
    directory = store_directory(tmp_path)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o777)
    Store.open(tmp_path).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    newer = tmp_path / "store-2" / "wheels"
    newer.mkdir(parents=True)
    (newer / "x").write_bytes(b"of the future")
    with Store.open(tmp_path) as store:
        store.add("blob", HEX, pieces())
        store.gc(everything=True)
    assert (newer / "x").read_bytes() == b"of the future"


def test_a_store_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(tmp_path).close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreUnusableError, match="belongs to user") as caught:
        Store.open(tmp_path)
    assert "XDG_CACHE_HOME=" in caught.value.fix


def test_a_file_in_the_place_of_the_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StoreUnusableError, match="cache"):
        Store.open(tmp_path / "cache")


@cases(
    "number kind said",
    ("a full disk", errno.ENOSPC, DiskFullError, "free"),
    ("a quota", errno.EDQUOT, DiskFullError, "quota"),
    ("a disk to read only", errno.EROFS, StoreUnusableError, "Read-only"),
    ("a dying disk", errno.EIO, StoreUnusableError, "Input/output"),
)
def test_what_the_disk_refuses_is_said_and_nothing_is_left(
    store: Store,
    number: int,
    kind: type[DiskFullError | StoreUnusableError],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        if len(data) > 100:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(kind, match=said) as caught:
        store.add("blob", HEX, pieces())
    assert str(store.directory) in caught.value.message
    assert caught.value.fix
    monkeypatch.undo()
    assert partial(store) == []
    assert store.blob(HEX) is None


def test_a_limit_of_the_kernel_on_files_is_met_as_a_full_disk(tmp_path: Path) -> None:
    code = (
        "import resource, sys, pathlib, itertools\n"
        "from images.errors import DiskFullError\n"
        "from images.store.store import Store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "with Store.open(pathlib.Path(sys.argv[1])) as store:\n"
        "    try:\n"
        "        store.add('blob', 'ab' * 32, itertools.repeat(bytes(4096), 100))\n"
        "    except DiskFullError as error:\n"
        "        print(error.message)\n"
        "    print(len(list((store.directory / 'partial').iterdir())))\n"
    )
    assert resource.RLIMIT_FSIZE
    done = run_program([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert "the largest size of a file" in done.stdout
    assert done.stdout.endswith("\n0\n")


def test_a_disk_that_is_too_small_is_told_and_nothing_is_cleared_in_vain(tmp_path: Path) -> None:
    with Store.open(tmp_path) as earlier:
        path = earlier.add("blob", HEX, pieces())
    with Store.open(tmp_path) as store, pytest.raises(DiskFullError) as caught:
        store.make_room(1 << 60)
    assert "1152922 TB" in caught.value.message
    assert "provision store gc" in caught.value.fix
    assert path.exists()


def test_room_is_made_by_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as earlier:
        for i in range(4):
            body = bytes([i]) * 1000
            os.utime(earlier.add("blob", sha(body), pieces(body)), (1000 + i, 1000 + i))
    with Store.open(tmp_path) as store:
        blobs = store.directory / "blobs"

        def free(_: object) -> int:
            return 10_000 - sum(path.stat().st_size for path in blobs.iterdir())

        monkeypatch.setattr(store_module, "free_bytes", free)
        monkeypatch.setattr(upkeep, "_free", free)
        store.make_room(6000)
        assert len(list(blobs.iterdir())) == 4
        store.make_room(7500)
        assert sorted(path.read_bytes()[0] for path in blobs.iterdir()) == [2, 3]


def test_where_there_are_no_locks_that_is_said_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    notes: list[str] = []
    with Store.open(tmp_path, on_note=notes.append) as store:
        path = store.add("wheel", HEX, pieces(), file_name=NAME)
        assert path.read_bytes() == BODY
        assert "without locks" in notes[0]
        assert store.gc(everything=True).kept == len(BODY)  # it may be in use
        os.utime(path, (1, 1))
        assert store.gc(everything=True).kept == 0
        assert partial(store) == []


def test_a_gate_that_is_held_for_ever_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "GATE_PATIENCE_S", 0.2)
    store.add("blob", HEX, pieces())
    with (store.directory / "gate").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnusableError, match="locked by another process") as caught:
            store.blob(HEX)
    assert "fuser" in caught.value.fix
    assert store.blob(HEX) is not None


def test_a_writer_that_is_stopped_is_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from images.store import incoming

    monkeypatch.setattr(incoming, "STALLED_S", 0.2)
    with (store.directory / "partial" / f"blob-{HEX}").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(BODY[:5000])
        held.flush()
        assert store.add("blob", HEX, pieces()).read_bytes() == BODY
        assert partial(store) == [f"blob-{HEX}"]


def test_what_was_finished_between_a_look_and_a_lock_is_not_written_again(tmp_path: Path) -> None:
    answers = iter([False, True, True])
    path = tmp_path / "blob"
    with receiving(path, is_there=lambda: next(answers), on_wait=lambda _: None) as incoming:
        assert incoming is None
    assert not path.exists()
