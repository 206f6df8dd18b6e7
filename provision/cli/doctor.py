"""`provision doctor`: finds what is wrong with a machine, an error text, an image or a file."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from images.text.printable import printable
from provision.cli.options import read_places, this_host
from provision.cli.paths import mended_home
from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.doctor.account import Kind, Place
    from provision.doctor.model import Diagnosis, Facts, FactsOf

COLLECT, EXPLAIN = "collect", "explain"
STDIN = "-"
_LOGS = frozenset({".log", ".out", ".err"})
_WORDS_OF_A_NAME = 2
# ModuleNotFoundError, torch.OutOfMemoryError:, cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
_ERROR_NAME = re.compile(r"(?:\w+\.)*\w*(?:[a-z]Error|Exception|_ERROR_)\w*(?::.*)?", re.ASCII)
# torch.cuda.is_available() is False, x == None: parts of a program or of what it printed
_CODE = re.compile(r"\w\(|[=!]=|\bis (?:True|False|None)\b|\n")
_TEXTS = _LOGS | {".txt"}  # endings that no image's name has


class UnreadableLogError(BadInputError):
    """A log that cannot be opened."""

    code = "unreadable-log"


def do_doctor(args: argparse.Namespace, console: Console) -> int:
    """One of its jobs, depending on the arguments."""
    what: list[str] = args.what
    verb = what[0] if what and what[0] in {COLLECT, EXPLAIN} else None
    meant = set() if verb else {_meant(one) for one in what}
    if meant == {"log"}:
        args.logs, args.what, what = [*args.logs, *what], [], []
    _refuse_contradictions(args, meant)
    if args.undo is not None:
        return _undo(Path(args.undo), args, console)
    if verb == COLLECT:
        from provision.cli.collect import collect_machine

        return collect_machine(what[1:], args, console)
    if verb == EXPLAIN:
        return _explain(what[1:], args)
    if len(what) > 1 or meant == {"file"}:
        from provision.cli.lint import do_lint

        return do_lint(what, args, console)
    if args.gpus or args.driver is not None:
        raise BadInputError(
            "--gpu and --driver require a file to check.",
            fix="For example: provision doctor requirements.txt --gpu 'RTX 5090'",
        )
    return _diagnose(what[0] if what else None, args, console)


def _undo(path: Path, args: argparse.Namespace, console: Console) -> int:
    from provision.doctor import load
    from provision.doctor.mending import local_doors, undo

    _refuse_missing_journal(path)
    return undo(path, knowledge=load(), doors=local_doors(console.say), assume_yes=args.yes)


def _refuse_missing_journal(path: Path) -> None:
    from images.text.nearby import no_such, or_nearby

    if not os.path.exists(path):  # noqa: PTH110  Path's raises for a name that is too long
        kept = or_nearby(mended_home() / path.name, f"Journals are kept in {mended_home()}")
        raise BadInputError(no_such("journal", path), fix=or_nearby(path, kept))


# --- a diagnosis --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The input of a diagnosis: texts (opened when read), facts, and how to describe it."""

    kind: Kind
    names: tuple[str, ...]
    about: str
    facts_of: FactsOf
    facts: Facts = field(default_factory=dict)
    place: Place | None = None  # where the facts were read
    kernel_log: tuple[str, bytes] | None = None


def _diagnose(image: str | None, args: argparse.Namespace, console: Console) -> int:
    from provision.cli.collect import refuse_case, rereadable, write_case
    from provision.cli.render.doctor import describe_diagnosis
    from provision.doctor import diagnose
    from provision.doctor.account import (
        MACHINES,
        account,
        host_is_unfit,
        of_a_machine,
        verdict_of,
    )
    from provision.doctor.overview import overview, without_gpu

    written: dict[str, str] | None = None
    with contextlib.ExitStack() as stack:
        logs = [(_name(log), stack.enter_context(_opened(log))) for log in args.logs]
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
) -> _Seen:
    """The facts of the subject: an image's contents, a bundle, this machine, or none."""
    logs = tuple(_name(log) for log in args.logs)
    about = ", ".join(logs)
    alone = _Seen(kind="log", names=logs, about=about, facts_of="texts" if logs else "subject")
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
        from provision.doctor.here import this_machine

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


def _refuse_elsewhere(diagnosis: Diagnosis, seen: _Seen, args: argparse.Namespace) -> None:
    """A log that says that it is from another machine is no reason to change this one."""
    origin = diagnosis.origin
    if args.fix and not args.here and origin is not None and origin.agreement == "differs":
        raise BadInputError(
            f"--fix changes this machine, and {seen.about} is from another: "
            f"{origin.says[0].says} ({origin.says[0].where}).",
            fix="Run it on that machine, or add --here if the log is from this one.",
        )


def _inside(image: str, args: argparse.Namespace, console: Console) -> Facts:
    from provision.doctor.here import this_machine
    from provision.doctor.inside import look_inside
    from provision.doctor.probes import read_facts
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
    from provision.doctor import load
    from provision.doctor.mending import local_doors, mend

    causes = diagnosis.causes
    if args.what:  # the facts are those of an image, not of this machine
        causes = tuple(replace(cause, machine="silent", in_text=True) for cause in causes)
    return mend(
        causes,
        knowledge=load(),
        doors=local_doors(console.say),
        journals=mended_home(),
        assume_yes=args.yes,
    )


# --- the other jobs -----------------------------------------------------------------------------


def _explain(codes: Sequence[str], args: argparse.Namespace) -> int:
    from images.text.nearby import alike, did_you_mean
    from provision.cli.render.doctor import describe_known, list_known
    from provision.doctor import load
    from provision.doctor.account import causes_json
    from provision.doctor.judge import explained

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


def _meant(text: str) -> Literal["image", "file", "log"]:
    """What an argument names. Images can be directories and archives, too."""
    from provision.cli.stdin import kind_of_stdin
    from provision.doctor.lint import is_of_a_kind, kind_of

    path = Path(text)
    if text == STDIN:
        return "file" if kind_of_stdin() else "log"
    if text.startswith(("oci:", "oci-archive:", "docker-archive:", "docker-daemon:", "docker://")):
        return "image"
    if os.path.isfile(path):  # noqa: PTH113  Path's raises for a name that is too long
        if text.endswith((".tar", ".tar.gz", ".tgz")):
            return "image"
        # one line of a log may read like a requirement
        return "log" if path.suffix in _LOGS or not is_of_a_kind(path) else "file"
    if os.path.isdir(path):  # noqa: PTH112
        return "image"
    if is_error_text(text):
        return "log"
    if kind_of(path) or path.suffix in _TEXTS or text.startswith(("/", "./", "../")):
        raise _no_file(text, "Name a file, - for standard input, or an image.")
    return "image"


def is_error_text(text: str) -> bool:
    """Whether an argument that names no file is an error message itself: of several words, which
    no image's name has, or one that only programs that fail print.
    """
    from provision.doctor.reasons import reads_like_a_reason

    if len(text.split()) < _WORDS_OF_A_NAME:
        is_shouted = text[:1].isupper() and reads_like_a_reason(text)  # "Killed"
        return is_shouted or _ERROR_NAME.fullmatch(text) is not None
    if Path(text).suffix in _TEXTS:
        return False
    return ": " in text or _CODE.search(text) is not None or reads_like_a_reason(text)


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


def _no_file(text: str, otherwise: str) -> UnreadableLogError:
    from images.text.nearby import no_such, or_nearby

    shown = printable(text, limit=200)
    return UnreadableLogError(no_such("file", shown), fix=or_nearby(text, otherwise))


def _name(log: str) -> str:
    if log == STDIN:
        return "stdin"
    return "the text" if _is_given_itself(log) else log


def _is_given_itself(log: str) -> bool:
    return not os.path.exists(log) and is_error_text(log)  # noqa: PTH110  as above


@contextlib.contextmanager
def _opened(log: str) -> Iterator[BinaryIO]:
    if log == STDIN:
        yield sys.stdin.buffer
        return
    if _is_given_itself(log):
        yield io.BytesIO(log.encode("utf-8", "surrogateescape"))
        return
    try:
        stream = Path(log).open("rb")  # noqa: SIM115  closed below
    except FileNotFoundError as error:
        raise _no_file(log, "Name a file, or - for standard input.") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableLogError(
            f"{log[:200]!r} cannot be read: {why}.", fix="Name a file, or - for stdin."
        ) from error
    with stream:
        try:
            yield stream
        except IsADirectoryError as error:
            raise UnreadableLogError(
                f"{log[:200]!r} is a directory.", fix="Name a file in it."
            ) from error
