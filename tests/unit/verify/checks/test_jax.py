"""What JAX's checks say of readings, and how they find out why JAX lists no GPU."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.backends import jax as place
from verify.checks.libraries.jax import CudaNumbers, PluginParts, judge_cuda, judge_parts
from verify.model.check import Outcome, Status

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
FINE = Outcome(PASS, "JAX 0.10.2 for CUDA 12", measured={"version": "0.10.2"})


@cases(
    "outcome parts status word",
    ("equal parts pass", FINE, PluginParts("0.10.2", "0.10.2", "0.10.2", 12), PASS, "0.10.2"),
    ("a fourth number makes no difference", FINE, PluginParts("0.10.2", "0.10.2.1", "0.10.2", 12),
     PASS, ""),
    ("an old plugin fails with what to install", FINE,
     PluginParts("0.10.2", "0.10.1", "0.10.1", 12), FAIL, "jax-cuda12-plugin==0.10.2"),
    ("a plugin without its other half fails", FINE, PluginParts("0.10.2", "0.10.2", None, 13), FAIL,
     "jax-cuda13-pjrt missing"),
    ("two plugins fail", FINE,
     PluginParts("0.10.2", "0.10.2", "0.10.2", 13, ("jax-cuda13-plugin", "jax-cuda12-plugin")),
     FAIL, "uninstall all but one"),
    ("CUDA within jaxlib passes", FINE, PluginParts("0.4.20+cuda12.cudnn89", None, None, 12), PASS,
     ""),
    ("a failure stays", Outcome(FAIL, "CPU build of JAX", "no plugin", "install it"),
     PluginParts("0.10.2", None, None), FAIL, "CPU build"),
)  # fmt: skip
def test_parts(outcome: Outcome, parts: PluginParts, status: Status, word: str) -> None:
    judged = judge_parts(outcome, parts)
    holds(judged, status, word)
    assert judged.measured["jaxlib"] == parts.jaxlib


@cases(
    "asked expected status word",
    ("no plan passes", CudaNumbers(12090, 12080), None, PASS, "built with 12.8"),
    ("the plan's passes", CudaNumbers(12090, 12080), "12.9.1", PASS, "CUDA 12.9"),
    ("another minor fails", CudaNumbers(12090), "12.6", FAIL, "12.9 instead of the requested 12.6"),
    ("another major fails", CudaNumbers(11080), None, FAIL, "LD_LIBRARY_PATH"),
    ("absence fails", CudaNumbers(error="unable to load"), None, FAIL, "unable to load"),
)
def test_cuda(asked: CudaNumbers, expected: str | None, status: Status, word: str) -> None:
    holds(judge_cuda(12, asked, expected), status, word)


# The plugin, by the metadata


def having(**versions: str) -> Callable[[str], str]:
    def version(name: str) -> str:
        found = versions.get(name.replace("-", "_"))
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    return version


@cases(
    "versions plugin",
    ("jaxlib alone has no CUDA", {"jaxlib": "0.10.2"}, None),
    ("a plugin", {"jaxlib": "0.10.2", "jax_cuda12_plugin": "0.10.2"}, (12, "0.10.2")),
    ("CUDA within jaxlib", {"jaxlib": "0.4.20+cuda11.cudnn86"}, (11, "0.4.20+cuda11.cudnn86")),
    ("nothing installed", {}, None),
)
def test_plugin(
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    plugin: tuple[int, str] | None,
) -> None:
    monkeypatch.setattr(metadata, "version", having(**versions))
    assert place.plugin() == plugin


# Why there is no GPU


def jax_that(devices: Callable[[str], list[Any]]) -> ModuleType:
    module = ModuleType("jax")
    module.devices = devices  # type: ignore[attr-defined]
    return module


def log_and_raise(record: str, raised: Exception | None) -> Callable[[str], list[Any]]:
    def devices(_: str) -> list[Any]:
        logging.getLogger("jax._src.xla_bridge").error(record, exc_info=raised)
        raise RuntimeError("Unknown backend: 'gpu' requested")

    return devices


@cases(
    "devices count word",
    ("two GPUs", lambda _: ["a", "b"], 2, None),
    ("the plugin's own error, where it was logged",
     log_and_raise("plugin error", RuntimeError("operation cuInit(0) failed\nmore")), 0,
     "operation cuInit(0) failed"),
    ("else what was raised", log_and_raise("A GPU may be present. Falling back to cpu.", None), 0,
     "Unknown backend: 'gpu' requested"),
)  # fmt: skip
@pytest.mark.usefixtures("caplog")  # keeps the log out of the tests' own output
def test_listing(
    monkeypatch: pytest.MonkeyPatch,
    devices: Callable[[str], list[Any]],
    count: int,
    word: str | None,
) -> None:
    monkeypatch.setitem(sys.modules, "jax", jax_that(devices))
    logger = logging.getLogger("jax._src.xla_bridge")
    before = list(logger.handlers)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert place.list_gpus() == (count, word)
    assert logger.handlers == before


@cases(
    "platforms word",
    ("the CPU", "cpu", "JAX_PLATFORMS=cpu leaves the GPUs out"),
    ("CUDA among others", "cuda,cpu", "Unknown backend: 'gpu' requested"),
)
def test_a_variable_that_hides_the_gpus(
    monkeypatch: pytest.MonkeyPatch, platforms: str, word: str
) -> None:
    devices = log_and_raise("A GPU may be present. Falling back to cpu.", None)
    monkeypatch.setitem(sys.modules, "jax", jax_that(devices))
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert place.list_gpus() == (0, word)
