"""Which tags a repository has: OCI distribution's tag list, page after page.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md, "Listing Tags"
"""

from __future__ import annotations

import re
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from images.registry.auth import Login, read_login
from images.registry.client import RepositoryClient, parse_json_object
from images.registry.digest import within
from images.registry.errors import CONNECT_FIX, RegistryAnswerError, RegistryUnreachableError
from images.registry.http import Http, open_http
from images.registry.reference import Reference, parse_reference

MAX_TAGS = 200_000
_PAGE = 1000
_NEXT = re.compile(r"<([^>]{1,4000})>\s*;[^,]*\brel\s*=\s*\"?next\b", re.IGNORECASE)


def list_tags(
    repository: str | Reference,
    *,
    ca_bundle: Path | None = None,
    timeout_s: float = 30.0,
    http: Http | None = None,
    login: Callable[[], Login] | None = None,
) -> tuple[str, ...]:
    """Every tag of a repository such as "docker.io/nvidia/cuda", in the registry's order.

    `timeout_s` bounds the whole; `http` and `login` stand in for the network and docker's
    configuration. RegistryAnswerError: it does not answer like a registry, or never ends.
    """
    named = parse_reference(repository) if isinstance(repository, str) else repository
    parsed = replace(named, tag=None, digest=None)
    client = RepositoryClient(
        parsed,
        http or open_http(ca_bundle=ca_bundle, timeout_s=min(timeout_s, 10.0)),
        login or (lambda: read_login(parsed.registry)),
    )
    ends = time.monotonic() + timeout_s
    late = RegistryUnreachableError(
        f"The registry {parsed.registry} gave no full list of the tags of {parsed.repository} "
        f"within {timeout_s:g} s.",
        fix=CONNECT_FIX,
    )
    return within(timeout_s, lambda: _pages(client, ends, late), lambda: late)


def next_page(link: str) -> str | None:
    """The query of the next page, by the header Link; None: this was the last.

    Only the query is followed: a list does not lead to another host or repository.
    """
    found = _NEXT.search(link)
    try:
        return urllib.parse.urlsplit(found[1]).query or None if found else None
    except ValueError:
        return None


def _pages(
    client: RepositoryClient, ends: float, late: RegistryUnreachableError
) -> tuple[str, ...]:
    tags: dict[str, None] = {}
    query: str | None = f"n={_PAGE}"
    asked: set[str] = set()
    where = f"the tag list of {client.reference.registry}/{client.reference.repository}"
    while query is not None:
        if query in asked or len(tags) > MAX_TAGS:
            raise RegistryAnswerError(f"{where.capitalize()} does not end.", fix=CONNECT_FIX)
        if time.monotonic() > ends:
            raise late
        asked.add(query)
        answer = client.get(f"tags/list?{query}", "application/json")
        listed = parse_json_object(answer.body, where).get("tags")
        if listed is not None and not isinstance(listed, list):
            raise RegistryAnswerError(f"{where.capitalize()} is no list.", fix=CONNECT_FIX)
        tags |= dict.fromkeys(tag for tag in listed or () if isinstance(tag, str))
        query = next_page(answer.headers.get("link", ""))
    return tuple(tags)
