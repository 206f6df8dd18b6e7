"""Requests to one repository of a registry: with the right login, tried again where that helps.

The login is for the registry alone: what it redirects to, and what it names as the place of an
upload, is asked without one when it lies at another host.
"""

from __future__ import annotations

import contextlib
import random
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from images.errors import Failure
from images.printable import printable
from images.registry.answers import Asked, Purpose, refusal, retry_after
from images.registry.auth import Login, TokenRequest, read_login
from images.registry.client import describe, fix_for
from images.registry.errors import RegistryAnswerError, RegistryUnreachableError
from images.registry.reference import Reference, is_loopback
from images.registry.tokens import Authorizer, Right, origin_of, scope
from images.registry.wire import BrokenError, Incoming, Patience, Reply, Wire, host_of

_MOST_REDIRECTS = 4
# A first try that failed, and a short pause, are not worth a word.
_SILENT_S = 2.0
_MOST_URL = 16_000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEPT_METHOD = frozenset({307, 308})
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may do better."""


class Session:
    """One repository, asked for one purpose; several threads may use it."""

    def __init__(
        self,
        reference: Reference,
        wire: Wire,
        *,
        purpose: Purpose,
        login: Callable[[], Login] | None = None,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.reference = reference
        self.wire = wire
        self.patience = patience or wire.patience
        self.purpose: Purpose = purpose
        self.sleep = sleep
        scheme = "http" if reference.is_loopback else "https"
        self._base = f"{scheme}://{reference.host}/v2/{reference.repository}/"
        self._origin = origin_of(self._base)
        actions = ("pull", "push") if purpose == "push" else ("pull",)
        self.right: Right = (scope(reference.repository, *actions),)
        self._answered = False
        self._authorizer = Authorizer(
            reference, login or (lambda: read_login(reference.registry)), self._ask_for_token
        )

    def url(self, path: str) -> str:
        """The address of something of the repository, such as "manifests/1.2"."""
        return self._base + path

    def locate(self, location: str, base: str) -> str:
        """Read an address that the registry gave, relative to `base`; refuse what is unsafe."""
        try:
            target = urllib.parse.urljoin(base, location)
            parts = urllib.parse.urlsplit(target)
            usable = origin_of(target) is not None and location.isascii()
            near = is_loopback(parts.hostname or "")
        except ValueError:
            raise self._odd_place(location) from None
        if not location or not usable or len(target) > _MOST_URL or not target.isprintable():
            raise self._odd_place(location)
        if parts.scheme == "http" and (base.startswith("https:") or not near):
            raise RegistryAnswerError(
                f"{self.reference.registry} sends us on to http://{host_of(target)}, "
                "which is not encrypted; this is not done.",
                fix="A registry behind a proxy must be told its own address: "
                "X-Forwarded-Proto, or the registry's setting for its URL.",
            )
        if parts.scheme not in {"http", "https"}:
            raise self._odd_place(location)
        return target

    def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        right: Right | None = None,
        wait_s: float | None = None,
        tries: int | None = None,
    ) -> Reply:
        """Exchange a small request, again where that may help; a refusal is an answer, too.

        `path`: of the repository, or a whole address. `what` completes "could not" for the error.
        """
        url = path if "://" in path else self.url(path)
        failures = 0
        while True:
            trouble: BrokenError | Reply
            try:
                reply = self._logged_in(method, url, headers or {}, body, right, wait_s)
            except BrokenError as error:
                failures += 1
                if error.is_final or failures >= (tries or self._tries()):
                    raise self.unreachable(error, what) from error
                trouble = error
            else:
                self._answered = True
                if reply.status not in AGAIN:
                    return reply
                failures += 1
                if failures >= (tries or self._tries()):
                    return reply
                trouble = reply
            self.pause(failures, trouble)

    def once(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Iterator[memoryview],
        *,
        wait_s: float | None = None,
    ) -> tuple[Reply, str | None]:
        """Send a streamed body, once; give the answer, and what was shown for it.

        BrokenError: it broke off. What follows then is the caller's, who knows how far it got.
        """
        shown = self._show(url, self.right)
        reply = self.wire.send(method, url, {**headers, **_header(shown)}, body, wait_s=wait_s)
        self._answered = True
        return reply, shown

    @contextlib.contextmanager
    def open(self, path: str, headers: Mapping[str, str]) -> Iterator[Incoming]:
        """Get something whose body is to be read in pieces, with its redirects and its login."""
        url, renewed = self.url(path), False
        for _ in range(_MOST_REDIRECTS + 2):
            shown = self._show(url, self.right)
            with self.wire.open("GET", url, {**headers, **_header(shown)}) as incoming:
                self._answered = True
                reply = Reply(status=incoming.status, headers=incoming.headers, url=url)
                if reply.status == 401 and not renewed and self._may_log_in(url):
                    renewed = self.renew(reply, shown)
                    if renewed:
                        continue
                if reply.status not in _REDIRECTS:
                    yield incoming
                    return
            url = self.locate(reply.headers.get("location", ""), url)
        raise self._endless()

    def renew(self, refused: Reply, used: str | None, right: Right | None = None) -> bool:
        """After a 401: get a newer token. False: there is nothing that has not been tried."""
        return self._authorizer.renew(right or self.right, refused, used)

    def refusal(self, reply: Reply, what: str) -> Failure:
        """Make the failure of an answer that says no."""
        return refusal(self.asked(what), reply)

    def asked(self, what: str) -> Asked:
        """Describe a request, for the sentence about how it failed."""
        return Asked(
            reference=self.reference,
            purpose=self.purpose,
            what=what,
            problem=printable(self._authorizer.problem),
            has_login=self._authorizer.has_login,
            clean=self._authorizer.clean,
        )

    def unreachable(
        self, error: BrokenError, what: str, more: str = ""
    ) -> RegistryUnreachableError:
        """Make the failure of an exchange that did not come to its end."""
        registry = self.reference.registry
        return RegistryUnreachableError(
            f"The registry {registry} could not {what}: {self.trouble(error)}.{more}",
            fix=fix_for(error.reason, self.asked(what).fix),
        )

    def trouble(self, error: BrokenError) -> str:
        """Say what went wrong on the way: "127.0.0.1:5000 refuses connections"."""
        text = " ".join(describe(error.reason).split())[:300]
        return f"{error.host} {self._authorizer.clean(printable(text))}"

    def pause(self, failures: int, trouble: BrokenError | Reply | str) -> None:
        """Wait before the next try, longer each time, and as long as the registry asks, up to the
        longest wait; say so.
        """
        if isinstance(trouble, Reply):
            asked_s = retry_after(trouble, time.time())
            why = f"{self.reference.registry} answered HTTP {trouble.status}"
        else:
            asked_s = None
            why = trouble if isinstance(trouble, str) else self.trouble(trouble)
        # not all at once again: many clients may have been refused at the same time
        spread = random.uniform(0.8, 1.0)  # noqa: S311
        seconds = self.patience.wait_s(failures, asked_s) * spread
        if failures > 1 or seconds > _SILENT_S:
            self.patience.on_wait(f"{why}; trying again in {seconds:.0f} s")
        self.sleep(seconds)

    def _tries(self) -> int:
        """A registry that has never answered is not waited for as long as one that has."""
        return self.patience.tries if self._answered else min(2, self.patience.tries)

    def _logged_in(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        right: Right | None,
        wait_s: float | None,
    ) -> Reply:
        right, renewed = right or self.right, False
        for _ in range(_MOST_REDIRECTS + 2):
            shown = self._show(url, right)
            reply = self.wire.send(method, url, {**headers, **_header(shown)}, body, wait_s=wait_s)
            if reply.status == 401 and not renewed and self._may_log_in(url):
                renewed = self._authorizer.renew(right, reply, shown)
                if renewed:
                    continue
            follows = _REDIRECTS if method in {"GET", "HEAD"} else _KEPT_METHOD
            if reply.status not in follows:
                return reply
            url = self.locate(reply.headers.get("location", ""), url)
        raise self._endless()

    def _show(self, url: str, right: Right) -> str | None:
        return self._authorizer.header(right) if self._may_log_in(url) else None

    def _may_log_in(self, url: str) -> bool:
        return self._origin is not None and origin_of(url) == self._origin

    def _ask_for_token(self, request: TokenRequest) -> Reply:
        what = f"give a token for {self.reference.repository}"
        reply = Reply(status=0, headers={})
        trouble: BrokenError | Reply
        for failures in range(1, self.patience.tries + 1):
            try:
                reply = self.wire.send(request.method, request.url, request.headers, request.body)
            except BrokenError as error:
                if error.is_final or failures == self.patience.tries:
                    raise self.unreachable(error, what) from error
                trouble = error
            else:
                if reply.status not in AGAIN:
                    break
                trouble = reply
            self.pause(failures, trouble)
        if reply.status != 200:
            raise self.refusal(reply, what)
        return reply

    def _odd_place(self, location: str) -> RegistryAnswerError:
        shown = printable(location.partition("?")[0][:200])
        return RegistryAnswerError(
            f"{self.reference.registry} sends us on to {shown or 'nowhere'}, which is no address.",
            fix=self.asked("").fix,
        )

    def _endless(self) -> RegistryAnswerError:
        return RegistryAnswerError(
            f"{self.reference.host} redirects more than {_MOST_REDIRECTS} times.",
            fix=self.asked("").fix,
        )


def _header(shown: str | None) -> dict[str, str]:
    return {} if shown is None else {"Authorization": shown}


def open_session(
    reference: Reference,
    *,
    purpose: Purpose,
    ca_bundle: Path | None = None,
    login: Callable[[], Login] | None = None,
    patience: Patience | None = None,
) -> Session:
    """Make ready to talk to a registry; nothing is sent yet."""
    wire = Wire(ca_bundle=ca_bundle, patience=patience or Patience())
    return Session(reference, wire, purpose=purpose, login=login)
