"""Requests to one repository of a registry: with the right login, and retries where they help.

Only the registry gets the login: redirect targets and upload locations on another host get none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from images.errors import Failure
from images.net.address import followed, origin_of
from images.net.errors import TRUST_FIX, BrokenOff
from images.net.head import Head, Reply
from images.net.http import MAX_BYTES, HttpClient, Incoming
from images.net.retries import Retries, Tries
from images.oci.reference import Reference
from images.registry.answers import Purpose, RegistryRequest, refusal
from images.registry.auth import Login, TokenRequest, read_login
from images.registry.errors import CONNECT_FIX, RegistryAnswerError, RegistryUnreachableError
from images.registry.tokens import Authorizer, Right, scope
from images.text.printable import printable

_T = TypeVar("_T")


class RepositorySession:
    """One repository, used for one purpose; thread-safe."""

    def __init__(
        self,
        reference: Reference,
        client: HttpClient,
        *,
        purpose: Purpose,
        login: Callable[[], Login] | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], None] = time.sleep,
        ends: float = float("inf"),
    ) -> None:
        """Prepare; sends nothing yet, and nothing after `ends` (of the monotonic clock)."""
        self.reference = reference
        self.client = client
        self.retries = retries or client.retries
        self.purpose: Purpose = purpose
        self.sleep = sleep
        scheme = "http" if reference.is_loopback else "https"
        self._base = f"{scheme}://{reference.host}/v2/{reference.repository}/"
        self._origin = origin_of(self._base)
        actions = ("pull", "push") if purpose == "push" else ("pull",)
        self.right: Right = (scope(reference.repository, *actions),)
        self._answered = False
        self._ends = ends
        self._authorizer = Authorizer(
            reference, login or (lambda: read_login(reference.registry)), self._ask_for_token
        )

    def url(self, path: str) -> str:
        """The URL of a path in the repository, such as "manifests/1.2"."""
        return self._base + path

    def locate(self, location: str, base: str) -> str:
        """Resolve an address from the registry, relative to `base`; refuses unsafe ones."""
        try:
            return followed(base, location)
        except BrokenOff as error:
            raise self._astray(error) from error

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
        """Send a small request, with retries; a refusal is returned as an answer, too.

        `path`: in the repository, or a whole URL. `what` completes "could not" in the error.
        """
        url = path if "://" in path else self.url(path)

        def ask() -> Reply:
            if time.monotonic() > self._ends:
                raise BrokenOff("did not answer in time", host=self.reference.host, final=True)
            with self._open(method, url, headers or {}, body, right, wait_s) as incoming:
                return incoming.reply(MAX_BYTES, wait_s or self.retries.answer_s)

        try:
            return self.tries(tries).run(ask)
        except BrokenOff as error:
            raise self.unreachable(error, what) from error

    def once(
        self, method: str, url: str, headers: Mapping[str, str], body: Iterator[memoryview]
    ) -> tuple[Reply, str | None]:
        """Send a streamed body, once; return the answer and the Authorization header that was sent.

        BrokenOff: it broke off. The caller must handle that, as it knows how far it got.
        """
        shown = self._show(url, self.right)
        headers = {**headers, **_header(shown)}
        # the body is sent already when a redirect arrives, and cannot be read again
        reply = self.client.send(method, url, headers, body, follow=False)
        self._answered = True
        return reply, shown

    def open(
        self, path: str, headers: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[Incoming]:
        """GET something and read its body in pieces; follows redirects and sends the login."""
        return self._open("GET", self.url(path), headers)

    def renew(self, refused: Head, used: str | None, right: Right | None = None) -> bool:
        """After a 401: get a newer token. False: nothing is left to try."""
        return self._authorizer.renew(right or self.right, refused, used)

    def refusal(self, reply: Reply, what: str) -> Failure:
        """The error for a refusal."""
        return refusal(self.describe(what), reply)

    def describe(self, what: str) -> RegistryRequest:
        """Describe a request, for the message about its failure."""
        return RegistryRequest(
            reference=self.reference,
            purpose=self.purpose,
            what=what,
            problem=printable(self._authorizer.problem),
            has_login=self._authorizer.has_login,
            clean=self._authorizer.clean,
        )

    def unreachable(self, error: BrokenOff, what: str, more: str = "") -> RegistryUnreachableError:
        """The error for a request that was not completed."""
        registry = self.reference.registry
        return RegistryUnreachableError(
            f"The registry {registry} could not {what}: {error}.{more}",
            fix=TRUST_FIX if error.kind == "certificate" else self.describe(what).fix,
        )

    def tries(self, most: int | None = None) -> Tries:
        """A counter for the tries of one request, which pauses between them."""

        def allowed() -> int:
            """Allow fewer tries while the registry has never answered."""
            # often the name is wrong or there is no network, and waiting helps neither
            return most or (self.retries.tries if self._answered else min(2, self.retries.tries))

        return Tries(self.retries, most=allowed, sleep=self.sleep)

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        right: Right | None = None,
        wait_s: float | None = None,
    ) -> Iterator[Incoming]:
        """Send a request with the known credentials; after a 401, once more with new ones."""
        right, renewed = right or self.right, False
        try:
            while True:
                shown = self._show(url, right)
                login, wait_s = self._only_here(shown), wait_s or self.retries.answer_s
                with self.client.open(
                    method, url, headers, body, login=login, wait_s=wait_s
                ) as incoming:
                    self._answered = True
                    if incoming.status == 401 and not renewed and self._may_log_in(incoming.url):
                        renewed = self._authorizer.renew(right, incoming, shown)
                        if renewed:
                            incoming.drain()
                            continue
                    yield incoming
                    return
        except BrokenOff as error:
            if error.kind in {"redirect", "unencrypted"}:
                raise self._astray(error) from error
            raise

    def _only_here(self, shown: str | None) -> Callable[[str], Mapping[str, str]]:
        return lambda url: _header(shown) if self._may_log_in(url) else {}

    def _show(self, url: str, right: Right) -> str | None:
        return self._authorizer.header(right) if self._may_log_in(url) else None

    def _may_log_in(self, url: str) -> bool:
        # registries redirect to storage of others, which must not see the login
        return self._origin is not None and origin_of(url) == self._origin

    def _ask_for_token(self, request: TokenRequest) -> Reply:
        what = f"give a token for {self.reference.repository}"

        def ask() -> Reply:
            # a login or a token in it is only for this address
            return self.client.send(
                request.method, request.url, request.headers, request.body, follow=False
            )

        try:
            reply = Tries(self.retries, sleep=self.sleep).run(ask)
        except BrokenOff as error:
            raise self.unreachable(error, what) from error
        if reply.status != 200:
            raise self.refusal(reply, what)
        return reply

    def _astray(self, error: BrokenOff) -> RegistryAnswerError:
        fix = self.describe("").fix
        if error.kind == "unencrypted":
            fix = (
                "Tell a registry behind a proxy its own address: "
                "X-Forwarded-Proto, or the registry's setting for its URL."
            )
        return RegistryAnswerError(f"{self.reference.registry}: {error}.", fix=fix)


def _header(shown: str | None) -> dict[str, str]:
    return {} if shown is None else {"Authorization": shown}


def ask_within(
    timeout_s: float,
    reference: Reference,
    work: Callable[[RepositorySession], _T],
    *,
    what: str,
    ca_bundle: Path | None = None,
    login: Callable[[], Login] | None = None,
    client: HttpClient | None = None,
) -> _T:
    """Run small requests to a registry in a thread, and wait at most `timeout_s` for it.

    `what` completes "gave no complete".
    """
    retries = Retries(
        connect_s=min(timeout_s, 5.0), answer_s=timeout_s, tries=2, longest_wait_s=0.5
    )
    opened = client or HttpClient(ca_bundle=ca_bundle, retries=retries)
    ends = time.monotonic() + timeout_s
    session = RepositorySession(
        reference, opened, purpose="pull", login=login, retries=retries, ends=ends
    )
    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work(session))
        except BaseException as exc:  # noqa: BLE001  raised again in the caller's thread
            errors.append(exc)
        if client is None:
            opened.close()

    thread = threading.Thread(target=body, name="registry", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if results:
        return results[0]
    if errors:
        raise errors[0]
    raise RegistryUnreachableError(
        f"The registry {reference.registry} gave no complete {what} within {timeout_s:g} s.",
        fix=CONNECT_FIX,
    )
