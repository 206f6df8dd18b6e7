"""Rules over compose files: for each a seeded fault, and a twin that differs in the fault alone."""

from __future__ import annotations

import time

import pytest

from provision.catalog.loading import load
from provision.doctor.lint import LintFinding, lint
from provision.errors import BadInputError
from tests.kit.twins import twins

CATALOG = load()
GPU = """
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              {lines}
"""


def findings_of(text: str) -> list[LintFinding]:
    return lint("compose.yaml", text, CATALOG)


def service(lines: str, devices: str = "") -> str:
    """A compose file of one service; `devices`: the fields of a reserved device."""
    tail = reserved(devices) if devices else ""
    return "services:\n  app:\n    " + "\n    ".join(lines.split("\n")) + "\n" + tail


def reserved(devices: str) -> str:
    return GPU.format(lines="\n              ".join(devices.split("; ")))


CUDA = "image: nvidia/cuda:12.1.1-base-ubuntu22.04"
VLLM = "image: vllm/vllm-openai:v0.8.0"
FULL = "count: all; capabilities: [gpu]"
SHM = "\nshm_size: 8gb"

# rule, and the text with its fault and without: tests/kit/twins.py
TWINS = {
    "a CUDA image without a GPU":
        ("compose-gpu-missing", f"{service(CUDA)}[--][+{reserved(FULL)}+]"),
    "a service with gpus": ("compose-gpu-missing", service(f"{VLLM}[--][+\ngpus: all+]")),
    "a service with the runtime": ("compose-gpu-missing", service(
        "image: a[--][+\nruntime: nvidia+]\nenvironment:\n  - NVIDIA_VISIBLE_DEVICES=all")),
    "a service with a CDI device": ("compose-gpu-missing",
        service(f"{CUDA}\ndevices:\n  - [-/dev/fuse-][+nvidia.com/gpu=all+]")),
    "a GPU that an anchor merges in": ("compose-gpu-missing", (
        "x-a: &a\n  [-cpus: 1-][+runtime: nvidia+]\n"
        f"services:\n  app:\n    <<: [-*a-][+[*a]+]\n    {CUDA}\n")),
    "a device without capabilities": ("compose-capabilities-missing",
        service(CUDA, "count: 1[--][+; capabilities: [gpu, utility]+]")),
    "count and device_ids": ("compose-count-and-ids",
        service(CUDA, "[-count: 1; -][++]device_ids: ['0']; capabilities: [gpu]")),
    "vLLM with the usual shared memory":
        ("compose-shm", service(f"{VLLM}[--][+\nipc: host+]", FULL)),
    "torchrun with the usual shared memory": ("compose-shm", service(
        "image: a\ncommand: torchrun --nproc-per-node 2 a.py[--][+\ntmpfs: [/dev/shm]+]", FULL)),
    "the runtime and a reservation": ("compose-runtime-and-devices",
        service(f"{CUDA}\nruntime: [-nvidia-][+runc+]", FULL)),
    "no visible devices": ("visible-devices-none", (
        service(f"{CUDA}\nenvironment: {{NVIDIA_VISIBLE_DEVICES: none}}")
        + f"[-{reserved(FULL)}-][++]")),
    "driver capabilities without compute": ("capabilities-without-compute",
        service(f"{CUDA}\nenvironment:\n  - NVIDIA_DRIVER_CAPABILITIES[-=utility-][++]", FULL)),
    "RDMA without locked memory": ("compose-memlock", service(
        f"{CUDA}\ndevices: [/dev/infiniband/uverbs0][--][+\nulimits: {{memlock: -1}}+]", FULL)),
    "a swarm with reserved devices": ("compose-swarm",
        service(CUDA, FULL) + "      [-placement: {constraints: [a]}-][+replicas: 1+]\n"),
    "the key version": ("compose-version",
        f"version: '3'\n[-{service(CUDA, FULL)}-][+{service('image: postgres')}+]"),
    "a CUDA image that does not exist": ("cuda-tag-unknown",
        service("image: nvidia/cuda:12.1.1-base-[-ubuntu24.04-][+ubuntu22.04+]")),
    "an image by the default of a variable":
        ("cuda-tag-none", service("image: nvidia/cuda:${TAG[-:-latest-][++]}")),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), TWINS.values(), ids=TWINS)
def test_a_fault_is_found_and_its_twin_is_left_alone(rule: str, text: str) -> None:
    fault, twin = twins(text)
    assert rule in {one.rule for one in findings_of(fault)}
    assert rule not in {one.rule for one in findings_of(twin)}


def test_a_whole_service_is_left_alone() -> None:
    assert not findings_of(service(VLLM + SHM, FULL))


def test_a_comment_silences_a_rule() -> None:
    text = service(CUDA).replace("  app:", "  # provision: ignore=compose-gpu-missing\n  app:")
    assert not findings_of(text)


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: *nothing", "\t- a", "a: b: c", "services:\n" + "[" * 20_000],
    ids=["open list", "unknown alias", "tab", "two values", "deep"],
)
def test_what_is_no_yaml_is_a_sentence(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        findings_of(text)
    assert caught.value.message.endswith(".")
    assert "compose.yaml" in caught.value.message
    assert "\n" not in caught.value.message


def test_aliases_that_multiply_are_never_copied() -> None:
    lines = ["a0: &a0 {x: y}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    text = "\n".join(lines) + f"\nservices:\n  app:\n    <<: *a29\n    {CUDA}\n"
    before = time.process_time()
    assert {one.rule for one in findings_of(text)} == {"compose-gpu-missing"}
    assert time.process_time() - before < 30  # copied, it would never end


@pytest.mark.parametrize(
    "text", ["", "services:", "services: []", "services: {a: }", "services: {a: {deploy: 1}}", "1"]
)
def test_an_odd_file_does_no_harm(text: str) -> None:
    assert findings_of(text) == []
