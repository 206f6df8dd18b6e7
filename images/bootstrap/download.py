"""Downloads the parts of a base: signed Releases, package indexes, and packages.

Everything but the Releases has a known digest, and is kept in the store under it.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from images.bootstrap.deb import decompress_xz
from images.bootstrap.errors import BootstrapError, BootstrapUnfitError, MirrorError
from images.bootstrap.host import AptSettings
from images.bootstrap.index import PackageIndex, SuitePackage
from images.bootstrap.mirrors import MirrorSuite
from images.bootstrap.release import IndexFile, Release, parse_release
from images.bootstrap.signature import debian_keys, keys_in, unverified, verified
from images.errors import Failure
from images.net.address import shown_url
from images.net.connections import proxy_for
from images.net.errors import BrokenOff
from images.net.logins import authorization, read_logins
from images.net.retries import AGAIN, Retries, Tries, busy
from images.net.secrets import Secrets
from images.net.transfer import Transfers, head_of, pieces_of, transfer_client
from images.store.fetch import Fetcher
from images.store.local import local_path
from images.store.store import Store
from images.wheels.remote_file import RemoteFile

_MOST_RELEASE_BYTES = 16 << 20
_PATIENCE_S = 20.0
TRIES = Retries(tries=3, first_wait_s=0.8)
_CONNECTIONS = 8
_ABSENT = "does not have it (HTTP 404)"
_REACH_FIX = (
    "Check that this machine reaches it (http_proxy, or apt's configuration), or name another:"
    " PROVISION_DEBIAN_MIRROR=http://HOST/debian"
)


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite whose Release was checked: its mirror, and its package index."""

    source: MirrorSuite
    index: IndexFile
    by_hash: bool


class Downloads(contextlib.AbstractContextManager["Downloads"]):
    """Downloads from Debian's mirrors, as apt on this machine would."""

    def __init__(
        self,
        store: Store,
        settings: AptSettings,
        *,
        ca_bundle: str = "",
        on_line: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        bundle = ca_bundle + settings.ca_bundle
        self._settings = settings
        self._on_line = on_line
        self._now = now
        self._logins = read_logins(settings.netrc)
        self._client = transfer_client(
            ca_bundle=bundle, patience_s=_PATIENCE_S, connections=_CONNECTIONS, proxy=self._proxy
        )
        self._fetcher = Fetcher(
            store,
            kind="blob",
            secrets=Secrets(ca_bundle=bundle, netrc=settings.netrc),
            proxy=self._proxy,
            on_note=on_line,
            workers=_CONNECTIONS,
        )

    def __exit__(self, *error: object) -> None:
        self._fetcher.close()
        self._client.close()

    def suites(self, sources: Iterable[MirrorSuite], arch: str) -> tuple[Suite, ...]:
        """Read the Releases of all suites in the sources, each from its first working mirror."""
        by_suite: dict[str, list[MirrorSuite]] = {}
        for source in sources:
            by_suite.setdefault(source.suite, []).append(source)
        with ThreadPoolExecutor(len(by_suite)) as pool:
            return tuple(pool.map(lambda group: self._suite(group, arch), by_suite.values()))

    def indexes(self, suites: Sequence[Suite]) -> tuple[PackageIndex, ...]:
        """Read the indexes of suites."""
        with ThreadPoolExecutor(len(suites)) as pool:
            return tuple(pool.map(self._index, suites))

    def packages(self, packages: Sequence[SuitePackage]) -> Iterator[tuple[SuitePackage, Path]]:
        """Download packages, and yield each with its file, in order."""
        wanted = [_remote(package) for package in packages]
        self._fetcher.prefetch(wanted)
        for package, file in zip(packages, wanted, strict=True):
            yield package, self._fetched(file, package.url)

    def _proxy(self, url: str) -> str | None:
        return self._settings.proxy(url, proxy_for)

    def _suite(self, sources: Sequence[MirrorSuite], arch: str) -> Suite:
        first, *others = sources
        try:
            release = self._release(first)
            return Suite(first, release.packages(arch), release.by_hash)
        except Failure as failure:
            self._on_line(f"{first.shown} is not used: {failure.message}")
            with contextlib.suppress(Failure):
                if others:
                    return self._suite(others, arch)
            raise

    def _release(self, source: MirrorSuite) -> Release:
        signed = self.read(f"{_directory(source)}/InRelease")
        if source.on("trusted"):
            text = unverified(signed)
        else:
            keyrings = source.options.get("signed-by", "").split()
            keys = [key for file in keyrings for key in keys_in(Path(file))] or debian_keys()
            text = verified(signed, keys, shown=source.shown)
        release = parse_release(text, shown=source.shown)
        checked = self._settings.check_valid_until and not source.off("check-valid-until")
        release.check(source.suite, now=self._now() if checked else None)
        return release

    def _index(self, suite: Suite) -> PackageIndex:
        listed = suite.index
        directory, _ = posixpath.split(listed.path)
        by_hash = f"{directory}/by-hash/SHA256/{listed.sha256}"
        # a mirror in the middle of an update has the old index only under its hash
        first, *others = [by_hash, listed.path] if suite.by_hash else [listed.path]
        try:
            content = self._index_file(suite, first)
        except Failure:
            with contextlib.suppress(Failure):
                for path in others:
                    return self._parsed(suite, self._index_file(suite, path))
            raise
        return self._parsed(suite, content)

    def _parsed(self, suite: Suite, content: bytes) -> PackageIndex:
        text = _decompressed(content, suite.index.path)
        source = suite.source
        return PackageIndex(text, base_url=source.uri.rstrip("/"), shown=source.shown)

    def _index_file(self, suite: Suite, path: str) -> bytes:
        file = RemoteFile(
            name=f"{suite.source.suite}'s package index",
            version="",
            url=f"{_directory(suite.source)}/{path}",
            size=suite.index.size,
            sha256=suite.index.sha256,
        )
        return self._fetched(file, file.url).read_bytes()

    def _fetched(self, file: RemoteFile, url: str) -> Path:
        try:
            return self._fetcher.fetch(file)
        except Failure as failure:
            if failure.code in {"disk-full", "store-unusable", "called-off", "offline"}:
                raise
            mismatch = failure.code == "digest-mismatch"
            raise MirrorError(
                failure.message,
                fix="The mirror may be in the middle of an update: try again in a few minutes."
                if mismatch
                else _REACH_FIX,
                detail=failure.detail or shown_url(url),
            ) from failure

    def read(self, url: str) -> bytes:
        """Read a small file whose digest is unknown."""
        path = local_path(url)
        if path is not None:
            try:
                return path.read_bytes()
            except OSError as error:
                raise MirrorError(
                    f"{path} could not be read: {error.strerror}.", fix=_REACH_FIX
                ) from error
        tries = Tries(TRIES)
        while True:
            try:
                return self._read(url)
            except BrokenOff as error:  # noqa: PERF203  at most three times
                if not tries.again(error):
                    raise _failure(error, url) from error

    def _read(self, url: str) -> bytes:
        login = authorization(url, self._logins)
        transfers = Transfers(url, self._client, login=login, patience_s=_PATIENCE_S)
        with contextlib.closing(transfers.ask(0)) as answer:
            head = head_of(answer)
            if head.status != 200:
                known = {404: _ABSENT, 401: "asks for a login (HTTP 401)",
                         403: "denies access (HTTP 403)"}  # fmt: skip
                if head.status in AGAIN:
                    raise busy(head)
                raise BrokenOff(known.get(head.status, f"answered HTTP {head.status}"), final=True)
            content = bytearray()
            for piece in pieces_of(answer):
                content += piece
                if len(content) > _MOST_RELEASE_BYTES:
                    raise BrokenOff("sent far more than a Release file has", final=True)
            if head.length not in {None, len(content)}:
                raise BrokenOff("closed the connection too early")
            return bytes(content)


def _failure(error: BrokenOff, url: str) -> Failure:
    parts = urllib.parse.urlsplit(url)
    if error.why == _ABSENT:
        suite = posixpath.basename(posixpath.dirname(parts.path))
        return BootstrapUnfitError(
            f"The Debian mirror {parts.hostname} does not have the suite {suite}.",
            fix="Use a suite that it has (they are listed in its dists/ directory), or another"
            " mirror.",
            detail=shown_url(url),
        )
    return MirrorError(
        f"The Debian mirror {parts.hostname} {error.why}.",
        fix=error.fix if error.kind == "certificate" else _REACH_FIX,
        detail=shown_url(url),
    )


def _remote(package: SuitePackage) -> RemoteFile:
    return RemoteFile(
        name=package.name,
        version=package.version,
        url=package.url,
        size=package.size,
        sha256=package.sha256,
    )


def _directory(source: MirrorSuite) -> str:
    return f"{source.uri.rstrip('/')}/dists/{source.suite}"


def _decompressed(content: bytes, path: str) -> bytes:
    try:
        if path.endswith(".xz"):
            return decompress_xz(content)
        if path.endswith(".gz"):
            from isal import isal_zlib

            return bytes(isal_zlib.decompress(content, 31))
    except (ValueError, zlib.error) as error:
        raise BootstrapError(
            f"The package index {path} could not be decompressed: {error}.",
            fix="Use another mirror of Debian.",
        ) from error
    return content
