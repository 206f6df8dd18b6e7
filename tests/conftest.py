"""For every lane."""

from __future__ import annotations

import signal

import pytest

# Started in the background of a script, we inherit an ignored SIGINT, and so would every program
# that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the fuzz of the resolver runs."""
    parser.addoption("--fuzz", type=int, default=100_000, help="inputs for the resolver's fuzz")
