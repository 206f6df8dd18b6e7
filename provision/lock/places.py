"""Where uv looks for packages beside the plan's index: the places that a project declares, and
which of them are pages of links.

A mirror may serve a directory listing, made for pip's --find-links: it has links to wheels, and no
page for each package as an index has (PEP 503). uv must be given such a page as find-links.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from images.errors import Failure
from images.net.address import shown_url
from images.net.errors import BrokenOff
from images.net.http import HttpClient
from images.net.logins import authorization
from images.net.retries import Retries
from provision.errors import IndexUnreachableError
from provision.host.uv import index_logins
from provision.lock.network import no_such_host
from provision.model.plan import DeclaredIndex, Request

_WHEEL_LINK = re.compile(rb"""href\s*=\s*["']?[^"'>]*\.whl\b""", re.IGNORECASE)
_MOST_BYTES = 1 << 20
_WAIT_S = 10.0
_MOST_NAMED = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # what uv takes for the name of an index


def is_listing(url: str, ca_bundle: Path | None) -> bool:
    """Whether an address is a page of links to wheels; False: an index, or it does not answer."""
    return page_has_wheels(url, ca_bundle) is True


def uv_places(
    index: str | None,
    declared: Iterable[DeclaredIndex],
    env: Mapping[str, str],
    *,
    ca_bundle: Path | None,
    offline: bool,
) -> dict[str, str]:
    """uv's variables for an index and the places that a project declares, in this order, before
    those that the environment names. The default index of the environment is kept.
    """
    indexes, links, default = [], [], ""
    asked = [DeclaredIndex(index, "index")] if index else []
    for one in (*asked, *(place for place in declared if place.kind != "silent")):
        if one.kind == "links" or _is_page(one.url, ca_bundle, offline=offline):
            links.append(one.url.replace(",", "%2C"))
        elif one.kind == "index":
            indexes.append(f"{one.name}={one.url}" if _NAME.fullmatch(one.name) else one.url)
        else:
            default = default or one.url
    found = {}
    if indexes:
        found["UV_INDEX"] = " ".join([*indexes, *(env.get("UV_INDEX") or "").split()])
    if links:
        known = env.get("UV_FIND_LINKS")
        found["UV_FIND_LINKS"] = ",".join([*links, *([known] if known else [])])
    if default and not _default_of(env):
        found["UV_DEFAULT_INDEX"] = default
    return found


def with_silent_pages(request: Request, ca_bundle: Path | None) -> Request:
    """The request; pages of links that do not answer are silent. What a project needs may be
    elsewhere, too, and pip goes on without them.
    """
    indexes = tuple(
        one._replace(kind="silent")
        if one.kind == "links" and page_has_wheels(one.url, ca_bundle) is None
        else one
        for one in request.indexes
    )
    return request._replace(indexes=indexes) if indexes != request.indexes else request


def _is_page(url: str, ca_bundle: Path | None, *, offline: bool) -> bool:
    if not url.startswith(("http://", "https://")):
        path = Path(urlsplit(url).path if url.startswith("file:") else url)
        return any(path.glob("*.whl"))
    if urlsplit(url).path.endswith((".html", ".htm")):
        return True
    return not offline and is_listing(url, ca_bundle)


def server_answers(url: str, *, ca_bundle: Path | None) -> bool:
    """Whether the server of an address answers, whatever it says."""
    if no_such_host(url) is not None:
        return False
    retries = Retries(connect_s=_WAIT_S, answer_s=_WAIT_S, tries=1)
    try:
        with contextlib.closing(HttpClient(ca_bundle=ca_bundle, retries=retries)) as client:
            client.send("HEAD", url)
    except (BrokenOff, Failure, ValueError, OSError):
        return False
    return True


@functools.lru_cache(maxsize=32)
def page_has_wheels(url: str, ca_bundle: Path | None) -> bool | None:
    """Whether a page has links to wheels, in its first MiB; None: there is no page."""
    retries = Retries(connect_s=_WAIT_S, answer_s=_WAIT_S, tries=1)
    logins, own, seen = index_logins(os.environ, {}), urlsplit(url).hostname, b""

    def login(target: str) -> Mapping[str, str]:
        return authorization(url if urlsplit(target).hostname == own else target, logins)

    try:
        client = HttpClient(ca_bundle=ca_bundle, retries=retries)
        with client.open("GET", url, {"Accept": "text/html"}, login=login) as answer:
            if answer.status != 200:
                return None
            for piece in answer.pieces():
                seen += piece
                if _WHEEL_LINK.search(seen):
                    return True
                if len(seen) > _MOST_BYTES:
                    break
        client.close()
    except (BrokenOff, Failure, ValueError, OSError):
        return None
    return False


def refuse_silent(request: Request, env: Mapping[str, str]) -> None:
    """IndexUnreachableError: the host of an index that a project names has no address."""
    for one in request.indexes:
        used = one.kind == "index" or (one.kind == "default" and not _default_of(env))
        if used and (why := no_such_host(one.url)):
            raise _silent_index(one, why, request)


def _default_of(env: Mapping[str, str]) -> str | None:
    return env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL")


@contextlib.contextmanager
def naming_silent(request: Request) -> Iterator[None]:
    """Add the pages that did not answer to a refusal: they may have what is missing."""
    try:
        yield
    except Failure as failure:
        silent = [one for one in request.indexes if one.kind == "silent"]
        lacks = failure.code in {"no-solution", "source-only"}
        if lacks and silent and silent[0].url not in failure.message:
            pages = " and ".join(f"{shown_url(one.url)} ({one.where})" for one in silent)
            failure.message += f" Not asked, as it does not answer: {pages}."
        raise


def _silent_index(place: DeclaredIndex, why: str, request: Request) -> IndexUnreachableError:
    """The error for an index that a project names and that does not answer: a package that is on it
    must not be taken from another one under its name.
    """
    asked = ", ".join(line.partition(" ;")[0] for line in request.companions[:_MOST_NAMED])
    return IndexUnreachableError(
        f"{shown_url(place.url)}, which {place.where} names, could not be reached: {why}."
        + (f" It may have {asked}." if asked else ""),
        fix="Check the network and the proxy. If no package is from there, remove the line.",
    )
