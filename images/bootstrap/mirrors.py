"""Reads apt's sources, and writes from them the lines for a suite. Nothing here touches the host.

A bootstrap installs from the mirrors that the host's own apt uses: what an administrator set up
(an internal mirror, a login, a snapshot) holds for the base, too.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """One line of apt's configuration."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: Mapping[str, str]
    """Names in lower case, as one-line sources spell them."""


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


def passwords_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Find the secrets in addresses such as http://user:password@mirror/."""
    found = (re.findall(r"://[^/@\s:]*:([^/@\s]+)@", text) for text in texts)
    return tuple(secret for secrets in found for secret in secrets)
