"""An OCI image layout: a directory of blobs, and an index that names some of them.

Several processes may write into one layout at once, and any may be killed. A blob gets its name
only when it is complete; the index is replaced atomically under a lock, so writers keep each
other's names. Writers hold a shared lock on `oci-layout`; removing blobs takes an exclusive one.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from images.errors import Failure
from images.oci.blobfiles import (
    PARTIAL,
    current_umask,
    keep,
    partial_file,
    sync_directory,
    take,
    told_as_failure,
)
from images.oci.errors import ImagePlaceError, ImageUnreadableError, TargetError
from images.oci.image_reader import check_platform, children_of, parse_manifest
from images.oci.layout_reader import (
    CONTAINERD_NAME,
    INDEX_FILE,
    MARK_FILE,
    VERSION,
    LayoutParts,
    check_mark,
    needed_blobs,
    read_index,
)
from images.oci.model import (
    INDEX,
    REF_NAME,
    Descriptor,
    descriptor_of,
    read_descriptor,
    read_descriptors,
    read_object,
    to_bytes,
)
from images.oci.sources import Stream, Written

_LOCK_FILE = f"{INDEX_FILE}.lock"
_OURS = frozenset({"blobs", INDEX_FILE, _LOCK_FILE, MARK_FILE})
_EMPTY_INDEX = to_bytes({"schemaVersion": 2, "mediaType": INDEX, "manifests": []})


def name_annotations(name: str) -> dict[str, str]:
    """The annotations that tools find an image by: skopeo and podman, and containerd.

    A name with a tag is a whole reference; a bare word is not, so containerd's is omitted.
    """
    from images.oci.reference import parse_reference

    annotations = {REF_NAME: name}
    if ":" in name:
        with contextlib.suppress(Failure):
            annotations[CONTAINERD_NAME] = str(parse_reference(name))
    return annotations


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was removed from a layout; `busy`: nothing, because a process writes into it."""

    blobs: int = 0
    size: int = 0
    busy: bool = False


class LayoutTarget:
    """Writes images into a layout (a `Target`).

    Close it: that removes a new layout into which no image was published.
    """

    def __init__(self, root: Path, mark: IO[bytes], made: Literal["", "all", "content"]) -> None:
        self._root = root
        self._mark = mark
        self._made = made

    @classmethod
    def open(cls, path: Path) -> LayoutTarget:
        """Open a layout, or create an empty one."""
        root = path.absolute()
        with told_as_failure(root, f"The layout {path}"):
            while True:
                made = _make(root)
                mark = _hold(root)
                if mark is None:
                    continue
                with contextlib.ExitStack() as stack:
                    stack.enter_context(mark)
                    check_mark(root)
                    (root / "blobs/sha256").mkdir(parents=True, exist_ok=True)
                    stack.pop_all()
                    return cls(root, mark, made)

    @property
    def shown(self) -> str:
        return str(self._root)

    def has(self, blob: Descriptor) -> bool:
        try:
            return self._path(blob.digest).stat().st_size == blob.size
        except OSError:
            return False

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        with self._told(), partial_file(self._root) as (file, path):
            written = take(open_stream(), file, expected, on_bytes)
            keep(file, path, self._path(written.digest))
            return written

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        blob = descriptor_of(media_type, content)
        if not self.has(blob):
            self._put(content, self._path(blob.digest))
        return blob

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        found = parse_manifest(manifest, media_type, self.shown)
        self._check_parts(found.document)
        blob = self.write_bytes(manifest, media_type)
        if name is not None:
            entry = Descriptor(
                media_type=blob.media_type,
                digest=blob.digest,
                size=blob.size,
                annotations=name_annotations(name),
                platform=None if found.is_index else self._platform_of(found.document),
            )
            self._change_index(name, entry)
        return blob

    def forget(self, name: str) -> bool:
        """Remove a name from the index; the next `prune` removes its blobs."""
        return self._change_index(name, None)

    def prune(self) -> Pruned:
        """Remove the blobs that no image in the index needs; none while others write."""
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # or this file system has no locks: then writers are not visible
            return Pruned(busy=True)
        try:
            with self._told():
                return _prune(self._root)
        finally:
            fcntl.flock(self._mark, fcntl.LOCK_SH)

    def close_and_remove_if_empty(self) -> None:
        """Close it, and remove it if it names no image and no other process uses it. Files of other
        programs stay.
        """
        strangers = {entry.name for entry in self._root.iterdir()} - _OURS
        if not self._made:
            self._made = "content" if strangers else "all"
        self.close()

    def close(self) -> None:
        """Release the lock, so that others can prune; remove a layout that is new and empty."""
        if self._mark.closed:
            return
        with self._mark, contextlib.suppress(OSError, ImageUnreadableError):
            if self._made and not read_index(self._root).get("manifests"):
                fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _unmake(self._root, content_only=self._made == "content")

    def _path(self, digest: str) -> Path:
        return self._root / "blobs/sha256" / digest.removeprefix("sha256:")

    def _told(self) -> contextlib.AbstractContextManager[None]:
        return told_as_failure(self._root, f"The layout {self._root}")

    def _put(self, content: bytes, target: Path) -> None:
        with self._told(), partial_file(self._root) as (file, path):
            file.write(content)
            keep(file, path, target)

    def _check_parts(self, document: Mapping[str, Any]) -> None:
        """Check that all parts are here; another tool may have removed some."""
        for blob in children_of(document, self.shown):
            if not self.has(blob):
                raise TargetError(
                    f"The layout {self._root} has lost {blob.digest} ({blob.size} bytes), which the"
                    " image needs.",
                    fix="Build it again, and let no other program tidy the layout meanwhile.",
                )

    def _platform_of(self, document: Mapping[str, Any]) -> Any:  # noqa: ANN401  see its only use
        where = f"{self.shown}: its configuration"
        config = read_descriptor(document.get("config"), where)
        content = LayoutParts(self._root, self.shown).small(config)
        return check_platform(read_object(content, where), None, self.shown)

    def _change_index(self, name: str, entry: Descriptor | None) -> bool:
        """Replace the entries with this name by `entry`; keep all others."""
        with self._told(), (self._root / _LOCK_FILE).open("a+b") as lock:
            with contextlib.suppress(OSError):  # without locks the last one wins
                fcntl.flock(lock, fcntl.LOCK_EX)
            index = read_index(self._root)
            before = index["manifests"]
            others = [one for one in before if _name_of(one) != name]
            changed = [*others, *([entry.to_json()] if entry else [])]
            self._put(to_bytes({**index, "manifests": changed}), self._root / INDEX_FILE)
            return len(others) < len(before)


def _name_of(entry: object) -> object:
    annotations = entry.get("annotations") if isinstance(entry, dict) else None
    return annotations.get(REF_NAME) if isinstance(annotations, dict) else None


def _make(root: Path) -> Literal["", "all", "content"]:
    """Create an empty layout if there is none; returns what was created, "" for nothing."""
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        # in the same directory: a rename is atomic only within one file system
        beside = Path(tempfile.mkdtemp(prefix=f".{root.name[:100]}-", dir=root.parent))
        try:
            beside.chmod(0o777 & ~current_umask())
            _fill(beside)
            beside.rename(root)
            sync_directory(root.parent)
        except FileExistsError:
            return ""  # another process was faster
        except OSError:  # ENOTEMPTY: rename replaces only an empty directory
            if root.is_dir():
                return ""
            raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return "all"
    if not root.is_dir():
        raise ImagePlaceError(
            f"{root} is a file; an OCI image layout is a directory.",
            fix="Name a directory, or an archive with --output FILE.tar",
        )
    names = {entry.name for entry in root.iterdir()}
    if MARK_FILE in names:
        return ""
    if all(name in _OURS or name.startswith(PARTIAL) for name in names):
        _fill(root)
        return "content"
    some = ", ".join(sorted(names)[:3])
    raise ImagePlaceError(
        f"{root} is not an OCI image layout, and not empty: it has {some}.",
        fix="Name a directory that is not there yet, is empty, or is an OCI image layout.",
    )


def _fill(directory: Path) -> None:
    """Write an empty layout's files; the one that marks the directory as a layout is last."""
    (directory / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    for name, content in ((INDEX_FILE, _EMPTY_INDEX), (MARK_FILE, VERSION)):
        if not (directory / name).exists():
            with partial_file(directory) as (file, path):
                file.write(content)
                keep(file, path, directory / name)


def _hold(root: Path) -> IO[bytes] | None:
    """Take the layout's lock, shared; None if the layout was removed meanwhile."""
    try:
        mark = (root / MARK_FILE).open("rb")
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(root)  # no other process is here: partial files are left over
        except BlockingIOError:
            pass
        fcntl.flock(mark, fcntl.LOCK_SH)
    except OSError:  # some network file systems have no locks: then nothing is ever removed
        return mark
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(mark.fileno()), (root / MARK_FILE).stat()):
            return mark
    mark.close()
    return None


def _remove_leftovers(root: Path) -> None:
    for path in root.glob(f"{PARTIAL}*"):
        path.unlink(missing_ok=True)


def _unmake(root: Path, *, content_only: bool) -> None:
    """Remove an empty layout, in an order that makes concurrent writers wait or create it again."""
    if not content_only:
        beside = Path(tempfile.mkdtemp(prefix=f".{root.name[:100]}-", dir=root.parent))
        root.rename(beside)
        shutil.rmtree(beside)
        return
    shutil.rmtree(root / "blobs")
    _remove_leftovers(root)
    for name in (INDEX_FILE, _LOCK_FILE, MARK_FILE):  # others wait for the last of them
        (root / name).unlink(missing_ok=True)


def _prune(root: Path) -> Pruned:
    parts = LayoutParts(root, str(root))
    entries = read_descriptors(read_index(root)["manifests"], f"{root}: its index")
    needed = needed_blobs(parts, entries)
    count = size = 0
    for path in (root / "blobs/sha256").iterdir():
        if f"sha256:{path.name}" not in needed and path.is_file():
            size += path.lstat().st_size
            path.unlink()
            count += 1
    _remove_leftovers(root)
    return Pruned(blobs=count, size=size)
