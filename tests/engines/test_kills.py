"""Builds that are killed at any moment: bench/kills.py, in short."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bench import kills
from tests import need

pytestmark = pytest.mark.docker


def test_killed_builds_leave_nothing_that_looks_whole(pytestconfig: pytest.Config) -> None:
    need.program("openssl")
    counts = kills.sweep(pytestconfig.getoption("--fuzz") or 6, seed=1)
    assert counts.faults == []
    assert counts.killed
    assert counts.blobs


def test_a_damaged_blob_is_found(tmp_path: Path) -> None:
    blob = tmp_path / hashlib.sha256(b"whole").hexdigest()
    blob.write_bytes(b"whole")
    assert not kills.is_damaged(blob)
    blob.write_bytes(b"who")
    assert kills.is_damaged(blob)
