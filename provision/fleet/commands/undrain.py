"""`provision fleet undrain`: nodes of Slurm back to service."""

from __future__ import annotations

import argparse

from provision.errors import BadInputError, Exit
from provision.fleet.commands.drains import agreed, chosen, drain_json, slurm_nodes
from provision.fleet.commands.verify_text import describe_drains
from provision.fleet.verify.drain import drained_by_us, run_drains, unchanged
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

EXAMPLES = ("provision fleet undrain --on slurm --nodes 'n[0-3,7]'",)
_RESUMED = {None: "to resume", True: "resumed", False: "not resumed"}


def options(verb: argparse.ArgumentParser) -> None:
    """Which nodes."""
    verb.add_argument(
        "--on", metavar="WHERE", default="slurm", help="slurm[:PARTITION] (default: slurm)"
    )
    verb.add_argument(
        "--nodes", metavar="NODES", help="only these: 'n[0-3,7],login1' (default: all)"
    )
    verb.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, console: Console) -> int:
    """Resume the nodes that were drained with a reason of ours, and no others."""
    if args.on.partition(":")[0] != "slurm":
        raise BadInputError(
            "Only nodes of Slurm can be resumed.", fix="Use --on slurm or --on slurm:PARTITION."
        )
    planned = drained_by_us(chosen(args, slurm_nodes(args)))
    if agreed(args, console, planned, "Resume"):
        # somebody may have changed one while the question waited
        planned = run_drains(unchanged(planned, slurm_nodes(args)))
    if args.json:
        print_json({"schema": 1, "nodes": [drain_json(one) for one in planned], "error": None})
    else:
        lines = describe_drains(planned, _RESUMED)
        print_result("\n".join(lines) or "no node is drained by gpu-provision")
    return Exit.UNREACHABLE if any(one.done is False for one in planned) else Exit.DONE
