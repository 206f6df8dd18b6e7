"""Writes an image as one tar file, which engines load and OCI tools read.

It has an OCI image layout and the `manifest.json` that Docker has read since 1.10, whose paths
point to the same blobs; `docker save` writes this since version 25. `manifest.json` cannot describe
an image of several platforms, so only OCI tools and newer engines can read such an archive.

Several threads may write blobs, whose sizes are known only afterwards; so each is first written
next to the archive, and later moved into it, sorted by name. That reads and writes them once more,
but equal images are equal files, whichever layer was ready first.

https://github.com/moby/moby/blob/master/image/tarexport/save.go
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from images.oci.blobfiles import (
    current_umask,
    read_pieces,
    sync_directory,
    take,
    told_as_failure,
)
from images.oci.errors import ImagePlaceError, TargetError
from images.oci.image_reader import ParsedManifest, check_platform, children_of, parse_manifest
from images.oci.layout import name_annotations
from images.oci.layout_reader import CONTAINERD_NAME, INDEX_FILE, MARK_FILE, VERSION
from images.oci.model import INDEX, Descriptor, descriptor_of, read_object, to_bytes
from images.oci.sources import Stream, Written

DOCKER_FILE = "manifest.json"
# How long to wait for the reader of a named pipe: it starts when we do, or never.
_READER_S = 30.0
_BLOBS = "blobs/sha256"
_RECORD = 10240  # tar's record size: readers of tapes and pipes expect a multiple of it
_IN_KERNEL = 1 << 30


class ArchiveTarget:
    """Writes an image into a tar file or a pipe (a `Target`). Always close it."""

    def __init__(self, out: Path | IO[bytes], shown: str, spool: Path, lock: int) -> None:
        self._out = out
        self._spool = spool
        self._lock = lock
        self._sizes: dict[str, int] = {}
        self.shown = shown

    @classmethod
    def open(cls, out: Path | IO[bytes]) -> ArchiveTarget:
        """Open a new archive; an older one stays unchanged until the new one is complete.

        An open file or a pipe gets the archive only when it is complete.
        """
        if not isinstance(out, Path):
            return cls._beside(out, "the output", Path(tempfile.gettempdir()), "archive")
        path = out.absolute()
        if path.is_dir():
            raise ImagePlaceError(
                f"{out} is a directory; an archive is a file.",
                fix="Name a file such as image.tar, or a directory as oci:DIR for a layout.",
            )
        with told_as_failure(path, f"The archive {out}"):
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                return cls._beside(path, str(out), Path(tempfile.gettempdir()), path.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls._beside(path, str(out), path.parent, path.name)

    @classmethod
    def _beside(
        cls, out: Path | IO[bytes], shown: str, directory: Path, name: str
    ) -> ArchiveTarget:
        prefix = f".{name[:100]}-"
        _remove_leftovers(directory, prefix)
        spool = Path(tempfile.mkdtemp(prefix=prefix, suffix=".blobs", dir=directory))
        lock = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # without locks, a killed process's files stay
            fcntl.flock(lock, fcntl.LOCK_SH)
        return cls(out, shown, spool, lock)

    def has(self, blob: Descriptor) -> bool:
        return self._sizes.get(blob.digest) == blob.size

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        with self._told(), self._file() as (file, path):
            written = take(open_stream(), file, expected, on_bytes)
            file.flush()
            path.replace(self._path(written.digest))
        self._sizes[written.digest] = written.size
        return written

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        blob = descriptor_of(media_type, content)
        with self._told(), self._file() as (file, path):
            file.write(content)
            file.flush()
            path.replace(self._path(blob.digest))
        self._sizes[blob.digest] = blob.size
        return blob

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        found = parse_manifest(manifest, media_type, self.shown)
        blob = self.write_bytes(manifest, media_type)
        if name is not None:
            with self._told():
                self._finish(self._files(found, blob, name))
        return blob

    def go_to(self, path: Path) -> None:
        """Name the file `path` instead, in the same directory."""
        self._out, self.shown = path.absolute(), str(path)

    def close(self) -> None:
        """Remove the temporary files next to the archive."""
        shutil.rmtree(self._spool, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _path(self, digest: str) -> Path:
        return self._spool / digest.removeprefix("sha256:")

    @contextlib.contextmanager
    def _file(self) -> Iterator[tuple[IO[bytes], Path]]:
        descriptor, name = tempfile.mkstemp(dir=self._spool)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file, Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def _told(self) -> contextlib.AbstractContextManager[None]:
        return told_as_failure(self._spool, f"The archive {self.shown}")

    def _files(self, found: ParsedManifest, blob: Descriptor, name: str) -> dict[str, bytes | Path]:
        """The files of the archive: each one's path in it, and its content or its path on disk."""
        blobs = {blob.digest, *self._reachable(found.document)}
        files: dict[str, bytes | Path] = {
            f"{_BLOBS}/{digest.removeprefix('sha256:')}": self._path(digest) for digest in blobs
        }
        annotations = name_annotations(name)
        platform = None
        if not found.is_index:
            described = next(children_of(found.document, self.shown))
            config = read_object(self._path(described.digest).read_bytes(), self.shown)
            platform = check_platform(config, None, self.shown)
            files[DOCKER_FILE] = _docker_manifest(found.document, annotations, name)
        entry = Descriptor(
            media_type=blob.media_type,
            digest=blob.digest,
            size=blob.size,
            annotations=annotations,
            platform=platform,
        )
        files[INDEX_FILE] = to_bytes(
            {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry.to_json()]}
        )
        files[MARK_FILE] = VERSION
        return files

    def _reachable(self, document: Mapping[str, Any]) -> Iterator[str]:
        for child in children_of(document, self.shown):
            if not self.has(child):
                raise TargetError(
                    f"The archive {self.shown} lacks {child.digest}, which the image needs.",
                    fix="Build it again.",
                )
            yield child.digest
            if "manifests" in document:
                content = self._path(child.digest).read_bytes()
                inner = parse_manifest(content, child.media_type, self.shown)
                yield from self._reachable(inner.document)

    def _finish(self, files: Mapping[str, bytes | Path]) -> None:
        if not isinstance(self._out, Path):
            write_tar(files, self._out)
            self._out.flush()
        elif self._out.exists() and not stat.S_ISREG(self._out.stat().st_mode):
            with _open_pipe(self._out) as pipe:
                write_tar(files, pipe)
        else:
            with self._file() as (file, path):
                os.fchmod(file.fileno(), 0o666 & ~current_umask())
                write_tar(files, file)
                file.flush()
                os.fsync(file.fileno())
                path.replace(self._out)
                sync_directory(self._out.parent)
        self._sizes.clear()  # they have been moved


def _open_pipe(path: Path) -> IO[bytes]:
    """Open a named pipe, waiting for a reader at its other end; a device opens at once."""
    deadline = time.monotonic() + _READER_S
    while (descriptor := _try_pipe(path)) is None:
        if time.monotonic() >= deadline:
            raise TargetError(
                f"Nobody reads from the pipe {path}, to which the archive was to be written.",
                fix="Start the reader first, or name a file: --output image.tar",
            )
        time.sleep(0.1)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def _try_pipe(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no reader yet
            raise
    return None


def _docker_manifest(
    document: Mapping[str, Any], annotations: Mapping[str, str], name: str
) -> bytes:
    config, *layers = (f"{_BLOBS}/{blob.hex}" for blob in children_of(document, name))
    tags = [name] if CONTAINERD_NAME in annotations else None
    return to_bytes_of_list([{"Config": config, "RepoTags": tags, "Layers": layers}])


def to_bytes_of_list(documents: list[dict[str, Any]]) -> bytes:
    """Serialize a list of documents so that equal ones have equal bytes."""
    return b"[" + b",".join(map(to_bytes, documents)) + b"]"


def write_tar(files: Mapping[str, bytes | Path], out: IO[bytes]) -> None:
    """Write a tar of these files, sorted, without times and owners. Files on disk are moved: each
    is removed once it is in the tar, so that only the largest needs extra space.
    """
    folders = {parent for name in files for parent in _parents(name)}
    size = 0
    for name in sorted({*files, *folders}):
        content = files.get(name)
        length = _length(content)
        out.write(_header(name, length, is_folder=name in folders))
        if isinstance(content, Path):
            out.flush()
            with content.open("rb") as source:
                _move(source, out, length)
            content.unlink()
        elif content is not None:
            out.write(content)
        padding = -length % tarfile.BLOCKSIZE
        out.write(bytes(padding))
        size += tarfile.BLOCKSIZE + length + padding
    size += 2 * tarfile.BLOCKSIZE
    out.write(bytes(2 * tarfile.BLOCKSIZE + -size % _RECORD))


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _length(content: bytes | Path | None) -> int:
    if content is None:
        return 0
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _header(name: str, size: int, *, is_folder: bool) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.type, info.mode = (tarfile.DIRTYPE, 0o755) if is_folder else (tarfile.REGTYPE, 0o644)
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")  # ustar, and GNU's from 8 GiB on


def _move(source: IO[bytes], out: IO[bytes], size: int) -> None:
    """Copy a file's content in the kernel if possible: some file systems share the blocks."""
    left = size
    try:
        while left:
            copied = os.copy_file_range(source.fileno(), out.fileno(), min(left, _IN_KERNEL))
            if not copied:
                break
            left -= copied
    except OSError as error:  # not between these two, not on this kernel, or not files
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
            raise
    if left != size:
        source.seek(size - left)
    for piece in read_pieces(source, left):
        out.write(piece)
        left -= len(piece)
    if left:
        raise TargetError("A blob became shorter while it was read.", fix="Build it again.")


def _remove_leftovers(directory: Path, prefix: str) -> None:
    """Remove what killed processes left: nothing holds its lock."""
    for path in directory.iterdir():
        if not (path.name.startswith(prefix) and path.name.endswith(".blobs")):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
