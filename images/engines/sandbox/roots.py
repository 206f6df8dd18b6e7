"""Keeps unpacked images, each under its image ID: `<directory>/<64 hex>/{root,about.json}`.

A root takes gigabytes, and unpacking takes a while, so the last one used is kept for the next run,
and only that one. If another image differs from it only in the last layers, as after a changed line
of a project, only these are exchanged: about.json has what the last layer added. A root gets its
name only when it is complete, and loses it before it is changed. A process that uses or unpacks one
holds a lock on its directory (flock, which ends with the process); a root without a lock may be
removed, and so are leftovers of killed processes. Files that were not yet on disk at a power cut
are empty afterwards, and syncing them takes longer than unpacking: so a root is used only until the
next boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.engines.sandbox.additions import remove_additions
from images.engines.sandbox.errors import SandboxError
from images.engines.sandbox.mounts import MOUNT_POINT, mount, remove_leftover
from images.engines.sandbox.unpack import root_space, unpack
from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX
from images.oci.model import is_digest, read_object, to_bytes
from images.oci.sources import Image, ImageLayer
from images.system.ownership import another_owner

_WORK = ".work-"
_MOUNTED = ".mounted-"
_GONE = ".gone-"
_ABOUT = "about.json"
_ELSEWHERE_FIX = "Keep the cache where you may write: XDG_CACHE_HOME=/path provision ..."
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GROWS = 2
"""Layers compress to about half their size at best: machine code shrinks to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """An unpacked or mounted image in use: it is not removed before `release`."""

    place: Path
    config: dict[str, Any]
    lock: int
    unmount: Callable[[], None] = lambda: None

    @property
    def tree(self) -> Path:
        """The directory that a program in it sees as "/"."""
        return self.place / MOUNT_POINT

    def release(self) -> None:
        self.unmount()
        os.close(self.lock)


class Roots:
    """The unpacked images of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def use(self, image: Image, on_bytes: Callable[[int], None]) -> Root:
        """Unpack an image, if it is not here already: whole, or onto the lower layers of a kept
        root. Removes others that are not in use.
        """
        if not is_digest(image.image_id):
            raise ImageUnreadableError(f"{image.shown} has no sha256 digest.", fix=ANEW_FIX)
        self._make_directory()
        place = self._place(image.image_id)
        root = self._open(place)
        if root is None:
            root = self._make(place, image, on_bytes)
        self.clear()
        return root

    def mount(self, image: Image) -> Root:
        """Mount the squashfs of an image. MountError: this host cannot; FileChangedError: the file
        is not as it was when it was hashed.
        """
        assert image.squashfs is not None
        self._make_directory()
        work, lock = self._begin(_MOUNTED)
        try:
            (work / MOUNT_POINT).mkdir()
            unmount = mount(image.squashfs.path, work / MOUNT_POINT, image.squashfs.state)
        except BaseException:
            os.close(lock)
            self.clear()
            raise
        return Root(place=work, config=dict(image.config), lock=lock, unmount=unmount)

    def clear(self, image_id: str | None = None) -> None:
        """Remove unused roots, or that of one image; keeps those that a process uses and those that
        cannot be locked.
        """
        assert image_id is None or is_digest(image_id)
        with contextlib.suppress(OSError):
            with self._locked():
                found = self.entries() if image_id is None else [self._place(image_id)]
                unused = [gone for gone in map(self._take_away, found) if gone]
            for gone in unused:
                _remove(gone)

    def is_used(self, image_id: str) -> bool:
        """Whether a process uses the unpacked root of this image."""
        try:
            lock = os.open(self._place(image_id), _DIRECTORY) if is_digest(image_id) else None
        except OSError:
            lock = None
        if lock is None:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no locks: a use would not be visible
            return False
        else:
            return False
        finally:
            os.close(lock)

    def _place(self, image_id: str) -> Path:
        return self.directory / image_id.removeprefix("sha256:")

    def entries(self) -> list[Path]:
        """All roots: complete ones, mounted ones, and leftovers of killed processes."""
        try:
            return sorted(
                entry
                for entry in self.directory.iterdir()
                if entry.is_dir() and not entry.is_symlink()
            )
        except OSError:
            return []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory, briefly: no other process takes or removes a root."""
        with (self.directory / ".lock").open("w") as file:
            _flock(file.fileno(), fcntl.LOCK_EX)
            yield

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            another = another_owner(self.directory, self.directory.lstat())
            if another:  # its contents are run
                raise SandboxError(
                    f"{another}: it would not be safe to run images from it.", fix=_ELSEWHERE_FIX
                )
            self.directory.chmod(0o700)
            with self._locked():
                pass
        except OSError as error:
            raise SandboxError(
                f"Images cannot be unpacked under {self.directory}: {error.strerror}.",
                fix=_ELSEWHERE_FIX,
            ) from error

    def _open(self, place: Path) -> Root | None:
        """Lock and return a complete root, if it is here and from this boot."""
        with contextlib.suppress(OSError, ImageUnreadableError), self._locked():
            lock = os.open(place, _DIRECTORY)
            try:
                _flock(lock, fcntl.LOCK_SH)
                about = _read_about(place)
            except BaseException:
                os.close(lock)
                raise
            if about.get("boot") == boot_id() and isinstance(about.get("config"), dict):
                return Root(place=place, config=about["config"], lock=lock)
            os.close(lock)
        return None

    def _make(self, place: Path, image: Image, on_bytes: Callable[[int], None]) -> Root:
        ids = [layer.diff_id for layer in image.layers]
        work, lock, has = self._take_over(ids) or (*self._begin(_WORK), 0)
        try:
            tree = work / MOUNT_POINT
            missing = image.layers[has:]
            self.clear()
            self._check_space(missing)
            if not has:
                tree.mkdir(mode=0o755)
                tree.chmod(0o755)
            added = unpack(missing, tree, on_bytes)
            about = {
                "boot": boot_id(),
                "config": dict(image.config),
                "below": ids[:-1] if missing else ids,
                "added": added,
            }
            (work / _ABOUT).write_bytes(to_bytes(about))
            with contextlib.suppress(OSError):  # another process was faster: then both are used
                work.rename(place)
                work = place
        except BaseException:
            os.close(lock)
            _remove(work)
            raise
        return Root(place=work, config=dict(image.config), lock=lock)

    def _take_over(self, ids: Sequence[str]) -> tuple[Path, int, int] | None:
        """Make a kept root, or a copy of one in use, a tree of lower layers of an image, whose
        diffIDs are `ids`. Returns its directory, which has no image's name now, its lock, and the
        number of these layers.
        """
        taken = self._take_kept(ids) or self._copy_kept(ids)
        if taken is None:
            return None
        work, lock, about = taken
        try:
            for entry in work.iterdir():  # about.json, the script that enters it
                if entry.name != MOUNT_POINT:
                    _remove(entry)
            remove_additions(work / MOUNT_POINT, about["added"])
        except BaseException as error:
            os.close(lock)
            _remove(work)
            if isinstance(error, OSError):
                return None
            raise
        return work, lock, len(about["below"])

    def _take_kept(self, ids: Sequence[str]) -> tuple[Path, int, dict[str, Any]] | None:
        """Lock and rename an unused root that has lower layers of an image; about it."""
        with contextlib.suppress(OSError), self._locked():
            for place in self.entries():
                if place.name.startswith("."):  # half made, or half removed
                    continue
                lock = os.open(place, _DIRECTORY)
                with contextlib.suppress(OSError, ImageUnreadableError):  # used, or incomplete
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    about = _read_about(place)
                    if lower_layers(about, ids):
                        work = place.rename(tempfile.mkdtemp(prefix=_WORK, dir=self.directory))
                        fcntl.flock(lock, fcntl.LOCK_SH)  # as every user: no other may wait for it
                        return work, lock, about
                os.close(lock)
        return None

    def _copy_kept(self, ids: Sequence[str]) -> tuple[Path, int, dict[str, Any]] | None:
        """Copy a root in use that has lower layers of an image, as hard links: programs in a root
        cannot write to its files, and a layer that is unpacked replaces them. None: there is none,
        or it cannot be copied here.
        """
        for place in self.entries():
            used = None if place.name.startswith(".") else self._open(place)
            if used is None:
                continue
            with (
                contextlib.suppress(OSError, ImageUnreadableError),
                contextlib.ExitStack() as stack,
            ):
                stack.callback(used.release)
                about = _read_about(place)
                if lower_layers(about, ids):
                    return *self._linked(used.tree), about
        return None

    def _linked(self, tree: Path) -> tuple[Path, int]:
        work, lock = self._begin(_WORK)
        try:
            shutil.copytree(tree, work / MOUNT_POINT, symlinks=True, copy_function=os.link)
        except BaseException:
            os.close(lock)
            _remove(work)
            raise
        return work, lock

    def _begin(self, prefix: str) -> tuple[Path, int]:
        """A new directory, and its lock."""
        with self._locked():
            work = Path(tempfile.mkdtemp(prefix=prefix, dir=self.directory))
            lock = os.open(work, _DIRECTORY)
            _flock(lock, fcntl.LOCK_SH)
        return work, lock

    def _check_space(self, layers: Sequence[ImageLayer]) -> None:
        packed = sum(layer.blob.size for layer in layers)
        free = shutil.disk_usage(self.directory).free
        if free < packed * _GROWS:
            raise root_space(self.directory, packed * _GROWS)

    def _take_away(self, place: Path) -> Path | None:
        """Rename an unused root, so that no process finds half of it during its removal."""
        try:
            lock = os.open(place, _DIRECTORY)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if place.name.startswith(_MOUNTED) and not remove_leftover(place):
                return None
            gone = Path(tempfile.mkdtemp(prefix=_GONE, dir=self.directory))
            return place.rename(gone)
        except OSError:  # a process uses it
            return None
        finally:
            os.close(lock)


def lower_layers(about: Mapping[str, Any], ids: Sequence[str]) -> int:
    """How many of an image's layers, whose diffIDs are `ids`, a kept root has below its last one;
    0 if it cannot be used for them: it is from another boot, or its last layer cannot be removed.
    """
    below, added = about.get("below"), about.get("added")
    if about.get("boot") != boot_id() or not isinstance(below, list) or not isinstance(added, list):
        return 0
    return len(below) if list(ids[: len(below)]) == below else 0


def _read_about(place: Path) -> dict[str, Any]:
    return read_object((place / _ABOUT).read_bytes(), str(place))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flock(descriptor: int, kind: int) -> None:
    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(descriptor, kind)


def boot_id() -> str:
    """The ID of the machine's current boot; "" if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
