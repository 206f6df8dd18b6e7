"""Fixtures of the unit lane."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from provision.catalog.canonical import dump
from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.reading import DATA
from tests.kit.broken_catalog import Break

# How long an example takes says more of the machine than of us.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")


@pytest.fixture
def catalog() -> Catalog:
    return load()


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str, Break], Path]:
    """Copies the tables and lets the test break one of them."""

    def make(name: str, change: Break) -> Path:
        directory = tmp_path / "data"
        shutil.copytree(DATA, directory)
        raw = json.loads((directory / name).read_text(encoding="utf-8"))
        change(raw)
        (directory / name).write_text(dump(raw), encoding="utf-8")
        return directory

    return make
