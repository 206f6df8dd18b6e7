"""The HTTP client: sends requests, follows redirects, streams bodies both ways.

A request's body may be a generator and an answer's body is one, connections are reused between
requests, and several threads may use them at once. Every wait has a time limit.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from images.net.address import followed, host_of
from images.net.connections import open_pool, proxy_for, tls_context
from images.net.errors import BrokenOff
from images.net.head import Head, Reply
from images.net.retries import Retries

if TYPE_CHECKING:
    import urllib3

MAX_BYTES = 4 * 1024 * 1024
"""The largest manifest that registries must accept, according to the specification."""
PIECE_BYTES = 1 << 18
"""The size of one send. `silence_s` limits each, so a slow line must carry this in that time."""
_READ_BYTES = 1 << 20
_LEAST_BYTES = 16 << 10
"""This much must arrive within `silence_s`; a slower download is given up."""
_MOST_REDIRECTS = 5
_KEPT_METHOD = frozenset({307, 308})
_MOVED = _KEPT_METHOD | {301, 302, 303}

_Body = Iterator[memoryview] | bytes | None
LoginFor = Callable[[str], Mapping[str, str]]
"""Returns the login headers for an address, which may be a redirect's target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming(Head):
    """An answer whose body has not been read yet."""

    silence_s: float
    response: urllib3.BaseHTTPResponse = field(repr=False)
    is_head: bool = False

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the body in pieces of at most a MiB. BrokenOff: it broke off, or is too slow."""
        since, arrived = time.monotonic(), 0
        while piece := self._read(_READ_BYTES):
            yield piece
            arrived += len(piece)
            now = time.monotonic()
            if arrived >= _LEAST_BYTES:  # the time that the reader took does not count
                since, arrived = now, 0
            elif now - since > self.silence_s:
                raise self._too_slow()

    def read(self, limit: int, within_s: float, *, decode: bool = False) -> bytes:
        """Return a small body; `limit` + 1 bytes of it if it is longer than `limit`."""
        ends = time.monotonic() + within_s
        data = bytearray()
        while piece := self._read(min(limit + 1 - len(data), _READ_BYTES), decode=decode):
            data += piece
            if time.monotonic() > ends:
                raise self._too_slow()
        return bytes(data)

    def reply(self, limit: int, within_s: float) -> Reply:
        """Read a small body and return it with the head."""
        body = self.read(limit, within_s)
        return Reply(status=self.status, headers=self.headers, url=self.url, body=body)

    def drain(self) -> None:
        """Read and drop a small body, so that the next request can reuse its connection."""
        if self.is_head or (self.length is not None and self.length <= _LEAST_BYTES):
            with contextlib.suppress(BrokenOff):
                self.read(_LEAST_BYTES, self.silence_s)

    def stop(self) -> None:
        """End the read of another thread."""
        shutdown: Callable[[], None] | None = getattr(self.response, "shutdown", None)
        if shutdown is not None:
            # it may have ended just now, and another request may use the connection
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                shutdown()

    def _read(self, most: int, *, decode: bool = False) -> bytes:
        import urllib3.exceptions

        if not most:
            return b""
        try:
            if self.is_head:  # only this makes http.client see the end of an empty body
                return self.response.read(decode_content=False)
            # read() would wait until all of `most` is here
            return self.response.read1(most, decode_content=decode)
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            raise _broken(self.url, error) from error
        except ValueError as error:  # it was closed by another thread
            raise BrokenOff("broke off (ValueError)", host=host_of(self.url)) from error

    def _too_slow(self) -> BrokenOff:
        why = "did not answer in time: it is too slow"
        return BrokenOff(why, host=host_of(self.url), kind="slow")


class HttpClient:
    """Connections to any number of hosts, each through its proxy; thread-safe.

    `ca_bundle`: a file of certificates, or its text. `proxy` returns the proxy for an address.
    `on_answered` is called for each answer with its address, status, bytes and seconds.
    """

    def __init__(
        self,
        *,
        ca_bundle: Path | str | None = None,
        retries: Retries | None = None,
        connections: int = 8,
        proxy: Callable[[str], str | None] = proxy_for,
        on_answered: Callable[[str, int, int, float], None] = lambda *_: None,
    ) -> None:
        self.retries = retries or Retries()
        # reading the system's authorities takes a while, and a registry on localhost needs none
        self._context = tls_context(ca_bundle) if ca_bundle else None
        self._connections = connections
        self._proxy = proxy
        self._on_answered = on_answered
        self._pools: dict[tuple[str | None, bool], urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: _Body = None,
        *,
        login: LoginFor | None = None,
        follow: bool = True,
        wait_s: float | None = None,
    ) -> Reply:
        """Send a request and return its whole, small answer. BrokenOff: there was none."""
        wait_s = self.retries.answer_s if wait_s is None else wait_s
        with self.open(
            method, url, headers, body, login=login, follow=follow, wait_s=wait_s
        ) as incoming:
            return incoming.reply(MAX_BYTES, wait_s)

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: _Body = None,
        *,
        login: LoginFor | None = None,
        follow: bool = True,
        wait_s: float | None = None,
    ) -> Iterator[Incoming]:
        """Send a request, and yield the answer as soon as its headers are here.

        A body that is an iterator is sent in chunks, unless the headers give its length. `follow`:
        follow redirects; `login` returns the login headers for each address. BrokenOff: there is no
        answer within `wait_s`, redirects included.
        """
        began = time.monotonic()
        ends = began + (self.retries.answer_s if wait_s is None else wait_s)
        # after 301, 302 or 303 clients send a GET without the body
        moved = (_MOVED if method in {"GET", "HEAD"} else _KEPT_METHOD) if follow else frozenset()
        for _ in range(_MOST_REDIRECTS + 1):
            shown = {**(headers or {}), **(login(url) if login else {})}
            # urllib3 refuses a time limit of 0
            left_s = max(ends - time.monotonic(), 0.001)
            response = self._send(method, url, shown, body, left_s)
            try:
                incoming = self._incoming(method, url, response)
                if incoming.status not in moved:
                    yield incoming
                    return
                incoming.drain()
            finally:
                # a body read to its end has returned its connection; else close it: the rest, maybe
                # half a gigabyte, would be taken for the next answer
                response.close()
                if response.status not in moved:
                    seconds = time.monotonic() - began
                    self._on_answered(url, response.status, response.tell(), seconds)
            url = followed(url, incoming.headers.get("location", ""))
        why = f"redirects more than {_MOST_REDIRECTS} times"
        raise BrokenOff(why, host=host_of(url), kind="redirect")

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.clear()

    def _incoming(self, method: str, url: str, response: urllib3.BaseHTTPResponse) -> Incoming:
        return Incoming(
            url=url,
            status=response.status,
            headers={name.lower(): value for name, value in response.headers.items()},
            silence_s=self.retries.silence_s,
            response=response,
            is_head=method == "HEAD",
        )

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: _Body, wait_s: float
    ) -> urllib3.BaseHTTPResponse:
        import urllib3

        streamed = body is not None and not isinstance(body, bytes)
        length = any(name.lower() == "content-length" for name in headers)
        try:
            return self._pool(url).request(
                method,
                url,
                # ranges and digests are of the bytes as they are stored: identity
                headers={"User-Agent": "gpu-provision", "Accept-Encoding": "identity", **headers},
                body=body,  # type: ignore[arg-type] # any buffer can be sent
                timeout=urllib3.Timeout(connect=self.retries.connect_s, read=wait_s),
                # both are done above: with pauses, and with the login of each address
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
                chunked=streamed and not length,
            )
        except (
            urllib3.exceptions.HTTPError,
            http.client.HTTPException,
            OSError,
            ValueError,
        ) as error:
            raise _broken(url, error) from error

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy = self._proxy(url)
        secure = "https:" in {url[:6].lower(), (proxy or "")[:6].lower()}
        with self._lock:
            pool = self._pools.get((proxy, secure))
            if pool is None:
                pool = self._pools[proxy, secure] = open_pool(
                    proxy,
                    self._tls() if secure else None,
                    connections=self._connections,
                    silence_s=self.retries.silence_s,
                )
            return pool

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context(None)
        return self._context


def _broken(url: str, error: Exception) -> BrokenOff:
    """Describe why a request failed, without its address."""
    import urllib3.exceptions as names

    host, reason = host_of(url), _innermost(error)
    text = str(reason)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = "shows a certificate that this host does not trust"
        return BrokenOff(why, host=host, kind="certificate")
    if isinstance(reason, names.ProxyError):
        why = f"is out of reach through the proxy ({_name(reason.original_error)})"
        return BrokenOff(why, host=host, kind="unreachable")
    if isinstance(reason, names.NameResolutionError):
        why = "has no address: the name look-up failed"
        return BrokenOff(why, host=host, kind="name")
    if "Connection refused" in text:
        return BrokenOff("refuses connections", host=host, kind="unreachable")
    if isinstance(reason, names.NewConnectionError):
        why = f"cannot be reached ({text.rpartition(': ')[2]})"
        return BrokenOff(why, host=host, kind="unreachable")
    if isinstance(reason, (names.TimeoutError, TimeoutError)):
        return BrokenOff("did not answer in time", host=host, kind="late")
    if isinstance(reason, ValueError):
        return BrokenOff(f"could not be asked ({_name(reason)})", host=host, kind="address")
    return BrokenOff(f"broke off ({_name(reason)})", host=host)


def _name(reason: object) -> str:
    return getattr(reason, "strerror", None) or type(reason).__name__


def _innermost(reason: Exception) -> Exception:
    """Unwrap urllib3's error where the inner one says more."""
    import urllib3.exceptions as names

    broke_later = (names.ReadTimeoutError, names.ProtocolError, ConnectionError, ssl.SSLEOFError)
    # urllib3 blames the proxy also for what breaks after the proxy was reached
    if isinstance(reason, names.ProxyError) and isinstance(reason.original_error, broke_later):
        reason = reason.original_error
    inner = reason.args[-1] if isinstance(reason, names.ProtocolError) and reason.args else None
    return inner if isinstance(inner, Exception) else reason
