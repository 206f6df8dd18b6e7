"""Parsed options -> the words by which the user can type them again."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from provision.cli.option import retyped
from provision.model.plan import Gpu, HostFacts


def request_words(args: argparse.Namespace, hosts: Sequence[HostFacts] = ()) -> str:
    """What a plan is for, in full: the project, what is installed of it and beside it, and the
    options of a plan. `hosts`: a host of standard input, which cannot be read again,
    is named by its driver and its GPUs.
    """
    if args.host == ["-"] and len(hosts) == 1 and hosts[0].driver and hosts[0].gpus:
        gpus = dict.fromkeys(map(_gpu_word, hosts[0].gpus))
        args = argparse.Namespace(**{**vars(args), "host": [], "gpus": list(filter(None, gpus))})
        args.driver = hosts[0].driver
    words = [] if args.project is None else [shlex.quote(args.project)]
    return " ".join(filter(None, (*words, retyped(args, "packages"), retyped(args, "plan"))))


def _gpu_word(gpu: Gpu) -> str | None:
    """The value of --gpu: by the capability, where that is known without the catalog."""
    capability = gpu.compute_capability
    return gpu.name if capability is None else f"{capability[0]}.{capability[1]}"
