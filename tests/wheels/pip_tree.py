"""What pip makes of wheels, and what our layers hold, in one form: so that they can be compared."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from isal import igzip
from packaging.utils import parse_wheel_filename

from images.layers.order import wheel_sources
from images.oci.sources import LayerSource, Unpacked
from images.wheels.remote_file import Wheel

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_INFO = r"(?:.*/site-packages/)?[^/]+\.dist-info/"
REQUESTED = re.compile(_INFO + "REQUESTED")  # pip's note that somebody asked for it by name
OTHERWISE = re.compile(_INFO + "(INSTALLER|RECORD)")  # compared by their own rules


@dataclass(frozen=True)
class Found:
    """A file: who may execute it, and what is in it."""

    executable: bool
    sha256: str


@dataclass(frozen=True)
class Tree:
    """Files by their path in the environment, and the rows of all RECORDs."""

    files: dict[str, Found]
    rows: dict[str, set[tuple[str, ...]]]


def locked(path: Path) -> Wheel:
    """A wheel's line in a lock."""
    name, version, _, _ = parse_wheel_filename(path.name)
    with path.open("rb") as file:
        digest = _digest(file)
    return Wheel(
        name=name,
        version=str(version),
        url=f"https://index.invalid/{path.name}",
        size=path.stat().st_size,
        sha256=digest,
    )


def pip_tree(wheels: Iterable[Path], pip: Path, root: Path) -> Tree:
    """Install wheels with a pip that is run out of its own wheel, in a new environment."""
    venv.create(root, with_pip=False, symlinks=True)
    before = set(_files(root))
    wheels = list(wheels)
    names = [f"{one.name}=={one.version}" for one in map(_named, wheels)]
    directories = sorted({str(path.parent) for path in wheels})
    command = [
        str(root / "bin" / "python"), "-W", "ignore", str(pip / "pip"), "install", "--quiet",
        "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check",
        "--no-cache-dir", "--root-user-action=ignore", "--no-warn-script-location",
        *(f"--find-links={directory}" for directory in directories), *names,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=600)
    files, rows = {}, {}
    for path in sorted(set(_files(root)) - before):
        assert not path.is_symlink()
        name = str(path.relative_to(root))
        if OTHERWISE.fullmatch(name) and name.endswith("/RECORD"):
            rows[name] = _rows(path.read_text(encoding="utf-8"))
        with path.open("rb") as file:
            sha256 = _digest(file)
        files[name] = Found(bool(path.stat().st_mode & 0o111), sha256)
    return _comparable(Tree(files, rows))


def our_tree(wheels: Iterable[Path], root: Path) -> tuple[Tree, list[Unpacked]]:
    """Read what our layers would put at the place of that environment."""
    paths = {path.name: path for path in wheels}
    sources = wheel_sources(
        [locked(path) for path in paths.values()],
        python=PYTHON,
        framework=(),
        own=(),
        exclude_unneeded=False,
        fetch=lambda wheel: paths[wheel.url.rpartition("/")[2]],
        prefix=str(root).lstrip("/"),
    )
    files: dict[str, Found] = {}
    rows: dict[str, set[tuple[str, ...]]] = {}
    learned = [_read_layer(source, root, files, rows) for source in sources]
    return _comparable(Tree(files, rows)), learned


def _read_layer(
    source: LayerSource, root: Path, files: dict[str, Found], rows: dict[str, set[tuple[str, ...]]]
) -> Unpacked:
    reader = _Pieces(source)
    # igzip and tarfile do not know who wrote this, and read it as anyone else's
    with igzip.IGzipFile(fileobj=reader, mode="rb") as plain:  # type: ignore[no-untyped-call]
        hashing = _Hashing(plain)
        with tarfile.open(fileobj=hashing, mode="r|") as archive:
            for member in archive:
                assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
                if member.isdir():
                    assert member.mode == 0o755
                    continue
                assert member.isreg()
                assert member.mode in {0o644, 0o755}
                name = str(Path("/", member.name).relative_to(root))
                file = archive.extractfile(member)
                assert file is not None
                if OTHERWISE.fullmatch(name) and name.endswith("/RECORD"):
                    content = file.read()
                    rows[name] = _rows(content.decode())
                    file = io.BytesIO(content)
                sha256 = _digest(file)
                files[name] = Found(bool(member.mode & 0o111), sha256)
        while hashing.read(1 << 20):
            pass
    assert reader.unpacked is not None
    assert reader.unpacked.diff_id == f"sha256:{hashing.digest.hexdigest()}"
    assert reader.unpacked.size == hashing.size
    return reader.unpacked


class _Pieces(io.RawIOBase):
    """A layer's stream as a file."""

    def __init__(self, source: LayerSource) -> None:
        self._pieces = self._all(source)
        self._left = b""
        self.unpacked: Unpacked | None = None

    def _all(self, source: LayerSource) -> Iterator[bytes]:
        self.unpacked = yield from source.stream(None)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        part = self._left[: len(buffer)]
        self._left = self._left[len(part) :]
        buffer[: len(part)] = part
        return len(part)


class _Hashing(io.RawIOBase):
    """A file that hears what is read of it."""

    def __init__(self, file: igzip.IGzipFile) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        piece: bytes = self._file.read(size)
        self.digest.update(piece)
        self.size += len(piece)
        return piece


def _comparable(tree: Tree) -> Tree:
    files = {name: one for name, one in tree.files.items() if not REQUESTED.fullmatch(name)}
    files = {
        name: Found(one.executable, "") if OTHERWISE.fullmatch(name) else one
        for name, one in files.items()
    }
    return Tree(files, tree.rows)


def _rows(text: str) -> set[tuple[str, ...]]:
    rows = {tuple(row) for row in csv.reader(io.StringIO(text, newline=""))}
    kept = {row for row in rows if not REQUESTED.fullmatch(row[0])}
    return {(row[0],) if OTHERWISE.fullmatch(row[0]) else row for row in kept}


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if not path.is_dir() or path.is_symlink())


def _named(path: Path) -> Wheel:
    name, version, _, _ = parse_wheel_filename(path.name)
    return Wheel(name=name, version=str(version), url="", size=None, sha256="")
