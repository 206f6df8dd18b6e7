"""What a bundle has of this program."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.build.offline import tool
from provision.build.offline.errors import NotPackableError
from provision.build.offline.tool import tool_files
from tests import ROOT


def test_it_has_what_run_needs_and_nothing_that_is_made_here() -> None:
    files = tool_files()
    assert {"run", "requirements.txt", "setup_venv/__main__.py", "verify/__main__.py"} <= set(files)
    assert files["run"] == (ROOT / "run").read_bytes()
    assert [path for path in files if path.endswith(".pyc") or "/." in path or path[0] == "."] == []
    assert all((ROOT / path).is_file() for path in files)


def test_only_a_checkout_can_be_packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "provision" / "build" / "offline" / "tool.py"
    monkeypatch.setattr(tool, "__file__", str(installed))
    with pytest.raises(NotPackableError, match="it has no run"):
        tool_files()
