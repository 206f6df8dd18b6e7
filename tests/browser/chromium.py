"""A real headless Chromium, driven by the DevTools protocol over a pipe: no port, no extra package.

The protocol's messages are JSON, each ended by a zero byte; Chromium reads them from file
descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.need import lacking

LIMIT_S = 120.0  # a loaded machine of two cores starts it in ten seconds
_FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """Chromium said no, or nothing any more."""


class Browser:
    """One tab. What it logs, and what it asks the network for, is kept."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and give its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._last:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']}")
                return dict(found["result"])
            self.events.append(found)

    def wait_for(self, event: str) -> None:
        """Until Chromium tells of it."""
        while not any(found.get("method") == event for found in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._back], [], [], left)[0]:
                raise BrowserError("nothing heard from Chromium")
            data = os.read(self._back, 1 << 20)
            if not data:
                raise BrowserError("Chromium has gone")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(line))

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of that size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def logged(self) -> list[str]:
        """Whatever stands in the console, blocked loads and scripts included."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]

    def requested(self) -> list[str]:
        """The addresses that it asked for."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in sent]

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


def executable() -> str:
    """Debian names it chromium, others chromium-browser or google-chrome."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return lacking("Chromium is not installed", "apt-get install chromium")


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start it, with a profile of its own, and end it."""
    there, to = _pipe()
    back, here = _pipe()
    argv = [executable(), *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    script = f'exec "$@" 3<&{there} 4>&{here}'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *argv],
            pass_fds=(there, here),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(there)
    os.close(here)
    try:
        yield Browser(to, back)
    finally:
        os.close(to)
        os.close(back)
        end(process)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 or 4 themselves: the redirections would close them."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def end(process: subprocess.Popen[bytes]) -> None:
    """Chromium ends by itself when its pipe is closed."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
