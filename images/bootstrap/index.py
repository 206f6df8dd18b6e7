"""Reads a suite's package index ("Packages"), and parses only the paragraphs that are needed.

An index has sixty thousand paragraphs and fifty megabytes; a base needs a hundred of them. So we
only search for the beginnings of paragraphs, and parse one when it is requested.

https://wiki.debian.org/DebianRepository/Format#A.22Packages.22_Indices
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from images.bootstrap.errors import MirrorError

_BEGIN, _PROVIDES = b"\nPackage: ", b"\nProvides: "
_ALWAYS = (b"\nEssential: yes\n", b"\nPriority: required\n")
_FIELD = re.compile(r"^([!-9;-~]+):[ \t]*(.*(?:\n[ \t].*)*)$", re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SAFE_PATH = re.compile(r"[A-Za-z0-9_+~%.:-]+(?:/[A-Za-z0-9_+~%.:-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePackage:
    """A package in a suite. `url` is its address, `size` in bytes, `sha256` in hex digits.

    `depends` and `conflicts` are relations as in the index: "libc6 (>= 2.36), a | b".
    """

    name: str
    version: str
    url: str
    size: int
    sha256: str
    depends: str = ""
    conflicts: str = ""
    provides: str = ""
    always: bool = False
    """Whether every Debian system has it: essential, or of priority "required"."""


class PackageIndex:
    """The packages of one suite. The index's file names are relative to `base_url`."""

    def __init__(self, text: bytes, *, base_url: str, shown: str) -> None:
        self._text = text = b"\n" + text + b"\n"
        self._base_url = base_url
        self._shown = shown
        self._begins: dict[bytes, list[int]] = {}
        for at in _places(text, _BEGIN):
            name = text[at + len(_BEGIN) : text.index(b"\n", at + 1)]
            self._begins.setdefault(name, []).append(at + 1)
        self._provides: list[tuple[bytes, int]] | None = None

    def named(self, name: str) -> Iterator[SuitePackage]:
        """Return all versions of a package."""
        return (self._package(begin) for begin in self._begins.get(name.encode(), ()))

    def names(self) -> Iterator[str]:
        """Yield the names of all packages."""
        return (name.decode("utf-8", "replace") for name in self._begins)

    def always(self) -> Iterator[str]:
        """Yield the names of the packages that every Debian system has."""
        for line in _ALWAYS:
            for at in _places(self._text, line):
                yield self._package(self._begin_before(at)).name

    def providing(self, name: str) -> Iterator[SuitePackage]:
        """Yield the packages that provide a name, which may be a virtual package's."""
        if self._provides is None:
            self._provides = [
                (self._text[at : self._text.index(b"\n", at + 1)], at)
                for at in _places(self._text, _PROVIDES)
            ]
        wanted = name.encode()
        for line, at in self._provides:
            if wanted in line:
                yield self._package(self._begin_before(at))

    def _begin_before(self, at: int) -> int:
        return self._text.rfind(b"\nPackage: ", 0, at + 1) + 1

    def _package(self, begin: int) -> SuitePackage:
        end = self._text.find(b"\n\n", begin)
        fields = read_fields(self._text[begin : end if end >= 0 else None].decode())
        name, path = fields.get("Package", ""), fields.get("Filename", "").removeprefix("./")
        size, sha256 = fields.get("Size", ""), fields.get("SHA256", "")
        is_safe = _SAFE_PATH.fullmatch(path) and ".." not in path.split("/")
        if not (size.isdigit() and _SHA256.fullmatch(sha256) and is_safe):
            raise MirrorError(
                f"The package index of {self._shown} does not say where {name} is: it needs a"
                " Filename, a Size and a SHA256.",
                fix="Use another mirror of Debian: see the host's /etc/apt/sources.list.d",
            )
        return SuitePackage(
            name=name,
            version=fields.get("Version", ""),
            url=f"{self._base_url}/{path}",
            size=int(size),
            sha256=sha256,
            depends=_joined(fields, "Pre-Depends", "Depends"),
            conflicts=_joined(fields, "Conflicts", "Breaks"),
            provides=fields.get("Provides", ""),
            always=fields.get("Essential") == "yes" or fields.get("Priority") == "required",
        )


def _places(text: bytes, what: bytes) -> Iterator[int]:
    at = text.find(what)
    while at >= 0:
        yield at
        at = text.find(what, at + 1)


def read_fields(paragraph: str) -> dict[str, str]:
    """Parse a paragraph of a control file: field names to values, with continuation lines."""
    return {match[1]: match[2] for match in _FIELD.finditer(paragraph)}


def _joined(fields: Mapping[str, str], *names: str) -> str:
    return ", ".join(value for name in names if (value := fields.get(name)))
