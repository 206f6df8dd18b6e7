"""What the doctor sees inside containers of real images, by a real engine and by a sandbox."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from images.engines.runner import DockerRunner
from images.engines.sandbox.run import Sandbox
from images.system.errors import NoRunnerError
from provision.doctor.inside import inside_machine, look_inside
from provision.doctor.model import Fact
from provision.doctor.probes import INSIDE, read_facts
from provision.errors import BadInputError
from tests import need
from tests.kit import sandbox_images
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker

# What the script asks of an image: a shell, and these.
TOOLS = ("sh", "ls", "df", "id", "env", "head", "uname", "timeout")
TRAPS: Mapping[str, bytes | str | None] = {
    "etc/os-release": b"ID=debian\nVERSION_ID=12\n",
    "usr/local/cuda-12.4/compat/libcuda.so.550.54.15": b"",
    "usr/local/cuda-12.4/compat/libcuda.so.1": "libcuda.so.550.54.15",
    "usr/local/cuda": "/usr/local/cuda-12.4",
    "usr/local/cuda-12.4/lib64/stubs/libcuda.so": b"",
    "usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7": b"",
    "usr/local/lib/python3.11/site-packages/torch/version.py": (
        b"__version__ = '2.0.1+cu117'\ncuda = '11.7'\nhip = None\n"
    ),
    "usr/local/lib/python3.11/site-packages/torch-2.0.1+cu117.dist-info/METADATA": b"",
    "tmp": None,
}
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/cuda/compat:/usr/local/cuda/lib64/stubs",
    "NVIDIA_DRIVER_CAPABILITIES": "compute",
    "NVIDIA_VISIBLE_DEVICES": "all",
}


def programs() -> dict[str, bytes]:
    """This machine's own shell and tools, with the libraries that they load."""
    found: dict[str, bytes] = {}
    for name in TOOLS:
        path = shutil.which(name)
        assert path is not None
        found[f"usr/bin/{name}"] = Path(path).read_bytes()
        linked = run_program(["ldd", path]).stdout
        for word in linked.split():
            if word.startswith("/"):
                found[word.lstrip("/")] = Path(word).read_bytes()
    return found


def busybox() -> dict[str, bytes | str]:
    """busybox alone."""
    path = need.program("busybox", "busybox-static")
    return {
        "usr/bin/busybox": Path(path).read_bytes(),
        **{f"usr/bin/{name}": "busybox" for name in TOOLS},
    }


def plain_tar(files: Mapping[str, bytes | str | None]) -> bytes:
    """A root file system; everything in it may be started."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content if isinstance(content, bytes) else b""))
    return buffer.getvalue()


@contextlib.contextmanager
def imported(
    client: Any, files: Mapping[str, bytes | str | None], changes: Sequence[str] = ()
) -> Iterator[str]:
    """An image on the engine, gone afterwards."""
    name = f"gpu-provision-test-inside:{uuid.uuid4().hex[:12]}"
    repository, _, tag = name.partition(":")
    client.api.import_image_from_data(
        plain_tar(files), repository=repository, tag=tag, changes=list(changes)
    )
    try:
        yield name
    finally:
        client.images.remove(name, force=True)


def changes() -> list[str]:
    return [f"ENV {name}={value}" for name, value in ENVIRONMENT.items()]


def look(client: Any, image: str) -> dict[str, Fact]:
    return look_inside(DockerRunner(client), image)


def judge_traps(facts: Mapping[str, Fact]) -> None:
    """What is planted in the image is found in a container of it."""
    values = {name: fact.value for name, fact in facts.items()}
    assert values["os.id"] == "debian"
    assert values["machine.container"] is True
    assert values["library.compat_in_use"] is True
    assert values["library.compat_version"] == "550.54.15"
    assert values["library.libcuda"] == ("/usr/local/cuda/compat/libcuda.so.1",)
    assert values["library.stubs_on_path"] is True
    assert values["library.cudnn"] == ("8.9.7",)
    assert values["toolkits.cuda_link"] == "/usr/local/cuda-12.4"
    assert values["torch.version"] == "2.0.1+cu117"
    assert values["torch.cuda"] == "11.7"
    assert values["env.nvidia_driver_capabilities"] == "compute"
    assert values["env.nvidia_visible_devices"] == "all"
    assert values["device.gpus"] == 0
    assert not {name for name in values if name.startswith(("docker.", "podman.", "toolkit."))}


@pytest.mark.parametrize("tools", [programs, busybox], ids=["coreutils", "busybox"])
def test_the_traps_of_an_image_are_seen_inside_it(client: Any, tools: Any) -> None:
    with imported(client, {**tools(), **TRAPS}, changes()) as image:
        facts = look(client, image)
    judge_traps(facts)
    assert facts["shm.mib"].value == 64
    assert facts["machine.root"].value is True


def test_an_image_without_the_drivers_library_says_so(client: Any) -> None:
    with imported(client, {**programs(), "tmp": None}) as image:
        facts = look(client, image)
    assert facts["library.libcuda_in_loader"].value is False
    assert facts["library.libcuda"].value == ()
    assert facts["library.compat_in_use"].value is False
    assert facts["driver.installed"].value is False
    assert "torch.version" not in facts
    assert "os.id" not in facts


def test_an_entry_point_that_prints_does_not_disturb(client: Any) -> None:
    banner = b'#!/bin/sh\necho "== CUDA =="\nexec "$@"\n'
    files = {**programs(), **TRAPS, "usr/bin/banner": banner, "bin": "usr/bin"}
    extra = [*changes(), 'ENTRYPOINT ["/usr/bin/banner"]']
    with imported(client, files, extra) as image:
        judge_traps(look(client, image))


def test_an_image_that_ends_early_is_refused_with_a_sentence(client: Any) -> None:
    files = {**programs(), "usr/bin/sh": Path("/bin/true").read_bytes()}
    with (
        imported(client, files, changes()) as image,
        pytest.raises(BadInputError, match="did not run a shell script"),
    ):
        look(client, image)


def test_a_sandbox_sees_the_same_traps(tmp_path: Path) -> None:
    try:
        sandbox = Sandbox.connect(tmp_path / "roots")
    except NoRunnerError as error:
        need.lacking(f"no sandbox can be made here: {error.message}")
    settings = {"Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()]}
    image = sandbox_images.image(
        [sandbox_images.layer_of(plain_tar({**programs(), **TRAPS}))], settings
    )
    handle = sandbox.prepare(image, lambda _: None)
    try:
        judge_traps(look_inside(sandbox, handle))
    finally:
        sandbox.remove(handle)


def test_the_script_runs_in_this_machines_own_shell() -> None:
    def run(script: bytes) -> bytes:
        env = {**os.environ, "LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"}
        done = subprocess.run(["sh"], input=script, env=env, capture_output=True, check=False)
        assert not done.stderr
        return done.stdout

    facts = read_facts(inside_machine(run), probes=INSIDE)
    assert facts["library.path"].value == ("/usr/local/cuda/lib64/stubs",)
    assert facts["limit.nofile"].where == "/proc/self/limits"
