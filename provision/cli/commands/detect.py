"""`provision detect`: what is known of this machine."""

from __future__ import annotations

import argparse

from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

EXAMPLES = ("provision detect", "provision detect --json > host.json")


def run(args: argparse.Namespace, console: Console) -> int:
    """Read it, and print it."""
    del console
    from provision.cli.render.host import describe_host
    from provision.host import detect
    from provision.model.facts import host_to_json

    facts = detect()
    if args.json:
        print_json(host_to_json(facts))
    else:
        print_result(describe_host(facts))
    return Exit.DONE
