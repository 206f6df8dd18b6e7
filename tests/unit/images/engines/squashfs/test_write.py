"""Files that the real tools write and read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.engines.squashfs.files import RECORD, read_record
from images.engines.squashfs.reader import is_squashfs
from images.engines.squashfs.write import SquashfsFile, find_tool
from images.errors import DiskFullError
from images.oci.errors import ImagePlaceError, ImageUnreadableError, TargetError
from images.oci.sources import Image, ImageLayer, Member
from images.system.hashed_file import hash_file
from images.system.process import ToolMissing
from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.programs import run_program
from tests.kit.sandbox_images import entry, image, layer, link

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw+ep
ODD = b"n\xff\xfe\n".decode("utf-8", "surrogateescape")


def attributes(**xattrs: bytes) -> dict[str, str]:
    return {
        f"SCHILY.xattr.{name.replace('_', '.')}": value.decode("utf-8", "surrogateescape")
        for name, value in xattrs.items()
    }


def complicated() -> Image:
    """Layers with everything that a squashfs can have."""
    lower = layer(
        entry(".", mode=0o751, uid=3, gid=4, mtime=1000),
        entry("d", mode=0o2755, uid=1, gid=2, mtime=10),
        entry("d/gone", b"x"),
        entry("d/f", b"1", mode=0o4755, uid=70_000, gid=3_000_000, mtime=77),
        entry("u/lib/g", b"g", mtime=5),
        link("lib", "u/lib"),
        entry("first", b"shared"),
        entry("opaque/old", b"x"),
    )
    upper = layer(
        entry("d/.wh.gone", b""),
        entry("lib/new", b"through a link"),
        link("second", "first", hard=True),
        entry("first", b"replaced"),
        entry("opaque/.wh..wh..opq", b""),
        entry("opaque/new", b"y"),
        entry(
            "ping",
            b"p" * 1000,
            mode=0o755,
            pax_headers=attributes(security_capability=CAPABILITY, user_x=b"\xff\0a"),
        ),
        entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666),
        entry("disk", type=tarfile.BLKTYPE, devmajor=259, devminor=300, mode=0o660),
        entry("pipe", type=tarfile.FIFOTYPE, mode=0o600),
        entry("/".join(["d" * 200] * 3) + "/deep", b"deep"),
        entry("l" * 255, b"long"),
        link("far", "/" + "t" * 300),
        link("näh", "/Főtanúsítvány"),
        entry("empty", b"", mtime=2**31),
        entry("zeros", bytes(3 << 20)),
        entry("large", hashlib.shake_128(b"x").digest(700_001)),
        packed=True,
    )
    odd = layer(entry("odd", b"?"))
    return image([lower, upper, _named(odd, ODD)], {"Cmd": ["sh"], "WorkingDir": "/work"})


def _named(one: ImageLayer, name: str) -> ImageLayer:
    """A layer whose only file has another name, which a tar of tarfile's cannot have."""

    def members() -> Generator[Member, None, None]:
        from images.oci.tarstream import layer_members

        for member, content in layer_members(one):
            member.name = name
            yield member, content

    return replace(one, members=members)


def write(path: Path, one: Image, **options: Any) -> Path:
    with contextlib.closing(SquashfsFile.open(path)) as file:
        file.write(one, **options)
        assert not path.exists() or path.read_bytes() == b"old"
        return file.publish()


@pytest.fixture(autouse=True)
def tool() -> None:
    need.program("tar2sqfs", "squashfs-tools-ng")


@pytest.fixture
def unsquashfs() -> str:
    return need.program("unsquashfs", "squashfs-tools")


def listed(unsquashfs: str, path: Path) -> dict[str, str]:
    """What unsquashfs says of each file: mode, owner, size or device, time."""
    done = subprocess.run(
        [unsquashfs, "-UTC", "-lln", str(path)], capture_output=True, check=True, text=True,
        errors="surrogateescape",
    )  # fmt: skip
    rows = {}
    for line in done.stdout.replace(ODD, "ODD").splitlines():
        about, _, name = line.partition(" squashfs-root")
        if name or "squashfs-root" in line:
            rows[name.partition(" -> ")[0]] = " ".join(about.split())
    return rows


def test_everything_is_kept(tmp_path: Path, unsquashfs: str) -> None:
    made = write(tmp_path / "image.sqfs", complicated())
    found = listed(unsquashfs, made)
    assert {name: found[name] for name in ("/d/f", "/ODD", "/ping", "/zeros")} == {
        "/d/f": "-rwsr-xr-x 70000/3000000 1 1970-01-01 00:01",
        "/ODD": "-rw-r--r-- 0/0 1 1970-01-01 00:00",
        "/ping": "-rwxr-xr-x 0/0 1000 1970-01-01 00:00",
        "/zeros": f"-rw-r--r-- 0/0 {3 << 20} 1970-01-01 00:00",
    }
    for name, (mode, owner, last) in {
        "": ("drwxr-x--x", "3/4", "00:16"),
        "/d": ("drwxr-sr-x", "1/2", "00:00"),
        "/pipe": ("prw-------", "0/0", "00:00"),
        "/tmp": ("drwxrwxrwt", "0/0", "00:00"),
    }.items():
        assert found[name].startswith(f"{mode} {owner} ")
        assert found[name].endswith(f" 1970-01-01 {last}")
    assert found["/null"].startswith("crw-rw-rw- 0/0 1, 3")
    assert found["/empty"].endswith("0 2038-01-19 03:14")
    assert not {"/d/gone", "/opaque/old", "/lib/new"} & set(found)
    assert {"/opaque/new", "/u/lib/new", "/u/lib/g", "/work", "/proc", RECORD} <= set(found)
    deep = "/" + "/".join(["d" * 200] * 3) + "/deep"
    assert {deep, "/" + "l" * 255} <= set(found)


def test_contents_links_and_attributes_are_kept(tmp_path: Path, unsquashfs: str) -> None:
    one = complicated()
    made = write(tmp_path / "image.sqfs", one)
    root = tmp_path / "out"
    words = ["-user-xattrs"] if os.geteuid() else []
    done = run_program([unsquashfs, "-quiet", "-no-progress", *words, "-d", str(root), str(made)])
    assert done.returncode == 0 or os.geteuid(), done.stderr
    texts = {"first": "replaced", "second": "shared", "u/lib/new": "through a link", "empty": ""}
    assert {name: (root / name).read_text() for name in texts} == texts
    assert (root / "zeros").read_bytes() == bytes(3 << 20)
    assert (root / "large").read_bytes() == hashlib.shake_128(b"x").digest(700_001)
    links = {"lib": "u/lib", "far": "/" + "t" * 300, "näh": "/Főtanúsítvány"}
    assert {name: str((root / name).readlink()) for name in links} == links
    assert os.getxattr(root / "ping", "user.x") == b"\xff\0a"
    record = read_record((root / RECORD[1:]).read_bytes(), hash_file(made))
    assert record.claims == (one.image_id, one.digest)
    if os.geteuid() == 0:
        assert os.getxattr(root / "ping", "security.capability") == CAPABILITY
        status = (root / "disk").lstat()
        assert stat.S_ISBLK(status.st_mode)


def test_hard_links_stay_links(tmp_path: Path, unsquashfs: str) -> None:
    one = image([layer(entry("a", b"1" * 9000)), layer(link("b", "a", hard=True))])
    made = write(tmp_path / "image.sqfs", one)
    subprocess.run([unsquashfs, "-quiet", "-d", str(tmp_path / "out"), str(made)], check=True,
                   capture_output=True)  # fmt: skip
    assert (tmp_path / "out/a").stat().st_ino == (tmp_path / "out/b").stat().st_ino


def test_equal_images_are_equal_files(tmp_path: Path) -> None:
    first = write(tmp_path / "one.sqfs", complicated(), processors=1)
    time.sleep(1.1)  # files have times in seconds
    other = tmp_path / "other/directory"
    before = os.umask(0o077)
    try:
        second = write(other / "two.sqsh", complicated(), processors=2)
    finally:
        os.umask(before)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_with_another_clock_writes_the_same(tmp_path: Path) -> None:
    first = write(tmp_path / "one.sqfs", complicated())
    place = Path("/tmp") / f"squashfs-{os.getpid()}"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    try:
        code = (
            "import os\n"
            "from pathlib import Path\n"
            "from tests.unit.images.engines.squashfs.test_write import complicated, write\n"
            f"place = Path({str(place)!r})\n"
            "write(place / 'two.sqfs', complicated())\n"  # imports what that user cannot read
            "(place / 'two.sqfs').unlink()\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "write(place / 'two.sqfs', complicated())\n"
        )
        words = [sys.executable, "-c", code]
        if faketime := shutil.which("faketime"):
            words = [faketime, "2031-01-01", *words]
        env = {**os.environ, "TZ": "Asia/Tokyo", "HOME": "/", "PYTHONPATH": str(ROOT)}
        subprocess.run(words, env=env, cwd=ROOT, check=True, timeout=60)
        assert first.read_bytes() == (place / "two.sqfs").read_bytes()
    finally:
        (place / "two.sqfs").unlink(missing_ok=True)
        place.rmdir()


# What goes wrong -----------------------------------------------------------------------------


def test_a_missing_tool_is_named_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="tar2sqfs, which is not installed") as caught:
        find_tool({"PATH": str(tmp_path)})
    assert "apt-get install squashfs-tools-ng" in caught.value.fix


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def child_named(name: str) -> int:
    """The process ID of a child of ours."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return int(pid)
    raise AssertionError(name)


def with_effect(effect: Any) -> ImageLayer:
    """A layer of 64 MB, after whose first part something happens."""
    one = layer(entry("f", b""))

    class Content:
        left = 64

        def read(self, size: int) -> bytes:
            assert size > 0
            if self.left == 62:
                effect()
            self.left -= 1
            return hashlib.shake_128(bytes([self.left])).digest(1 << 20) if self.left >= 0 else b""

    def members() -> Iterator[Member]:
        member = tarfile.TarInfo("f")
        member.size = 64 << 20
        yield member, Content()  # type: ignore[misc]

    return replace(one, members=members)  # type: ignore[arg-type]


def test_a_tool_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    old = tmp_path / "image.sqfs"
    old.write_bytes(b"old")
    one = image([with_effect(lambda: os.kill(child_named("tar2sqfs"), signal.SIGKILL))])
    with pytest.raises(TargetError, match="tar2sqfs was killed by SIGKILL"):
        write(old, one)
    assert left_in(tmp_path) == ["image.sqfs"]
    assert old.read_bytes() == b"old"


def test_a_layer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> None:
        raise ImageUnreadableError("The layer ends early.", fix="Pull it again.")

    with pytest.raises(ImageUnreadableError, match="ends early"):
        write(tmp_path / "image.sqfs", image([with_effect(broken)]))
    assert left_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], check=True)
    try:
        with pytest.raises(DiskFullError, match=r"No space left on device; .* GB free"):
            write(small / "image.sqfs", image([with_effect(lambda: None)]))
        assert left_in(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_limit_of_file_sizes_is_said(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, before[1]))
    try:
        with pytest.raises(DiskFullError, match=r"File too large|No space left"):
            write(tmp_path / "image.sqfs", image([with_effect(lambda: None)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_in(tmp_path) == []


def test_an_interruption_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt() -> None:
        pids.append(child_named("tar2sqfs"))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "image.sqfs", image([with_effect(interrupt)]))
    assert left_in(tmp_path) == []
    assert not Path(f"/proc/{pids[0]}").exists()


@cases("make", ("a directory", lambda path: path.mkdir()), ("a pipe", os.mkfifo))
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "image.sqfs")
    with pytest.raises(ImagePlaceError, match="not a regular file"):
        SquashfsFile.open(tmp_path / "image.sqfs")
    assert left_in(tmp_path) == ["image.sqfs"]


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(TargetError, match="cannot be written") as caught:
        SquashfsFile.open(tmp_path / "f/image.sqfs")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"hsqs" + bytes(100), True), (b"", False), (b"PK\3\4", False)],
    ids=["the first bytes of one", "nothing", "a zip"],
)
def test_a_squashfs_is_known_by_its_bytes(
    tmp_path: Path, content: bytes, *, expected: bool
) -> None:
    (tmp_path / "f").write_bytes(content)
    assert is_squashfs(tmp_path / "f") is expected
    assert not is_squashfs(tmp_path)
    assert not is_squashfs(tmp_path / ("x" * 5000))
