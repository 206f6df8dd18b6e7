"""Blots out what a bundle must not tell: names, addresses, numbers that identify, secrets.

The same word becomes the same replacement everywhere, so that what belongs together still does,
and the replacement has the shape of the word: an address stays an address. What is in everybody's
machine (root, localhost, 127.0.0.1) stays.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from images.net.address import LOGIN, QUERY
from images.text.tokens import token_pattern

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
# A setting of a proxy or an index, as a variable, in a file, in JSON, as an option. Of a bare
# "proxy: " only a login is cut: it may be any program's message.
_ADDRESS_NAME = (
    r"(?:(?:PIP|UV)_\w{1,60}|docker_host|(?:[A-Za-z][\w.:-]{0,60}[_.:-])?find[_-]links"
    r"|[A-Za-z][\w.:-]{0,60}?proxy|proxy|(?:[A-Za-z][\w.-]{0,60}[_-])?(?:default[_-]index|index[_-]?urls?))"
)
_SETTING = re.compile(
    rf"(?<![\w.-])(?P<dashes>--)?(?P<opened>[\"']?)(?P<name>{_ADDRESS_NAME})(?P<closed>[\"']?)"
    r"(?P<sign>[ \t]{0,8}[:=][ \t]{0,8}|[ \t]{1,8}(?=[\"'])|(?(dashes)[ \t]{1,8}|(?!)))",
    re.IGNORECASE,
)
_OTHER_JSON = re.compile(r"null\b|true\b|false\b|-?\d|[\[{]")  # a value that is no text
_IS_ADDRESS = re.compile(_ADDRESS_NAME, re.IGNORECASE)
_NO_PROXY = re.compile(r"no[_-]?proxy$", re.IGNORECASE)
_SCHEME = re.compile(r"(?:[\w-]{1,60}=(?=\w+:))?[A-Za-z][A-Za-z0-9+.-]{0,20}://")
_PLACE = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::\d{1,5})?(?:/[^\s\"'<>\\]{0,2000})?"
)
_LOCAL = re.compile(r"(?:(?:unix|file|npipe|fd)://)?/[^\s@\"'<>\\?#]{0,2000}")
# What the public settings of NCCL look like; other values, and other settings, may hold anything.
_NCCL_NUMBERS = re.compile(
    r"ALLOC_P2P_NET_LL_BUFFERS|BUFFSIZE|CHECKS_DISABLE|CHECK_POINTERS|COLLNET_ENABLE"
    r"|COLLNET_NODE_THRESHOLD|COMM_BLOCKING|CROSS_NIC|CUMEM_ENABLE|CUMEM_HOST_ENABLE"
    r"|DMABUF_ENABLE|GDR_FLUSH_DISABLE|GRAPH_MIXING_SUPPORT|GRAPH_REGISTER|IB_ADAPTIVE_ROUTING"
    r"|IB_AR_THRESHOLD|IB_CUDA_SUPPORT|IB_DISABLE|IB_ECE_ENABLE|IB_FIFO_TC|IB_GID_INDEX"
    r"|IB_MERGE_NICS|IB_PCI_RELAXED_ORDERING|IB_QPS_PER_CONNECTION|IB_RETRY_CNT"
    r"|IB_RETURN_ASYNC_EVENTS|IB_SL|IB_SPLIT_DATA_ON_QPS|IB_TC|IB_TIMEOUT|IGNORE_CPU_AFFINITY"
    r"|IGNORE_DISABLED_P2P|LL_BUFFSIZE|LL_THRESHOLD|LOCAL_REGISTER|MAX_CTAS|MAX_NCHANNELS"
    r"|MAX_NRINGS|MIN_CTAS|MIN_NCHANNELS|MIN_NRINGS|MNNVL_ENABLE|NCHANNELS_PER_NET_PEER"
    r"|NET_DISABLE_INTRA|NET_FORCE_FLUSH|NET_GDR_READ|NET_SHARED_BUFFERS|NET_SHARED_COMMS"
    r"|NSOCKS_PERTHREAD|NTHREADS|NVB_DISABLE|NVLS_ENABLE|NVLS_NCHANNELS|P2P_DIRECT_DISABLE"
    r"|P2P_DISABLE|P2P_NET_CHUNKSIZE|P2P_NVL_CHUNKSIZE|P2P_PCI_CHUNKSIZE|P2P_PXN_LEVEL"
    r"|PXN_DISABLE|RAS_ENABLE|RAS_TIMEOUT_FACTOR|RUNTIME_CONNECT|SET_STACK_SIZE|SHM_DISABLE"
    r"|SHM_LOCALITY|SHM_USE_CUDA_MEMCPY|SINGLE_RING_THRESHOLD|SOCKET_NTHREADS|SOCKET_RETRY_CNT"
    r"|SOCKET_RETRY_SLEEP_MSEC|TREE_THRESHOLD|WIN_ENABLE"
)
_NCCL_NUMBER = r"-?\d{1,12}|0x[0-9a-fA-F]{1,8}"
_NCCL_LEVEL = r"[0-9]|LOC|NVL|PIX|PXB|P2C|PXN|PHB|SYS|NODE"
_NCCL_DEVICE = (
    r"(?:bond|br|cxi|docker|efa|en|eth|hfi|hns|hsn|ib|lo|mlx|mlx4_|mlx5_|bnxt_re|irdma|qedr|rdma|roce"
    r"|team|veth|wl)[0-9a-z]{0,12}(?:[_.:][0-9]{1,5})*"
)
_NCCL_KINDS = (
    r"(?:ALL|INIT|COLL|P2P|SHM|NET|GRAPH|TUNING|ENV|ALLOC|CALL|PROXY|NVLS|BOOTSTRAP|REG|PROFILE"
    r"|RAS)"
)
_NCCL_ALGORITHM = (
    r"(?:(?:allreduce|allgather|reducescatter|broadcast|reduce)?:?\^?"
    r"(?:Tree|Ring|CollnetDirect|CollnetChain|Collnet|NVLS|NVLSTree|PAT|LL|LL128|Simple)[,;]?){1,20}"
)
_NCCL_SETTING = re.compile(r"""(?<!\w)(NCCL_\w{1,60})=("[^"\n]*"|'[^'\n]*'|[^\s"',;}]+)""")
_NCCL_WORDS: Mapping[str, str] = {
    "VERSION": r"\d{1,3}(?:\.\d{1,4}){1,3}(?:-\d{1,3})?",  # set by NVIDIA's images
    "DEBUG": "VERSION|WARN|INFO|ABORT|TRACE|NONE",
    "DEBUG_SUBSYS": rf"\^?{_NCCL_KINDS}(?:,{_NCCL_KINDS}){{0,20}}",
    "ALGO": _NCCL_ALGORITHM,
    "PROTO": _NCCL_ALGORITHM,
    "LAUNCH_MODE": "PARALLEL|GROUP",
    "NET": "IB|Socket|AWS Libfabric|none",
    "NET_PLUGIN": "none",
    "TUNER_PLUGIN": "none",
    "P2P_LEVEL": _NCCL_LEVEL,
    "NET_GDR_LEVEL": _NCCL_LEVEL,
    "NET_GDR_C2C": "[01]",
    "SOCKET_FAMILY": "AF_INET6?",
    "IB_ADDR_FAMILY": "AF_INET6?",
    "SOCKET_IFNAME": rf"[\^=]{{0,2}}{_NCCL_DEVICE}(?:,{_NCCL_DEVICE}){{0,30}}",
    "IB_HCA": rf"[\^=]{{0,2}}{_NCCL_DEVICE}(?:,{_NCCL_DEVICE}){{0,30}}",
}
_URL_HOST = re.compile(r"(?<=://)(?:redacted@)?([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)")
_NAMED_SECRET = re.compile(
    r"((?:token|passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key)"
    r"[\w-]{0,40}[\"']?\s{0,3}[:=]\s{0,3}[\"']?)([^\s\"',;&<>]{1,1000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"((?:Bearer|Basic) )([\w.~+/=-]{8,2000})", re.IGNORECASE)
_JWT = r"eyJ[\w-]{8,4000}\.[\w-]{8,4000}\.[\w-]{0,4000}"
# Also what only looks like one of the formats: shortened, or of another release of a service.
_TOKEN = re.compile(
    rf"(?<![A-Za-z0-9])(?:{token_pattern()}"
    r"|(?:gh[oprsu]_|github_pat_|hf_)\w{16,255}|(?:glpat-|nvapi-|sk-|pypi-)[\w-]{16,255}"
    rf"|xox[a-z]-[\w-]{{8,255}}|A(?:KIA|SIA)[A-Z0-9]{{12,124}}|{_JWT})"
)
_MAIL = re.compile(
    r"(?<![\w.+-])(?<!://)[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"
)
_UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE
)
_SERIAL = re.compile(
    r"(\b(?:serial(?:[ _-]?(?:number|no))?|pdi)(?:\"?\s{0,40}[:=]\s{0,3}\"?|>))([\w.-]{4,64})",
    re.IGNORECASE,
)
_ENGINE_ID = re.compile(r"(?<![A-Z0-9:])[A-Z2-7]{4}(?::[A-Z2-7]{4}){11}(?![A-Z0-9:])")
_MAC = re.compile(r"(?<![0-9a-f:.])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}(?![0-9a-f:])", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d|\.dist-info|-microsoft)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
# A symbol's library ("x@libfoo.so.12") or a package's release: no domain ends in a number, and no
# address of a host has three.
_VERSION = re.compile(r"@(?:[\w-]+\.so(?:\.\d+)+|\d+\.\d+(?:\.\d+)?)$", re.ASCII)
# C++'s scope, or a number before it: names of letters alone, or one too short for a network's.
_SCOPE = re.compile(r"[a-f]{1,4}::[a-f]{1,4}|[0-9a-f]{1,3}::", re.IGNORECASE)
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
        text = "".join(self._without_logins(text))
        text = _NCCL_SETTING.sub(lambda m: f"{m[1]}={self._nccl(m[1], m[2])}", text)
        text = LOGIN.sub(lambda _: self._put("login", "", lambda _: "redacted") + "@", text)
        text = QUERY.sub(lambda m: m[1] + self._secret_query(m[0][len(m[1]) :]), text)
        text = _NAMED_SECRET.sub(lambda m: m[1] + self._secret_word(m[2]), text)
        text = _BEARER.sub(lambda m: m[1] + self._secret_word(m[2]), text)
        text = _TOKEN.sub(lambda m: self._secret_word(m[0]), text)
        text = _MAIL.sub(lambda m: self._mail(m[0]), text)
        text = _UUID.sub(lambda m: self._uuid(m[0]), text)
        text = _SERIAL.sub(lambda m: m[1] + self._put("serial", m[2], _numbered("serial-{}")), text)
        text = _ENGINE_ID.sub(lambda m: self._put("engine id", m[0], _numbered("engine-{}")), text)
        text = _MAC.sub(lambda m: self._put("mac", m[0].lower(), _mac), text)
        if addresses:
            text = _IPV6.sub(lambda m: self._ipv6(m[0]), text)
            text = _IPV4.sub(lambda m: self._ipv4(m[0]), text)
        text = _URL_HOST.sub(self._url_host, text)
        return self._pattern().sub(lambda m: self._name(m[0]), text)

    def variable(self, name: str, value: str) -> str:
        """The value of a variable of the environment, without what may be secret in it."""
        if _IS_ADDRESS.fullmatch(name) and not _NO_PROXY.search(name):
            return self.text(self._setting(value))
        return self.text(self._nccl(name, value) if name.startswith("NCCL_") else value)

    def _nccl(self, name: str, value: str) -> str:
        bare = value.strip("\"'")
        return value if is_harmless_nccl(name, bare) else self._secret_word(bare)

    def _without_logins(self, text: str) -> Iterator[str]:
        """The text in pieces, the settings of proxies and indexes without logins."""
        position = 0
        for found in _SETTING.finditer(text):
            start = found.end()
            other = _OTHER_JSON.match(text, start) if found["closed"] else None
            if found.start() < position or other or _NO_PROXY.search(found["name"]):
                continue
            yield text[position:start]
            end = _value_end(text, found)
            value, behind = _first_word(
                text[start:end], is_quoted=text[end : end + 1] in {'"', "'"}
            )
            is_message = ":" in found["sign"] and not found["closed"]
            if "@" in value or not is_message or without_login(value) is not None:
                value = self._setting(value)
            yield value
            position = end - len(behind)
        yield text[position:]

    def _setting(self, value: str) -> str:
        """Of a proxy or an index: its login is cut, and what is no address is secret."""
        bare = value.strip("\"' \t")
        if not bare:
            return value
        place = without_login(bare, mark="redacted@")
        if place is None:
            return value.replace(bare, self._secret_word(bare))
        if "@" in bare:
            self._put("login", "", lambda _: "redacted")
        scheme, rest = _split(place)
        rest = _URL_HOST.sub(self._url_host, f"://{rest}")[3:]
        return value.replace(bare, f"{scheme}{rest}")

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

    def _secret_query(self, text: str) -> str:
        """A query may be a signature; a fragment without one, as "#sha256=...", is kept."""
        return f"?{self._secret_word(text)}" if text.startswith("?") else text

    def _secret_word(self, word: str) -> str:
        return self._put("secret", word, _numbered("secret-{}"))

    def _uuid(self, word: str) -> str:
        low = word.lower()
        if low == _EFI_GLOBAL:
            return word
        return self._put("uuid", low, lambda n: f"00000000-0000-0000-0000-{n:012d}")

    def _mail(self, word: str) -> str:
        if _VERSION.search(word):
            return word
        return self._put("mail", word.lower(), _numbered("mail-{}@example.org"))

    def _ipv4(self, word: str) -> str:
        try:
            address = ipaddress.IPv4Address(word)
        except ValueError:
            return word
        if address.is_loopback or address.is_unspecified or word.startswith("255."):
            return word
        return self._put("address", word, _ipv4)

    def _ipv6(self, word: str) -> str:
        if _SCOPE.fullmatch(word):
            return word
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


def without_login(value: str, *, mark: str = "") -> str | None:
    """The address of a proxy or an index (or several, between blanks) without user, password and
    query; None where it is not a URL. All before the last @ is login, whatever is in it: a scheme
    may be missing, a password may hold a slash, a blank, another @. `mark` stands in its place.
    """
    if _LOCAL.fullmatch(value):
        return value
    if "@" not in value:
        parts = [_place(*_split(word)) for word in value.split()]
        return " ".join(filter(None, parts)) if parts and None not in parts else None
    scheme, rest = _split(value)
    return _place(f"{scheme}{mark}" if scheme else "", rest.rpartition("@")[2])


def is_harmless_nccl(name: str, value: str) -> bool:
    """Whether it is a setting that NCCL documents, with a value of its usual shape."""
    setting = name.removeprefix("NCCL_")
    is_number = _NCCL_NUMBERS.fullmatch(setting) is not None
    shape = _NCCL_NUMBER if is_number else _NCCL_WORDS.get(setting)
    return not value or (shape is not None and bool(re.fullmatch(shape, value, re.IGNORECASE)))


def _split(value: str) -> tuple[str, str]:
    """The scheme ("https://", with uv's name of the index before it), and the rest."""
    found = _SCHEME.match(value)
    return (found[0], value[found.end() :]) if found else ("", value)


def _place(before: str, rest: str) -> str | None:
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    return f"{before}{place}" if _PLACE.fullmatch(place) else None


def _value_end(text: str, found: re.Match[str]) -> int:
    """Where a setting's value ends: at the quote that closes it, else at the line's end."""
    start = found.end()
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    quote = "" if found["closed"] else found["opened"]
    if not quote and text[start : start + 1] in {'"', "'"}:
        quote, start = text[start], start + 1
    end = start
    while quote and end < line_end:
        if text[end] == "\\":
            end += 1
        elif text[end] == quote and not text[end + 1 : end + 2].strip(" \t\r\n,;:}])\"'"):
            return end
        end += 1
    return line_end


def _first_word(value: str, *, is_quoted: bool) -> tuple[str, str]:
    """A value without what stands behind it on the line: behind the last @, a blank ends it; so it
    does where there is none, and what is before the blank is an address.
    """
    at = value.rfind("@")
    blank = None if is_quoted else re.search(r"(?<=\S)[ \t\r]", value[at + 1 :])
    if blank is None:
        return value, ""
    end = at + 1 + blank.start()
    if at < 0 and without_login(value[:end].strip("\"'")) is None:
        return value, ""
    return value[:end], value[end:]


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
