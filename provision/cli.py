"""`provision`: the commands, their options, and what they print.

Results go to stdout, everything else to stderr; with --json the result alone. `run` is the only
place that catches: a known failure becomes its sentence, its fix and its exit code, Ctrl-C becomes
130, and anything else 70 with a file to send us. No traceback reaches a user.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from images.errors import Failure
from provision.console import Console
from provision.errors import BadInputError, Exit
from provision.model import Flavour, Gpu, HostFacts, Request
from provision.request import (
    parse_compute_capability,
    parse_driver,
    parse_request,
    quoted,
)
from provision.version import VERSION

if TYPE_CHECKING:
    from images.registry import Reference

_LEVELS = ("quick", "standard", "full")
# What a lock has decided already, and the options that would say otherwise.
_DECIDED_BY_LOCK = {
    "cuda": "--cuda",
    "framework_version": "--framework-version",
    "python": "--python",
    "companions": "--with",
    "base": "--base",
    "host": "--host",
    "driver": "--driver",
    "gpus": "--gpu",
}
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One verb: what it does, which options it takes beside --json, and the function."""

    name: str
    help: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace, Console], int]


class OutputError(Failure):
    """The result was made and cannot be written."""

    code = "output-unwritable"
    exit_code = Exit.USAGE


class HostResourceError(Failure):
    """This machine has no room left to work in: disk, or open files."""

    code = "no-room"
    exit_code = Exit.HOST_UNFIT


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, do, and turn every failure into its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    console = Console()
    as_json = "--json" in words
    name = words[0] if words else ""
    try:
        args = build_parser().parse_args(words)
        console = Console(verbose=args.verbose)
        as_json = args.json
        command: Command = args.command
        return command.run(args, console)
    except Failure as failure:
        return _fail(console, failure, command=name, as_json=as_json)
    except KeyboardInterrupt:
        console.say("interrupted: no tag was given or moved.")
        return Exit.INTERRUPTED
    except OSError as error:
        if error.errno in _NO_ROOM or "No usable temporary directory" in str(error):
            return _fail(console, _no_room(error), command=name, as_json=as_json)
        return _bug(console)
    except Exception:  # noqa: BLE001  the one place that may: a bug becomes a report, not a wall
        return _bug(console)


def _fail(console: Console, failure: Failure, *, command: str, as_json: bool) -> int:
    if as_json and not isinstance(failure, OutputError):
        try:
            _print_json(_failure_json(command, failure))
        except OutputError as unwritable:
            console.fail(unwritable.message, unwritable.fix)
    console.fail(failure.message, failure.fix, failure.detail)
    return failure.exit_code


def _no_room(error: OSError) -> Failure:
    where = f" ({error.filename})" if error.filename else ""
    return HostResourceError(
        f"This machine has no room to work in: {error.strerror or error}{where}.",
        fix="Free some, or name a directory that has room: TMPDIR=/path provision ...",
    )


def run() -> NoReturn:
    """Entry point of the `provision` command."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _interrupt)
    code = main()
    # What argparse or an interrupt left in a buffer must not fail while Python shuts down.
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Started with `>&-` a stream is None, and its number would go to the next file opened."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Let what is still written to this stream vanish."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        clean = "".join(c if c.isprintable() else "?" for c in message)
        raise BadInputError(
            f"{clean[:300]}{'...' if len(clean) > 300 else ''}.",
            fix=f"See what there is: {self.prog} --help",
        )

    def _print_message(self, message: str, file: object = None) -> None:
        # Only --help and --version come here: results, which a pipe may refuse as any other.
        del file
        _print(message.rstrip("\n"))


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="provision",
        description="Reads the GPU host, decides with proof, builds the image, proves it here.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpu-provision {VERSION}")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        verb = verbs.add_parser(
            command.name, help=command.help, description=command.help, allow_abbrev=False
        )
        verb.set_defaults(command=command)
        verb.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
        verb.add_argument("-v", "--verbose", action="store_true", help="show all output of tools")
        for add in command.options:
            add(verb)
    return parser


def _request_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("request")
    group.add_argument("--cuda", metavar="X.Y", help="CUDA of the image, e.g. 11.7 (or cu117)")
    group.add_argument("--framework", metavar="NAME", default="pytorch", help="pytorch (default)")
    group.add_argument("--framework-version", metavar="SPEC", help="PEP 440, e.g. 2.0.1 or '>=2'")
    group.add_argument("--python", metavar="X.Y", help="Python of the image")
    group.add_argument(
        "--with",
        dest="companions",
        metavar="NAME",
        action="append",
        default=[],
        help="a package beside it: torchvision, torchaudio, any requirement (repeatable)",
    )
    group.add_argument("--base", metavar="IMAGE", help="base image, or 'bootstrap'")
    group.add_argument("--flavour", metavar="KIND", default="runtime", help="runtime or devel")
    group.add_argument("--index", metavar="URL", help="package index to ask first")


def _host_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("host (default: this one)")
    group.add_argument(
        "--host",
        metavar="FILE",
        action="append",
        default=[],
        help="facts of another machine, as `provision detect --json` prints them; "
        "- for stdin (repeatable: one plan for all)",
    )
    group.add_argument("--driver", metavar="V", help="what if: the driver were this one")
    group.add_argument(
        "--gpu",
        dest="gpus",
        metavar="NAME|CC",
        action="append",
        default=[],
        help="what if: the GPU were this one, by name or compute capability (repeatable)",
    )


def _network_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("network")
    group.add_argument("--ca-bundle", metavar="FILE", help="PEM certificates to trust")
    group.add_argument("--offline", action="store_true", help="use what is on this machine only")


def _lock_output(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--output", metavar="PATH", default="pylock.toml", help="the lock (default: pylock.toml)"
    )


def _build_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("build")
    group.add_argument("--tag", metavar="NAME:TAG", help="name of the image")
    group.add_argument("--lock", metavar="FILE", help="build exactly what this lock says")
    group.add_argument("--builder", metavar="KIND", default="auto", help="auto or docker")
    group.add_argument("--no-verify", action="store_true", help="do not run the suite afterwards")
    group.add_argument("--dry-run", action="store_true", help="print the builder's command only")


def _suite_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("suite")
    group.add_argument(
        "--level", metavar="LEVEL", default="standard", help="quick, standard (default) or full"
    )
    group.add_argument(
        "--require",
        metavar="NAMES",
        default="",
        help="checks that may not be skipped, by name (gpu,nccl,...)",
    )


def _image_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("image", metavar="IMAGE", help="an image that provision build made")


def _do_detect(args: argparse.Namespace, console: Console) -> int:
    del console
    from provision.facts import host_to_json
    from provision.host import describe, detect

    facts = detect()
    if args.json:
        _print_json(host_to_json(facts))
    else:
        _print(describe(facts))
    return Exit.DONE


def _do_plan(args: argparse.Namespace, console: Console) -> int:
    from provision.catalog import load
    from provision.planfile import plan_to_json
    from provision.resolve import resolve

    request = _request(args)
    if args.ca_bundle is not None:
        from provision.network import ca_bundle

        ca_bundle(args.ca_bundle, {})
    hosts = _hosts(args, console)
    plan = resolve(hosts, request, load())
    if args.json:
        _print_json(plan_to_json(plan))
    else:
        from provision.show import describe_plan

        _print(describe_plan(plan))
    return Exit.DONE if plan.error is None else Exit.NOTHING_COMPATIBLE


def _do_lock(args: argparse.Namespace, console: Console) -> int:
    from provision.catalog import load
    from provision.lock import LOCK_NAME, refuse_unwritable, write_lock
    from provision.pipeline import lock_for, pin_base, require_plan, show_warnings
    from provision.planfile import plan_to_json
    from provision.resolve import resolve

    request, output = _request(args), Path(args.output)
    if not LOCK_NAME.fullmatch(output.name):
        write_lock_name_error(output.name)
    refuse_unwritable(output)
    settings = _settings(args)
    hosts = _hosts(args, console)
    plan = require_plan(resolve(hosts, request, load()))
    show_warnings(plan.warnings, console)
    with console.step("base", "pinning the base image"):
        plan, _ = pin_base(plan, hosts, request, load(), settings, console, None)
    with console.step("lock", "choosing the wheels"):
        lock = lock_for(plan, request, settings, console)
    write_lock(lock, output)
    result = {
        "schema": 1,
        "path": str(output),
        "sha256": lock.sha256,
        "packages": len(lock.wheels),
        "download_bytes": lock.download_bytes,
        "plan": plan_to_json(lock.plan),
        "error": None,
    }
    if args.json:
        _print_json(result)
    else:
        _print(
            f"{output}: {len(lock.wheels)} wheels, sha256:{lock.sha256}\n"
            f"next: provision build --lock {shlex.quote(str(output))}"
        )
    return Exit.DONE


def write_lock_name_error(name: str) -> NoReturn:
    """Found out before the network is asked for anything."""
    raise BadInputError(
        f"--output {quoted(name)}: a lock file is called pylock.toml or pylock.NAME.toml.",
        fix="Choose such a name (PEP 751; installers look for it).",
    )


def _do_build(args: argparse.Namespace, console: Console) -> int:
    from provision.build import build

    request = _request(args)
    if args.builder not in {"auto", "docker"}:
        raise BadInputError(
            f"--builder {quoted(args.builder)} is not known.", fix="Use auto or docker."
        )
    if args.lock is not None:
        _refuse_against_lock(args)
    result, code = build(
        request=request,
        hosts=lambda: _hosts(args, console),
        facts=lambda: _this_host(args),
        lock_file=Path(args.lock) if args.lock is not None else None,
        tag=_tag(args.tag),
        settings=_settings(args),
        level=_level(args.level),
        require=_names(args.require),
        verify=not args.no_verify,
        dry_run=args.dry_run,
        console=console,
    )
    if args.json:
        _print_json(result)
    else:
        from provision.show import describe_build

        _print(describe_build(result))
    return code


def _refuse_against_lock(args: argparse.Namespace) -> None:
    given = [option for name, option in _DECIDED_BY_LOCK.items() if getattr(args, name)]
    if given:
        raise BadInputError(
            f"--lock has decided already what {' and '.join(given)} would decide.",
            fix="Leave one of the two away; provision lock makes another lock.",
        )


def _do_verify(args: argparse.Namespace, console: Console) -> int:
    from images.docker import Docker
    from provision.host import detect
    from provision.labels import plan_of
    from provision.pipeline import check_names, run_suite
    from provision.show import describe_report

    level, require = _level(args.level), _names(args.require)
    check_names(require)
    image = _image(args.image)
    engine = Docker.connect(fix=_engine_fix())
    plan = plan_of(engine.labels(image), image)
    facts = detect()
    with console.step("verify", f"{image}, inside it, at level {level}"):
        report, notes = run_suite(
            engine, image, plan, facts, level=level, require=require, console=console
        )
    for note in notes:
        console.note(note)
    if args.json:
        _print_json(report)
    else:
        _print(describe_report(report))
    return _exit_of_report(report)


def _exit_of_report(report: dict[str, Any]) -> int:
    return {"fit": Exit.DONE, "unfit": Exit.UNFIT}.get(report["verdict"], Exit.NO_VERDICT)


COMMANDS = (
    Command(
        name="detect",
        help="read the driver, the GPUs, the system and the engines of this host",
        options=(),
        run=_do_detect,
    ),
    Command(
        name="plan",
        help="decide what fits, and why",
        options=(_request_options, _host_options, _network_options),
        run=_do_plan,
    ),
    Command(
        name="lock",
        help="write every wheel down: version, address, size, sha256 (pylock.toml)",
        options=(_request_options, _host_options, _network_options, _lock_output),
        run=_do_lock,
    ),
    Command(
        name="build",
        help="detect, plan, lock, build the image, and prove it here",
        options=(
            _request_options,
            _host_options,
            _network_options,
            _build_options,
            _suite_options,
        ),
        run=_do_build,
    ),
    Command(
        name="verify",
        help="run the verification suite inside an image, on this machine",
        options=(_image_argument, _suite_options),
        run=_do_verify,
    ),
)


def _request(args: argparse.Namespace) -> Request:
    if args.flavour not in {"runtime", "devel"}:
        raise BadInputError(
            f"--flavour {quoted(args.flavour)} is not known.", fix="Use runtime or devel."
        )
    flavour: Flavour = "devel" if args.flavour == "devel" else "runtime"
    request = parse_request(
        cuda=args.cuda,
        framework=args.framework,
        framework_version=args.framework_version,
        python=args.python,
        companions=args.companions,
        flavour=flavour,
        base=args.base,
        index=args.index,
    )
    if request.cuda is not None:
        _refuse_unknown_cuda(request.cuda)
    return request


def _refuse_unknown_cuda(cuda: str) -> None:
    from provision.catalog import load

    catalog = load()
    if catalog.toolkit(cuda) is None:
        known = ", ".join(catalog.cuda_versions())
        raise BadInputError(
            f"There is no CUDA {cuda} that this catalog knows of.", fix=f"Known are: {known}"
        )


def _this_host(args: argparse.Namespace) -> HostFacts:
    del args
    from provision.host import detect

    return detect()


def _hosts(args: argparse.Namespace, console: Console) -> tuple[HostFacts, ...]:
    """The hosts the plan is for: those of the files, else this one; what-if laid over each."""
    del console
    from provision.facts import read_host_file

    driver = None if args.driver is None else parse_driver(args.driver)
    gpus = tuple(_what_if_gpu(text) for text in args.gpus)
    if args.host.count("-") > 1:
        raise BadInputError("--host - was given twice.", fix="Standard input holds one file.")
    hosts = tuple(read_host_file(path) for path in args.host) or (_this_host(args),)
    return tuple(_what_if(facts, driver, gpus) for facts in hosts)


def _what_if(facts: HostFacts, driver: str | None, gpus: tuple[Gpu, ...]) -> HostFacts:
    if driver is not None:
        facts = replace(facts, driver=driver, driver_cuda=None, user_mode_driver=None)
    return replace(facts, gpus=gpus) if gpus else facts


def _what_if_gpu(text: str) -> Gpu:
    capability = parse_compute_capability(text)
    if capability is not None:
        return Gpu(compute_capability=capability)
    from provision.catalog import load

    match = load().find_gpu(text)
    if match.compute_capability is not None:
        name = match.rows[0].name if len(match.rows) == 1 else text
        return Gpu(name=name, compute_capability=match.compute_capability)
    if match.status == "ambiguous":
        names = ", ".join(f"{row.name}" for row in match.rows[:6])
        raise BadInputError(
            f"--gpu {quoted(text)} could be several GPUs: {names}.",
            fix="Give the whole name, or the compute capability: --gpu 8.6",
        )
    near = f" Did you mean {' or '.join(match.suggestions[:3])}?" if match.suggestions else ""
    raise BadInputError(
        f"--gpu {quoted(text)} is not in the catalog.{near}",
        fix="Give its compute capability, which "
        "nvidia-smi --query-gpu=compute_cap --format=csv prints: --gpu 8.6",
    )


def _settings(args: argparse.Namespace) -> Any:  # noqa: ANN401  imported late, for plan's sake
    from provision.network import ca_bundle
    from provision.pipeline import Settings

    return Settings(
        ca=ca_bundle(args.ca_bundle, os.environ),
        offline=args.offline,
        state=state_directory(),
        env=os.environ,
    )


def state_directory() -> Path:
    """Where bases, locks and bug reports are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/") / ".cache"
    return Path(base) / "gpu-provision"


def _engine_fix() -> str:
    from images.engine_setup import fix_text

    return fix_text()


def _level(text: str) -> str:
    if text not in _LEVELS:
        raise BadInputError(
            f"--level {quoted(text)} is not known.", fix="Use quick, standard, full"
        )
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if len(name) > 60 or not all(c.isalnum() or c in ".-_" for c in name):
            raise BadInputError(
                f"--require {quoted(name)} is no check.", fix="python3 -m verify --list shows them"
            )
    return names


def _tag(text: str | None) -> str | None:
    if text is None:
        return None
    reference = _reference("--tag", text)
    if reference.digest is not None:
        raise BadInputError(
            "--tag takes a name and a tag, not a digest.", fix="For example: --tag team/torch:cu117"
        )
    return (
        text if reference.tag is not None and ":" in text.rpartition("/")[2] else f"{text}:latest"
    )


def _image(text: str) -> str:
    if not text.startswith("sha256:"):
        _reference("The image", text)
    return text


def _reference(what: str, text: str) -> Reference:
    from images.registry import parse_reference

    if len(text) > 400:
        raise BadInputError(
            f"{what} {quoted(text)} is longer than the name of an image may be.",
            fix="Write it as REGISTRY/PATH:TAG, for example team/torch:cu117",
        )
    return parse_reference(text)


def _print_json(value: object) -> None:
    _print(json.dumps(value, indent=2, ensure_ascii=False))


def _print(text: str) -> None:
    """A result on stdout. A reader that has gone (| head) is no error; a full disk is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise OutputError(
            f"The result cannot be written to standard output: {error.strerror}.",
            fix="Make room where it is written to, or send it elsewhere.",
        ) from error


def _failure_json(command: str, failure: Failure) -> dict[str, Any]:
    error = {"code": failure.code, "message": failure.message, "fix": failure.fix}
    extra = {"verdict": "none"} if command == "plan" else {}
    return {"schema": 1, **extra, "error": error}


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM ends the job as Ctrl-C does, so that containers and builds end with us."""
    del number, frame
    raise KeyboardInterrupt


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
            "w", prefix="gpu-provision-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        where = f"the file {file.name} (read it first; it holds no secrets we know)"
    except OSError:
        where = "the command that you typed; no file could be written with the details"
    console.fail(
        "This is a bug in gpu-provision, not in what you typed.", f"Please report it with {where}."
    )
    return Exit.BUG
