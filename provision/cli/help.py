"""The help of `provision` and its commands: at most 40 lines first, everything with --help-all."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from images.text.printable import printable
from provision.cli.option import name_of
from provision.cli.registry import SECTIONS
from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.invocation import as_called
from provision.output.stdout import print_result
from provision.output.style import columns

MOST_LINES = 40
_FIRST = (
    "provision plan",
    "provision plan --gpu 'RTX 4090' --driver 580.95.05",
    "provision build --cuda 12.8",
    "provision doctor train.log",
)
_MORE = """\
  {0} FILE|-: a log, a Dockerfile, what nvidia-smi printed
  {0} COMMAND --help, {0} --version"""


class _HelpAll(argparse.Action):
    """Print the help with all options, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, HelpParser)
        print_result(parser.whole_help().rstrip("\n"))
        parser.exit()


class HelpParser(argparse.ArgumentParser):
    """argparse, but wrong usage raises an error with a fix, and a help has a limit."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  argparse's own
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=help_width())
        ours = {"allow_abbrev": False, "formatter_class": formatter, "add_help": False}
        super().__init__(**{**options, **ours})
        self.add_argument("-h", "--help", action="help", help="show this help")
        self._all = self.add_argument(
            "--help-all", nargs=0, action=_HelpAll, help=argparse.SUPPRESS
        )
        self._examples: Callable[[], Sequence[str]] = tuple

    def describe(self, text: str, examples: Callable[[], Sequence[str]]) -> None:
        """What the command does, as its line in a list has it, and what can be typed."""
        self.description = f"{text[0].upper()}{text[1:]}."
        self._examples = examples

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  no other way
            super()._check_value(action, value)
        raise BadInputError(
            f"Unknown {name_of(action)} {quoted(str(value))}.", fix=f"Use {either(action.choices)}."
        )

    def error(self, message: str) -> NoReturn:
        raise BadInputError(f"{printable(message, limit=300)}.", fix=f"See {self.prog} --help")

    def _print_message(self, message: str, file: object = None) -> None:
        # Only --help and --version come here: results, so a pipe may be closed as for any other.
        del file
        print_result(message.rstrip("\n"))

    def format_help(self) -> str:
        """The help, without options that few need if it is long."""
        text = self.whole_help()
        if text.count("\n") <= MOST_LINES:
            return text
        before = [(action, action.help) for action in self._actions]
        self._all.help = "show every option"
        for action in self._actions:
            if getattr(action, "rare", False):
                action.help = argparse.SUPPRESS
        text = self._formatted(2)
        for action, help_ in before:
            action.help = help_
        return text

    def _formatted(self, most: int | None = None) -> str:
        """The help, with this many examples at its end."""
        lines = self._examples()[:most]
        about = self.epilog
        examples = "\n".join(("examples:", *(f"  {line}" for line in lines))) if lines else None
        self.epilog = "\n\n".join(filter(None, (None if most else about, examples))) or None
        text = super().format_help()
        self.epilog = about
        return text

    def whole_help(self) -> str:
        """The help with every option, its usage as this program was called, in one row."""
        self.prog = as_called(f"{self.prog} --help").removesuffix(" --help")
        if self.usage is None:
            from provision.output.text import filled

            self.usage = " ".join(("%(prog)s", *_usage(self._actions)))
            said = str(self.description)
            self.description = "\n".join(filled(said, columns=help_width()))
        return self._formatted()


class FirstParser(HelpParser):
    """The parser of `provision` itself, whose help has its commands in groups."""

    def format_help(self) -> str:
        """The help; there is no other."""
        return self.whole_help()

    def whole_help(self) -> str:
        """The commands, and the examples."""
        from provision.output.text import filled

        says: dict[str, str] = {}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  no other way
                says = {one.dest: one.help or "" for one in action._choices_actions}  # noqa: SLF001
        called = as_called("provision --help").removesuffix(" --help")
        lines = [f"usage: {called} COMMAND ...", ""]
        lines += [str(self.description), ""]
        wide = help_width()
        for title, names in SECTIONS:
            lines.append(f"{title}:")
            for name in filter(says.get, names):
                lines += filled(says[name], f"  {name:<9}", " " * 11, columns=wide)
        lines += ["", _MORE.format(called), "", "examples:"]
        return as_called("\n".join([*lines, *(f"  {line}" for line in _FIRST), ""]))


def either(words: Iterable[str]) -> str:
    """A list of words, one of which is to be chosen."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _usage(actions: Sequence[argparse.Action]) -> Iterator[str]:
    """What follows a command: its options, those that it cannot lack, and its arguments."""
    if any(action.option_strings and action.dest not in {"help", "help_all"} for action in actions):
        yield "[OPTION ...]"
    for action in actions:
        if action.option_strings and action.required:
            yield f"{action.option_strings[-1]} {action.metavar}"
    for action in actions:
        if not action.option_strings:
            word = str(action.metavar)
            several = {"*": f"[{word} ...]", "+": f"{word} [{word} ...]", "?": f"[{word}]"}
            yield several.get(str(action.nargs), f"{word} ..." if action.choices else word)


def help_width() -> int:
    """The columns of a help text. argparse, which makes a formatter for each option, would import
    shutil for that.
    """
    return columns(sys.stdout, os.environ) - 2
