"""Host facts as people see them."""

from __future__ import annotations

from hypothesis import given

from provision.cli.render.host import describe_host
from provision.model.plan import Absent, Engine, Gpu, HostFacts
from tests.unit.provision.model.test_facts import hosts

FULL = HostFacts(
    driver="515.65.01",
    user_mode_driver="515.65.01",
    driver_cuda="11.7",
    arch="x86_64",
    glibc="2.35",
    os_id="ubuntu",
    os_version="22.04",
    python="3.10",
    wsl=False,
    gpus=(
        Gpu(name="NVIDIA GeForce RTX 3090", compute_capability=(8, 6), memory_mib=24576, mig=False),
        Gpu(name="NVIDIA A100-SXM4-80GB", compute_capability=(8, 0), memory_mib=81920, mig=True),
        Gpu(),
    ),
    engines=(
        Engine(
            name="docker",
            client="27.5.1",
            server="27.5.1",
            buildkit="buildx 0.20.0",
            gpu_runtime=True,
            cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=all"),
        ),
        Engine(name="podman", client="4.3.1", problem="Error: cannot set up namespace"),
    ),
    sources=(("driver", "/sys/module/nvidia/version"), ("driver_cuda", "nvml")),
    absent=(
        Absent(fact="driver", source="/proc/driver/nvidia/version", reason="answered elsewhere"),
        Absent(fact="gpus[2].name", source="nvml", reason="Not Supported"),
        Absent(fact="gpus[2].uuid", source="nvml", reason="Not Supported"),
    ),
)


def test_a_full_host_fits_one_block() -> None:
    assert describe_host(FULL).splitlines() == [
        "driver      515.65.01 (/sys/module/nvidia/version)",
        "libraries   515.65.01",
        "cuda        up to 11.7 supported by this driver (nvml)",
        "system      ubuntu 22.04, x86_64, glibc 2.35, Python 3.10",
        "GPUs        #  name                      CC     memory  MIG",
        "            0  NVIDIA GeForce RTX 3090  8.6  24576 MiB  off",
        "            1  NVIDIA A100-SXM4-80GB    8.0  81920 MiB  on",
        "            2  unknown                    ?          ?  ?",
        "engines     docker 27.5.1, BuildKit: buildx 0.20.0, NVIDIA runtime, CDI devices:",
        "            2",
        "            podman 4.3.1, not usable: Error: cannot set up namespace",
        "not read    gpus[2].name, gpus[2].uuid: nvml: Not Supported",
    ]


def test_an_unknown_host_says_so_everywhere() -> None:
    assert describe_host(HostFacts()).splitlines() == [
        "driver      unknown",
        "libraries   unknown",
        "cuda        unknown",
        "system      OS unknown, processor unknown, glibc unknown, Python unknown",
        "GPUs        unknown",
        "engines     unknown",
    ]


NOT_THERE = tuple(
    Absent(fact=fact, source="nvml", reason="libnvidia-ml.so.1 is not in the linker path")
    for fact in ("driver", "user_mode_driver", "driver_cuda", "gpus")
)


def test_a_driver_that_was_looked_for_and_is_not_there_is_none() -> None:
    lines = describe_host(HostFacts(gpus=(), absent=NOT_THERE)).splitlines()
    assert lines[:3] == [
        "driver      none found",
        "libraries   none found",
        "cuda        none (no driver)",
    ]


def test_libraries_without_their_module_are_a_driver_that_is_not_loaded() -> None:
    lines = describe_host(HostFacts(user_mode_driver="550.54.15", absent=NOT_THERE)).splitlines()
    assert lines[:3] == ["driver      not loaded", "libraries   550.54.15", "cuda        unknown"]


def test_none_there_is_not_unknown() -> None:
    lines = describe_host(HostFacts(gpus=(), engines=())).splitlines()
    assert "GPUs        none" in lines
    assert "engines     none" in lines


@given(hosts)
def test_whatever_the_facts_a_wide_line_has_one_word_alone(facts: HostFacts) -> None:
    wide = [line for line in describe_host(facts).splitlines() if len(line) > 80]
    assert [line for line in wide if len(line[12:].split()) > 1] == []
