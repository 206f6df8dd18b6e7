"""Debian's docker-registry, as a process of a test."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests import need
from tests.clusters.ssh_servers import free_port


@contextmanager
def serving(place: Path, **more: Any) -> Iterator[str]:
    """Run it below `place`, with `more` of its settings; yields its address."""
    program = need.program("docker-registry")
    place.mkdir(exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    storage = {"filesystem": {"rootdirectory": str(place / "data")}, "delete": {"enabled": True}}
    http = {"addr": address}
    settings = {"version": 0.1, "log": {"level": "warn"}, "storage": storage, "http": http, **more}
    file = place / "config.yml"
    file.write_text(json.dumps(settings))  # JSON is YAML
    with (place / "log").open("w") as log:
        server = subprocess.Popen([program, "serve", str(file)], stdout=log, stderr=log)
    try:
        _wait_until_up(address, server, place / "log")
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)


def _wait_until_up(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + 30
    while True:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
