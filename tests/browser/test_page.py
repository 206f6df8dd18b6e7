"""The HTML report in a real browser: whole, quiet, within its width, readable, and inert."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Browser, browser
from tests.kit.reports import hostile, made_up
from verify.reports import compare, formatting, html

WIDTHS = (360, 1200)
SCHEMES = ("light", "dark")


def samples() -> dict[str, Any]:
    """A page of each kind."""
    found = {name: made_up(name) for name in ("fit", "unfit", "no-verdict")}
    found["unfit"]["comparison"] = compare.compare(found["fit"], found["unfit"])
    return {**found, "hostile": hostile(), "bare": {**made_up("no-verdict"), "checks": []}}


REPORTS = samples()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in REPORTS}
    for name, path in found.items():
        path.write_text(html.render(REPORTS[name]), encoding="utf-8")
    return found


def show(
    tab: Browser, path: Path, width: int = 1200, scheme: str = "light", *, folded: bool = False
) -> None:
    tab.open(path, width=width, dark=scheme == "dark")
    if not folded:
        tab.run("document.querySelectorAll('details').forEach(d => { d.open = true })")


ROWS = """
[...document.querySelectorAll(".checks tbody tr")].filter(r => r.checkVisibility() &&
  r.offsetHeight > 20).map(r => [r.querySelector(".name").innerText,
  r.querySelector(".status").innerText, r.innerText])
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_what_did_not_pass_is_seen_first_and_a_link_unfolds_the_rest(
    tab: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    show(tab, pages[name], width, folded=True)
    checks = REPORTS[name]["checks"]
    passed = [c for c in checks if c["status"] == "pass"]
    shown = checks if len(passed) <= html.MOST_PASSES else [c for c in checks if c not in passed]
    assert [row[0] for row in tab.run(ROWS)] == [c["id"] for c in shown]
    target = "[...document.querySelectorAll('[id^=check-]')].pop()"
    if not tab.run("document.querySelector('[id^=check-]') !== null"):
        return
    assert not tab.run(f"{target}.checkVisibility()")
    tab.run(f"location.hash = {target}.id")
    assert tab.run(f"{target}.checkVisibility()")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_logged_asked_for_or_cut_off(
    tab: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    show(tab, pages[name], width, scheme)
    assert tab.logged() == []
    assert tab.requested() == [pages[name].as_uri()]
    assert tab.run("innerWidth") == width
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.run(OUTSIDE) == []
    if folder := os.environ.get("BROWSER_PICTURES"):
        tab.picture(Path(folder) / f"{name}-{width}-{scheme}.png")


# Elements that reach out of the window, but for those within a part that scrolls by itself.
OUTSIDE = """
[...document.body.querySelectorAll("*")].filter(e => !e.closest(".wide, pre, nav") &&
  e.getClientRects().length && (e.getBoundingClientRect().right > innerWidth + 1 ||
  e.getBoundingClientRect().left < -1)).map(e => e.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_every_check_is_to_be_seen(
    tab: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    show(tab, pages[name], width)
    seen = sorted(tab.run(ROWS))
    checks = sorted(REPORTS[name]["checks"], key=lambda check: str(check["id"]))
    assert [row[:2] for row in seen] == [[c["id"], c["status"]] for c in checks]
    for row, check in zip(seen, checks, strict=True):
        assert formatting.one_line(check["message"]) in " ".join(row[2].split())


# For each plot: its size on the screen, and what of it lies outside of its own paper.
PLOTS = """
[...document.querySelectorAll("svg.plot")].map(s => {
  const box = s.getBoundingClientRect(), view = s.viewBox.baseVal;
  const out = [...s.querySelectorAll("text, line, polyline, circle, rect")].filter(e => {
    const b = e.getBBox();
    return Math.min(b.x, b.y) < -1 || b.x + b.width > view.width + 1 ||
      b.y + b.height > view.height + 1;
  });
  return {id: s.getAttribute("aria-labelledby"), width: box.width, height: box.height,
    marks: s.querySelectorAll("circle, rect").length, out: out.map(e => e.outerHTML),
    scale: box.width / view.width};
})
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_every_plot_is_drawn_on_its_paper(
    tab: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    show(tab, pages[name], width)
    found = tab.run(PLOTS)
    drawn = [plot for c in REPORTS[name]["checks"] for plot in c["measured"].get("plots", [])]
    assert len([plot for plot in found if plot["id"].startswith("plot-")]) == len(drawn)
    for plot in found:
        assert plot["out"] == []
        assert plot["marks"] > 0
        assert plot["width"] >= 250
        assert plot["height"] > 50
        assert plot["scale"] * 12 >= 8.5  # pixels of the smallest letters


# Texts whose colour is too near to what they stand on (WCAG 2, AA).
CONTRAST = """
(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
    return [255, 255, 255]; };
  const bad = []; let seen = 0;
  for (const e of document.body.querySelectorAll("*")) {
    if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    if (e.closest("title, desc")) continue;
    const style = getComputedStyle(e);
    const ink = parse(e.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(e.outerHTML.slice(0, 200));
  }
  return [seen, bad];
})()
"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", REPORTS)
def test_all_text_stands_out(tab: Browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    show(tab, pages[name], 1200, scheme)
    seen, bad = tab.run(CONTRAST)
    assert seen > 20
    assert bad == []
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) is (scheme == "dark")


def test_what_was_injected_stays_text(tab: Browser, pages: dict[str, Path]) -> None:
    show(tab, pages["hostile"])
    assert tab.run("document.title").startswith("Unfit: PyTorch")
    counts = tab.run(
        'Object.fromEntries(["script", "img", "iframe", "object", "form", "link", "base"]'
        ".map(n => [n, document.querySelectorAll(n).length]))"
    )
    assert not any(counts.values()), counts
    assert tab.run(
        '[...document.querySelectorAll("*")].every(e => [...e.attributes].every('
        'a => !a.name.startsWith("on") && a.name != "src" &&'
        ' (a.name != "href" || a.value[0] == "#")))'
    )
    assert "<script>document.title='owned'</script>" in tab.run("document.body.innerText")


def test_the_policy_would_stop_what_the_escaping_let_pass(
    tab: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = pages["fit"].read_text(encoding="utf-8")
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace("<main>", "<main>" + attack), encoding="utf-8")
    show(tab, broken)
    assert "owned" not in tab.run("document.title")
    assert tab.run("document.scripts.length") == 1
    assert any("Content Security Policy" in line for line in tab.logged())


def test_a_screen_reader_finds_its_way(tab: Browser, pages: dict[str, Path]) -> None:
    show(tab, pages["unfit"])
    nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
    spoken = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = [role for role, _ in spoken]
    for landmark in ("banner", "main", "navigation", "contentinfo"):
        assert roles.count(landmark) == 1, landmark
    for named in ("table", "region", "image", "navigation"):
        assert all(name for role, name in spoken if role == named and named != "table"), named
    assert {"columnheader", "rowheader"} <= set(roles)
    report = REPORTS["unfit"]
    plots = [p["title"] for c in report["checks"] for p in c["measured"].get("plots", [])]
    images = [name for role, name in spoken if role in ("image", "img")]
    assert all(any(title in name for name in images) for title in plots), json.dumps(images)
    levels = tab.run('[...document.querySelectorAll("h1,h2,h3,h4")].map(h => +h.tagName[1])')
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_paper_is_light_and_shows_the_numbers(tab: Browser, pages: dict[str, Path]) -> None:
    show(tab, pages["fit"], 1200, "dark")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    tab.send("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.run(CONTRAST)[1] == []
    assert tab.run('document.querySelector("nav").checkVisibility()') is False
    assert tab.run('document.querySelector("figure details table").checkVisibility()') is True
    printed = tab.send("Page.printToPDF", printBackground=True)["data"]
    assert printed.startswith("JVBERi")  # %PDF
