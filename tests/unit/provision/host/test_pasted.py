"""What nvidia-smi printed elsewhere, as the facts of that machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import HostFileError
from provision.host.pasted import parse_host_text, parse_smi, read_host
from provision.model.plan import Gpu
from tests import ROOT
from tests.kit.cases import cases

RECORDED = ROOT / "tests" / "data" / "nvidia_smi"
QUERY = """
==============NVSMI LOG==============

Timestamp                                 : Mon Jun  1 08:00:00 2026
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Product Brand                         : NVIDIA
    GPU UUID                              : GPU-0a1b
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
GPU 00000000:0A:00.0
    Product Name                          : NVIDIA A10
    GPU UUID                              : N/A
    FB Memory Usage
        Total                             : N/A
"""
H100 = Gpu(name="NVIDIA H100 80GB HBM3")


@cases(
    "text driver cuda gpus",
    ("the table, with the labels of branch 610", (RECORDED / "header_610.txt").read_text(),
     "610.43.02", "13.3", (Gpu(name="NVIDIA RTX A6000", memory_mib=49140),)),
    ("a table that cuts names, of a GPU in slices", (RECORDED / "header_510_mig.txt").read_text(),
     "510.47.03", "11.6", (Gpu(name="NVIDIA A100-SXM...", memory_mib=40960, mig=True),)),
    ("a table from before CUDA had a version in it", (RECORDED / "header_331.txt").read_text(),
     "331.62", None, (Gpu(name="Tesla K20m", memory_mib=4799),)),
    ("a table whose CUDA is an error", (RECORDED / "header_545_wsl.txt").read_text(), "546.80",
     None, (Gpu(name="NVIDIA GeForce RTX 2060", memory_mib=6144),)),
    ("the query of all values", QUERY, "550.54.15", "12.4",
     (Gpu(name="NVIDIA H100 80GB HBM3", uuid="GPU-0a1b", memory_mib=81559),
      Gpu(name="NVIDIA A10"))),
    ("the list, which has no driver",
     "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA A10\n",
     None, None, (Gpu(name="NVIDIA A100", uuid="GPU-1", mig=True), Gpu(name="NVIDIA A10"))),
    ("values by the names of their columns",
     ("name, driver_version, compute_cap, memory.total [MiB]\n"
      "NVIDIA H100 80GB HBM3, 550.54.15, 9.0, 81559 MiB\n"), "550.54.15", None,
     (Gpu(name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0), memory_mib=81559),)),
    ("values without names, GPUs counted",
     "NVIDIA H100 80GB HBM3, 550.54.15\nNVIDIA H100 80GB HBM3, 550.54.15\n", "550.54.15", None,
     (H100, H100)),
)  # fmt: skip
def test_what_is_read(text: str, driver: str | None, cuda: str | None, gpus: object) -> None:
    facts = parse_smi(text)
    assert facts is not None
    assert (facts.driver, facts.driver_cuda, facts.gpus) == (driver, cuda, gpus)
    assert facts.driver_reports_gpus == (driver is not None)


@cases(
    "text",
    ("nothing", ""),
    ("a host file", "{}"),
    ("requirements", "torch==2.0.1\n"),
    ("that it failed", (RECORDED / "exit_9.txt").read_text()),
    ("a driver in a sentence", "Driver Version: 535.104.05 is too old\n"),
    ("a log that names a GPU", "step 1\nNVIDIA H100 is used\nstep 2\n"),
)
def test_what_is_none_of_it(text: str) -> None:
    assert parse_smi(text) is None


def test_a_file_that_is_neither_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    with pytest.raises(HostFileError, match=r"a\.txt: is neither host facts"):
        read_host(str(tmp_path / "a.txt"))


def test_json_is_read_as_ever(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"driver": "535.104.05", "gpus": [{"name": "NVIDIA H100 PCIe"}]}'
    )
    facts = read_host(str(tmp_path / "a.json"))
    assert (facts.driver, facts.gpus) == ("535.104.05", (Gpu(name="NVIDIA H100 PCIe"),))


@given(st.text(st.sampled_from("GPU NVIDIA 0:|,.()\n\"'{}On/MiB"), max_size=300))
def test_any_text_is_facts_or_refused(text: str) -> None:
    with suppress(HostFileError):
        assert parse_host_text(text, label="a text").label == "a text"
