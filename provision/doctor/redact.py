"""Blots out what a bundle must not tell: names, addresses, numbers that identify, secrets.

The same word becomes the same replacement everywhere, so that what belongs together still does,
and the replacement has the shape of the word: an address stays an address. What is in everybody's
machine (root, localhost, 127.0.0.1) stays.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable

# Accounts and hosts that half of all machines have identify nobody.
_COMMON = frozenset(
    {"root", "nobody", "daemon", "admin", "user", "test", "host", "localhost", "localdomain"}
    | {"linux", "ubuntu", "debian", "fedora", "centos", "rocky", "almalinux", "suse", "opensuse"}
    | {"arch", "alpine", "ec2-user", "azureuser", "opc", "core", "cloud", "cloud-user", "vagrant"}
    | {"runner", "docker", "podman", "nvidia", "video", "render", "none"}
)
# Not secret, and needed to understand a failed download.
_PUBLIC_HOSTS = ("nvidia.com", "nvidia.github.io", "docker.com", "docker.io", "pytorch.org")
# The name of EFI's own variables, the same on every machine.
_EFI_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

_HOME = re.compile(r"(?<=/home/)[^/\s:;,\"'\\)\]}>]+|(?<=/Users/)[^/\s:;,\"'\\)\]}>]+")
_LOGIN = re.compile(r"(?<=://)[^/\s@\"'<>]{1,500}@")
_URL_HOST = re.compile(r"(?<=://)(?:redacted@)?([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)")
_NAMED_SECRET = re.compile(
    r"((?:token|passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key)"
    r"[\w-]{0,40}[\"']?\s{0,3}[:=]\s{0,3}[\"']?)([^\s\"',;&<>]{1,1000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"((?:Bearer|Basic) )([\w.~+/=-]{8,2000})", re.IGNORECASE)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[oprsu]_\w{16,255}|github_pat_\w{16,255}|glpat-[\w-]{16,255}"
    r"|hf_\w{16,255}|nvapi-[\w-]{16,255}|sk-[\w-]{16,255}|pypi-[\w-]{16,255}|xox[a-z]-[\w-]{8,255}"
    r"|A(?:KIA|SIA)[A-Z0-9]{12,124}|eyJ[\w-]{8,4000}\.[\w-]{8,4000}\.[\w-]{0,4000})"
)
_MAIL = re.compile(
    r"(?<![\w.+-])(?<!://)[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"
)
_UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE
)
_SERIAL = re.compile(
    r"(\bserial(?:[ _-]?(?:number|no))?(?:\"?\s{0,40}[:=]\s{0,3}\"?|>))([\w.-]{4,64})",
    re.IGNORECASE,
)
_ENGINE_ID = re.compile(r"(?<![A-Z0-9:])[A-Z2-7]{4}(?::[A-Z2-7]{4}){11}(?![A-Z0-9:])")
_MAC = re.compile(r"(?<![0-9a-f:.])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}(?![0-9a-f:])", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d|\.dist-info|-microsoft)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
_WORD_BEFORE, _WORD_BEHIND = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"


class Redactor:
    """Learns the names of a machine first, then blots them out of any number of texts."""

    def __init__(self, *, users: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._replacements: dict[tuple[str, str], str] = {}
        self._users = _secret(users)
        self._hosts = {name.lower() for name in _secret(hosts)}
        self._hosts |= {name.partition(".")[0] for name in self._hosts} - _COMMON
        self._names: re.Pattern[str] | None = None

    def learn_homes(self, text: str) -> None:
        """Users by the home directories that a text names."""
        self._users |= _secret(_HOME.findall(text))
        self._names = None

    @property
    def counts(self) -> dict[str, int]:
        """How many different words of each kind were replaced."""
        return dict(sorted(Counter(kind for kind, _ in self._replacements).items()))

    def text(self, text: str, *, addresses: bool = True) -> str:
        """The text without them. `addresses=False` where dotted numbers are versions."""
        text = _LOGIN.sub(lambda _: self._put("login", "", lambda _: "redacted") + "@", text)
        text = _NAMED_SECRET.sub(lambda m: m[1] + self._secret_word(m[2]), text)
        text = _BEARER.sub(lambda m: m[1] + self._secret_word(m[2]), text)
        text = _TOKEN.sub(lambda m: self._secret_word(m[0]), text)
        text = _MAIL.sub(
            lambda m: self._put("mail", m[0].lower(), _numbered("mail-{}@example.org")), text
        )
        text = _UUID.sub(lambda m: self._uuid(m[0]), text)
        text = _SERIAL.sub(lambda m: m[1] + self._put("serial", m[2], _numbered("serial-{}")), text)
        text = _ENGINE_ID.sub(lambda m: self._put("engine id", m[0], _numbered("engine-{}")), text)
        text = _MAC.sub(lambda m: self._put("mac", m[0].lower(), _mac), text)
        if addresses:
            text = _IPV6.sub(lambda m: self._ipv6(m[0]), text)
            text = _IPV4.sub(lambda m: self._ipv4(m[0]), text)
        text = _URL_HOST.sub(self._url_host, text)
        return self._pattern().sub(lambda m: self._name(m[0]), text)

    def data(self, data: bytes, *, addresses: bool = True) -> bytes:
        """The same for bytes, which need not be text."""
        text = data.decode("utf-8", "surrogateescape")
        return self.text(text, addresses=addresses).encode("utf-8", "surrogateescape")

    def _pattern(self) -> re.Pattern[str]:
        if self._names is None:
            # a host's name may be followed by its domain
            hosts = [rf"{re.escape(name)}(?:\.[A-Za-z][\w-]*)*" for name in _longest(self._hosts)]
            users = [re.escape(name) for name in _longest(self._users)]
            words = "|".join([*hosts, *users]) or r"(?!)"
            self._names = re.compile(f"{_WORD_BEFORE}(?:{words}){_WORD_BEHIND}", re.IGNORECASE)
        return self._names

    def _name(self, word: str) -> str:
        low = word.lower()
        if any(low == host or low.startswith(f"{host}.") for host in self._hosts):
            return self._host(low)
        return self._put("user", low, _numbered("user-{}"))

    def _host(self, name: str) -> str:
        short = name.partition(".")[0]
        return self._put("host", short if short in self._hosts else name, _numbered("host-{}"))

    def _url_host(self, found: re.Match[str]) -> str:
        name = found[1].lower()
        is_public = any(name == one or name.endswith(f".{one}") for one in _PUBLIC_HOSTS)
        if is_public or name in _COMMON or "." not in name or re.fullmatch(r"[\d.]+", name):
            return found[0]
        if name.endswith(".example.org") or re.fullmatch(r"host-\d+", name):
            return found[0]
        return found[0][: -len(found[1])] + self._host(name)

    def _secret_word(self, word: str) -> str:
        return self._put("secret", word, _numbered("secret-{}"))

    def _uuid(self, word: str) -> str:
        low = word.lower()
        if low == _EFI_GLOBAL:
            return word
        return self._put("uuid", low, lambda n: f"00000000-0000-0000-0000-{n:012d}")

    def _ipv4(self, word: str) -> str:
        try:
            address = ipaddress.IPv4Address(word)
        except ValueError:
            return word
        if address.is_loopback or address.is_unspecified or word.startswith("255."):
            return word
        return self._put("address", word, _ipv4)

    def _ipv6(self, word: str) -> str:
        try:
            address = ipaddress.IPv6Address(word)
        except ValueError:
            return word
        if address.is_loopback or address.is_unspecified:
            return word
        return self._put("address", word.lower(), lambda n: f"2001:db8::{n:x}")

    def _put(self, kind: str, word: str, make: Callable[[int], str]) -> str:
        key = (kind, word)
        if key not in self._replacements:
            number = 1 + sum(1 for other, _ in self._replacements if other == kind)
            self._replacements[key] = make(number)
        return self._replacements[key]


def _numbered(form: str) -> Callable[[int], str]:
    return form.format


def _mac(number: int) -> str:
    """Of the range that everybody may give himself."""
    low = f"{number:010x}"
    return ":".join(("02", *(low[i : i + 2] for i in range(0, 10, 2))))


def _ipv4(number: int) -> str:
    """Of the ranges for documentation (RFC 5737), then for benchmarks (RFC 2544)."""
    if number < 255:
        return f"192.0.2.{number}"
    return f"198.18.{number >> 8 & 255}.{number & 255}"


def _secret(names: Iterable[str]) -> set[str]:
    """Those that could identify somebody: shorter ones are also parts of ordinary words."""
    low = {name.strip().lower() for name in names}
    return {name for name in low if len(name) > 2 and name not in _COMMON and not name.isdecimal()}


def _longest(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (-len(name), name))
