"""The network as a refresh uses it: parallel, bounded in time and size, and honest about faults.

No answer costs more than `Limits` says, a host that was silent is not asked again, and a login goes
to nobody but the host that it is for. Pages are asked for anew each time: to keep them beside their
ETags would take more room than the half megabyte that travels.
"""

from __future__ import annotations

import email.utils
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

from images.printable import printable
from provision.catalog.refresh.model import AbsentError, Asked, Limits, SourceError
from provision.host.indexes import netrc_logins

if TYPE_CHECKING:
    import urllib3

_CHUNK = 1 << 16
_MAX_REDIRECTS = 5
_RETRIED = frozenset({429, 500, 502, 503, 504})
THREADS = 8
NETWORK_FIX = (
    "See that this host may reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE), or name a mirror: "
    "--index URL, --pytorch-index URL, --nvidia URL"
)
_LATER_FIX = "Try again later, or name a mirror: --index URL, --pytorch-index URL, --nvidia URL"
_LOGIN_FIX = "Put the login into the index's address, or into ~/.netrc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer: `url` is where it came from in the end, header names are in lower case."""

    url: str
    headers: Mapping[str, str]
    body: bytes


class _AgainError(Exception):
    """The request may be made once more. `wait_s` None: as long as for any."""

    def __init__(self, error: SourceError, wait_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait_s = wait_s


class Fetcher:
    """Everything that goes over the network. Safe to share between threads."""

    def __init__(
        self,
        *,
        ca_bundle: Path | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        on_asked: Callable[[Asked], None] | None = None,
    ) -> None:
        from images.registry.http import tls_context

        self.limits = limits or Limits()
        # one for all connections: to read a bundle takes longer than to connect
        self._context = tls_context(ca_bundle)
        found = netrc_logins(os.environ if env is None else env)
        self._logins = {host: login for host, login in found.items() if login[1]}
        self._on_asked = on_asked or (lambda _: None)
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._answered: set[str] = set()
        self._late: dict[str, int] = {}
        self._silent: dict[str, str] = {}
        self._ends = time.monotonic() + self.limits.total_s
        self._pool = cache(self._make_pool)

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Every answered request, by address."""
        with self._lock:
            return tuple(sorted(self._asked, key=lambda row: (row.url, row.status, row.received)))

    def add_login(self, url: str) -> str:
        """Keep the login of an address for its host, and give the address without it."""
        parts = _split(url)
        if parts.username is not None and parts.hostname:
            login = (unquote(parts.username), unquote(parts.password or ""))
            self._logins[parts.netloc.rpartition("@")[2]] = login
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def get(self, url: str, *, accept: str, limit_bytes: int) -> Answer:
        """A whole body, decoded. SourceError: why not."""
        return self._retried(
            url, lambda: self._exchange("GET", url, {"Accept": accept}, limit_bytes)
        )

    def length(self, url: str) -> int:
        """How many bytes a file has, by HEAD."""
        answer = self._retried(url, lambda: self._exchange("HEAD", url, {}, 0))
        text = answer.headers.get("content-length", "")
        if not text.isdigit():
            raise SourceError(f"{_shown(url)} does not tell its size.", fix=_LATER_FIX)
        return int(text)

    def part(self, url: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a file. SourceError also where only whole files are given."""
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        answer = self._retried(
            url, lambda: self._exchange("GET", url, headers, stop - start, part=True)
        )
        told = answer.headers.get("content-range", "")
        if len(answer.body) != stop - start or not told.startswith(f"bytes {start}-{stop - 1}/"):
            raise SourceError(
                f"{_shown(url)}: other bytes came than the {stop - start} asked for.",
                fix=_LATER_FIX,
            )
        return answer.body

    @property
    def seconds_left(self) -> float:
        """Until the whole has taken too long."""
        return max(self._ends - time.monotonic(), 0.0)

    def late(self) -> SourceError:
        """The error of what was not done by then."""
        return SourceError(
            f"The refresh as a whole took longer than {self.limits.total_s:g} s.", fix=_LATER_FIX
        )

    def stop(self) -> None:
        """Let every further request fail at once, and say no more of those under way."""
        with self._lock:
            self._ends = 0.0

    def _retried(self, url: str, work: Callable[[], Answer]) -> Answer:
        host = _split(url).netloc
        if not url.startswith(("https://", "http://")):
            what = f"{_short(url.rpartition('@')[2])} is not an http or https address."
            raise SourceError(what, fix="Name it as https://HOST/PATH")
        for attempt in range(self.limits.attempts):
            self._refuse_late(host)
            try:
                return work()
            except _AgainError as again:
                wait = again.wait_s or self.limits.backoff_s * 2**attempt
                late = time.monotonic() + wait > self._ends
                if attempt + 1 == self.limits.attempts or late:
                    raise again.error from None
                time.sleep(wait)
        raise AssertionError(url)

    def _refuse_late(self, host: str) -> None:
        if host in self._silent:
            raise SourceError(self._silent[host], fix=NETWORK_FIX, silent=True)
        if time.monotonic() > self._ends:
            raise self.late()

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        limit_bytes: int,
        *,
        part: bool = False,
    ) -> Answer:
        """One request with its redirects."""
        started = time.monotonic()
        ends = min(started + self.limits.request_s, self._ends)
        host = _split(url).netloc
        for _ in range(_MAX_REDIRECTS + 1):
            with self._open(method, url, headers, ends) as response:
                target = response.headers.get("location")
                if response.status in {301, 302, 303, 307, 308} and target:
                    url = self._followed(url, target)
                    continue
                try:
                    self._judge(url, response, part=part)
                except (SourceError, _AgainError):
                    self.note(url, response.status, 0, time.monotonic() - started)
                    raise
                body = _read(response, limit_bytes, ends, url)
                # of a body in chunks urllib3 counts nothing
                received = response.tell() or len(body)
                self.note(url, response.status, received, time.monotonic() - started)
                names = {name.lower(): value for name, value in response.headers.items()}
                return Answer(url=url, headers=names, body=body)
        raise SourceError(f"{host} redirects more than {_MAX_REDIRECTS} times.", fix=_LATER_FIX)

    def note(self, url: str, status: int, received: int, seconds: float) -> None:
        """Count one answered request; a registry's come from outside."""
        row = Asked(url=_shown(url), status=status, received=received, seconds=seconds)
        with self._lock:
            self._answered.add(_split(url).netloc)
            if self._ends:
                self._asked.append(row)
                self._on_asked(row)

    @contextmanager
    def _open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        ends: float,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        import urllib3

        from images.registry import proxy_for

        parts = _split(url)
        sent = {"User-Agent": "gpu-provision", "Accept-Encoding": "gzip", **headers}
        if "Range" in headers or method == "HEAD":
            sent["Accept-Encoding"] = "identity"  # the bytes and the length of the file itself
        login = self._logins.get(parts.netloc) or self._logins.get(parts.hostname or "")
        if login is not None:
            words = ":".join(login)
            sent["Authorization"] = urllib3.make_headers(basic_auth=words)["authorization"]
        left = max(ends - time.monotonic(), 0.001)
        timeout = urllib3.Timeout(
            connect=min(self.limits.connect_s, left), read=min(self.limits.read_s, left)
        )
        response = None
        try:
            response = self._pool(proxy_for(url)).request(
                method,
                url,
                headers=sent,
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            yield response
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._trouble(error, parts.netloc) from error
        finally:
            if response is not None:
                # an unread rest may be half a gigabyte
                response.close()

    def _trouble(self, error: Exception, host: str) -> Exception:
        import urllib3.exceptions as names

        text = _short(str(getattr(error, "reason", None) or error))
        again, silent = False, True
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            what = "shows a certificate that this host does not trust"
        elif isinstance(error, names.NameResolutionError):
            what = "has a name that this host cannot look up"
        elif isinstance(error, (names.NewConnectionError, names.ProxyError)):
            what = f"cannot be reached ({text})"
        elif isinstance(error, (names.TimeoutError, TimeoutError)):
            what, silent = "did not answer in time", self._is_silent(host)
            again = not silent
        elif isinstance(error, (names.ProtocolError, names.DecodeError, OSError)):
            what, again, silent = f"broke off its answer ({text})", True, False
        else:
            what, silent = f"could not be asked ({text})", False
        found = SourceError(f"{host} {what}.", fix=NETWORK_FIX, silent=silent)
        if silent:
            with self._lock:
                self._silent.setdefault(host, found.message)
        return _AgainError(found) if again else found

    def _is_silent(self, host: str) -> bool:
        """A host that never answered is not waited for again; another one once."""
        with self._lock:
            self._late[host] = self._late.get(host, 0) + 1
            return host not in self._answered or self._late[host] > 1

    def _judge(self, url: str, response: urllib3.BaseHTTPResponse, *, part: bool) -> None:
        """SourceError or _AgainError where the status promises no body that was asked for."""
        status, where = response.status, _shown(url)
        host = _split(url).netloc
        if status in {404, 410}:
            raise AbsentError(f"There is no {where} (HTTP {status}).", fix=_LATER_FIX)
        if status in {401, 403, 407}:
            raise SourceError(
                f"{host} does not show {where} without another login (HTTP {status}).",
                fix=_LOGIN_FIX,
            )
        if status in _RETRIED:
            error = SourceError(f"{host} is in trouble: HTTP {status} for {where}.", fix=_LATER_FIX)
            wait = _retry_after(response.headers.get("retry-after"))
            if wait is None:
                raise _AgainError(error)
            if wait > self.limits.pause_s:
                raise SourceError(
                    f"{host} asks to be left alone for {wait:.0f} s (HTTP {status}).",
                    fix=_LATER_FIX,
                )
            raise _AgainError(error, wait)
        if part and status == 200:
            raise SourceError(f"{host} gives {where} only as a whole.", fix=_LATER_FIX)
        if status != (206 if part else 200):
            raise SourceError(f"{host} answered HTTP {status} for {where}.", fix=_LATER_FIX)

    @staticmethod
    def _followed(url: str, target: str) -> str:
        try:
            joined = urljoin(url, target)
            pair = (urlsplit(url).scheme, urlsplit(joined).scheme)
        except ValueError:
            joined, pair = "", ("", "")
        if pair[1] not in {"http", "https"} or pair == ("https", "http"):
            raise SourceError(
                f"{_shown(url)} redirects to {_short(target)}, which is not followed.",
                fix=_LATER_FIX,
            )
        return joined

    def _make_pool(self, proxy: str | None) -> urllib3.PoolManager:
        import urllib3

        settings: dict[str, Any] = {"ssl_context": self._context, "maxsize": THREADS}
        if proxy is None:
            return urllib3.PoolManager(**settings)
        login = urllib3.util.parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else None
        settings["proxy_ssl_context"] = self._context
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)


def _read(response: urllib3.BaseHTTPResponse, limit_bytes: int, ends: float, url: str) -> bytes:
    """The body, decoded, in pieces: so that neither a slow nor an endless one goes on for ever."""
    data = bytearray()
    while piece := response.read1(_CHUNK, decode_content=True):  # what is there, however little
        data += piece
        if len(data) > limit_bytes:
            raise SourceError(
                f"{_shown(url)} is larger than {limit_bytes} bytes; it was not read to its end.",
                fix=_LATER_FIX,
            )
        if time.monotonic() > ends:
            raise SourceError(
                f"{_shown(url)} came too slowly; it was not read to its end.",
                fix=_LATER_FIX,
                silent=True,
            )
    return bytes(data)


def _retry_after(text: str | None) -> float | None:
    """Seconds, or a date; None: not said."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(when.timestamp() - time.time(), 0.0)


def _split(url: str) -> SplitResult:
    """ValueError-free: an address that cannot be read is one of nowhere."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise SourceError(
            f"{_short(url)} is no address.", fix="Name an index as https://HOST/simple"
        ) from None
    return parts


def host_of(url: str) -> str:
    """The host of an address, with its port, without a login: what may be shown."""
    return _split(url).netloc.rpartition("@")[2]


def _shown(url: str) -> str:
    """An address as it may be shown: no login, no query, no fragment."""
    parts = _split(url)
    return _short(f"{parts.scheme}://{host_of(url)}{parts.path}", 200)


def _short(text: str, limit: int = 120) -> str:
    return printable(text, limit=limit)
