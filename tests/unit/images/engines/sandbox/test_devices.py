"""The host's driver is found in made-up hosts, by CDI or by looking."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engines.sandbox.devices import (
    LIBRARIES,
    PROGRAMS,
    Driver,
    cached_libraries,
    discover,
    find_driver,
    soname,
)
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.programs import run_program
from tests.unit.images.system.test_cdi import SPEC

MACHINE = os.uname().machine
LIB = f"usr/lib/{MACHINE}-linux-gnu"


def library(root: Path, path: str, name: str | None = None, *, machine: str = MACHINE) -> Path:
    """An ELF file with a name of its own; an "i386" one is of 32 bits."""
    content = elf(soname=name, machine={"x86_64": 62, "aarch64": 183, "i386": 3}[machine])
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if machine != "i386" else content[:4] + b"\1" + content[5:])
    return file


def host(root: Path, version: str = "535.104.05") -> Path:
    """A host with a driver, as a distribution puts it."""
    for name, wants in (
        ("libcuda", "libcuda.so.1"),
        ("libnvidia-ml", "libnvidia-ml.so.1"),
        ("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"),
        ("libnvidia-nvvm", "libnvidia-nvvm.so.4"),
        ("libnvidia-gpucomp", f"libnvidia-gpucomp.so.{version}"),
        ("libnvidia-glcore", f"libnvidia-glcore.so.{version}"),
    ):
        library(root, f"{LIB}/{name}.so.{version}", wants)
        link = root / LIB / wants
        if not link.exists():
            link.symlink_to(f"{name}.so.{version}")
    library(root, "usr/bin/nvidia-smi").chmod(0o755)
    for node in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        (root / "dev" / node).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / node).touch()
    return root


def places(driver: Driver) -> dict[str, str]:
    """What is at each place of the sandbox, by its last name."""
    return {path: Path(source).name for source, path in (*driver.binds, *driver.links)}


def test_a_driver_is_found_by_looking(tmp_path: Path) -> None:
    driver = find_driver(host(tmp_path))
    real = "535.104.05"
    assert places(driver) == {
        f"{LIBRARIES}/libcuda.so.{real}": f"libcuda.so.{real}",
        f"{LIBRARIES}/libcuda.so.1": f"libcuda.so.{real}",
        f"{LIBRARIES}/libcuda.so": "libcuda.so.1",
        f"{LIBRARIES}/libnvidia-ml.so.{real}": f"libnvidia-ml.so.{real}",
        f"{LIBRARIES}/libnvidia-ml.so.1": f"libnvidia-ml.so.{real}",
        f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{real}": f"libnvidia-ptxjitcompiler.so.{real}",
        f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.1": f"libnvidia-ptxjitcompiler.so.{real}",
        f"{LIBRARIES}/libnvidia-nvvm.so.{real}": f"libnvidia-nvvm.so.{real}",
        f"{LIBRARIES}/libnvidia-nvvm.so.4": f"libnvidia-nvvm.so.{real}",
        f"{LIBRARIES}/libnvidia-gpucomp.so.{real}": f"libnvidia-gpucomp.so.{real}",
        f"{PROGRAMS}/nvidia-smi": "nvidia-smi",
    }
    assert [path for _, path in driver.nodes] == [
        "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm",
        "/dev/nvidia-caps/nvidia-cap1",
    ]  # fmt: skip
    assert driver.notes == ()


def test_another_drivers_leftovers_are_left(tmp_path: Path) -> None:
    host(tmp_path)
    library(tmp_path, f"{LIB}/libnvidia-ml.so.470.1", "libnvidia-ml.so.1")
    library(tmp_path, f"{LIB}/libnvidia-container.so.1.13.5", "libnvidia-container.so.1")
    library(tmp_path, f"{LIB}/libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4")
    names = set(places(discover(tmp_path)).values())
    assert not names & {"libnvidia-ml.so.470.1", "libnvidia-container.so.1.13.5"}
    assert "libnvidia-nvvm70.so.4" in names


def test_libraries_of_another_machine_are_left(tmp_path: Path) -> None:
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    library(tmp_path, "usr/lib/libcuda.so.1", "libcuda.so.1", machine="i386")
    library(tmp_path, "usr/lib64/libcuda.so.1", "libcuda.so.1", machine=other)
    (tmp_path / "usr/lib/libnvidia-ml.so.1").write_text("INPUT(x)")
    assert discover(tmp_path).binds == ()


def test_a_script_in_the_place_of_nvidia_smi_is_passed_over(tmp_path: Path) -> None:
    """Such a script runs the program at its place on the host, which is another in a sandbox."""
    root = host(tmp_path)
    script = root / "usr/bin/nvidia-smi"
    script.write_text("#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n")
    assert f"{PROGRAMS}/nvidia-smi" not in places(find_driver(root))
    library(root, "usr/local/nvidia/bin/nvidia-smi").chmod(0o755)
    bound = {path: source for source, path in find_driver(root).binds}
    assert bound[f"{PROGRAMS}/nvidia-smi"] == str(root / "usr/local/nvidia/bin/nvidia-smi")


def test_a_host_without_a_driver_gives_nothing(tmp_path: Path) -> None:
    assert find_driver(tmp_path) == Driver()


def test_the_cdi_specification_goes_first(tmp_path: Path) -> None:
    host(tmp_path)
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(SPEC)
    (tmp_path / "dev/nvidia-modeset").touch()
    driver = find_driver(tmp_path)
    assert places(driver) == {
        f"{LIBRARIES}/libcuda.so.535.104.05": "libcuda.so.535.104.05",
        f"{LIBRARIES}/libcuda.so.1": "libcuda.so.535.104.05",
        f"{LIBRARIES}/libcuda.so": "libcuda.so.1",
        f"{LIBRARIES}/libnvidia-ml.so.535.104.05": "libnvidia-ml.so.535.104.05",
        f"{LIBRARIES}/libnvidia-ml.so.1": "libnvidia-ml.so.535.104.05",
        f"{PROGRAMS}/nvidia-smi": "nvidia-smi",
    }
    assert {path for _, path in driver.nodes} == {
        "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1",
    }  # fmt: skip
    assert driver.env == ()


def test_a_specification_that_is_not_understood_is_said_and_left_out(tmp_path: Path) -> None:
    host(tmp_path)
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/a.yaml").write_text("kind: *anchor nvidia.com/gpu\n")
    (tmp_path / "etc/cdi/b.json").write_text("{")
    (tmp_path / "etc/cdi/c.yaml").write_text("kind: vendor.com/nic\ndevices: []\n")
    driver = find_driver(tmp_path)
    assert len(driver.notes) == 2
    assert f"{LIBRARIES}/libcuda.so.1" in places(driver)


def test_a_stale_specification_is_said(tmp_path: Path) -> None:
    host(tmp_path, "550.54.14")
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(SPEC)
    notes = find_driver(tmp_path).notes
    assert [note for note in notes if "libcuda.so.535.104.05: named by the CDI" in note]


def test_wsl_keeps_its_libraries_together(tmp_path: Path) -> None:
    library(tmp_path, "usr/lib/wsl/lib/libcuda.so.1", "libcuda.so.1")
    library(tmp_path, "usr/lib/wsl/lib/libdxcore.so", "libdxcore.so")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    driver = find_driver(tmp_path)
    assert driver.binds == ((str(tmp_path / "usr/lib/wsl"), "/usr/lib/wsl"),)
    assert ("/usr/lib/wsl/lib/libcuda.so.1", f"{LIBRARIES}/libcuda.so.1") in driver.links
    assert driver.nodes == ((str(tmp_path / "dev/dxg"), "/dev/dxg"),)
    assert driver.notes == ()


STORE = "/usr/lib/wsl/drivers/nvmdi.inf_amd64_f55cb1d07ac1033f"
# As nvidia-ctk 1.17 writes it (github.com/docker/buildx pull request 3320, a CI run).
WSL_SPEC = f"""\
---
cdiVersion: 0.3.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - {STORE}/nvidia-smi::/usr/bin/nvidia-smi
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/wsl/lib/libdxcore.so
    hostPath: /usr/lib/wsl/lib/libdxcore.so
  - containerPath: {STORE}/libcuda.so.1.1
    hostPath: {STORE}/libcuda.so.1.1
  - containerPath: {STORE}/libnvidia-ml.so.1
    hostPath: {STORE}/libnvidia-ml.so.1
  - containerPath: {STORE}/nvcubins.bin
    hostPath: {STORE}/nvcubins.bin
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/dxg
  name: all
kind: nvidia.com/gpu
"""


@pytest.mark.parametrize("named", [True, False], ids=["named", "left out by the generator"])
def test_a_specification_for_wsl_brings_what_its_libcuda_needs(
    tmp_path: Path, *, named: bool
) -> None:
    library(tmp_path, f"{STORE}/libcuda.so.1.1"[1:], "libcuda.so.1")
    library(tmp_path, f"{STORE}/libnvidia-ml.so.1"[1:], "libnvidia-ml.so.1")
    library(tmp_path, "usr/lib/wsl/lib/libdxcore.so", "libdxcore.so")
    (tmp_path / STORE[1:] / "nvcubins.bin").touch()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    (tmp_path / "etc/cdi").mkdir(parents=True)
    dxcore = """\
  - containerPath: /usr/lib/wsl/lib/libdxcore.so
    hostPath: /usr/lib/wsl/lib/libdxcore.so
"""
    assert dxcore in WSL_SPEC
    spec = WSL_SPEC if named else WSL_SPEC.replace(dxcore, "")
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(spec)
    driver = find_driver(tmp_path)
    links = {path: target for target, path in driver.links}
    assert links[f"{LIBRARIES}/libcuda.so.1"] == f"{STORE}/libcuda.so.1.1"
    assert links[f"{LIBRARIES}/libcuda.so"] == "libcuda.so.1"
    assert links[f"{LIBRARIES}/libnvidia-ml.so.1"] == f"{STORE}/libnvidia-ml.so.1"
    assert links[f"{LIBRARIES}/libdxcore.so"] == "/usr/lib/wsl/lib/libdxcore.so"
    bound = {path for _, path in driver.binds}
    assert bound == {
        f"{STORE}/libcuda.so.1.1",
        f"{STORE}/libnvidia-ml.so.1",
        f"{STORE}/nvcubins.bin",
        "/usr/lib/wsl/lib/libdxcore.so",
    }
    assert driver.nodes == ((str(tmp_path / "dev/dxg"), "/dev/dxg"),)
    assert driver.notes == ()


@cases(
    "missing note",
    ("no node for CUDA's memory", "dev/nvidia-uvm", "nvidia-modprobe"),
    ("no libcuda", f"{LIB}/libcuda.so*", "libcuda.so.1 was not found"),
)
def test_what_will_fail_is_said(tmp_path: Path, missing: str, note: str) -> None:
    host(tmp_path)
    for file in list(tmp_path.glob(missing)):
        file.unlink()
    (found,) = find_driver(tmp_path).notes
    assert note in found


@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_damaged_cache_gives_nothing_or_names(noise: bytes, cut: int) -> None:
    whole = cache_of([("libcuda.so.1", "/lib/libcuda.so.1")])
    for content in (noise, whole[:cut], whole[:cut] + noise):
        for name, path in cached_libraries(content):
            assert name
            assert path.startswith("/")


def cache_of(libraries: Sequence[tuple[str, str]]) -> bytes:
    header, row = struct.Struct("=20sIIB3xI12x"), struct.Struct("=iIIIQ")
    at = header.size + row.size * len(libraries)
    rows, strings = b"", b""
    for name, path in libraries:
        key = at + len(strings)
        strings += name.encode() + b"\0"
        value = at + len(strings)
        strings += path.encode() + b"\0"
        rows += row.pack(0x0303, key, value, 0, 0)
    magic = b"glibc-ld.so.cache1.1"
    return header.pack(magic, len(libraries), len(strings), 2, 0) + rows + strings


def test_the_loaders_cache_names_places_that_no_distribution_uses(tmp_path: Path) -> None:
    library(tmp_path, "opt/driver/libcuda.so.535.1", "libcuda.so.1")
    (tmp_path / "opt/driver/libcuda.so.1").symlink_to("libcuda.so.535.1")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        cache_of([("libcuda.so.1", "/opt/driver/libcuda.so.1")])
    )
    assert places(discover(tmp_path))[f"{LIBRARIES}/libcuda.so.1"] == "libcuda.so.535.1"


def test_the_cache_is_read_as_ldconfig_reads_it() -> None:
    ldconfig = shutil.which("ldconfig", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    cache = Path("/etc/ld.so.cache")
    if ldconfig is None or not cache.is_file():
        pytest.skip("this host has no cache of glibc's loader")
    shown = run_program([ldconfig, "-p"], check=True).stdout
    expected = re.findall(r"^\t(\S+) \(.*\) => (\S+)$", shown, re.MULTILINE)
    assert list(cached_libraries(cache.read_bytes())) == expected


def test_the_soname_is_read(tmp_path: Path) -> None:
    assert soname(library(tmp_path, "a.so", "liba.so.1")) == "liba.so.1"
    assert soname(library(tmp_path, "b.so")) is None
    (tmp_path / "c.so").write_text("text")
    assert soname(tmp_path / "c.so") is None
