"""An image for aarch64, made and run on another machine: Debian's qemu-user, registered for the
test alone, in a namespace of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import need
from tests.engines.lab import ROOT, Done, World, new_world
from tests.engines.small_build import PASSWORD, PIP, Source
from tests.kit.index_wheels import downloaded
from tests.kit.private_index import Wheel, make_wheel, serve
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker

TORCH = "torch-2.9.1+cu128-cp311-cp311-manylinux_2_28_aarch64.whl"
# Its own file system and the kernel's register for it: nothing stays registered afterwards. The
# escapes are the kernel's to read; flag F: the interpreter is opened now, outside of the image.
MOUNT = "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || exit 96"
REGISTER = rf"""{MOUNT}
zeros='\x00\x00\x00\x00\x00\x00\x00\x00' ones='\xff\xff\xff\xff\xff\xff\xff'
magic="\x7fELF\x02\x01\x01\x00$zeros\x02\x00\xb7\x00" mask="$ones\x00$ones\xff\xfe\xff\xff\xff"
printf '%s' ":qemu-aarch64:M::$magic:$mask:$0:F" > /proc/sys/fs/binfmt_misc/register || exit 96
exec "$@"
"""
INSIDE = """
import ctypes, json, os, platform, subprocess, sys
import numpy
product = numpy.arange(6.0).reshape(2, 3) @ numpy.ones((3, 2))
child = subprocess.run([sys.executable, "-c", "import os; print(os.uname().machine)"],
                       capture_output=True, text=True, check=True)
print(json.dumps({
    "machine": platform.machine(), "child": child.stdout.strip(),
    "bits": 8 * ctypes.sizeof(ctypes.c_void_p),
    "product": product.tolist(), "numpy": numpy.__file__,
    "cpu": "CPU implementer" in open("/proc/cpuinfo").read(),
}))
"""


@pytest.fixture(scope="module")
def emulated() -> list[str]:
    """Words before a command, which then can start programs for aarch64."""
    if os.uname().machine == "aarch64":
        pytest.skip("this machine runs aarch64 by itself")
    qemu = need.program("qemu-aarch64-static", "qemu-user-static")
    unshare = need.program("unshare", "util-linux")
    words = [unshare, "--map-root-user", "--mount", "sh", "-c", REGISTER, qemu]
    tried = run_program([*words, "true"])
    if tried.returncode != 0:  # before Linux 6.7 there is one register for all namespaces
        need.lacking(f"no emulator can be registered in a namespace: {tried.stderr}")
    return words


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A world in which a sandbox runs images: no engine sees what a namespace has registered."""
    with new_world(DOCKER_HOST="unix:///nonexistent/docker.sock") as found:
        broken = found.place / "bin"
        broken.mkdir()
        (broken / "podman").write_text("#!/bin/sh\nexit 1\n")
        (broken / "podman").chmod(0o755)
        path = f"{broken}:{found.env['PATH']}"
        yield World(found.place, {**found.env, "PATH": path})


@pytest.fixture(scope="module")
def numpy(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """A wheel of native code, from the index that this machine uses."""
    words = ("--platform", "manylinux2014_aarch64", "--python-version", "3.11")
    file = downloaded("numpy==1.26.4", tmp_path_factory.mktemp("numpy"), *words)
    return Wheel(file.name, file.read_bytes())


@pytest.fixture(scope="module")
def archive(alone: World, source: Source, numpy: Wheel) -> Path:
    """A small image for aarch64: Debian, Python, NumPy, and a torch that is only a name."""
    torch = make_wheel(TORCH, {"torch/__init__.py": b"__version__ = '2.9.1+cu128'\n"})
    host = alone.place / "arm.json"
    host.write_text(json.dumps({"schema": 1, "arch": "aarch64"}))
    lock, made = alone.place / "pylock.toml", alone.place / "image.tar"
    network = ("--ca-bundle", str(source.authority.bundle))
    with serve(source.authority, torch, numpy, PIP, password=PASSWORD) as index:
        asked = ["--cuda", "12.8", "--framework-version", "2.9.1", "--python", "3.11"]
        asked += ["--host", str(host), "--base", "bootstrap", "--index", index.url]
        env = {"UV_DEFAULT_INDEX": index.url}
        done = alone.provision("lock", *asked, "--output", str(lock), *network, **env)
        assert done.code == 0, done.err
        words = ("--lock", str(lock), "--builder", "oci", "--output", str(made), "--no-verify")
        done = alone.provision("build", *words, *network, **env)
    assert done.code == 0, done.err
    # what is typed next is for that machine, and said once
    assert done.out.count("on a machine with NVIDIA GPUs") == done.out.count("\nnext") == 1
    assert "next, on a machine with NVIDIA GPUs (aarch64):" in done.out
    return made


def run_emulated(emulated: list[str], world: World, *argv: str) -> Done:
    done = run_program(
        [*emulated, sys.executable, "-m", *argv], cwd=ROOT, env=dict(world.env), timeout=300
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def test_its_programs_run(emulated: list[str], alone: World, archive: Path) -> None:
    need.program("bwrap", "bubblewrap")
    for kind in ("bubblewrap", "unshare"):
        job: dict[str, Any] = {
            "launcher": [kind, False],
            "roots": str(alone.place / "roots"),
            "archive": str(archive),
            "driver_root": "/nosuch",
            "job": {"command": ["python3", "-c", INSIDE], "shm_bytes": 64 << 20},
        }
        script = alone.place / "job.json"
        script.write_text(json.dumps(job))
        done = run_emulated(emulated, alone, "tests.engines.sandbox_script", str(script))
        assert done.code == 0, done.err
        found = done.account
        if "lacking" in found:
            need.lacking(str(found))
        seen = json.loads(found["stdout"])
        assert (seen["machine"], seen["child"], seen["bits"]) == ("aarch64", "aarch64", 64)
        assert seen["product"] == [[3.0, 3.0], [12.0, 12.0]]
        assert seen["numpy"].startswith("/opt/venv/")
        assert seen["cpu"], "qemu before 8.2 shows the host's processor"


def test_the_suite_runs_and_judges_no_time(
    emulated: list[str], alone: World, archive: Path
) -> None:
    words = ["verify", f"oci-archive:{archive}", "--json"]
    words += ["--only", "loading.shm,loading.files,speed"]
    done = run_emulated(emulated, alone, "provision", *words)
    report = done.account
    environment = report["environment"]
    assert (environment["arch"], environment["emulator"]) == ("aarch64", "qemu-aarch64")
    status = {check["id"]: check["status"] for check in report["checks"]}
    assert status.pop("loading.shm") == status.pop("loading.files") == "pass", report
    assert set(status.values()) == {"skip"}
    assert {one["message"] for one in report["checks"] if one["status"] == "skip"} == {
        "times and memory use would be those of the emulator (qemu-aarch64)"
    }
    # nothing failed, and an emulator proves nothing for a processor
    assert (done.code, report["verdict"]) == (7, "no-verdict")
    assert "runs under emulation" in " ".join(done.err.split())


def test_without_an_emulator_it_says_what_to_install(
    emulated: list[str], alone: World, archive: Path
) -> None:
    register = emulated.index(REGISTER)
    none = [*emulated[:register], f'{MOUNT}\nexec "$@"', "sh"]
    done = run_emulated(none, alone, "provision", "verify", f"oci-archive:{archive}")
    assert done.code == 4
    assert "for linux/arm64" in done.err
    assert "qemu-user-static" in done.err
