"""The README's two commands, in order, from a clone, with nothing else installed: exit 0 each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import need
from tests.bare.roots import Kind, Root, clone_into, make_root
from tests.engines.lab import ROOT

pytestmark = pytest.mark.bare

FOLDER = "gpu-provision"
LIMIT_S = 2400.0

KINDS = [
    pytest.param(Kind("bookworm", has_dpkg=False), id="Debian 12 without dpkg and apt, as root"),
    pytest.param(Kind("trixie", user=1000), id="Debian 13, as an ordinary user"),
]


@pytest.fixture
def root(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Root]:
    """A machine with a clone on it; not below pytest's own folder, whose parents others may not
    enter.
    """
    need.root()
    for name in ("unshare", "setpriv", "pivot_root"):
        need.program(name, "util-linux")
    place = Path(tempfile.mkdtemp(prefix="gpu-provision-bare-"))
    place.chmod(0o755)
    made = make_root(place, request.param, tmp_path_factory.getbasetemp())
    clone_into(made, ROOT, FOLDER)
    yield made
    shutil.rmtree(place)


@pytest.mark.parametrize("root", KINDS, indirect=True)
def test_both_commands_succeed(root: Root, record_property: Callable[[str, object], None]) -> None:
    for command in ("./run provision build --cuda 11.7", "./run test"):
        typed = root.type(command, FOLDER, limit_s=LIMIT_S)
        record_property("transcript", str(typed))
        assert typed.code == 0, typed
