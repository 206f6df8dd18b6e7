"""`doctor FILE --gpu --driver`: which framework the file installs today, and does it run there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.loading import load
from provision.cli import main as cli

CATALOG = load()
WHEELS = CATALOG.pytorch_index("{tag}").replace("/{tag}", "")
PROJECT = '[project]\nname = "a"\nversion = "1"\ndependencies = ["torch==2.7.1"]\n'
CONDA = "channels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pip:\n      - torch==2.5.1\n"

FOR_CPUS = {"torch-cpu-wheel", "jax-cpu"}
REPLACED = {"none", "cpu"}


def asked(
    capsys: pytest.CaptureFixture[str], path: Path, *words: str
) -> tuple[int, dict[str, Any]]:
    code = cli.main(["doctor", str(path), *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


ANSWERS = {
    "a release without code for the GPU": (
        "requirements.txt",
        "torch==2.5.1\n",
        ["--gpu", "RTX 5080", "--driver", "575.51.03"],
        ("2.5.1", "12.4", "none"),
    ),
    "the same release from an index of the file": (
        "requirements.txt",
        f"--index-url {WHEELS}/cu128\ntorch==2.7.0\n",
        ["--gpu", "RTX 5080", "--driver", "575.51.03"],
        ("2.7.0", "12.8", "direct"),
    ),
    "the newest of today, for an older driver": (
        "Dockerfile",
        "FROM python:3.12\nRUN pip install torch\n",
        ["--gpu", "A100", "--driver", "550.54.15"],
        (None, None, "none"),
    ),
    "an index that pip passes over": (
        "requirements.txt",
        f"--extra-index-url {WHEELS}/cu118\ntorch\n",
        ["--driver", "535.104.05"],
        (None, None, "none"),
    ),
    "a project": (
        "pyproject.toml",
        PROJECT,
        ["--gpu", "L4", "--driver", "560.35.03"],
        ("2.7.1", "12.6", "direct"),
    ),
    "pip's part of an environment": (
        "environment.yml",
        CONDA,
        ["--gpu", "GTX 1080 Ti", "--driver", "550.54.15"],
        ("2.5.1", "12.4", "direct"),
    ),
    "a TensorFlow without code for the GPU": (
        "requirements.txt",
        "tensorflow[and-cuda]==2.16.1\n",
        ["--gpu", "RTX 5080", "--driver", "575.51.03"],
        ("2.16.1", None, "none"),
    ),
    "a TensorFlow that runs": (
        "requirements.txt",
        "tensorflow==2.16.1\n",
        ["--gpu", "A100", "--driver", "550.54.15"],
        ("2.16.1", "12.3", "direct"),
    ),
    "a JAX for CUDA 12": (
        "requirements.txt",
        "jax[cuda12]==0.5.3\n",
        ["--gpu", "L4", "--driver", "560.35.03"],
        ("0.5.3", "12.9", "minor-version"),
    ),
    "a JAX for a CUDA that the driver is too old for": (
        "Dockerfile",
        "FROM python:3.12\nRUN pip install 'jax[cuda13]==0.8.0'\n",
        ["--gpu", "RTX 4090", "--driver", "550.54.15"],
        ("0.8.0", CATALOG.cuda_versions()[-1], "none"),
    ),
    "a JAX for the CPU": (
        "requirements.txt",
        "jax==0.5.3\n",
        ["--gpu", "L4"],
        ("0.5.3", None, "cpu"),
    ),
    "cuda-compat that the image does not have": (
        "Dockerfile",
        "FROM python:3.12-slim\nRUN pip install torch==2.11.0\n",
        ["--gpu", "A100", "--driver", "535.104.05"],
        ("2.11.0", "13.0", "none"),
    ),
    "cuda-compat of NVIDIA's image": (
        "Dockerfile",
        "FROM nvidia/cuda:13.0.2-base-ubuntu24.04\nRUN /v/bin/pip install torch==2.11.0\n",
        ["--gpu", "A100", "--driver", "535.104.05"],
        ("2.11.0", "13.0", "forward"),
    ),
    "a build for the CPU": (
        "requirements.txt",
        f"--index-url {WHEELS}/cpu\ntorch==2.6.0\n",
        ["--gpu", "A100"],
        ("2.6.0", None, "cpu"),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_file_says_what_it_installs_and_whether_that_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text, words, (torch, cuda, verdict) = ANSWERS[name]
    path = tmp_path / file
    path.write_text(text)
    code, found = asked(capsys, path, *words)
    (answer,) = found["runs"]
    newest = next(row for row in reversed(CATALOG.torch_releases) if not row.yanked)
    assert answer["release"] == (torch or newest.version)
    assert answer["verdict"] == verdict
    assert torch is None or answer["cuda"] == cuda
    refused = [one for one in found["findings"] if one["rule"] == "framework-not-for-host"]
    assert [one["line"] for one in refused] == ([answer["line"]] if verdict == "none" else [])
    without = [one["line"] for one in found["findings"] if one["rule"] in FOR_CPUS]
    assert without == ([answer["line"]] if verdict == "cpu" else [])
    assert code == (1 if verdict == "none" else 0)


@pytest.mark.parametrize("name", [one for one in ANSWERS if ANSWERS[one][3][2] in REPLACED])
def test_the_printed_release_runs_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text, words, _ = ANSWERS[name]
    path = tmp_path / file
    path.write_text(text)
    _, found = asked(capsys, path, *words)
    rules = {"framework-not-for-host", *FOR_CPUS}
    (fix,) = (one["fix"] for one in found["findings"] if one["rule"] in rules)
    said = re.fullmatch(r"Write (\S+==\S+)(?: and name its index: --index-url (\S+))?", fix)
    assert said is not None
    fixed = tmp_path / "requirements.txt"
    fixed.write_text(f"--index-url {said[2]}\n{said[1]}\n" if said[2] else f"{said[1]}\n")
    code, found = asked(capsys, fixed, *words)
    assert (code, found["findings"]) == (0, [])
    assert found["runs"][0]["verdict"] not in {"none", "cpu"}


def test_the_machine_that_reads_a_file_is_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.host.detect", lambda: pytest.fail("it was read"))
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.5.1\n")
    code, found = asked(capsys, path)
    assert (code, "runs" in found) == (0, False)
    assert asked(capsys, path, "--driver", "550.54.15")[0] == 0


def test_a_gpu_without_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--gpu", "A100"]) == 2
    assert "require a file" in capsys.readouterr().err
