"""Addresses: their host, what may be shown of them, and where a redirect may lead."""

from __future__ import annotations

import re
import urllib.parse

from images.net.errors import BrokenOff

_MOST_URL = 16_000
_LONG = 8
_IN_LOGIN = "%:!$&'()*+,;=-._~"  # RFC 3986
# A login ends at the last @ before a slash. Else a password has a slash, where what follows the
# colon is no port.
_PORT = r"\d{1,5}(?:[/?#\s]|$)"
_ADDRESS = re.compile(
    rf"(?P<scheme>[^/?#@]*://|)(?:(?P<login>(?<=://)(?:[^/?#]*|[^/:@\[]*:(?!{_PORT}).*)|(?<!://)(?!/).*)@)?"
    r"(?P<place>[^?#]*)(?P<rest>.*)",
    re.DOTALL,
)
LOGIN = re.compile(
    r"(?<=://)(?:[^/?#\s\"'<>]{1,4000}"
    rf"|[^/\s:@\[\"'<>]{{0,200}}:(?!{_PORT})[^\s\"'<>]{{1,4000}})@"
)
"""The login of an address in a text, with its @."""
QUERY = re.compile(r"(?<=://)([^\s\"'<>?#]{1,4000})[?#][^\s\"'<>]*")
"""An address in a text from its host on; its group: the part before query and fragment."""


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
    """What may be shown and stored of an address: without login, query (it may be a signature) and
    fragment. A password may have a slash in it; without a scheme, all before the last @ is login.
    """
    found = _parts(url)
    return f"{found['scheme']}{found['place']}"


def shown_text(text: str) -> str:
    """A text with its addresses as `shown_url` shows them."""
    return QUERY.sub(r"\1", LOGIN.sub("", text))


def usable_url(url: str) -> str:
    """An address as programs accept it: with a login's own slashes and the like encoded."""
    found = _parts(url)
    login = found["login"]
    start = f"{urllib.parse.quote(login, safe=_IN_LOGIN)}@" if login else ""
    return f"{found['scheme']}{start}{found['place']}{found['rest']}"


def url_secrets(url: str) -> tuple[str, ...]:
    """The words of an address that no output may have, as written and decoded: the login, its
    password, the query, and the query's long values.

    A user name beside a password is not one: short ones ("ci") would be redacted from every other
    word of the output, and make it unreadable.
    """
    found = _parts(url)
    login, query = found["login"] or "", found["rest"].lstrip("?").partition("#")[0]
    user, _, password = login.partition(":")
    values = [pair.partition("=")[2] for pair in query.split("&")]
    words = [password or user, login, query, *(one for one in values if len(one) >= _LONG)]
    words += [urllib.parse.unquote(word) for word in words]
    return tuple(dict.fromkeys(word for word in words if word))


def _parts(url: str) -> re.Match[str]:
    found = _ADDRESS.fullmatch(url)
    assert found is not None  # every text matches
    return found


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
