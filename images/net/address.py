"""Addresses: their host, what may be shown of them, and where a redirect may lead."""

from __future__ import annotations

import re
import urllib.parse

from images.net.errors import BrokenOff

_MOST_URL = 16_000


def is_loopback(hostname: str) -> bool:
    """Whether a host name or IP address is a loopback one."""
    return (
        hostname in {"localhost", "::1"}
        or hostname.endswith(".localhost")
        or re.fullmatch(r"127(\.\d{1,3}){3}", hostname) is not None
    )


def origin_of(url: str) -> tuple[str, str, int] | None:
    """An address's scheme, host and port, which decide whether a login is sent; None: invalid."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname.lower(), port) if parts.hostname and port else None


def host_of(url: str) -> str:
    """Return an address's host and port, without anything that may be secret."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "?"
    host = parts.hostname or "?"
    return f"[{host}]{port}" if ":" in host else f"{host}{port}"


def shown_url(url: str) -> str:
    """Strip what may be secret from an address: a login, and the query (it may be a signature)."""
    try:
        return without_login(urllib.parse.urlsplit(url)._replace(query=""))
    except ValueError:
        return "?"


def without_login(parts: urllib.parse.SplitResult) -> str:
    """Rebuild an address without user, password and fragment."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def followed(url: str, location: str) -> str:
    """Resolve the target of a redirect, or a location that an answer names.

    BrokenOff: it is not an http or https address, or is unencrypted http where the request was
    https or went to this machine and the target is another host.
    """
    try:
        target = urllib.parse.urljoin(url, location) if location.isascii() else ""
    except ValueError:
        target = ""
    origin, here = origin_of(target), origin_of(url)
    usable = location and len(target) <= _MOST_URL and target.isprintable()
    if not usable or origin is None or here is None or origin[0] not in {"http", "https"}:
        shown = shown_url(location)[:200] if location else "nowhere"
        why = f"redirects to {shown}, which is not a URL and is not followed"
        raise BrokenOff(why, host=host_of(url), kind="redirect")
    if origin[0] == "http" and (
        here[0] == "https" or (is_loopback(here[1]) and not is_loopback(origin[1]))
    ):
        why = f"redirects to http://{host_of(target)}, which is not encrypted and is not followed"
        raise BrokenOff(why, host=host_of(url), kind="unencrypted")
    return without_login(urllib.parse.urlsplit(target))
