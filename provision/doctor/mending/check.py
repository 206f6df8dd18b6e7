"""Rules for every fix that may be run automatically. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from provision.doctor.causes import PLACEHOLDER
from provision.doctor.knowledge import Knowledge
from provision.doctor.mending.backup import is_pattern, not_kept
from provision.doctor.mending.shell import commands, programs, words
from provision.doctor.mending.written_files import written
from provision.doctor.model import Fix, KnownFailure

_BLANKS = re.compile(r"<[a-z][a-z _-]*>|\b(?:your|my)[/_-]", re.IGNORECASE)
_LOST_STATE = frozenset(["cd", "export", "set", ".", "source", "umask", "alias", "read"])
_FORBIDDEN = frozenset(["reboot", "shutdown", "poweroff", "halt", "mokutil", "wsl.exe", "newgrp"])
_ASKS = (
    (
        re.compile(r"\bapt(?:-get)?\b.*\b(?:install|purge|remove|upgrade)\b"),
        re.compile(r" (?:-y|--yes|--assumeyes)\b"),
    ),
    (
        re.compile(r"\b(?:dnf|yum)\b.*\b(?:install|remove|enable)\b"),
        re.compile(r" (?:-y|--yes|--assumeyes)\b"),
    ),
    (re.compile(r"\bzypper\b.*\b(?:install|remove|addrepo)\b"), re.compile(r"--non-interactive")),
    (re.compile(r"\bpacman\b\s+-[SRU]"), re.compile(r"--noconfirm")),
    (re.compile(r"\bdocker\b.*\bprune\b"), re.compile(r" (?:-f|--force)\b")),
)
# These commands only show something, and succeed whatever it is.
_SHOWS = frozenset(
    ["cat", "df", "du", "echo", "find", "free", "sed", "sysctl", "time", "ulimit", "uname"]
)


def check_fixes(knowledge: Knowledge) -> list[str]:
    """Every broken rule, with its failure code: an automatic fix must be complete, take no input,
    contain no text from a log, need no reboot, and have a command that confirms it.
    """
    return [
        f"{failure.code}: {problem}"
        for failure in knowledge.failures
        for problem in dict.fromkeys(_problems(failure))
    ]


def _problems(failure: KnownFailure) -> Iterator[str]:
    automatic = [fix for fix in failure.fixes if fix.automatic]
    decides = failure.confirm if failure.check is None else failure.check
    if automatic and not failure.confirm:
        yield "it is fixed automatically, and no command confirms it"
    if automatic and PLACEHOLDER.search(decides):
        yield f"confirm holds {PLACEHOLDER.findall(decides)[0]!r}, and would be run"
    if automatic:
        yield from _problems_of_check(decides)
    for fix in failure.fixes:
        yield from _problems_of_any(fix)
        if fix.automatic:
            yield from _problems_of_automatic(fix)


def _problems_of_check(command: str) -> Iterator[str]:
    """The confirming command runs before the user is asked, and before it is known whether anything
    is wrong.
    """
    found = list(words(command))
    inside = {one.start for one in found for outer in found if outer.start < one.start < outer.end}
    started = [one.text for one in found if one.is_program and one.start not in inside]
    if started and started[-1] in _SHOWS:
        yield f"confirm ends with `{started[-1]}`, which succeeds whatever it shows"
    changes = [path for path in written(command) if not path.startswith("/dev/")]
    if changes or programs(command) & {"modprobe", "rmmod"}:
        yield f"confirm changes the machine: {command}"


def _problems_of_any(fix: Fix) -> Iterator[str]:
    if not fix.run and not fix.note:
        yield "a fix says nothing"
    for path in fix.backup:
        plain = PurePosixPath(path.removeprefix("~"))
        if not plain.is_absolute() or ".." in plain.parts:
            yield f"backup {path!r} is no whole path"
        if not path.isprintable() or (set("*?[") & set(path) and not is_pattern(str(plain))):
            yield f"backup {path!r} is no pattern of a file's name"


def _problems_of_automatic(fix: Fix) -> Iterator[str]:
    if not fix.run:
        yield "an automatic fix has no command"
    if fix.reboot:
        yield "an automatic fix needs a restart of the machine"
    for text in (fix.run, *fix.backup):
        for name in PLACEHOLDER.findall(text):
            yield f"an automatic fix holds {{{name}}}, which a log may fill"
    for command in commands(fix.run):
        yield from _problems_of_command(command, fix)


def _problems_of_command(command: str, fix: Fix) -> Iterator[str]:
    shown = command.partition("\n")[0]
    started = programs(command)
    if not started:
        yield f"`{shown}` sets a variable that the next command does not see"
    elif started <= _LOST_STATE:
        yield f"`{shown}` changes only the shell that it runs in"
    for name in sorted(started & _FORBIDDEN):
        yield f"`{name}` is not for an automatic fix"
    if _BLANKS.search(command):
        yield f"`{shown}` has something to fill in"
    for asks, quiet in _ASKS:
        if asks.search(command) and not quiet.search(command):
            yield f"`{shown}` may ask"
    if any(
        word.text == "sudo" and command[word.end :].lstrip(" ").startswith("-")
        for word in words(command)
    ):
        yield f"`{shown}` gives options to sudo"
    for path in not_kept([command], fix.backup):
        yield (
            f"it changes {path}, which is not kept"
            if path
            else f"`{shown}` changes files that it does not name"
        )
