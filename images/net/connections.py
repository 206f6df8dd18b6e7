"""Opens connections with this host's proxies and certificates, and with timeouts.

Each wait has a limit: to connect, to send a piece, to receive all of an answer's headers. A
trickle of bytes does not extend it.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.net.address import is_loopback
from images.net.errors import BadCaBundle
from images.net.logins import authorization

if TYPE_CHECKING:
    import urllib3

_SYSTEM_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def tls_context(ca_bundle: Path | str | None) -> ssl.SSLContext:
    """A context with the system's certificate authorities and those of a bundle (file or text).

    BadCaBundle: it cannot be read. The same files give the same context: reading them takes longer
    than a small request.
    """
    named = [ca_bundle] if isinstance(ca_bundle, Path) else []
    named += [Path(os.environ[name]) for name in _SYSTEM_FILES if os.environ.get(name)]
    return _context(ca_bundle, tuple((path, _changed(path)) for path in named))


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=4)
def _context(
    ca_bundle: Path | str | None,
    files: tuple[tuple[Path, int | None], ...],  # noqa: ARG001  what else decides
) -> ssl.SSLContext:
    context = ssl.create_default_context()  # honours SSL_CERT_FILE and SSL_CERT_DIR
    try:
        if isinstance(ca_bundle, Path):
            context.load_verify_locations(cafile=ca_bundle)
        elif ca_bundle:  # non-ASCII text is only in remarks between certificates
            context.load_verify_locations(cadata=ca_bundle.encode("ascii", "ignore").decode())
    except (OSError, ssl.SSLError) as exc:
        named = f" {ca_bundle}" if isinstance(ca_bundle, Path) else ""
        raise BadCaBundle(
            f"The CA bundle{named} cannot be used: {exc}.",
            fix="Give a file of certificates in PEM form: --ca-bundle FILE",
        ) from exc
    return context


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment sets for an address; loopback addresses have none."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    # a proxy would look for localhost on its own machine
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    # HTTPS_PROXY=host:3128 is common, and curl reads it so
    return proxy if "://" in proxy else f"http://{proxy}"


def open_pool(
    proxy: str | None, context: ssl.SSLContext | None, *, connections: int, silence_s: float
) -> urllib3.PoolManager:
    """Connections through a proxy or without one; keeps up to `connections` for each host.

    `silence_s`: the time limit to send one piece.
    """
    import urllib3

    settings: dict[str, Any] = {"maxsize": connections, "ssl_context": context}
    if proxy is None:
        pool = urllib3.PoolManager(**settings)
    else:
        login = authorization(proxy, {}).get("Authorization")
        headers = {"Proxy-Authorization": login} if login else None
        pool = urllib3.ProxyManager(
            proxy, proxy_headers=headers, proxy_ssl_context=context, **settings
        )
    pool.pool_classes_by_scheme = _pool_classes(silence_s)
    return pool


class _Clock:
    """Ends the wait for an answer's headers in time, even if they trickle in slowly."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        # a socket's own time limit begins again with each byte
        self.late = False
        self._sock = sock
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def _cut(self) -> None:
        self.late = True
        with contextlib.suppress(OSError):
            # shut down the plain socket: SSLSocket.shutdown would break the reading thread
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def stop(self) -> None:
        self._timer.cancel()


def _pool_classes(silence_s: float) -> dict[str, Any]:
    """Connection classes with the time limits for sending and waiting that this client needs."""
    import urllib3.connection
    import urllib3.connectionpool

    class Plain(urllib3.connection.HTTPConnection):
        def send(self, data: Any) -> None:  # noqa: ANN401
            _send(self, super().send, data, silence_s)

        def getresponse(self) -> Any:  # noqa: ANN401
            return _response(self, super().getresponse)

    class Encrypted(urllib3.connection.HTTPSConnection):
        def send(self, data: Any) -> None:  # noqa: ANN401
            _send(self, super().send, data, silence_s)

        def getresponse(self) -> Any:  # noqa: ANN401
            return _response(self, super().getresponse)

    class PlainPool(urllib3.connectionpool.HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(urllib3.connectionpool.HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}


def _send(connection: Any, send: Any, data: Any, silence_s: float) -> None:  # noqa: ANN401
    # urllib3 limits sending with the connect timeout, which is too short for slow lines
    if connection.sock is not None:
        connection.sock.settimeout(silence_s)
    send(data)


def _response(connection: Any, getresponse: Any) -> Any:  # noqa: ANN401
    if connection.sock is None or not connection.timeout:
        return getresponse()
    clock = _Clock(connection.sock, connection.timeout)
    found = None
    try:
        found = getresponse()
    except (OSError, http.client.HTTPException):
        if not clock.late:
            raise
    finally:
        clock.stop()
    # headers that were cut off look complete, so an answer after the time limit does not count
    if clock.late:
        if found is not None:
            found.close()
        raise TimeoutError("the answer took too long")
    return found
