"""`provision`: the commands, their options, and what they print.

Results go to stdout, everything else to stderr; with --json the result alone. `run` is the only
place that catches: a known failure becomes its sentence, its fix and its exit code, Ctrl-C becomes
130, and anything else 70 with a file to send us. No traceback reaches a user.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from images.errors import Failure
from images.printable import printable
from provision.cli.commands import do_build, do_detect, do_lock, do_plan, do_verify
from provision.cli.consult import causes_of_failure, tell
from provision.errors import BadInputError, Exit
from provision.output.console import Console
from provision.output.stdout import (
    OutputError,
    flush,
    open_closed_streams,
    print_json,
    print_result,
)
from provision.version import VERSION

if TYPE_CHECKING:
    from dataclasses import dataclass

    from provision.doctor.model import Cause
else:
    from provision.model.frozen import dataclass


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported when it is called: a plan can do without it."""

    def call(*given: object) -> Any:  # noqa: ANN401  whatever that function gives
        return getattr(import_module(f"provision.cli.{module}"), name)(*given)

    return call


do_show, do_refresh, do_measure = (
    _later("catalog", name) for name in ("do_show", "do_refresh", "do_measure")
)
do_doctor, doctor_options = (_later("doctor", n) for n in ("do_doctor", "doctor_options"))
do_inspect, inspect_options = (
    _later("inspect", name) for name in ("do_inspect", "inspect_options")
)
do_du, do_gc, gc_options, do_store_verify = (
    _later("store", name) for name in ("do_du", "do_gc", "gc_options", "do_verify")
)

LEAVE_WITHIN_S = 5.0
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One verb: what it does, which options it takes beside --json, and the function."""

    name: str
    help: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace, Console], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A verb that has actions of its own."""

    name: str
    help: str
    commands: tuple[Command, ...]


class HostResourceError(Failure):
    """This machine is out of disk space, open files, memory or processes."""

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
    as_json = "--json" in words
    name = words[0] if words else ""
    try:
        args = build_parser(words[:2]).parse_args(words)
        console = Console(verbose=args.verbose)
        as_json = args.json
        command: Command = args.command
        return command.run(args, console)
    except Failure as failure:
        return _fail(console, failure, command=name, as_json=as_json)
    except KeyboardInterrupt:
        console.say("interrupted; no image was tagged" if name == "build" else "interrupted")
        when_interrupted()
        return Exit.INTERRUPTED
    except MemoryError:
        return _fail(console, _no_memory(), command=name, as_json=as_json)
    except RuntimeError as error:
        if "can't start new thread" in str(error):
            return _fail(console, _no_memory(), command=name, as_json=as_json)
        return _bug(console)
    except OSError as error:
        if error.errno in {errno.ENOMEM, errno.EAGAIN}:
            return _fail(console, _no_memory(), command=name, as_json=as_json)
        if error.errno == errno.ENAMETOOLONG:
            shown = printable(str(error.filename), limit=60)
            long = BadInputError(f"No file has so long a name: {shown}", fix="Name another file.")
            return _fail(console, long, command=name, as_json=as_json)
        if error.errno in _NO_ROOM or "No usable temporary directory" in str(error):
            return _fail(console, _no_room(error), command=name, as_json=as_json)
        return _bug(console)
    except Exception:  # noqa: BLE001  the one place that may: a bug becomes a report, not a wall
        return _bug(console)


def _leave_whatever_happens() -> None:
    """End this process soon, though a library may never let go.

    An interruption may arrive inside Condition.__enter__, which is Python code: the lock of a
    queue (of connections, in urllib3) is then held by nobody, and the finalizer that wants it
    waits for ever. Our own cleaning has been done when this is called.
    """
    import threading

    last_resort = threading.Timer(LEAVE_WITHIN_S, os._exit, (int(Exit.INTERRUPTED),))
    last_resort.daemon = True
    last_resort.start()


def _fail(console: Console, failure: Failure, *, command: str, as_json: bool) -> int:
    causes = causes_of_failure(failure)
    if as_json and not isinstance(failure, OutputError):
        try:
            print_json(_failure_json(command, failure, causes))
        except OutputError as unwritable:
            console.fail(unwritable.message, unwritable.fix)
    console.fail(failure.message, failure.fix, failure.detail)
    tell(causes, console)
    return failure.exit_code


def _no_room(error: OSError) -> Failure:
    where = f" ({error.filename})" if error.filename else ""
    return HostResourceError(
        f"This machine is out of disk space or open files: {error.strerror or error}{where}.",
        fix="Free some, or use a directory that has room: TMPDIR=/path provision ...",
    )


def _no_memory() -> Failure:
    import resource

    limits = [
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
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)
    _keep_others_out()
    code = main(when_interrupted=_leave_whatever_happens)
    # What argparse or an interrupt left in a buffer must not fail while Python shuts down.
    for stream in (sys.stdout, sys.stderr):
        flush(stream)
    sys.exit(code)


class _Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise BadInputError(
            f"{printable(message, limit=300)}.",
            fix=f"See {self.prog} --help",
        )

    def _print_message(self, message: str, file: object = None) -> None:
        # Only --help and --version come here: results, which a pipe may refuse as any other.
        del file
        print_result(message.rstrip("\n"))


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line. Given the first words that were typed, only their command gets its options:
    those of the others cost a plan five milliseconds.
    """
    parser = _Parser(
        prog="provision",
        description="Finds a combination of CUDA, framework and base image that works on this GPU "
        "machine, explains why, builds the image, and tests it here.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpu-provision {VERSION}")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        _add_verb(verbs, command, words)
    for group in GROUPS:
        verb = verbs.add_parser(group.name, help=group.help, allow_abbrev=False)
        actions = verb.add_subparsers(metavar="ACTION", required=True)
        for command in group.commands:
            _add_verb(actions, command, words)
    return parser


def _add_verb(
    verbs: Any,  # noqa: ANN401  argparse names no such type
    command: Command,
    words: Sequence[str] | None,
) -> None:
    verb = verbs.add_parser(
        command.name, help=command.help, description=command.help, allow_abbrev=False
    )
    verb.set_defaults(command=command)
    verb.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    verb.add_argument(
        "-v", "--verbose", action="store_true", help="show every check and the tools' output"
    )
    for add in command.options if words is None or command.name in words else ():
        add(verb)


def _request_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("request")
    group.add_argument("--cuda", metavar="X.Y", help="CUDA of the image, e.g. 11.7 (or cu117)")
    group.add_argument(
        "--framework",
        metavar="NAME",
        default="pytorch",
        help="pytorch (default), tensorflow or jax",
    )
    group.add_argument("--framework-version", metavar="SPEC", help="PEP 440, e.g. 2.0.1 or '>=2'")
    group.add_argument("--python", metavar="X.Y", help="Python of the image")
    group.add_argument(
        "--with",
        dest="companions",
        metavar="NAME",
        action="append",
        default=[],
        help="another package: torchvision, torchaudio, any requirement (repeatable)",
    )
    group.add_argument(
        "--base", metavar="IMAGE", help="base image, 'bootstrap', or oci:DIR on this machine"
    )
    group.add_argument("--flavour", metavar="KIND", default="runtime", help="runtime or devel")
    group.add_argument("--index", metavar="URL", help="package index to try first")


def _plan_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--explain", action="store_true", help="show every reason, with its source")
    verb.add_argument(
        "--matrix",
        action="store_true",
        help="list every build and whether it fits",
    )


def _host_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("host (default: this one)")
    group.add_argument(
        "--host",
        metavar="FILE",
        action="append",
        default=[],
        help="facts of another machine, as printed by `provision detect --json`; "
        "- for stdin (repeatable: one plan for all)",
    )
    group.add_argument("--driver", metavar="V", help="plan for this driver version instead")
    group.add_argument(
        "--gpu",
        dest="gpus",
        metavar="NAME|CC",
        action="append",
        default=[],
        help="plan for this GPU instead, by name or compute capability (repeatable)",
    )


def _network_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("network")
    group.add_argument("--ca-bundle", metavar="FILE", help="PEM certificates to trust")
    group.add_argument("--offline", action="store_true", help="use only what is on this machine")


def _base_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--snapshot",
        metavar="DATE",
        help="use Debian packages as of this date for a base made here (2026-03-01, or today)",
    )


def _lock_output(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--output", metavar="PATH", default="pylock.toml", help="the lock (default: pylock.toml)"
    )


def _build_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("build")
    group.add_argument("--tag", metavar="NAME:TAG", help="name of the image")
    group.add_argument(
        "--lock",
        metavar="FILE",
        action="append",
        default=[],
        help="build exactly what this lock says (repeatable: an index of several platforms)",
    )
    group.add_argument(
        "--output",
        metavar="PATH",
        help="write the image to an OCI layout (a directory) or an archive for engines (.tar)",
    )
    group.add_argument("--push", metavar="REF", help="push the image to a registry: HOST/PATH:TAG")
    group.add_argument(
        "--builder",
        metavar="KIND",
        default="auto",
        help="docker (an engine), oci (from wheels, without running anything), or auto",
    )
    group.add_argument(
        "--cache-from",
        metavar="IMAGE",
        help="oci: reuse the layers of this image instead of fetching their wheels",
    )
    group.add_argument(
        "--bytecode", action="store_true", help="oci: add compiled modules, for a faster start"
    )
    group.add_argument(
        "--exclude-unneeded",
        action="store_true",
        help="oci: leave out headers, static libraries and tests",
    )
    group.add_argument("--no-verify", action="store_true", help="do not run the suite afterwards")
    group.add_argument("--dry-run", action="store_true", help="print what would be done")


def _document_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("documents (default: next to the kept lock)")
    group.add_argument("--sbom", metavar="FILE", help="write the CycloneDX SBOM there")
    group.add_argument("--provenance", metavar="FILE", help="write the signed provenance there")
    group.add_argument("--no-provenance", action="store_true", help="write neither")
    group.add_argument("--key", metavar="FILE", help="sign with this Ed25519 key (PEM)")


def _suite_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("suite")
    group.add_argument("--level", metavar="LEVEL", help="quick, standard (default) or full")
    group.add_argument(
        "--require", metavar="NAMES", help="fail if these checks are skipped (gpu,nccl,...)"
    )


def _run_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("run")
    group.add_argument("--only", metavar="NAMES", help="run only these checks")
    group.add_argument(
        "--timeout", metavar="SECONDS", help="stop the run after so many seconds (default: 1800)"
    )


def _file_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("files, written whatever the verdict")
    group.add_argument("--report", metavar="FILE", help="the report as JSON")
    group.add_argument("--junit", metavar="FILE", help="JUnit XML, even without a report")
    group.add_argument("--html", metavar="FILE", help="a page for people, with plots")
    group.add_argument("--markdown", metavar="FILE", help="for a job's summary")
    group.add_argument(
        "--prometheus", metavar="FILE", help="for node_exporter's textfile collector"
    )
    group.add_argument(
        "--baseline",
        metavar="FILE",
        help="an earlier report: the run is unfit if anything got worse since",
    )


def _record_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("record")
    group.add_argument("--record", metavar="FILE", help="write the signed record there")
    group.add_argument("--no-record", action="store_true", help="write no record")
    group.add_argument(
        "--attach-record",
        action="store_true",
        help="attach the record to the image in its registry, for other machines",
    )
    group.add_argument("--key", metavar="FILE", help="sign with this Ed25519 key (PEM)")
    group.add_argument(
        "--check-record",
        metavar="FILE",
        nargs="?",
        const="",
        help="run nothing; check whether it has passed on this kind of machine (after IMAGE)",
    )
    group.add_argument(
        "--check-provenance",
        metavar="FILE",
        nargs="?",
        const="",
        help="run nothing; check who signed how the image was built (after IMAGE)",
    )
    group.add_argument("--lock", metavar="FILE", help="... and whether it was built from this lock")
    group.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        default=[],
        help="also trust this public key (repeatable)",
    )


def _image_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("image", metavar="IMAGE", help="an image built by provision build")


def _show_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        default="",
        help="torch, tensorflow, tensorflow-gpu, jax, cuda, driver, gpu, cudnn, nccl, image, "
        "conflicts",
    )
    verb.add_argument("name", metavar="NAME", nargs="*", help="a version, a tag, a GPU's name")


def _refresh_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--from",
        dest="sources",
        metavar="SOURCE",
        action="append",
        default=[],
        help="ask this source only: pypi, pytorch, registry or nvidia (repeatable)",
    )
    verb.add_argument("--index", metavar="URL", help="the default package index (default: pip's)")
    verb.add_argument("--pytorch-index", metavar="URL", help="a mirror of the PyTorch index")
    verb.add_argument("--registry", metavar="HOST", help="a mirror of the image registry")
    verb.add_argument("--nvidia", metavar="URL", help="a mirror of NVIDIA's manifests")
    verb.add_argument("--dry-run", action="store_true", help="show what is new without writing it")
    _network_options(verb)


def _measure_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("wheel", metavar="WHEEL|URL", help="a .whl file, or its address")
    verb.add_argument(
        "--deep", action="store_true", help="read the code itself, not the wheel's own metadata"
    )
    verb.add_argument("--write", action="store_true", help="save it in your copy of the catalog")
    verb.add_argument("--ca-bundle", metavar="FILE", help="PEM certificates to trust")


CATALOG_COMMANDS = (
    Command(
        name="show",
        help="show rows of the catalog: provision catalog show torch 2.0.1",
        options=(_show_arguments,),
        run=do_show,
    ),
    Command(
        name="refresh",
        help="update your copy of the catalog from the indexes and registries",
        options=(_refresh_options,),
        run=do_refresh,
    ),
    Command(
        name="measure",
        help="read the compiled GPU architectures from a wheel",
        options=(_measure_options,),
        run=do_measure,
    ),
)
STORE_COMMANDS = (
    Command(
        name="du",
        help="show what the store holds and how much disk it uses",
        options=(),
        run=do_du,
    ),
    Command(
        name="verify",
        help="check everything in the store and remove what is damaged",
        options=(),
        run=do_store_verify,
    ),
    Command(
        name="gc",
        help="free disk space, least recently used first",
        options=(gc_options,),
        run=do_gc,
    ),
)
GROUPS = (
    Group(
        name="catalog",
        help="look up, update and measure what is known about versions and GPUs",
        commands=CATALOG_COMMANDS,
    ),
    Group(
        name="store",
        help="what builds keep on this machine: wheels, bases, images",
        commands=STORE_COMMANDS,
    ),
)
COMMANDS = (
    Command(
        name="detect",
        help="read the driver, the GPUs, the system and the engines of this host",
        options=(),
        run=do_detect,
    ),
    Command(
        name="plan",
        help="find a compatible combination and explain why",
        options=(_plan_options, _request_options, _host_options, _network_options),
        run=do_plan,
    ),
    Command(
        name="lock",
        help="write a lock: every wheel with version, address, size, sha256 (pylock.toml)",
        options=(_request_options, _host_options, _network_options, _base_options, _lock_output),
        run=do_lock,
    ),
    Command(
        name="build",
        help="detect, plan, lock, build the image, and test it here",
        options=(
            _request_options,
            _host_options,
            _network_options,
            _base_options,
            _build_options,
            _document_options,
            _suite_options,
        ),
        run=do_build,
    ),
    Command(
        name="inspect",
        help="read an image or a wheel without running it: what is in it, where would it run?",
        options=(inspect_options,),
        run=do_inspect,
    ),
    Command(
        name="verify",
        help="run the verification suite inside an image, on this machine",
        options=(_image_argument, _suite_options, _run_options, _file_options, _record_options),
        run=do_verify,
    ),
    Command(
        name="doctor",
        help="find what is wrong with this machine, a log, an image or a file, and the fix",
        options=(doctor_options,),
        run=do_doctor,
    ),
)


def _failure_json(command: str, failure: Failure, causes: Sequence[Cause]) -> dict[str, Any]:
    error = {"code": failure.code, "message": failure.message, "fix": failure.fix}
    extra: dict[str, Any] = {"verdict": "none"} if command == "plan" else {}
    if causes:
        from provision.doctor.account import causes_json

        extra["doctor"] = causes_json(causes)
    return {"schema": 1, **extra, "error": error}


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM, and a terminal that is gone, end the job as Ctrl-C does: containers end with us."""
    del number, frame
    raise KeyboardInterrupt


def _keep_others_out() -> None:
    """Where the umask lets everybody write to new files, let nobody but their owner."""
    umask = os.umask(0o022)
    if umask & 0o002:
        os.umask(umask)


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
