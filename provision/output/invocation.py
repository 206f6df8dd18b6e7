"""How this program was called, and the commands in texts for people, which begin in the same way:
`./run provision plan` where that is what was typed.

JSON and files are for other machines, too: there a command is `provision`.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Collection, Sequence

_NAMES = ("provision", "gpu-provision")
# What follows `provision` in a command, but for the commands.
_AFTER = frozenset({"--help", "--version", "..."})
_COMMAND = re.compile(r"(?<![\w./-])provision(?= +(?P<next>[\w-]+|\.\.\.))")
_BEFORE = 200  # characters, among them the line breaks of wrapped text


class _Call:
    """What `begin` was given."""

    words = _NAMES[0]
    commands: Collection[str] = ()


def words_of(script: str, program: str, path: Sequence[str]) -> str:
    """The words by which this program was called. `script`: the path of the checkout's `run`, as it
    was typed ("": it was not used); `program`: that of the program; `path`: the directories where
    a shell looks for programs.
    """
    directory, _, name = program.rpartition("/")
    if name not in _NAMES:  # python -m provision
        directory, name = "", _NAMES[0]
    if not script and (not directory or directory in path):
        return name
    if not script:
        return shlex.quote(program)
    where = script if "/" in script else f"./{script}"  # sh run
    return f"{shlex.quote(where)} {name}"


def replaced(text: str, words: str, commands: Collection[str]) -> str:
    """A text whose commands (`provision`, and one of `commands`) begin with `words`. Those that
    follow the `run` of a checkout are whole.
    """

    ends = ["/run", "/run'"]  # a checkout's, perhaps another's
    ends += words.split()[-2:-1]  # this one's, whatever its name

    def begin_of(found: re.Match[str]) -> str:
        before = text[max(0, found.start() - _BEFORE) : found.start()].rstrip(" \\\n")
        known = found["next"] in commands or found["next"] in _AFTER
        return words if known and not before.endswith(tuple(ends)) else found[0]

    return _COMMAND.sub(begin_of, text) if words != _NAMES[0] and "provision" in text else text


def begin(script: str, program: str, commands: Collection[str]) -> None:
    """Keep how this process was called (as for `words_of`), and what its commands are."""
    path = [one.rstrip("/") for one in os.get_exec_path()]
    _Call.words, _Call.commands = words_of(script, program, path), commands


def as_called(text: str) -> str:
    """A text for people on this machine, with commands as they are typed here. Before it is
    wrapped; a text that was is not changed again.
    """
    return replaced(text, _Call.words, _Call.commands)
