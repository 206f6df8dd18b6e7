"""The fleet's page in a real browser, with what the nodes did together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.fleet.across.search import AcrossDiagnosis
from tests.browser.chromium import Browser, browser
from tests.browser.test_page import OUTSIDE
from tests.kit.together import together
from tests.unit.verify.fleet.test_across import NAMES, Fleet

LONG = f"n3: {'a message without an end ' * 30}{'x' * 300}"
RESULTS = {
    "good": together(*NAMES),
    "bad": together(*NAMES, wrong=AcrossDiagnosis({"n3": LONG}, sick=("n2",), complete=False)),
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", RESULTS)
def test_the_page_fits_and_shows_the_nodes_together(
    tab: Browser, tmp_path: Path, name: str, width: int
) -> None:
    fleet = Fleet(tmp_path)
    assert fleet.run(RESULTS[name]) == (0 if name == "good" else 1)
    page = tmp_path / "out.html"
    tab.open(page, width=width)
    assert tab.logged() == []
    assert tab.requested() == [page.as_uri()]
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.run(OUTSIDE) == []
    assert tab.run("document.querySelectorAll('svg.plot circle').length") > 0
    shown = tab.run("document.body.innerText")
    assert "All nodes together" in shown
    assert ("sick: n2" in shown) is (name == "bad")
    if folder := os.environ.get("BROWSER_PICTURES"):
        tab.picture(Path(folder) / f"fleet-{name}-{width}.png")
