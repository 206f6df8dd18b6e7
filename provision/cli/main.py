"""`provision`: from the command line to an exit code.

Results go to stdout, everything else to stderr; with --json only the result. Only `run` catches
exceptions: a known failure becomes its sentence, its fix and its exit code, Ctrl-C becomes 130,
another signal 128 and its number, and anything else 70 with a file to send us. No traceback reaches
a user.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from images.errors import FULL, DiskFullError, Failure
from images.system.interruption import ENDING
from images.text.printable import printable
from provision.cli.consult import Explanation, causes_of_failure, tell
from provision.cli.parser import build_parser, parse
from provision.cli.registry import Command, names, part_of
from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output import style
from provision.output.console import Console
from provision.output.invocation import begin
from provision.output.stdout import (
    OutputError,
    flush,
    open_closed_streams,
    print_json,
)
from provision.version import VERSION

LEAVE_WITHIN_S = 5.0
RUN_SCRIPT = "PROVISION_RUN_SCRIPT"  # the path of ./run, as it was typed


class HostResourceError(Failure):
    """This machine is out of open files, memory or processes, or has no place for files."""

    code = "no-room"
    exit_code = Exit.HOST_UNFIT


def _nothing_more() -> None:
    """What `main` does after an interruption, called from Python."""


def main(
    argv: Sequence[str] | None = None, *, when_interrupted: Callable[[], None] = _nothing_more
) -> int:
    """Parse, do, and turn every failure into its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    console = Console()
    as_json = "--json" in itertools.takewhile("--".__ne__, words)
    name = words[0] if words else ""
    try:
        if not words:
            from provision.cli.start import do_start

            return do_start(console)
        if name not in names() and not name.startswith("--"):
            box = part_of("doctor", "commands.default_command")
            if box is not None and box.is_given(name):
                with box.command_for(words, console.say) as chosen:
                    name = chosen[0]
                    return _run(parse(chosen))
            if not name.startswith("-"):
                _refuse_unknown(name)
        args = parse(words)
        console = Console(verbose=args.verbose)
        as_json = args.json
        return _run(args, console)
    except Failure as failure:
        return _fail(console, failure, command=name, as_json=as_json)
    except KeyboardInterrupt:
        console.say("interrupted; no image was tagged" if name == "build" else "interrupted")
        when_interrupted()
        return Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001  the one place that may: a bug becomes a report, not a wall
        lacking = _lacking(error)
        if lacking is None:
            return _bug(console)
        return _fail(console, lacking, command=name, as_json=as_json)


def _refuse_unknown(word: str) -> NoReturn:
    """Refuse a first word that is no command and names nothing to look at. BadInputError."""
    from images.text.suggestions import alike, did_you_mean

    raise BadInputError(
        f"{quoted(word)} names no command, file or directory.",
        fix=did_you_mean(alike(word, names())) or "List the commands: provision --help",
    )


def _run(args: argparse.Namespace, console: Console | None = None) -> int:
    command: Command = args.command
    return command.run(args, console or Console(verbose=args.verbose))


def _leave_whatever_happens() -> None:
    """End this process soon, though a library may never let go.

    An interruption may arrive inside Condition.__enter__, which is Python code: the lock of a queue
    (of connections, in urllib3) is then never released, and the finalizer that needs it waits
    forever. Our own cleanup has been done when this is called.
    """
    last_resort = threading.Timer(LEAVE_WITHIN_S, os._exit, (_interrupted_code(),))
    last_resort.daemon = True
    last_resort.start()


def _fail(console: Console, failure: Failure, *, command: str, as_json: bool) -> int:
    causes = causes_of_failure(failure)
    if as_json and not isinstance(failure, OutputError):
        try:
            print_json(_failure_json(command, failure, causes))
        except OutputError as unwritable:
            console.fail(unwritable.message, unwritable.fix)
    console.fail(failure.message, failure.fix, failure.detail, code=failure.code)
    tell(causes, console)
    return failure.exit_code


_NO_MEMORY = ("can't start new thread", "failed to map segment", "cannot create shared object")


def _lacking(error: Exception) -> Failure | None:
    """What this machine or its limits lack, if that is what an exception says; None: a bug."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return _no_memory()
    if not isinstance(error, OSError):
        return None
    if error.errno in {errno.ENOMEM, errno.EAGAIN}:
        return _no_memory()
    if error.errno == errno.ENAMETOOLONG:
        shown = printable(str(error.filename), limit=60)
        return BadInputError(f"No file has so long a name: {shown}", fix="Name another file.")
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return HostResourceError(
            f"No more files can be opened: {error.strerror} (ulimit -n is {limit}){where}.",
            fix="Allow more: ulimit -n 4096",
        )
    fix = "Free some, or use a directory that has room: TMPDIR=/path provision ..."
    if error.errno in FULL:
        return DiskFullError(
            f"This machine is out of disk space: {error.strerror or error}{where}.", fix=fix
        )
    if error.errno == errno.EROFS or "No usable temporary directory" in str(error):
        return HostResourceError(
            f"This machine has no place for files: {error.strerror or error}{where}.", fix=fix
        )
    return None


def _no_memory() -> Failure:
    limits: list[str] = []
    with suppress(ImportError, MemoryError):  # there may be none left to load it
        import resource

        limits += [
            f"ulimit {word} is {found // unit}"
            for word, what, unit in (
                ("-v", resource.RLIMIT_AS, 1024),
                ("-u", resource.RLIMIT_NPROC, 1),
            )
            if (found := resource.getrlimit(what)[0]) != resource.RLIM_INFINITY
        ]
    return HostResourceError(
        "This machine gives no more memory or no more processes"
        + (f" ({', '.join(limits)})." if limits else "."),
        fix="End other work, or allow more: ulimit -v unlimited; in a container, its memory limit.",
    )


def run() -> NoReturn:
    """Entry point of the `provision` command."""
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        autocomplete(build_parser())
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores one; Python has Ctrl-C
            signal.signal(number, _interrupt)
    _keep_others_out()
    style.begin()
    begin(os.environ.pop(RUN_SCRIPT, ""), sys.argv[0], names())
    drop_relative_path_entries()
    code = main(when_interrupted=_leave_whatever_happens)
    if code == Exit.INTERRUPTED:
        code = _interrupted_code()
    # What argparse or an interrupt left in a buffer must not fail while Python shuts down.
    for stream in (sys.stdout, sys.stderr):
        flush(stream)
    sys.exit(code)


def _failure_json(command: str, failure: Failure, causes: Explanation) -> dict[str, Any]:
    error = {"code": failure.code, "message": failure.message, "fix": failure.fix}
    extra: dict[str, Any] = {"verdict": "none"} if command == "plan" else {}
    if causes.json:
        extra["doctor"] = causes.json
    return {"schema": 1, **extra, "error": error}


_received: list[int] = []


def _interrupt(number: int, frame: object) -> NoReturn:
    """Every signal ends the job like Ctrl-C: our containers and temporary files end with us."""
    del frame
    _received.append(number)
    raise KeyboardInterrupt


def _interrupted_code() -> int:
    """As a shell: 128 and the number of the first signal."""
    return 128 + _received[0] if _received else Exit.INTERRUPTED


def _keep_others_out() -> None:
    """If the umask lets everybody write to new files, restrict that to their owner."""
    umask = os.umask(0o022)
    if umask & 0o002:
        os.umask(umask)


def drop_relative_path_entries() -> None:
    """Drop relative entries of PATH: the Docker SDK searches it itself, for credential helpers."""
    path = os.environ.get("PATH")
    if path is not None and not all(entry.startswith("/") for entry in path.split(os.pathsep)):
        from images.system.process import without_relative_entries

        os.environ["PATH"] = without_relative_entries({"PATH": path}).get("PATH", os.defpath)


def _bug(console: Console) -> int:
    import platform
    import tempfile
    import traceback

    text = (
        f"gpu-provision {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {sys.argv[1:2]}\n\n{traceback.format_exc()}"
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="gpu-provision-bug-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            file.write(text)
        where = f"the file {file.name} (read it first; it should hold no secrets)"
    except OSError:
        where = "the command that you typed; no file could be written with the details"
    console.fail(
        "This is a bug in gpu-provision, not in what you typed.", f"Please report it with {where}."
    )
    return Exit.BUG
