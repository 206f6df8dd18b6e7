"""One simple index: its pages, and METADATA of wheels, several at a time."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from packaging.version import Version

from images.errors import Failure
from images.inspect.archive import WheelArchive
from images.inspect.remote import open_url
from provision.catalog.index.fetch import THREADS, AbsentError, PageFetcher, SourceError
from provision.catalog.index.pages import ACCEPT, Page, PageError, parse_page
from provision.catalog.index.wheels import (
    IndexMetadata,
    LinuxWheel,
    best_first,
    builds_of,
    by_release,
    linux_wheels,
    parse_metadata,
)

_FIRST = Version("0")
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")
_FIX = "Check that the URL is a package index, and that no proxy intercepts it: --index URL"
_LATER_FIX = "Try again later, or name another index: --index URL"


class Index:
    """Pages and METADATA of one index. `name` may be shown to users: "PyPI", or its host."""

    def __init__(self, url: str, name: str, fetcher: PageFetcher) -> None:
        self._url = fetcher.add_login(url).rstrip("/")
        self.name = name
        self.fetcher = fetcher

    def page(self, project: str) -> Page:
        """One project's page. AbsentError: the index has no such project; SourceError: why it could
        not be read.
        """
        return read_page(f"{self._url}/{project}/", self.fetcher)

    def pages(self, projects: Iterable[str], troubles: list[SourceError]) -> dict[str, Page]:
        """The pages that the index has of these projects; other errors become failures."""
        errors: list[SourceError] = []
        found = each({project: project for project in projects}, self.page, errors)
        troubles += [error for error in errors if not isinstance(error, AbsentError)]
        return found

    def releases(
        self, projects: Iterable[str], troubles: list[SourceError], oldest: Version = _FIRST
    ) -> dict[str, dict[Version, list[LinuxWheel]]]:
        """The wheels for Linux of these projects, by release."""
        return {
            project: by_release(builds_of(linux_wheels(page.files, project), oldest))
            for project, page in self.pages(projects, troubles).items()
        }

    def wheels(self, project: str) -> list[LinuxWheel]:
        """The wheels for Linux on one project's page. SourceError: there is none."""
        with contextlib.suppress(AbsentError):
            if wheels := linux_wheels(self.page(project).files, project):
                return wheels
        raise SourceError(
            f"{self.name} lists no wheel of {project} for Linux.",
            fix="Name an index that has them: --index URL",
        )

    def metadata(
        self, groups: Mapping[_Key, Sequence[LinuxWheel]], troubles: list[SourceError]
    ) -> dict[_Key, tuple[LinuxWheel, IndexMetadata]]:
        """One METADATA per group of wheels of one build; those that cannot be read become
        failures.
        """
        return each(groups, self._first_readable, troubles)

    def peek(self, wheel: LinuxWheel, name: str) -> bytes:
        """A file of a wheel, read with range requests. SourceError: missing, damaged, or the server
        supports no ranges.
        """
        fetcher = self.fetcher
        try:
            source = open_url(
                fetcher.with_login(wheel.file.url),
                ca_bundle=fetcher.ca_bundle,
                patience_s=fetcher.limits.retries.answer_s,
                parts_only=True,
            )
            with contextlib.closing(source):
                archive = WheelArchive(source)
                if name in archive.members:
                    return archive.read(name, fetcher.limits.metadata_bytes)
        except Failure as error:
            raise SourceError(error.message, fix=_LATER_FIX) from error
        raise SourceError(f"{wheel.file.name} has no {name}.", fix=_LATER_FIX)

    def _first_readable(self, wheels: Sequence[LinuxWheel]) -> tuple[LinuxWheel, IndexMetadata]:
        """Two tries: a release stays readable if the METADATA of one Python's wheel is damaged."""
        first, *others = best_first(wheels)[:2]
        try:
            return first, self.read_metadata(first)
        except SourceError as error:
            if error.silent or not others:
                raise
        return others[0], self.read_metadata(others[0])

    def read_metadata(self, wheel: LinuxWheel) -> IndexMetadata:
        """A wheel's METADATA: separately if the index offers that (PEP 658), else from the wheel.

        SourceError: unreachable, not what the index promised, or another wheel's.
        """
        name = wheel.file.name
        if wheel.file.metadata:
            data = self._beside(wheel)
        else:
            data = self.peek(wheel, f"{'-'.join(name.split('-')[:2])}.dist-info/METADATA")
        try:
            metadata = parse_metadata(data)
        except ValueError as error:
            what = f"The METADATA of {name} is not valid: {error}."
            raise SourceError(what, fix=_LATER_FIX) from None
        if metadata.name != wheel.project or metadata.version != wheel.version:
            raise SourceError(
                f"The METADATA of {name} is that of {metadata.name} {metadata.version}.",
                fix=_LATER_FIX,
            )
        return metadata

    def _beside(self, wheel: LinuxWheel) -> bytes:
        limit = self.fetcher.limits.metadata_bytes
        body = self.fetcher.get(f"{wheel.file.url}.metadata", accept="*/*", limit_bytes=limit).body
        wanted, found = wheel.file.metadata_sha256, hashlib.sha256(body).hexdigest()
        if wanted is not None and found != wanted:
            raise SourceError(
                f"The METADATA of {wheel.file.name} has sha256 {found}; the index says {wanted}: "
                "it was damaged in transit, or a proxy changed it.",
                fix=_LATER_FIX,
            )
        return body


def read_page(url: str, fetcher: PageFetcher) -> Page:
    """One page of an index. SourceError: unreachable, or no such page."""
    answer = fetcher.get(url, accept=ACCEPT, limit_bytes=fetcher.limits.page_bytes)
    try:
        return parse_page(answer.body, answer.headers.get("content-type", ""), answer.url)
    except PageError as error:
        raise SourceError(
            f"{url} did not answer with a page of a package index: {error}.", fix=_FIX
        ) from None


def each(
    items: Mapping[_Key, _Item], work: Callable[[_Item], _Done], troubles: list[SourceError]
) -> dict[_Key, _Done]:
    """Run a function on every item, several at a time, and collect the failures.

    The threads do not hold up a program that is interrupted: a look-up of a name cannot be.
    """
    futures: dict[_Key, Future[_Done]] = {key: Future() for key in items}
    waiting = iter(list(items))

    def run() -> None:
        for key in waiting:
            try:
                futures[key].set_result(work(items[key]))
            except BaseException as error:  # noqa: BLE001, PERF203  raised again in the waiting thread
                futures[key].set_exception(error)

    for _ in range(min(THREADS, len(items))):
        threading.Thread(target=run, daemon=True).start()
    found: dict[_Key, _Done] = {}
    for key, future in futures.items():
        try:
            found[key] = future.result()
        except SourceError as error:  # noqa: PERF203
            troubles.append(error)
    return found
