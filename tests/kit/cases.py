"""Tables of cases."""

from __future__ import annotations

from typing import Any

import pytest


def cases(names: str, *rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Run a test with each row: the sentence that names the case, then a value for each name."""
    ids = [row[0] for row in rows]
    assert len(set(ids)) == len(ids)
    found = [pytest.param(*row[1:], id=row[0]) for row in rows]
    return pytest.mark.parametrize(names.split(), found)
