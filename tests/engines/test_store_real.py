"""The store on real disks that are too small, full, or only to be read."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from images.errors import DiskFullError
from images.store.errors import StoreUnusableError
from images.store.fetch import Fetcher
from images.store.store import Store
from tests import need
from tests.kit.fetch_server import FetchServer
from tests.kit.programs import run_program

Mount = Callable[[str], Path]


def body(number: int, size: int = 3_000_000) -> bytes:
    return hashlib.shake_256(bytes([number])).digest(size)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pieces(content: bytes) -> Iterator[bytes]:
    return (content[i : i + 65536] for i in range(0, len(content), 65536))


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True, timeout=20)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Make a disk in memory, with these options; it is gone after the test."""
    need.root()
    mounted: list[Path] = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = run_program(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)])
        if done.returncode:
            need.lacking(f"no disk in memory can be mounted here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)


def test_a_disk_that_fills_up_keeps_what_was_whole(mount: Mount) -> None:
    place = mount("size=8m")
    with Store.open(place, limit_bytes=1 << 30) as store:
        kept = [store.add("blob", sha(body(i)), pieces(body(i))) for i in (1, 2)]
        with pytest.raises(DiskFullError, match="free") as caught:
            store.add("blob", sha(body(3)), pieces(body(3)))
        assert "provision store gc" in caught.value.fix
        assert list((store.directory / "partial").iterdir()) == []
        assert store.blob(sha(body(3))) is None
        assert [path.read_bytes() for path in kept] == [body(1), body(2)]
        assert store.verify().damaged == ()


def test_a_full_disk_can_be_cleared(mount: Mount) -> None:
    place = mount("size=4m")
    with Store.open(place, limit_bytes=1 << 30) as store:
        store.add("blob", sha(body(1)), pieces(body(1)))
    with (place / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(place).free == 0
    with pytest.raises(DiskFullError), Store.open(place) as store:
        store.add("blob", sha(body(2)), pieces(body(2)))
    with Store.open(place) as store:
        assert store.gc(everything=True).freed == len(body(1))
        small = body(3, 1_000_000)
        assert store.add("blob", sha(small), pieces(small)).read_bytes() == small


def test_what_is_old_makes_room_for_what_a_build_needs(mount: Mount) -> None:
    place = mount("size=8m")
    with Store.open(place, limit_bytes=1 << 30) as store:
        for number in (1, 2):
            store.add("blob", sha(body(number)), pieces(body(number)))
    with closing(FetchServer()) as server:
        wheels = [server.wheel(body(number), f"w{number}") for number in (3, 4)]
        with Store.open(place, limit_bytes=1 << 30) as store, Fetcher(store) as fetcher:
            fetcher.prefetch(wheels)
            found = [fetcher.fetch(wheel).read_bytes() for wheel in wheels]
            assert found == [body(3), body(4)]
            assert store.blob(sha(body(1))) is None
            more = [server.wheel(body(number), f"w{number}") for number in (5, 6)]
            server.seen.clear()
            with pytest.raises(DiskFullError):  # what this build uses does not go for it
                fetcher.prefetch(more)
            assert server.seen == []
            assert [fetcher.fetch(wheel).read_bytes() for wheel in wheels] == found


def test_a_disk_without_inodes_is_told_as_a_full_one(mount: Mount) -> None:
    place = mount("size=8m,nr_inodes=4")
    with pytest.raises(DiskFullError):
        Store.open(place)


def test_a_disk_to_read_only_is_told(mount: Mount) -> None:
    place = mount("size=8m")
    remount(place, "ro")
    with pytest.raises(StoreUnusableError, match="Read-only file system") as caught:
        Store.open(place)
    assert "XDG_CACHE_HOME=" in caught.value.fix


def test_a_disk_that_becomes_read_only_is_told(mount: Mount) -> None:
    place = mount("size=8m")
    with Store.open(place) as store:
        store.add("blob", sha(body(1)), pieces(body(1)))
    remount(place, "ro")
    with pytest.raises(StoreUnusableError, match="Read-only file system"):
        Store.open(place).add("blob", sha(body(2)), pieces(body(2)))
    remount(place, "rw")
