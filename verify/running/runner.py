"""Runs checks, each in its own child; framework checks fork from a child that has imported it.

The parent never imports the framework and never loads a driver library, so neither can lose the
report. Framework checks are forked from one *stage*: it imports the framework once, touches nothing
more, and sends a JSON line for each check through a pipe.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import select
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from verify.device import nvml
from verify.device.machine import Machine
from verify.model.check import IMAGE, Check, Context, Outcome, Result, Status
from verify.model.frameworks import FRAMEWORKS
from verify.running.children import (
    EMULATION_FACTOR,
    ENDING_S,
    Child,
    Ending,
    be_patient,
    in_time,
    interrupted,
    interruptible,
    patient,
    scratch,
)
from verify.running.faults import of_text, with_fault
from verify.running.symptoms import explain, kind, last_words

IMPORT_LIMIT_S = 180.0  # a cold import from a slow disk takes a minute
MORE_FOR_A_GPU = 0.1  # of the limit, for each GPU after the first: checks use one after another
GPU_START_S = 3.0  # per GPU without persistence mode: 1 to 3 s, by NVIDIA's forum
_KEEP_S = 86400.0
GRACE_S = 15.0  # on top of a check's own limit, which the stage keeps
_LOOK_S = 0.1
_SIGNAL_CAUSES = {
    "SIGKILL": "the kernel's out-of-memory killer or the container's memory limit, most likely",
    "SIGILL": "this CPU lacks an instruction that the framework was compiled for",
    "SIGBUS": "a full /dev/shm, most likely: a memory-mapped file could not grow",
    "SIGSEGV": "a crash in native code",
    "SIGABRT": "native code called abort()",
}
_REAL_MACHINE = "run it on a machine with such a processor, or try a newer emulator (qemu 8.2 on)"
_SIGNAL_FIXES = {
    "SIGKILL": "give the container more memory",
    "SIGILL": "choose an older framework version, or a newer machine",
    "SIGBUS": "start the container with --shm-size 1g or --ipc host",
}


def run(
    checks: Sequence[Check],
    context: Context,
    *,
    prepare: Optional[Callable[[], None]] = None,
    import_limit_s: float = IMPORT_LIMIT_S,
) -> Iterator[Result]:
    """Run the checks, those without a framework first, and yield each result as it comes; those
    that close the run are last.

    `prepare` is what the stage does before it forks: at least, it imports the framework.
    """
    be_patient(EMULATION_FACTOR if context.emulator else 1.0)
    if context.emulator:
        skipped = _unmeasured(context.emulator)
        yield from (Result(check, skipped, 0.0) for check in checks if check.gauge)
        checks = [check for check in checks if not check.gauge]
    keeper = Child(lambda: _keep(context.machine))
    try:
        closing = [check for check in checks if check.closes]
        plain = [check for check in checks if not check.framework and not check.closes]
        for result in run_each(sorted(plain, key=lambda check: not check.shares), context):
            yield _judged(result, context)
        yield from _staged(checks, context, prepare, import_limit_s)
        for result in run_each(closing, context):
            yield _judged(result, context)
    finally:
        keeper.kill()


def _keep(machine: Machine) -> None:
    """Hold the driver open for the run. Without persistence mode it shuts down a GPU that no
    process has open, and each start then takes a second or more per GPU.
    """
    with contextlib.suppress(OSError):
        if machine.load(nvml.LIBRARY).nvmlInit_v2() == 0:
            time.sleep(_KEEP_S)


def _staged(
    checks: Sequence[Check],
    context: Context,
    prepare: Optional[Callable[[], None]],
    import_limit_s: float,
) -> Iterator[Result]:
    staged = [check for check in checks if check.framework]
    if interrupted():
        yield from run_each(staged, context)
    elif staged:
        prepare = prepare or FRAMEWORKS[context.framework].load
        for result in _run_staged(staged, context, prepare, import_limit_s):
            yield _judged(result, context)


def _judged(result: Result, context: Context) -> Result:
    """A result as it counts on this machine, with what is at fault."""
    name = interrupted()
    if name and result.lost:
        return replace(result, outcome=cut_short(name, result.seconds))
    return with_fault(as_shared(_as_emulated(result, context), context))


def cut_short(name: str, seconds: float = 0.0) -> Outcome:
    """The outcome of a check that had not ended when a signal came; without seconds it had not
    begun.
    """
    said = "the run was interrupted ({})".format(name)
    how = "it did not end: {} after {:.0f} s" if seconds else "not run: {}"
    return Outcome(Status.SKIP, how.format(said, seconds))


def as_shared(result: Result, context: Context) -> Result:
    """Turn a failure for lack of GPU memory into a skip if other programs use the GPU."""
    outcome = result.outcome
    bad = outcome.status in (Status.FAIL, Status.ERROR)
    told = " ".join(filter(None, (outcome.message, outcome.cause)))
    if not (context.shared and bad and kind(told) == "memory"):
        return result
    message = "a GPU is in use ({}): {}".format(context.shared, outcome.message)
    return replace(result, outcome=replace(outcome, status=Status.SKIP, message=message))


def _unmeasured(emulator: str) -> Outcome:
    message = "times and memory use would be those of the emulator ({})".format(emulator)
    return Outcome(Status.SKIP, message, fix=_REAL_MACHINE)


def _as_emulated(result: Result, context: Context) -> Result:
    """Turn a check that was lost under an emulator, to a signal or a timeout, into a skip: an
    emulator lacks features, has faults of its own and is slow, so the image may be fine.
    """
    if not (context.emulator and result.lost):
        return result
    outcome = result.outcome
    message = "lost under emulation ({}): {}".format(context.emulator, outcome.message)
    skipped = replace(outcome, status=Status.SKIP, message=message, fix=_REAL_MACHINE)
    return replace(result, outcome=skipped)


def run_each(checks: Sequence[Check], context: Context) -> Iterator[Result]:
    """Run each check in its own child, but consecutive checks that share in one child."""
    left = list(checks)
    while left:
        name = interrupted()
        if name:
            yield Result(left.pop(0), cut_short(name), 0.0)
        elif left[0].shares:
            together = list(itertools.takewhile(lambda check: check.shares, left))
            done = list(_run_together(together, context))
            yield from done
            left = left[len(done) :]
        else:
            yield run_check(left.pop(0), context)


def limit_of(check: Check, context: Context) -> float:
    """Seconds that a check may take here, with time to start each GPU that no process holds."""
    more = MORE_FOR_A_GPU * max(0, context.gpus - 1) if check.framework else 0.0
    burning_s = 60 * (context.burn_min or 0) if check.burns else 0.0
    return check.limit_s * (1 + more) + GPU_START_S * context.gpus + burning_s


def run_check(check: Check, context: Context) -> Result:
    """Run one check in a child."""
    ending = Child(lambda: outcome_of(check, context)).wait(limit_of(check, context))
    lost = ending.timed_out or ending.signal is not None
    return Result(check, judge_ending(ending), ending.seconds, lost)


def _run_together(checks: Sequence[Check], context: Context) -> Iterator[Result]:
    """Run checks in one child until one fails, since a failure may have spoiled the process.

    If the child is lost, the check that ran then is blamed; those after it have not run.
    """
    source, sink = os.pipe()

    def work() -> None:
        for check in checks:
            start = time.monotonic()
            outcome = outcome_of(check, context)
            _send(sink, {"outcome": outcome, "seconds": time.monotonic() - start})
            if outcome["status"] in ("fail", "error"):
                return

    child = Child(work)
    os.close(sink)
    lines = _Lines(source)
    try:
        for check in checks:
            said = lines.next(patient(limit_of(check, context)))
            if said is None:
                ending = child.wait(1.0)  # its pipe is closed a moment before it has ended
                lost = ending.timed_out or ending.signal is not None
                yield Result(check, judge_ending(ending), ending.seconds, lost)
                return
            result = Result(check, Outcome.from_dict(said["outcome"]), said["seconds"])
            yield result
            if result.outcome.status in (Status.FAIL, Status.ERROR):
                return
    finally:
        child.kill()
        os.close(source)


def outcome_of(check: Check, context: Context) -> Dict[str, Any]:
    """What a check's child returns."""
    outcome = check.run(context)
    if not isinstance(outcome, Outcome):
        raise TypeError("the check returned {!r:.80}, not an Outcome".format(outcome))
    return outcome.as_dict()


def judge_ending(ending: Ending) -> Outcome:
    """The outcome that a check's child returned, or one that says how it was lost."""
    if ending.returned:
        return Outcome.from_dict(ending.value)
    words = last_words(ending.output)
    if ending.timed_out:
        cause, fix = explain(ending.output)
        said = "hang: no progress" if not words else "hang; the last words: " + words
        return _lost(Status.FAIL, ending, cause or said, fix)
    if ending.signal:
        said = _SIGNAL_CAUSES.get(ending.signal, "killed from outside, or by native code")
        cause = said if not words else "{}; the last words: {}".format(said, words)
        lost = _lost(Status.ERROR, ending, cause, _SIGNAL_FIXES.get(ending.signal))
        return replace(lost, at_fault=IMAGE) if ending.signal == "SIGILL" else lost
    cause, fix = explain((ending.raised or "") + "\n" + ending.output)
    return _lost(Status.ERROR, ending, cause or words or "the check itself failed", fix)


def _lost(status: Status, ending: Ending, cause: str, fix: Optional[str]) -> Outcome:
    measured = {"output": ending.output} if ending.output else {}
    return Outcome(status, ending.how(), cause=cause, fix=fix, measured=measured)


def _run_staged(
    checks: Sequence[Check],
    context: Context,
    prepare: Callable[[], None],
    import_limit_s: float,
) -> Iterator[Result]:
    source, sink = os.pipe()
    folder = scratch()
    stage = Child(lambda: _serve(checks, context, prepare, sink, folder))
    os.close(sink)
    lines = _Lines(source)
    left = list(checks)
    try:
        ready = lines.next(patient(import_limit_s))
        while left and ready is not None:
            said = lines.next(patient(limit_of(left[0], context) + GRACE_S))
            if said is None:
                break
            outcome = Outcome.from_dict(said["outcome"])
            yield Result(left.pop(0), outcome, said["seconds"], said["lost"])
        ending = stage.wait(1.0)
    finally:
        stage.kill()
        os.close(source)
        shutil.rmtree(folder, ignore_errors=True)
    for check in left:
        module = FRAMEWORKS[context.framework].module
        yield Result(check, judge_stage(ending, module, imported=ready is not None), 0.0, lost=True)


def _serve(
    checks: Sequence[Check],
    context: Context,
    prepare: Callable[[], None],
    sink: int,
    folder: str,
) -> None:
    """The stage: import once, then fork for each check."""
    # Files that a framework leaves (compiled kernels, generated sources) are removed with the run:
    # a check's child ends without the clean-up that a whole program would do.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    keep_byte_code(FRAMEWORKS[context.framework].module, folder)
    problem = _import_problem(prepare, FRAMEWORKS[context.framework].module)
    _send(sink, {"ready": problem is None})
    with interruptible(again=False):
        results = run_each(checks, context)
        if problem:
            results = (Result(check, problem, 0.0) for check in checks)
        for result in results:
            row = {"outcome": result.outcome.as_dict(), "seconds": result.seconds}
            _send(sink, {**row, "lost": result.lost})


def keep_byte_code(module: str, folder: str) -> None:
    """Keep compiled modules in the run's folder if the framework has none and its place is
    read-only: else each child that imports more of it compiles that again, for seconds.
    """
    # /dev/shm may be small, and checks need it.
    if sys.dont_write_bytecode or sys.pycache_prefix or folder.startswith("/dev/shm/"):  # noqa: S108
        return
    with contextlib.suppress(ImportError, ValueError):  # the import will say what is wrong
        found = importlib.util.find_spec(module)
        if found is None or not found.cached or os.path.exists(found.cached):
            return
        if not os.access(os.path.dirname(found.origin or ""), os.W_OK):
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = os.path.join(folder, "pyc")


def _import_problem(prepare: Callable[[], None], module: str) -> Optional[Outcome]:
    try:
        prepare()
    except BaseException as error:  # a library's initialiser may raise anything
        return judge_import("{}: {}".format(type(error).__name__, error), module)
    return None


def judge_import(text: str, module: str) -> Outcome:
    """A framework check's outcome if the framework cannot be imported."""
    cause, fix = explain(text)
    message = "{} cannot be imported: {}".format(module, text.replace("\n", " "))
    cause, fix = cause or text.partition("\n")[0], fix or "build the image again from its lock"
    return Outcome(Status.ERROR, message, cause, fix, at_fault=of_text(text) or IMAGE)


def judge_stage(ending: Ending, module: str, *, imported: bool) -> Outcome:
    """A framework check's outcome if the process that was to run it was lost."""
    when = ("after importing " if imported else "importing ") + module
    how = "hung" if ending.timed_out else ending.how()
    words = last_words(ending.output)
    cause = _SIGNAL_CAUSES.get(ending.signal or "", "") if not ending.timed_out else "hang"
    fix = _SIGNAL_FIXES.get(ending.signal or "")
    truncated = not imported and ending.signal == "SIGBUS"  # no shared memory is used that early
    if truncated:
        cause, fix = "a library file is truncated: the loader read past its end", None
    return Outcome(
        Status.ERROR,
        "not run: the process {} was lost: {}".format(when, how),
        cause="; ".join(part for part in (cause, words) if part) or None,
        fix=fix or "build the image again from its lock",
        measured={"output": ending.output} if ending.output else {},
        at_fault=IMAGE if truncated or ending.signal == "SIGILL" else None,
    )


def _send(sink: int, message: Dict[str, Any]) -> None:
    data = json.dumps(message, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(sink, data) :]


class _Lines:
    """JSON lines from a pipe, each with a deadline."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._buffer = b""

    def next(self, limit_s: float) -> Optional[Dict[str, Any]]:
        """The next line, or None if it does not come in time."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            wait_s = in_time(deadline, ENDING_S + 1)  # the child has children to wait for
            if wait_s <= 0:
                return None
            if not select.select([self._source], [], [], min(wait_s, _LOOK_S))[0]:
                continue
            data = os.read(self._source, 65536)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: Dict[str, Any] = json.loads(line.decode())
        return message


def in_order(results: Sequence[Result], checks: Sequence[Check]) -> List[Result]:
    """The results in the order of the list."""
    place = {check.id: i for i, check in enumerate(checks)}
    return sorted(results, key=lambda result: place[result.check.id])
