"""`provision detect`: what is known of this machine."""

from __future__ import annotations

import argparse

from provision.cli.render.host import describe_host
from provision.errors import Exit
from provision.model.facts import host_to_json
from provision.output.console import Console
from provision.output.stdout import print_either

EXAMPLES = ("provision detect", "provision detect --json > host.json")


def run(args: argparse.Namespace, console: Console) -> int:
    """Read it, and print it."""
    del console
    from provision.host import detect

    facts = detect()
    print_either(args.json, host_to_json(facts), lambda: describe_host(facts))
    return Exit.DONE
