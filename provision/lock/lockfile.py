"""A lock as a PEP 751 file; plan, base image and its digest are in `[tool.gpu-provision]`.

Other installers ignore that table and can use the rest.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from images.net.address import shown_text, shown_url
from images.text.printable import printable
from images.wheels.remote_file import Wheel
from provision.errors import BadInputError, LockFileError
from provision.lock.source_builds import SourceBuild, build_of
from provision.model import grammar
from provision.model.plan import Plan
from provision.model.planfile import TOOL, plan_from_json
from provision.output.files import read_named, write_named

if TYPE_CHECKING:
    from packaging.pylock import Package, PackageWheel, Pylock

LOCK_LIMIT_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_MOST_BYTES = 1 << 50
LOCK_NAME = re.compile(r"pylock\.([^.]+\.)?toml")  # PEP 751's rule for file names


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock, read and validated. `text` is the file, byte for byte. `addresses` are those of
    wheels with what the file leaves out, a login or a query, where that is known. `builds` are of
    the wheels that were built from their source. `index_names` are the names of indexes that a
    project gives them, with their addresses: uv's variables give their logins by these.
    """

    text: str
    plan: Plan
    wheels: tuple[Wheel, ...]
    addresses: tuple[str, ...] = field(default=(), repr=False)
    builds: tuple[SourceBuild, ...] = ()
    index_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The digest of the file, which the image's label records."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def download_bytes(self) -> int:
        """The total size of the wheels, as far as known."""
        return sum(wheel.size or 0 for wheel in self.wheels)


def read_lock_file(path: Path) -> Lock:
    """A lock from disk, completely validated before use. LockFileError: it is missing, truncated,
    or of another version.
    """
    make_one = "Create one: provision lock --cuda 11.7"
    data = read_named("lock", path, LOCK_LIMIT_BYTES + 1, LockFileError, make_one)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LockFileError(
            f"The lock {path} is not a text file.", fix="Give a pylock.toml"
        ) from error
    if len(data) > LOCK_LIMIT_BYTES:
        raise LockFileError(
            f"The lock {path} is larger than {LOCK_LIMIT_BYTES >> 20} MiB, more than any lock.",
            fix="Give a pylock.toml",
        )
    return read_lock(text)


def read_lock(text: str) -> Lock:
    """Check a lock by PEP 751, and read our table in it. LockFileError: one is malformed.

    Earlier versions wrote the queries of addresses, which may be signatures: the text of the lock,
    which goes into images, is then without them.
    """
    pylock = parse_lock(text)
    whole = addresses_of(pylock)
    if whole:
        text = shown_text(text)
        pylock = parse_lock(text)
    ours = (pylock.tool or {}).get(TOOL)
    if not isinstance(ours, Mapping) or not isinstance(ours.get("plan"), Mapping):
        raise LockFileError(
            f"The lock has no [tool.{TOOL}] table: another tool made it.",
            fix="Create one: provision lock --cuda 11.7",
        )
    plan = plan_from_json(ours["plan"])
    needed = ["framework_version", "cuda", "python", "arch", "base"]
    needed += ["wheel_tag"] if plan.framework == "pytorch" else []
    if missing := [name for name in needed if getattr(plan, name) is None]:
        raise LockFileError(
            f"The plan in the lock's [tool.{TOOL}] table lacks {', '.join(missing)}.",
            fix="The lock was edited or made by another version: lock again with provision lock",
        )
    indexed = any(package.index for package in pylock.packages)  # earlier versions named none
    made = [build_of(package) for package in pylock.packages]
    wheels = tuple(
        _wheel(p, direct=indexed and not p.index) if build is None else _built_wheel(build)
        for p, build in zip(pylock.packages, made, strict=True)
    )
    builds = tuple(one for one in made if one is not None)
    names = ours.get("index-names")
    return Lock(
        text=text,
        plan=plan,
        wheels=wheels,
        addresses=whole,
        builds=builds,
        index_names={str(name): str(url) for name, url in names.items()}
        if isinstance(names, Mapping)
        else {},
    )


def refuse_unlocked(companions: Sequence[str], locks: Sequence[Lock]) -> None:
    """Refuse a wheel of --with that is not one of the locks. BadInputError: its address, without
    login and query, is in none.
    """
    known = {f"{wheel.name} @ {wheel.url}" for lock in locks for wheel in lock.wheels}
    for text in companions:
        if text.partition(" ;")[0] not in known:
            raise BadInputError(
                f"--with {text} is not a wheel of the lock, which decides the packages.",
                fix="Remove it, or lock again: provision lock",
            )


def write_lock(lock: Lock, path: Path) -> None:
    """Write the whole lock or nothing. BadInputError: the file cannot be written."""
    write_named("--output", path, lock.text.encode())


def addresses_of(pylock: Pylock) -> tuple[str, ...]:
    """The addresses of a lock's wheels that have a login or a query."""
    wheels = (wheel for package in pylock.packages for wheel in package.wheels or ())
    return tuple(one.url for one in wheels if one.url and one.url != shown_url(one.url))


def _wheel(package: Package, *, direct: bool) -> Wheel:
    wheels: Sequence[PackageWheel] = package.wheels or ()
    if len(wheels) != 1 or wheels[0].url is None or "sha256" not in wheels[0].hashes:
        raise LockFileError(
            f"The lock has no single wheel with address and sha256 for {package.name}.",
            fix="Lock again: provision lock",
        )
    wheel = Wheel(
        name=str(package.name),
        version=str(package.version),
        url=wheels[0].url,
        size=wheels[0].size,
        sha256=wheels[0].hashes["sha256"],
        direct=direct,
    )
    _check(wheel)
    return wheel


def _built_wheel(build: SourceBuild) -> Wheel:
    """The wheel of a package that was built here, of which only the digest is known yet."""
    wheel = Wheel(
        name=build.name,
        version=build.version,
        url=build.unknown_place,
        size=build.size,
        sha256=build.sha256,
    )
    _check(wheel)
    return wheel


def _check(wheel: Wheel) -> None:
    size = 0 if wheel.size is None else wheel.size
    # a lock may be anybody's, and these become names of files, options and labels
    for fits, key, want in (
        (grammar.NAME.fits(wheel.name), "name", grammar.NAME.wanted),
        (grammar.VERSION.fits(wheel.version), "version", grammar.VERSION.wanted),
        (grammar.ADDRESS.fits(wheel.url), "url", grammar.ADDRESS.wanted),
        (_SHA256.fullmatch(wheel.sha256), "hashes.sha256", "64 hexadecimal digits"),
        (0 <= size < _MOST_BYTES, "size", "a number of bytes"),
    ):
        if not fits:
            raise LockFileError(
                f"packages.{key} of {printable(wheel.name, limit=100)}: expected {want}.",
                fix="Lock again: provision lock",
            )


@functools.lru_cache(maxsize=8)  # what uv answers is asked for packages, releases and addresses
def parse_lock(text: str) -> Pylock:
    """Read a lock of any tool. LockFileError: it is not one of PEP 751."""
    from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError

    try:
        return Pylock.from_dict(lock_table(text))
    except (
        ValueError,
        PylockValidationError,
        PylockUnsupportedVersionError,
        RecursionError,  # arrays in arrays in arrays
    ) as error:
        raise LockFileError(
            f"The lock is not a valid pylock.toml (PEP 751): {clip(str(error))}",
            fix="Create one: provision lock --cuda 11.7",
        ) from error


def lock_table(text: str) -> dict[str, Any]:
    """The table of a lock. ValueError: the text is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(text)
    return table


def for_installer(lock: Lock) -> str:
    """The lock for an installer that builds nothing: the wheels that were built from their source
    are named by their addresses in `lock.wheels`, in place of the source.
    """
    builds = {one.sha256: one for one in lock.builds}
    if not builds:
        return lock.text
    import tomli_w

    built = {wheel.name: wheel for wheel in lock.wheels if wheel.sha256 in builds}
    data = lock_table(lock.text)
    for package in data["packages"]:
        if (wheel := built.get(package["name"])) is None:
            continue
        for key in ("sdist", "vcs", "index"):
            package.pop(key, None)
        row = {"url": wheel.url, "name": builds[wheel.sha256].wheel, "size": wheel.size}
        package["wheels"] = [{**row, "hashes": {"sha256": wheel.sha256}}]
    return tomli_w.dumps(data)


def with_wheels(text: str) -> str:
    """A lock by uv in which a wheel that was requested by its address is a wheel like the others:
    uv lists it as an archive, one of this machine by its path.
    """
    if "archive" not in text:
        return text
    import tomli_w

    data = lock_table(text)
    for package in data.get("packages", ()):
        archive = package.get("archive") or {}
        if (path := Path(str(archive.get("path", "")))).is_absolute():
            del archive["path"]
            archive["name"] = path.name
            archive["url"] = path.as_uri()
            archive["size"] = path.stat().st_size
        if urlsplit(str(archive.get("url", ""))).path.endswith(".whl"):
            package["wheels"] = [package.pop("archive")]
    return tomli_w.dumps(data)


def clip(text: str, limit: int = 300) -> str:
    """The text, or its first `limit` characters and an ellipsis; line ends stay."""
    shown = printable(text[:limit], keep="\n")
    return shown if len(text) <= limit else f"{shown}..."
