"""A squashfs runs where it is: mounted by squashfuse for any user, by a loop device for root."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from images.engines.sandbox import mounts
from images.engines.sandbox.errors import MountError
from images.engines.sandbox.mounts import mounted
from images.engines.sandbox.roots import Roots
from images.engines.squashfs.reader import mounted_image, open_squashfs
from images.engines.squashfs.write import SquashfsFile
from images.inspect.contents import read_image
from images.inspect.tree import Directory, ImageFile, SymbolicLink
from images.oci.errors import ImageUnreadableError
from images.system.hashed_file import hash_file
from tests import ROOT, need
from tests.engines.test_sandbox_real import as_user, interpreter
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer, link

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("squashfs")]  # one /dev/fuse
WAYS = ["squashfuse", "loop"]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with an image in it that has only busybox."""
    need.program("tar2sqfs", "squashfs-tools-ng")
    busybox = Path(need.program("busybox", "busybox-static")).read_bytes()
    made = Path(tempfile.mkdtemp(prefix="gpu-provision-squashfs-"))
    made.chmod(0o755)
    try:
        one = image(
            [
                layer(
                    entry("bin/busybox", busybox, mode=0o755),
                    link("bin/sh", "busybox"),
                    link("twin", "bin/busybox", hard=True),
                    entry("secret", b"root's", mode=0o600),
                    entry("su", busybox, mode=0o4755),
                    entry("opt", mode=0o755),
                    packed=True,
                )
            ],
            {"Env": ["WORD=of the image"], "WorkingDir": "/job", "Labels": {"a": "b"}},
        )
        for name in ("image.sqfs", "image.sif"):
            with contextlib.closing(SquashfsFile.open(made / name)) as file:
                file.write(one)
                file.publish()
        yield made
    finally:
        shutil.rmtree(made)


@pytest.fixture(autouse=True)
def fuse_for_all() -> Iterator[None]:
    """/dev/fuse as udev makes it; machines without udev let only root open it."""
    node = Path("/dev/fuse")
    mode = node.stat().st_mode & 0o777 if node.exists() and os.geteuid() == 0 else None
    if mode is not None:
        node.chmod(0o666)
    yield
    if mode is not None:
        node.chmod(mode)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Only this way to mount is there."""
    name: str = request.param
    only(name, monkeypatch, tmp_path)
    return name


def only(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need.root()
    if name == "squashfuse":
        need.program("squashfuse", "squashfuse")
        if not Path("/dev/fuse").exists():
            need.lacking("there is no /dev/fuse", "modprobe fuse")
        return
    if not Path("/dev/loop-control").exists():
        need.lacking("there are no loop devices", "modprobe loop")
    hide(monkeypatch, tmp_path, "squashfuse", "squashfuse_ll")


def hide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str) -> None:
    """A PATH without some programs."""
    shown = tmp_path / "programs"
    shown.mkdir()
    for directory in os.environ["PATH"].split(":"):
        with contextlib.suppress(OSError):
            for program in Path(directory).iterdir():
                if program.name not in names and not (shown / program.name).is_symlink():
                    (shown / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(shown))


OWN: list[str] = []
"""Where this test mounts: others mount at the same time."""


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    OWN[:] = [str(tmp_path)]


def mounts_now() -> set[str]:
    """The mounts of this test."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return {line for line in lines if any(place in line for place in OWN)}


def gone(left: Callable[[], object], within_s: float = 10) -> bool:
    end = time.monotonic() + within_s
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    return not left()


def test_a_mount_is_there_and_then_gone(place: Path, way: str) -> None:
    before = mounts_now()
    with mounted(place / "image.sqfs") as tree:
        new = mounts_now() - before
        assert len(new) == 1
        options = new.copy().pop().split()
        assert ("fuse" in options[2]) is (way == "squashfuse")
        assert {"ro", "nosuid", "nodev"} <= set(options[3].split(","))
        assert (tree / "job").is_dir()
    assert mounts_now() == before
    assert not tree.exists()


@pytest.mark.usefixtures("way")
def test_an_error_unmounts(place: Path) -> None:
    before = mounts_now()
    with pytest.raises(ValueError, match="ours"), mounted(place / "image.sqfs"):
        raise ValueError("ours")
    assert mounts_now() == before


@pytest.mark.usefixtures("way")
def test_the_image_is_known(place: Path) -> None:
    found = open_squashfs(place / "image.sqfs")
    assert found.config["config"]["Labels"] == {"a": "b"}
    assert found.squashfs == hash_file(place / "image.sqfs")
    assert found.layers == ()


@pytest.mark.usefixtures("way")
def test_a_sif_is_the_same_image(place: Path) -> None:
    with mounted_image(place / "image.sif") as one:
        tree = read_image(one).tree
    assert open_squashfs(place / "image.sqfs").claims == one.claims
    assert one.digest == hash_file(place / "image.sif").digest
    assert tree.find("/bin/busybox") is not None
    siftool = need.program("siftool", "siftool")
    done = subprocess.run(
        [siftool, "dump", "1", place / "image.sif"], capture_output=True, check=True
    )
    assert done.stdout == (place / "image.sqfs").read_bytes()
    assert os.access(place / "image.sif", os.X_OK), "its first line starts apptainer"


@pytest.mark.usefixtures("way")
def test_its_files_are_read_as_a_layer(place: Path) -> None:
    with mounted_image(place / "image.sqfs") as one:
        tree = read_image(one).tree
        found = dict(tree.walk())
    assert isinstance(found["/bin/sh"], SymbolicLink)
    assert found["/bin/sh"].target == "busybox"
    busybox, su = found["/bin/busybox"], found["/su"]
    assert isinstance(busybox, ImageFile)
    assert isinstance(su, ImageFile)
    assert busybox.elf is not None
    assert (busybox.executable, busybox.size) == (True, su.size)
    assert found["/twin"] is busybox
    assert isinstance(found["/dev"], Directory)


@cases(
    "make",
    ("a damaged one", lambda _: b"hsqs" + bytes(4096)),
    ("half of one", lambda whole: whole[: len(whole) // 2]),
)
@pytest.mark.usefixtures("way")
def test_what_is_no_whole_squashfs_is_refused(
    place: Path, tmp_path: Path, make: Callable[[bytes], bytes]
) -> None:
    before = mounts_now()
    file = tmp_path / "image.sqfs"
    file.write_bytes(make((place / "image.sqfs").read_bytes()))
    with pytest.raises(MountError) as caught:
        open_squashfs(file)
    assert caught.value.fix
    assert mounts_now() == before


@pytest.mark.usefixtures("way")
def test_another_tools_squashfs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree/opt").mkdir(parents=True)
    secret = tmp_path / "image.json"
    secret.write_text("{}")
    (tmp_path / "tree/opt/gpu-provision").symlink_to(secret.parent)  # it leads out of the image
    mksquashfs = need.program("mksquashfs", "squashfs-tools")
    file = tmp_path / "image.sqfs"
    subprocess.run([mksquashfs, tmp_path / "tree", file], check=True, capture_output=True)
    with pytest.raises(ImageUnreadableError, match="does not say which image it is"):
        open_squashfs(file)


def test_without_a_tool_it_says_what_to_install(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, tmp_path, "squashfuse", "squashfuse_ll")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MountError, match="squashfuse is not installed, and only root") as caught:
        open_squashfs(place / "image.sqfs")
    assert "apt-get install squashfuse" in caught.value.fix


def test_without_fuse_squashfuse_is_followed_by_a_loop_device(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("loop", monkeypatch, tmp_path)
    broken = tmp_path / "programs/squashfuse"
    broken.write_text("#!/bin/sh\necho fuse: device not found >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(mounts, "_fuse_opens", lambda: False)
    with mounted(place / "image.sqfs") as tree:
        assert (tree / "job").is_dir()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MountError) as caught:
        open_squashfs(place / "image.sqfs")
    assert "device not found" in caught.value.detail


def test_what_squashfuse_refuses_is_not_given_to_the_kernel(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("loop", monkeypatch, tmp_path)
    refuses = tmp_path / "programs/squashfuse"
    refuses.write_text("#!/bin/sh\necho this is not a squashfs >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(mounts, "_fuse_opens", lambda: True)
    with pytest.raises(MountError) as caught:
        open_squashfs(place / "image.sqfs")
    assert caught.value.detail == "squashfuse: this is not a squashfs"


# In a sandbox ---------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
from pathlib import Path
from images.engines.sandbox.run import Sandbox
from images.engines.spec import RunJob
from images.engines.squashfs.reader import open_squashfs

sandbox = Sandbox.connect(Path(sys.argv[2]))
image = open_squashfs(Path(sys.argv[1]))
handle = sandbox.prepare(image, lambda _: None)
try:
    print("prepared", flush=True)
    job = RunJob(image=handle, command=("/bin/sh", "-c", sys.argv[3]), gpus="none")
    done = sandbox.run(job, lambda _: None)
    print(json.dumps([done.exit_code, done.stdout]), flush=True)
finally:
    sandbox.remove(handle)
"""
LOOK = (
    "echo $WORD; pwd; echo x > /tmp/x && echo written; echo x > /job/x && echo written;"
    "echo x 2>&1 > /opt/x || echo read-only; /bin/busybox id -u; /bin/busybox cat /secret"
)


def start(place: Path, user: str, roots: Path, command: str) -> subprocess.Popen[str]:
    need.program("bwrap", "bubblewrap")
    words = [*as_user(user), interpreter(user), "-c", SCRIPT]
    env = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    env["TMPDIR"] = str(roots.parent)
    env["PYTHONPATH"] = ":".join([str(ROOT), *(path for path in sys.path if "site-" in path)])
    return subprocess.Popen(
        [*words, str(place / "image.sqfs"), str(roots), command],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def roots() -> Iterator[Path]:
    """A directory that any user may write to."""
    made = Path(tempfile.mkdtemp(prefix="gpu-provision-roots-", dir="/tmp"))
    made.chmod(0o777)
    OWN.append(str(made))
    yield made / "roots"
    shutil.rmtree(made)


def run(place: Path, user: str, roots: Path, command: str) -> tuple[int, str]:
    process = start(place, user, roots, command)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    code, stdout = json.loads(out.splitlines()[1])
    return code, stdout


@pytest.mark.parametrize(
    ("user", "name"), [("nobody", "squashfuse"), ("root", "squashfuse"), ("root", "loop")]
)
def test_a_sandbox_runs_it_mounted(
    place: Path, roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, name: str
) -> None:
    only(name, monkeypatch, tmp_path)
    tmp_path.chmod(0o755)
    before = mounts_now()
    code, stdout = run(place, user, roots, LOOK)
    lines = stdout.splitlines()
    assert code == 0
    assert lines[:2] == ["of the image", "/job"]
    assert lines.count("written") == 2
    assert "read-only" in lines
    assert mounts_now() == before
    assert [path.name for path in roots.iterdir()] == [".lock"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    ("user", "name"), [("nobody", "squashfuse"), ("root", "squashfuse"), ("root", "loop")]
)
def test_no_mount_outlives_its_process(
    place: Path,
    roots: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    name: str,
    number: signal.Signals,
) -> None:
    only(name, monkeypatch, tmp_path)
    before = mounts_now()
    process = start(place, user, roots, "/bin/busybox sleep 60")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "prepared\n"
        assert len(mounts_now() - before) == 1
        process.send_signal(number)
        process.wait(20)
        assert gone(lambda: mounts_now() - before)
    finally:
        process.kill()
        process.communicate()


def test_a_mount_that_a_killed_machine_left_is_removed(
    place: Path, roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("loop", monkeypatch, tmp_path)
    before = mounts_now()
    left = roots / ".mounted-left/root"
    left.mkdir(parents=True)
    roots.chmod(0o700)
    subprocess.run(["mount", "-o", "loop,ro", place / "image.sqfs", left], check=True)
    Roots(roots).clear()
    assert mounts_now() == before
    assert not left.exists()
