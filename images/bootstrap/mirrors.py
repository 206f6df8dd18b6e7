"""Parses apt's sources, and chooses the sources of a suite from them. Nothing here reads the host.

A bootstrap installs from the mirrors that the host's apt uses: an administrator's settings (an
internal mirror, a login, a snapshot) apply to the base, too. Or it installs packages as of a date,
from a service that keeps all of Debian's: `<address>/debian/<stamp>`, and `debian-security` next to
`debian`. The host's sources or a setting name the service.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from images.net.address import shown_url


@dataclass(frozen=True, slots=True)
class MirrorSuite:
    """A suite on a mirror. `uri` may contain a login, which `shown` omits."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: Mapping[str, str]
    """Names in lower case, as in one-line sources."""

    @property
    def shown(self) -> str:
        """The suite and its mirror, for messages: "bookworm (http://HOST/debian)"."""
        return f"{self.suite} ({shown_url(self.uri)})"

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
"""The suites of a release that a base uses, as suffixes of its name."""
_NAMES = {"debian", "debian-security"}
_STAMP = re.compile(r"\d{8}T\d{6}Z")
_SNAPSHOT_ADDRESS = re.compile(
    r"(https?://[^\s\[\]#]+)/debian(?:-security)?/\d{8}T\d{6}Z(?=[/\s]|$)"
)
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>.+)")


def parse_one_line(text: str) -> tuple[MirrorSuite, ...]:
    """Parse a sources.list; skips lines that are not understood."""
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
    """Parse a .sources file; skips disabled and source-only paragraphs."""
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

    Third-party packages for Debian may have a similar address. The signature decides later whether
    a source is Debian; this only sorts the likely ones first.
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
    """Choose the host's Debian mirrors, as sources of a suite; empty if it has no mirror.

    A mirror has all suites, so the host's suite does not matter; only the mirror of each kind (the
    release, its updates, its security updates) does. Of several sources of one kind the most likely
    comes first.
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
            # Debian's keys are shipped with this package
            if (name == "signed-by" and "debian-archive" not in value and "\n" not in value)
            or name in {"trusted", "check-valid-until"}
        }
        chosen = MirrorSuite(source.uri, f"{suite}{kind}", ("main",), kept)
        if chosen not in found:
            found.append(chosen)
    # without the release itself the others are useless
    return tuple(found) if any(source.suite == suite for source in found) else ()


def standard_sources(address: str, suite: str) -> tuple[MirrorSuite, ...]:
    """Return the sources of a suite on a mirror at `address` ("http://HOST/debian"), with security
    updates in "debian-security" next to it.
    """
    address = address.rstrip("/")
    security = f"{address.removesuffix('/debian')}/debian-security"
    return tuple(
        MirrorSuite(uri, f"{suite}{kind}", ("main",), {})
        for uri, kind in zip((address, address, security), _KINDS, strict=True)
    )


def is_stamp(text: str) -> bool:
    """Whether this is a valid snapshot time ("20260301T000000Z")."""
    if not _STAMP.fullmatch(text):
        return False
    try:
        datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    return True


def stamp_before(now: float) -> str:
    """The midnight before the last one: a service may still import today's changes, and a stamp
    whose packages never change must be older than everything that it still imports.
    """
    day = datetime.fromtimestamp(now, timezone.utc) - timedelta(days=1)
    return day.strftime("%Y%m%dT000000Z")


def snapshot_address(sources: str) -> str | None:
    """Find the address of a snapshot service in apt's sources, even in a comment: Debian's images
    record their snapshot there.
    """
    found = _SNAPSHOT_ADDRESS.search(sources)
    return found[1] if found else None


def snapshot_sources(snapshot: Snapshot, suite: str) -> tuple[MirrorSuite, ...]:
    """Return the sources of a suite at the snapshot's time: release, updates, security updates."""
    end = f"{snapshot.stamp}/"
    main, security = f"{snapshot.address}/debian/{end}", f"{snapshot.address}/debian-security/{end}"
    return tuple(
        # a Release is valid for some days, and a snapshot is read years later
        MirrorSuite(uri, f"{suite}{kind}", ("main",), {"check-valid-until": "no"})
        for uri, kind in zip((main, main, security), _KINDS, strict=True)
    )


def canonical_sources(example: str, suite: str) -> bytes:
    """Make the sources.list of a base: Debian's mirror, from the example of the package apt.

    The mirror that the packages came from is not written: it may be internal, with a private name,
    or a snapshot, which gets no updates. So equal packages give equal bytes.
    """
    parse = parse_deb822 if re.search(r"(?m)^URIs:", example) else parse_one_line
    mirror = next((one.uri for one in parse(example) if "main" in one.components), None)
    if mirror is None:
        return b"# Name a mirror of Debian here, for apt-get to install from.\n"
    lines = (f"deb {one.uri} {one.suite} main\n" for one in standard_sources(mirror, suite))
    return "".join(lines).encode()
