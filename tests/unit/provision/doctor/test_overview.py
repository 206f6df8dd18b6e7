"""A machine in four lines: what is there, what is missing, and what can be done with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.doctor import Fact, diagnose
from provision.doctor.account import host_is_unfit
from provision.doctor.model import Value
from provision.doctor.overview import overview, without_gpu
from provision.doctor.probes import read_facts
from tests.kit.cases import cases
from tests.kit.doctor_hosts import build, load_host

BUILT = "images can be built"
LAPTOP: dict[str, Value] = {
    "gpu.count": 0,
    "driver.installed": False,
    "docker.installed": False,
    "podman.installed": False,
}
SERVER: dict[str, Value] = {
    "gpu.count": 2,
    "gpu.names": ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
    "driver.installed": True,
    "driver.version": "550.54.15",
    "driver.flavour": "open",
    "driver.cuda": "12.4",
    "docker.installed": True,
    "docker.version": "27.5.1",
    "docker.nvidia_runtime": True,
    "device.gpus": 2,
}
CONTAINER: dict[str, Value] = {
    "machine.container": True,
    "gpu.count": 8,
    "device.gpus": 0,
    "driver.version": "550.54.15",
    "driver.installed": False,
    "docker.installed": False,
    "podman.installed": False,
}
WSL: dict[str, Value] = {
    "wsl": True,
    "device.dxg": True,
    "driver.installed": True,
    "docker.installed": False,
    "podman.installed": False,
}
MACHINES = [
    pytest.param(LAPTOP, "no NVIDIA GPU on the PCI bus", "not installed",
                 "none (not needed to build images)", f"{BUILT}, not GPU-tested",
                 id="a laptop without a GPU"),
    pytest.param({**LAPTOP, "docker.installed": True, "docker.engine": True,
                  "docker.running": False}, "no NVIDIA GPU on the PCI bus", "not installed",
                 "Docker is installed, but not running", f"{BUILT}, not GPU-tested",
                 id="a laptop whose engine is off"),
    pytest.param({**LAPTOP, "docker.installed": True, "docker.version": "27.5.1"},
                 "no NVIDIA GPU on the PCI bus", "not installed", "Docker 27.5.1",
                 f"{BUILT}, not GPU-tested", id="a laptop with an engine"),
    pytest.param({**SERVER, "docker.nvidia_runtime": False, "toolkit.hook": False},
                 "2 x NVIDIA H100 80GB HBM3", "550.54.15, open kernel modules, CUDA up to 12.4",
                 "Docker 27.5.1, no NVIDIA runtime",
                 f"{BUILT}; to test them on the GPU, Docker needs the NVIDIA Container Toolkit",
                 id="a GPU server without the container toolkit"),
    pytest.param({**SERVER, "docker.nvidia_runtime": False, "toolkit.hook": True},
                 "2 x NVIDIA H100 80GB HBM3", "550.54.15, open kernel modules, CUDA up to 12.4",
                 "Docker 27.5.1, no NVIDIA runtime", f"{BUILT} and tested on the GPU",
                 id="a GPU server with the toolkit's hook alone"),
    pytest.param({**LAPTOP, "driver.installed": True}, "no NVIDIA GPU on the PCI bus",
                 "installed, not loaded", "none (not needed to build images)",
                 f"{BUILT}, not GPU-tested", id="an image of a GPU machine, started without one"),
    pytest.param(SERVER, "2 x NVIDIA H100 80GB HBM3",
                 "550.54.15, open kernel modules, CUDA up to 12.4", "Docker 27.5.1, NVIDIA runtime",
                 f"{BUILT} and tested on the GPU", id="a GPU server"),
    pytest.param({**SERVER, "docker.nvidia_runtime": False, "docker.cdi": True,
                  "podman.version": "5.4.0"}, "2 x NVIDIA H100 80GB HBM3",
                 "550.54.15, open kernel modules, CUDA up to 12.4",
                 "Docker 27.5.1, CDI; podman 5.4.0", f"{BUILT} and tested on the GPU",
                 id="a GPU server with CDI and two engines"),
    pytest.param({**LAPTOP, "gpu.count": 1, "gpu.bound_to": ("none",)},
                 "1 NVIDIA GPU on the PCI bus", "not installed",
                 "none (not needed to build images)",
                 f"{BUILT}; whether they can be GPU-tested is unknown",
                 id="a GPU without a driver, of which nothing else is known"),
    pytest.param({**LAPTOP, "gpu.count": 1, "gpu.bound_to": ("vfio-pci",), "modules.vfio": True},
                 "1 NVIDIA GPU on the PCI bus, held for virtual machines (vfio-pci)",
                 "not installed", "none (not needed to build images)",
                 f"{BUILT}; whether they can be GPU-tested is unknown",
                 id="a GPU for virtual machines"),
    pytest.param(CONTAINER, "8 NVIDIA GPUs on the PCI bus, none in this container",
                 "550.54.15; its libraries are not in this container",
                 "none (not needed to build images)",
                 f"{BUILT}, not GPU-tested: this container was started without GPUs (--gpus all)",
                 id="a job in a container without the GPUs of its machine"),
    pytest.param({**CONTAINER, "docker.installed": True, "docker.running": False, "gpu.count": 0,
                  "driver.version": ""}, "no NVIDIA GPU on the PCI bus", "not installed",
                 "the docker command, but no engine (its socket is not mounted in this container)",
                 f"{BUILT}, not GPU-tested", id="a CI job in a container with Docker's client"),
    pytest.param(WSL, "given by Windows", "the one of Windows", "none (not needed to build images)",
                 f"{BUILT}; whether they can be GPU-tested is unknown",
                 id="WSL with NVIDIA's driver on Windows"),
    pytest.param({**WSL, "driver.cuda": "12.7"}, "given by Windows",
                 "the one of Windows, CUDA up to 12.7", "none (not needed to build images)",
                 f"{BUILT} and tested on the GPU", id="WSL whose driver answers"),
    pytest.param({**WSL, "driver.installed": False}, "no NVIDIA GPU is given by Windows",
                 "not installed", "none (not needed to build images)", f"{BUILT}, not GPU-tested",
                 id="WSL on a laptop with another GPU"),
    pytest.param({**SERVER, "docker.version": "", "docker.running": True},
                 "2 x NVIDIA H100 80GB HBM3", "550.54.15, open kernel modules, CUDA up to 12.4",
                 "Docker runs, but does not answer this user", f"{BUILT} and tested on the GPU",
                 id="a user outside the docker group"),
    pytest.param({}, "unknown: the PCI bus cannot be read here", "unknown", "unknown",
                 f"{BUILT}; whether they can be GPU-tested is unknown",
                 id="a machine of which nothing can be read"),
]  # fmt: skip


def lines(facts: dict[str, Value], *, unfit: bool = False) -> list[str]:
    known = {name: Fact(value=value, where="/there") for name, value in facts.items()}
    return [one.says for one in overview(known, unfit=unfit)]


@pytest.mark.parametrize(("facts", "gpu", "driver", "engine", "here"), MACHINES)
def test_a_machine_is_told_in_four_lines(
    facts: dict[str, Value], gpu: str, driver: str, engine: str, here: str
) -> None:
    assert lines(facts) == [gpu, driver, engine, here]


@cases(
    "facts why",
    ("the driver answers for its GPUs", SERVER, ""),
    ("nothing is known", {}, ""),
    ("a laptop", LAPTOP, "no NVIDIA GPU is on the PCI bus"),
    ("a container that sees none of those that its host has", {**SERVER, **CONTAINER},
     "the container was given none of the machine's GPUs"),
    ("a GPU whose driver is not loaded", {**LAPTOP, "gpu.count": 1, "driver.loaded": False},
     "the driver is not loaded"),
    ("a GPU for virtual machines",
     {**LAPTOP, "gpu.count": 1, "gpu.bound_to": ("vfio-pci",), "driver.loaded": False},
     "the GPU is held for virtual machines (vfio-pci)"),
    ("a WSL with its GPU", WSL, ""),
    ("a WSL without one", {**WSL, "driver.installed": False}, "no NVIDIA GPU is given by Windows"),
)  # fmt: skip
def test_why_no_program_sees_a_gpu(facts: dict[str, Value], why: str) -> None:
    known = {name: Fact(value=value, where="test") for name, value in facts.items()}
    assert without_gpu(known) == why


def test_a_machine_that_is_unfit_promises_no_test() -> None:
    expected = f"{BUILT}; GPU tests will fail until the error above is fixed"
    assert lines(SERVER, unfit=True)[-1] == expected
    assert lines(LAPTOP, unfit=True)[-1] == f"{BUILT}, not GPU-tested"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("dgx", "2 x NVIDIA B200"),
        ("ubuntu-workstation", "2 NVIDIA GPUs on the PCI bus"),
        ("opensuse", "no NVIDIA GPU on the PCI bus"),
        ("wsl2", "given by Windows"),
    ],
)
def test_recorded_machines_are_told(name: str, first: str, tmp_path: Path) -> None:
    found = overview(read_facts(build(load_host(name), tmp_path)), unfit=False)
    assert found[0].says == first
    assert all(one.where for one in found[:3])


# --- whole machines, from their files to the answer ----------------------------------------------

BARE = {
    "/proc/version": "Linux version 6.8.0-51-generic\n",
    "/proc/modules": "ext4 1 0 - Live 0x0\n",
    "/proc/1/cgroup": "0::/init.scope\n",
    "/proc/cpuinfo": "flags\t\t: fpu\n",
    "/etc/os-release": "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\n",
    "/etc/ld.so.cache": "",
    "/var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nVersion: 2.39\n\n",
    "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    "/sys/bus/pci/devices/0000:00:02.0/device": "0x9bc4\n",
}
CARD = {
    "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
    "/sys/bus/pci/devices/0000:01:00.0/device": "0x2684\n",
}


@cases(
    "files codes gpu here",
    ("a laptop with another maker's GPU", BARE, [], "no NVIDIA GPU on the PCI bus",
     f"{BUILT}, not GPU-tested"),
    ("a GPU without a driver", {**BARE, **CARD}, ["driver-not-installed"],
     "1 NVIDIA GPU on the PCI bus", f"{BUILT}; GPU tests will fail until the error above is fixed"),
    ("a container on that machine", {**BARE, **CARD, "/.dockerenv": "", "/dev/null": ""}, [],
     "1 NVIDIA GPU on the PCI bus, none in this container",
     f"{BUILT}, not GPU-tested: this container was started without GPUs (--gpus all)"),
    ("WSL without an NVIDIA GPU",
     {**{path: text for path, text in BARE.items() if "/pci/" not in path},
      "/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2\n", "/dev/dxg": ""}, [],
     "no NVIDIA GPU is given by Windows", f"{BUILT}, not GPU-tested"),
)  # fmt: skip
def test_a_whole_machine(
    files: dict[str, str], codes: list[str], gpu: str, here: str, tmp_path: Path
) -> None:
    machine = build({"files": files, "env": {"PATH": "/usr/bin"}}, tmp_path)
    facts = read_facts(machine)
    diagnosis = diagnose((), facts)
    readings = overview(facts, unfit=host_is_unfit(diagnosis))
    assert [cause.code for cause in diagnosis.causes] == codes
    assert (readings[0].says, readings[-1].says) == (gpu, here)
