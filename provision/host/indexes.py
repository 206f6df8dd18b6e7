"""What this machine's own configuration says of indexes: pip's, and the logins of a netrc file."""

from __future__ import annotations

import netrc
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from provision.host.runner import local_runner


def pip_index(env: Mapping[str, str]) -> str | None:
    """The index that pip is configured for; companies set it there, and uv does not read it."""
    if index := env.get("PIP_INDEX_URL"):
        return index
    pip = shutil.which("pip", path=env.get("PATH")) or shutil.which("pip3", path=env.get("PATH"))
    if pip is None:
        return None
    done = local_runner(env)([pip, "config", "get", "global.index-url"], 20)
    return done.out.strip() or None if done.ok else None


def netrc_logins(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Host -> (login, password) of $NETRC or ~/.netrc; {} if there is no readable one."""
    path = Path(env.get("NETRC") or Path(env.get("HOME") or os.sep) / ".netrc")
    try:
        found = netrc.netrc(path).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return {}
    return {host: (login or "", word or "") for host, (login, _, word) in found.items()}
