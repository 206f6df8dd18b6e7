"""A directory to work in, and the engine of a machine, which is a small stand-in."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.system.process import Completed
from provision.model.plan import HostFacts
from provision.verification.suite import run_here, suite_directory
from tests.kit.fake_engine import FACTS, Engine
from verify.commands.main import main as suite


def run_inside(words: Sequence[str], timeout_s: float = 120.0) -> Completed:
    """As `run_here`, in this process: a new one costs ten times what the suite does in it."""
    del timeout_s
    before = Path.cwd()
    with (
        io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) as out,
        io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        os.chdir(suite_directory().parent)  # a path that is relative is not the caller's there
        try:
            code = suite(words)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os.chdir(before)
        said, wrong = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Completed(argv=("verify", *words), code=code, output=wrong, stdout=said, seconds=0.0)


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
        self.monkeypatch.setattr("provision.host.detect", lambda: facts)

    def ask_the_suite(self, ask: Callable[..., Completed] = run_here) -> None:
        """How its own command line is run on this machine: as users run it, in a process."""
        for module in ("suite", "report_files"):
            self.monkeypatch.setattr(f"provision.verification.{module}.run_here", ask)


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
    place.ask_the_suite(run_inside)
    return place
