"""`provision verify`: the suite inside an existing image, or the record of an earlier run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from images.errors import Failure
from provision.cli.consult import causes_of_report, tell
from provision.cli.hosts import this_host
from provision.cli.option import given_options, option
from provision.cli.paths import absolute_file, existing_file, record_home
from provision.cli.settings import image_argument, read_image, read_places
from provision.cli.suite import (
    burn_option,
    key_option,
    read_asked,
    read_key_files,
    run_suite,
    suite_options,
    timeout_option,
    trust_option,
)
from provision.errors import BadInputError
from provision.model.plan import TITLES
from provision.output.console import Console
from provision.output.stdout import print_either

if TYPE_CHECKING:
    from provision.verification.command import Order

EXAMPLES = (
    "provision verify gpu-provision:pytorch2.0.1-cu117",
    "provision verify registry.example/team/app:1 --level full --html report.html",
)


def options(verb: argparse.ArgumentParser) -> None:
    """Which image, which checks, and what is written."""
    image_argument(verb, "image built by provision build")
    suite_options(verb)
    _run_options(verb.add_argument_group("run"))
    _file_options(verb.add_argument_group("report files, written even if checks fail"))
    _record_options(verb.add_argument_group("record"))


def _run_options(group: argparse._ArgumentGroup) -> None:
    option(
        group,
        "--framework",
        "NAME",
        "of an image with several frameworks, test this one; writes no record",
        choices=tuple(TITLES),
    )
    option(group, "--only", "NAMES", "run only these checks", runs=True)
    burn_option(group)
    timeout_option(group, "time limit of the run, to which --burn is added")


def _file_options(group: argparse._ArgumentGroup) -> None:
    for name, rare, says in (
        ("report", False, "write the report as JSON"),
        ("junit", True, "write JUnit XML, even if the run breaks off"),
        ("html", False, "write an HTML page with plots"),
        ("markdown", True, "write Markdown, for a CI job summary"),
        ("prometheus", True, "write metrics for node_exporter's textfile collector"),
        ("verdict", True, "write the verdict as NVIDIA Health Validation does (JSON)"),
        (
            "baseline",
            True,
            "earlier report (JSON) to compare with; any regression is a failure",
        ),
    ):
        option(group, f"--{name}", "FILE", says, rare=rare, runs=True)


def _record_options(group: argparse._ArgumentGroup) -> None:
    option(group, "--record", "FILE", "where to write the signed record", rare=True, runs=True)
    option(group, "--no-record", None, "do not write a record", rare=True, runs=True)
    option(
        group,
        "--attach-record",
        None,
        "push the record to the image's registry",
        rare=True,
        runs=True,
    )
    key_option(group)
    option(
        group,
        "--check-record",
        "FILE",
        "check that a record shows it passed on such a machine; put it after IMAGE",
        nargs="?",
        const="",
    )
    option(
        group,
        "--check-provenance",
        "FILE",
        "check the signed provenance of the image; put it after IMAGE",
        nargs="?",
        const="",
        rare=True,
    )
    option(
        group,
        "--lock",
        "FILE",
        "with --check-provenance: require that it was built from this lock",
        requires=("--check-provenance",),
    )
    trust_option(group, ("--check-record", "--check-provenance"))


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the suite inside an existing image, or judge the record of an earlier run."""
    if args.check_record is not None:
        return _check_record(args, console)
    if args.check_provenance is not None:
        return _check_provenance(args, console)
    from provision.verification.report_files import page
    from provision.verification.suite import in_numbers

    done = run_suite(args, _read_order(args), console)
    print_either(args.json, done.report, lambda: page(done.report) or in_numbers(done.report))
    tell(causes_of_report(done.report), console)
    if done.trouble is not None:
        console.fail(done.trouble.message, done.trouble.fix, done.trouble.detail)
    return done.code


def _read_order(args: argparse.Namespace) -> Order:
    """One verification, with everything that is kept of it."""
    from provision.verification.command import Order, Recording
    from provision.verification.report_files import FORMATS

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
        suite=asked,
        framework=args.framework,
        files={
            name: absolute_file(f"--{name}", given)
            for name in FORMATS
            if (given := getattr(args, name)) is not None
        },
        baseline=None if args.baseline is None else absolute_file("--baseline", args.baseline),
        recording=Recording(
            home=record_home(),
            enabled=not args.no_record and not asked.only and args.framework is None,
            path=None if args.record is None else absolute_file("--record", args.record),
            key=None if args.key is None else absolute_file("--key", args.key),
            attach=args.attach_record,
        ),
    )


def _check_record(args: argparse.Namespace, console: Console) -> int:
    from provision.cli.render.build import describe_check
    from provision.verification.record_check import check_record, check_to_json, find_case

    path, trust = _asked_of("--check-record", args.check_record, args), read_key_files(args)
    image = read_image(args.image)
    checked = check_record(
        find_case(image, places=read_places(args, console), facts=this_host()),
        home=record_home(),
        path=path,
        trust=trust,
        level=args.level,
    )
    result = check_to_json(checked)
    print_either(args.json, result, lambda: describe_check(result))
    if isinstance(checked.outcome, Failure):
        console.fail(checked.outcome.message, checked.outcome.fix)
    return checked.outcome.exit_code


def _check_provenance(args: argparse.Namespace, console: Console) -> int:
    from provision.attestation.provenance.check import check_to_json
    from provision.cli.render.build import describe_origin
    from provision.verification.origin_check import check_origin

    path, trust = _asked_of("--check-provenance", args.check_provenance, args), read_key_files(args)
    checked = check_origin(
        read_image(args.image),
        places=read_places(args, console),
        home=record_home(),
        path=path,
        trust=trust,
        lock=None if args.lock is None else Path(args.lock),
    )
    result = check_to_json(checked.image, checked.outcome, checked.keyid)
    print_either(args.json, result, lambda: describe_origin(result))
    if isinstance(checked.outcome, Failure):
        console.fail(checked.outcome.message, checked.outcome.fix)
    return checked.outcome.exit_code


def _asked_of(option: str, text: str, args: argparse.Namespace) -> Path | None:
    """The file of an option that judges an earlier run; None: the one that was kept. BadInputError:
    another option is about a run.
    """
    given = [name for name in given_options(args, "runs") if name != option]
    if given:
        raise BadInputError(
            f"{option} runs nothing, so {' and '.join(given)} would have no effect.",
            fix=f"Remove {option} or {' and '.join(given)}.",
        )
    return existing_file(option, text) if text else None
