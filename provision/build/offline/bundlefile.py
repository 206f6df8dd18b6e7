"""The file format of an offline bundle: written whole, and checked byte by byte when it is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from images.errors import DiskFullError
from images.text.suggestions import no_such, or_nearby
from provision.build.offline.errors import BadBundleError, NotPackableError
from provision.build.pipeline import gigabytes
from provision.errors import BadInputError
from provision.version import VERSION

LIST = "bundle.json"
SCHEMA = 1
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_PIECE_BYTES = 1 << 20
_MOST_LIST_BYTES = 16 << 20
_MOST_FILES = 50_000
_MOST_SIZE = 1 << 50
_PART = r"[A-Za-z0-9_+!@-][A-Za-z0-9_.+!@-]*"  # no "..", and nothing hidden
_PATH = re.compile(rf"{_PART}(/{_PART})*")
_MAKE_ONE = (
    "Create one: provision bundle --output FILE. A file of `provision doctor collect` is for "
    "`provision doctor --bundle`."
)

OnBytes = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledFile:
    """One file of a bundle; `program`: it may be executed."""

    path: str
    size: int
    sha256: str
    program: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPart:
    """A file that goes into a bundle, and its content or its place on this machine."""

    file: BundledFile
    content: bytes | Path


def write_bundle(path: Path, parts: Sequence[PackedPart], on_bytes: OnBytes) -> tuple[int, str]:
    """Write the whole bundle or nothing; returns its size and sha256. The same parts give the same
    bytes. DiskFullError: it does not fit. BadBundleError: a part is not what was said of it.
    NotPackableError: a file has a name that no bundle may have.
    """
    listed = _list_of([part.file for part in parts])
    try:
        tuple(_files_in(json.loads(listed)))  # a reader would refuse them
    except ValueError as error:
        raise NotPackableError(
            f"A file cannot be part of a bundle: {error}.", fix="Name the wheels as PEP 427 says."
        ) from error
    entry = BundledFile(path=LIST, size=len(listed), sha256=hashlib.sha256(listed).hexdigest())
    all_parts = (PackedPart(file=entry, content=listed), *parts)
    total = sum(map(_room, [entry, *(part.file for part in parts)])) + len(_END)
    free = shutil.disk_usage(path.parent).free
    if free < total:
        raise DiskFullError(
            f"The bundle needs {gigabytes(total)}; the disk of {path} has {gigabytes(free)} free.",
            fix="Free some space, or name a file on another disk: --output /path/FILE",
        )
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    partial, whole = Path(name), hashlib.sha256()
    try:
        with os.fdopen(number, "wb") as file:

            def write(piece: bytes) -> None:
                file.write(piece)
                whole.update(piece)

            for part in all_parts:
                write(_header(part.file))
                _write_content(part, write, on_bytes)
                write(bytes(-part.file.size % _BLOCK))
            write(_END)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return total, whole.hexdigest()


def _write_content(part: PackedPart, write: Callable[[bytes], None], on_bytes: OnBytes) -> None:
    """Copy a part's content. It is hashed again: a damaged file must not leave this machine."""
    if isinstance(part.content, bytes):
        write(part.content)
        return
    digest, count = hashlib.sha256(), 0
    with part.content.open("rb") as source:
        while piece := source.read(_PIECE_BYTES):
            digest.update(piece)
            count += len(piece)
            write(piece)
            on_bytes(part.file.path, len(piece))
    if (count, digest.hexdigest()) != (part.file.size, part.file.sha256):
        raise BadBundleError(
            part.file.path,
            f"{part.content} was damaged or changed on this machine",
            fix="Remove damaged files, then run this again: provision store verify",
        )


def _header(file: BundledFile) -> bytes:
    """The only header that a file of a bundle may have."""
    info = tarfile.TarInfo(file.path)
    info.size = file.size
    info.mode = 0o755 if file.program else 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def _list_of(files: Sequence[BundledFile]) -> bytes:
    rows = [
        {
            "path": one.path,
            "size": one.size,
            "sha256": one.sha256,
            **({"program": True} if one.program else {}),
        }
        for one in files
    ]
    listed = {"schema": SCHEMA, "made-by": f"gpu-provision {VERSION}", "files": rows}
    return json.dumps(listed, indent=1).encode("ascii") + b"\n"


def _room(file: BundledFile) -> int:
    return len(_header(file)) + file.size + -file.size % _BLOCK


class BundleReader(contextlib.AbstractContextManager["BundleReader"]):
    """An open bundle whose list and headers were checked; `check` hashes the contents."""

    def __init__(self, path: Path) -> None:
        """Open it. BadBundleError: it is missing, not a bundle, truncated, or has other entries
        than its list says.
        """
        self.path = path
        self._file = _open(path)
        try:
            with self._readable():
                self.made_by, self.files = self._read_list()
                self._places = dict(self._check_headers())
        except BaseException:
            self._file.close()
            raise
        self._by_path = {one.path: one for one in self.files}

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def find(self, path: str) -> BundledFile:
        """A file by its path. BadBundleError: it is missing."""
        found = self._by_path.get(path)
        if found is None:
            raise BadBundleError(self.path, f"it has no {path}", fix=_MAKE_ONE)
        return found

    def below(self, directory: str) -> list[BundledFile]:
        """The files in a directory, at any depth."""
        return [one for one in self.files if one.path.startswith(f"{directory}/")]

    def pieces(self, file: BundledFile) -> Generator[bytes, None, None]:
        """The content of a file. BadBundleError: it cannot be read."""
        at, left = self._places[file.path], file.size
        while left:
            piece = self._read(at, min(left, _PIECE_BYTES))
            at, left = at + len(piece), left - len(piece)
            yield piece

    def content(self, file: BundledFile) -> bytes:
        return b"".join(self.pieces(file))

    def unpack(self, file: BundledFile, target: Path) -> None:
        """Write one of its files to `target`, which must not exist; creates missing directories."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            for piece in self.pieces(file):
                out.write(piece)

    def check(self, on_bytes: OnBytes) -> None:
        """Hash everything. BadBundleError: a file is not what the list says."""
        for file in self.files:
            digest = hashlib.sha256()
            for piece in self.pieces(file):
                digest.update(piece)
                on_bytes(file.path, len(piece))
            if digest.hexdigest() != file.sha256:
                raise BadBundleError(self.path, f"{file.path} is damaged (its sha256 differs)")
            end = self._places[file.path] + file.size
            if any(self._read(end, -file.size % _BLOCK)):
                raise BadBundleError(self.path, f"there are bytes after the end of {file.path}")

    def _read_list(self) -> tuple[str, tuple[BundledFile, ...]]:
        head = self._file.read(_BLOCK)
        number = re.fullmatch(rb"([0-7]{11})\0", head[124:136])
        size = int(number[1], 8) if number else 0
        if not size or head != _header(BundledFile(path=LIST, size=size, sha256="")):
            raise BadBundleError(self.path, f"it does not begin with {LIST}", fix=_MAKE_ONE)
        if size > _MOST_LIST_BYTES:
            raise BadBundleError(
                self.path, f"its {LIST} is larger than {_MOST_LIST_BYTES >> 20} MiB"
            )
        text = self._file.read(size)
        try:
            listed = json.loads(text)
            return _made_by(listed), tuple(_files_in(listed))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadBundleError(
                self.path,
                f"its {LIST} is not a list of files that this version (gpu-provision {VERSION}) "
                f"reads: {_reason(error)}",
                fix="Create it again: provision bundle",
            ) from error

    def _check_headers(self) -> Iterator[tuple[str, int]]:
        """Compare each header with the only one allowed, without reading the contents."""
        at = self._file.tell()
        if any(self._read(at, -at % _BLOCK)):
            raise BadBundleError(self.path, f"there are bytes after the end of {LIST}")
        at += -at % _BLOCK
        have = os.fstat(self._file.fileno()).st_size
        need = at + sum(_room(one) for one in self.files) + len(_END)
        if have != need:
            kind = "truncated" if have < need else "too long"
            raise BadBundleError(
                self.path, f"it is {kind}: it has {have} bytes, and its list needs {need}"
            )
        for file in self.files:
            header = _header(file)
            if self._read(at, len(header)) != header:
                raise BadBundleError(self.path, f"{file.path} is not where its list says")
            yield file.path, at + len(header)
            at += _room(file)
        if self._read(at, len(_END)) != _END:
            raise BadBundleError(self.path, "there are bytes after its last file")

    def _read(self, at: int, count: int) -> bytes:
        with self._readable():
            piece = os.pread(self._file.fileno(), count, at)
        if len(piece) < count:
            raise BadBundleError(self.path, f"it ends at byte {at + len(piece)}")
        return piece

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadBundleError(self.path, f"reading failed: {error.strerror or error}") from error


def _open(path: Path) -> IO[bytes]:
    try:
        # without O_NONBLOCK a named pipe would wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInputError(no_such("bundle", path), fix=or_nearby(path, _MAKE_ONE)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadBundleError(
            path, f"it cannot be opened: {reason}", f"See: ls -l {path}"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadBundleError(path, "it is not a regular file", fix=_MAKE_ONE)
    return os.fdopen(descriptor, "rb")


def _made_by(listed: dict[str, object]) -> str:
    if listed["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    made_by = listed["made-by"]
    if not isinstance(made_by, str) or not re.fullmatch(r"[ -~]{1,80}", made_by):
        raise ValueError("made-by is not a text")
    return made_by


def _files_in(listed: dict[str, object]) -> Iterator[BundledFile]:
    rows, seen, folders = listed["files"], {LIST}, set[str]()
    if not isinstance(rows, list) or len(rows) > _MOST_FILES:
        raise ValueError(f"files is not a list of at most {_MOST_FILES}")
    for number, row in enumerate(rows):
        path, size, sha256 = row["path"], row["size"], row["sha256"]
        program = row.get("program", False)
        if not isinstance(path, str) or len(path) > 255 or not _PATH.fullmatch(path):
            raise ValueError(f"files[{number}].path is not allowed")
        if path in seen:
            raise ValueError(f"files[{number}].path is there twice")
        if type(size) is not int or not 0 <= size <= _MOST_SIZE or type(program) is not bool:
            raise ValueError(f"files[{number}] has an impossible size or mode")
        if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError(f"files[{number}].sha256 is not a digest")
        seen.add(path)
        folders.update(path[: found.start()] for found in re.finditer("/", path))
        yield BundledFile(path=path, size=size, sha256=sha256, program=program)
    if both := seen & folders:
        raise ValueError(f"{min(both)} is a file and a directory")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error)[:120] if isinstance(error, ValueError) else "it has another shape"
