"""Turns a package into its part of the layer: the tar of its files, compressed.

Packages are independent of one another, so several are unpacked at once. Nothing is run, and
nothing is written to disk under a name that a package chose.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images.bootstrap.deb import ControlFile, read_deb
from images.bootstrap.errors import BootstrapError
from images.bootstrap.index import SuitePackage
from images.bootstrap.tree import is_kept, merged_path, plain_path
from images.errors import Failure
from images.inspect.dynamic import read_soname
from images.layers.tar import Kind, TarEntry, header, padding
from images.oci.tarstream import scan

if TYPE_CHECKING:
    from typing import TypeAlias

_LEVEL = 6
"""libdeflate's compression level. Its output depends only on its version (see pyproject.toml);
level 6 gives 1 % less than zlib's, in a third of the time."""

_LIBRARY = re.compile(r"(usr/lib|usr/lib64|usr/local/lib)/(.+/)?(lib[^/]*\.so(\.[^/]*)?|ld-[^/]+)")
_MOST_TEXT_BYTES = 4 << 20
_MOST_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedPackage:
    """An unpacked package. `packed` is one gzip member: the tar of its files without directories.

    `listed` are all paths as dpkg lists them, also those that the image omits. `links` maps
    symbolic links to their targets, `texts` wanted files to their contents, `sonames` libraries to
    their sonames, `digests` configuration files to their MD5 sums.
    """

    package: SuitePackage
    control: Mapping[str, ControlFile]
    packed: bytes
    listed: tuple[str, ...]
    directories: tuple[TarEntry, ...]
    files: frozenset[str]
    links: Mapping[str, str]
    texts: Mapping[str, bytes]
    sonames: Mapping[str, str | None]
    digests: Mapping[str, str]


Modes: TypeAlias = Mapping[str, tuple[int, tuple[int, int]]]
"""Files, each with another mode and owner than in its package."""


def unpack(
    path: Path, package: SuitePackage, *, epoch: int, wanted: re.Pattern[str], modes: Modes
) -> UnpackedPackage:
    """Unpack a package's file. `wanted` matches the paths whose contents `configure` reads."""
    shown = f"{package.name} {package.version}"
    deb = read_deb(path, shown=shown)
    conffiles = deb.control.get("conffiles", ControlFile(0, b"")).content.decode().split()
    reading = _Reading(
        deb.data, epoch, wanted, frozenset(plain_path(one) for one in conffiles), modes
    )
    try:
        reading.run(f"The package {shown}")
    except Failure as failure:
        raise BootstrapError(failure.message, fix=failure.fix) from failure
    return UnpackedPackage(
        package=package,
        control=deb.control,
        packed=compress(reading.tar) if reading.tar else b"",
        listed=tuple(reading.listed),
        directories=tuple(reading.directories),
        files=frozenset(reading.files),
        links=reading.links,
        texts=reading.texts,
        sonames=reading.sonames,
        digests=reading.digests,
    )


def unpack_all(
    packages: Iterable[tuple[SuitePackage, Path]],
    *,
    epoch: int,
    wanted: str,
    modes: Callable[[str], Modes] = lambda _: {},
) -> Iterator[UnpackedPackage]:
    """Unpack packages as their files arrive, a few at once; yields them in order. `modes` are those
    of a package, by its name.
    """
    pattern = re.compile(wanted)
    workers = max(2, min(_MOST_WORKERS, os.cpu_count() or 2))
    ahead: list[Future[UnpackedPackage]] = []
    with ThreadPoolExecutor(workers) as pool:
        try:
            for package, file in packages:
                own = modes(package.name)
                ahead.append(
                    pool.submit(unpack, file, package, epoch=epoch, wanted=pattern, modes=own)
                )
                while len(ahead) > 2 * workers or (ahead and ahead[0].done()):
                    yield ahead.pop(0).result()
            for future in ahead:
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def compress(parts: Iterable[bytes | memoryview]) -> bytes:
    """Compress bytes reproducibly as one gzip member."""
    import deflate

    return bytes(deflate.gzip_compress(b"".join(parts), _LEVEL))


class _Reading:
    """One pass over a package's files."""

    def __init__(
        self,
        data: bytes,
        epoch: int,
        wanted: re.Pattern[str],
        conffiles: frozenset[str],
        modes: Modes,
    ) -> None:
        self._data = data
        self._epoch = epoch
        self._wanted = wanted
        self._conffiles = conffiles
        self._modes = modes
        self.tar: list[bytes | memoryview] = []
        self.listed: list[str] = []
        self.directories: list[TarEntry] = []
        self.files: set[str] = set()
        self.links: dict[str, str] = {}
        self.texts: dict[str, bytes] = {}
        self.sonames: dict[str, str | None] = {}
        self.digests: dict[str, str] = {}

    def run(self, shown: str) -> None:
        view = memoryview(self._data)
        for member in scan(io.BytesIO(self._data), shown):
            name = plain_path(member.name)
            if ".." in name.split("/"):
                raise BootstrapError(
                    f"{shown} holds {name!r}, which is outside of the tree.",
                    fix="Use another mirror of Debian.",
                )
            self.listed.append(f"/{name}" if name else "/.")
            path = name if member.issym() and "/" not in name else merged_path(name)
            content = view[member.offset_data : member.offset_data + member.size]
            if name in self._conffiles and member.isreg():
                self.digests[f"/{name}"] = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if member.isreg() and self._wanted.fullmatch(path) and len(content) < _MOST_TEXT_BYTES:
                self.texts[path] = bytes(content)
            if not name or not is_kept(path):
                continue
            owner = (member.uid, member.gid)
            mtime = min(int(member.mtime), self._epoch)
            if member.isdir():
                self.directories.append(
                    TarEntry(path=path, kind="dir", mode=member.mode, owner=owner, mtime=mtime)
                )
            elif member.isreg():
                mode, owner = self._modes.get(path, (member.mode, owner))
                self._add_file(path, mode, owner, mtime, content)
            elif member.issym():
                self.links[path] = member.linkname
                self._add_link(path, "symlink", 0o777, owner, mtime, member.linkname)
            elif member.islnk():
                target = merged_path(plain_path(member.linkname))
                if target in self.files:
                    self.files.add(path)
                    self._add_link(path, "hardlink", member.mode, owner, mtime, target)

    def _add_file(
        self, path: str, mode: int, owner: tuple[int, int], mtime: int, content: memoryview
    ) -> None:
        self.files.add(path)
        head = header(path, kind="file", mode=mode, size=len(content), owner=owner, mtime=mtime)
        self.tar += [head, content, padding(len(content))]
        if _LIBRARY.fullmatch(path):
            with_name = read_soname(content)
            if with_name is not None:
                self.sonames[path] = with_name

    def _add_link(
        self, path: str, kind: Kind, mode: int, owner: tuple[int, int], mtime: int, target: str
    ) -> None:
        self.tar.append(header(path, kind=kind, mode=mode, target=target, owner=owner, mtime=mtime))
