"""Reads a maintainer script as far as it is one of the common kinds, without running it.

Most scripts are written by debhelper, or register alternatives, or only care for upgrades. Such a
script is followed line by line, as it would run when the package is installed for the first time.
A line that is not understood is the reason for which the package is not configured here.

https://www.debian.org/doc/debian-policy/ch-maintainerscripts.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_SECTION = re.compile(
    r"^# Automatically added by (dh_\w+)[^\n]*\n(.*?)^# End automatically added section$",
    re.MULTILINE | re.DOTALL,
)
_LEAVING_NOTHING = frozenset({
    "dh_installdeb",  # conffiles and links of earlier versions
    "dh_installinit", "dh_installsystemd", "dh_installsystemduser", "dh_runit",  # services
    "dh_installtmpfiles",  # what systemd creates when it starts
    "dh_python3", "dh_python", "dh_pypy",  # byte code, which is made when it is first needed
    "dh_installmenu", "dh_icons",  # caches of desktops
})  # fmt: skip
"""debhelper's parts that leave nothing in an image that is new and starts no services."""
_LABEL = re.compile(r"\(?[\w*|\s-]+\)(\s*;;)?")
_CONTINUED = re.compile(r"\\\n|(?<=&&)[ \t]*\n|(?<=\|\|)[ \t]*\n|\n\s*(?=then\b)(?<!;)")
_COMMENT = re.compile(r"(^|\s)#.*")
_PLAIN = re.compile(r"set [-+][eux]+|exit 0|true|:|;;|umask \d+")
_SETTING = re.compile(r"(\w+)=(?:'([^'$`]*)'|\"([^\"$`]*)\"|([\w./+:-]*))")
_FIRST = r'"?\$\{?1\}?"?'
_TESTS: tuple[tuple[re.Pattern[str], bool], ...] = tuple(
    (re.compile(pattern), holds)
    for pattern, holds in (
        (r'-z "\$\{?2\}?"', True),  # no version was installed before
        (r'-n "\$\{?2\}?"', False),
        (r"-d /run/systemd/system", False),
        (r'dpkg --compare-versions "\$2" (lt|le) .*', True),
        (r'dpkg --compare-versions "\$2" (lt-nl|le-nl|gt|ge|eq) .*', False),
    )
)
_ARGUMENT = re.compile(rf"{_FIRST} (=|!=) \"?([\w-]+)\"?")
_PROGRAM = re.compile(r"(?:which|command -v) ([\w.+-]+)(?:\s*[12]?>\s*(?:/dev/null|&1))*")
_MOST_BYTES = 64 << 10


class ScriptReading(NamedTuple):
    """What a script leaves: `alternatives` as in a row of the data, `unread` the first line that
    was not understood ("": all were).
    """

    alternatives: tuple[Mapping[str, Any], ...] = ()
    unread: str = ""


class _NotUnderstoodError(Exception):
    pass


def read_script(text: str, argument: str, has_program: Callable[[str], bool]) -> ScriptReading:
    """Follow a script that is called with `argument` ("install" for preinst, "configure" for
    postinst) where no version of its package was before.
    """
    if len(text) > _MOST_BYTES or not re.match(r"#! ?/bin/(ba|da)?sh\b", text):
        return ScriptReading(unread=text[:60].partition("\n")[0])
    kept = _SECTION.sub(lambda found: "" if found[1] in _LEAVING_NOTHING else found[2], text)
    plain = _CONTINUED.sub(" ", kept)
    following = _Following(argument, has_program)
    line = ""
    try:
        for raw in plain.split("\n"):
            line = raw.strip() if "'" in raw or '"' in raw else _COMMENT.sub("", raw).strip()
            if line and not line.startswith("#"):
                following.take(line)
    except _NotUnderstoodError:
        return ScriptReading(unread=line)
    if following.blocks:
        return ScriptReading(unread="the end of the script")
    return ScriptReading(tuple(following.alternatives))


class _Block:
    """An open `if` or `case`: whether the lines in it run now, and whether any part of it ran."""

    def __init__(self, kind: str, *, runs: bool, within: bool) -> None:
        self.kind, self.runs, self.within = kind, runs, within
        self.ran = runs


class _Following:
    def __init__(self, argument: str, has_program: Callable[[str], bool]) -> None:
        self._argument = argument
        self._has_program = has_program
        self._values: dict[str, str] = {}
        self._ended = False
        self.blocks: list[_Block] = []
        self.alternatives: list[Mapping[str, Any]] = []

    @property
    def _runs(self) -> bool:
        return not self._ended and all(block.runs for block in self.blocks)

    def take(self, line: str) -> None:
        runs = self._runs
        kind = line.partition(" ")[0]
        if kind == "if":
            self._begin_if(line, runs=runs)
        elif kind == "case":
            if runs and not re.fullmatch(rf"case {_FIRST} in", line):
                raise _NotUnderstoodError
            self.blocks.append(_Block("case", runs=False, within=runs))
        elif line in {"fi", "esac"}:
            if not self.blocks or self.blocks.pop().kind != {"fi": "if", "esac": "case"}[line]:
                raise _NotUnderstoodError
        elif line == "else" and self.blocks and self.blocks[-1].kind == "if":
            block = self.blocks[-1]
            block.runs = block.within and not block.ran
        elif self.blocks and self.blocks[-1].kind == "case" and _LABEL.fullmatch(line):
            self._begin_label(line)
        elif runs:
            self._command(line)

    def _begin_if(self, line: str, *, runs: bool) -> None:
        found = re.fullmatch(r"if (.*?)\s*;\s*then(?:\s+#.*)?|if (.*?)\s+then", line)
        if found is None:
            raise _NotUnderstoodError
        holds = runs and self._holds(found[1] or found[2])
        self.blocks.append(_Block("if", runs=holds, within=runs))

    def _begin_label(self, line: str) -> None:
        block = self.blocks[-1]
        names = {name.strip() for name in line.lstrip("(").partition(")")[0].split("|")}
        matches = bool(names & {self._argument, "*"})
        block.runs = block.within and matches and not block.ran
        block.ran = block.ran or block.runs

    def _holds(self, condition: str) -> bool:
        """Whether a condition holds on a new system: of several parts, "&&" binds closer here."""
        return any(
            all(self._test(part.strip()) for part in group.split("&&"))
            for group in condition.split("||")
        )

    def _test(self, text: str) -> bool:
        inner = re.fullmatch(r"\[ (.*) \]|test (.*)", text)
        test = text if inner is None else inner[1] or inner[2]
        if given := _ARGUMENT.fullmatch(test):
            return (given[2] == self._argument) is (given[1] == "=")
        for pattern, holds in _TESTS:
            if pattern.fullmatch(test):
                return holds
        program = re.sub(r'^-x "(?:\$DPKG_ROOT)?(?:`|\$\()(.*?)(?:`|\))"$', r"\1", test)
        if found := _PROGRAM.fullmatch(program.strip()):
            return self._has_program(found[1])
        raise _NotUnderstoodError

    def _command(self, line: str) -> None:
        if _PLAIN.fullmatch(line):
            self._ended = line == "exit 0"
            return
        if found := _SETTING.fullmatch(line):
            self._values[found[1]] = found[2] or found[3] or found[4] or ""
            return
        filled = re.sub(r"\$\{?(\w+)\}?", self._value, line)
        if re.search(r"[$`;&|<>(){}*?]", filled):
            raise _NotUnderstoodError
        try:
            program, *words = shlex.split(filled)
        except ValueError as error:
            raise _NotUnderstoodError from error
        if program != "update-alternatives":
            raise _NotUnderstoodError
        words = [word for word in words if word not in {"--quiet", "--force"}]
        if words[:1] not in (["--remove"], ["--remove-all"]):  # nothing is there before
            self.alternatives.append(_alternative(words))

    def _value(self, name: re.Match[str]) -> str:
        if name[1] not in self._values:
            raise _NotUnderstoodError
        return self._values[name[1]]


def _alternative(words: list[str]) -> Mapping[str, Any]:
    """The row of "--install LINK NAME PATH PRIORITY [--slave LINK NAME PATH] ..."."""
    slaves = []
    install: list[str] = []
    while words:
        option, *rest = words
        size = {"--install": 4, "--slave": 3}.get(option, 0)
        if not size or len(rest) < size:
            raise _NotUnderstoodError
        if option == "--install":
            install += rest[:size]
        else:
            link, name, path = rest[:size]
            slaves.append([name, link, path])
        words = rest[size:]
    if len(install) != 4 or not re.fullmatch(r"-?\d{1,9}", install[3]):
        raise _NotUnderstoodError
    link, name, path, priority = install
    for one in (link, path, *(text for slave in slaves for text in slave[1:])):
        if not one.startswith("/") or ".." in one.split("/"):
            raise _NotUnderstoodError
    if not all(re.fullmatch(r"[\w.+:-]+", one) for one in (name, *(slave[0] for slave in slaves))):
        raise _NotUnderstoodError
    return {"name": name, "link": link, "path": path, "priority": int(priority), "slaves": slaves}
