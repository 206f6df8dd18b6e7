"""GPUs of other makers: known by their names, and never taken for an NVIDIA GPU not yet listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.catalog.loading import load
from provision.cli import main as cli
from provision.model.plan import HostFacts, Request
from provision.resolve import resolve
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()


@cases(
    "name vendor",
    ("as the driver prints it", "AMD Radeon RX 7900 XTX", "AMD"),
    ("without the maker", "Radeon RX 580 Series", "AMD"),
    ("as people say it", "RX 7900", "AMD"),
    ("in one word", "RX6800XT", "AMD"),
    ("in small letters", "rx vega 64", "AMD"),
    ("a data-centre GPU", "AMD Instinct MI300X", "AMD"),
    ("a data-centre GPU by its number", "MI250", "AMD"),
    ("by its architecture", "gfx1100", "AMD"),
    ("Intel's own spelling", "Intel(R) Arc(TM) A770 Graphics", "Intel"),
    ("Intel's as people say it", "Arc B580", "Intel"),
    ("Intel's by its number", "A770", "Intel"),
    ("a processor's graphics", "Intel UHD Graphics 770", "Intel"),
    ("an accelerator", "Gaudi 3", "Intel"),
    ("Apple's", "Apple M3 Max", "Apple"),
    ("Google's", "TPU v5e", "Google"),
    ("an NVIDIA GPU", "RTX 3090", None),
    ("an NVIDIA GPU that nobody knows", "NVIDIA RTX 9999", None),
    ("one that nobody knows, without the maker", "RTX 6090", None),
    ("the maker's own word counts", "NVIDIA Arc A770", None),
    ("a number that only looks like Intel's", "A100", None),
    ("a workstation card that is not listed", "RTX A500", None),
    ("a card older than the table", "GTX 680", None),
    ("a mobile card older than the table", "Quadro M1000M", None),
    ("a slice of a card", "GRID A100-10C", None),
    ("a name that says nothing", "Graphics Device", None),
    ("nothing", "", None),
)
def test_another_maker_is_known_by_the_name(name: str, vendor: str | None) -> None:
    assert CATALOG.other_vendor(name) == vendor


def test_no_gpu_of_the_catalog_is_taken_for_another_maker_s() -> None:
    names = [name for row in CATALOG.gpus for name in (row.name, *row.aliases)]
    short = [name.removeprefix("NVIDIA ").removeprefix("GeForce ") for name in names]
    taken = {
        name
        for name in (*names, *short)
        for row in CATALOG.other_vendors
        if row.pattern.search(name.casefold())
    }
    assert taken == set()


def test_a_host_of_another_maker_is_refused_and_not_unverified() -> None:
    made = resolve([host("6.3.6", "AMD Radeon RX 7900 XTX")], Request(), CATALOG)
    assert (made.verdict, made.error and made.error.code) == ("none", "gpu-not-nvidia")
    assert made.error is not None
    assert made.error.message.startswith("AMD Radeon RX 7900 XTX is not an NVIDIA GPU (AMD).")
    assert "https://pytorch.org" in made.error.fix


def test_an_unknown_nvidia_gpu_stays_unverified() -> None:
    made = resolve([host("580.95.05", "NVIDIA RTX 9999")], Request(), CATALOG)
    assert made.verdict == "unverified"


def test_a_gpu_of_another_maker_beside_an_nvidia_one_is_left_out_with_a_note() -> None:
    laptop = host("580.95.05", "AMD Radeon Graphics", "NVIDIA GeForce RTX 4090 Laptop GPU")
    made = resolve([laptop], Request(), CATALOG)
    assert made.verdict == "direct"
    assert [gpu.name for gpu in made.gpus] == ["NVIDIA GeForce RTX 4090 Laptop GPU"]
    assert "gpu-left-out" in {note.code for note in made.notes}
    assert made.warnings == ()


def test_of_several_hosts_the_one_without_an_nvidia_gpu_is_named() -> None:
    good = host("580.95.05", "8.6")._replace(label="good.json")
    bad = host(None, "Arc A770")._replace(label="bad.json")
    made = resolve([good, bad], Request(), CATALOG)
    assert made.error is not None
    assert made.error.message.startswith("bad.json: Arc A770 is not an NVIDIA GPU (Intel).")


def test_a_host_file_of_another_maker_ends_with_the_host_unfit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "host.json"
    file.write_text('{"arch": "x86_64", "gpus": [{"name": "AMD Radeon RX 7900 XTX"}]}')
    assert cli.main(["plan", "--host", str(file)]) == 4
    assert "is not an NVIDIA GPU" in " ".join(capsys.readouterr().out.split())


def test_a_word_of_another_maker_is_refused_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("provision.host.detect", lambda: HostFacts(arch="x86_64"))
    assert cli.main(["plan", "--gpu", "RX 7900"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--gpu 'RX 7900' is not an NVIDIA GPU (AMD)" in said
    assert "--gpu NAME" in said
