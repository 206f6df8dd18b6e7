"""What the machine or the image shows before it fails; and what looks like it and is no trap."""

from __future__ import annotations

import pytest

from provision.doctor import Fact, diagnose, load
from provision.doctor.model import Value

CONTAINER = {"machine.container": True}
STOPPED: dict[str, Value] = {
    "docker.installed": True,
    "docker.engine": True,
    "docker.running": False,
    "docker.error": "failed to connect to the docker API at unix:///var/run/docker.sock; check if "
    "the path is correct and if the daemon is running",
    "machine.container": False,
}
BARE: dict[str, Value] = {
    "gpu.count": 1,
    "driver.installed": False,
    "machine.container": False,
    "modules.vfio": False,
    "wsl": False,
}
TRAPS: dict[str, tuple[dict[str, Value], dict[str, Value]]] = {
    "a daemon-reload that would take the GPUs": (
        {"cgroup.reload_trap": True, "gpu.count": 1, "driver.loaded": True},
        {"cgroup.reload_trap": False, "gpu.count": 1, "driver.loaded": True},
    ),
    "a CDI specification older than the driver": (
        {"cdi.stale": True, "gpu.count": 1, "driver.loaded": True},
        {"cdi.stale": False, "gpu.count": 1, "driver.loaded": True},
    ),
    "64 MiB of shared memory": (
        {**CONTAINER, "shm.mib": 64, "device.gpus": 1},
        {**CONTAINER, "shm.mib": 1024, "device.gpus": 1},
    ),
    "cuda-compat on a consumer card": (
        {"library.compat_in_use": True, "gpu.geforce": True},
        {"library.compat_in_use": True, "gpu.geforce": False},
    ),
    "an image that asks for no CUDA": (
        {**CONTAINER, "env.nvidia_driver_capabilities": "utility,video"},
        {**CONTAINER, "env.nvidia_driver_capabilities": "compute,utility"},
    ),
    "a stub of libcuda in an image": (
        {**CONTAINER, "library.stubs_on_path": True},
        {"machine.container": False, "library.stubs_on_path": True},
    ),
    "an MTU larger than the way out": (
        {"network.mtu_differs": True, "docker.running": True},
        {"network.mtu_differs": True, "docker.running": False},
    ),
    "an engine that is not running": (STOPPED, {**STOPPED, **CONTAINER}),
    "a docker command without an engine": (
        {**STOPPED, "docker.engine": False},
        {**STOPPED, "docker.engine": False, **CONTAINER},
    ),
    "an engine that this user may not ask": (
        STOPPED,
        {**STOPPED, "docker.error": "permission denied while trying to connect to the docker API"},
    ),
    "an engine elsewhere that is silent": (
        {**STOPPED, "docker.error": "Cannot connect to the Docker daemon at tcp://10.0.0.1:2376."},
        {**STOPPED, "docker.error": "error during connect: TLS handshake timeout"},
    ),
    "a GPU without a driver": (BARE, {**BARE, "driver.installed": True}),
    "a GPU without a driver on the machine of a container": (BARE, {**BARE, **CONTAINER}),
    "a GPU without a driver that is passed to virtual machines": (
        BARE,
        {**BARE, "modules.vfio": True},
    ),
}


def seen(facts: dict[str, Value]) -> list[str]:
    known = {name: Fact(value=value, where="/there") for name, value in facts.items()}
    return [cause.code for cause in diagnose((), known).causes]


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_told_before_it_bites(name: str) -> None:
    trap, harmless = TRAPS[name]
    assert len(seen(trap)) == 1
    assert seen(harmless) == []


def test_every_cause_that_facts_show_asks_for_more_than_one_of_them_or_for_a_telling_one() -> None:
    """A single condition like "no toolkit" would accuse every laptop."""
    telling = (
        "differ",
        "stale",
        "invalid",
        "conflict",
        "trap",
        "failed",
        "mismatch",
        "lost",
        "throttled",
    )
    single = [
        one.code
        for one in load().failures
        if len(one.host) == 1 and not any(word in one.host[0].fact for word in telling)
    ]
    assert single == []
