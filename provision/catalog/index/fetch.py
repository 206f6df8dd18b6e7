"""HTTP for pages of indexes and the like: bounded in time and size, and exact about failures.

No answer exceeds `FetchLimits`, a host that did not answer is not queried again, and a login is
sent only to the host that it is for. Pages are fetched again each time: caching them with their
ETags would take more space than the half megabyte that is transferred.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from images.errors import Failure
from images.net.address import host_of, origin_of, shown_url, without_login
from images.net.errors import BrokenOff
from images.net.head import Reply
from images.net.http import HttpClient, Incoming
from images.net.logins import basic
from images.net.retries import AGAIN, Retries, Tries, busy
from images.text.printable import printable
from provision.errors import Exit
from provision.host.uv import index_logins

THREADS = 8
NETWORK_FIX = (
    "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE), or name a "
    "mirror: --index URL, --pytorch-index URL, --nvidia URL"
)
_LATER_FIX = "Try again later, or name a mirror: --index URL, --pytorch-index URL, --nvidia URL"
_LOGIN_FIX = "Put the login into the index's address, or into ~/.netrc"


class SourceError(Failure):
    """A source, or one of its pages, was unreachable, refused access or sent an unexpected answer.

    `silent`: the host did not answer at all, so more requests to it are pointless.
    """

    code = "source-unreadable"
    exit_code = Exit.UNREACHABLE

    def __init__(self, message: str, *, fix: str, silent: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.silent = silent


class AbsentError(SourceError):
    """The server answered that the page does not exist."""


PATIENCE = Retries(
    connect_s=5.0, answer_s=8.0, silence_s=8.0, tries=3, first_wait_s=0.3, longest_wait_s=5.0
)
"""For one try; `longest_wait_s` is the longest Retry-After that is honoured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits in seconds and bytes, of a request and of all together."""

    retries: Retries = PATIENCE
    request_s: float = 30.0
    total_s: float = 120.0
    page_bytes: int = 32 << 20
    metadata_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """One answered request: `received` bytes on the wire, bodies only."""

    url: str
    status: int
    received: int
    seconds: float


class PageFetcher:
    """Reads small files of servers. Safe to share between threads."""

    def __init__(
        self,
        *,
        ca_bundle: Path | None = None,
        limits: FetchLimits | None = None,
        env: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        on_asked: Callable[[AnsweredRequest], None] | None = None,
    ) -> None:
        self.ca_bundle, self.limits = ca_bundle, limits or FetchLimits()
        self._retries = self.limits.retries
        self.client = HttpClient(
            ca_bundle=ca_bundle,
            retries=self._retries,
            connections=THREADS,
            on_answered=self._note,
        )
        self._logins = index_logins(os.environ if env is None else env, names or {})
        self._on_asked = on_asked or (lambda _: None)
        self._lock = threading.Lock()
        self._asked: list[AnsweredRequest] = []
        self._answered: set[str] = set()
        self._late: dict[str, int] = {}
        self._silent: dict[str, str] = {}
        self._ends = time.monotonic() + self.limits.total_s

    @property
    def requests(self) -> tuple[AnsweredRequest, ...]:
        """Every answered request, by URL."""
        with self._lock:
            return tuple(sorted(self._asked, key=lambda row: (row.url, row.status, row.received)))

    def add_login(self, url: str) -> str:
        """Keep the login of a URL for its host, and return the URL without it."""
        self._check(url)
        parts = urlsplit(url)
        if parts.username is not None and parts.hostname:
            login = (unquote(parts.username), unquote(parts.password or ""))
            self._logins[parts.netloc.rpartition("@")[2]] = login
        return without_login(parts)

    def get(self, url: str, *, accept: str, limit_bytes: int) -> Reply:
        """A whole body, decoded. SourceError: why it failed."""
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        self._check(url)
        tries = Tries(self._retries)
        while True:
            self._refuse_late(host_of(url))
            try:
                return self._exchange(url, headers, limit_bytes)
            except BrokenOff as trouble:
                error = self._failure(trouble, url)
                if error.silent or not tries.again(trouble):
                    raise error from trouble

    def with_login(self, url: str) -> str:
        """The URL with the login for its host, if there is one."""
        parts = urlsplit(url)
        login = self._login_for(parts)
        if login is None:
            return url
        netloc = f"{':'.join(quote(word, safe='') for word in login)}@{parts.netloc}"
        return parts._replace(netloc=netloc).geturl()

    @staticmethod
    def _check(url: str) -> None:
        if not url.startswith(("https://", "http://")) or origin_of(url) is None:
            shown = printable(url.rpartition("@")[2], limit=120)
            raise SourceError(
                f"{shown} is not an http or https address.", fix="Name it as https://HOST/PATH"
            )

    def _refuse_late(self, host: str) -> None:
        if host in self._silent:
            raise SourceError(self._silent[host], fix=NETWORK_FIX, silent=True)
        if time.monotonic() > self._ends:
            raise SourceError(
                f"All requests together took longer than {self.limits.total_s:g} s.",
                fix=_LATER_FIX,
            )

    def _exchange(self, url: str, headers: Mapping[str, str], limit_bytes: int) -> Reply:
        ends = min(time.monotonic() + self.limits.request_s, self._ends)
        wait_s = min(self._retries.answer_s, max(ends - time.monotonic(), 0.001))
        with self.client.open("GET", url, headers, login=self._login, wait_s=wait_s) as incoming:
            self._judge(incoming)
            body = incoming.read(limit_bytes, ends - time.monotonic(), decode=True)
        if len(body) > limit_bytes:
            raise SourceError(
                f"{_shown(incoming.url)} is larger than {limit_bytes} bytes; "
                "the download was stopped.",
                fix=_LATER_FIX,
            )
        return Reply(url=incoming.url, status=incoming.status, headers=incoming.headers, body=body)

    def _login(self, url: str) -> Mapping[str, str]:
        login = self._login_for(urlsplit(url))
        return basic(*login) if login else {}

    def _login_for(self, parts: SplitResult) -> tuple[str, str] | None:
        return self._logins.get(parts.netloc) or self._logins.get(parts.hostname or "")

    def _note(self, url: str, status: int, received: int, seconds: float) -> None:
        """Count one answered request."""
        row = AnsweredRequest(url=_shown(url), status=status, received=received, seconds=seconds)
        with self._lock:
            self._answered.add(host_of(url))
            self._asked.append(row)
            self._on_asked(row)

    def _failure(self, trouble: BrokenOff, url: str) -> SourceError:
        """Describe what went wrong, and remember hosts that are not worth another request."""
        silent = trouble.kind in {"certificate", "name", "unreachable"}
        if trouble.kind == "late":
            silent = self._is_silent(trouble.host)
        fix = _LATER_FIX if trouble.kind in {"busy", "redirect", "unencrypted"} else NETWORK_FIX
        what = f"{trouble} for {_shown(url)}." if trouble.kind == "busy" else f"{trouble}."
        if silent:
            with self._lock:
                self._silent.setdefault(trouble.host, what)
        return SourceError(what, fix=fix, silent=silent or trouble.kind == "slow")

    def _is_silent(self, host: str) -> bool:
        """A host that never answered is not tried again; any other host is tried once more."""
        with self._lock:
            self._late[host] = self._late.get(host, 0) + 1
            return host not in self._answered or self._late[host] > 1

    def _judge(self, answer: Incoming) -> None:
        """SourceError or BrokenOff if the status does not promise the requested body."""
        status, where, host = answer.status, _shown(answer.url), host_of(answer.url)
        if status in {404, 410}:
            raise AbsentError(f"There is no {where} (HTTP {status}).", fix=_LATER_FIX)
        if status in {401, 403, 407}:
            raise SourceError(
                f"{host} does not show {where} without another login (HTTP {status}).",
                fix=_LOGIN_FIX,
            )
        if status in AGAIN:
            trouble = busy(answer)
            if (trouble.asked_s or 0) > self._retries.longest_wait_s:
                raise SourceError(
                    f"{host} asks to wait {trouble.asked_s:.0f} s (HTTP {status}).",
                    fix=_LATER_FIX,
                )
            raise trouble
        if status != 200:
            raise SourceError(f"{host} answered HTTP {status} for {where}.", fix=_LATER_FIX)


def _shown(url: str) -> str:
    """A URL as it may be shown: no login, no query, no fragment."""
    return printable(shown_url(url), limit=200)
