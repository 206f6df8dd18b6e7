"""A registry's authentication challenges, and the login in docker's configuration."""

from __future__ import annotations

import re
import urllib.parse
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from images.net.logins import basic

# Commas separate challenges and their parameters alike; a scheme comes before "name=".
_CHALLENGE = re.compile(r"(?:^|,)\s*(?P<scheme>[A-Za-z][\w-]*)\s+(?=[A-Za-z_]+\s*=)")
_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge from a registry's WWW-Authenticate header."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Parse a WWW-Authenticate header, which may contain several challenges."""
    starts = list(_CHALLENGE.finditer(header))
    ends = [*(match.start() for match in starts), len(header)][1:]
    return tuple(
        Challenge(
            start["scheme"].lower(),
            {
                name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain
                for name, quoted, plain in _PARAMETER.findall(header[start.end() : end])
            },
        )
        for start, end in zip(starts, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Login:
    """The login for a registry in docker's configuration; `problem`: why it cannot be read."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)

    def basic(self) -> str:
        """The Authorization header for HTTP basic authentication."""
        return basic(self.username, self.password)["Authorization"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """The request to send to the address that a challenge names."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = field(default=None, repr=False)


def token_request(challenge: Challenge, login: Login, scopes: Iterable[str]) -> TokenRequest:
    """Make the request for a token with these scopes: OAuth with an identity token, else a GET.

    https://distribution.github.io/distribution/spec/auth/
    """
    realm = challenge.parameters["realm"]
    service = challenge.parameters.get("service", "")
    headers: dict[str, str] = {}
    if login.identity_token:
        form = {
            "service": service,
            "scope": " ".join(scopes),
            "grant_type": "refresh_token",
            "refresh_token": login.identity_token,
            "client_id": "gpu-provision",
        }
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        body = urllib.parse.urlencode(form).encode()
        return TokenRequest(method="POST", url=realm, headers=headers, body=body)
    if login.username:
        headers["Authorization"] = login.basic()
    joint = "&" if urllib.parse.urlsplit(realm).query else "?"
    query = urllib.parse.urlencode([("service", service), *(("scope", one) for one in scopes)])
    return TokenRequest(method="GET", url=f"{realm}{joint}{query}", headers=headers)


def read_login(registry: str) -> Login:
    """Read the login to a registry from docker's configuration and its credential helpers."""
    import docker.auth
    import docker.errors

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing helper is an error already
            found = docker.auth.load_config().resolve_authconfig(registry) or {}
    except (docker.errors.DockerException, OSError, ValueError, TypeError, AttributeError) as exc:
        # much is public, and a broken helper is common: continue without a login, report it later
        return Login(problem=f"docker's login for {registry} could not be read: {exc}")
    # entries of the file and answers of a helper spell their keys differently
    entry = {str(key).lower(): value for key, value in found.items() if isinstance(value, str)}
    return Login(
        username=entry.get("username", ""),
        password=entry.get("password", ""),
        identity_token=entry.get("identitytoken", ""),
    )
