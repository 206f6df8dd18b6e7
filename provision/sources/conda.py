"""What conda and pixi install, as far as pip can: packages that surely are the same on PyPI.

The names are in `data/conda.json`. Compilers, libraries and programs are not Python packages: they
are left out. A package whose name on PyPI is not certain is missing.
https://docs.conda.io/projects/conda/en/latest/user-guide/concepts/pkg-specs.html
https://pixi.sh/latest/reference/pixi_manifest/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from images.text.data import data_table
from images.text.printable import printable
from provision.model.environment import MOST_CHARACTERS, is_wheel_url
from provision.sources.declaration import (
    Declaration,
    Declared,
    Lacking,
    read_python,
    read_requirement,
    together,
    why_missing,
)
from provision.sources.errors import ProjectError
from provision.sources.files import (
    line_of,
    listed,
    public,
    read_text,
    read_toml,
    shown,
    table,
)
from provision.sources.packages import repository_url
from provision.sources.requirements import pip_lines
from provision.sources.yaml import read_yaml

_SPEC = re.compile(r"(?:(?P<channel>[\w./-]+)::)?(?P<name>[\w.-]+)\s*(?P<version>.*)")
_PLATFORMS = {
    "unix": "",
    "linux": "",
    "linux-64": " ; platform_machine == 'x86_64'",
    "linux-aarch64": " ; platform_machine == 'aarch64'",
}
"""The platforms of pixi that an image may have."""
_YAML_BYTES = 1 << 18  # YAML takes seconds to parse more
_RELEASE = r"\d+(?:\.\d+)*(?:\.?(?:a|b|rc|post|dev)\d+)?"


@dataclass(frozen=True, slots=True)
class CondaSpec:
    """A package of conda: its name in lower case, and its version as it is written (">=1.2", "=1.24
    py310_0"), "" for any. `channel` is None if the file's channels are asked in their order.
    """

    name: str
    version: str = ""
    channel: str | None = None


def read_spec(text: str) -> CondaSpec | None:
    """ "conda-forge::numpy=1.24"; None: it is malformed."""
    match = _SPEC.fullmatch(text.strip()) if len(text) <= MOST_CHARACTERS else None
    if match is None:
        return None
    return CondaSpec(match["name"].lower(), match["version"], match["channel"])


@dataclass
class _Found:
    name: str
    packages: list[Declared] = field(default_factory=list)
    python: Declared | None = None
    cuda: Declared | None = None
    missing: list[Lacking] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


_data = data_table(__file__, "conda.json")


def looks_like_environment(text: str) -> bool:
    """Whether a text has the two keys that every file of conda has, at the left margin."""
    return all(
        re.search(rf"^{key}:", text, re.MULTILINE) for key in ("dependencies", "channels")
    ) and not re.search(r"^services:", text, re.MULTILINE)


def read_environment(path: Path, root: Path) -> Declaration:
    """What an environment.yml declares, for conda and for pip. ProjectError: it is invalid."""
    name = shown(path, root)
    document = read_yaml(name, read_text(path, root, limit=_YAML_BYTES), kind="environment file")
    listed_ = document.get("dependencies") if document is not None else None
    found = _Found(name)
    by_pip: list[tuple[str, int]] = []
    for node in listed_.items() if listed_ is not None else ():
        if node.text is not None:
            _conda(node.text, found, node.at.line)
        elif (pip := node.get("pip")) is not None:
            by_pip += [
                (one.text.replace("\n", " "), one.at.line) for one in pip.items() if one.text
            ]
    return _whole(found, pip_lines(by_pip, name, root))


def read_pixi(path: Path, root: Path) -> Declaration:
    """What a pixi.toml declares. ProjectError: it is invalid."""
    name = shown(path, root)
    text = read_text(path, root)
    document = read_toml(text, name)
    for key in ("dependencies", "pypi-dependencies"):
        if not isinstance(document.get(key, {}), dict):
            raise ProjectError(
                f"{name}: {key} is not a table.", fix=f"Write [{key}] and one package a line."
            )
    found = _Found(name)
    itself = False
    for one, marker in _pixi_tables(document, found):
        for key, said in table(one, "dependencies").items():
            version = said.get("version", "*") if isinstance(said, dict) else said
            line = line_of(text, rf"[\"']?{re.escape(key)}[\"']?\s*=")
            _conda(f"{key} {version}", found, line, exact=True, marker=marker)
        for key, said in table(one, "pypi-dependencies").items():
            line = line_of(text, rf"[\"']?{re.escape(key)}[\"']?\s*=")
            if isinstance(said, dict) and said.get("path") in {".", "./"}:
                itself = True
                continue
            _pypi(key, said if isinstance(said, dict) else {"version": said}, found, line, marker)
    return _whole(found, Declaration(source=name, itself=itself))


def _pixi_tables(
    document: Mapping[str, Any], found: _Found
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The tables of the environment "default" on Linux, each with the marker of its platform.
    https://pixi.sh/latest/workspace/multi_environment/
    """
    default = table(document, "environments").get("default")
    row = default if isinstance(default, dict) else {"features": default}
    names = [one for one in listed(row.get("features")) if isinstance(one, str)]
    base = [] if row.get("no-default-feature") is True else [document]
    for one in [*base, *(table(document, "feature", name) for name in names)]:
        yield one, ""
        for platform, marker in _PLATFORMS.items():
            yield table(one, "target", platform), marker
    if others := [one for one in table(document, "feature") if one not in names]:
        few = ", ".join(printable(one, limit=30) for one in others[:6])
        found.left_out.append(f"feature{'s' if len(others) > 1 else ''} {few} ({found.name})")


def _pypi(key: str, row: Mapping[str, Any], found: _Found, line: int, marker: str) -> None:
    at = Declared("", found.name, line)
    extras = ",".join(map(str, listed(row.get("extras"))))
    written = f"{key}{f'[{extras}]' if extras else ''}"
    url, version = row.get("url"), row.get("version", "*")
    repository = repository_url(row)
    if repository and not why_missing(key, repository):
        written += f" @ {repository}"
    elif isinstance(url, str) and is_wheel_url(url):
        written += f" @ {url}"
    elif {"git", "path", "url"} & {*row} or not isinstance(version, str):
        name = canonicalize_name(printable(key, limit=60))
        found.missing.append(Lacking(name, name, at.file, line, "not a release of an index"))
        return
    elif version.strip() != "*":
        written += version if version.strip()[:1] in "=<>!~" else f"=={version}"
    declared = read_requirement(f"{written}{marker}", found.name, line)
    found.packages += [declared] if declared is not None else []


def _whole(found: _Found, pip: Declaration) -> Declaration:
    own = Declaration(
        source=found.name,
        packages=tuple(found.packages),
        python=found.python,
        missing=tuple(found.missing),
        left_out=tuple(found.left_out),
    )
    return replace(together(found.name, own, pip), cuda=pip.cuda or found.cuda)


def _conda(text: str, found: _Found, line: int, *, exact: bool = False, marker: str = "") -> None:
    """Take one package of conda, if it is certain what it is. `exact`: a bare version is not a
    beginning ("1.2" is 1.2, as pixi reads it).
    """
    spec = read_spec(text)
    at = Declared("", found.name, line)
    name = spec.name if spec else ""
    if name in _data()["tools"]:
        return
    specifier = conda_specifier(spec.version, exact=exact) if spec else None
    if specifier is not None and name == "python":
        found.python = read_python(specifier, found.name, line)
        return
    if specifier is not None and name in _data()["cuda"]:
        release = re.match(r"[=~>]*=?\s*(\d+\.\d+)", specifier)
        if release is not None and specifier[:1] in "=~":
            found.cuda = at._replace(text=release[1])
            return
    pypi = on_pypi(name)
    if pypi is None and _is_no_python_package(name):
        found.left_out.append(f"{public(text, 60)} ({at.where}; no Python package)")
        return
    if pypi is None or specifier is None:
        why = "a package of conda" if pypi is None else "a version in conda's notation"
        shown_ = name or printable(text, limit=60)
        found.missing.append(Lacking(shown_, public(text, 60), at.file, line, why))
        return
    declared = read_requirement(f"{pypi}{specifier}{marker}", found.name, line)
    found.packages += [declared] if declared is not None else []


def on_pypi(name: str) -> str | None:
    """The project of PyPI from which conda-forge builds this package; None: unknown."""
    renamed: str | None = _data()["pypi"].get(name)
    return renamed or (name if canonicalize_name(name) in _data()["same"] else None)


def _is_no_python_package(name: str) -> bool:
    if name in _data()["cuda"] or name in _data()["system"]:
        return True
    return any(fnmatch(name, one) for one in _data()["system_patterns"]) and not any(
        fnmatch(name, one) for one in _data()["uncertain"]
    )


def conda_specifier(text: str, *, exact: bool = False) -> str | None:
    """A version of conda as a specifier set: "=1.24" -> "==1.24.*"; None: it has no such form, as
    "1.2|1.4". A build string ("=1.24.3=py310_0") is dropped.
    """
    text = text.strip()
    if text in {"", "*"}:
        return ""
    if text[:1].isdigit() or text[:1] == "=":
        parts = text.removeprefix("==").removeprefix("=").split("=")
        fuzzy = text[:1] == "=" and text[:2] != "=="
        release = parts[0].strip().split(" ")[0]
        if re.fullmatch(_RELEASE, release):
            short = fuzzy and not exact and release.count(".") < 2
            return f"=={release}.*" if short else f"=={release}"
        if re.fullmatch(_RELEASE + r"\.?\*", release):
            return f"=={release.rstrip('.*')}.*"
        if "," not in release or "|" in release:
            return None
    try:
        clauses = [_clause(one.strip()) for one in text.split(",")]
        return str(SpecifierSet(",".join(clauses)))
    except (InvalidSpecifier, ValueError):
        return None


def _clause(text: str) -> str:
    if "|" in text or " " in re.sub(r"([<>=!~])\s+", r"\1", text):
        raise ValueError(text)
    return f"=={text}" if text[:1].isdigit() else text
