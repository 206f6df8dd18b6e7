"""Stores wheels and blobs by digest, and facts about layers.

Several builds use one store at once, and any of them may be killed. So a file gets its name only
when it is complete and on disk; a build waits for another that downloads the same file; and what a
build uses stays until that build ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from images.errors import Failure
from images.oci.blobfiles import sync_directory
from images.oci.errors import DigestMismatchError
from images.oci.sources import KnownLayer
from images.store import upkeep
from images.store.entries import (
    PARTS,
    Kind,
    file_name_of,
    find_file,
    is_hex,
    kind_directory,
    regular_size,
    store_directory,
)
from images.store.errors import ELSEWHERE_FIX, StoreUnusableError
from images.store.incoming import (
    IncomingFile,
    free_bytes,
    full,
    receiving,
    storing,
)
from images.store.locks import Lease, NoLocks, gate, try_lock
from images.store.memo import known_from_json, known_to_json, memo_path, read_memo, write_memo
from images.store.upkeep import Cleared, StoreCheck, Usage
from images.system.ownership import another_owner, changed_by_others

Notes = Callable[[str], None]
_MOST_DEFAULT_BYTES = 20 * 10**9
_KNOWN = "known"
_CACHE_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This directory can be made again: backups may leave it out (https://bford.info/cachedir/).\n"
)
_AGAIN_FIX = "Lock again: provision lock"


class Store(contextlib.AbstractContextManager["Store"]):
    """An open store. Files that it returned stay in place until `close`. Thread-safe."""

    def __init__(self, directory: Path, *, limit_bytes: int, on_note: Notes) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._gate = directory / "gate"
        self._lease = Lease(directory / "leases")
        self._on_note = on_note
        self._grown = False

    @classmethod
    def open(
        cls, root: Path, *, limit_bytes: int | None = None, on_note: Notes = lambda _: None
    ) -> Store:
        """Open the store below `root`, and create it if it does not exist.

        `limit_bytes`: the size to clear down to on close; None: a fifth of the disk, 20 GB at most.
        `on_note` gets messages for the user.
        """
        directory = store_directory(root)
        with storing(directory, 0):
            _make(directory)
            _look_for_locks(directory, on_note)
            upkeep.sweep(directory)
        limit = default_limit(directory) if limit_bytes is None else limit_bytes
        return cls(directory, limit_bytes=limit, on_note=on_note)

    @classmethod
    def private(cls, root: Path) -> Store | None:
        """Open the store below `root` for facts that nothing else checks; None if another user
        could change them, or if it cannot be opened.
        """
        with contextlib.suppress(Failure, OSError):
            store = cls.open(root)
            if not changed_by_others(store.directory):
                return store
            store.close()
        return None

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what was in use; clear the store if it grew beyond its limit."""
        self._lease.end()
        if self._grown:
            self._grown = False
            try:
                upkeep.clear(self.directory, limit_bytes=self.limit_bytes)
            except (OSError, StoreUnusableError) as error:  # the build itself succeeded
                self._on_note(f"the store could not be cleared: {error}")

    def find(
        self,
        kind: Kind,
        digest: str,
        *,
        file_name: str | None = None,
        size: int | None = None,
        check: bool = False,
    ) -> Path | None:
        """Find a file by its digest; if its size differs, or with `check`, it is hashed first."""
        hexa = hex_of(digest)
        with storing(self.directory, 0), gate(self._gate, shared=True):
            path = find_file(self.directory, kind, hexa, file_name)
            if path is None:
                return None
            self._lease.add(hexa)
            with contextlib.suppress(OSError):
                os.utime(path)
        # hash it if the size differs: the index's size may be wrong, too
        if (check or size not in {None, regular_size(path)}) and upkeep.hash_file(path) != hexa:
            self._on_note(f"{path.name[:80]} was damaged in the store; fetching it again")
            with storing(self.directory, 0):
                upkeep.discard(self.directory, kind, hexa)
            return None
        return path

    def wheel(
        self,
        sha256: str,
        *,
        file_name: str | None = None,
        size: int | None = None,
        check: bool = False,
    ) -> Path | None:
        """Find a wheel, under this file name if one is given; `check`: hash it first."""
        return self.find("wheel", sha256, file_name=file_name, size=size, check=check)

    def blob(self, digest: str, *, size: int | None = None, check: bool = False) -> Path | None:
        """Find a blob by its digest ("sha256:..."); `check`: hash it first."""
        return self.find("blob", digest, size=size, check=check)

    def add(
        self,
        kind: Kind,
        digest: str,
        pieces: Iterator[bytes],
        expected_size: int | None = None,
        *,
        file_name: str | None = None,
    ) -> Path:
        """Store the pieces if they match the digest. DigestMismatchError: they do not.

        A second caller waits for the first, and its pieces are never read.
        """
        hexa = hex_of(digest)

        def write(incoming: IncomingFile) -> None:
            for piece in pieces:
                incoming.write(piece)
                if expected_size is not None and incoming.size > expected_size:
                    found = f"more than {expected_size} bytes"
                    raise mismatch(file_name or f"sha256:{hexa}", f"{expected_size} bytes", found)

        try:
            return self._fill(kind, hexa, file_name, write)
        finally:
            if isinstance(pieces, Generator):
                pieces.close()

    @contextlib.contextmanager
    def receive(
        self,
        kind: Kind,
        hexa: str,
        *,
        file_name: str | None = None,
        on_wait: Callable[[int], None] = lambda _: None,
        called_off: Callable[[], bool] = lambda: False,
    ) -> Iterator[IncomingFile | Path]:
        """Yield a file to write; a path if it is there, or if another process finishes it.

        The file contains what an earlier process left; `restart` drops that.
        """
        path = self.directory / "partial" / f"{kind}-{hexa}"
        found: list[Path] = []

        def is_there() -> bool:
            taken = self.find(kind, hexa, file_name=file_name)
            found.extend([taken] if taken else [])
            return taken is not None

        with receiving(path, is_there=is_there, on_wait=on_wait, called_off=called_off) as incoming:
            yield found[-1] if incoming is None else incoming

    def keep(
        self, kind: Kind, hexa: str, incoming: IncomingFile, *, file_name: str | None = None
    ) -> Path:
        """Rename a complete file into the store if its digest matches; else remove it and raise."""
        if incoming.hex != hexa:
            incoming.remove()
            raise mismatch(file_name or f"sha256:{hexa}", hexa, incoming.hex)
        incoming.sync()
        place = kind_directory(self.directory, kind)
        target = place / hexa
        if kind == "wheel":
            target /= file_name_of(hexa, file_name)
        with storing(self.directory, 0), gate(self._gate, shared=True):
            self._lease.add(hexa)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            os.utime(incoming.path)
            incoming.path.replace(target)
            sync_directory(target.parent)
            sync_directory(place)
        self._grown = True
        return target

    def make_room(self, needed: int) -> None:
        """Make sure that this many bytes can be written, or raise DiskFullError.

        Removes what was used longest ago: a cache must not fill the disk.
        """
        if free_bytes(self.directory) >= needed:
            return
        with storing(self.directory, needed):
            upkeep.clear(self.directory, limit_bytes=1 << 62, needed_free=needed)
        if free_bytes(self.directory) < needed:
            raise full(self.directory, needed)

    def known(self, key: str) -> KnownLayer | None:
        """The facts about a layer, by its key."""
        found = self.facts(_KNOWN, key)
        return known_from_json(found) if found is not None else None

    def remember(self, key: str, known: KnownLayer) -> None:
        """Store the facts about a layer."""
        self.remember_facts(_KNOWN, key, known_to_json(known))

    def facts(self, namespace: str, key: str) -> dict[str, Any] | None:
        """Read a memo. The caller checks its content."""
        path = memo_path(self.directory / "memo", namespace, key)
        found = read_memo(path, key)
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return found

    def remember_facts(self, namespace: str, key: str, value: Mapping[str, Any]) -> None:
        """Write a memo. A failed write is not an error: the result is computed again next time."""
        path = memo_path(self.directory / "memo", namespace, key)
        try:
            write_memo(path, self.directory / "partial", key, value)
        except OSError as error:
            self._on_note(f"cannot write to the store: {error.strerror or error}")

    def du(self) -> tuple[Usage, ...]:
        """Measure the disk usage of each kind."""
        return upkeep.measure(self.directory)

    def verify(self, on_bytes: Callable[[str, int], None] = lambda *_: None) -> StoreCheck:
        """Hash everything, and remove what is damaged."""
        with storing(self.directory, 0):
            return upkeep.verify(self.directory, on_bytes)

    def gc(self, *, limit_bytes: int | None = None, everything: bool = False) -> Cleared:
        """Remove what was used longest ago, down to a limit (None: the store's own)."""
        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        with storing(self.directory, 0):
            return upkeep.clear(
                self.directory, limit_bytes=limit, leftover_s=0.0, everything=everything
            )

    def _fill(
        self, kind: Kind, hexa: str, file_name: str | None, write: Callable[[IncomingFile], None]
    ) -> Path:
        """Write a file from its start, and store it; remove it on failure."""
        waited: list[int] = []

        def on_wait(size: int) -> None:
            if not waited:
                self._on_note(f"another build is fetching sha256:{hexa[:12]}: waiting for it")
            waited.append(size)

        with self.receive(kind, hexa, file_name=file_name, on_wait=on_wait) as incoming:
            if isinstance(incoming, Path):
                return incoming
            try:
                incoming.restart()
                write(incoming)
                return self.keep(kind, hexa, incoming, file_name=file_name)
            except BaseException:
                incoming.remove()
                raise


def default_limit(directory: Path) -> int:
    """The default size limit of a store: a fifth of its disk, and 20 GB at most."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return _MOST_DEFAULT_BYTES
    return min(_MOST_DEFAULT_BYTES, status.f_blocks * status.f_frsize // 5)


def hex_of(digest: str) -> str:
    """Parse a sha256, written as in a lock or as in a manifest. DigestMismatchError: malformed."""
    hexa = digest.removeprefix("sha256:").lower()
    if not is_hex(hexa):
        raise DigestMismatchError(
            f"{digest[:80]!r} is not a sha256 digest (64 hexadecimal digits).",
            fix=_AGAIN_FIX,
        )
    return hexa


def mismatch(title: str, expected: str, found: str) -> DigestMismatchError:
    """The error for content that does not match the lock."""
    return DigestMismatchError(
        f"{title} is not what was locked: expected {expected}, found {found}. It is not used.",
        fix="Try again. If it fails again, the server or a proxy changes the file. "
        f"If the file was replaced on purpose: {_AGAIN_FIX[0].lower()}{_AGAIN_FIX[1:]}",
    )


def _make(directory: Path) -> None:
    """Create the directories. Only the owner may read them: they have wheels of private indexes."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if another := another_owner(directory, directory.lstat()):  # its memos are trusted
        raise StoreUnusableError(
            f"The store {another}: it would not be safe to build from it.", fix=ELSEWHERE_FIX
        )
    directory.chmod(0o700)
    for part in PARTS:
        (directory / part).mkdir(mode=0o700, exist_ok=True)
    tag = directory / "CACHEDIR.TAG"
    if not tag.exists():
        tag.write_text(_CACHE_TAG, encoding="ascii")


def _look_for_locks(directory: Path, on_note: Notes) -> None:
    descriptor = os.open(directory / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try_lock(descriptor, shared=True)
    except NoLocks:
        on_note(
            f"{directory} is on a file system without locks: concurrent builds may download a "
            "file twice, and gc keeps everything used in the last day"
        )
    finally:
        os.close(descriptor)
