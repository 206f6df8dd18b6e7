"""The command line: `python -m verify`. Exit codes: 0 fit, 1 unfit, 2 wrong usage, 7 no verdict,
128 and a signal's number if that ended the run before a check failed.

Without a command it runs the suite. With a baseline the exit code is 1 if anything got worse, even
if the verdict is fit: a machine may still be fit, but slower than before.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
import time
from typing import Any, List, Mapping, NoReturn, Optional, Sequence, Tuple

from verify.commands import render
from verify.commands.usage import Parser, columns, printable, show, write_whole
from verify.device import baseline as start
from verify.device import maps, recording
from verify.device.baseline import Baseline
from verify.device.machine import Machine
from verify.model import expectations, frameworks
from verify.model.check import (
    LEVELS,
    Check,
    Context,
    Outcome,
    Result,
    Status,
    UsageError,
    demand,
    is_outside,
    names,
)
from verify.model.report import Report
from verify.reports import report
from verify.running import environment, runner
from verify.running.children import Child, interrupted, interruptible, scratch

INTERRUPTED, USAGE, OUR_BUG = 130, 2, 70
PROGRESS = "GPU_PROVISION_PROGRESS"
BURN = "health.burn"
LEAST_MIN, MOST_MIN = 0.1, 10080  # a week
_SILENCE_S = 60.0
_ON_ITS_MACHINE = "run the suite on the machine that the image is for: provision verify IMAGE"
_RECORD_LIMIT_S = 180.0  # eight GPUs without persistence mode start three times, a second each

_EPILOG = """commands (each has its own --help):
  verify across --rank R ...   collectives over several nodes
  verify batch --model NAME    find the largest and the fastest batch size
  verify monitor -- COMMAND    watch the GPUs while a command runs
  verify compare A B           compare two reports
  verify render REPORT         convert a report to HTML, Markdown, ...
  verify judge REPORT          recompute the verdict of a report
  verify fleet LIST            judge the reports of many machines
"""
# Each is a module of this package with a `main(argv) -> int`, imported only when it is called.
COMMANDS = ("across", "batch", "compare", "fleet", "judge", "monitor", "render")


def main(
    argv: Optional[Sequence[str]] = None,
    checks: Optional[Mapping[str, Sequence[Check]]] = None,
) -> int:
    """Run the suite or the named command, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in COMMANDS:
            command = importlib.import_module("verify.commands." + words[0])
            return int(command.main(words[1:]))
        options = _parser().parse_args(words)
        with interruptible():
            return _main(options, checks or all_checks())
    except UsageError as error:
        return _say(str(error), USAGE)
    except KeyboardInterrupt as error:
        return _say("interrupted", next(iter(error.args), INTERRUPTED))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EIO):
            # the reader of our output is gone, or its terminal, so the rest is not needed
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return INTERRUPTED
        return _say("a bug in the suite: {}: {}".format(type(error).__name__, error), OUR_BUG)


def run() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    sys.exit(main())


def _main(options: argparse.Namespace, lists: Mapping[str, Sequence[Check]]) -> int:
    _refuse_musl()
    expect = read_expectations(options.expect)
    framework = frameworks.choose(options.framework, expect.framework_name)
    machine = _machine(options.replay_device)
    checks = [check for check in lists[framework] if check.replays or not machine.recorded]
    only, require = with_burn(options.only, options.require, options.burn)
    chosen, required = choose(checks, options.level, only, require, expect.packages)
    if options.list:  # after the names were checked, so that a caller can check names with it
        sys.stdout.write("".join("{:<22} {}\n".format(c.id, c.title) for c in checks))
        return 0
    emulator = expect.emulator or environment.emulator()
    files = render.targets(options)
    named = {"report": options.report, "record-device": options.record_device}
    render.check_targets({**{name: path for name, path in named.items() if path}, **files})
    baseline = render.baseline(options)
    facts = environment.read(expect, framework, emulator, machine)
    count = len(facts["gpus"])
    shared, before = _at_start(machine) if count else (None, None)
    burn = options.burn
    context = Context(
        expect, options.level, framework, emulator, machine, count, shared, before, burn
    )
    if options.record_device:
        _record(options.record_device, machine)
    os.rmdir(scratch())  # where it cannot be made, no check can run
    results = _run(chosen, context, required)
    if name := interrupted():
        facts["interrupted"] = name
    document = render.with_comparison(
        report.document(options.level, facts, results, only), baseline, options.tolerance
    )
    # before anything is printed: after SIGHUP there is no terminal
    problems = _write(options.report, document) + render.write_all(files, document)
    if options.json:
        show(report.dump(document))
    else:
        show(report.table(document, columns()), colour=True)
    if problems:  # printed last: the results matter more than files that could not be written
        raise UsageError("; ".join(problems))
    return report.exit_code(document)


def _refuse_musl() -> None:
    """UsageError: no framework is here, and its wheels do not load with this C library."""
    if _is_musl() and not frameworks.installed():
        raise UsageError(
            "the C library of this image is musl, and PyTorch, TensorFlow and JAX have no wheels"
            " for musl; use an image with glibc, such as Debian or Ubuntu"
        )


def _is_musl() -> bool:
    try:
        return maps.is_musl(maps.read_maps())
    except OSError:  # a chroot without /proc: what cannot be read is not refused
        return False


def _machine(path: Optional[str]) -> Machine:
    if path is None:
        return Machine()
    try:
        return recording.read(path)
    except OSError as error:
        raise UsageError("--replay-device {}: {}".format(path, error.strerror or error)) from error
    except recording.RecordingError as error:
        raise UsageError("--replay-device {}: {}".format(path, error)) from error


def _at_start(machine: Machine) -> Tuple[Optional[str], Optional[Baseline]]:
    """Who uses a GPU before the run, and all that was read then. If the driver hangs, the checks
    will report it.
    """
    from verify.checks.speed import (
        watch,  # imports all checks; commands on reports do not need them
    )

    def work() -> Any:
        seen = watch.before(machine)
        return watch.in_use(seen), start.take(machine, seen).as_dict()

    ending = Child(work).wait(environment.DRIVER_LIMIT_S)
    if not ending.returned:
        return None, None
    shared, before = ending.value
    return shared, start.from_dict(before)


def _record(path: str, machine: Machine) -> None:
    ending = Child(lambda: recording.take(machine)).wait(_RECORD_LIMIT_S)
    if not ending.returned:
        raise UsageError("--record-device: could not record the driver's answers: " + ending.how())
    try:
        write_whole(path, recording.dump(ending.value))
    except OSError as error:
        raise UsageError("--record-device {}: {}".format(path, error.strerror or error)) from error


def all_checks() -> Mapping[str, Sequence[Check]]:
    """All checks by framework; imported here, since commands on reports do not need them."""
    from verify.checks import CHECKS

    return CHECKS


def with_burn(
    only: Optional[str], require: Optional[str], burn: Optional[float]
) -> Tuple[Optional[str], Optional[str]]:
    """The names of --only and --require; --burn asks for its check at every level."""
    if burn is None:
        return only, require

    def more(names: Optional[str]) -> str:
        return BURN if names in (None, BURN) else "{},{}".format(names, BURN)

    return None if only is None else more(only), more(require)


def minutes(text: str) -> float:
    """The value of --burn. Raises ArgumentTypeError, which argparse shows."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not LEAST_MIN <= found <= MOST_MIN:
        said = "{!r:.40} is not a number of minutes from {} to {}; for half an hour: --burn 30"
        raise argparse.ArgumentTypeError(said.format(text, LEAST_MIN, MOST_MIN))
    return found


def choose(
    checks: Sequence[Check],
    level: str,
    only: Optional[str],
    require: Optional[str],
    packages: Sequence[str] = (),
) -> Tuple[List[Check], Tuple[str, ...]]:
    """The checks to run, and the ids of those whose skip is a failure.

    Required checks run at every level; a required check that --only leaves out is an error. What is
    there for `packages` of the expectations is of no level without them.
    """
    required = _ids(checks, "--require", require)
    if only is None:
        upto = LEVELS[: LEVELS.index(level) + 1]
        mine = {c.id for c in checks if c.level in upto and (packages or not c.on_request)}
        return [c for c in checks if c.id in mine or c.id in required], required
    wanted = _ids(checks, "--only", only)
    missing = [name for name in required if name not in wanted]
    if missing:
        raise UsageError("--require names checks that --only excludes: " + ", ".join(missing))
    return [check for check in checks if check.id in wanted], required


def _ids(checks: Sequence[Check], option: str, text: Optional[str]) -> Tuple[str, ...]:
    known = names(checks)
    asked = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not asked:
        raise UsageError("{} is empty; use {}".format(option, ", ".join(sorted(known))))
    for name in asked:
        if name not in known:
            said = "{}: unknown name {!r}; use {}"
            raise UsageError(said.format(option, name, ", ".join(sorted(known))))
    return tuple(dict.fromkeys(identity for name in asked for identity in known[name]))


def _run(checks: Sequence[Check], context: Context, required: Sequence[str]) -> List[Result]:
    scope = context.expect.scope
    outside = [c for c in checks if c.id not in required and is_outside(c, scope)]
    skipped = Outcome(Status.SKIP, scope.because if scope else "", fix=_ON_ITS_MACHINE)
    results = [Result(check, skipped, 0.0) for check in outside]
    each, told = _tells_each_check(), time.monotonic()
    for found in runner.run([check for check in checks if check not in outside], context):
        result = found if interrupted() else demand(found, required)
        results.append(result)
        status, now = result.outcome.status, time.monotonic()
        if not (each or status in (Status.FAIL, Status.ERROR) or now - told >= _SILENCE_S):
            continue
        told = now
        line = "{:>2}/{}  {:<5}  {:<22} {:5.1f} s\n"
        with contextlib.suppress(OSError):  # a terminal that is gone must not cost the report
            sys.stderr.write(
                line.format(
                    len(results), len(checks), status.value, result.check.id, result.seconds
                )
            )
            sys.stderr.flush()
    return runner.in_order(results, checks)


def _tells_each_check() -> bool:
    """Whether to print a line per check: on a terminal, or for `provision`, which shows the lines
    on its own terminal. A log gets only failures, and a sign of progress now and then.
    """
    return sys.stderr.isatty() or bool(os.environ.get(PROGRESS))


def read_expectations(path: Optional[str]) -> expectations.Expectations:
    """What the image should be; no expectations without a file. "-" is standard input: a node of
    a fleet gets them without writing a file.
    """
    if path is None:
        return expectations.Expectations()
    try:
        if path == "-":
            return expectations.parse(sys.stdin.read())
        with open(path, encoding="utf-8") as file:
            return expectations.parse(file.read())
    except (OSError, UnicodeDecodeError, expectations.ExpectationsError) as error:
        raise UsageError("--expect {}: {}".format(path, error)) from error


def _write(path: Optional[str], document: Report) -> List[str]:
    if path is None:
        return []
    try:
        write_whole(path, report.dump(document))
    except OSError as error:
        return ["--report {}: {}".format(path, error.strerror or error)]
    return []


def _say(message: str, code: int) -> int:
    sys.stderr.write("verify: {}\n".format(printable(message)))
    return code


def _parser() -> Parser:
    parser = Parser(
        prog="verify",
        description="Test the framework, its libraries and the GPUs of this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--level",
        choices=LEVELS,
        default="standard",
        help="which checks to run (default: standard)",
    )
    add(
        "--framework",
        choices=tuple(frameworks.FRAMEWORKS),
        help="framework to test (default: the installed one)",
    )
    add("--json", action="store_true", help="print the report as JSON")
    add("--report", metavar="FILE", help="write the report as JSON")
    render.add_options(parser)
    add("--expect", metavar="FILE", help="expectations about the image (JSON); -: stdin")
    add(
        "--require",
        metavar="NAMES",
        help="fail if these checks are skipped: gpu, nccl, devices, an id, ...",
    )
    add(
        "--burn",
        metavar="MINUTES",
        type=minutes,
        help="load all GPUs together for so long (0.1 or more; at level full: 1)",
    )
    add("--record-device", metavar="FILE", help="record the driver's answers in this file first")
    add("--replay-device", metavar="FILE", help="check a recorded machine instead of this one")
    add("--only", metavar="NAMES", help="run only these checks")
    add("--list", action="store_true", help="list the checks and exit")
    return parser
