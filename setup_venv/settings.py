"""How pip is configured to reach packages on this machine: pip.conf, PIP_* variables, netrc.

pip's documentation: https://pip.pypa.io/en/stable/topics/configuration/.
"""

from __future__ import annotations

import configparser
import contextlib
import locale
import netrc
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from setup_venv.errors import SetupError

# The settings for reaching packages. No others apply to .venv: where to install (target, user,
# prefix) and what to install (constraint, pre, no-binary) were set for other environments.
CONNECTION = frozenset({
    "cache-dir", "cert", "client-cert", "default-timeout", "extra-index-url", "find-links",
    "index-url", "keyring-provider", "no-cache-dir", "no-index", "no-proxy-env", "proxy",
    "resume-retries", "retries", "timeout", "trusted-host",
})  # fmt: skip

GLOBAL_FILE = Path("/etc/pip.conf")

Login = tuple[str, str]
Origin = tuple[str, str, int | None]


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of `pip install`, by name ("index-url"); without empty values.

    [install] overrides [global], a variable overrides both, a later file an earlier one. Raises
    SetupError for a file that cannot be parsed.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        parser.optionxform = _setting_name  # type: ignore[assignment,method-assign]
        try:
            parser.read(path, encoding=locale.getpreferredencoding(do_setlocale=False))
        except (configparser.Error, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise SetupError(
                f"pip's configuration file {path} is malformed: {reason}",
                f"Correct {path}, or ignore all such files: PIP_CONFIG_FILE={os.devnull} ./run ...",
            ) from error
        for name, found in sections.items():
            found.update(parser.items(name) if parser.has_section(name) else ())
    variables = {
        _setting_name(name[4:]): value
        for name, value in environ.items()
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE"
    }
    layers = (*sections.values(), variables)
    return {name: value for layer in layers for name, value in layer.items() if value}


def _setting_name(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """The files that pip reads, weakest first; PIP_CONFIG_FILE replaces the user's files."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    found = [*(Path(place) / "pip/pip.conf" for place in shared if place), GLOBAL_FILE]
    if not (named and Path(named).exists()):
        home = _home(environ)
        own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        found += [home / ".pip/pip.conf", own / "pip/pip.conf"]
    found.append(Path(sys.prefix) / "pip.conf")
    return [*found, Path(named)] if named else found


def _home(environ: Mapping[str, str]) -> Path:
    # Path.home() raises for a user without an entry in /etc/passwd, as in many containers.
    return Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111


def is_on(value: str | None) -> bool:
    """Whether a setting like no-index is on."""
    return (value or "").lower() in {"y", "yes", "t", "true", "on", "1"}


def number(settings: Mapping[str, str], names: Sequence[str], default: float) -> float:
    """The first of these settings that is set. Raises SetupError if it is not a number."""
    for name in names:
        if name in settings:
            try:
                return float(settings[name])
            except ValueError:
                variable = f"PIP_{name.upper().replace('-', '_')}"
                raise SetupError(
                    f"pip's setting {name} is not a number: {settings[name]!r}",
                    f"Correct {name} in pip.conf, or {variable}.",
                ) from None
    return default


def public_index() -> str | None:
    """The default index, if none is configured.

    pip knows it, but is not installed yet. The header of the standard library's unittest.mock has
    the address of its page there (CPython 3.10 to 3.15, PyPy).
    """
    try:
        text = (Path(os.__file__).parent / "unittest/mock.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^# (https://[^/\s]+)/project/mock\b", text, re.MULTILINE)
    return f"{found[1]}/simple" if found else None


def pages_of(project: str, settings: Mapping[str, str]) -> list[str]:
    """URLs of the pages that may list a project's files, in the order to try them."""
    found = [as_url(place, "find-links") for place in settings.get("find-links", "").split()]
    if is_on(settings.get("no-index")):
        return found
    index = settings.get("index-url") or public_index()
    if index is None and not found:
        raise SetupError(
            "No package index is configured.",
            "Name one: PIP_INDEX_URL=https://HOST/simple ./run ...",
        )
    indexes = [as_url(index, "index-url")] if index else []
    indexes += [
        as_url(place, "extra-index-url") for place in settings.get("extra-index-url", "").split()
    ]
    return found + [f"{index.rstrip('/')}/{project}/" for index in indexes]


def as_url(place: str, setting: str) -> str:
    """A URL or path from a setting, as a URL. Raises SetupError, which does not show a login."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", place):
        return Path(place).expanduser().absolute().as_uri()
    try:
        origin_of(place)
    except ValueError:
        raise SetupError(
            f"pip's setting {setting} is not a valid URL.",
            f"Correct {setting} in pip.conf, or PIP_{setting.upper().replace('-', '_')}.",
        ) from None
    return place


def origin_of(url: str) -> Origin:
    """The scheme, host and port that a login is for. Raises ValueError for a malformed URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def login_in(url: str) -> Login | None:
    """The login of https://USER:PASSWORD@HOST/."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")


def logins(settings: Mapping[str, str]) -> dict[Origin, Login]:
    """The logins in the configured URLs, which are also for other URLs of the same server."""
    urls = [
        as_url(url, name)
        for name in ("extra-index-url", "find-links", "index-url")
        for url in settings.get(name, "").split()
    ]
    return {origin_of(url): login for url in urls if (login := login_in(url))}


def netrc_logins(environ: Mapping[str, str]) -> dict[str, Login]:
    """Host -> login from $NETRC, ~/.netrc or ~/_netrc; {} if none can be read."""
    named = environ.get("NETRC")
    home = _home(environ)
    for path in [Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        with contextlib.suppress(OSError, UnicodeDecodeError, netrc.NetrcParseError):
            hosts = netrc.netrc(path).hosts
            return {host: (login or "", word or "") for host, (login, _, word) in hosts.items()}
    return {}


def pip_environment(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for pip: the settings for reaching packages, none for other environments."""
    kept = {name: v for name, v in environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    ours = {
        f"PIP_{name.upper().replace('-', '_')}": value
        for name, value in settings.items()
        if name in CONNECTION
    }
    fixed = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {**kept, **ours, **fixed, "PIP_NO_INPUT": "1", "NO_COLOR": "1"}
