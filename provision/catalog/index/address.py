"""Finds the default package index: what pip or uv is configured for, else uv's own default.

No URL is hard-coded here: the default comes from uv, which is installed with this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from images.net.address import host_of
from images.system import process
from images.text.printable import printable
from provision.catalog.index.fetch import SourceError
from provision.host.indexes import pip_index
from provision.host.uv import uv_indexes

_FIX = "Name the index: --index https://HOST/simple"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An index. `url` may contain a login; `name` may be shown: "PyPI", or the host."""

    url: str
    name: str


def default_index(index: str | None, env: Mapping[str, str]) -> Address:
    """The named index; else the one that pip or uv would use, in the order that a lock uses.
    SourceError: there is none, or it is not on the network.
    """
    bare = {k: v for k, v in env.items() if not k.startswith(("UV_", "PIP_"))}
    builtin, problem = _ask_uv({**bare, "UV_NO_CONFIG": "1"})
    url = (
        index
        or env.get("UV_DEFAULT_INDEX")
        or env.get("UV_INDEX_URL")
        or pip_index(env)
        or _ask_uv(env)[0]
        or builtin
    )
    if url is None:
        raise SourceError(f"No package index is configured, and uv {problem}.", fix=_FIX)
    if not url.startswith(("https://", "http://")):
        raise SourceError(f"The package index {url[:100]!r} is not on the network.", fix=_FIX)
    known = builtin is not None and host_of(url) == host_of(builtin)
    return Address(url=url.rstrip("/"), name="PyPI" if known else host_of(url))


def _ask_uv(env: Mapping[str, str]) -> tuple[str | None, str]:
    """The default index of uv, and why there is none: "names none"."""
    try:
        found = uv_indexes({**env, "UV_NO_CACHE": "1"}).default  # a home may be read-only
    except process.CommandTimedOut:
        return None, "did not answer"
    except process.CommandFailed as error:
        said = printable(" ".join(error.detail.split()), limit=200).removesuffix(".")
        return None, f"failed: {said}" if said else "failed"
    except process.ToolMissing as error:
        return None, "cannot be started: " + error.message.removesuffix(".")
    return (found, "") if found else (None, "names none")
