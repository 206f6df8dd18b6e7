"""`provision`: the parser of its command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from images.text.printable import printable
from provision.cli.help import FirstParser, HelpParser
from provision.cli.option import option, refuse_without
from provision.cli.registry import GROUPS, Command, commands, find, of_group
from provision.errors import BadInputError
from provision.version import VERSION


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line. Given the first words typed, it defines only their command: the others
    would cost a plan ten milliseconds.
    """
    parser = FirstParser(
        prog="provision",
        description="Find a compatible combination of driver, CUDA, framework and base image,\n"
        "explain why, build the image, and test it on this machine.",
    )
    parser.add_argument("--version", action="version", version=f"gpu-provision {VERSION}")
    # with `prog` argparse need not format a usage line here, for which it imports shutil
    verbs = parser.add_subparsers(
        metavar="COMMAND", required=True, prog=parser.prog, parser_class=HelpParser
    )
    alone = [one for one in commands() if not one.group]
    groups = [name for name in GROUPS if any(of_group(name))]
    typed = {*groups, *(one.name for one in alone)}.intersection((words or ())[:1])
    for command in alone:
        if not typed or command.name in typed:
            _add_verb(verbs, command, words)
    for name in groups:
        if typed and name not in typed:
            continue
        verb = verbs.add_parser(name, help=GROUPS[name])
        verb.describe(GROUPS[name], partial(_examples_of, name))
        actions = verb.add_subparsers(metavar="ACTION", required=True, prog=verb.prog)
        for command in of_group(name):
            _add_verb(actions, command, words)
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; for a command that runs another, `words` is what is after --.
    BadInputError: wrong usage.
    """
    known = find(words[0])
    if known is not None and not known.is_ours:
        return argparse.Namespace(command=known, words=list(words), json=False, verbose=False)
    parser = build_parser(words[:2])
    if known is None or not known.is_program:
        found = parser.parse_args(words)
        refuse_without(found)
        return found
    end = words.index("--") if "--" in words else len(words)
    found, rest = parser.parse_known_args(words[:end])
    found.words = list(words[end + 1 :])
    if rest:
        typed = [word for word in words[:end] if word not in rest]
        raise BadInputError(
            f"{words[0]} does not know {printable(shlex.join(rest), limit=100)}.",
            fix=f"Put a command after --: provision {shlex.join([*typed, '--', *rest])}",
        )
    return found


def _add_verb(
    verbs: Any,  # noqa: ANN401  argparse names no such type
    command: Command,
    words: Sequence[str] | None,
) -> None:
    verb = verbs.add_parser(
        command.name,
        aliases=command.aliases,
        **({} if command.is_hidden else {"help": command.help}),
    )
    verb.set_defaults(command=command, json=False, verb=verb)
    if not command.is_program:
        verb.add_argument("--json", action="store_true", help="print the result as JSON")
    verbose = "--verbose" if command.is_program else ("-v", "--verbose")
    option(verb, verbose, None, "show more detail, including the output of tools", rare=True)
    is_typed = words is None or not {command.name, *command.aliases}.isdisjoint(words)
    if is_typed and command.is_ours:
        command.options(verb)
        verb.describe(command.help, lambda: command.examples)


def _examples_of(group: str) -> Sequence[str]:
    """The first example of each subcommand."""
    return [line for one in of_group(group) for line in one.examples[:1]]
