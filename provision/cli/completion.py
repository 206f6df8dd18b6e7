"""Completes words in a shell, with argcomplete: commands, options, and the values that are known.

`provision completion bash|zsh|fish` prints what a shell has to read once. Then it calls `provision`
at each Tab, with _ARGCOMPLETE in the environment, and reads the words from file descriptor 8.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_document

SHELLS = ("bash", "zsh", "fish")


def completion_options(verb: argparse.ArgumentParser) -> None:
    """For which shell."""
    verb.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def do_completion(args: argparse.Namespace, console: Console) -> int:
    """Print the shell's code."""
    del console
    from argcomplete.shell_integration import shellcode

    if args.shell not in SHELLS:
        raise BadInputError(
            f"Completion for {quoted(args.shell)} is not supported.", fix=f"Use {_or(SHELLS)}."
        )
    print_document(shellcode(["provision"], shell=args.shell).strip("\n"))
    return Exit.DONE


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, which asks with _ARGCOMPLETE in the environment, and exit."""
    from argcomplete import autocomplete

    for action in _actions(parser):
        known = _KNOWN.get(action.dest)
        takes_words = action.nargs in {None, "+"} and not action.choices
        if known is not None and takes_words:
            action.completer = _completer(known)  # type: ignore[attr-defined]
    autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001  as argcomplete itself finds them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for verb in action.choices.values():
                yield from _actions(verb)
        else:
            yield action


def _completer(known: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    def words(prefix: str, **_: Any) -> list[str]:  # noqa: ANN401  what argcomplete passes
        return [word for word in known() if word.startswith(prefix)]

    return words


def _frameworks() -> Iterable[str]:
    from provision.model.plan import TITLES

    return TITLES


def _levels() -> Iterable[str]:
    from provision.cli.suite_options import LEVELS

    return LEVELS


def _builders() -> Iterable[str]:
    from provision.cli.options import BUILDERS

    return BUILDERS


def _engines() -> Iterable[str]:
    from provision.cli.run import ENGINES

    return ENGINES


def _compressions() -> Iterable[str]:
    from provision.cli.layer_options import COMPRESSIONS

    return COMPRESSIONS


def _lazy() -> Iterable[str]:
    from provision.cli.layer_options import LAZY

    return LAZY


def _cuda_versions() -> Iterable[str]:
    from provision.catalog.loading import current

    return current(os.environ)[0].cuda_versions()


def _gpus() -> Iterable[str]:
    from provision.catalog.loading import current

    return [gpu.name for gpu in current(os.environ)[0].gpus]


def _images() -> Iterable[str]:
    from provision.cli.ls import images_here

    return [name for one in images_here().images for name in one.names]


_KNOWN: Mapping[str, Callable[[], Iterable[str]]] = {
    "framework": _frameworks,
    "level": _levels,
    "builder": _builders,
    "engine": _engines,
    "compression": _compressions,
    "lazy": _lazy,
    "cuda": _cuda_versions,
    "gpus": _gpus,
    "cut": _gpus,
    "flavour": lambda: ("runtime", "devel"),
    "image": _images,
    "images": _images,
    "shell": lambda: SHELLS,
}
"""The values of an option or argument, by its name in the parsed options."""


def _or(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
