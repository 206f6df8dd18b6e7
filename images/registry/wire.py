"""HTTP for gigabytes: bodies that are streamed both ways, and no wait without an end.

`http` is for small questions. Here a request's body comes from a generator and an answer's goes to
one, connections are kept between requests, and several threads may use it at once. Each wait is
bounded: for the connection, for a piece to leave or to arrive, for an answer to be there whole.
A trickle of bytes does not make a wait longer.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions

from images.registry.http import MAX_BYTES, pool_for, tls_context

PIECE_BYTES = 1 << 18
"""As much is sent at a time: `silence_s` bounds each, so a slow line must carry this in it."""
_READ_BYTES = 1 << 20
_LEAST_BYTES = 16 << 10
"""As much must arrive within `silence_s`, so that a drip is no download."""

_Body = Iterator[memoryview] | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited, and how often it is tried again.

    `commit_s` is for the end of an upload: registries copy or hash gigabytes before they answer.
    `tries` counts what fails in a row without progress; the waits in between double.
    """

    connect_s: float = 10.0
    silence_s: float = 60.0
    answer_s: float = 60.0
    commit_s: float = 600.0
    tries: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    on_wait: Callable[[str], None] = field(default=lambda _: None, compare=False)
    """Hears that something is tried again, and why; from any thread."""

    def wait_s(self, failures: int, asked_s: float | None = None) -> float:
        """How long to wait after so many failures; `asked_s` is what the registry wants."""
        doubled: float = self.first_wait_s * 2 ** max(0, failures - 1)
        return min(self.longest_wait_s, max(doubled, asked_s or 0.0))


class BrokenError(Exception):
    """An exchange did not come to its end; `reason` is the error below, for `client.describe`."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(str(reason))
        self.host = host_of(url)
        self.reason = _innermost(reason)

    @property
    def is_final(self) -> bool:
        """Whether trying again cannot help."""
        return "CERTIFICATE_VERIFY_FAILED" in str(self.reason)


def _innermost(reason: object) -> object:
    """Take off what urllib3 wraps around an error, where it says less than the error does."""
    broke_later = (
        urllib3.exceptions.ReadTimeoutError,
        urllib3.exceptions.ProtocolError,
        ConnectionError,
        ssl.SSLEOFError,
    )
    # what breaks behind a proxy that was reached is laid at the proxy's door
    if isinstance(reason, urllib3.exceptions.ProxyError) and isinstance(
        reason.original_error, broke_later
    ):
        reason = reason.original_error
    inner = reason.args[-1] if isinstance(reason, urllib3.exceptions.ProtocolError) else None
    return inner if isinstance(inner, Exception) else reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One finished exchange; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    url: str = ""


def host_of(url: str) -> str:
    """Name an address's host and port, and nothing that may be secret in it."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "?"
    return f"{parts.hostname or '?'}{port}"


@dataclass(slots=True)
class Incoming:
    """An answer whose body has not been read yet."""

    status: int
    headers: Mapping[str, str]
    url: str
    _response: urllib3.BaseHTTPResponse = field(repr=False)
    _patience: Patience
    _is_head: bool = False

    def pieces(self) -> Generator[bytes, None, None]:
        """Give the body in pieces of at most a megabyte. BrokenError: it broke off, or drips."""
        since, arrived = time.monotonic(), 0
        while True:
            piece = self._read(_READ_BYTES)
            if not piece:
                return
            yield piece
            arrived += len(piece)
            now = time.monotonic()
            if arrived >= _LEAST_BYTES:  # the time that the reader took is not held against it
                since, arrived = now, 0
            elif now - since > self._patience.silence_s:
                raise BrokenError(self.url, TimeoutError("too slow"))

    def read(self, limit: int, within_s: float) -> bytes:
        """Give a small body whole; one byte more than `limit` where there is more."""
        ends = time.monotonic() + within_s
        parts: list[bytes] = []
        left = limit + 1
        while left and (piece := self._read(min(left, _READ_BYTES))):
            parts.append(piece)
            left -= len(piece)
            if time.monotonic() > ends:
                raise BrokenError(self.url, TimeoutError("too slow"))
        return b"".join(parts)

    def _read(self, most: int) -> bytes:
        try:
            if self._is_head:  # http.client knows the end of nothing by this way only
                return self._response.read(decode_content=False)
            return self._response.read1(most, decode_content=False)
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            raise BrokenError(self.url, error) from error


class Wire:
    """Connections to as many hosts as need be, each through its proxy; for several threads."""

    def __init__(self, *, ca_bundle: Path | None, patience: Patience, connections: int = 8) -> None:
        self.patience = patience
        # the system's authorities take a while to read, and this machine's registry needs none
        self._context = None if ca_bundle is None else tls_context(ca_bundle)
        self._connections = connections
        self._classes = _pool_classes(patience.silence_s)
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: _Body = None,
        *,
        wait_s: float | None = None,
        limit: int = MAX_BYTES,
    ) -> Reply:
        """Exchange one request for its whole answer. BrokenError: there was none.

        A body that is an iterator is sent in chunks, unless the headers say its length.
        """
        wait_s = self.patience.answer_s if wait_s is None else wait_s
        with self.open(method, url, headers, body, wait_s=wait_s) as incoming:
            content = incoming.read(limit, wait_s)
            return Reply(
                status=incoming.status, headers=incoming.headers, body=content, url=incoming.url
            )

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: _Body = None,
        *,
        wait_s: float | None = None,
    ) -> Iterator[Incoming]:
        """Send a request, and give the answer as soon as its headers are here."""
        timeout = urllib3.Timeout(
            connect=self.patience.connect_s,
            read=self.patience.answer_s if wait_s is None else wait_s,
        )
        streamed = body is not None and not isinstance(body, bytes)
        length = any(name.lower() == "content-length" for name in headers)
        try:
            response = self._pool(url).request(
                method,
                url,
                headers={"User-Agent": "gpu-provision", "Accept-Encoding": "identity", **headers},
                body=body,  # type: ignore[arg-type] # any buffer can be sent
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
                chunked=streamed and not length,
            )
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            raise BrokenError(url, getattr(error, "reason", None) or error) from error
        except ValueError as error:  # an address that is none
            raise BrokenError(url, error) from error
        names = {name.lower(): value for name, value in response.headers.items()}
        try:
            yield Incoming(response.status, names, url, response, self.patience, method == "HEAD")
        finally:
            # read to its end, it has given its connection back; what is left of it otherwise
            # would be taken for the next answer
            response.close()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.clear()

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urllib.parse.urlsplit(url)
        key = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = pool_for(url, self._tls(parts.scheme), connections=self._connections)
                pool.pool_classes_by_scheme = self._classes
                self._pools[key] = pool
            return pool

    def _tls(self, scheme: str) -> ssl.SSLContext:
        if self._context is None and scheme != "https":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._context is None:
            self._context = tls_context(None)
        return self._context


class _Clock:
    """Ends a wait for an answer's headers, however slowly these trickle in."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self.late = False
        self._sock = sock
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def _cut(self) -> None:
        self.late = True
        with contextlib.suppress(OSError):
            # the plain socket's way: that of TLS would pull the rug from under the reader
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def stop(self) -> None:
        self._timer.cancel()


def _pool_classes(silence_s: float) -> dict[str, Any]:
    """Connections whose sending and waiting are bounded by what the requests here need."""

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
    # urllib3 bounds sending by the time for connecting, which slow lines need longer than
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
    # headers that end with their connection look whole, so what was cut off here is no answer
    if clock.late:
        if found is not None:
            found.close()
        raise TimeoutError("the answer took too long")
    return found
