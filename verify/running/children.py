"""Runs work in a forked child with a time limit: a hang, a crash or a flood of output is a result.

It forks and does not spawn, so that a process that has imported torch once (2.5 s) can start a
child for each check in no time. This is safe as long as a process that forks later does not touch
CUDA, since a CUDA context does not survive a fork.

A signal that ends the run goes from each process to its children: what computes dies of it, and who
waits for that has some seconds to report it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import IO, Any, Callable, Iterator, List, NoReturn, Optional, Sequence, Set, Tuple

from verify.model.check import UsageError

TAIL_BYTES = 4096
EMULATION_FACTOR = 10.0  # importing torch takes 15 to 25 times as long under qemu-user
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
ENDING_S = 4.0  # Docker kills 10 s after its signal, GitHub's runner sends the next after 7.5 s
_SAME_S = 1.0  # timeout(1) sends its signal twice, and srun passes on what Slurm sends, too
_PR_SET_PDEATHSIG = 1
_BROKEN = 70  # the child could not even report what went wrong


_patience = 1.0


def be_patient(factor: float) -> None:
    """Multiply every limit here, and those of children that are started later."""
    global _patience  # noqa: PLW0603  forked children take it along
    _patience = factor


def patient(limit_s: float) -> float:
    """A limit, scaled for this machine."""
    return limit_s * _patience


_came: List[Tuple[int, float]] = []  # the signal that ends the run, and when it came
_alive: Set[int] = set()  # this process's children


@contextlib.contextmanager
def interruptible(*, again: bool = True) -> Iterator[None]:
    """Pass the first signal on to the children, instead of dying of it; then `interrupted` names
    it, and waits end early. With `again` a second one raises KeyboardInterrupt, with the exit code.
    """

    def note(number: int, _: object) -> None:
        now = time.monotonic()
        if not _came:
            _came.append((number, now))
            for pid in tuple(_alive):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        elif again and now - _came[0][1] > _SAME_S:
            raise KeyboardInterrupt(128 + number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # as nohup starts a program
                signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _came.clear()


def interrupted() -> Optional[str]:
    """The name of the signal that ends the run, if one came."""
    return signal.Signals(_came[0][0]).name if _came else None


def in_time(deadline: float, grace_s: float = ENDING_S) -> float:
    """The seconds that are left until a moment, fewer once the run was interrupted."""
    end = min(deadline, _came[0][1] + grace_s) if _came else deadline
    return end - time.monotonic()


@dataclass(frozen=True)
class Ending:
    """How a child ended: it returned a value, raised, died of a signal, or ran out of time."""

    value: Any = None
    returned: bool = False
    raised: Optional[str] = None
    signal: Optional[str] = None
    code: Optional[int] = None
    timed_out: bool = False
    output: str = ""
    seconds: float = 0.0

    def how(self) -> str:
        """The ending in one sentence."""
        if self.timed_out:
            return "did not finish in {:.0f} s".format(self.seconds)
        if self.signal:
            return "killed by {} after {:.1f} s".format(self.signal, self.seconds)
        if self.raised:
            return self.raised
        return "exited with code {} without a result".format(self.code)


class Child:
    """A forked process that does some work and returns a JSON value."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._output = spool()
        self._result = spool()
        self._started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, self._output, self._result)
        _alive.add(self.pid)
        self._ending: Optional[Ending] = None

    def poll(self) -> Optional[Ending]:
        """The ending, or None while it runs."""
        if self._ending is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ending = self._end(status, timed_out=False)
        return self._ending

    def kill(self) -> Ending:
        """Kill it now, with every process in its group."""
        if self._ending is None:
            self._kill_group()
            _, status = os.waitpid(self.pid, 0)
            self._ending = self._end(status, timed_out=True)
        return self._ending

    def wait(self, limit_s: float) -> Ending:
        """Wait for the ending; kill it after the limit."""
        deadline = time.monotonic() + patient(limit_s)
        ending = self.poll()  # it may have ended long ago, whatever time is left
        while ending is None and in_time(deadline) > 0:
            time.sleep(0.01)
            ending = self.poll()
        return ending or self.kill()

    def _kill_group(self) -> None:
        for pid in _all_below(self.pid):  # each child of a child has a group, too
            for end in (os.killpg, os.kill):  # it may not have its own group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(pid, signal.SIGKILL)

    def _end(self, status: int, *, timed_out: bool) -> Ending:
        seconds = time.monotonic() - self._started
        _alive.discard(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # whatever it left running
        said = _read_result(self._result)
        ending = Ending(
            value=said.get("value"),
            returned="value" in said and not timed_out,
            raised=said.get("raised"),
            signal=_signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None,
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            timed_out=timed_out,
            output=_tail(self._output),
            seconds=seconds,
        )
        self._output.close()
        self._result.close()
        return ending


def wait_all(children: Sequence[Child], limit_s: float, grace_s: float = 5.0) -> List[Ending]:
    """Wait for children that need each other: once one is lost, the rest get a grace period."""
    deadline = time.monotonic() + patient(limit_s)
    lost = False
    while time.monotonic() < deadline:
        endings = [child.poll() for child in children]
        if all(ending is not None for ending in endings):
            break
        if not lost and any(ending is not None and not ending.returned for ending in endings):
            lost = True
            deadline = min(deadline, time.monotonic() + patient(grace_s))
        time.sleep(0.01)
    return [child.kill() for child in children]


def spool() -> IO[bytes]:
    """An unnamed file; in memory where no folder can be written."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return os.fdopen(os.memfd_create("verify"), "w+b")


def scratch() -> str:
    """A new temporary folder, which the caller removes. A read-only container without a /tmp still
    has /dev/shm. UsageError: that is read-only, too.
    """
    for folder in (None, "/dev/shm"):  # noqa: S108
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix="verify-", dir=folder)
    raise UsageError(
        "no folder for temporary files can be written, not even /dev/shm;"
        " start the container with --tmpfs /tmp, or name a folder by TMPDIR"
    )


def _live(work: Callable[[], object], output: IO[bytes], result: IO[bytes]) -> NoReturn:
    """Run the child from start to exit. It must not return into a copy of its parent's stack."""
    code = _BROKEN
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        _die_of_signals()
        _redirect(output)
        faulthandler.enable()
        result.write(json.dumps(_attempt(work), allow_nan=False).encode())
        result.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    finally:
        os._exit(code)


def _attempt(work: Callable[[], object]) -> Any:
    try:
        value = work()
        json.dumps(value, allow_nan=False)
    except BaseException as error:  # SystemExit too: a check may not end the suite
        traceback.print_exc()
        return {"raised": "{}: {}".format(type(error).__name__, error).rstrip(": ")}
    return {"value": value}


def _redirect(output: IO[bytes]) -> None:
    """Redirect the three file descriptors: native code does not write to sys.stderr."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False, errors="replace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _die_of_signals() -> None:
    _came.clear()
    _alive.clear()
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _read_result(result: IO[bytes]) -> Any:
    result.seek(0)
    try:
        said = json.loads(result.read().decode())
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - TAIL_BYTES))
    return output.read().decode("utf-8", "replace").strip()


def _all_below(pid: int) -> List[int]:
    """A process and all that it has started, as far as /proc lists them."""
    try:
        with open("/proc/{0}/task/{0}/children".format(pid), encoding="ascii") as file:
            found = file.read().split()
    except OSError:
        found = []
    return [pid, *(one for child in found for one in _all_below(int(child)))]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal {}".format(number)
