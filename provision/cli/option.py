"""One option of a command, declared once: how it is parsed, shown, completed and typed again.

The command's file, or the one that several commands share, calls `option` for each. What other
parts must know of it is an attribute of argparse's action: none keeps a list of options.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from provision.errors import BadInputError

Decides = Literal["plan", "packages"]
"""What an option decides: in these words of a request it is typed again."""


def option(
    to: argparse._ActionsContainer,
    names: str | tuple[str, ...],
    metavar: str | None,
    says: str,
    *,
    several: bool = False,
    rare: bool = False,
    complete: Callable[[], Iterable[str]] | None = None,
    requires: tuple[str, ...] = (),
    decides: Decides | None = None,
    locked: bool = True,
    runs: bool = False,
    **given: Any,  # noqa: ANN401  as for `add_argument`
) -> None:
    """Add an option or argument with its help; without a metavar it is a switch. `several`: it may
    be repeated; `rare`: a long help leaves it to --help-all; `complete`: what a shell offers;
    `requires`: options of which one must be given, too; `decides`: what is planned by it, which a
    lock has decided (`locked`); `runs`: it is about a run of the suite.
    """
    if several:
        given = {"action": "append", "default": [], **given}
    given |= {"action": "store_true"} if metavar is None else {"metavar": metavar}
    named = (names,) if isinstance(names, str) else names
    action = to.add_argument(*named, help=says, **given)
    locked = locked and decides is not None
    vars(action).update(rare=rare, requires=requires, decides=decides, locked=locked, runs=runs)
    if complete is not None:
        vars(action)["completer"] = lambda prefix, **_: [
            word for word in complete() if word.startswith(prefix)
        ]


def name_of(action: argparse.Action) -> str:
    """The long form of an option, or how an argument is shown."""
    return action.option_strings[-1] if action.option_strings else str(action.metavar)


def given_options(args: argparse.Namespace, about: str) -> list[str]:
    """The options that were given of those with this attribute ("locked", "runs")."""
    return [name_of(action) for action in _given(args) if getattr(action, about, False)]


def refuse_without(args: argparse.Namespace) -> None:
    """Refuse an option without the one that it requires. BadInputError."""
    there = {word for action in _given(args) for word in action.option_strings}
    for action in _given(args):
        needed = getattr(action, "requires", ())
        if needed and not there.intersection(needed):
            either = " or ".join(needed)
            raise BadInputError(
                f"{name_of(action)} requires {either}.",
                fix=f"Remove {name_of(action)}, or add {either}.",
            )


def retyped(args: argparse.Namespace, words: Decides) -> str:
    """The given options of these words, as the user can type them again. A login in an address is
    not repeated.
    """
    return shlex.join(
        word
        for action in _given(args)
        if getattr(action, "decides", None) == words
        for value in _values(args, action)
        for word in (name_of(action), value)
    )


def _values(args: argparse.Namespace, action: argparse.Action) -> list[str]:
    from images.net.address import shown_url

    value = getattr(args, action.dest)
    if action.dest == "index":
        return [shown_url(value)]
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _given(args: argparse.Namespace) -> Iterator[argparse.Action]:
    """The options and arguments of the command that do not have their default."""
    for action in args.verb._actions:  # noqa: SLF001  as argparse's users do
        value = getattr(args, action.dest, None)
        if value is not None and value is not False and value != action.default:
            yield action
