"""For every lane."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# These share an engine, frameworks or a browser that it would cost minutes to have twice.
TOGETHER = ("browser", "docker", "frameworks", "gpu", "wheels")

# Started in the background of a script, we inherit an ignored SIGINT, and so would every program
# that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the tests of a lane in one process, where several run."""
    lane = item.path.relative_to(TESTS).parts[0]
    if lane in TOGETHER:
        item.add_marker(pytest.mark.xdist_group(lane))


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the fuzz of the resolver runs."""
    parser.addoption("--fuzz", type=int, default=100_000, help="inputs for the resolver's fuzz")
