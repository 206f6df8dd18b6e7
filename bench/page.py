"""First paint of the page of `provision catalog page`, and when its answer is there, in headless
Chromium from a file, with the processor slowed down.

    ./run provision catalog page --output site
    ./run python -m bench.page site/index.html
"""

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
from pathlib import Path

from tests.browser.chromium import Browser, browser

RUNS = 7
SLOWDOWNS = (1, 4, 6)
QUESTION = "#gpu=nvidia-geforce-rtx-3090&driver=535.183.01"
TIMES = """
new Promise(done => requestAnimationFrame(() => setTimeout(() => done([
  performance.getEntriesByName("first-contentful-paint")[0].startTime,
  performance.getEntriesByType("navigation")[0].domContentLoadedEventStart]), 100)))
"""


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    content = page.read_bytes()
    print(f"{len(content):,} bytes, {len(gzip.compress(content)):,} with gzip")
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
        for slowdown in SLOWDOWNS:
            times = [measure(tab, page, slowdown) for _ in range(RUNS + 1)][1:]
            paint, answer = (statistics.median(column) for column in zip(*times, strict=True))
            worst = max(paint for paint, _ in times)
            print(
                f"processor slowed {slowdown} times: first paint {paint:.0f} ms (at most "
                f"{worst:.0f}), answer {answer:.0f} ms"
            )


def measure(tab: Browser, page: Path, slowdown: int) -> tuple[float, float]:
    """Milliseconds from the start of the navigation to the first paint, and to the answer."""
    tab.open(Path("/dev/null"), width=360)
    tab.send("Emulation.setCPUThrottlingRate", rate=slowdown)
    tab.events.clear()
    tab.send("Page.navigate", url=page.as_uri() + QUESTION)
    tab.wait_for("Page.loadEventFired")
    found = tab.send("Runtime.evaluate", expression=TIMES, awaitPromise=True, returnByValue=True)
    paint, answer = found["result"]["value"]
    return paint, answer


if __name__ == "__main__":
    main()
