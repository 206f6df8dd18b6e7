"""`verify batch`, run as a user runs it, with real networks on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.place import ROOT, python_of

pytestmark = pytest.mark.frameworks

LIMIT_S = 300

USERS = """
import torch


class Answer:
    def __init__(self, loss):
        self.loss = loss


class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def forward(self, x, scale):
        return Answer((self.line(x) * scale).pow(2).mean())


def pair():
    def make_batch(n, device):
        return torch.randn(n, 8, device=device), torch.randint(3, (n,), device=device)

    return torch.nn.Linear(8, 3), make_batch


def named():
    def make_batch(n, device):
        return {"x": torch.randn(n, 8, device=device), "scale": 2.0}, None

    return WithLoss(), make_batch


def hungry():
    class Hungry(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(8, 1)

        def forward(self, x):
            if len(x) > 5:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return self.line(x).mean()

    return Hungry(), lambda n, device: (torch.randn(n, 8, device=device), None)


def normalised():
    layers = torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    return torch.nn.Sequential(*layers), lambda n, device: (torch.randn(n, 8), torch.randn(n, 1))


def crooked():
    return torch.nn.Linear(8, 3), lambda n, device: (torch.randn(n, 9), torch.randn(n, 3))


def failing():
    raise ValueError("no such file:\\nweights.pt")


def wrong():
    return 42


def crashing():
    def make_batch(n, device):
        import os

        os.abort()

    return torch.nn.Linear(1, 1), make_batch
"""


@pytest.fixture
def call(tmp_path: Path) -> Any:
    """Run the command in a folder that has the user's module."""
    (tmp_path / "mine.py").write_text(USERS)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python_of("pytorch"), "-m", "verify", "batch", *arguments],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    return run


def test_a_network_is_searched_with_and_without_amp(call: Any) -> None:
    done = call("--model", "small", "--max", "6", "--amp", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["device"], found["model"]) == ("cpu", "small")
    assert [mode["precision"] for mode in found["modes"]] == ["fp32", "amp-bf16"]
    for mode in found["modes"]:
        assert [trial["batch"] for trial in mode["trials"]] == [1, 2, 4, 6]
        assert mode["largest"] == 6
        assert all(trial["samples_per_s"] > 0 for trial in mode["trials"])
        assert mode["trials"][-1]["peak_bytes"] > 1_000_000
    assert {metric["name"] for metric in found["metrics"]} >= {"largest_batch", "batch_throughput"}
    assert len(done.stderr.splitlines()) == 8  # each trial, as it came


def test_the_page_says_that_it_was_the_cpu(call: Any) -> None:
    done = call("--model", "small", "--max", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("small, on the CPU: no GPU visible\n")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("model", "options", "largest"),
    [
        pytest.param("mine:pair", (), 4, id="a module and its batches"),
        pytest.param("mine:named", (), 4, id="named inputs, and an answer with a loss"),
        pytest.param("mine:normalised", ("--min", "2"), 4, id="a model that needs two samples"),
    ],
)
def test_models_of_the_user(call: Any, model: str, options: tuple[str, ...], largest: int) -> None:
    done = call("--model", model, "--max", "4", "--json", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["modes"][0]["largest"] == largest


def test_the_boundary_is_found_where_memory_ends(call: Any) -> None:
    done = call("--model", "mine:hungry", "--max", "64")
    assert done.returncode == 0, done.stderr
    assert "largest that fits: 5 (one more does not fit)" in done.stdout
    assert "8  does not fit: RuntimeError: DefaultCPUAllocator" in done.stdout


def test_where_nothing_fits_the_exit_code_says_so(call: Any) -> None:
    done = call("--model", "mine:hungry", "--min", "6", "--max", "64")
    assert done.returncode == 1
    assert "none fits" in done.stdout


def test_without_torch_it_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "verify", "batch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "torch cannot be imported: ModuleNotFoundError" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "word"),
    [
        pytest.param("mine:failing", "ValueError: no such file: weights.pt", id="it raises"),
        pytest.param("mine:wrong", "returned int; it must return", id="it returns a number"),
        pytest.param("mine:missing", "has no attribute 'missing'", id="there is no such function"),
        pytest.param("nobody:model", "No module named 'nobody'", id="there is no such module"),
        pytest.param("mine:crooked", "fails at batch 1: RuntimeError: mat1", id="shapes differ"),
        pytest.param("mine:normalised", "more than 1 value per channel", id="one is too few"),
        pytest.param("mine:crashing", "killed by SIGABRT", id="it crashes"),
    ],
)
def test_trouble_in_the_users_code_is_one_sentence_and_exit_2(
    call: Any, model: str, word: str
) -> None:
    done = call("--model", model)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1
