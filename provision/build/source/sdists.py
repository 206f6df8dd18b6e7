"""The source of a package: found on the index, downloaded by its hash, read without running it."""

from __future__ import annotations

import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from images.errors import Failure
from images.net.address import shown_url
from images.store.fetch import Fetcher
from images.store.store import Store
from images.wheels.remote_file import RemoteFile
from provision.build.base import BuildSettings, OfflineError
from provision.catalog.index.address import default_index
from provision.catalog.index.client import read_page
from provision.catalog.index.fetch import AbsentError, PageFetcher
from provision.catalog.index.pages import PageFile
from provision.errors import BadInputError, Exit
from provision.host.uv import plain_index, uv_indexes
from provision.lock import network
from provision.model.environment import requirement_of
from provision.model.plan import PackageIndexes
from provision.model.request import quoted
from provision.resolve.specifiers import version as version_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_MOST_PROJECT_BYTES = 1 << 20
# a zip may be encrypted (RuntimeError) or compressed in a way that Python has not
_UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError
)  # fmt: skip


class NoSdistError(Failure):
    """No index has a source archive of a package that fits, or it cannot be read."""

    code = "no-sdist"
    exit_code = Exit.NOTHING_COMPATIBLE


def read_requirement(text: str) -> Requirement:
    """A requirement of `provision wheel`. BadInputError: it is malformed, or names an address."""
    try:
        read = requirement_of(text)
    except InvalidRequirement:
        read = None
    if read is None or read.url or read.marker:
        raise BadInputError(
            f"{quoted(text)} is not the name of a package, with versions if need be.",
            fix="For example: provision wheel torch-scatter, or 'flash-attn>=2.8'",
        )
    return read


def find_sdist(
    requirement: Requirement, python: str, indexes: PackageIndexes, settings: BuildSettings
) -> RemoteFile:
    """The newest source archive that a requirement and the image's Python allow, on the first of
    the user's indexes that has one. NoSdistError: there is none; SourceError: one does not answer.
    """
    return find_listed(requirement, python, indexes, settings)[0]


def find_listed(
    requirement: Requirement, python: str, indexes: PackageIndexes, settings: BuildSettings
) -> tuple[RemoteFile, str]:
    """The same, and the address of the index that lists it, without a login."""
    if settings.offline:
        raise OfflineError(f"The source of {requirement.name}")
    fetcher = PageFetcher(ca_bundle=settings.ca, env=settings.env, names=indexes.names)
    there: list[PageFile] = []
    for address in _asked(indexes, settings):
        url = fetcher.add_login(address).rstrip("/")
        try:
            there += read_page(f"{url}/{_canonical(requirement.name)}/", fetcher).files
        except AbsentError:
            continue
        if (found := newest_sdist(there, requirement, python)) is not None:
            return found, shown_url(address)
    others = "" if there else ": no index has a package of that name"
    raise NoSdistError(
        f"There is no source archive (.tar.gz or .zip, with a sha256) of {requirement} for Python "
        f"{python}{others}.",
        fix="Check the name, loosen the version, or name another index with --index.",
    )


def _asked(indexes: PackageIndexes, settings: BuildSettings) -> Iterator[str]:
    """The addresses of a user's indexes, each once: those of the request, uv's, the default one."""

    def all_of_them() -> Iterator[str]:
        if indexes.given:
            yield default_index(indexes.given, settings.env).url
        yield from (one.url for one in indexes.declared if one.kind in {"index", "default"})
        default = default_index(None, settings.env).url
        others = uv_indexes(settings.env).named - {plain_index(default)}
        yield from (one for one in sorted(others) if one.startswith(("https://", "http://")))
        yield default

    seen = set()
    for address in all_of_them():
        if (plain := plain_index(address)) not in seen:
            seen.add(plain)
            yield address


def newest_sdist(
    files: Sequence[PageFile], requirement: Requirement, python: str
) -> RemoteFile | None:
    """The newest source archive on a page of an index; a pre-release or a yanked one only if the
    requirement names it.
    """
    found: dict[str, RemoteFile] = {}
    pinned = any(one.operator == "==" for one in requirement.specifier)
    for file in files:
        if not file.name.endswith((".tar.gz", ".zip")) or file.sha256 is None:
            continue
        try:
            name, version = parse_sdist_filename(file.name)
            accepts = SpecifierSet(file.requires_python or "").contains(f"{python}.0")
        except (InvalidSdistFilename, InvalidSpecifier):
            continue
        if name != _canonical(requirement.name) or not accepts or (file.yanked and not pinned):
            continue
        if str(version) in found and file.name.endswith(".zip"):
            continue
        found[str(version)] = RemoteFile(
            name=name, version=str(version), url=file.url, size=file.size, sha256=file.sha256
        )
    allowed = list(requirement.specifier.filter(found))
    return found[max(allowed, key=version_of)] if allowed else None


def download(
    file: RemoteFile, store: Store, *, indexes: PackageIndexes, settings: BuildSettings
) -> Path:
    """A source archive: downloaded, or from the store."""
    hosts = {urlsplit(file.url).hostname or ""}
    secrets = network.make_secrets(
        ca=settings.ca, index=indexes.given, hosts=hosts, env=settings.env, names=indexes.names
    )
    with Fetcher(store, kind="blob", secrets=secrets, offline=settings.offline) as fetcher:
        return fetcher.fetch(file)


def declared_requirements(archive: Path, shown: str, top: str = "") -> tuple[str, ...]:
    """The build requirements that a source archive declares in its pyproject.toml (PEP 518), which
    is in the directory `top` ("a/b/"). NoSdistError: it cannot be read.
    """
    project = _project_of(archive, shown, top)
    system = project.get("build-system")
    lines = system.get("requires", ()) if isinstance(system, Mapping) else ()
    try:
        return tuple(str(requirement_of(line)) for line in lines)
    except (InvalidRequirement, TypeError) as error:
        raise _unreadable(shown, f"its build requirements are malformed: {error}") from error


def members_of(archive: Path, shown: str, names: Collection[str]) -> dict[str, str]:
    """The text of files at the top of a source archive, as far as they are there and small.
    NoSdistError: it cannot be read.
    """
    found: dict[str, str] = {}
    try:
        for path, read in _entries(archive):
            _, _, name = path.removeprefix("./").partition("/")
            if name in names and name not in found:
                found[name] = read().decode("utf-8", "replace")
            if len(found) == len(names):
                break
    except (*_UNREADABLE, OSError, EOFError, ValueError, RecursionError) as error:
        raise _unreadable(shown, str(error)) from error
    return found


def _entries(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The paths of the files of an archive, and what reads the beginning of each."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield name, partial(_zipped, zipped, name)
        return
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            if entry.isreg():
                yield entry.name, partial(_tarred, tar, entry)


def _zipped(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        return file.read(_MOST_PROJECT_BYTES)


def _tarred(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    return file.read(_MOST_PROJECT_BYTES) if file else b""


def suffix_of(file: RemoteFile) -> str:
    """The end of an archive's name, by which pip knows its form."""
    return ".zip" if urlsplit(file.url).path.endswith(".zip") else ".tar.gz"


def _project_of(archive: Path, shown: str, top: str) -> Mapping[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    name = f"{top}pyproject.toml"
    text = members_of(archive, shown, {name}).get(name, "")
    try:
        project: Mapping[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(shown, str(error)) from error
    return project


def _unreadable(shown: str, why: str) -> NoSdistError:
    return NoSdistError(
        f"The source archive {shown} cannot be read: {why[:200]}.",
        fix="Request another version of the package.",
    )


def _canonical(name: str) -> str:
    return canonicalize_name(name)
