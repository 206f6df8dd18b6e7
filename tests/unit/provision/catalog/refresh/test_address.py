"""The default index, and why there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.catalog.refresh.address import default_index
from provision.catalog.refresh.model import SourceError


def uv_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    program = tmp_path / "uv"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: program)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("exit 0", "uv names none", id="uv names none"),
        pytest.param(
            "echo 'error: No space left on device (os error 28)' >&2; exit 2",
            "uv failed: error: No space left on device",
            id="a full disk",
        ),
        pytest.param("exit 2", "uv failed.", id="uv says nothing"),
        pytest.param(None, "uv cannot be started: The program", id="uv is gone"),
    ],
)
def test_why_there_is_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, why: str
) -> None:
    uv_that(tmp_path, monkeypatch, script)
    with pytest.raises(SourceError) as caught:
        default_index(None, {"HOME": str(tmp_path)})
    assert f"No package index is configured, and {why}" in caught.value.message


def test_the_named_index_needs_no_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv_that(tmp_path, monkeypatch, None)
    assert default_index("https://index.example/simple/", {}).url == "https://index.example/simple"


def test_uvs_own_default_is_found(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    assert default_index(None, env).name == "PyPI"
