"""Parsed options -> the words by which the user can type them again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.model.plan import Gpu, HostFacts


def plan_words(args: argparse.Namespace) -> str:
    """The options that decide the plan beside --with, as the user can type them again. A login in
    --index is not repeated.
    """
    import shlex

    from images.net.address import shown_url

    index = None if args.index is None else shown_url(args.index)
    single = (
        ("--cuda", args.cuda),
        ("--framework", None if args.framework == "pytorch" else args.framework),
        ("--framework-version", args.framework_version),
        ("--python", args.python),
        ("--base", args.base),
        ("--flavour", args.flavour),
        ("--index", index),
        ("--driver", getattr(args, "driver", None)),
        ("--snapshot", getattr(args, "snapshot", None)),
        ("--ca-bundle", getattr(args, "ca_bundle", None)),
    )
    several = (
        ("--apt", args.apt),
        ("--host", getattr(args, "host", ())),
        ("--gpu", getattr(args, "gpus", ())),
    )
    words = [word for option, value in single if value for word in (option, value)]
    words += [word for option, values in several for one in values for word in (option, one)]
    return shlex.join(words)


def request_words(args: argparse.Namespace, hosts: Sequence[HostFacts] = ()) -> str:
    """What a plan is for, in full: the project, what is installed of it and beside it, and the
    options of `plan_words`. `hosts`: a host of standard input, which cannot be read again,
    is named by its driver and its GPUs.
    """
    import shlex

    if args.host == ["-"] and len(hosts) == 1 and hosts[0].driver and hosts[0].gpus:
        gpus = dict.fromkeys(map(_gpu_word, hosts[0].gpus))
        args = argparse.Namespace(**{**vars(args), "host": [], "gpus": list(filter(None, gpus))})
        args.driver = hosts[0].driver
    several = (
        ("--with", args.companions),
        ("--extra", args.extras),
        ("--group", args.groups),
        ("--without", args.without),
    )
    words = [] if args.project is None else [args.project]
    words += [word for option, values in several for one in values for word in (option, one)]
    return " ".join(filter(None, (shlex.join(words), plan_words(args))))


def _gpu_word(gpu: Gpu) -> str | None:
    """The value of --gpu: by the capability, where that is known without the catalog."""
    capability = gpu.compute_capability
    return gpu.name if capability is None else f"{capability[0]}.{capability[1]}"
