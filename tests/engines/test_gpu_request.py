"""GPUs are asked of a real engine, and what the engine says is understood.

The engine is a private one that finds our hook (gpu_hook.py) in place of NVIDIA's; the driver's
library in the container is the fake one. No kernel runs here: tests/gpu is for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.engines.docker import Docker
from images.engines.docker_errors import NoGpuRuntimeError
from images.engines.spec import RunJob, RunResult
from provision.verification.suite import suite_directory
from tests import fake_driver, need
from tests.engines.lab import debian
from tests.engines.private_engine import PrivateEngine, private_engine

pytestmark = pytest.mark.docker

SETTINGS = {
    "count": 2,
    "driver": "515.65.01",
    "cuda": 11070,
    **{f"gpu.{n}.name": "NVIDIA GeForce RTX 3090" for n in range(2)},
    **{f"gpu.{n}.uuid": f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in range(2)},
    **{f"gpu.{n}.mig": 0 for n in range(2)},
}


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with our hook, its library and its settings."""
    need.program("nsenter", "util-linux")
    place = tmp_path_factory.mktemp("hook")
    place.chmod(0o755)
    fake_driver.build(place)
    (place / fake_driver.LIBRARY).rename(place / "lib")
    program = place / "nvidia-container-runtime-hook"
    shutil.copy(Path(__file__).with_name("gpu_hook.py"), program)
    program.chmod(0o755)
    return place


@pytest.fixture(scope="module")
def gpu_engine(hook: Path) -> Iterator[PrivateEngine]:
    """An engine that found the hook when it started."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{hook}:{os.environ.get('PATH', os.defpath)}")
            engine = stack.enter_context(private_engine())
        yield engine


def run_in(engine: PrivateEngine, command: list[str]) -> RunResult:
    """Run a command in the Debian base, with GPUs, the suite and the fake driver's settings."""
    base = debian()
    suite = suite_directory()
    files = {
        f"/opt/suite/verify/{path.relative_to(suite)}": path.read_bytes()
        for path in suite.rglob("*")
        if path.is_file() and path.suffix in {".py", ".json"}
    }
    files["/etc/fake-driver"] = "".join(f"{k} = {v}\n" for k, v in SETTINGS.items()).encode()
    with engine.client() as client:
        docker = Docker(client)
        if not docker.has(base.reference):
            docker.load(base.archive)
        job = RunJob(
            image=base.reference,
            command=tuple(command),
            gpus="runtime",
            files=files,
            environment={"PYTHONPATH": "/opt/suite", "FAKE_DRIVER": "/etc/fake-driver"},
        )
        return docker.run(job, lambda _: None)


def test_the_gpus_of_the_host_are_seen_inside(gpu_engine: PrivateEngine) -> None:
    suite = ["python3", "-m", "verify", "--json", "--only", "devices.nvml"]
    result = run_in(gpu_engine, suite)
    (check,) = json.loads(result.stdout)["checks"]
    assert (check["id"], check["status"]) == ("devices.nvml", "pass")
    assert "2 GPUs" in check["message"]


def test_the_container_is_gone_afterwards(gpu_engine: PrivateEngine) -> None:
    run_in(gpu_engine, ["true"])
    assert gpu_engine.containers() == []


def test_a_hook_that_refuses_is_quoted(gpu_engine: PrivateEngine, hook: Path) -> None:
    (hook / "refuse").write_text("initialization error: nvml error: driver not loaded")
    try:
        with pytest.raises(NoGpuRuntimeError) as caught:
            run_in(gpu_engine, ["true"])
    finally:
        (hook / "refuse").unlink()
    assert caught.value.exit_code == 4
    assert "driver not loaded" in caught.value.detail
    assert gpu_engine.containers() == []


def test_an_engine_without_the_toolkit_says_what_to_install(own_engine: PrivateEngine) -> None:
    with pytest.raises(NoGpuRuntimeError) as caught:
        run_in(own_engine, ["true"])
    assert "Container Toolkit" in caught.value.fix
    assert "could not select device driver" in caught.value.detail
    assert own_engine.containers() == []
