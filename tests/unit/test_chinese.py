"""The sentences in Chinese: for codes that exist, one line each, only where the locale asks."""

from __future__ import annotations

import re
import unicodedata
from typing import get_args

import pytest

from provision.cli import main as cli
from provision.doctor.knowledge import load as load_causes
from provision.model.plan import Verdict
from provision.output import chinese
from tests import ROOT
from tests.kit.cases import cases

COLUMNS = 80 - 12


def test_each_is_for_a_code_that_exists() -> None:
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    known = {*re.findall(r"`([a-z0-9-]+)`", page), *get_args(Verdict)}
    known |= {cause.code for cause in load_causes().failures}
    assert chinese.sentences().keys() - known == set()


def test_there_are_fifty_and_each_fits_its_line() -> None:
    found = chinese.sentences()
    assert len(found) >= 50
    wide = {
        code: said
        for code, said in found.items()
        if sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in said) > COLUMNS
    }
    assert wide == {}


@cases(
    "env wanted",
    ("no locale", {}, False),
    ("another language", {"LANG": "en_US.UTF-8"}, False),
    ("Chinese", {"LANG": "zh_CN.UTF-8"}, True),
    ("LC_ALL decides", {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False),
    ("the messages are Chinese", {"LANG": "C", "LC_MESSAGES": "zh_TW"}, True),
    ("an empty variable is not set", {"LC_ALL": "", "LANG": "zh_CN"}, True),
)
def test_the_locale_decides(env: dict[str, str], *, wanted: bool) -> None:
    assert chinese.is_wanted(env) is wanted
    assert bool(chinese.sentence("disk-full", env)) is wanted


@cases(
    "words code exit_code",
    ("a plan", ("plan", "--gpu", "H100", "--driver", "580.95.05"), "direct", 0),
    ("a refusal", ("plan", "--gpu", "H100", "--driver", "450.80.02"), "gpu-not-driven", 4),
    ("an error", ("plan", "--gpu", "NOSUCH"), "bad-input", 2),
    ("a cause",
     ("doctor", "--no-host", "ImportError: libcudnn.so.8: cannot open shared object file"),
     "libcudnn-missing", 0),
)  # fmt: skip
def test_it_stands_below_the_answer(
    words: tuple[str, ...],
    code: str,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(words) == exit_code
    assert chinese.LABEL not in "".join(capsys.readouterr())
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert cli.main(words) == exit_code
    assert chinese.sentences()[code] in "".join(capsys.readouterr())
    cli.main([*words, "--json"])
    assert chinese.LABEL not in capsys.readouterr().out
