"""What `provision doctor` writes for others to look at: a machine's bundle, a case of a log."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from provision.doctor.case import case_text, search_phrase
from provision.doctor.model import Diagnosis
from provision.doctor.reasons import lines_between
from provision.doctor.redact import Redactor
from provision.errors import BadInputError, Exit
from provision.output.console import Console
from provision.output.files import refuse_unwritable, write_named
from provision.output.stdout import print_json, print_result


def collect_machine(words: Sequence[str], args: argparse.Namespace, console: Console) -> int:
    """`doctor collect FILE`."""
    from provision.doctor.bundle import collect
    from provision.doctor.this_machine import this_machine

    if len(words) != 1 or args.logs or args.bundle:
        raise BadInputError(
            "collect takes one argument: the file to write.",
            fix="For example: provision doctor collect machine.tar.gz",
        )
    out = Path(words[0])
    refuse_unwritable("collect", out)
    with console.step("collect", "reads this machine; names and addresses are replaced"):
        collect(this_machine(), out)
    if args.json:
        print_json({"schema": 1, "bundle": str(out)})
    else:
        print_result(f"{out}\nCheck what is in it (tar xf), then: provision doctor --bundle {out}")
    return Exit.DONE


def refuse_case(case: str | None) -> None:
    """Before the work: a case never replaces a file."""
    if case is None:
        return
    refuse_unwritable("--case", Path(case))
    if Path(case).exists():
        raise BadInputError(f"{case} exists.", fix="Name a new file: --case NEW")


def rereadable(stream: BinaryIO, stack: contextlib.ExitStack) -> BinaryIO:
    """A stream that can be read again: what comes from a pipe is kept in a file."""
    if stream.seekable():
        return stream
    kept = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
    shutil.copyfileobj(stream, kept)
    kept.seek(0)
    return cast("BinaryIO", kept)


def write_case(
    case: str, diagnosis: Diagnosis, verdict: str, texts: Mapping[str, BinaryIO]
) -> dict[str, str]:
    """Write a case of the texts, and say where it is and what to search for."""

    def lines_of(source: str, first: int, end: int) -> Sequence[tuple[int, str]]:
        stream = texts.get(source)
        if stream is None:
            return ()
        stream.seek(0)
        return lines_between(stream, first, end)

    name = diagnosis.facts.get("machine.name")
    hosts = [socket.gethostname(), str(name.value) if name else ""]
    try:
        users = [getpass.getuser()]
    except (KeyError, OSError):  # an account without a name
        users = []
    redactor = Redactor(users=users, hosts=hosts)
    text = case_text(diagnosis, verdict, redactor, lines_of)
    write_named("--case", Path(case), text.encode("utf-8", "replace"))
    return {"file": case, "search": redactor.text(search_phrase(diagnosis))}
