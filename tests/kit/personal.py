"""What no recorded text may hold: words that identify a person or one machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from images.text.tokens import token_pattern
from provision.doctor.redact import Redactor

# Names that the texts use where a log has a person's or a machine's.
_USERS = r"(?:user|me|alice|root|ubuntu|runner|jovyan|vscode|linuxbrew|ec2-user)"
_HOSTS = r"(?:host|node-[a-z]|localhost|DESKTOP|0123456789ab)"

_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{token_pattern()})(?!\w)")
_URL_HOST = re.compile(r"(://(?:[^\s/@]{1,99}@)?)[A-Za-z0-9][\w.-]*")
_HOME = re.compile(rf"(?:/home/|/Users/|\bUsers[\\/]+)(?!{_USERS}(?![\w-]))[A-Za-z0-9][\w.-]*")
_PROMPT = re.compile(
    rf"^[\s>|]*(?:\([\w./+-]+\)\s*)*\[?(?!{_USERS}@{_HOSTS}(?![\w-]))[\w.+-]+@[\w.-]+[: ]"
    r"[^\n$#%>]{0,120}[$#%](?!\S)",
    re.MULTILINE,
)
_MAIL = re.compile(
    r"(?<![\w./+-])(?!git@)[\w.+-]{1,64}@(?!(?:[\w-]+\.)*example\.)(?:[A-Za-z0-9-]{1,63}\.){1,8}"
    r"(?:com|org|net|edu|gov|io|ai|dev|info|de|fr|uk|cn|ch|it|es|jp|kr|ca|au|eu|ru|nl|se)\b(?!\.)"
)
_SERIAL = re.compile(r"(?i)serial(?: number)?(?: is |\s*: ?)(?!serial)(?=\w*\d)[\w-]{6,}")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.#])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:.])", re.IGNORECASE)
# Dotted numbers of four parts that name a release of a library: of its package, or of its file.
_RELEASE_BEFORE = re.compile(
    r"(?:[-_=]|\bv|(?i:version|release|build|driver|cuda|cudnn|cublas|nvcc|compiler|kernel)\W{0,3}"
    r"|\b(?:nvidia|lib\w+|opencv|click)[-_][\w.-]+[ (<>=~]{1,24}(?:at )?)$"
)
_RELEASE_BEHIND = re.compile(r"[-+~_]|\.(?:whl|tar|deb|zip|exe|run)\b")
_INTERFACE = (1 << 64) - 1  # the half of an IPv6 address that may hold a MAC address
_DOCUMENTATION = tuple(
    ipaddress.ip_network(net)
    for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
)


def personal(text: str) -> list[str]:
    """The words that identify somebody, each with its kind; none in an invented text.

    What a bundle's redactor would replace counts, but for names of servers (those of public indexes
    are parts of messages) and its guesses of secrets ("bearer token: invalid").
    """
    patterns = {"token": _TOKEN, "home": _HOME, "prompt": _PROMPT, "mail": _MAIL, "serial": _SERIAL}
    found = [
        f"{kind}: {one[0].strip()}" for kind, of in patterns.items() for one in of.finditer(text)
    ]
    return [*found, *_addresses(text), *_redacted(text)]


def _redacted(text: str) -> Iterator[str]:
    before = _URL_HOST.sub(r"\1host", text)
    after = Redactor().text(before, addresses=False)
    known = set(before.split())
    for word in dict.fromkeys(after.split()):
        if word not in known and not re.search(r"(?:secret|mail|host)-\d", word):
            yield f"redacted: {word}"


def _addresses(text: str) -> Iterator[str]:
    for found in [*_IPV4.finditer(text), *_IPV6.finditer(text)]:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            continue
        line_start = text.rfind("\n", 0, found.start()) + 1
        before = text[max(line_start, found.start() - 40) : found.start()]
        is_release = address.version == 4 and (
            _RELEASE_BEFORE.search(before) or _RELEASE_BEHIND.match(text, found.end())
        )
        if not is_release and not _is_nobodys(address):
            yield f"address: {found[0]}"


def _is_nobodys(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return (
        address.is_loopback
        or address.is_unspecified
        or (address.is_link_local and (address.version == 4 or int(address) & _INTERFACE < 1 << 16))
        or address.is_multicast
        or str(address).startswith("255.")
        or any(address in net for net in _DOCUMENTATION)
    )
