"""The probes on whole hosts: what they find, that all facts can be found, and what cannot hurt."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.doctor import diagnose
from provision.doctor.knowledge import load
from provision.doctor.model import Fact, Value
from provision.doctor.probes import PROBES, kernel_log, read_facts
from provision.host.machine import Answer, ProbedMachine, Question
from provision.host.runner import ProgramResult, ProgramRunner, local_runner
from tests.kit.cases import cases
from tests.kit.doctor_hosts import NAMES, build, load_host

KINDS: dict[str, type] = {"bool": bool, "int": int, "str": str, "list": tuple}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Fact]]:
    """The facts of every host, by its name."""
    return {
        name: read_facts(build(load_host(name), tmp_path_factory.mktemp(name))) for name in NAMES
    }


# What a recorded host shows of its devices, which are root's, only root can rebuild.
ROOTS_DEVICES = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of root's")


@ROOTS_DEVICES
def test_every_fact_of_the_knowledge_is_found_on_some_host(
    found: dict[str, dict[str, Fact]],
) -> None:
    seen = {name for facts in found.values() for name in facts}
    stated_by_logs_alone = {
        "container.without_gpus",
        "containerd.version",
        "extension.compiled",
        "flashinfer.compiled",
        "gpu.capability",
        "nccl.ranks_differ",
        "operator.version",
        "toolkits.headers",
        "wheels.headers",
        "wheels.nvcc",
    }
    assert seen == set(load().facts) - stated_by_logs_alone


def test_every_fact_has_the_kind_that_the_knowledge_declares(
    found: dict[str, dict[str, Fact]],
) -> None:
    declared = {name: KINDS[fact.kind] for name, fact in load().facts.items()}
    wrong = {
        (host, name): fact
        for host, facts in found.items()
        for name, fact in facts.items()
        if type(fact.value) is not declared[name] or not fact.where
    }
    assert not wrong


TELLING: dict[str, dict[str, Value]] = {
    "ubuntu-workstation": {
        "driver.versions_differ": True,
        "driver.nvml_error": "Driver/library version mismatch",
        "driver.branches_mixed": True,
        "driver.dkms": "installed",
        "gpu.bound_to": ("nvidia", "vfio-pci"),
        "gpu.compute_capabilities": ("8.9", "8.6"),
        "gpu.geforce": True,
        "gpu.link_narrow": True,
        "gpu.lost": True,
        "device.mode": "0660",
        "device.readable": False,
        "docker.running": True,
        "docker.daemon_json": "invalid",
        "docker.user_in_group": True,
        "docker.group_active": False,
        "cdi.stale": True,
        "cdi.conflict": True,
        "cdi.missing": ("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",),
        "library.compat_in_use": True,
        "library.compat_version": "515.65.01",
        "library.stubs_on_path": True,
        "library.cudnn_several": True,
        "torch.cuda": "11.7",
        "torchvision.mismatch": True,
        "memory.limit_mib": 32768,
        "limit.memlock_low": False,
        "network.mtu_differs": True,
        "network.infiniband_down": True,
        "network.index_configured": "https://pypi.corp.example/simple",
    },
    "dgx": {
        "driver.flavour": "open",
        "driver.dkms": "failed",
        "gpu.needs_open_modules": True,
        "gpu.geforce": False,
        "gpu.throttled": "thermal",
        "gpu.ecc_uncorrected": 3,
        "mig.instances": 2,
        "fabric.needed": True,
        "fabric.running": True,
        "fabric.version_differs": True,
        "pcie.acs": True,
        "docker.flags_conflict": True,
        "toolkit.config_invalid": True,
        "cgroup.reload_trap": False,
        "vgpu.licensed": False,
    },
    "wsl2": {
        "wsl.version": 2,
        "docker.desktop": True,
        "driver.installed": True,
        "driver.nvidia_smi": True,
        "device.dxg": True,
    },
    "fedora-rootless": {
        "os.family": "rhel",
        "docker.rootless": True,
        "docker.root_dir": "/home/frank/images",
        "docker.cgroup_driver": "systemd",
        "modules.nouveau": True,
        "modules.nova": True,
        "driver.loaded": False,
        "gpu.bound_to": ("none",),
        "podman.subids": False,
        "toolkit.installed": True,
    },
    "snap": {"docker.snap": True, "docker.engine": True, "docker.daemon_json": "valid"},
    "opensuse": {"os.family": "suse", "gpu.count": 0},
    "arch": {
        "kernel.reboot_required": True,
        "driver.branches_mixed": True,
        "toolkit.root_empty": True,
    },
    "container": {
        "machine.container": True,
        "library.compat_in_use": True,
        "driver.versions_differ": False,
        "torch.cpu": True,
        "torch.cuda": "",
    },
}


@ROOTS_DEVICES
@pytest.mark.parametrize("name", NAMES)
def test_a_host_shows_what_is_wrong_with_it(name: str, found: dict[str, dict[str, Fact]]) -> None:
    values = {fact: found[name].get(fact) for fact in TELLING[name]}
    assert {fact: one.value if one else None for fact, one in values.items()} == TELLING[name]


ABSENT = {
    "wsl2": ("driver.loaded", "driver.version", "driver.versions_differ", "gpu.count"),
    "arch": ("docker.version", "gpu.count", "cgroup.version", "machine.container"),
    "container": ("driver.module_built", "driver.dkms", "kernel.headers"),
    "fedora-rootless": ("gpu.lost", "docker.version", "driver.version"),
}


@pytest.mark.parametrize("name", ABSENT)
def test_what_cannot_be_known_is_absent(name: str, found: dict[str, dict[str, Fact]]) -> None:
    assert not set(ABSENT[name]) & set(found[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_alone_tells_what_its_files_tell(name: str, tmp_path: Path) -> None:
    host = load_host(name)
    with_programs = read_facts(build(host, tmp_path / "with"))
    alone = read_facts(build(host, tmp_path / "alone", with_programs=False))
    assert alone["os.id"] == with_programs["os.id"]
    assert not {fact.where for fact in alone.values()} & {"nvml", "docker info", "dmesg"}


def test_a_healthy_machine_without_a_gpu_is_read_within_the_limit() -> None:
    env = dict(os.environ)
    facts = read_facts(ProbedMachine(env=env, run=local_runner(env)))
    declared = {name: KINDS[fact.kind] for name, fact in load().facts.items()}
    assert all(type(fact.value) is declared[name] for name, fact in facts.items())
    assert facts["os.id"].where == "/etc/os-release"


def test_a_program_that_hangs_costs_only_its_own_facts(tmp_path: Path) -> None:
    hanging = threading.Event()

    def ask(question: Question) -> Answer:
        if question[0] == "run":
            hanging.wait(60)
            return None
        assert machine.source is not None
        return machine.source(question)

    machine = build(load_host("dgx"), tmp_path)
    started = time.monotonic()
    try:
        facts = read_facts(
            ProbedMachine(root=machine.root, env=machine.env, source=ask), limit_s=5.0
        )
    finally:
        hanging.set()
    assert time.monotonic() - started < 30
    assert facts["driver.version"].value == "570.86.15"
    assert "docker.version" not in facts


def test_a_source_that_raises_takes_down_no_other_probe(tmp_path: Path) -> None:
    machine = build(load_host("dgx"), tmp_path)

    def ask(question: Question) -> Answer:
        if question == ("names", "/dev"):
            raise RuntimeError("a fault")
        assert machine.source is not None
        return machine.source(question)

    facts = read_facts(ProbedMachine(env=machine.env, source=ask))
    assert "device.gpus" not in facts
    assert facts["driver.branch"].value == 570


BROKEN = (
    b"",
    b"\0" * 100,
    b"\xff\xfe\x00",
    b"{" * 5000,
    b"[" * 50_000,
    b" \n" * 5000,
    b"a: " * 5000,
)


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_files_of_any_content_break_nothing(content: bytes, tmp_path: Path) -> None:
    machine = build(load_host("ubuntu-workstation"), tmp_path)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and not path.is_symlink() and os.access(path, os.W_OK):
            path.write_bytes(content)
    asked = ProbedMachine(env=machine.env, source=machine.source)
    declared = {name: KINDS[fact.kind] for name, fact in load().facts.items()}
    for probe in PROBES:
        for name, fact in probe(asked):
            assert type(fact.value) is declared[name]


@pytest.mark.parametrize("printed", ["", "\0", "{}", "[" * 100_000, "<nvidia_smi_log>" * 1000])
def test_programs_may_print_anything(printed: str, tmp_path: Path) -> None:
    machine = build(load_host("ubuntu-workstation"), tmp_path)

    def ask(question: Question) -> Answer:
        if question[0] == "run":
            return {"code": 0, "out": printed, "err": printed, "problem": None}
        assert machine.source is not None
        return machine.source(question)

    asked = ProbedMachine(env=machine.env, source=ask)
    assert all(fact.where for probe in PROBES for _, fact in probe(asked))


@pytest.mark.parametrize("way", ["link", "script"])
def test_podmans_imitation_of_docker_is_no_docker(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "usr/bin"
    folder.mkdir(parents=True)
    (folder / "podman").write_bytes(b"\x7fELF" + bytes(10_000))
    (folder / "podman").chmod(0o755)
    if way == "link":
        (folder / "docker").symlink_to("podman")
    else:
        (folder / "docker").write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')
        (folder / "docker").chmod(0o755)
    facts = read_facts(ProbedMachine(root=tmp_path))
    assert facts["docker.installed"].value is False
    assert facts["podman.installed"].value is True
    assert "docker.engine" not in facts


NOBODY = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."


@cases(
    "programs printed engine",
    ("the client alone", ["docker"], {"ServerErrors": [NOBODY]}, False),
    ("an engine, too", ["docker", "dockerd"], {"ServerErrors": [NOBODY]}, True),
    ("an old client, which prints no JSON", ["docker", "dockerd"], None, True),
)
def test_a_silent_docker_is_told_from_one_without_an_engine(
    programs: list[str], printed: dict[str, Any] | None, *, engine: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "usr/bin"
    folder.mkdir(parents=True)
    for name in programs:
        (folder / name).write_bytes(b"\x7fELF" + bytes(10_000))
        (folder / name).chmod(0o755)

    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        del timeout_s
        if "info" not in argv:
            return ProgramResult(problem="not recorded")
        out = "" if printed is None else json.dumps(printed)
        return ProgramResult(code=1, out=out, err=NOBODY if printed is None else "")

    facts = read_facts(ProbedMachine(root=tmp_path, env={"PATH": "/usr/bin"}, run=run))
    assert facts["docker.engine"].value is engine
    assert facts["docker.error"].value == NOBODY
    assert "docker.rootless" not in facts


def test_a_rootless_engine_that_is_down_is_told_by_its_socket(tmp_path: Path) -> None:
    folder = tmp_path / "usr/bin"
    folder.mkdir(parents=True)
    for name in ("docker", "dockerd"):
        (folder / name).write_bytes(b"\x7fELF" + bytes(10_000))
        (folder / name).chmod(0o755)
    said = NOBODY.replace("/var/run", "/run/user/1000")

    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        del timeout_s
        return ProgramResult(code=1, err=said if "info" in argv else "")

    facts = read_facts(ProbedMachine(root=tmp_path, env={"PATH": "/usr/bin"}, run=run))
    assert facts["docker.rootless"].value is True
    facts |= {
        name: Fact(value=False, where="/proc") for name in ("docker.running", "machine.container")
    }
    (cause,) = diagnose((), facts).causes
    assert [fix.run for fix in cause.fixes] == ["systemctl --user start docker"]


@pytest.mark.parametrize(("configured", "differs"), [("{}", True), ('{"mtu": 1400}', False)])
def test_the_engines_own_mtu_goes_before_its_bridges(
    configured: str, *, differs: bool, tmp_path: Path
) -> None:
    files = {
        "etc/docker/daemon.json": configured,
        "proc/net/route": "head\neth0 00000000 0101A8C0 0003 0 0 0 00000000 0 0 0\n",
        "sys/class/net/eth0/mtu": "1400\n",
        "sys/class/net/docker0/mtu": "1500\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_facts(ProbedMachine(root=tmp_path))["network.mtu_differs"].value is differs


def test_a_vast_config_is_not_parsed(tmp_path: Path) -> None:
    place = tmp_path / "etc/nvidia-container-runtime/config.toml"
    place.parent.mkdir(parents=True)
    place.write_text("1." * (1 << 19))
    facts = read_facts(ProbedMachine(root=tmp_path))
    assert "toolkit.config_invalid" not in facts


@cases(
    "root there empty",
    ("it is not there", "/run/nvidia/driver", None, True),
    ("nothing is mounted", "/run/nvidia/driver", "run/nvidia/driver", True),
    ("the driver is up", "/run/nvidia/driver", "run/nvidia/driver/usr", False),
    ("the host itself", "/", None, None),
)
def test_the_root_of_a_driver_container(
    tmp_path: Path, root: str, there: str | None, *, empty: bool | None
) -> None:
    place = tmp_path / "etc/nvidia-container-runtime/config.toml"
    place.parent.mkdir(parents=True)
    place.write_text(f'[nvidia-container-cli]\nroot = "{root}"\n')
    if there:
        (tmp_path / there).mkdir(parents=True)
    facts = read_facts(ProbedMachine(root=tmp_path))
    assert (facts["toolkit.root_empty"].value if "toolkit.root_empty" in facts else None) is empty


def test_a_fifo_where_a_file_should_be_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/os-release")
    assert ProbedMachine(root=tmp_path).text("/etc/os-release") is None


def test_a_larger_file_than_the_limit_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 11)
    machine = ProbedMachine(root=tmp_path)
    assert machine.data("/big", 10) is None
    assert machine.data("/big", 11) == b"x" * 11
    assert machine.tail("/big", 4) == b"xxxx"


def test_links_stay_inside_the_root(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "root/etc/up").symlink_to("../../secret")
    (tmp_path / "root/etc/absolute").symlink_to("/etc/hostname")
    (tmp_path / "root/etc/round").symlink_to("round")
    machine = ProbedMachine(root=tmp_path / "root")
    assert machine.text("/etc/up") is None
    assert machine.text("/../secret") is None
    assert machine.text("/etc/absolute") is None
    assert machine.text("/etc/round") is None
    assert machine.real("/etc/absolute") is None
    assert machine.link("/etc/up") == "../../secret"


def test_a_path_with_a_nul_is_no_path(tmp_path: Path) -> None:
    assert ProbedMachine(root=tmp_path).text("/a\0b") is None
    assert not ProbedMachine(root=tmp_path).exists("/a\0b")


def test_each_program_is_started_once(tmp_path: Path) -> None:
    machine = build(load_host("ubuntu-workstation"), tmp_path)
    started: list[Question] = []

    def ask(question: Question) -> Answer:
        if question[0] == "run":
            started.append(question)
        assert machine.source is not None
        return machine.source(question)

    read_facts(ProbedMachine(env=machine.env, source=ask))
    assert len(started) == len(set(started)) > 5


def printing(text: str) -> ProgramRunner:
    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        del argv, timeout_s
        return ProgramResult(code=0, out=text)

    return run


@cases(
    "files run expected",
    ("by dmesg", {"/usr/bin/dmesg": ""}, printing("NVRM: Xid"), ("dmesg", b"NVRM: Xid")),
    ("by a file", {"/var/log/kern.log": "NVRM\n"}, None, ("/var/log/kern.log", b"NVRM\n")),
    ("by a file where dmesg may not", {"/usr/bin/dmesg": "", "/var/log/messages": "x"},
     printing(""), ("/var/log/messages", b"x")),
    ("by none", {}, None, None),
)  # fmt: skip
def test_the_kernel_log_is_read(
    files: dict[str, str],
    run: ProgramRunner | None,
    expected: tuple[str, bytes] | None,
    tmp_path: Path,
) -> None:
    for path, text in files.items():
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
    assert kernel_log(ProbedMachine(root=tmp_path, run=run)) == expected
