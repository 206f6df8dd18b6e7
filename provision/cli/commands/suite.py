"""`provision monitor`, `batch` and `compare`: commands of the suite, which images call `verify`."""

from __future__ import annotations

import argparse
import os
import sys

from images.system.foreground import attend, is_terminal
from provision.cli.parser import parse
from provision.output.console import Console
from provision.output.invocation import as_called
from provision.verification.suite import suite_directory


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the command of the suite, which has its own options. `batch IMAGE` runs in that image:
    it needs a framework; its help does not.
    """
    name, *rest = args.words
    asks_help = not {"-h", "--help"}.isdisjoint(rest)
    if name == "batch" and rest and not rest[0].startswith("-") and not asks_help:
        from provision.cli.commands import run as run_command

        return run_command.run(parse(["run", rest[0], "--", "verify", name, *rest[1:]]), console)

    argv = [sys.executable, str(suite_directory()), name, *rest]
    called = as_called(f"provision {name}").removesuffix(f" {name}")
    env = {**os.environ, "GPU_PROVISION_CALLED": called}
    return attend(argv, env=env, terminal=is_terminal())
