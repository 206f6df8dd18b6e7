"""Which files of a project hold secrets: by their name, or by a key, token or login in them.

The names are in `data/secret_names.json`, the formats of tokens in `images/text/tokens.py`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from images.layers.own_errors import ProjectFilesError
from images.net.address import LOGIN, QUERY, is_loopback
from images.text.data import data_table
from images.text.tokens import FoundSecret, find_tokens, is_placeholder, line_at
from provision.sources.files import is_file

MOST_BYTES = 1 << 20
"""The largest file that is searched for secrets; no source or setting is larger."""
_MOST_PEM = 4 << 20
_MOST_NAMED = 8
_LEAST_LOGIN = 8
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,60})-----")
# Files that package managers read: an address in them is one that is used.
_DECLARES = re.compile(
    r".*(requirements|constraints).*\.(txt|in)|pyproject\.toml|uv\.(toml|lock)|pylock(\..*)?\.toml"
    r"|environment\.ya?ml|pixi\.(toml|lock)|poetry\.(toml|lock)|pipfile(\.lock)?|\.condarc"
)
_WHEEL_QUERY = re.compile(r"[^\s?#]*\.whl\?\S*=[^&\s]{8}")
_VARIABLE = re.compile(r"[${}<>%*]")
_NO_HOST = re.compile(r"[^.]*|.*\.?example(\.\w+)?|.*\.(invalid|test|local)", re.IGNORECASE)


class ProjectSecretError(ProjectFilesError):
    """A file that would be in the image holds a key, a token or a login."""

    code = "project-secret"


_names = data_table(__file__, "secret_names.json")


@cache
def _any_of(key: str) -> re.Pattern[str]:
    """Any of the names under a key, at the end of a path in lower case."""
    names = "|".join(map(fnmatch.translate, _names()[key]))
    return re.compile(f"(?:.*/)?(?:{names})", re.DOTALL)


def is_secret(parts: Sequence[str], path: Path, *, directory: bool) -> bool:
    """Whether a file of a project, or all of a directory, is secret by its name: its relative path
    in parts, and where it is.
    """
    name = "/".join(parts).lower()
    if directory:
        return _any_of("directories").match(name) is not None
    copy = next((one for one in _names()["copies"] if name.endswith(one)), "")
    name = name[: len(name) - len(copy)]
    if _any_of("not").match(name):
        return False
    if _any_of("unless_public").match(name):
        return not _is_public(path)
    return _any_of("names").match(name) is not None


def _is_public(path: Path) -> bool:
    """Whether a file has certificates or public keys, and nothing private."""
    if not is_file(path):
        return False
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_PEM)
    except OSError:
        return False
    labels = _PEM.findall(content)
    return bool(labels) and not any(b"PRIVATE" in label for label in labels)


def secrets_in(content: bytes, name: str) -> Iterator[FoundSecret]:
    """The keys, tokens and logins in a file of this name; other than texts have none."""
    if b"\0" in content:
        return
    found = (*find_tokens(content), *_addresses(content, name))
    yield from {token.line: token for token in reversed(found)}.values()


def _addresses(content: bytes, name: str) -> Iterator[FoundSecret]:
    if b"://" not in content:
        return
    text = content.decode("utf-8", "replace")
    declares = _DECLARES.fullmatch(name.lower()) is not None
    for start in re.finditer("://", text):
        found = LOGIN.match(text, start.end())
        if found and _is_login(found[0][:-1], text[found.end() :][:100], declares=declares):
            yield FoundSecret(line_at(text, start.start()), "an address with a login")
        elif declares and _has_signature(text, start.end()):
            yield FoundSecret(line_at(text, start.start()), "a signed address")


def _has_signature(text: str, start: int) -> bool:
    """Whether the address of a wheel has a query with a long value, which no variable gives."""
    query = QUERY.match(text, start)
    return bool(query and _WHEEL_QUERY.match(query[0]) and not _VARIABLE.search(query[0]))


def _is_login(login: str, behind: str, *, declares: bool) -> bool:
    """Whether a login is one that opens something. Documentation has many that do not; in a file
    that package managers read a password counts, unless a variable stands for it.
    """
    user, _, password = login.partition(":")
    word = password or user
    if not word or _VARIABLE.search(login) or (declares and password):
        return bool(word) and not _VARIABLE.search(login)
    host = re.split(r"[/:\s\"'?#]", behind, maxsplit=1)[0]
    kinds = [re.search(kind, word) for kind in (r"[a-z]", r"[A-Z]", r"\d", r"[^\w]")]
    return (
        len(word) >= (_LEAST_LOGIN if password else 2 * _LEAST_LOGIN)
        and sum(map(bool, kinds)) > 1
        and not is_placeholder(word)
        and "pass" not in word.lower()
        and not is_loopback(host)
        and _NO_HOST.fullmatch(host) is None
    )


def secret_error(found: Sequence[tuple[str, FoundSecret]]) -> ProjectSecretError:
    """The error for files and what is in them: where, never what."""
    named = [f"{path}, line {token.line}, has {token.kind}" for path, token in found]
    more = len(named) - _MOST_NAMED
    said = "; ".join(named[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    first = found[0][0]
    return ProjectSecretError(
        f"The image would have secrets in it: {said}.",
        fix="Remove them, and give them to the image when it runs. A file that the image does not "
        f"need can stay out: echo '{first}' >> .dockerignore. A file that holds no secret is "
        f"admitted by its name: echo '!{first}' >> .dockerignore",
    )
