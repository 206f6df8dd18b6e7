"""One simple index, shared by several sources: each page once, METADATA in parallel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from provision.catalog.refresh.fetch import PageFetcher
from provision.catalog.refresh.model import AbsentError, SourceError
from provision.catalog.refresh.pages import ACCEPT, Page, PageError, parse_page
from provision.catalog.refresh.remote import peek, read_metadata
from provision.catalog.refresh.threads import Threads, each
from provision.catalog.refresh.wheels import IndexMetadata, LinuxWheel, best_first, linux_wheels

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")
_FIX = "Check that the URL is a package index, and that no proxy intercepts it: --index URL"


class Index:
    """Pages and METADATA of one index. `name` may be shown to users: "PyPI", or its host."""

    def __init__(self, url: str, name: str, fetcher: PageFetcher, threads: Threads) -> None:
        self._url = fetcher.add_login(url).rstrip("/")
        self.name = name
        self.fetcher = fetcher
        self._threads = threads
        self._lock = threading.Lock()
        self._pages: dict[str, Future[Page]] = {}

    def prefetch(self, projects: Iterable[str]) -> None:
        """Start fetching these pages."""
        for project in projects:
            self._begin(project)

    def page(self, project: str) -> Page:
        """One project's page, "" the page above them. AbsentError: the index has no such project;
        SourceError: why it could not be read.
        """
        return self._begin(project).result()

    def pages(self, projects: Iterable[str], troubles: list[SourceError]) -> dict[str, Page]:
        """The pages that the index has of these projects, fetched in parallel; other errors become
        failures.
        """
        wanted = list(projects)
        self.prefetch(wanted)
        found = {project: self.page_or_none(project, troubles) for project in wanted}
        return {project: page for project, page in found.items() if page is not None}

    def page_or_none(self, project: str, troubles: list[SourceError]) -> Page | None:
        """One project's page. None: the index has no such project, or a failure says more."""
        try:
            return self.page(project)
        except AbsentError:
            return None
        except SourceError as error:
            troubles.append(error)
            return None

    def wheels(self, project: str) -> list[LinuxWheel]:
        """The wheels for Linux on one project's page."""
        return linux_wheels(self.page(project).files, project)

    def metadata(
        self, groups: Mapping[_Key, list[LinuxWheel]], troubles: list[SourceError]
    ) -> dict[_Key, tuple[LinuxWheel, IndexMetadata]]:
        """One METADATA per group of wheels of one build; those that cannot be read become
        failures.
        """
        return self.each(groups, lambda group: _first_readable(group, self.fetcher), troubles)

    def peek(self, wheel: LinuxWheel, *names: str) -> Mapping[str, bytes]:
        """Some files of a wheel, read with range requests."""
        return peek(wheel, names, self.fetcher)

    def each(
        self,
        items: Mapping[_Key, _Item],
        work: Callable[[_Item], _Done],
        troubles: list[SourceError],
    ) -> dict[_Key, _Done]:
        """Run a function on every item in parallel, and collect the failures."""
        return each(self._threads, items, work, troubles)

    def _begin(self, project: str) -> Future[Page]:
        with self._lock:
            if project not in self._pages:
                self._pages[project] = self._threads.submit(self._read, project)
            return self._pages[project]

    def _read(self, project: str) -> Page:
        return read_page(f"{self._url}/{project}/" if project else f"{self._url}/", self.fetcher)


def read_page(url: str, fetcher: PageFetcher) -> Page:
    """One page of an index. SourceError: unreachable, or no such page."""
    answer = fetcher.get(url, accept=ACCEPT, limit_bytes=fetcher.limits.page_bytes)
    try:
        return parse_page(answer.body, answer.headers.get("content-type", ""), answer.url)
    except PageError as error:
        raise SourceError(
            f"{url} did not answer with a page of a package index: {error}.", fix=_FIX
        ) from None


def _first_readable(
    wheels: list[LinuxWheel], fetcher: PageFetcher
) -> tuple[LinuxWheel, IndexMetadata]:
    """Two tries: the release stays readable if the METADATA of one Python's wheel is damaged."""
    first, *others = best_first(wheels)[:2]
    try:
        return first, read_metadata(first, fetcher)
    except SourceError as error:
        if error.silent or not others:
            raise
    return others[0], read_metadata(others[0], fetcher)
