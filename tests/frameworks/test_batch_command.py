"""`verify batch`, run as a user runs it, with real networks on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.frameworks.place import ROOT, Command, run_forked
from tests.kit.programs import run_program

pytestmark = pytest.mark.frameworks

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


TROUBLE = {
    "mine:failing": "ValueError: no such file: weights.pt",
    "mine:wrong": "returned int; it must return",
    "mine:missing": "has no attribute 'missing'",
    "nobody:model": "No module named 'nobody'",
    "mine:crooked": "fails at batch 1: RuntimeError: mat1",
    "mine:normalised": "more than 1 value per channel",
    "mine:crashing": "killed by SIGABRT",
}
CALLS = (
    "--model small --max 6 --amp --json",
    "--model small --max 1",
    "--model mine:pair --max 4 --json",
    "--model mine:named --max 4 --json",
    "--model mine:normalised --max 4 --json --min 2",
    "--model mine:hungry --max 64",
    "--model mine:hungry --min 6 --max 64",
    *(f"--model {model}" for model in TROUBLE),
)
Calls = Mapping[str, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """The command with these words, in a folder that has the user's module."""
    place = tmp_path_factory.mktemp("batch")
    (place / "mine.py").write_text(USERS)
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    groups = {words: [Command(("batch", *words.split()))] for words in CALLS}
    return {words: done for words, (done,) in run_forked(groups, place, env).items()}


def test_a_network_is_searched_with_and_without_amp(called: Calls) -> None:
    done = called["--model small --max 6 --amp --json"]
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


def test_the_page_says_that_it_was_the_cpu(called: Calls) -> None:
    done = called["--model small --max 1"]
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("small, on the CPU: no GPU visible\n")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("mine:pair --max 4 --json", id="a module and its batches"),
        pytest.param("mine:named --max 4 --json", id="named inputs, and an answer with a loss"),
        pytest.param("mine:normalised --max 4 --json --min 2", id="a model that needs two samples"),
    ],
)
def test_models_of_the_user(called: Calls, words: str) -> None:
    done = called[f"--model {words}"]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["modes"][0]["largest"] == 4


def test_the_boundary_is_found_where_memory_ends(called: Calls) -> None:
    done = called["--model mine:hungry --max 64"]
    assert done.returncode == 0, done.stderr
    assert "largest that fits: 5 (one more does not fit)" in done.stdout
    assert "8  does not fit: RuntimeError: DefaultCPUAllocator" in done.stdout


def test_where_nothing_fits_the_exit_code_says_so(called: Calls) -> None:
    done = called["--model mine:hungry --min 6 --max 64"]
    assert done.returncode == 1
    assert "none fits" in done.stdout


def test_without_torch_it_is_one_sentence() -> None:
    done = run_program([sys.executable, "-S", "-m", "verify", "batch"], cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "torch cannot be imported: ModuleNotFoundError" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("model", TROUBLE)
def test_trouble_in_the_users_code_is_one_sentence_and_exit_2(called: Calls, model: str) -> None:
    done = called[f"--model {model}"]
    assert (done.returncode, done.stdout) == (2, "")
    assert TROUBLE[model] in done.stderr
    assert len(done.stderr.splitlines()) == 1
