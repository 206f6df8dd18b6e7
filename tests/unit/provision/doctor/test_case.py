"""A case to share: redacted, short, and with words that a tracker finds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from provision.cli import main as cli
from provision.doctor import diagnose
from provision.doctor.case import search_phrase
from tests import ROOT
from tests.kit.cases import cases

SCHEMA = json.loads((ROOT / "provision/doctor/doctor.schema.json").read_text(encoding="utf-8"))
LOG = (
    "Nov 02 10:00:09 gpu-seven kernel: NVRM: loading NVIDIA UNIX Open Kernel Module\n"
    + "step\n" * 200
    + "Traceback (most recent call last):\n"
    '  File "/home/kim/fit/a.py", line 3, in fit\n'
    "my.OwnError: no frob at 203.0.113.9 for kim@mail.example.com in /home/kim/frob.so.3\n"
)


@cases(
    "line phrase",
    ("an address, a process and a size",
     "my.OwnError: cannot frob tensor 0x7f12ab34 of process 4411 (2.00 GiB wanted)",
     "my.OwnError: cannot frob tensor of wanted"),
    ("of a path the name stays",
     "ImportError: /opt/fit/lib/libfrob.so.3: undefined symbol: frob_init",
     "ImportError: libfrob.so.3: undefined symbol: frob_init"),
    ("the number of an error stays", "RuntimeError: Error 803: the driver does not fit",
     "RuntimeError: Error 803: the driver does not fit"),
    ("a rank, an address and a time",
     "[rank3]: my.OwnError: no answer from 192.0.2.7:29500 at 2026-11-02T10:00:09.123",
     "my.OwnError: no answer from at"),
    ("a GPU's own numbers",
     "my.OwnError: GPU-11111111-2222-3333-4444-555555555555 is not at 0000:5e:00.0",
     "my.OwnError: GPU- is not at"),
)  # fmt: skip
def test_a_search_phrase_has_no_volatile_words(line: str, phrase: str) -> None:
    assert search_phrase(diagnose([("log", f"step 1\n{line}\n")])) == phrase


def test_a_text_that_says_nothing_has_no_search_phrase() -> None:
    assert search_phrase(diagnose([("log", "step 1\n")])) == ""


def run(*words: str) -> int:
    return cli.main(["doctor", "--no-host", *words])


def test_a_case_has_the_lines_that_say_why_and_no_names(tmp_path: Path) -> None:
    log, case = tmp_path / "run.log", tmp_path / "case.txt"
    log.write_text(LOG)
    assert run("--case", str(case), str(log)) == 7
    text = case.read_text()
    assert "204: my.OwnError: no frob at" in text
    assert len(text.splitlines()) <= 45
    for name in ("kim", "203.0.113.9", "mail.example.com", "gpu-seven", str(tmp_path)):
        assert name not in text


def test_a_case_of_standard_input_and_its_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Pipe(LOG.encode())))
    case = tmp_path / "case.txt"
    assert run("--json", "--case", str(case), "-") == 7
    said = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(said)
    assert said["case"]["file"] == str(case)
    assert said["case"]["search"].startswith("my.OwnError: no frob at")
    assert "204: my.OwnError" in case.read_text()


def test_a_case_replaces_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, case = tmp_path / "run.log", tmp_path / "case.txt"
    log.write_text(LOG)
    case.write_text("mine\n")
    assert run("--case", str(case), str(log)) == 2
    assert "exists" in capsys.readouterr().err
    assert case.read_text() == "mine\n"


def test_an_unknown_answer_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text(LOG)
    assert run(str(log)) == 7
    assert "doctor --case case.txt" in " ".join(capsys.readouterr().out.split())
