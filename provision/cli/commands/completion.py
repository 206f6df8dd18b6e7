"""`provision completion`: what a shell reads once to complete commands, with argcomplete.

Then the shell calls `provision` at each Tab, with _ARGCOMPLETE in the environment, and reads the
words from file descriptor 8. What an option offers is declared with the option.
"""

from __future__ import annotations

import argparse

from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_document

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    'eval "$(provision completion bash)"    # in ~/.bashrc',
    'eval "$(provision completion zsh)"     # in ~/.zshrc, after compinit',
    "provision completion fish | source     # in ~/.config/fish/config.fish",
)


def options(verb: argparse.ArgumentParser) -> None:
    """For which shell."""
    verb.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the shell's code."""
    del console
    from argcomplete.shell_integration import shellcode

    print_document(shellcode(["provision"], shell=args.shell).strip("\n"))
    return Exit.DONE
