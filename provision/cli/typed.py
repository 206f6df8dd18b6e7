"""Parsed options -> the words by which the user can type them again."""

from __future__ import annotations

import argparse


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


def request_words(args: argparse.Namespace) -> str:
    """What a plan is for, in full: the project, what is installed of it and beside it, and the
    options of `plan_words`.
    """
    import shlex

    several = (
        ("--with", args.companions),
        ("--extra", args.extras),
        ("--group", args.groups),
        ("--without", args.without),
    )
    words = [] if args.project is None else [args.project]
    words += [word for option, values in several for one in values for word in (option, one)]
    return " ".join(filter(None, (shlex.join(words), plan_words(args))))
