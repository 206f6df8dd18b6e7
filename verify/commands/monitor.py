"""`verify monitor -- COMMAND`: run a command, watch GPUs, CPU and disk, and report what limits it.

The command shares this process's terminal and open files, receives its signals, and sets its exit
code. Processes that the command leaves running are not killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO, Any, Dict, List, Optional, Sequence

from verify.commands.usage import Parser, as_typed
from verify.model.check import UsageError
from verify.monitoring import render
from verify.monitoring.sampler import Sampler
from verify.monitoring.samples import FormatError, Recorder, Sample, read
from verify.monitoring.summary import Run, judge
from verify.monitoring.view import View

NOT_FOUND, NOT_RUNNABLE, OF_SIGNALS = 127, 126, 128
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.05, 3600
STOP_LIMIT_S = 3.0  # for a sample in progress when the command ends
_FROM_KERNEL = 0x80  # si_code of a signal that the terminal sent to the whole foreground
_PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
}


@dataclass(frozen=True)
class Options:
    """The command line's options."""

    command: Sequence[str]
    interval_s: float = 1.0
    table: Optional[str] = None
    document: Optional[str] = None
    gpus: Optional[Sequence[int]] = None
    live: bool = True


def main(argv: Sequence[str]) -> int:
    """Watch the command and return its exit code, or summarise a recording."""
    asked = _parser().parse_args(list(argv))
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if asked.replay:
        if command or asked.csv:
            raise UsageError("--replay cannot be used with a command or --csv")
        return _replay(asked.replay, asked.json)
    if not command:
        raise UsageError(as_typed("no command to run: verify monitor [options] -- COMMAND ..."))
    options = Options(command, asked.interval, asked.csv, asked.json, asked.gpu, not asked.no_live)
    return Watch(options).run()


class Watch:
    """One command from start to end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._run = Run()
        self._notes: List[str] = []
        self._started = time.monotonic()
        self._recorder = _recorder(options)
        terminal = options.live and _is_terminal()
        self._view = View(sys.stderr.fileno()) if terminal else None

    def run(self) -> int:
        """Start the command, watch it and print the summary."""
        _default_child_signals()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
        try:
            try:
                process = _start(self._options.command, before)
            except OSError as error:
                return self._cannot_start(error)
            sampler = self._sampler(process.pid)
            sampler.start()
            code = self._wait(process)
            self._end(sampler, code)
            return code
        finally:
            if self._view is not None:
                self._view.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _sampler(self, pid: int) -> Sampler:
        options = self._options
        return Sampler(
            pid, self._started, options.interval_s, options.gpus, self._take, self._notes.append
        )

    def _take(self, sample: Sample) -> None:
        self._run.add(sample)
        self._recorder.add(sample)
        if self._view is not None:
            self._view.draw(sample)

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        """Forward signals until the command ends, which is noticed at once."""
        awaited = _PASSED_ON | {signal.SIGCHLD}
        while process.poll() is None:
            told = signal.sigwaitinfo(awaited)
            if told.si_signo == signal.SIGTSTP:
                self._stop_too(process, told)
            elif told.si_signo != signal.SIGCHLD and told.si_code != _FROM_KERNEL:
                _send(process, told.si_signo)
        code = process.returncode
        return OF_SIGNALS - code if code < 0 else code

    def _stop_too(self, process: "subprocess.Popen[bytes]", told: Any) -> None:
        """Ctrl-Z stops the command, so stop this process too; the shell has the terminal then."""
        if told.si_code != _FROM_KERNEL:
            _send(process, signal.SIGTSTP)
        with self._view.away() if self._view is not None else contextlib.nullcontext():
            os.kill(os.getpid(), signal.SIGSTOP)

    def _end(self, sampler: Sampler, code: int) -> None:
        seconds = time.monotonic() - self._started
        if not sampler.stop(STOP_LIMIT_S):
            self._notes.append("NVML stopped answering; its measurements may be incomplete")
        if sampler.failed:
            self._notes.append("sampling stopped: " + sampler.failed)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run.finish(seconds, used.ru_maxrss * 1024 or None)
        self._sum_up(code)

    def _sum_up(self, code: int) -> None:
        found = judge(self._run)
        summary = render.as_dict(self._run, found)
        self._recorder.finish({"exit_code": code, "summary": summary})
        if self._recorder.failed:
            self._notes.append("the recording is incomplete: " + self._recorder.failed)
        if self._view is not None:
            self._view.close()
        head = "verify monitor: {} {} after {} ({} samples)".format(
            _name(self._options.command),
            _ending(code),
            render.duration(self._run.seconds),
            self._run.samples,
        )
        _tell("\n" + render.page(self._run, found, head, self._notes))

    def _cannot_start(self, error: OSError) -> int:
        """Report it as a shell does, with a shell's exit codes."""
        name, why = self._options.command[0], error.strerror or str(error)
        missing = isinstance(error, FileNotFoundError) and not os.path.exists(name)
        if isinstance(error, FileNotFoundError):
            why = "the interpreter in its first line does not exist"
        why = "not found" if missing else "cannot run: " + why
        code = NOT_FOUND if missing else NOT_RUNNABLE
        self._recorder.finish({"exit_code": code, "summary": None})
        _tell("verify monitor: {}: {}\n".format(name, why))
        return code


def _start(command: Sequence[str], mask: Any) -> "subprocess.Popen[bytes]":
    """Keep open files and restore blocked signals, so that the command runs as if alone."""
    return subprocess.Popen(
        command,
        close_fds=False,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509  # one thread
    )


def _default_child_signals() -> None:
    """Reset SIGCHLD: a process that ignores it does not get its child's exit code."""
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        process.send_signal(number)


def _name(command: Sequence[str]) -> str:
    return os.path.basename(command[0]) or command[0]


def _ending(code: int) -> str:
    with contextlib.suppress(ValueError):
        if code > OF_SIGNALS:
            return "was ended by {}".format(signal.Signals(code - OF_SIGNALS).name)
    return "ended with exit code {}".format(code)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, ValueError):  # closed, by the caller or by this process
        return False


def _tell(text: str) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed
        sys.stderr.write(text)
        sys.stderr.flush()


def _recorder(options: Options) -> Recorder:
    started = time.time()
    head: Dict[str, Any] = {
        "command": _name(options.command),  # its arguments may contain secrets
        "interval_s": options.interval_s,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
    }
    table, document = _open("--csv", options.table), _open("--json", options.document)
    return Recorder(table, document, head, started)


def _open(option: str, path: Optional[str]) -> Optional[IO[str]]:
    """Open a file that is written line by line, so that an aborted run keeps its measurements."""
    if path is None:
        return None
    try:
        return open(path, "w", encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError("{} {}: {}".format(option, path, error.strerror or error)) from error


def _replay(path: str, document: Optional[str]) -> int:
    """Summarise a recording as text, and as JSON if requested."""
    try:
        samples = read(path)
    except FormatError as error:
        raise UsageError("--replay {}: {}".format(path, error)) from error
    run = Run()
    head = {"command": None, "interval_s": None, "started": None}
    recorder = Recorder(None, _open("--json", document), head)
    for sample in samples:
        run.add(sample)
        recorder.add(sample)
    found = judge(run)
    recorder.finish({"exit_code": None, "summary": render.as_dict(run, found)})
    said = "verify monitor: {} ({} samples in {})"
    text = said.format(os.path.basename(path), run.samples, render.duration(run.seconds))
    sys.stdout.write(render.page(run, found, text, []))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="verify monitor",
        description="Run a command, watch GPUs, CPU and disk, and report what limits it.",
        usage="%(prog)s [options] -- COMMAND ...",
    )
    add = parser.add_argument
    add(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="S",
        help="seconds between samples (default: 1)",
    )
    add("--csv", metavar="FILE", help="write the samples as CSV, with nvidia-smi's column names")
    add("--json", metavar="FILE", help="write the samples and the summary as JSON")
    add(
        "--gpu", type=_numbers, metavar="I,J", help="GPUs to watch (default: those visible to CUDA)"
    )
    add("--no-live", action="store_true", help="show only the summary at the end")
    add(
        "--replay",
        metavar="FILE",
        help="summarise a recording (of --csv or --json, or CSV of nvidia-smi)",
    )
    add("command", nargs=argparse.REMAINDER, help="command to run, with its arguments")
    return parser


def _interval(text: str) -> float:
    with contextlib.suppress(ValueError):
        if LEAST_INTERVAL_S <= float(text) <= MOST_INTERVAL_S:
            return float(text)
    said = "{!r} is not a number of seconds from {} to {}"
    raise argparse.ArgumentTypeError(said.format(text, LEAST_INTERVAL_S, MOST_INTERVAL_S))


def _numbers(text: str) -> List[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise argparse.ArgumentTypeError("{!r} is not a list of GPU numbers".format(text))
    return [int(part) for part in parts]
