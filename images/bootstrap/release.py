"""Parses a suite's Release file: its indexes with their digests, and how long it is valid.

https://wiki.debian.org/DebianRepository/Format#A.22Release.22_files
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from dataclasses import dataclass

from images.bootstrap.errors import BootstrapUnfitError, MirrorError
from images.bootstrap.index import read_fields

_LINE = re.compile(r"^ ([0-9a-f]{64}) +(\d+) +(\S+)$", re.MULTILINE)
_COMPRESSIONS = (".xz", ".gz", "")


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index in a Release: `path` relative to it, `size` in bytes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A suite's Release file. `valid_until` is in seconds since 1970."""

    shown: str
    names: frozenset[str]
    """The suite's names: "bookworm", "oldstable"."""
    architectures: tuple[str, ...]
    valid_until: float | None
    by_hash: bool
    files: Mapping[str, IndexFile]

    def packages(self, arch: str) -> IndexFile:
        """Return the index of the component "main", with the best compression listed."""
        for suffix in _COMPRESSIONS:
            found = self.files.get(f"main/binary-{arch}/Packages{suffix}")
            if found is not None:
                return found
        raise BootstrapUnfitError(
            f"{self.shown} has no packages for {arch}; it has {' '.join(self.architectures)}.",
            fix="Name another architecture or a mirror that has it.",
        )

    def check(self, suite: str, *, now: float | None) -> None:
        """Refuse the Release of another suite, and an expired one (`now` None: skip this check).

        An attacker cannot sign, but may serve what Debian signed for another suite or last year.
        """
        if suite not in self.names:
            raise MirrorError(
                f"{self.shown} is the Release of {' or '.join(sorted(self.names))}, not of"
                f" {suite}.",
                fix="Use another mirror of Debian.",
            )
        if now is None:
            return
        if self.valid_until is not None and now > self.valid_until:
            raise MirrorError(
                f"{self.shown} expired on {_day(self.valid_until)}: the mirror is not updated any"
                " more, or this machine's clock is wrong.",
                fix="Check the clock (date), or use another mirror; for an archive that does not"
                " change any more, set check-valid-until=no in the host's apt sources.",
            )


def parse_release(text: str, *, shown: str) -> Release:
    """Parse a Release file. MirrorError: it lists no index."""
    fields = read_fields(text)
    files = {
        path: IndexFile(path, sha256, int(size))
        for sha256, size, path in _LINE.findall(fields.get("SHA256", ""))
        if not path.startswith("/") and ".." not in path.split("/")
    }
    if not files:
        raise MirrorError(
            f"{shown} lists no SHA256 of any index.", fix="Use another mirror of Debian."
        )
    return Release(
        shown=shown,
        names=frozenset(filter(None, (fields.get("Suite"), fields.get("Codename")))),
        architectures=tuple(fields.get("Architectures", "").split()),
        valid_until=_time(fields.get("Valid-Until")),
        by_hash=fields.get("Acquire-By-Hash", "").lower() == "yes",
        files=files,
    )


def _time(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _day(seconds: float) -> str:
    return email.utils.formatdate(seconds, usegmt=True)
