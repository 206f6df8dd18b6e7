"""Parsed options -> the options of the suite, and what is kept of its run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from provision.cli.paths import absolute_file, read_reference, record_home
from provision.errors import BadInputError
from provision.model.plan import TITLES
from provision.model.request import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from provision.model.plan import Framework
    from provision.verification.command import Order
    from provision.verification.suite import SuiteRequest


LEVELS = ("quick", "standard", "full")


def read_level(text: str | None) -> str:
    if text is None:
        return "standard"
    if text not in LEVELS:
        raise BadInputError(f"Unknown --level {quoted(text)}.", fix="Use quick, standard or full.")
    return text


def read_names(option: str, text: str | None) -> tuple[str, ...]:
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


def read_asked(args: argparse.Namespace) -> SuiteRequest:
    """The options of the suite."""
    from provision.verification.suite import SuiteRequest

    return SuiteRequest(
        level=read_level(args.level),
        whole=args.level is not None,
        require=read_names("--require", args.require),
        only=read_names("--only", getattr(args, "only", None)),
        timeout_s=read_seconds(getattr(args, "timeout", None)),
    )


def _read_framework(text: str | None) -> Framework | None:
    found = next((name for name in TITLES if name == text), None)
    if text is not None and found is None:
        raise BadInputError(f"Unknown --framework {quoted(text)}.", fix=f"Use {', '.join(TITLES)}.")
    return found


def read_seconds(text: str | None) -> float:
    """The value of --timeout, in seconds. BadInputError: it is no number, or more than a week."""
    if text is None:
        return 1800.0
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= 7 * 86400:
        raise BadInputError(
            f"--timeout {quoted(text)} is not a number of seconds (at most a week).",
            fix="For two hours: --timeout 7200",
        )
    return float(text)


def read_order(args: argparse.Namespace) -> Order:
    """One verification, with everything that is kept of it."""
    from provision.verification.command import Order, Recording
    from provision.verification.report_files import FORMATS

    if args.trust or args.lock is not None:
        option = "--trust" if args.trust else "--lock"
        checks = "--check-record or --check-provenance" if args.trust else "--check-provenance"
        raise BadInputError(
            f"{option} requires {checks}.", fix=f"Remove {option}, or add {checks}."
        )
    if args.no_record and (args.record is not None or args.key is not None or args.attach_record):
        raise BadInputError(
            "--no-record cannot be used with --record, --attach-record or --key.",
            fix="Remove one of them.",
        )
    asked = read_asked(args)
    if asked.only and args.record is not None:
        raise BadInputError(
            "--only runs a part of the suite, but a record covers all of it.",
            fix="Remove --only or --record; with --only no record is written.",
        )
    if args.framework is not None and args.record is not None:
        raise BadInputError(
            "--framework tests one of an image's frameworks, but a record covers the image.",
            fix="Remove --framework or --record; with --framework no record is written.",
        )
    return Order(
        image=read_image(args.image),
        asked=asked,
        framework=_read_framework(args.framework),
        files={
            name: absolute_file(f"--{name}", given)
            for name in FORMATS
            if (given := _of(args, name)) is not None
        },
        baseline=None if args.baseline is None else absolute_file("--baseline", args.baseline),
        recording=Recording(
            home=record_home(),
            wanted=not args.no_record and not asked.only and args.framework is None,
            path=None if args.record is None else absolute_file("--record", args.record),
            key=None if args.key is None else absolute_file("--key", args.key),
            attach=args.attach_record,
        ),
    )


def read_check(args: argparse.Namespace) -> tuple[Path | None, list[Path], str | None]:
    """Which record is judged, which keys are trusted, and the lowest level that suffices: the
    options of a run do not apply here.
    """
    from provision.verification.report_files import FORMATS

    runs = (
        "require",
        "only",
        "timeout",
        "baseline",
        "record",
        "no_record",
        "key",
        "attach_record",
        *FORMATS,
    )
    given = [f"--{name.replace('_', '-')}" for name in runs if getattr(args, name)]
    if given:
        raise BadInputError(
            f"--check-record runs nothing, so {' and '.join(given)} would have no effect.",
            fix=f"Remove --check-record or {' and '.join(given)}.",
        )
    path = _there("--check-record", args.check_record) if args.check_record else None
    level = None if args.level is None else read_level(args.level)
    return path, read_key_files(args), level


def read_origin_check(args: argparse.Namespace) -> tuple[Path | None, list[Path], Path | None]:
    """Which statement is judged, which keys are trusted, and which lock it should name."""
    from pathlib import Path

    from provision.verification.report_files import FORMATS

    runs = ("require", "only", "timeout", "baseline", "record", "no_record", "key")
    given = [
        f"--{name.replace('_', '-')}"
        for name in (*runs, "attach_record", *FORMATS)
        if getattr(args, name)
    ]
    if given:
        raise BadInputError(
            f"--check-provenance runs nothing, so {' and '.join(given)} would have no effect.",
            fix=f"Remove --check-provenance or {' and '.join(given)}.",
        )
    path = _there("--check-provenance", args.check_provenance) if args.check_provenance else None
    lock = Path(args.lock) if args.lock is not None else None
    return path, read_key_files(args), lock


def read_key_files(args: argparse.Namespace) -> list[Path]:
    """The public keys of --trust. BadInputError: a file is missing."""
    return [_there("--trust", text) for text in args.trust]


def _of(args: argparse.Namespace, name: str) -> str | None:
    text: str | None = getattr(args, name)
    return text


def _there(option: str, text: str) -> Path:
    """An input file; a missing one is reported before any work begins."""
    from images.text.nearby import no_such, or_nearby

    path = absolute_file(option, text)
    if not path.exists():
        raise BadInputError(
            no_such("file", text, option=option),
            fix=or_nearby(text, f"Name a file: {option} DIR/FILE"),
        )
    return path


def read_image(text: str) -> str:
    """The name of an image, or its path."""
    from images.assembly.opening import parse_place

    if len(text) > 4096 or "\0" in text:
        raise BadInputError(
            f"The image {quoted(text)} is too long for a name or a path.",
            fix="Write it as REGISTRY/PATH:TAG, for example team/torch:cu117",
        )
    place = parse_place(text)
    if place.path is None and not text.startswith("sha256:"):
        read_reference("The image", place.name or text)
    return text
