"""uv: its program, where it is started so that it reads only the user's and the system's
configuration, and the indexes that these name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from images.net.address import usable_url
from images.system import process
from images.system.scratch import scratch_directory
from provision.host.indexes import home_of, netrc_logins, pip_index, refuse_exposed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# By these uv would search another directory than its working directory for configuration.
_ELSEWHERE = ("UV_PROJECT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY")
_ASK_S = 20.0
_ASKING = threading.Lock()
_FINDING = threading.Lock()
_LISTED = re.compile(r"^--(index-url|extra-index-url|find-links) (.+)$", re.MULTILINE)
_PORTS = {"http": 80, "https": 443}
# Of these variables each word is an index, which may have a name: corp=https://HOST/simple
_VARIABLES = ("UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_NAMED = re.compile(r"(?:([A-Za-z0-9._-]+)=)?(\S+)", re.DOTALL)


class UvIndexes(NamedTuple):
    """The indexes that uv uses here: the address of the default one, and every one that the
    environment and the configuration name, with the default one, as `plain_index` writes them.
    """

    default: str
    named: frozenset[str]


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
    it elsewhere, and relative paths keep their meaning. ExposedConfigError: another user could
    change a file that it reads.
    """
    changed: dict[str, str | None] = dict.fromkeys(_ELSEWHERE)
    for name in ("UV_CONFIG_FILE", "UV_CACHE_DIR"):
        if path := env.get(name):
            changed[name] = os.path.abspath(path)  # noqa: PTH100  links are kept
    for file in _uv_files(env):
        refuse_exposed(file, env, "UV_CONFIG_FILE")
    return changed


def uv_indexes(env: Mapping[str, str], *, offline: bool = False) -> UvIndexes:
    """The indexes of the environment and of each file that uv should read, as uv lists them when
    it searches for no other. uv reads pages of find-links for it, with `offline` from its cache.
    CommandFailed: it refuses one of them. ToolMissing: there is no uv.
    """
    times = tuple((file, file.stat().st_mtime_ns) for file in _uv_files(env))
    with _ASKING:  # the first thread asks, the others get its answer
        return _indexes(tuple(sorted(env.items())), times, offline=offline)


@functools.lru_cache(maxsize=32)
def _indexes(
    variables: tuple[tuple[str, str], ...], times: tuple[tuple[Path, int], ...], *, offline: bool
) -> UvIndexes:
    """The same for these variables, and the configuration files with the times of their change."""
    env, files = dict(variables), (None, *(file for file, _ in times))
    defaults, others = zip(*(_listed(env, file, offline=offline) for file in files), strict=True)
    # the environment's default index counts in all of them; else each lists its own, or uv's
    default = next((one for one in defaults[1:] if one != defaults[0]), defaults[0])
    named = {plain_index(default)} if default else set[str]()
    return UvIndexes(default, frozenset(named.union(*others)))


def index_logins(
    env: Mapping[str, str], names: Mapping[str, str], *more: str
) -> dict[str, tuple[str, str]]:
    """Host -> (login, password) for the user's indexes: from netrc; stronger, from uv's variables
    for an index of that name (`names`: name -> address, beside those of the configuration); and
    from the addresses of the configuration, of pip's, and `more`.
    https://docs.astral.sh/uv/concepts/indexes/#authentication
    """
    found = {host: login for host, login in netrc_logins(env).items() if login[1]}
    configured = [*names.items(), *_addresses(env), *(("", url) for url in more)]
    own: dict[str, tuple[str, str]] = {}
    for name, url in configured:
        variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
        login = (env.get(f"{variable}_USERNAME") or "", env.get(f"{variable}_PASSWORD") or "")
        try:
            parts = urlsplit(usable_url(url))
        except ValueError:
            continue
        if parts.hostname and parts.username is not None:
            own[parts.hostname] = unquote(parts.username), unquote(parts.password or "")
        elif parts.hostname and name and any(login):
            found[parts.hostname] = login
    return found | own


def _addresses(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The name, or "", and the address of each index that the configuration names; the default
    one is the last.
    """
    yield "", pip_index(env) or ""
    for file in reversed(_uv_files(env)):
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # uv says so
            continue
        for place in (document, document.get("pip")):
            yield from _addresses_in(place if isinstance(place, dict) else {})
    for variable in _VARIABLES:
        for word in re.split(r"[\s,]+" if "LINKS" in variable else r"\s+", env.get(variable) or ""):
            if read := _NAMED.fullmatch(word):
                yield read[1] or "", read[2]


def _addresses_in(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("find-links", "extra-index-url", "index-url"):
        said = table.get(key)
        yield from (("", str(url)) for url in (said if isinstance(said, list) else [said]) if url)
    rows = table.get("index")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            yield str(row.get("name") or ""), str(row.get("url") or "")


@functools.cache
def builtin_index() -> str:
    """The index that uv uses where nothing is configured, PyPI's, as `plain_index` writes it."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_"))}
    return plain_index(uv_indexes({**bare, "UV_NO_CONFIG": "1", "UV_NO_CACHE": "1"}).default)


def plain_index(address: str, base: Path = Path("/")) -> str:
    """The address of an index in one spelling: without login, fragment and slash at its end, with
    no port where it is the usual one; that of a directory, from `base`, as a file's URL.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return address
    if parts.scheme not in {"http", "https", "file"}:
        parts = urlsplit((base / address).as_uri())
    path = unquote(parts.path).rstrip("/")
    if parts.scheme == "file":
        return f"file://{os.path.normpath(path or '/')}"
    host = (
        f"{parts.hostname}:{port}" if port not in {None, _PORTS[parts.scheme]} else parts.hostname
    )
    return f"{parts.scheme}://{host}{path}{f'?{parts.query}' if parts.query else ''}"


def uv_program() -> str:
    """uv's own binary, which comes with this package."""
    from uv import find_uv_bin

    try:
        with _FINDING:  # Python before 3.13 reads its configuration for it, not safe in threads
            return os.fspath(find_uv_bin())
    except FileNotFoundError as error:
        raise process.ToolMissing(
            "uv is installed but its executable is missing.",
            fix="Reinstall gpu-provision: python3 -m pip install --force-reinstall uv",
        ) from error


def _listed(env: Mapping[str, str], file: Path | None, *, offline: bool) -> tuple[str, list[str]]:
    """The default index of the environment and one configuration file, and the others."""
    argv = [uv_program(), "pip", "compile", "-", "--quiet", "--no-header"]
    argv += ["--emit-index-url", "--emit-find-links", *(["--offline"] if offline else [])]
    if sys.executable:  # else uv looks for one on PATH, and there may be none
        argv += ["--python", sys.executable]
    argv += ["--no-config"] if file is None else ["--config-file", str(file)]
    variables = {**env, **uv_variables(env), "UV_CONFIG_FILE": None}
    with uv_directory() as place:
        done = process.run(
            argv,
            timeout_s=_ASK_S,
            env=variables,
            inherit_env=False,
            input="",
            cwd=place,
            apart=True,
            check=True,
            fix="Correct what uv names above.",
        )
    rows = _LISTED.findall(done.stdout)
    base = file.parent if file is not None else Path("/")
    default = next((address for option, address in rows if option == "index-url"), "")
    return default, [
        plain_index(address, base) for option, address in rows if option != "index-url"
    ]


def _uv_files(env: Mapping[str, str]) -> list[Path]:
    """The configuration files that uv reads in a `uv_directory`, the strongest first.
    https://docs.astral.sh/uv/concepts/configuration-files/
    """
    if named := env.get("UV_CONFIG_FILE"):
        return [Path(os.path.abspath(named))]  # noqa: PTH100  links are kept
    if (env.get("UV_NO_CONFIG") or "").lower() in {"1", "t", "true", "y", "yes", "on"}:
        return []
    own = env.get("XDG_CONFIG_HOME") or f"{home_of(env)}/.config"
    shared = (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    system = [*(Path(place, "uv/uv.toml") for place in shared if place), Path("/etc/uv/uv.toml")]
    found = [Path(own, "uv/uv.toml"), *[path for path in system if path.is_file()][:1]]
    return [path for path in found if path.is_file()]
