"""What this machine's own configuration says of indexes: pip's, and the logins of a netrc file."""

from __future__ import annotations

import ast
import functools
import netrc
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from images.errors import Failure
from images.system.ownership import changed_by_others
from images.system.process import which
from provision.errors import Exit
from provision.host.runner import local_runner

_ASK_S = 20.0
_ASKING = threading.Lock()


class ExposedConfigError(Failure):
    """Another user could change a configuration file that says where packages come from."""

    code = "exposed-config"
    exit_code = Exit.USAGE


def pip_index(env: Mapping[str, str]) -> str | None:
    """The index that pip is configured for; companies set it there, and uv does not read it."""
    if index := env.get("PIP_INDEX_URL"):
        return index
    with _ASKING:  # the first thread asks, the others get its answer
        index, files = _configured(tuple(sorted(env.items())))
    for file in files:
        refuse_exposed(file, env, "PIP_CONFIG_FILE")
    return index


@functools.lru_cache(maxsize=8)
def _configured(variables: tuple[tuple[str, str], ...]) -> tuple[str | None, tuple[Path, ...]]:
    """The index of pip's files, and these; (None, ()): none. pip takes up to a second to start, so
    it runs once in a command.
    """
    env = dict(variables)
    pip = which("pip", path=env.get("PATH")) or which("pip3", path=env.get("PATH"))
    if pip is None or env.get("PIP_CONFIG_FILE") == os.devnull:  # by which pip reads no file
        return None, ()
    done = local_runner(env)([pip, "config", "list", "--verbose"], _ASK_S)
    found = re.search(r"""^global\.index-url=('.+'|".+")$""", done.out, re.MULTILINE)
    if not done.ok or found is None:
        return None, ()
    files = re.findall(r"^For variant '(?:global|user)'.* '(.+)'$", done.out, re.MULTILINE)
    return str(ast.literal_eval(found[1])).strip() or None, tuple(map(Path, files))


def refuse_exposed(file: Path, env: Mapping[str, str], variable: str) -> None:
    """ExposedConfigError: another user could change a file that counts although nobody named it.

    One that a variable names is the caller's own choice; so is the home directory of another user.
    """
    home = Path(home_of(env))
    named = [env.get(variable), env.get("XDG_CONFIG_HOME")]
    named += (env.get("XDG_CONFIG_DIRS") or "").split(os.pathsep)
    try:
        if any(name and file.is_relative_to(name) for name in named):
            return
        if not file.is_file() or home.stat().st_uid not in {0, os.geteuid()}:
            return
        why = changed_by_others(file, home=home)
    except OSError:
        return
    if why:
        raise ExposedConfigError(
            f"{file} says where packages come from, and {why}.",
            fix=f"See what it says. To use it as it is: {variable}={file}; to ignore it: "
            + ("UV_NO_CONFIG=1" if variable.startswith("UV") else f"{variable}={os.devnull}"),
        )


def home_of(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  Path.home() may raise


def netrc_logins(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Host -> (login, password) of $NETRC or ~/.netrc; {} if there is no readable one."""
    path = Path(env.get("NETRC") or Path(env.get("HOME") or os.sep) / ".netrc")
    try:
        found = netrc.netrc(path).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return {}
    return {host: (login or "", word or "") for host, (login, _, word) in found.items()}
