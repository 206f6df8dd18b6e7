"""Packages that are installed together, from any source: a requirements file, a pip command.

One `Install` is one resolution of an installer: packages, and where they are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from provision.doctor.lint.findings import table
from provision.doctor.lint.shell import ExpandedWord, ShellCommand
from provision.sources.packages import IndexSource, Position, RequestedPackage, read_package

_PIP = re.compile(r"pip(\d+(\.\d+)?)?")
_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)?)?")
_INDEX_FLAGS = frozenset(["-i", "--index-url", "--default-index"])
_EXTRA_FLAGS = frozenset(["--extra-index-url", "--index"])
_LINK_FLAGS = frozenset(["-f", "--find-links"])
_SOURCE = re.compile(r"(?:PIP|UV)_.*(?:INDEX|FIND_LINKS|CONFIG_FILE|TORCH_BACKEND)", re.DOTALL)
_FILE_FLAGS = frozenset(["-r", "--requirement", "-c", "--constraint"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Packages that are installed together. `complete`: no other source can be involved."""

    packages: tuple[RequestedPackage, ...]
    at: Position
    sources: tuple[IndexSource, ...] = ()
    complete: bool = False
    options: frozenset[str] = field(default_factory=frozenset)
    files: tuple[ExpandedWord, ...] = ()

    def named(self, name: str) -> RequestedPackage | None:
        return next((one for one in self.packages if one.name == name), None)

    @property
    def torch_tags(self) -> frozenset[str]:
        """The tags of PyTorch's indexes among the sources."""
        return frozenset(tag for one in self.sources if (tag := one.torch_tag))

    @property
    def default_index(self) -> bool:
        """Whether only the default index is used."""
        return self.complete and not self.sources


def pip_install(command: ShellCommand, environment: Iterable[str] = ()) -> Install | None:
    """What a command installs with pip or uv; None: another command.

    `environment`: names of variables that are set, some of which give pip an index.
    """
    words = _arguments(command)
    if words is None:
        return None
    packages: list[RequestedPackage] = []
    sources: list[IndexSource] = []
    options: set[str] = set()
    files: list[ExpandedWord] = []
    known = True
    value_flags = frozenset(table("known.toml")["pip"]["value_flags"])
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.text.partition("=")
        if not word.text.startswith("-") or word.text == "-":
            known &= word.known
            packages += [read_package(word.text, word.at)] if word.known else []
            continue
        options.add(flag)
        if flag in _INDEX_FLAGS | _EXTRA_FLAGS | _LINK_FLAGS | _FILE_FLAGS | value_flags:
            given = (
                ExpandedWord(value, word.at) if equals else next(rest, ExpandedWord("", word.at))
            )
        else:
            continue
        if flag in _FILE_FLAGS:
            files.append(given)
        elif flag in {"-e", "--editable"}:
            packages.append(read_package(given.text, given.at))
        elif flag not in value_flags:
            known &= given.known
            sources.append(
                IndexSource(url=given.text, at=given.at, replaces_default=flag in _INDEX_FLAGS)
            )
    settings = {*environment, *command.settings}
    other = any(map(_SOURCE.match, settings))
    return Install(
        packages=tuple(packages),
        sources=tuple(sources),
        at=command.at,
        complete=known and not other and not options & {"--no-index", "--torch-backend"},
        options=frozenset(options),
        files=tuple(files),
    )


def _arguments(command: ShellCommand) -> tuple[ExpandedWord, ...] | None:
    """The words after `pip install`."""
    words = [word.text for word in command.words]
    if words and command.name == "uv" and words[1:3] == ["pip", "install"]:
        return command.words[3:]
    if _PYTHON.fullmatch(command.name) and words[1:4] == ["-m", "pip", "install"]:
        return command.words[4:]
    if _PIP.fullmatch(command.name) and "install" in words[1:]:
        return command.words[words.index("install") + 1 :]
    return None


@dataclass(frozen=True, slots=True)
class SystemPackages:
    """Packages of a distribution or of conda, by name."""

    tool: str
    names: tuple[ExpandedWord, ...]


_MANAGERS = frozenset(["apt-get", "apt", "aptitude", "yum", "dnf", "microdnf", "tdnf", "zypper"])
_CONDAS = frozenset(["conda", "mamba", "micromamba"])


def system_install(command: ShellCommand) -> SystemPackages | None:
    """What apt, yum, dnf install ("apt") or conda and mamba ("conda"); None: neither."""
    words = command.words
    verbs = {"install"} if command.name in _MANAGERS else {"install", "create"}
    if command.name not in _MANAGERS | _CONDAS:
        return None
    position = next((i for i, word in enumerate(words) if word.text in verbs), None)
    if position is None:
        return None
    conda = command.name in _CONDAS
    return SystemPackages(
        tool="conda" if conda else "apt",
        names=tuple(_plain_words(words[position + 1 :], conda=conda)),
    )


def _plain_words(words: Iterable[ExpandedWord], *, conda: bool) -> Iterator[ExpandedWord]:
    """Names without versions; without flags and, for conda, without the values of flags."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.text.startswith("-"):
            skip = conda and word.text in {"-c", "--channel", "-n", "--name", "-p", "--prefix"}
            skip = skip or word.text in {"-t", "-o"}
        else:
            name = re.split(r"[=<>:~!\[ ]", word.text.rpartition("::")[2], maxsplit=1)[0]
            yield ExpandedWord(name, word.at)
