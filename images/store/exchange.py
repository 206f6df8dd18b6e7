"""Asks servers for wheels: connections that are kept, a login for its own host alone."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from images.inspect.transfer import Answer, Transfers, _aside, without_login
from images.registry.http import open_pool, proxy_for, tls_context

if TYPE_CHECKING:
    import ssl

    from urllib3 import BaseHTTPResponse, PoolManager


class Pools:
    """Connections to all servers, each through the proxy that `proxy` names for its address."""

    def __init__(
        self,
        *,
        ca_bundle: str,
        connections: int,
        proxy: Callable[[str], str | None] = proxy_for,
    ) -> None:
        self._ca_bundle = ca_bundle
        self._proxy_for = proxy
        self._connections = connections
        self._context: ssl.SSLContext | None = None
        self._pools: dict[str | None, PoolManager] = {}
        self._lock = threading.Lock()

    def request(self, method: str, url: str, **more: Any) -> BaseHTTPResponse:  # noqa: ANN401
        with self._lock:
            if self._context is None:
                self._context = _context(self._ca_bundle)
            proxy = self._proxy_for(url)
            pool = self._pools.get(proxy)
            if pool is None:
                pool = open_pool(proxy, self._context, connections=self._connections)
                self._pools[proxy] = pool
        return pool.request(method, url, **more)

    def clear(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.clear()


class Exchange(Transfers):
    """Asks for one wheel, from any byte on, as often as needed."""

    def __init__(
        self, url: str, pools: Pools, *, login: Mapping[str, str], patience_s: float
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # ValueError where it is no number
        if not parts.hostname:
            raise ValueError("it names no host")
        self.origin = without_login(parts)
        self.has_login = bool(login)
        self._login = dict(login)
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._pool = cast("PoolManager", pools)  # it is asked for nothing but requests
        self._reading: BaseHTTPResponse | None = None

    @property
    def host(self) -> str:
        """For people: who is asked."""
        return urllib.parse.urlsplit(self.origin).netloc

    def close(self) -> None:
        """Call off what is under way: who waits for it hears of an end."""
        self._closed.set()
        shutdown: Callable[[], None] | None = getattr(self._reading, "shutdown", None)
        if shutdown is not None:
            # it may have ended just now, and the connection may be another's
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                shutdown()

    def ask_from(self, offset: int, tag: str | None) -> Answer:
        """Give the head of the answer, then the bytes from `offset` on, or all.

        With a `tag` (ETag) a server gives all where its file is another one by now.
        """
        headers = {"User-Agent": "gpu-provision", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if tag:
                headers["If-Range"] = tag
        return _aside(lambda: self._exchange(self.origin, headers), self._patience_s, self._closed)

    def _send(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        self._reading = super()._send(url, headers)
        return self._reading


def _context(ca_bundle: str) -> ssl.SSLContext:
    if not ca_bundle:
        return tls_context(None)
    with tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="utf-8") as file:
        file.write(ca_bundle)
        file.flush()
        return tls_context(Path(file.name))
