"""Sandboxes on this kernel: by bubblewrap and by unshare, as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from images.engines.sandbox import bounds, stage
from images.engines.sandbox.unpack import unpack
from images.errors import Failure
from images.oci.archive_reader import open_archive
from tests import fake_driver, need
from tests.engines.hostile_images import IMAGES
from tests.engines.lab import debian
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[2]
ATTACK = (ROOT / "tests/engines/sandbox_attack.py").read_text()
LOOK = (ROOT / "tests/engines/sandbox_look.py").read_text()
EXPECT = "/run/gpu-provision/expect.json"
WAYS = [
    pytest.param(user, kind, own_users, id=f"{user} by {kind}{'' if own_users else ', no users'}")
    for user, kind, own_users in (
        ("nobody", "bubblewrap", True),
        ("nobody", "unshare", True),
        ("root", "bubblewrap", True),
        ("root", "unshare", True),
        ("root", "bubblewrap", False),
        ("root", "unshare", False),
    )
]


@dataclass(frozen=True)
class Way:
    """One way to run a sandbox: who, by what, and where its roots lie."""

    user: str
    kind: str
    own_users: bool
    place: Path

    def argv(self, script: Path) -> tuple[list[str], dict[str, str]]:
        words = [interpreter(self.user), "-m", "tests.engines.sandbox_script", str(script)]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.place), "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONPATH"] = ":".join([str(ROOT), *(path for path in sys.path if "site-" in path)])
        return [*as_user(self.user), *words], env

    def script(self, **job: Any) -> Path:
        told = {
            "launcher": [self.kind, self.own_users],
            "roots": str(self.place / "roots"),
            "archive": str(self.place.parent / "base.tar"),
            "driver_root": str(job.pop("driver_root", "/nosuch")),
            "files": job.pop("files", {}),
            "hostile": job.pop("hostile", ""),
            "terminal": job.pop("terminal", False),
            "job": {"command": ["python3", "-c", LOOK], **job},
        }
        descriptor, name = tempfile.mkstemp(suffix=".json", dir=self.place)
        os.close(descriptor)
        Path(name).write_text(json.dumps(told))
        Path(name).chmod(0o644)
        return Path(name)

    def run(self, variables: Mapping[str, str] | None = None, **job: Any) -> dict[str, Any]:
        """Run a job; the caller has some variables more."""
        argv, env = self.argv(self.script(**job))
        env |= variables or {}
        done = run_program(argv, cwd=ROOT, env=env)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        if "lacking" in found or found.get("failure") == "NoRunnerError":
            need.lacking(str(found))
        return found


def as_user(user: str) -> list[str]:
    """Words before a command that make it another user's. The rights go with the second exec."""
    if user == "root" or os.geteuid() != 0:
        return []
    setpriv = need.program("setpriv", "util-linux")
    return [setpriv, "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env"]


@cache
def interpreter(user: str) -> str:
    """A Python that the user may run: our own may lie in somebody's home."""
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        code = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
        with contextlib.suppress(OSError):
            argv = [*as_user(user), str(python), "-c", code]
            if subprocess.run(argv, check=False, capture_output=True, cwd="/").returncode == 0:
                return str(python)
    return need.lacking(f"{user} may run no Python of our version")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with a Debian base in it."""
    need.program("bwrap", "bubblewrap")
    made = Path(tempfile.mkdtemp(prefix="gpu-provision-sandbox-"))
    try:
        made.chmod(0o755)
        shutil.copy(debian().archive, made / "base.tar")
        (made / "base.tar").chmod(0o644)
        for user in ("nobody", "root"):
            (made / user).mkdir()
        if os.geteuid() == 0:
            shutil.chown(made / "nobody", "nobody")
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def way(place: Path, user: str, kind: str, own_users: bool) -> Way:  # noqa: FBT001
    if user == "root" and os.geteuid() != 0:
        need.root()
    return Way(user, kind, own_users, place / user)


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS)
def test_the_inside_is_what_an_engine_gives(way: Way) -> None:
    found = way.run(files={EXPECT: '{"a": 1}'}, environment={"FOO": "b ar"}, shm_bytes=64 << 20)
    seen = json.loads(found["stdout"])
    assert (found["exit_code"], found["lines"]) == (7, ["a line", "the last line"])
    assert found["stderr_tail"].endswith("the last line")
    assert seen["uid"] == 0
    assert set(seen["rights"].values()) == {"0000000000000000", "1"}  # capabilities; no_new_privs
    assert seen["cwd"] == "/"
    assert seen["env"] == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
        "HOSTNAME": "gpu-provision", "LANG": "C.UTF-8", "FOO": "b ar",
    }  # fmt: skip
    assert seen["expect"] == '{"a": 1}'
    assert seen["interfaces"] == ["lo"]
    assert seen["spoke_to_itself"]
    assert (seen["host_name"], seen["own_address"]) == ("gpu-provision", "127.0.0.1")
    assert seen["shm_bytes"] == 64 << 20
    assert seen["stack_bytes"] == 64 << 20 or any("stack" in note for note in found["notes"])
    assert seen["processes"] == ["1"]
    assert seen["devices"] == ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr",
                               "stdin", "stdout", "tty", "urandom", "zero"]  # fmt: skip
    assert {path for path, said in seen["writable"].items() if said == "yes"} == {
        "/tmp/x", "/var/tmp/x", "/run/x", "/root/x", "/dev/shm/x",
    }  # fmt: skip
    assert ".bashrc" in seen["home"]


def state_of_the_host(way: Way) -> dict[str, tuple[int, ...]]:
    """Mode, owner and times of what a sandbox is made of and from."""
    programs = ("bwrap", "unshare", "setpriv", "flock", "sh", "env", "python3")
    files = [Path(sys.executable), Path(interpreter(way.user)), way.place, way.place / "roots"]
    files += [Path(place) for name in programs if (place := shutil.which(name))]
    files += [Path("/dev") / name for name in stage.DEVICES]
    files += [Path("/"), Path("/dev"), Path("/sys")]
    files += [file.resolve() for file in files]
    for tree in (way.place / "roots").glob("*/root"):
        for at, folders, others in os.walk(tree):
            files += [Path(at, name) for name in (*folders, *others)]
    found: dict[str, tuple[int, ...]] = {}
    for seen in files:
        info = seen.lstat()
        # a directory that we make our own in has its times from us
        times = () if stat.S_ISDIR(info.st_mode) else (info.st_mtime_ns, info.st_ctime_ns)
        found[str(seen)] = (info.st_mode, info.st_uid, info.st_gid, *times)
    return found


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS)
def test_a_hostile_image_gets_at_nothing(way: Way) -> None:
    way.run(command=["true"])
    before = state_of_the_host(way)
    found = way.run(command=["python3", "-c", ATTACK], variables={"CANARY": "s3cret-of-the-caller"})
    after = state_of_the_host(way)
    assert found["exit_code"] == 0, found["stderr_tail"]
    seen = json.loads(found["stdout"])
    assert {
        name: (before[name], after.get(name)) for name in before if before[name] != after.get(name)
    } == {}
    assert "s3cret" not in json.dumps(seen)
    names = {line.partition("=")[0] for line in seen["environments"].splitlines() if line}
    assert names <= {"PATH", "HOME", "HOSTNAME", "LANG", "LC_CTYPE", "PWD"}
    assert str(way.place) not in seen["words"]
    assert all(name.startswith("pipe:") for name in seen["descriptors"]), seen["descriptors"]
    assert seen["calls"] == {
        "unshare": "Operation not permitted", "clone": "Operation not permitted",
        "clone3": "Function not implemented", "keyctl": "Operation not permitted",
        "bpf": "Operation not permitted", "io_uring_setup": "Operation not permitted",
    }  # fmt: skip
    assert seen["first_to_end"] >= 500
    assert 0 < seen["processes"] <= bounds.most_processes() or seen["group"]["pids.max"] != "max"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    written = {place: size for place, size in seen["room"].items() if place != "/dev/shm"}
    assert sum(written.values()) <= memory // 2, written
    assert seen["writes_to_null"] == 1
    assert seen["reads_nothing"] == ""


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS[1:3])
@pytest.mark.parametrize("name", IMAGES)
def test_what_is_wrong_with_an_image_changes_nothing_outside(way: Way, name: str) -> None:
    need.program("busybox", "busybox-static")
    hostile = IMAGES[name]
    way.run(hostile="nothing is wrong but its program", command=["true"])
    before = state_of_the_host(way)
    found = way.run(
        hostile=name, command=list(hostile.command), timeout_s=20,
        variables={"CANARY": "s3cret-of-the-caller"},
    )  # fmt: skip
    after = state_of_the_host(way)
    assert {one: (seen, after.get(one)) for one, seen in before.items()
            if "/roots/" not in one and seen != after.get(one)} == {}  # fmt: skip
    assert "s3cret" not in json.dumps(found)
    if hostile.refused:
        assert hostile.refused in found.get("message", ""), found
        assert found["fix"]
    else:
        assert "exit_code" in found, found


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS)
def test_a_hostile_image_types_nothing_into_the_persons_terminal(way: Way) -> None:
    """The person's shell reads what is left in its terminal once the image's command has ended."""
    attack = ATTACK.replace('"__main__"', '""') + "\nprint(type_to_the_terminal(), change(0))\n"
    argv, env = way.argv(way.script(command=["python3", "-c", attack], terminal=True))
    script = (
        f'{shlex.join(argv)}; echo "ended $?"; stty -a | grep -o "[-]*icanon";'
        ' IFS= read -r -t 2 line; echo "[$line]"'
    )
    setsid = need.program("setsid", "util-linux")
    person, screen = os.openpty()
    with subprocess.Popen(
        [setsid, "--ctty", "--wait", "bash", "-c", script],
        stdin=screen, stdout=screen, stderr=screen, start_new_session=True, cwd=ROOT, env=env,
    ) as running:  # fmt: skip
        os.close(screen)
        shown = b""
        with contextlib.suppress(OSError):  # the last one has closed it
            while data := os.read(person, 65536):
                shown += data
        running.wait(timeout=60)
    os.close(person)
    lines = shown.decode().split("\r\n")
    assert lines[-2:] == ["[]", ""], shown
    assert "Operation not permitted" in shown.decode()
    assert "'done'" not in shown.decode()
    assert "ended 0" in lines
    assert "icanon" in lines


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS)
def test_nothing_outlives_its_time(way: Way) -> None:
    mark = f"310.{os.getpid() % 1000:03}{WAYS.index(way_id(way))}"
    started = time.monotonic()
    found = way.run(command=["sh", "-c", f"sleep {mark} & trap '' TERM; sleep {mark}"], timeout_s=1)
    assert found["failure"] == "SandboxError", found
    assert "timed out" in found["message"]
    assert time.monotonic() - started < 200
    assert sleeping(mark) == []


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS)
def test_nothing_outlives_a_killed_caller(way: Way) -> None:
    mark = f"32.{os.getpid() % 1000:03}{WAYS.index(way_id(way))}"
    script = way.script(command=["sh", "-c", f"echo up >&2; sleep {mark} & sleep {mark}"])
    argv, env = way.argv(script)
    with subprocess.Popen(argv, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True) as caller:
        assert caller.stderr is not None
        assert caller.stderr.readline() == "up\n"
        while not sleeping(mark):
            time.sleep(0.02)
        caller.send_signal(signal.SIGKILL)
        caller.wait(timeout=10)
    deadline = time.monotonic() + 10
    while sleeping(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleeping(mark) == []


def way_id(way: Way) -> Any:
    (found,) = [p for p in WAYS if p.values == (way.user, way.kind, way.own_users)]
    return found


def sleeping(mark: str) -> list[str]:
    """Who sleeps for so long, wherever it is."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(file.parent.name)
    return found


@pytest.mark.parametrize(("user", "kind", "own_users"), WAYS[:3])
def test_the_suite_sees_the_hosts_gpus(way: Way, place: Path) -> None:
    """The driver is ours, and the way into the sandbox the real one."""
    host = place / f"host-{way.user}-{way.kind}"
    libraries = host / f"usr/lib/{os.uname().machine}-linux-gnu"
    libraries.mkdir(parents=True)
    fake_driver.build(libraries)
    version = libraries / "libnvidia-ml.so.535.104.05"
    (libraries / fake_driver.LIBRARY).rename(version)
    (libraries / fake_driver.LIBRARY).symlink_to(version.name)
    (host / "dev").mkdir()
    for node in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"):
        (host / "dev" / node).symlink_to("/dev/null")
    sources = {
        f"/opt/suite/{path.relative_to(ROOT)}": path.read_text()
        for path in (ROOT / "verify").rglob("*")
        if path.suffix in {".py", ".json"}
    }
    settings = "count = 2\ndriver = 535.104.05\ncuda = 12020\n" + "".join(
        f"gpu.{i}.name = NVIDIA L4\ngpu.{i}.uuid = GPU-{i}\ngpu.{i}.capability = 8.9\n"
        for i in range(2)
    )
    found = way.run(
        command=["python3", "-m", "verify", "--json", "--only", "devices.nvml,devices.visible"],
        gpus="cdi",
        driver_root=host,
        files={**sources, "/run/gpu-provision/fake": settings},
        environment={"PYTHONPATH": "/opt/suite", "FAKE_DRIVER": "/run/gpu-provision/fake"},
    )
    report = json.loads(found["stdout"])
    checks = {check["id"]: check for check in report["checks"]}
    assert checks["devices.nvml"]["status"] == "pass", str(checks["devices.nvml"])
    assert len(checks["devices.nvml"]["measured"]["gpus"]) == 2
    assert [note for note in found["notes"] if "libcuda" in note]  # there is none to be had here
    listed = way.run(command=["/sbin/ldconfig", "-p"], gpus="cdi", driver_root=host)["stdout"]
    there = [line.split(" => ")[-1] for line in listed.splitlines() if "libnvidia-ml.so.1 " in line]
    assert there == ["/usr/local/nvidia/lib64/libnvidia-ml.so.1"]


def test_a_host_that_forbids_user_namespaces_says_so(place: Path) -> None:
    """In a namespace of its own the limit is its own, too; without rights, as for a user."""
    need.root()
    code = (
        "from images.errors import Failure\n"
        "from images.engines.sandbox.launch import find_launcher\n"
        "try: print(find_launcher())\n"
        "except Failure as failure: print(failure.message, failure.fix, sep='|')\n"
    )
    inner = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all "
    inner += '--inh-caps=-all --no-new-privs "$0" -c "$1"'
    done = run_program(
        ["unshare", "--user", "--map-root-user", "sh", "-c", inner, sys.executable, code],
        cwd=ROOT,
        check=True,
    )
    message, _, fix = done.stdout.partition("|")
    assert "the kernel allows no user namespaces" in message, done.stdout
    assert "sysctl -w user.max_user_namespaces=" in fix
    del place


def test_a_full_disk_leaves_nothing(place: Path) -> None:
    """A disk of a few megabytes, and a Debian that does not fit on it."""
    need.root()
    small = place / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], check=True)
    try:
        with pytest.raises(Failure, match="GB free") as caught:
            unpack(open_archive(place / "base.tar").layers, small, lambda _: None)
        assert caught.value.code == "disk-full"
    finally:
        subprocess.run(["umount", str(small)], check=True)
