"""The default index, and why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.catalog.index.address import default_index
from provision.catalog.index.fetch import SourceError
from tests.kit.cases import cases


def uv_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    program = tmp_path / "uv"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: program)


@cases(
    "script why",
    ("uv names none", "exit 0", "uv names none"),
    ("a full disk", "echo 'error: No space left on device (os error 28)' >&2; exit 2",
     "uv failed: error: No space left on device"),
    ("uv says nothing", "exit 2", "uv failed."),
    ("uv is gone", None, "uv cannot be started: The program"),
)  # fmt: skip
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


@cases(
    "env url",
    ("pip", {"PIP_INDEX_URL": "https://a.example/s/"}, "https://a.example/s"),
    ("uv before pip, as in a lock",
     {"PIP_INDEX_URL": "https://a.example/s", "UV_INDEX_URL": "https://b.example/s"},
     "https://b.example/s"),
    ("uv's newer name before its older",
     {"UV_INDEX_URL": "https://a.example/s", "UV_DEFAULT_INDEX": "https://b.example/s"},
     "https://b.example/s"),
)  # fmt: skip
def test_the_environment_names_the_index(env: dict[str, str], url: str) -> None:
    found = default_index(None, {"PATH": "/nosuch", **env})
    assert (found.url, found.name) == (url, url.split("/")[2])


def test_an_index_that_is_named_wins_and_its_login_is_not_its_name() -> None:
    found = default_index(
        "https://ann:canary@c.example/simple/", {"UV_INDEX_URL": "https://x.example"}
    )
    assert found.url == "https://ann:canary@c.example/simple"
    assert found.name == "c.example"


def test_pip_is_asked_for_its_configuration(tmp_path: Path) -> None:
    pip = tmp_path / "pip"
    setting = "global.index-url='https://corp.example/simple'"
    pip.write_text(f'#!/bin/sh\n[ "$1 $2" = "config list" ] && echo "{setting}"\n')
    pip.chmod(0o755)
    found = default_index(None, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found.name == "corp.example"


def test_where_nothing_is_configured_uv_says_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where uv finds no Python by itself
    found = default_index(None, {"PATH": "/nosuch", "HOME": "/nosuch"})
    assert found.name == "PyPI"
    assert found.url.startswith("https://")


def test_an_index_on_a_disk_is_refused() -> None:
    with pytest.raises(SourceError, match="not on the network"):
        default_index("file:///srv/simple", {"PATH": "/nosuch"})
