"""Fixtures of the unit lane."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from images.text.printable import printable_json
from provision.catalog.canonical import dump
from provision.catalog.catalog import Catalog
from provision.catalog.data_files import DATA
from provision.catalog.loading import load
from provision.cli import main as cli
from tests.kit import schemas
from tests.kit.broken_catalog import Break

# How long an example takes says more of the machine than of us.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")


@pytest.fixture(autouse=True, scope="session")
def _results_are_as_their_schemas_say() -> Iterator[None]:
    """What a test has a command print with --json is compared with docs/schemas."""
    shown: list[str] = []
    main = cli.main

    def watched(argv: Sequence[str] | None = None) -> int:
        shown.clear()
        code = main(argv)
        for text in shown:
            if (name := schemas.schema_of(argv or (), result := json.loads(text))) is not None:
                assert schemas.problems(name, result) == []
        return code

    def noted(text: str) -> str:
        shown.append(text)
        return printable_json(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "main", watched)
        patch.setattr("provision.output.stdout.printable_json", noted)
        yield


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
