"""Logins from a netrc, for exactly the hosts that it names, and the header that sends them."""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Mapping

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)', re.DOTALL)


def read_logins(text: str) -> dict[str, tuple[str, str]]:
    """Parse a netrc into host -> (user, password); words with blanks or quotes are quoted."""
    words = iter(
        re.sub(r"\\(.)", r"\1", match[1]) if match[1] is not None else match[2]
        for match in _WORD.finditer(text)
    )
    logins: dict[str, tuple[str, str]] = {}
    host: str | None = None
    for word in words:
        if word == "machine":
            host = next(words, "").lower()
            logins.setdefault(host, ("", ""))
        elif word == "default":  # a login for any host would be sent to wrong ones
            host = None
        elif word in {"login", "password", "account"}:
            value = next(words, "")
            if host is not None and word != "account":
                user, password = logins[host]
                logins[host] = (value, password) if word == "login" else (user, value)
    return logins


def authorization(url: str, logins: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Make the header for an address, from the login in the address or the one for its host."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None:
        user, password = (urllib.parse.unquote(w or "") for w in (parts.username, parts.password))
    else:
        user, password = logins.get((parts.hostname or "").lower(), ("", ""))
    return basic(user, password) if user or password else {}


def basic(user: str, password: str) -> dict[str, str]:
    """Make the header for HTTP basic authentication."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    return {"Authorization": f"Basic {token}"}
