"""Downloads the wheels of a lock, or other files by their digest: several at once, largest first.

Skips files that are in the store or elsewhere on this machine. The threads are daemons: they end
with the process, whatever they wait for.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from images.errors import DiskFullError
from images.net.connections import proxy_for
from images.net.logins import authorization, read_logins
from images.net.secrets import Secrets
from images.net.transfer import Transfers, transfer_client
from images.oci.errors import DigestMismatchError
from images.store.download import Download
from images.store.entries import Kind
from images.store.errors import CalledOffError, OfflineError, in_units
from images.store.incoming import IncomingFile
from images.store.local import checked_file, local_path
from images.store.store import Store, hex_of
from images.wheels.errors import WheelUnreadableError
from images.wheels.remote_file import RemoteFile

PATIENCE_S = 30.0
"""The limit for an answer's first piece, and between two pieces of 256 KiB."""
_CLOSING_S = 1.0
_SIGNAL_S = 0.5
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,240}\.whl")


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """One requested file and its result."""

    wheel: RemoteFile
    turn: int
    requested: bool = False
    """Whether a caller waits for it, or will soon."""
    begun: bool = False
    path: Path | None = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.path is not None or self.error is not None

    @property
    def rank(self) -> tuple[bool, float, int]:
        """The order of starting: files that a caller waits for, then the largest."""
        size = self.wheel.size
        return (not self.requested, -(float("inf") if size is None else size), self.turn)


class Fetcher(contextlib.AbstractContextManager["Fetcher"]):
    """Downloads files of one kind; use it in `with`, so that downloads stop when the work fails.

    `proxy` returns the proxy for an address (default: from the environment). `on_bytes` is called,
    from any thread, with the wheel's name and how many more bytes of it are here; the number is
    negative when a download starts over. `on_note` gets messages for the user.
    """

    def __init__(
        self,
        store: Store,
        *,
        kind: Kind = "wheel",
        secrets: Secrets | None = None,
        proxy: Callable[[str], str | None] = proxy_for,
        offline: bool = False,
        on_bytes: Callable[[str, int], None] = lambda *_: None,
        on_note: Callable[[str], None] = lambda _: None,
        workers: int = 4,
    ) -> None:
        secrets = secrets or Secrets()
        self.downloaded = 0
        """The bytes downloaded."""
        self._store = store
        self._kind = kind
        self._offline = offline
        self._logins = read_logins(secrets.netrc)
        self._addresses = secrets.addresses
        self._client = transfer_client(
            ca_bundle=secrets.ca_bundle, patience_s=PATIENCE_S, connections=workers, proxy=proxy
        )
        self._on_bytes = on_bytes
        self._on_note = on_note
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._exchanges: set[Transfers] = set()
        self._changed = threading.Condition()
        self._called_off = threading.Event()

    def __exit__(self, *error: object) -> None:
        self.close()

    def prefetch(self, wheels: Iterable[RemoteFile], first: Collection[str] = ()) -> None:
        """Start the downloads, with those whose digests are in `first` before the others. Raises at
        once if a wheel may not be fetched (OfflineError) or if there is no room for all
        (DiskFullError).
        """
        wanted = list(wheels)
        missing = self.missing(wanted)
        if self._offline and missing:
            raise _offline(missing)
        self._store.make_room(sum(wheel.size or 0 for wheel in missing))
        for wheel in sorted(wanted, key=lambda wheel: wheel.sha256 not in first):
            self._enqueue(wheel, asked=wheel.sha256 in first)

    def missing(self, wheels: Iterable[RemoteFile]) -> list[RemoteFile]:
        """Those to download, each once: several layers may be made from one wheel."""
        different = {wheel.sha256: wheel for wheel in wheels}
        # if a file of this machine is missing, `_bring` raises
        remote = [wheel for wheel in different.values() if local_path(wheel.url) is None]
        return [wheel for wheel in remote if self._find(wheel) is None]

    def fetch(self, wheel: RemoteFile) -> Path:
        """Wait until a wheel is here, and return its path; raises the error of its download."""
        job = self._enqueue(wheel, asked=True)
        with self._changed:
            while not job.over:
                # Python runs signal handlers between instructions, so a signal that arrives just
                # before the wait would be noticed only after it
                self._changed.wait(_SIGNAL_S)
        if job.error is not None:
            raise job.error
        assert job.path is not None
        return job.path

    def close(self) -> None:
        """Cancel downloads under way; what has arrived is kept for the next time."""
        with self._changed:
            self._called_off.set()
            for job in self._jobs.values():
                if not job.over:
                    job.error = _called_off(job.wheel)
            exchanges = list(self._exchanges)
            self._changed.notify_all()
        for exchange in exchanges:
            exchange.close()
        end = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._client.close()

    def _find(self, wheel: RemoteFile) -> Path | None:
        name = self._file_name(wheel)
        return self._store.find(self._kind, hex_of(wheel.sha256), file_name=name, size=wheel.size)

    def _file_name(self, wheel: RemoteFile) -> str | None:
        """Wheels keep their file names, which contain version and tags."""
        return _file_name(wheel) if self._kind == "wheel" else None

    def _enqueue(self, wheel: RemoteFile, *, asked: bool) -> _Job:
        with self._changed:
            key = (wheel.sha256, wheel.url)
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = _Job(wheel=wheel, turn=len(self._jobs))
                if self._called_off.is_set():
                    job.error = _called_off(wheel)
                elif len(self._threads) < self._workers:
                    name = f"fetch-{len(self._threads)}"
                    thread = threading.Thread(target=self._work, name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()
                self._changed.notify_all()
            job.requested = job.requested or asked
            return job

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            path: Path | None = None
            error: BaseException | None = None
            try:
                path = self._bring(job.wheel)
            except BaseException as found:  # noqa: BLE001  raised again in `fetch`
                error = found
            with self._changed:
                if not job.over:
                    job.path, job.error = path, error
                self._changed.notify_all()

    def _next_job(self) -> _Job | None:
        with self._changed:
            while not self._called_off.is_set():
                waiting = [job for job in self._jobs.values() if not (job.begun or job.over)]
                if waiting:
                    job = min(waiting, key=lambda job: job.rank)
                    job.begun = True
                    return job
                self._changed.wait()
            return None

    def _bring(self, wheel: RemoteFile) -> Path:
        def heard(count: int) -> None:
            self._on_bytes(wheel.name, count)

        path = local_path(wheel.url)
        found = self._find(wheel) if path is None or not path.is_file() else None
        if path is not None and found is None:
            return checked_file(path, hex_of(wheel.sha256), self._store, heard)
        if found is not None:
            heard(found.stat().st_size)
            return found
        if self._offline:
            raise _offline([wheel])
        return self._receive(wheel, heard)

    def _receive(self, wheel: RemoteFile, heard: Callable[[int], None]) -> Path:
        hexa, name = hex_of(wheel.sha256), self._file_name(wheel)
        told = 0

        def waited(size: int) -> None:
            """Another process downloads it: report its progress as ours."""
            nonlocal told
            if not told and size:
                self._on_note(f"another build is fetching {name or wheel.name}: waiting for it")
            heard(size - told)
            told = size

        with self._store.receive(
            self._kind,
            hexa,
            file_name=name,
            on_wait=waited,
            called_off=self._called_off.is_set,
        ) as incoming:
            if isinstance(incoming, Path):
                heard(incoming.stat().st_size - told)
                return incoming
            heard(incoming.size - told)
            try:
                self._download(wheel, incoming, hexa, heard)
                return self._store.keep(self._kind, hexa, incoming, file_name=name)
            except (DigestMismatchError, DiskFullError):
                incoming.remove()
                raise
            finally:
                if not incoming.size:
                    incoming.remove()

    def _download(
        self, wheel: RemoteFile, incoming: IncomingFile, hexa: str, heard: Callable[[int], None]
    ) -> None:
        url = self._addresses.get(wheel.url, wheel.url)
        login = authorization(url, self._logins)
        try:
            exchange = Transfers(url, self._client, login=login, patience_s=PATIENCE_S)
        except ValueError as error:
            raise _bad_address(wheel, str(error)) from error
        with self._changed:
            self._exchanges.add(exchange)
        try:
            for last in (False, True):
                download = Download(
                    exchange,
                    incoming,
                    title=f"{wheel.name} {wheel.version}",
                    named=f"{wheel.name} @ {wheel.url}" if wheel.direct else "",
                    whole=url != wheel.url,
                    size=wheel.size,
                    called_off=self._called_off,
                    on_bytes=heard,
                    on_note=self._on_note,
                )
                try:
                    download.run()
                finally:
                    with self._changed:
                        self.downloaded += download.fetched
                if incoming.hex == hexa or last or not download.pieced:
                    return
                # the parts may be of two different files: try once more, from the start
                heard(-incoming.size)
                incoming.restart()
        finally:
            with self._changed:
                self._exchanges.discard(exchange)


def _file_name(wheel: RemoteFile) -> str:
    try:
        path = urllib.parse.urlsplit(wheel.url).path
    except ValueError as error:
        raise _bad_address(wheel, str(error)) from error
    name = urllib.parse.unquote(path.rpartition("/")[2])
    if _FILE_NAME.fullmatch(name) is None:
        raise _bad_address(wheel, "it does not end in the name of a wheel")
    return name


def _bad_address(wheel: RemoteFile, why: str) -> WheelUnreadableError:
    return WheelUnreadableError(
        f"The address that the lock has for {wheel.name} cannot be used: {why}.",
        fix="Lock again: provision lock",
    )


def _called_off(wheel: RemoteFile) -> CalledOffError:
    return CalledOffError(
        f"The download of {wheel.name} {wheel.version} was cancelled.",
        fix="Build again: what has arrived is kept.",
    )


def _offline(missing: list[RemoteFile]) -> OfflineError:
    shown = [
        f"{wheel.name} {wheel.version} ({in_units(wheel.size) if wheel.size else 'size unknown'})"
        for wheel in missing
    ]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    total = in_units(sum(wheel.size or 0 for wheel in missing))
    return OfflineError(
        f"--offline: {len(missing)} of the lock's wheels are not on this machine, {total}: "
        f"{', '.join(shown[:8])}{more}.",
        fix="Build once without --offline to fill the store.",
    )
