"""What this machine's own configuration says of indexes: pip's, uv's, and the logins of a netrc
file; and where uv is started, so that it reads no other configuration.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from images.system.scratch import scratch_directory
from provision.host.runner import local_runner

# By these uv would search another directory than its working directory for configuration.
_ELSEWHERE = ("UV_PROJECT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY")


def pip_index(env: Mapping[str, str]) -> str | None:
    """The index that pip is configured for; companies set it there, and uv does not read it."""
    if index := env.get("PIP_INDEX_URL"):
        return index
    pip = shutil.which("pip", path=env.get("PATH")) or shutil.which("pip3", path=env.get("PATH"))
    if pip is None:
        return None
    done = local_runner(env)([pip, "config", "get", "global.index-url"], 20)
    return done.out.strip() or None if done.ok else None


@contextlib.contextmanager
def uv_directory() -> Iterator[Path]:
    """A scratch directory to start uv in. It reads the user's and the system's configuration there.

    uv also takes the nearest uv.toml or [tool.uv] of its working directory and of all directories
    above it, and before that the pyproject.toml of a project around it. Anybody may write to the
    directory for temporary files, so both searches end here, at empty files.
    """
    with scratch_directory() as made:
        for name in ("uv.toml", "pyproject.toml"):
            (made / name).touch()
        yield made


def uv_variables(env: Mapping[str, str]) -> dict[str, str | None]:
    """What to change in the environment (None: remove) of a uv in such a directory: nothing leads
    it elsewhere, and relative paths keep their meaning.
    """
    changed: dict[str, str | None] = dict.fromkeys(_ELSEWHERE)
    for name in ("UV_CONFIG_FILE", "UV_CACHE_DIR"):
        if path := env.get(name):
            changed[name] = os.path.abspath(path)  # noqa: PTH100  links are kept
    return changed


def netrc_logins(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Host -> (login, password) of $NETRC or ~/.netrc; {} if there is no readable one."""
    path = Path(env.get("NETRC") or Path(env.get("HOME") or os.sep) / ".netrc")
    try:
        found = netrc.netrc(path).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return {}
    return {host: (login or "", word or "") for host, (login, _, word) in found.items()}
