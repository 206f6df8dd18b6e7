"""A service that keeps Debian's past, of which it knows one day: what this host's mirror has now.

Under `/archive/debian/<stamp>/` and `/archive/debian-security/<stamp>/` it gives what the mirrors
of the host's apt give.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from images.bootstrap.host import read_sources
from images.bootstrap.mirrors import debian_sources
from tests.kit.web_server import Handler, WebServer

_PATH = re.compile(r"/archive/(debian|debian-security)/(\d{8}T\d{6}Z)/(.+)")


@dataclass
class SnapshotService:
    """Where it is, and which times it was asked for."""

    address: str
    stamps: set[str] = field(default_factory=set)


def host_mirrors(suite: str) -> Mapping[str, str]:
    """The mirrors of the host's apt by what they hold; empty where it has none of Debian."""
    found = {source.suite: source.uri for source in debian_sources(read_sources(), suite)}
    security = found.get(f"{suite}-security")
    if suite not in found or security is None:
        return {}
    return {"debian": found[suite].rstrip("/"), "debian-security": security.rstrip("/")}


@contextlib.contextmanager
def snapshot_service(mirrors: Mapping[str, str]) -> Iterator[SnapshotService]:
    """Run it on loopback."""

    class Days(Handler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            match = _PATH.fullmatch(self.path)
            if match is None:
                self.send_error(404)
                return
            service.stamps.add(match[2])
            try:
                answer = urllib.request.urlopen(f"{mirrors[match[1]]}/{match[3]}", timeout=60)
            except urllib.error.HTTPError as error:
                with error:
                    self.send_error(error.code)
                return
            with answer:
                self.send_response(200)
                self.send_header("Content-Length", answer.headers["Content-Length"])
                self.end_headers()
                shutil.copyfileobj(answer, self.wfile, 1 << 20)

    with WebServer(Days) as server:
        service = SnapshotService(f"{server.url}/archive")
        yield service
