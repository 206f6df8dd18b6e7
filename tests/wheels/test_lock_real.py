"""What a plan asks for can be had: locks of real plans against the real default index.

A requirement line that no installer can follow is found here and nowhere else.
"""

from __future__ import annotations

import os

import pytest

from images.errors import Failure
from provision.catalog.loading import load
from provision.lock.lockfile import Lock
from provision.lock.network import ca_bundle
from provision.model.plan import HostFacts, Request
from provision.model.request import parse_request
from provision.resolve import resolve
from tests.kit.hosts import host
from tests.kit.local_index import make_lock
from tests.need import lacking


def locked(request: Request, facts: HostFacts) -> Lock:
    plan = resolve([facts], request, load())
    assert plan.error is None, plan.error
    try:
        return make_lock(
            plan, request, ca_bundle=ca_bundle(None, os.environ), offline=False, tell=print
        )
    except Failure as failure:
        if failure.code == "index-unreachable":
            lacking(f"the package index cannot be read: {failure.message}")
        raise


@pytest.mark.parametrize(
    ("framework", "version", "facts", "expected"),
    [
        pytest.param("tensorflow", "2.18.1", host("580.95.05", "8.6"),
                     {"tensorflow": "2.18.1", "nvidia-cudnn-cu12": "9.3.0.75"},
                     id="TensorFlow with its pins"),
        pytest.param("tensorflow", "2.20.0", host("580.95.05", "7.0"),
                     {"tensorflow": "2.20.0", "nvidia-cudnn-cu12": "9.10.2.21"},
                     id="TensorFlow's open range, closed for a V100"),
        pytest.param("tensorflow", "2.14.1", host("580.95.05", "8.6", python="3.11"),
                     {"tensorflow": "2.14.1", "nvidia-cuda-runtime-cu11": "11.8.89"},
                     id="an extra that has wheels for older Pythons only"),
        pytest.param("jax", "0.9.0", host("570.124.06", "12.0"),
                     {"jax": "0.9.0", "nvidia-cuda-nvcc-cu12": "12.8."},
                     id="JAX beside the toolkit that was chosen"),
        pytest.param("jax", "0.6.1", host("580.95.05", "8.6"),
                     {"jax": "0.6.1", "nvidia-cuda-runtime-cu12": "12.8."},
                     id="JAX that is not beside the newest of its major"),
        pytest.param("jax", None, host("580.95.05", "9.0"),
                     {"jax-cuda13-plugin": "0.", "nvidia-cuda-runtime": "13.0."},
                     id="the newest JAX on CUDA 13"),
        pytest.param("pytorch", "2.14.1", host("580.95.05", "9.0"),
                     {"torch": "2.14.1", "nvidia-cudnn-cu13": "9.24.0.43"},
                     id="PyTorch from PyPI, on a base newer than uv's platforms"),
    ],
)  # fmt: skip
def test_the_lock_has_what_the_plan_says(
    framework: str, version: str | None, facts: HostFacts, expected: dict[str, str]
) -> None:
    lock = locked(parse_request(framework=framework, framework_version=version), facts)
    found = {wheel.name: wheel.version for wheel in lock.wheels}
    assert {name: found.get(name, "")[: len(v)] for name, v in expected.items()} == expected
    cudnn = next(v for name, v in found.items() if name.startswith("nvidia-cudnn-"))
    assert lock.plan.cudnn == cudnn
