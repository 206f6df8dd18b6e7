"""Decides which files to install from a wheel: those that pip would write for one Python.

Differences from pip: `REQUESTED` is not written (a lock does not say what the user asked for),
INSTALLER names us, scripts are always executable (the specification allows that), purelib and
platlib are one directory (as in a virtual environment), and RECORD rows of old wrappers that are
not installed are dropped.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import json
import posixpath
import re
import stat
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from images.inspect.tree import WHITEOUT
from images.layers import record, scripts, unneeded
from images.layers.record import Row
from images.layers.wheel_file import WheelFile
from images.net.address import shown_url
from images.wheels.directory import Member
from images.wheels.remote_file import Wheel

INSTALLER = b"gpu-provision\n"
EXECUTABLE, PLAIN = 0o755, 0o644
_MOST_METADATA = 16 << 20
_MOST_SCRIPT = 64 << 20
_MAJOR = 1  # of the wheel format


@dataclass(frozen=True, kw_only=True)
class InstallLocation:
    """Where wheels are installed: "opt/venv/lib/python3.11/site-packages", "opt/venv" and
    "/opt/venv/bin/python".
    """

    site: str
    prefix: str
    interpreter: str

    @cached_property
    def python(self) -> tuple[int, int]:
        """The Python version of the site directory."""
        found = re.search(r"/python(\d+)\.(\d+)/", f"{self.site}/")
        if not found:
            raise ValueError(f"{self.site} does not say for which Python it is")
        return int(found[1]), int(found[2])

    def schemes(self, package: str) -> dict[str, str]:
        """The directories for the schemes in a wheel's .data directory."""
        major, minor = self.python
        return {
            "purelib": self.site,
            "platlib": self.site,
            "scripts": f"{self.prefix}/bin",
            "headers": f"{self.prefix}/include/site/python{major}.{minor}/{package}",
            "data": self.prefix,
        }

    def taken(self) -> frozenset[str]:
        """The files of the environment itself, which no wheel may replace."""
        major, minor = self.python
        names = ("python", f"python{major}", f"python{major}.{minor}")
        return frozenset(
            {
                self.interpreter.lstrip("/"),
                f"{self.prefix}/pyvenv.cfg",
                f"{self.prefix}/lib64",
                *(f"{self.prefix}/bin/{name}" for name in names),
            }
        )


class MadeContent(Protocol):
    """Content that is made of a wheel's, in pieces, and too large for memory."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    def contents(self) -> Iterator[bytes]:
        """Yield it."""

    def pack(self, block: bytes) -> bytes:
        """Compress a part of it as a gzip member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """An installed file: members of the wheel, bytes of ours, and what is made, concatenated."""

    path: str
    mode: int
    parts: tuple[Member | bytes | MadeContent, ...]
    wheel: WheelFile

    @property
    def size(self) -> int:
        return sum(len(part) if isinstance(part, bytes) else part.size for part in self.parts)


@dataclass(slots=True, kw_only=True)
class _Plan:
    """A wheel's files while the plan is made."""

    wheel: WheelFile
    place: InstallLocation
    info: str
    """The wheel's .dist-info directory."""
    taken: frozenset[str]
    files: dict[str, InstalledFile] = field(default_factory=dict)
    installed: list[Row] = field(default_factory=list)
    """The rows of the wheel's RECORD for the installed paths."""
    generated: list[Row] = field(default_factory=list)
    as_listed: bool = True
    """Whether the wheel's RECORD is valid unchanged, apart from generated files."""

    def add(self, file: InstalledFile) -> None:
        path = file.path
        if f"/{WHITEOUT}" in path:
            raise self.wheel.refused(f"has a {path}, which would delete files of the image")
        if path in self.taken:
            raise self.wheel.refused(f"would replace /{path}, which is the environment's own")
        if path in self.files:
            raise self.wheel.refused(f"would install two files as /{path}")
        self.files[path] = file

    def add_made(self, path: str, content: bytes, mode: int = PLAIN) -> None:
        """Add a generated file, with its row."""
        self.add(InstalledFile(path=path, mode=mode, parts=(content,), wheel=self.wheel))
        self.generated.append(record.row_of(self.listed(path), content))

    def listed(self, path: str) -> str:
        """The path as in RECORD, relative to the site directory."""
        return posixpath.relpath(path, self.place.site)


def plan(
    locked: Wheel,
    wheel: WheelFile,
    place: InstallLocation,
    *,
    exclude_unneeded: bool,
    direct: bool = False,
) -> dict[str, InstalledFile]:
    """Plan the files of a wheel, by path. `direct`: the lock names its file, not an index."""
    info = _find_info(locked, wheel)
    _check_metadata(locked, wheel, info)
    package = canonicalized(locked.name)
    listing = _read(wheel, f"{info}/RECORD")
    decided = _Plan(wheel=wheel, place=place, info=info, taken=place.taken())
    try:
        rows = record.read_rows(listing)
        calls = _read_calls(wheel, info, place)
    except ValueError as error:
        raise wheel.refused(f"has {error}") from error
    for name in record.unlisted(rows, wheel.members, info):
        rows[name] = Row(path=name)  # as pip lists it: without a digest
        decided.as_listed = False
    for name, member in wheel.members.items():
        if name == f"{info}/RECORD":
            continue
        # who installed it: not the one who made the wheel
        if name == f"{info}/INSTALLER" or (
            exclude_unneeded and unneeded.is_unneeded(package, name)
        ):
            decided.as_listed = False
            continue
        _add_member(decided, member, rows.get(name), calls)
    for name, call in calls.items():
        content = scripts.script(call, place.interpreter, place.python)
        decided.add_made(f"{place.prefix}/bin/{name}", content, EXECUTABLE)
    decided.add_made(f"{place.site}/{info}/INSTALLER", INSTALLER)
    if direct:
        decided.add_made(f"{place.site}/{info}/direct_url.json", _direct_url(locked))
    _add_record(decided, listing, is_listed=f"{info}/RECORD" in rows)
    return decided.files


def _add_member(
    decided: _Plan, member: Member, row: Row | None, calls: Mapping[str, scripts.Call]
) -> None:
    """Add a file of the wheel, and its row."""
    wheel = decided.wheel
    path, scheme = _destination(member.name, decided)
    bits = (
        member.attributes >> 16
    )  # without a kind of file, no Unix wrote them, and they mean nothing
    mode = EXECUTABLE if stat.S_ISREG(bits) and bits & 0o111 else PLAIN
    if scheme:
        decided.as_listed = False
        row = Row(
            path=decided.listed(path), digest=row.digest if row else "", size=str(member.size)
        )
    if scheme == "scripts":
        mode = EXECUTABLE
        if scripts.is_wrapper(posixpath.basename(path), calls):
            return
        # the wheel's specification: installers put their interpreter in its place
        if wheel.starts_with(member, b"#!python"):
            content = wheel.read(member, _MOST_SCRIPT)
            interpreter = decided.place.interpreter
            decided.add_made(path, scripts.with_interpreter(content, interpreter), mode)
            return
    decided.add(InstalledFile(path=path, mode=mode, parts=(member,), wheel=wheel))
    if row:
        decided.installed.append(row)


def _destination(name: str, decided: _Plan) -> tuple[str, str]:
    """The path to which a file of the wheel is installed, and its scheme in .data, if any."""
    place = decided.place
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return f"{place.site}/{name}", ""
    scheme, _, inner = rest.partition("/")
    package = decided.info.removesuffix(".dist-info")
    roots = place.schemes(canonicalized(package.rpartition("-")[0]))
    if top != f"{package}.data" or scheme not in roots or not inner:
        raise decided.wheel.refused(f"has a {name}, which belongs to no place of an installation")
    path = f"{roots[scheme]}/{inner}"
    aliased = f"{place.prefix}/lib64/"  # a link to lib
    if path.startswith(aliased):
        path = f"{place.prefix}/lib/{path.removeprefix(aliased)}"
    return path, scheme


def _add_record(decided: _Plan, listing: bytes, *, is_listed: bool) -> None:
    """Add RECORD: the wheel's with our rows appended, or a new one.

    The first costs almost nothing, whatever its size, because its bytes are copied.
    """
    name = f"{decided.info}/RECORD"
    own = Row(path=name)
    parts: tuple[Member | bytes, ...]
    if decided.as_listed:
        rows = decided.generated if is_listed else [*decided.generated, own]
        end = b"" if listing.endswith(b"\n") else b"\n"
        parts = (decided.wheel.members[name], end + record.write_rows(rows))
    else:
        parts = (record.write_rows((*decided.installed, *decided.generated, own)),)
    path = f"{decided.place.site}/{name}"
    decided.add(InstalledFile(path=path, mode=PLAIN, parts=parts, wheel=decided.wheel))


def _find_info(locked: Wheel, wheel: WheelFile) -> str:
    """Find the only .dist-info directory, which must have the locked package's name."""
    tops = {name.partition("/")[0] for name in wheel.members if "/" in name}
    found = sorted(top for top in tops if top.lower().endswith(".dist-info"))
    if len(found) != 1 or not found[0].endswith(".dist-info"):
        shown = ", ".join(found) or "none"
        raise wheel.refused(f"must have one .dist-info directory; it has {shown}")
    name, _, version = found[0].removesuffix(".dist-info").rpartition("-")
    _compare_identity(locked, wheel, f"a directory {found[0]}", name, version)
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if f"{found[0]}/{needed}" not in wheel.members:
            raise wheel.refused(f"has no {found[0]}/{needed}")
    return found[0]


def _check_metadata(locked: Wheel, wheel: WheelFile, info: str) -> None:
    """Compare METADATA, WHEEL and the file's name with the lock."""
    from installer.utils import parse_metadata_file

    metadata = parse_metadata_file(_read(wheel, f"{info}/METADATA").decode("utf-8", "replace"))
    name, version = str(metadata.get("Name", "")), str(metadata.get("Version", ""))
    _compare_identity(locked, wheel, "a METADATA", name.strip(), version.strip())
    text = parse_metadata_file(_read(wheel, f"{info}/WHEEL").decode("utf-8", "replace"))
    written = str(text.get("Wheel-Version", "")).strip()
    major = written.partition(".")[0]
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})*", written) or int(major) != _MAJOR:
        raise wheel.refused(f"is of the wheel format {written!r}; {_MAJOR} can be installed")
    file = file_name(locked)
    if file.endswith(".whl"):
        try:
            named, versioned, _, _ = parse_wheel_filename(file)
        except InvalidWheelFilename as error:
            raise wheel.refused("has a name that a wheel cannot have") from error
        _compare_identity(locked, wheel, f"the name {file}", named, str(versioned))


def _compare_identity(locked: Wheel, wheel: WheelFile, where: str, name: str, version: str) -> None:
    try:
        same = Version(version) == Version(locked.version)
    except InvalidVersion:
        same = version == locked.version
    if not same or canonicalized(name) != canonicalized(locked.name):
        raise wheel.refused(f"has {where}, but is locked as {locked.name} {locked.version}")


def _read_calls(wheel: WheelFile, info: str, place: InstallLocation) -> dict[str, scripts.Call]:
    member = wheel.members.get(f"{info}/entry_points.txt")
    if member is None:
        return {}
    try:
        text = wheel.read(member, _MOST_METADATA).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("an entry_points.txt that is not UTF-8") from error
    return scripts.versioned(scripts.read_calls(text), place.python)


def _read(wheel: WheelFile, name: str) -> bytes:
    return wheel.read(wheel.members[name], _MOST_METADATA)


def _direct_url(locked: Wheel) -> bytes:
    """direct_url.json: the package did not come from an index (PEP 610)."""
    digest, url = locked.sha256, shown_url(locked.url)
    archive = {"hash": f"sha256={digest}", "hashes": {"sha256": digest}}
    return json.dumps({"archive_info": archive, "url": url}, sort_keys=True).encode()


def file_name(locked: Wheel) -> str:
    """The name of a wheel's file."""
    path = urllib.parse.urlsplit(locked.url).path
    return urllib.parse.unquote(path.rpartition("/")[2])


def canonicalized(name: str) -> str:
    """Normalize a package's name, to compare its spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()
