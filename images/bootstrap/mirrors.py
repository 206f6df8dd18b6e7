"""Reads apt's sources, and chooses from them the sources of a suite. Nothing here reads the host.

A bootstrap installs from the mirrors that the host's own apt uses: what an administrator set up
(an internal mirror, a login, a snapshot) holds for the base, too. Or it installs what Debian had at
a given time, from a service that keeps all of its past: `<address>/debian/<stamp>`, beside it
`debian-security`. Which service, the host's sources or a setting say.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone


@dataclass(frozen=True, slots=True)
class MirrorSuite:
    """A suite on a mirror. `uri` may hold a login, which `shown` omits."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: Mapping[str, str]
    """Names in lower case, as one-line sources spell them."""

    @property
    def shown(self) -> str:
        """The suite and its mirror, for people: "bookworm (http://HOST/debian)"."""
        parts = urllib.parse.urlsplit(self.uri)
        return f"{self.suite} ({parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()})"

    def on(self, name: str) -> bool:
        """Whether a yes-or-no option is set to yes."""
        return self.options.get(name, "").lower() in {"yes", "true", "with", "on", "enable", "1"}

    def off(self, name: str) -> bool:
        """Whether a yes-or-no option is set to no."""
        return self.options.get(name, "").lower() in {
            "no", "false", "without", "off", "disable", "0"
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of Debian's archive: a service's address, and a time such as "20260301T000000Z"."""

    address: str
    stamp: str


_KINDS = ("", "-updates", "-security")
"""The suites of a release that a base is made of, by the ends of their names."""
_NAMES = {"debian", "debian-security"}
_STAMP = re.compile(r"\d{8}T\d{6}Z")
_SNAPSHOT_ADDRESS = re.compile(
    r"(https?://[^\s\[\]#]+)/debian(?:-security)?/\d{8}T\d{6}Z(?=[/\s]|$)"
)
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>.+)")


def parse_one_line(text: str) -> tuple[MirrorSuite, ...]:
    """Read a sources.list; lines that are not understood are left out."""
    found = []
    for raw in text.splitlines():
        match = _ONE_LINE.fullmatch(raw.partition("#")[0].strip())
        if match:
            suite, *components = match["rest"].split()
            pairs = (option.partition("=") for option in (match["options"] or "").split())
            options = {name.lower(): value for name, _, value in pairs}
            found.append(MirrorSuite(match["uri"], suite, tuple(components), options))
    return tuple(found)


def parse_deb822(text: str) -> tuple[MirrorSuite, ...]:
    """Read a .sources file; disabled and source-only paragraphs are left out."""
    found = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n\s*\n", lines):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line[:1] in {" ", "\t"}:
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}".strip()
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        disabled = fields.get("enabled", "yes").lower() in {"no", "false", "off", "0"}
        if disabled or "deb" not in fields.get("types", "").split():
            continue
        known = {"types", "uris", "suites", "components", "enabled", ""}
        options = {key: value for key, value in fields.items() if key not in known}
        components = tuple(fields.get("components", "").split())
        found += [
            MirrorSuite(uri, suite, components, options)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return tuple(found)


def _likely_debian(source: MirrorSuite) -> int | None:
    """Rank how likely a source is a mirror of Debian itself, 0 the most; None: it is not.

    Somebody's packages for Debian may be at an address that looks the same. Whether a source is
    Debian, its signature says later; here the likely ones come first.
    """
    if "main" not in source.components:
        return None
    signed_by = source.options.get("signed-by", "")
    if "debian-archive" in signed_by:
        return 0
    parts = [part for part in urllib.parse.urlsplit(source.uri).path.split("/") if part]
    if not _NAMES & {*parts}:
        return None
    while parts and _STAMP.fullmatch(parts[-1]):
        parts.pop()
    return 1 if parts[-1:] and parts[-1] in _NAMES and not signed_by else 2


def debian_sources(sources: Iterable[MirrorSuite], suite: str) -> tuple[MirrorSuite, ...]:
    """Choose the host's Debian mirrors, as sources of a suite; none where it has no mirror.

    A mirror keeps all suites, so the host's own suite does not matter; what matters is which kinds
    (the release, its updates, its security updates) come from where. Of several sources of one kind
    the most likely comes first.
    """
    ranked = [(rank, source) for source in sources if (rank := _likely_debian(source)) is not None]
    found: list[MirrorSuite] = []
    for _, source in sorted(ranked, key=lambda pair: pair[0]):
        kind = "".join(source.suite.partition("-")[1:])
        if kind not in _KINDS:
            continue
        kept = {
            name: value
            for name, value in source.options.items()
            # Debian's own keys are shipped here
            if (name == "signed-by" and "debian-archive" not in value and "\n" not in value)
            or name in {"trusted", "check-valid-until"}
        }
        chosen = MirrorSuite(source.uri, f"{suite}{kind}", ("main",), kept)
        if chosen not in found:
            found.append(chosen)
    # without the release itself the others are of no use
    return tuple(found) if any(source.suite == suite for source in found) else ()


def standard_sources(address: str, suite: str) -> tuple[MirrorSuite, ...]:
    """Return the sources of a suite on a mirror at `address` ("http://HOST/debian"), beside which
    security updates are in "debian-security".
    """
    address = address.rstrip("/")
    security = f"{address.removesuffix('/debian')}/debian-security"
    return tuple(
        MirrorSuite(uri, f"{suite}{kind}", ("main",), {})
        for uri, kind in zip((address, address, security), _KINDS, strict=True)
    )


def is_stamp(text: str) -> bool:
    """Whether this is a time as a snapshot is named for it."""
    if not _STAMP.fullmatch(text):
        return False
    try:
        datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    return True


def stamp_before(now: float) -> str:
    """Name the midnight before the last one: a service may still be taking in today's changes, and
    a stamp that is to be the same for ever must lie behind all that it will take in.
    """
    day = datetime.fromtimestamp(now, timezone.utc) - timedelta(days=1)
    return day.strftime("%Y%m%dT000000Z")


def snapshot_address(sources: str) -> str | None:
    """Find the address of a snapshot service in apt's sources, if only in a comment of them: the
    makers of Debian's images write there of which snapshot these are.
    """
    found = _SNAPSHOT_ADDRESS.search(sources)
    return found[1] if found else None


def snapshot_sources(snapshot: Snapshot, suite: str) -> tuple[MirrorSuite, ...]:
    """Return the sources of a suite as it was: the release, its updates, its security updates."""
    end = f"{snapshot.stamp}/"
    main, security = f"{snapshot.address}/debian/{end}", f"{snapshot.address}/debian-security/{end}"
    return tuple(
        # what was signed for some days is read years later
        MirrorSuite(uri, f"{suite}{kind}", ("main",), {"check-valid-until": "no"})
        for uri, kind in zip((main, main, security), _KINDS, strict=True)
    )


def canonical_sources(example: str, suite: str) -> bytes:
    """Write the sources.list of a base: Debian's own mirror, as its apt gives it for example.

    Where the packages came from is the host's affair: an internal mirror, whose name is nobody
    else's business, or a snapshot, which has no updates. So equal packages give equal bytes.
    """
    parse = parse_deb822 if re.search(r"(?m)^URIs:", example) else parse_one_line
    mirror = next((one.uri for one in parse(example) if "main" in one.components), None)
    if mirror is None:
        return b"# Name a mirror of Debian here, for apt-get to install from.\n"
    lines = (f"deb {one.uri} {one.suite} main\n" for one in standard_sources(mirror, suite))
    return "".join(lines).encode()
