"""The commands in `bin` that a wheel defines: the scripts that pip would write.

The script texts are here, not from a library: a newer library would change a layer's bytes.
https://packaging.python.org/en/latest/specifications/entry-points/#use-for-scripts
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass

_GROUPS = ("console_scripts", "gui_scripts")
_CALL = re.compile(r"(\w+(?:\.\w+)*)\s*:\s*(\w+(?:\.\w+)*)\s*(?:\[[^\]]*\])?")
_NAME = re.compile(r"[^\s/\[][^\s/]*")
_LONGEST_SHEBANG = 127  # the part of a first line that Linux reads
_TEXT = """\
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({call}())
"""
_OLDER_TEXT = """\
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit({call}())
"""  # from pip releases for Pythons without str.removesuffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The function that a command calls."""

    module: str
    function: str


def read_calls(text: str) -> dict[str, Call]:
    """Parse the commands of an entry_points.txt; ValueError says what is wrong with it."""
    parser = configparser.ConfigParser(
        delimiters=("=",), interpolation=None, strict=False, default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # keep the case of names
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError("an entry_points.txt that cannot be read") from error
    found = {}
    for group in _GROUPS:
        for name, value in parser.items(group) if parser.has_section(group) else ():
            call = _CALL.fullmatch(value.strip())
            if not call:
                raise ValueError(
                    f"a command {name!r} that calls {value!r}, which is not a function"
                )
            if not _NAME.fullmatch(name) or name in {".", ".."} or not name.isprintable():
                raise ValueError(f"a command {name!r}, which is not a valid file name")
            found[name] = Call(module=call[1], function=call[2])
    return found


def versioned(calls: Mapping[str, Call], python: tuple[int, int]) -> dict[str, Call]:
    """Name pip's and setuptools' commands after the target's Python, as pip does.

    Their wheels are for any Python, but contain the names for the Python that built them.
    """
    found = dict(calls)
    for name, others, names in (
        ("pip", r"pip(\d+(\.\d+)?)?", ("pip{0}", "pip{0}.{1}")),
        ("easy_install", r"easy_install(-\d+\.\d+)?", ("easy_install-{0}.{1}",)),
    ):
        if name in calls:
            call = calls[name]
            found = {key: value for key, value in found.items() if not re.fullmatch(others, key)}
            found |= {each.format(*python): call for each in (name, *names)}
    return found


def is_wrapper(file: str, calls: Mapping[str, Call]) -> bool:
    """Whether a script of a wheel is an old wrapper of one of its commands, which we generate."""
    lower = file.lower()
    for end in (".exe", "-script.py", ".pya"):
        if lower.endswith(end):
            return file[: -len(end)] in calls
    return file in calls


def script(call: Call, interpreter: str, python: tuple[int, int]) -> bytes:
    """Generate the script that calls a function."""
    text = _TEXT if python >= (3, 9) else _OLDER_TEXT
    name = call.function.partition(".")[0]
    body = text.format(module=call.module, name=name, call=call.function)
    return shebang(interpreter) + body.encode()


def with_interpreter(content: bytes, interpreter: str) -> bytes:
    """Replace the first line of a script that begins with #!python."""
    return shebang(interpreter) + content.partition(b"\n")[2]


def shebang(interpreter: str) -> bytes:
    """Make the first line; if Linux would not accept it, lines that both sh and Python read."""
    path = interpreter.encode()
    if b" " not in path and len(path) + 3 <= _LONGEST_SHEBANG:
        return b"#!%s\n" % path
    quoted = b'"%s"' % path if b" " in path else path
    return b"#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n" % quoted
