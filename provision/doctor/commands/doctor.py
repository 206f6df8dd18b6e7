"""`provision doctor`: finds what is wrong with a machine, an error text, an image or a file."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from images.text.suggestions import alike, did_you_mean, no_such, or_nearby
from provision.cli.hosts import gpu_option, this_host
from provision.cli.option import option
from provision.cli.paths import mended_home
from provision.cli.settings import network_options, read_places
from provision.doctor import diagnose, load
from provision.doctor.causes import explained
from provision.doctor.commands.inputs import STDIN, meant_by, name_of_log, opened
from provision.doctor.model import Diagnosis, Facts, FactsOf
from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.doctor.account import Kind, Place

COLLECT, EXPLAIN = "collect", "explain"


EXAMPLES = (
    "provision doctor",
    "provision doctor train.log",
    "docker build . 2>&1 | provision doctor --here -",
    "provision doctor Dockerfile",
)
_WHAT = """what to diagnose:
  (nothing)        this machine
  IMAGE            an image, seen from inside a container
  FILE ...         Dockerfile, compose or requirements files, pyproject.toml,
                   environment.yml, pixi.toml: what will fail in them, and with
                   --gpu or --driver whether their torch runs there
  LOG ...          any other file, or an error text itself: the causes
  collect FILE     write the facts of this machine, redacted, to a file that
                   someone else can diagnose with --bundle
  explain [CODE]   describe a cause, or list all of them"""


def options(verb: argparse.ArgumentParser) -> None:
    """What is diagnosed, and what happens with the answer."""
    verb.epilog = _WHAT
    verb.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        help="an image, files or logs, or a command (see below); default: this machine",
    )
    option(
        verb,
        "--log",
        "FILE",
        "output of any program to explain; - for stdin (repeatable)",
        dest="logs",
        several=True,
    )
    verb.add_argument(
        "--bundle", metavar="FILE", help="diagnose the machine that this bundle was collected on"
    )
    verb.add_argument(
        "--no-host",
        action="store_true",
        help="diagnose only the log, not this machine",
    )
    verb.add_argument(
        "--here",
        action="store_true",
        help="the log was written on this machine, whose facts count",
    )
    option(verb, "--case", "FILE", "write what a log shows, redacted, to share it", rare=True)
    verb.add_argument("--all", action="store_true", help="show all causes in full")
    verb.add_argument("--driver", metavar="V", help="check files for this driver version")
    gpu_option(verb, "check files for this GPU: a name or compute capability (repeatable)")
    option(verb, "--sarif", "FILE", "write the findings of checked files as SARIF", rare=True)
    fix = verb.add_argument_group("fix")
    fix.add_argument(
        "--fix",
        action="store_true",
        help="show the commands that fix the problem, ask, run them, and check the result",
    )
    fix.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    option(fix, "--undo", "FILE", "restore the files that a fix changed", rare=True)
    network_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """One of its jobs, depending on the arguments."""
    what: list[str] = args.what
    verb = what[0] if what and what[0] in {COLLECT, EXPLAIN} else None
    meant = set() if verb else {meant_by(one) for one in what}
    if meant == {"log"}:
        args.logs, args.what, what = [*args.logs, *what], [], []
    _refuse_contradictions(args, meant)
    if args.undo is not None:
        return _undo(Path(args.undo), args, console)
    if verb == COLLECT:
        from provision.doctor.commands.collect import collect_machine

        return collect_machine(what[1:], args, console)
    if verb == EXPLAIN:
        return _explain(what[1:], args)
    if len(what) > 1 or meant == {"file"}:
        from provision.doctor.commands.files import do_lint

        return do_lint(what, args, console)
    if args.gpus or args.driver is not None:
        raise BadInputError(
            "--gpu and --driver require a file to check.",
            fix="For example: provision doctor requirements.txt --gpu 'RTX 5090'",
        )
    return _diagnose(what[0] if what else None, args, console)


def _undo(path: Path, args: argparse.Namespace, console: Console) -> int:
    from provision.doctor.mending import local_io, undo

    _refuse_missing_journal(path)
    return undo(path, knowledge=load(), io=local_io(console.say), assume_yes=args.yes)


def _refuse_missing_journal(path: Path) -> None:
    if not os.path.exists(path):  # noqa: PTH110  Path's raises for a name that is too long
        kept = or_nearby(mended_home() / path.name, f"Journals are kept in {mended_home()}")
        raise BadInputError(no_such("journal", path), fix=or_nearby(path, kept))


# --- a diagnosis --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _DoctorInput:
    """The input of a diagnosis: texts (opened when read), facts, and how to describe it."""

    kind: Kind
    names: tuple[str, ...]
    about: str
    facts_of: FactsOf
    facts: Facts = field(default_factory=dict)
    place: Place | None = None  # where the facts were read
    kernel_log: tuple[str, bytes] | None = None


def _diagnose(image: str | None, args: argparse.Namespace, console: Console) -> int:
    from provision.doctor.account import (
        MACHINES,
        account,
        host_is_unfit,
        of_a_machine,
        verdict_of,
    )
    from provision.doctor.commands.collect import refuse_case, rereadable, write_case
    from provision.doctor.commands.text import describe_diagnosis
    from provision.doctor.overview import overview, without_gpu

    written: dict[str, str] | None = None
    with contextlib.ExitStack() as stack:
        logs = [(name_of_log(log), stack.enter_context(opened(log))) for log in args.logs]
        if args.case is not None:
            refuse_case(args.case)
            logs = [(name, rereadable(stream, stack)) for name, stream in logs]
        seen = _look(image, args, console, stack)
        texts: list[tuple[str, BinaryIO | bytes | str]] = [*logs]
        texts += [seen.kernel_log] if seen.kernel_log is not None else []
        diagnosis = diagnose(texts, seen.facts, facts_of=seen.facts_of)
        if not logs:
            diagnosis = of_a_machine(diagnosis)
        _refuse_elsewhere(diagnosis, seen, args)
        verdict = verdict_of(diagnosis, asked_of_a_text=bool(logs))
        if args.case is not None:
            written = write_case(args.case, diagnosis, verdict, dict(logs))
    if args.json:
        said = account(
            diagnosis, kind=seen.kind, names=seen.names, verdict=verdict, place=seen.place
        )
        print_json(said if written is None else {**said, "case": written})
    else:
        unfit = host_is_unfit(diagnosis)
        readings = overview(seen.facts, unfit=unfit) if seen.kind in MACHINES else ()
        print_result(
            describe_diagnosis(
                diagnosis,
                verdict,
                about=seen.about,
                place=seen.place,
                readings=readings,
                no_gpu="" if logs else without_gpu(seen.facts),
                whole=args.all,
                case=written,
            )
        )
    if args.fix:
        return _mend(diagnosis, args, console)
    if verdict == "unknown":
        return Exit.NO_VERDICT
    if not logs and host_is_unfit(diagnosis):
        return Exit.UNFIT if seen.kind == "image" else Exit.HOST_UNFIT
    return Exit.DONE


def _look(
    image: str | None, args: argparse.Namespace, console: Console, stack: contextlib.ExitStack
) -> _DoctorInput:
    """The facts of the subject: an image's contents, a bundle, this machine, or none."""
    logs = tuple(name_of_log(log) for log in args.logs)
    about = ", ".join(logs)
    alone = _DoctorInput(
        kind="log", names=logs, about=about, facts_of="texts" if logs else "subject"
    )
    if image is not None:
        facts = _inside(image, args, console)
        names: tuple[str, ...] = (image,)
        return replace(
            alone, kind="image", names=names, about=about or image, facts=facts, place="image"
        )
    if args.no_host:
        return alone
    from provision.doctor.probes import kernel_log, read_facts

    kind: Literal["host", "bundle"] = "bundle" if args.bundle is not None else "host"
    if args.bundle is not None:
        from provision.doctor.bundle import open_bundle

        machine = stack.enter_context(open_bundle(Path(args.bundle)))
        names = (args.bundle,)
    else:
        from provision.doctor.this_machine import this_machine

        machine, names = this_machine(), ()
        if logs and not args.here and not args.fix:
            alone = replace(alone, facts_of="reader")
    return replace(
        alone,
        kind="log" if logs else kind,
        names=(*logs, *names),
        about=about or (args.bundle or "this machine"),
        facts=read_facts(machine),
        place="here" if kind == "host" else kind,
        kernel_log=None if logs else kernel_log(machine),
    )


def _refuse_elsewhere(diagnosis: Diagnosis, seen: _DoctorInput, args: argparse.Namespace) -> None:
    """A log that says that it is from another machine is no reason to change this one."""
    origin = diagnosis.origin
    if args.fix and not args.here and origin is not None and origin.agreement == "differs":
        raise BadInputError(
            f"--fix changes this machine, and {seen.about} is from another: "
            f"{origin.says[0].says} ({origin.says[0].where}).",
            fix="Run it on that machine, or add --here if the log is from this one.",
        )


def _inside(image: str, args: argparse.Namespace, console: Console) -> Facts:
    from provision.doctor.inside import look_inside
    from provision.doctor.probes import read_facts
    from provision.doctor.this_machine import this_machine
    from provision.host.gpu_request import gpus_to_request
    from provision.verification.subject import FILE_OR_IMAGE, find_subject, ready

    places = read_places(args, console)
    subject = find_subject(image, places, what=FILE_OR_IMAGE)
    with (
        console.step("look", f"{image}, from inside a container of it"),
        ready(subject, places, console) as (runner, handle),
    ):
        gpus = "none" if subject.emulator else gpus_to_request(this_host())
        inside = look_inside(runner, handle, gpus)
    return {**_gpus_of(read_facts(this_machine())), **inside}


def _gpus_of(facts: Facts) -> Facts:
    """Facts of the host that a container cannot see."""
    return {name: fact for name, fact in facts.items() if name.startswith("gpu.")}


def _mend(diagnosis: Diagnosis, args: argparse.Namespace, console: Console) -> int:
    from provision.doctor.mending import local_io, mend

    causes = diagnosis.causes
    if args.what:  # the facts are those of an image, not of this machine
        causes = tuple(replace(cause, machine="silent", in_text=True) for cause in causes)
    return mend(
        causes,
        knowledge=load(),
        io=local_io(console.say),
        journals=mended_home(),
        assume_yes=args.yes,
    )


# --- the other jobs -----------------------------------------------------------------------------


def _explain(codes: Sequence[str], args: argparse.Namespace) -> int:
    from provision.doctor.account import causes_json
    from provision.doctor.commands.text import describe_known, list_known

    known = load()
    unknown = [code for code in codes if code not in known.by_code]
    if unknown:
        raise BadInputError(
            f"Unknown cause {quoted(unknown[0])}.",
            fix=did_you_mean(alike(unknown[0], known.by_code))
            or "List all causes: provision doctor explain",
        )
    chosen = [explained(known.by_code[code]) for code in codes or sorted(known.by_code)]
    if args.json:
        print_json({"schema": 1, "causes": causes_json(chosen)})
    else:
        print_result(describe_known(chosen) if codes else list_known(chosen))
    return Exit.DONE


def _refuse_contradictions(args: argparse.Namespace, meant: Collection[str]) -> None:
    asked = [
        name
        for name, given in (
            ("--no-host", args.no_host),
            ("--here", args.here),
            ("--bundle", args.bundle is not None),
            ("an image", "image" in meant),
        )
        if given
    ]
    if len(asked) > 1:
        raise BadInputError(
            f"{' and '.join(asked)} cannot be used together.", fix="Name one thing to look at."
        )
    if not args.logs and (args.here or (args.no_host and meant != {"file"})):
        name = "--here" if args.here else "--no-host"
        raise BadInputError(f"{name} requires --log.", fix="Add the log: --log FILE")
    if args.case is not None and (meant == {"file"} or args.undo is not None):
        raise BadInputError("--case requires a log.", fix="provision doctor --case FILE run.log")
    if args.fix and args.undo is not None:
        raise BadInputError(
            "--fix and --undo cannot be used together.", fix="provision doctor --undo FILE"
        )
    if args.yes and not args.fix and args.undo is None:
        raise BadInputError("--yes requires --fix or --undo.", fix="provision doctor --fix --yes")
    if args.fix and (args.bundle is not None or args.no_host):
        raise BadInputError(
            "--fix changes this machine, and cannot be used with --bundle or --no-host.",
            fix="Run provision doctor --fix on that machine.",
        )
    if args.logs.count(STDIN) > 1:
        raise BadInputError("stdin can be used only once.", fix='Pass "-" only once.')
