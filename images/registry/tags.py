"""Lists the tags of a repository: OCI distribution's tag list, page by page.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md, "Listing Tags"
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from images.net.http import HttpClient
from images.oci.reference import Reference, parse_reference
from images.registry.answers import parse_json_object
from images.registry.auth import Login
from images.registry.errors import CONNECT_FIX, RegistryAnswerError
from images.registry.session import RepositorySession, ask_within

MAX_TAGS = 200_000
_PAGE = 1000
_NEXT = re.compile(r"<([^>]{1,4000})>\s*;[^,]*\brel\s*=\s*\"?next\b", re.IGNORECASE)


def list_tags(
    repository: str | Reference,
    *,
    ca_bundle: Path | None = None,
    timeout_s: float = 30.0,
    login: Callable[[], Login] | None = None,
    client: HttpClient | None = None,
) -> tuple[str, ...]:
    """Every tag of a repository such as "docker.io/nvidia/cuda", in the registry's order.

    `timeout_s` limits the whole call; `login` replaces docker's configuration, and `client` has
    open connections to reuse. RegistryAnswerError: it does not answer like a registry, or the list
    never ends.
    """
    named = parse_reference(repository) if isinstance(repository, str) else repository
    parsed = replace(named, tag=None, digest=None)
    return ask_within(
        timeout_s,
        parsed,
        _pages,
        what=f"list of the tags of {parsed.repository}",
        ca_bundle=ca_bundle,
        login=login,
        client=client,
    )


def next_page(link: str) -> str | None:
    """The query of the next page, from the Link header; None: this was the last.

    Only the query is followed: a list does not lead to another host or repository.
    """
    found = _NEXT.search(link)
    try:
        return urllib.parse.urlsplit(found[1]).query or None if found else None
    except ValueError:
        return None


def _pages(session: RepositorySession) -> tuple[str, ...]:
    tags: dict[str, None] = {}
    query: str | None = f"n={_PAGE}"
    asked: set[str] = set()
    where = f"the tag list of {session.reference.registry}/{session.reference.repository}"
    while query is not None:
        if query in asked or len(tags) > MAX_TAGS:
            raise RegistryAnswerError(f"{where.capitalize()} does not end.", fix=CONNECT_FIX)
        asked.add(query)
        reply = session.request("GET", f"tags/list?{query}", what="list its tags")
        if reply.status != 200:
            raise session.refusal(reply, "list its tags")
        listed = parse_json_object(reply.body, where).get("tags")
        if listed is not None and not isinstance(listed, list):
            raise RegistryAnswerError(f"{where.capitalize()} is not a list.", fix=CONNECT_FIX)
        tags |= dict.fromkeys(tag for tag in listed or () if isinstance(tag, str))
        query = next_page(reply.headers.get("link", ""))
    return tuple(tags)
