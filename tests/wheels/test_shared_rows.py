"""Rows of the table of known layers, made again from the wheel that they speak of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from images.layers import shared
from tests import need
from tests.kit.programs import run_program

WHEEL = ("nvidia-cuda-cupti-cu11", "11.7.101")  # the smallest of the table, 12 MB


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place)]
    argv += ["--only-binary", ":all:", "--platform", "manylinux1_x86_64", "==".join(WHEEL)]
    done = run_program(argv)
    if done.returncode:
        need.lacking(f"the wheel cannot be fetched: {done.stderr}")
    return next(place.glob("*.whl"))


@pytest.mark.parametrize("python", ["3.8", "3.11"])
def test_a_row_is_what_its_wheel_gives(wheel: Path, python: str) -> None:
    rows = json.loads(shared.TABLE.read_bytes())["layers"]
    title = " ".join(WHEEL)
    expected = [row for row in rows if (row["title"], row["python"]) == (title, python)]
    assert list(shared.rows_of(python, [wheel])) == expected != []


def test_the_table_is_printed_as_it_is_kept(
    wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shared.main(["3.11", str(wheel)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layers"]
    assert row in json.loads(shared.TABLE.read_bytes())["layers"]
    assert shared.main([]) == 2
