"""The Authorization header of each request: tokens by scope, or a login, for all threads.

A token is requested when the registry wants one, kept for its scopes, and renewed a little before
it expires, so that it does not expire during a body that takes minutes. Several threads that are
refused at once cause one new token.
https://distribution.github.io/distribution/spec/auth/
"""

from __future__ import annotations

import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from images.net.address import host_of, is_loopback
from images.net.head import Head, Reply
from images.oci.reference import Reference
from images.registry.answers import parse_json_object
from images.registry.auth import Challenge, Login, TokenRequest, parse_challenges, token_request
from images.registry.errors import CONNECT_FIX, PUSH_FIX, RegistryAnswerError
from images.text.printable import printable

Right = tuple[str, ...]
"""Scopes that belong together: ("repository:team/app:pull,push",)."""

_DEFAULT_S = 60.0
"""How long a token without `expires_in` is valid, according to the specification."""


@dataclass(frozen=True, slots=True)
class _Header:
    """An Authorization header, and when it expires (monotonic clock)."""

    text: str
    ends: float


class Authorizer:
    """Holds the credentials for one registry."""

    def __init__(
        self,
        reference: Reference,
        login: Callable[[], Login],
        send: Callable[[TokenRequest], Reply],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reference = reference
        self._read_login = login
        self._send = send
        self._clock = clock
        self._lock = threading.RLock()
        self._login: Login | None = None
        self._challenge: Challenge | None = None
        self._headers: dict[Right, _Header] = {}
        self._secrets: set[str] = set()

    @property
    def problem(self) -> str:
        """Why docker's login could not be read, or empty."""
        return self._login.problem if self._login is not None else ""

    @property
    def has_login(self) -> bool:
        """Whether docker's configuration has a login for this registry; False until it was read."""
        return bool(self._login)

    def header(self, right: Right) -> str | None:
        """The header for this right; None until the registry has sent a challenge."""
        with self._lock:
            header = self._headers.get(right)
            if header is not None and self._clock() < header.ends:
                return header.text
            if self._challenge is None:
                return None
            return self._answer(self._challenge, right)

    def renew(self, right: Right, refused: Head, used: str | None) -> bool:
        """Get a newer header than the refused one; False if there is none.

        `used` is the refused request's header: another thread may have renewed it since.
        """
        with self._lock:
            header = self._headers.get(right)
            if header is not None and header.text != used and self._clock() < header.ends:
                return True
            challenge = self._choose(refused)
            if challenge is None:
                return False
            self._challenge = challenge
            # the same password would be refused again; a new token may not be
            return self._answer(challenge, right) != used or challenge.scheme == "bearer"

    def clean(self, text: str) -> str:
        """Redact every secret that was sent, in case a registry repeats it."""
        with self._lock:
            # the longest first: it may contain another
            secrets = sorted(self._secrets, key=len, reverse=True)
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    def _choose(self, refused: Head) -> Challenge | None:
        challenges = parse_challenges(refused.headers.get("www-authenticate", ""))
        for challenge in challenges:
            if challenge.scheme == "bearer" and challenge.parameters.get("realm"):
                return challenge
        login = self._known_login()
        basic = (challenge for challenge in challenges if challenge.scheme == "basic")
        return next(basic, None) if login.username else None

    def _known_login(self) -> Login:
        if self._login is None:  # once: a credential helper may prompt the user
            self._login = self._read_login()
            self._keep_secret(self._login.password, self._login.identity_token)
        return self._login

    def _keep_secret(self, *secrets: str) -> None:
        # shorter ones occur in any text
        self._secrets.update(secret for secret in secrets if len(secret) > 3)

    def _answer(self, challenge: Challenge, right: Right) -> str:
        login = self._known_login()
        if challenge.scheme == "basic":
            text = login.basic()
            self._keep_secret(text.removeprefix("Basic "))
            self._headers[right] = _Header(text, float("inf"))
            return text
        _check_realm(challenge.parameters["realm"], self._reference)
        scopes = merged((*challenge.parameters.get("scope", "").split(), *right))
        # errors must show neither form of the login
        self._keep_secret(login.basic().removeprefix("Basic ") if login.username else "")
        token, lasts_s = self._token(token_request(challenge, login, scopes))
        self._keep_secret(token)
        text = f"Bearer {token}"
        self._headers[right] = _Header(text, self._clock() + lasts_s - min(10.0, lasts_s / 5))
        return text

    def _token(self, request: TokenRequest) -> tuple[str, float]:
        reply = self._send(request)
        where = f"The token server {host_of(request.url)}"
        document = parse_json_object(reply.body, where)
        token = document.get("token") or document.get("access_token")
        # a token with other characters could inject a header
        if not isinstance(token, str) or re.fullmatch(r"[!-~]+", token) is None:
            raise RegistryAnswerError(f"{where} answered without a token.", fix=PUSH_FIX)
        lasts = document.get("expires_in")
        known = isinstance(lasts, (int, float)) and 0 < lasts < 1e9
        return token, float(lasts) if known and lasts else _DEFAULT_S


def scope(repository: str, *actions: str) -> str:
    """The scope for actions on a repository."""
    return f"repository:{repository}:{','.join(actions)}"


def merged(scopes: Iterable[str]) -> tuple[str, ...]:
    """Merge the actions of scopes for the same resource, in their order."""
    actions: dict[str, dict[str, None]] = {}
    for one in scopes:
        resource, _, wanted = one.rpartition(":")
        actions.setdefault(resource, {}).update(dict.fromkeys(wanted.split(",")))
    return tuple(
        f"{resource}:{','.join(wanted)}" if resource else ",".join(wanted)
        for resource, wanted in actions.items()
    )


def _check_realm(realm: str, reference: Reference) -> None:
    """Refuse to send logins to an unencrypted address, unless both ends are on this machine."""
    try:
        parts = urllib.parse.urlsplit(realm)
        near = reference.is_loopback and is_loopback(parts.hostname or "")
    except ValueError:
        near, parts = False, urllib.parse.urlsplit("")
    if not (parts.scheme == "https" and parts.hostname) and not (near and parts.scheme == "http"):
        raise RegistryAnswerError(
            f"{reference.registry} asks to send the login to {printable(realm[:200])}, "
            "which is not encrypted; refusing to follow.",
            fix=CONNECT_FIX,
        )
