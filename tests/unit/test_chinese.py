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


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        pytest.param({}, False, id="no locale"),
        pytest.param({"LANG": "en_US.UTF-8"}, False, id="another language"),
        pytest.param({"LANG": "zh_CN.UTF-8"}, True, id="Chinese"),
        pytest.param({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False, id="LC_ALL decides"),
        pytest.param({"LANG": "C", "LC_MESSAGES": "zh_TW"}, True, id="the messages are Chinese"),
        pytest.param({"LC_ALL": "", "LANG": "zh_CN"}, True, id="an empty variable is not set"),
    ],
)
def test_the_locale_decides(env: dict[str, str], *, wanted: bool) -> None:
    assert chinese.is_wanted(env) is wanted
    assert bool(chinese.sentence("disk-full", env)) is wanted


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        pytest.param(("plan", "--gpu", "H100", "--driver", "580.95.05"), "direct", 0, id="a plan"),
        pytest.param(
            ("plan", "--gpu", "H100", "--driver", "450.80.02"), "gpu-not-driven", 4, id="a refusal"
        ),
        pytest.param(("plan", "--gpu", "NOSUCH"), "bad-input", 2, id="an error"),
        pytest.param(
            ("doctor", "--no-host", "ImportError: libcudnn.so.8: cannot open shared object file"),
            "libcudnn-missing",
            0,
            id="a cause",
        ),
    ],
)
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
