"""Turns a root file system into a layer that holds nothing of the host or of the day."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from images.bootstrap.mirrors import canonical_sources

_BLOCK = 1 << 20
_EXTENDED_ATTRIBUTE = "SCHILY.xattr."
_DPKG_STATUS = "var/lib/dpkg/status"
_SOURCES = "etc/apt/sources.list"
_REWRITTEN = re.compile(rf"etc/shadow|{re.escape(_SOURCES)}")
_EXAMPLES = re.compile(r"usr/share/doc/apt/examples/(debian\.sources|sources\.list)")
_PYTHON = re.compile(r"usr/bin/python(\d+\.\d+)")
_DROPPED = re.compile(
    r"""
      (dev|proc|sys|run|tmp|var/tmp|var/log|var/lib/apt/lists)/.*
    | var/cache/(?!debconf/[^/]*\.dat$).*
    | etc/(hostname|resolv\.conf|machine-id|\.pwd\.lock|mtab)
    | etc/(passwd|group|shadow|gshadow|subuid|subgid)-
    | etc/apt/sources\.list\.d/.*
    | etc/apt/(auth\.conf(\.d/.*)?|apt\.conf\.d/\d\dmmdebstrap)
    | etc/dpkg/dpkg\.cfg\.d/99mmdebstrap
    | var/lib/dbus/machine-id
    | var/lib/dpkg/(.*-old|lock.*|triggers/Lock|cmethopt)
    | var/lib/apt/(extended_states|periodic/.*|daily_lock)
    | var/lib/systemd/(random-seed|catalog/database)
    | debootstrap(/.*)?
    | (.*/)?__pycache__(/.*)?
    | .*\.pyc
    | usr/share/doc/(?!.*/copyright$)[^/]+/.*
    | usr/share/(man|info|lintian|linda|groff)/.*
    | usr/share/locale/(?!locale\.alias$).*
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer that was written, and what was seen in it on the way."""

    diff_id: str
    """The digest of the plain tar, "sha256:..."."""
    packages: tuple[str, ...]
    """What dpkg has installed, each as "name=version"."""
    pythons: tuple[str, ...]
    """The versions that programs in /usr/bin are named for, such as "3.11"."""


def is_kept(name: str, *, directory: bool) -> bool:
    """Whether a path of the tree belongs in the image.

    What goes: what the engine gives each container, what is made anew, what tells of this host or
    this day, byte code (its recorded times would no longer fit), and what only a person reads;
    licences stay. The directories of logs and caches stay, because programs expect them.
    """
    if directory and re.match(r"var/(log|cache)/|run/lock$", name):
        return not name.startswith("var/cache/apt/archives/")
    return not _DROPPED.fullmatch(name)


def clean_passwords(data: bytes, epoch: int) -> bytes:
    """Take the day of the making out of the password file."""
    day = str(epoch // 86400).encode()
    lines = (line.split(b":") for line in data.splitlines())
    return b"".join(b":".join([*line[:2], day, *line[3:]]) + b"\n" for line in lines)


def _plain(name: str) -> str:
    return name.removeprefix("./").strip("/")


def tar_tree(tree: Path, target: Path) -> None:
    """Write a tree that is a directory as the tar that `write_layer` reads."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return member if is_kept(_plain(member.name), directory=member.isdir()) else None

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(tree, arcname=".", filter=kept)


def plan_layer(
    members: Iterable[tarfile.TarInfo], epoch: int
) -> tuple[tuple[tarfile.TarInfo, tarfile.TarInfo], ...]:
    """Pair each member of the layer, in order, with the member of the tree that holds its data.

    The first name of a file with several hard links carries the data, whichever it was before.
    """
    by_name = {_plain(member.name): member for member in members}
    by_name.setdefault(_SOURCES, _empty_file(_SOURCES))  # a tool may have written several instead
    first_names: dict[str, str] = {}
    planned = []
    for name in sorted(by_name):
        member = by_name[name]
        if not name or name == "." or not is_kept(name, directory=member.isdir()):
            continue
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            continue
        source = by_name[_plain(member.linkname)] if member.islnk() else member
        entry = tarfile.TarInfo(name)
        entry.mode, entry.uid, entry.gid = source.mode, source.uid, source.gid
        entry.mtime = min(int(source.mtime), epoch)
        entry.type, entry.linkname, entry.size = source.type, source.linkname, source.size
        entry.pax_headers = {
            key: value
            for key, value in sorted(source.pax_headers.items())
            if key.startswith(_EXTENDED_ATTRIBUTE)
        }
        if source.isreg():
            first = first_names.setdefault(_plain(source.name), name)
            if first != name:
                entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, first, 0
        planned.append((entry, source))
    return tuple(planned)


def _empty_file(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    return info


def _example_sources(tree: tarfile.TarFile) -> str:
    """Read what Debian's apt gives as an example of its sources."""
    for member in sorted(tree, key=lambda member: member.name):
        if _EXAMPLES.fullmatch(_plain(member.name)) and member.isreg():
            content = tree.extractfile(member)
            assert content is not None
            return content.read().decode("utf-8", "replace")
    return ""


def parse_status(text: str) -> tuple[str, ...]:
    """Read dpkg's list of packages as "name=version", sorted."""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[\w-]+: ", line)
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append(f"{fields['Package']}={fields['Version']}")
    return tuple(sorted(found))


def write_layer(tree: Path, layer: Path, epoch: int, suite: str) -> Layer:
    """Write the layer of a tree (a tar). The same files give the same bytes."""
    status = b""
    pythons = []
    with (
        tarfile.open(tree, "r:") as source,
        tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as target,
    ):
        sources = canonical_sources(_example_sources(source), suite)
        for entry, member in plan_layer(source, epoch):
            data: IO[bytes] | None = source.extractfile(member) if entry.isreg() else None
            if data is not None and _REWRITTEN.fullmatch(entry.name):
                passwords = entry.name != _SOURCES
                content = clean_passwords(data.read(), epoch) if passwords else sources
                entry.size = len(content)
                data = io.BytesIO(content)
                if not passwords:
                    entry.mode, entry.uid, entry.gid, entry.mtime = 0o644, 0, 0, epoch
            elif data is not None and entry.name == _DPKG_STATUS:
                status = data.read()
                data.seek(0)
            elif python := _PYTHON.fullmatch(entry.name):
                pythons.append(python[1])
            target.addfile(entry, data)
    return Layer(
        diff_id=_digest(layer),
        packages=parse_status(status.decode("utf-8", "replace")),
        pythons=tuple(pythons),
    )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"
