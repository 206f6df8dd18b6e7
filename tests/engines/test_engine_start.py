"""The opt-in start of an engine, with a real one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.engines import start as engine_start
from images.system import process
from tests import need
from tests.engines.private_engine import unmount_below

pytestmark = pytest.mark.docker


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's; no mount of the engine survives in it."""
    made = Path(tempfile.mkdtemp(prefix="gp-"))
    yield made
    unmount_below(made)
    shutil.rmtree(made)


def test_an_engine_starts_with_less_and_is_stopped_by_its_id(place: Path) -> None:
    need.root()
    need.program("dockerd", "docker.io")
    host, log = f"unix://{place}/s", place / "log"
    said: list[str] = []
    arguments = (
        # The default bridge: an engine started with --bridge=none deletes that of the machine's.
        "--iptables=false", "--ip6tables=false",
        "--data-root", f"{place}/data", "--exec-root", f"{place}/exec", "--pidfile", f"{place}/pid",
        "--storage-driver", "zfs",  # which no machine of ours has: something is to be left out
    )  # fmt: skip
    started = engine_start.start_engine(
        host=host,
        log=log,
        say=said.append,
        io=engine_start.local_io(host, log),
        arguments=arguments,
    )
    try:
        assert started.version
        assert int((place / "pid").read_text()) == started.pid
        assert os.getsid(started.pid) == started.pid
        left_out = [argument for step in started.left_out for argument in step.arguments]
        assert "--storage-driver=vfs" in left_out
        assert [line for line in said if line.startswith("dockerd did not start: ")]
    finally:
        engine_start.stop_pid(started.pid)
    assert not process.is_alive(started.pid)
    assert not engine_start.ask_engine(host).is_up
