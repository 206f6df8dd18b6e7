"""Reads apt's sources, and writes from them the lines for a suite. Nothing here touches the host.

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
class Source:
    """One line of apt's configuration."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: Mapping[str, str]
    """Names in lower case, as one-line sources spell them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of Debian's archive: a service's address, and a time such as "20260301T000000Z"."""

    address: str
    stamp: str


_STAMP = re.compile(r"\d{8}T\d{6}Z")
_SNAPSHOT_ADDRESS = re.compile(
    r"(https?://[^\s\[\]#]+)/debian(?:-security)?/\d{8}T\d{6}Z(?=[/\s]|$)"
)
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>.+)")


def parse_one_line(text: str) -> tuple[Source, ...]:
    """Read a sources.list; lines that are not understood are left out."""
    found = []
    for raw in text.splitlines():
        match = _ONE_LINE.fullmatch(raw.partition("#")[0].strip())
        if match:
            suite, *components = match["rest"].split()
            pairs = (option.partition("=") for option in (match["options"] or "").split())
            options = {name.lower(): value for name, _, value in pairs}
            found.append(Source(match["uri"], suite, tuple(components), options))
    return tuple(found)


def parse_deb822(text: str) -> tuple[Source, ...]:
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
            Source(uri, suite, components, options)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return tuple(found)


def _is_debian(source: Source) -> bool:
    """Whether a source is a mirror of Debian itself, and not somebody's packages for Debian."""
    if "main" not in source.components:
        return False
    if "debian-archive" in source.options.get("signed-by", ""):
        return True
    path = urllib.parse.urlsplit(source.uri).path
    return any(re.fullmatch(r"debian(-security)?", part) for part in path.split("/"))


def debian_lines(sources: Iterable[Source], suite: str) -> tuple[str, ...]:
    """Write the host's Debian mirrors as sources for a suite; none where it has no mirror.

    A mirror keeps all suites, so the host's own suite does not matter; what matters is which kinds
    (the release, its updates, its security updates) come from where.
    """
    found = []
    for source in filter(_is_debian, sources):
        _, dash, kind = source.suite.partition("-")
        if kind not in {"", "updates", "security"}:
            continue
        kept = {
            name: value
            for name, value in source.options.items()
            # Debian's own keyring is given to the tool; its path differs between releases
            if (name == "signed-by" and "debian-archive" not in value and "\n" not in value)
            or name in {"trusted", "check-valid-until"}
        }
        options = " ".join(f"{name}={value}" for name, value in sorted(kept.items()))
        bracket = f"[{options}] " if options else ""
        found.append(f"deb {bracket}{source.uri} {suite}{dash}{kind} main")
    lines = tuple(dict.fromkeys(found))
    # without the release itself the others are of no use
    return lines if any(line.split()[-2] == suite for line in lines) else ()


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


def snapshot_lines(snapshot: Snapshot, suite: str) -> tuple[str, ...]:
    """Write the sources of a suite as it was: the release, its updates, its security updates."""
    # what was signed for some days is read years later
    start, end = "deb [check-valid-until=no]", f"{snapshot.stamp}/"
    return (
        f"{start} {snapshot.address}/debian/{end} {suite} main",
        f"{start} {snapshot.address}/debian/{end} {suite}-updates main",
        f"{start} {snapshot.address}/debian-security/{end} {suite}-security main",
    )


def canonical_sources(example: str, suite: str) -> bytes:
    """Write the sources.list of a base: Debian's own addresses, as its apt gives them for example.

    Where the packages came from is the host's affair: an internal mirror, whose name is nobody
    else's business, or a snapshot, which has no updates. So equal packages give equal bytes.
    """
    parse = parse_deb822 if re.search(r"(?m)^URIs:", example) else parse_one_line
    lines = debian_lines(parse(example), suite)
    text = "".join(f"{line}\n" for line in lines)
    return text.encode() or b"# Name a mirror of Debian here, for apt-get to install from.\n"


def passwords_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Find the secrets in addresses such as http://user:password@mirror/."""
    found = (re.findall(r"://[^/@\s:]*:([^/@\s]+)@", text) for text in texts)
    return tuple(secret for secrets in found for secret in secrets)
