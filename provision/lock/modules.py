"""The top-level modules that the wheels of a lock have, from the directories of their zips.

Of a wheel on a server only its directory is read, and kept as a fact of the wheel.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from images.errors import Failure
from images.inspect.archive import WheelArchive
from images.inspect.remote import open_url
from images.inspect.source import open_file
from images.store.local import local_path
from provision.lock.facts import WheelFacts
from provision.lock.lockfile import Lock

_WAIT_S = 15.0
_THREADS = 8
_SUFFIXES = (".py", ".so", ".pyd")


class LockedModules(NamedTuple):
    """The names of modules, and the packages whose wheels could not be read."""

    names: frozenset[str]
    unread: tuple[str, ...]


def modules_of(
    lock: Lock, state: Path | None, *, ca_bundle: Path | None, offline: bool
) -> LockedModules:
    """The modules of all wheels. `state`: the directory with the store that keeps facts."""
    facts = WheelFacts(state)
    facts.learn(lock.text)
    of_server = {wheel.url: wheel.name for wheel in lock.wheels if not local_path(wheel.url)}

    def fetch(urls: list[str]) -> dict[str, dict[str, object]]:
        if offline:
            return {}
        with ThreadPoolExecutor(_THREADS) as threads:
            found = zip(urls, threads.map(lambda url: _remote(url, ca_bundle), urls), strict=True)
            return {url: {"modules": sorted(names)} for url, names in found if names is not None}

    known = facts.of("modules", of_server, fetch)
    names = {str(name) for fact in known.values() for name in fact.get("modules") or ()}
    unread = [name for url, name in of_server.items() if url not in known]
    for wheel in lock.wheels:
        if path := local_path(wheel.url):
            here = _local(path)
            names |= here or frozenset()
            unread += [wheel.name] if here is None else []
    return LockedModules(frozenset(names), tuple(sorted(unread)))


def modules_in(members: Iterable[str]) -> frozenset[str]:
    """The modules and packages at the top of a wheel, by the names of its members."""
    found = set()
    for member in members:
        top, _, rest = member.partition("/")
        if top.endswith(".data"):
            scheme, _, member_ = rest.partition("/")
            if scheme not in {"purelib", "platlib"}:
                continue
            top, _, rest = member_.partition("/")
        if top.endswith(".dist-info"):
            continue
        if rest:
            found.add(top)
        elif top.endswith(_SUFFIXES):
            found.add(top.partition(".")[0])
    return frozenset(found)


def _remote(url: str, ca_bundle: Path | None) -> frozenset[str] | None:
    try:
        source = open_url(url, ca_bundle=ca_bundle, patience_s=_WAIT_S, parts_only=True)
    except Failure:
        return None
    try:
        return modules_in(WheelArchive(source).members)
    except Failure:
        return None
    finally:
        source.close()


def _local(path: Path) -> frozenset[str] | None:
    try:
        source = open_file(str(path))
        return modules_in(WheelArchive(source).members)
    except Failure:
        return None
