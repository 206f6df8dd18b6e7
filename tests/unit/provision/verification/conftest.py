"""A directory to work in, and the engine of a machine, which is a small stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.model.plan import HostFacts
from tests.kit.fake_engine import FACTS, Engine


@dataclass
class Place:
    """A directory to work in, and the engine of this machine."""

    path: Path
    engine: Engine
    monkeypatch: pytest.MonkeyPatch

    def __truediv__(self, name: str) -> Path:
        return self.path / "work" / name

    @property
    def home(self) -> Path:
        return self.path / "state" / "gpu-provision"

    @property
    def records(self) -> list[Path]:
        return sorted((self.home / "records").glob("*"))

    def facts(self, facts: HostFacts) -> None:
        for module in ("commands", "gate"):
            self.monkeypatch.setattr(f"provision.cli.{module}.this_host", lambda: facts)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Place(tmp_path, Engine(), monkeypatch)
    monkeypatch.setattr("images.engines.docker.Docker.connect", lambda **_: place.engine)
    place.facts(FACTS)
    return place
