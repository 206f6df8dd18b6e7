"""`provision` with something to look at in place of a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from provision.doctor.commands import default_command
from tests import ROOT
from tests.kit.cases import cases
from tests.unit.provision.cli.test_cli import main

SMI = (ROOT / "tests" / "data" / "nvidia_smi" / "header_610.txt").read_text()
HOST = '{"driver": "535.104.05", "gpus": [{"name": "NVIDIA H100 PCIe"}]}'
FILES = {
    "smi.txt": (SMI, ("plan", "--host")),
    "host.json": (HOST, ("plan", "--host")),
    "Dockerfile": ("FROM python:3.11\nRUN pip install torch\n", ("doctor",)),
    "compose.yaml": ("services:\n  a:\n    image: b\n", ("doctor",)),
    "requirements.txt": ("torch==2.0.1\n", ("plan",)),
    "pyproject.toml": ('[project]\nname = "a"\n', ("plan",)),
    "train.log": ("epoch 1\nRuntimeError: CUDA out of memory\n", ("doctor",)),
    "report.json": ('{"schema": 1, "checks": []}', ("doctor",)),
    "a.whl": ("PK", ("inspect",)),
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_is_decides(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name][0])
    path = str(tmp_path / name)
    assert default_command.of_path(path) == (*FILES[name][1], path)


@cases(
    "files command",
    ("a project", {"pyproject.toml": "[project]"}, ("plan",)),
    ("host files", {"n1.json": HOST, "n2.json": HOST}, ("plan", "--host")),
    ("an image", {"oci-layout": "{}"}, ("inspect",)),
)
def test_what_a_directory_is_decides(
    files: dict[str, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert default_command.of_path(str(tmp_path)) == (*command, str(tmp_path))


@cases(
    "text command",
    ("what nvidia-smi prints", SMI, ("plan", "--host")),
    ("host facts", HOST, ("plan", "--host")),
    ("a Dockerfile", "FROM a\nRUN b\n", ("doctor",)),
    ("its failure", "NVIDIA-SMI has failed\n", ("doctor",)),
    ("nothing", "", ("doctor",)),
)
def test_what_a_text_is_decides(text: str, command: tuple[str, ...]) -> None:
    assert default_command.of_text(text) == command


def test_a_paste_of_nvidia_smi_is_planned() -> None:
    said = main("-", stdin=SMI)
    assert said.code == 0
    assert said.out.startswith("Yes: PyTorch ")
    assert "provision build --driver 610.43.02 --gpu 'NVIDIA RTX A6000'" in said.out
    assert said.err == "provision plan --host -\n"


def test_a_name_that_a_table_has_cut_is_known_by_what_it_may_be() -> None:
    said = main("-", stdin=SMI.replace("NVIDIA RTX A6000 ", "NVIDIA A100-SXM... "))
    assert "provision build --driver 610.43.02 --gpu 8.0" in said.out


def test_an_error_is_diagnosed_with_the_options_that_follow() -> None:
    said = main("RuntimeError: CUDA error: no kernel image is available", "--no-host", "--json")
    assert json.loads(said.out)["verdict"] == "found"


def test_a_refusal_is_that_of_the_command() -> None:
    said = main("-", "--framework-version", "9.9", "--json", stdin=HOST)
    assert said.code == 3
    assert json.loads(said.out)["verdict"] == "none"


def test_a_long_log_is_read_to_its_end() -> None:
    text = "step\n" * 300_000 + "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert "CUDA out of memory" in main("-", "--no-host", stdin=text).out


@pytest.mark.parametrize("words", [("-",), ("doctor", "-")])
@cases(
    "text says",
    ("a fault", "FROM nvidia/cuda\n", "standard input:1:6: error [cuda-tag-none]"),
    ("no fault", "torch\n", "No problems found in standard input."),
    ("invalid", "services:\n  a: [\n   image: b\n", "standard input is not valid YAML"),
)
def test_a_pasted_file_is_checked_under_the_name_of_standard_input(
    words: tuple[str, ...], text: str, says: str
) -> None:
    before = sys.stdin
    said = main(*words, stdin=text)
    assert says in said.out + said.err
    assert len(words) > 1 or sys.stdin is before


def test_a_directory_of_hosts_is_one_plan(tmp_path: Path) -> None:
    for name, gpu in (("n1", "H100 PCIe"), ("n2", "A10")):
        (tmp_path / f"{name}.json").write_text(HOST.replace("H100 PCIe", gpu))
    assert "runs on NVIDIA H100 PCIe and NVIDIA A10 with" in " ".join(
        main(str(tmp_path)).out.split()
    )


@cases(
    "word says",
    ("a typing error", "paln", "Did you mean plan"),
    ("no file", "no-such.txt", "names no command, file or"),
)
def test_what_is_nothing_is_refused(word: str, says: str) -> None:
    said = main(word)
    assert said.code == 2
    assert says in said.err
