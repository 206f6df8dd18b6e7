"""The options of the suite, and what they ask of it."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.hosts import this_host
from provision.cli.option import option
from provision.cli.paths import existing_file
from provision.cli.settings import read_catalog, read_places
from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.console import Console

if TYPE_CHECKING:
    from provision.verification.command import Order, VerifyResult
    from provision.verification.suite import SuiteRequest


def suite_options(verb: argparse.ArgumentParser) -> None:
    """How much is checked."""
    group = verb.add_argument_group("suite")
    level_option(group)
    option(
        group,
        "--require",
        "NAMES",
        "fail if these checks are skipped (gpu,nccl,...)",
        rare=True,
        runs=True,
    )


def level_option(to: argparse._ActionsContainer, default: str | None = None) -> None:
    """--level; a command that must know whether it was given has no default."""
    usual = default or "standard"
    *others, last = (
        f"{one} (default)" if one == usual else one for one in ("quick", "standard", "full")
    )
    option(
        to,
        "--level",
        "LEVEL",
        f"{', '.join(others)} or {last}",
        choices=("quick", "standard", "full"),
        default=default,
        rare=True,
    )


def timeout_option(to: argparse._ActionsContainer, says: str, default: str = "1800") -> None:
    """--timeout."""
    option(
        to,
        "--timeout",
        "SECONDS",
        f"{says} (default: {default})",
        default=default,
        rare=True,
        runs=True,
    )


def key_option(to: argparse._ActionsContainer) -> None:
    """--key."""
    option(to, "--key", "FILE", "Ed25519 private key to sign with (PEM)", rare=True, runs=True)


def trust_option(to: argparse._ActionsContainer, requires: tuple[str, ...] = ()) -> None:
    """--trust."""
    option(
        to,
        "--trust",
        "FILE",
        "trust this public key, too (repeatable)",
        several=True,
        rare=True,
        requires=requires,
    )


def read_asked(args: argparse.Namespace) -> SuiteRequest:
    """The options of the suite."""
    from provision.verification.suite import SuiteRequest

    return SuiteRequest(
        level=args.level or "standard",
        whole=args.level is not None,
        require=read_names("--require", args.require),
        only=read_names("--only", getattr(args, "only", None)),
        timeout_s=read_seconds(getattr(args, "timeout", "1800")),
        burn_min=read_minutes(getattr(args, "burn", None)),
    )


def run_suite(args: argparse.Namespace, order: Order, console: Console) -> VerifyResult:
    """Run the suite in the image of the command."""
    from images.store.locks import present
    from provision.verification.command import verify

    places, catalog = read_places(args, console), read_catalog(console)
    with present(places.state):
        return verify(order, places=places, facts=this_host, catalog=catalog, console=console)


def read_names(option: str, text: str | None) -> tuple[str, ...]:
    """The names of checks in a list with commas; (): the option is not given. BadInputError: one is
    not a name, or there is none.
    """
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if len(name) > 60 or not all(c.isalnum() or c in ".-_" for c in name):
            raise BadInputError(
                f"{option}: there is no check {quoted(name)}.", fix="List them: verify --list"
            )
    if not names:
        raise BadInputError(f"{option} needs the name of a check.", fix="List them: verify --list")
    return names


def read_seconds(text: str) -> float:
    """The value of --timeout, in seconds. BadInputError: it is no number, or more than a week."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= 7 * 86400:
        raise BadInputError(
            f"--timeout {quoted(text)} is not a number of seconds (at most a week).",
            fix="For two hours: --timeout 7200",
        )
    return float(text)


def burn_option(to: argparse._ActionsContainer) -> None:
    """--burn, read by `read_minutes`."""
    what = "load all GPUs together for so long (0.1 or more; at level full: 1)"
    option(to, "--burn", "MINUTES", what, runs=True)


def read_minutes(text: str | None) -> float | None:
    """The value of --burn. BadInputError: it is no number, or out of the suite's range."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if 0.1 <= float(text) <= 7 * 1440:
            return float(text)
    raise BadInputError(
        f"--burn {quoted(text)} is not a number of minutes (0.1 to 10080, a week).",
        fix="For half an hour: --burn 30",
    )


def read_key_files(args: argparse.Namespace) -> list[Path]:
    """The public keys of --trust. BadInputError: a file is missing."""
    return [existing_file("--trust", text) for text in args.trust]
