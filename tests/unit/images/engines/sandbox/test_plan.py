"""What a sandbox mounts and runs, for any image, and by which command."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from images.engines.sandbox import bounds, launch
from images.engines.sandbox.devices import LIBRARIES, PROGRAMS, Driver
from images.engines.sandbox.errors import SandboxError
from images.engines.sandbox.filter import system_call_filter
from images.engines.sandbox.launch import Launcher, explain
from images.engines.sandbox.plan import DEFAULT_PATH, Mount, SandboxPlan, plan_run, resolve
from images.engines.sandbox.run import Sandbox, image_user
from images.engines.sandbox.unpack import unpack
from images.engines.spec import RunJob
from images.system import ldcache
from images.system.errors import NoProgramError, NoRunnerError
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer, link

EXPECT = "/run/gpu-provision/expect.json"
PROGRAM = entry("usr/bin/python3", b"#!", mode=0o755)


def make(tmp_path: Path, *entries: Any) -> Path:
    tree = tmp_path / "root"
    tree.mkdir()
    unpack([layer(PROGRAM, *entries)], tree, lambda _: None)
    return tree


def plan_of(
    tree: Path, settings: dict[str, Any] | None = None, driver: Driver | None = None, **job: Any
) -> SandboxPlan:
    files = tree.parent / "files"
    files.mkdir(exist_ok=True)
    told = {"image": "x", "command": ("python3",), **job}
    return plan_run(tree, {"config": settings or {}}, RunJob(**told), driver, files)


def at(plan: SandboxPlan, target: str) -> list[str]:
    return [mount.kind for mount in plan.mounts if mount.target == target]


def test_the_driver_s_program_can_be_the_command(tmp_path: Path) -> None:
    tree = make(tmp_path)
    smi = tmp_path / "nvidia-smi"
    smi.touch()
    driver = Driver(binds=((str(smi), "/usr/local/nvidia/bin/nvidia-smi"),))
    plan = plan_of(tree, driver=driver, command=("nvidia-smi", "-L"))
    assert plan.argv == ("nvidia-smi", "-L")
    with pytest.raises(NoProgramError, match="no program nvidia-smi"):
        plan_of(tree, command=("nvidia-smi", "-L"))


def test_the_root_is_read_only_and_what_programs_write_to_is_memory(tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path))
    assert plan.mounts[0] == Mount(kind="bind", target="/", source=str(tmp_path / "root"))
    memory = {mount.target for mount in plan.mounts if mount.kind == "memory"}
    assert memory == {"/tmp", "/var/tmp", "/run", "/root"}


def test_what_the_image_has_in_them_is_put_back(tmp_path: Path) -> None:
    tree = make(
        tmp_path, entry("root/.bashrc", b"x"), link("root/l", ".bashrc"), entry("root/d/f", b"")
    )
    plan = plan_of(tree)
    assert [at(plan, f"/root/{name}") for name in (".bashrc", "l", "d")] == [
        ["bind"], ["link"], ["bind"],
    ]  # fmt: skip
    order = [mount.target for mount in plan.mounts]
    assert order.index("/root") < order.index("/root/d")


def test_the_jobs_files_come_last_and_hold_their_bytes(tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path), files={EXPECT: b"{}"})
    (mount,) = [mount for mount in plan.mounts if mount.target == EXPECT]
    assert Path(mount.source).read_bytes() == b"{}"
    order = [one.target for one in plan.mounts]
    assert order.index("/run") < order.index(EXPECT)


def test_a_jobs_output_is_the_only_place_on_a_disk_that_can_be_written_to(tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path), outputs={"/run/x/output": tmp_path / "out"})
    [mine] = [mount for mount in plan.mounts if mount.kind == "output"]
    assert (mine.target, mine.source) == ("/run/x/output", str(tmp_path / "out"))
    launcher = Launcher(kind="bubblewrap", program="x", version="1", own_users=True)
    words = " ".join(launcher.command(plan, tmp_path))
    assert f"--bind {mine.source} {mine.target}" in words


def test_a_file_where_the_image_has_no_place_makes_room(tmp_path: Path) -> None:
    tree = make(tmp_path, entry("srv/data/keep", b"x"))
    plan = plan_of(tree, files={"/srv/data/new/deep.json": b"1", "/other": b"2"})
    assert at(plan, "/srv/data") == ["memory"]
    assert at(plan, "/srv/data/keep") == ["bind"]
    assert at(plan, "/") == ["memory"]  # and its directories are put back
    assert at(plan, "/usr") == ["bind"]


def test_the_working_directory_is_there_and_can_be_written_to(tmp_path: Path) -> None:
    tree = make(tmp_path, entry("workspace/keep", b"x"))
    plan = plan_of(tree, {"WorkingDir": "/workspace/"})
    assert (plan.directory, at(plan, "/workspace")) == ("/workspace", ["memory"])
    plan = plan_of(tree, {"WorkingDir": "/no/such"})
    assert (plan.directory, at(plan, "/no/such")) == ("/no/such", ["directory"])


def test_the_command_is_what_an_engine_would_run(tmp_path: Path) -> None:
    tree = make(tmp_path, entry("usr/bin/tini", b""))
    own = {"Entrypoint": ["tini", "--"], "Cmd": ["python3", "-V"]}
    assert plan_of(tree, own, command=()).argv == ("tini", "--", "python3", "-V")
    assert plan_of(tree, own).argv == ("tini", "--", "python3")
    assert plan_of(tree, {"Cmd": ["python3"]}, command=()).argv == ("python3",)


def test_the_variables_are_what_an_engine_would_set(tmp_path: Path) -> None:
    own = {"Env": ["A=image", "B=image", "PATH=/usr/bin", "odd", "=x", 7, "Z=a=b"]}
    env = plan_of(make(tmp_path), own, environment={"B": "job"}).env
    assert dict(env) == {
        "PATH": "/usr/bin", "HOME": "/root", "HOSTNAME": "gpu-provision",
        "A": "image", "B": "job", "Z": "a=b",
    }  # fmt: skip
    assert plan_of(tmp_path / "root").env["PATH"] == DEFAULT_PATH


def test_the_drivers_libraries_come_after_the_images_own(tmp_path: Path) -> None:
    driver = Driver(
        nodes=(("/dev/nvidia0", "/dev/nvidia0"), ("/x", "/dev/../etc/x")),
        binds=(("/h/libcuda.so.5", f"{LIBRARIES}/libcuda.so.5"),),
        links=(("libcuda.so.5", f"{LIBRARIES}/libcuda.so.1"),),
        env=("NVIDIA_X=1",),
    )
    own = {"Env": ["LD_LIBRARY_PATH=/compat:"]}
    plan = plan_of(make(tmp_path), own, driver)
    assert plan.env["LD_LIBRARY_PATH"] == f"/compat:{LIBRARIES}"
    assert plan.env["LIBRARY_PATH"] == LIBRARIES
    assert plan.env["NVIDIA_X"] == "1"
    assert at(plan, f"{LIBRARIES}/libcuda.so.1") == ["link"]
    assert [device.target for device in plan.devices] == ["/dev/nvidia0"]


CUDA = Driver(
    binds=(("/h/libcuda.so.5", f"{LIBRARIES}/libcuda.so.5"), ("/h/smi", f"{PROGRAMS}/nvidia-smi")),
    links=(("libcuda.so.5", f"{LIBRARIES}/libcuda.so.1"), ("/x", "/run/x.so")),
)


def test_the_drivers_libraries_are_in_the_loaders_cache(tmp_path: Path) -> None:
    """As after ldconfig; Triton 2.1 finds libcuda by `ldconfig -p` and in no other way."""
    own = ldcache.CacheEntry(name="libc.so.6", path="/lib/libc.so.6", flags=0x0303)
    cache = ldcache.write_cache([own])
    plan = plan_of(make(tmp_path, entry("etc/ld.so.cache", cache)), {}, CUDA)
    [mount] = [one for one in plan.mounts if one.target == "/etc/ld.so.cache"]
    read = ldcache.read_cache(Path(mount.source).read_bytes())
    assert read is not None
    assert {one.path for one in read} == {
        "/lib/libc.so.6", f"{LIBRARIES}/libcuda.so.5", f"{LIBRARIES}/libcuda.so.1",
    }  # fmt: skip


@cases(
    "entries",
    ("none", [entry("etc/hosts", b"")]),
    ("cut off", [entry("etc/ld.so.cache", b"glibc-ld.so.cache1.1")]),
    ("a folder", [link("etc/ld.so.cache", "/x"), entry("x/y", b"")]),
    ("a circle", [link("etc/ld.so.cache", "/etc/ld.so.cache")]),
)
def test_a_loaders_cache_that_is_none_is_left_as_it_is(entries: list[Any], tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path, *entries), {}, CUDA)
    assert "/etc/ld.so.cache" not in {mount.target for mount in plan.mounts}


@cases(
    "entries path expected",
    ("what is there", [entry("a/f", b"")], "/a/f", ("/a/f", "")),
    ("an absolute link begins at the root", [link("l", "/etc/passwd")], "/l", ("/etc", "passwd")),
    ("above the root is the root", [link("l", "../../../etc")], "/l/x/y", ("/etc", "x/y")),
    ("a link's missing end is missing", [link("l", "no/such")], "/l/f", ("/", "no/such/f")),
    ("dots behind what is missing stay", [], "/a/../b", ("/", "a/../b")),
)
def test_links_lead_nowhere_but_into_the_root(
    tmp_path: Path, entries: list[Any], path: str, expected: tuple[str, str]
) -> None:
    assert resolve(make(tmp_path, *entries), path) == expected


def test_a_hostile_images_links_do_not_move_a_mount(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = make(tmp_path, link("tmp", "/outside"), link("run", "../../outside"))
    plan = plan_of(tree, files={EXPECT: b"{}"})
    assert at(plan, "/outside") == ["memory"]
    assert at(plan, "/outside/gpu-provision/expect.json") == ["bind"]
    for mount in plan.mounts:
        on_host = tree / mount.target.lstrip("/")
        assert on_host.parent.resolve() == on_host.parent  # no link is gone through
        assert not Path(mount.source).is_relative_to(outside)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    tree = make(tmp_path, link("tmp", "/tmp/oldroot/etc"))
    with pytest.raises(SandboxError, match="in a circle"):
        plan_of(tree)


@cases(
    "settings job message",
    ("nothing to run", {}, {"command": ()}, "no command"),
    ("no such program", {}, {"command": ("nosuch",)}, "no program nosuch"),
    ("a directory", {}, {"command": ("/usr/bin",)}, "no program"),
    ("a zero byte", {"Entrypoint": ["a\0b"]}, {}, "zero byte"),
    ("not on its PATH", {"Env": ["PATH=/nosuch"]}, {}, "no program"),
    ("one variable", {"Env": ["A=" + "x" * (3 << 20)]}, {}, "longest of 3,145,731"),
    ("many variables", {"Env": [f"A{i}=1" for i in range(200_000)]}, {}, "200,004 words"),
    ("a command", {"Entrypoint": ["x" * (3 << 20)]}, {}, "longest of 3,145,729"),
    ("a path", {"WorkingDir": "/deep" * 3000}, {}, "a path of 15,000 bytes"),
    ("dots in a file", {}, {"files": {"/a/b/../../../x": b"", "/c": b""}}, None),
)
def test_what_cannot_be_run_is_said_before(
    tmp_path: Path, settings: dict[str, Any], job: dict[str, Any], message: str | None
) -> None:
    tree = make(tmp_path)
    if message is None:
        assert all(".." not in mount.target for mount in plan_of(tree, settings, **job).mounts)
        return
    with pytest.raises((SandboxError, NoProgramError), match=message) as caught:
        plan_of(tree, settings, **job)
    assert caught.value.fix


@pytest.mark.parametrize("config", [{}, {"config": None}, {"config": []}, {"config": {"Env": 1}}])
def test_odd_configurations_are_plain_ones(tmp_path: Path, config: dict[str, Any]) -> None:
    tree = make(tmp_path)
    (tmp_path / "files").mkdir()
    plan = plan_run(tree, config, RunJob(image="x", command=("python3",)), None, tmp_path / "files")
    assert plan.directory == "/"


@pytest.mark.parametrize(
    ("user", "expected"), [("", ""), ("0:0", ""), ("root", ""), ("1000:5", "1000"), (None, "")]
)
def test_another_user_is_noticed(user: object, expected: str) -> None:
    assert image_user({"config": {"User": user}}) == expected


# Commands ------------------------------------------------------------------------------------

SMALL = SandboxPlan(
    mounts=(
        Mount(kind="bind", target="/", source="/r"),
        Mount(kind="memory", target="/tmp"),
        Mount(kind="link", target="/tmp/l", source="x"),
        Mount(kind="directory", target="/w"),
    ),
    devices=(Mount(kind="device", target="/dev/nvidia0", source="/dev/nvidia0"),),
    env={"A": "1"},
    argv=("true",),
    directory="/w",
    shm_bytes=64,
    memory_bytes=96,
)


def bwrap(**fields: Any) -> Launcher:
    told: dict[str, Any] = {
        "kind": "bubblewrap",
        "program": "/b",
        "version": "1",
        "own_users": True,
    }
    return Launcher(**{**told, **fields})


def test_bubblewraps_command(tmp_path: Path) -> None:
    words = " ".join(bwrap().command(SMALL, tmp_path))
    assert "/b --seccomp 9 --unshare-pid --unshare-ipc --unshare-net --unshare-uts" in words
    for part in (
        "--unshare-user --uid 0 --gid 0", "--die-with-parent", "--new-session", "--cap-drop ALL",
        "--as-pid-1", "--clearenv",
        "--ro-bind /r / --perms 1777 --size 96 --tmpfs /tmp --symlink x /tmp/l --dir /w",
        "--proc /proc --ro-bind-try /proc/sys /proc/sys", "--size 64 --tmpfs /dev/shm",
        "--ro-bind /sys /sys --dev-bind /dev/nvidia0 /dev/nvidia0 --remount-ro /dev --setenv A 1",
    ):  # fmt: skip
        assert part in words
    assert words.endswith("--chdir /w -- true")


def test_an_old_bubblewrap_is_not_asked_for_sizes(tmp_path: Path) -> None:
    words = bwrap(sizes=False, own_users=False).command(SMALL, tmp_path)
    assert not {"--size", "--unshare-user", "--uid"} & set(words)


def test_a_persons_command_ends_where_theirs_begins(tmp_path: Path) -> None:
    words = bwrap().command(SMALL, tmp_path, terminal=True)
    assert words[-1] == "--"
    assert "--new-session" not in words


def test_what_bubblewrap_cannot_be_told_is_refused(tmp_path: Path) -> None:
    plan = dataclasses.replace(SMALL, env={f"A{i}": "1" for i in range(4000)})
    with pytest.raises(SandboxError, match="4000 variables") as caught:
        bwrap().command(plan, tmp_path)
    assert caught.value.fix
    assert bwrap(kind="unshare", program="/u").command(plan, tmp_path)


@cases(
    "groups files expected",
    ("beside its own", "0::/user.slice/session-1.scope",
     {"user.slice/cgroup.subtree_control": "memory pids\n"}, ["user.slice"]),
    ("not where processes are not counted", "0::/user.slice/session-1.scope",
     {"user.slice/cgroup.subtree_control": "memory\n"}, []),
    ("the first of all", "0::/", {"cgroup.subtree_control": "cpu memory pids\n"}, [""]),
    ("a container's", "0::/", {}, []),
    ("the first version", "9:name=systemd:/\n8:pids:/a\n4:memory:/b\n2:cpu,cpuacct:/c\n0::/", {},
     ["pids/a", "memory/b"]),
)  # fmt: skip
def test_where_groups_can_be_made(
    tmp_path: Path, groups: str, files: dict[str, str], expected: list[str]
) -> None:
    mounted = tmp_path / "sys/fs/cgroup"
    for name, text in {"../../../proc/self/cgroup": f"{groups}\n", **files}.items():
        file = Path(os.path.normpath(mounted / name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = list(bounds._places_of_groups(tmp_path))
    assert found == [mounted / place for place in expected]


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"], ids=["v2", "v1"])
def test_a_group_has_nine_tenths_of_the_memory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for file in ("pids.max", name):
        (tmp_path / file).write_text("max\n")
    bounds._limit(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "pids.max": "16384",
        name: "3686400",
    }


def test_a_machine_whose_calls_are_not_known_has_no_filter() -> None:
    assert system_call_filter("riscv64") == b""
    assert len(system_call_filter("x86_64")) % 8 == 0


def test_unshares_command_carries_the_plan(tmp_path: Path) -> None:
    words = bwrap(kind="unshare", program="/u").command(SMALL, tmp_path)
    assert {"/u", "--map-root-user", "--kill-child", "--fork", "--net"} <= set(words)
    written = json.loads(Path(words[-1]).read_text())
    assert written["argv"] == ["true"]
    assert written["mounts"][1] == {"kind": "memory", "target": "/tmp", "source": ""}
    assert Path(written["root"]).is_dir()


@cases(
    "problem setting expected",
    ("Debian's switch", "bwrap: No permissions to create new namespace",
     "kernel/unprivileged_userns_clone=0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("no namespaces at all", "unshare: unshare failed: No space left on device",
     "user/max_user_namespaces=0", "sysctl -w user.max_user_namespaces="),
    ("AppArmor, as on Ubuntu 24.04", "bwrap: setting up uid map: Permission denied",
     "kernel/apparmor_restrict_unprivileged_userns=1", "apparmor_restrict_unprivileged_userns=0"),
    ("a container's seccomp profile", "unshare: unshare failed: Operation not permitted", "",
     "seccomp=unconfined"),
    ("bubblewrap in a container that hides /proc",
     "bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "",
     "systempaths=unconfined"),
    ("unshare in a container that hides /proc",
     "sandbox: cannot mount proc on /x/proc: Operation not permitted", "",
     "systempaths=unconfined"),
    ("a library that this user may not read",
     "bwrap: Can't find source path /home/x/lib: Permission denied", "", "namei -l /home/x/lib"),
    ("too old", "bwrap: Unknown option --perms", "", "apt-get install"),
)  # fmt: skip
def test_why_there_is_no_sandbox(tmp_path: Path, problem: str, setting: str, expected: str) -> None:
    if setting:
        name, _, value = setting.partition("=")
        file = tmp_path / "proc/sys" / name
        file.parent.mkdir(parents=True)
        file.write_text(f"{value}\n")
    why, fix = explain(problem, tmp_path)
    assert why
    assert expected in fix


def test_a_host_with_neither_program_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoRunnerError) as caught:
        launch.find_launcher()
    assert "apt-get install" in caught.value.fix


def test_a_program_that_cannot_start_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(NoRunnerError) as caught:
        launch.find_launcher()
    assert "uid map: Permission denied" in caught.value.detail


# Running, with a program in bubblewrap's place --------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], Sandbox]:
    """A sandbox whose launcher is a script, which gets bubblewrap's words."""

    def make_one(script: str) -> Sandbox:
        program = tmp_path / "bwrap"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        launcher = bwrap(program=str(program), version="0.8.0")
        return Sandbox(launcher, tmp_path / "roots", driver=lambda: Driver(notes=("no uvm",)))

    return make_one


def run(sandbox: Sandbox, settings: dict[str, Any] | None = None, **job: Any) -> Any:
    handle = sandbox.prepare(image([layer(PROGRAM)], settings), lambda _: None)
    told = {"command": ("python3",), "memlock_unlimited": False, **job}
    return sandbox.run(RunJob(image=handle, **told), lambda _: None)


def test_a_run_gives_its_two_streams_and_its_end(fake: Callable[[str], Sandbox]) -> None:
    sandbox = fake("echo out; echo err >&2; exit 7")
    result = run(sandbox)
    assert (result.exit_code, result.stdout, result.stderr_tail) == (7, "out\n", "err")
    assert sandbox.name == "sandbox (bubblewrap 0.8.0)"


def test_a_run_that_was_killed_ends_as_a_shell_says_it(fake: Callable[[str], Sandbox]) -> None:
    assert run(fake("echo x; kill -9 $$")).exit_code == 137


def test_limits_that_may_not_be_set_are_noted(fake: Callable[[str], Sandbox]) -> None:
    import resource

    result = run(fake("ulimit -s"), stack_bytes=1 << 20)
    assert result.stdout == "1024\n"
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if hard != resource.RLIM_INFINITY and os.geteuid() != 0:
        notes = run(fake("true"), memlock_unlimited=True).notes
        assert notes == ("ulimit memlock: not permitted on this machine, skipped",)


def test_what_cannot_be_had_as_asked_is_noted(fake: Callable[[str], Sandbox]) -> None:
    result = run(fake("true"), {"User": "1000"}, gpus="cdi")
    assert result.notes[-2:] == ("user 1000: the sandbox runs everything as its own root", "no uvm")
    assert run(fake("true")).notes == ()


def test_a_sandbox_that_does_not_start_is_no_result(fake: Callable[[str], Sandbox]) -> None:
    with pytest.raises(SandboxError, match="did not start") as caught:
        run(fake("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1"))
    assert caught.value.fix


def test_a_run_beyond_its_time_is_ended(fake: Callable[[str], Sandbox]) -> None:
    with pytest.raises(SandboxError, match="timed out"):
        run(fake("sleep 30"), timeout_s=0.2)


def test_removing_takes_the_root_away(fake: Callable[[str], Sandbox], tmp_path: Path) -> None:
    sandbox = fake("true")
    handle = sandbox.prepare(image([layer(PROGRAM)]), lambda _: None)
    sandbox.remove(handle)
    sandbox.remove(handle)
    assert [path.name for path in (tmp_path / "roots").iterdir()] == [".lock"]
    with pytest.raises(SandboxError, match="not unpacked"):
        sandbox.run(RunJob(image=handle, command=("python3",)), lambda _: None)


@cases(
    "arch covered",
    ("its own /proc/cpuinfo is right", "amd64", os.uname().machine == "never"),
    ("an emulated Arm gets Arm's", "arm64", os.uname().machine != "aarch64"),
)
def test_an_emulated_program_is_not_shown_another_processor(
    tmp_path: Path,
    arch: str,
    covered: bool,  # noqa: FBT001
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "tree/usr/bin").mkdir(parents=True)
    (tmp_path / "tree/usr/bin/true").touch()
    job = RunJob(image="x", command=("true",))
    planned = plan_run(tmp_path / "tree", {"architecture": arch}, job, None, tmp_path / "files")
    found = {mount.target: Path(mount.source) for mount in planned.devices}
    assert ("/proc/cpuinfo" in found) is covered
    if covered:
        text = found["/proc/cpuinfo"].read_text()
        assert text.count("processor\t: ") == os.cpu_count()
        assert "CPU implementer\t: 0x41\n" in text
