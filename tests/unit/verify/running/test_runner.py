"""The runner: whatever a check does, a result comes of it."""

from __future__ import annotations

import compileall
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import cases
from verify.checks import CHECKS
from verify.device.machine import Machine
from verify.model.check import Check, Context, Outcome, Result, Status, demand, verdict
from verify.running.children import TAIL_BYTES, Child, be_patient, wait_all
from verify.running.runner import as_shared, keep_byte_code, limit_of, run

GOOD = Outcome(Status.PASS, "fine", measured={"device": "cuda"})


HANG_S = 60  # more than what a loaded machine needs for a check that ends at once


def nothing() -> None:
    """A framework that imports at once."""


def hang(_: Context) -> Outcome:
    time.sleep(10 * HANG_S)
    return GOOD


def crash(_: Context) -> Outcome:
    os.kill(os.getpid(), signal.SIGSEGV)
    return GOOD


def run_out_of_memory(_: Context) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return GOOD


def flood(_: Context) -> Outcome:
    os.write(2, b"x" * 1_000_000)
    os.write(1, b"\nthe end\n")
    raise RuntimeError("after the flood")


def fall_silent(_: Context) -> Outcome:
    os._exit(0)


def leave(_: Context) -> Outcome:
    sys.exit(0)


def give_garbage(_: Context) -> Outcome:
    return "pass"  # type: ignore[return-value]


def give_nan(_: Context) -> Outcome:
    return Outcome(Status.PASS, "fine", measured={"loss": float("nan")})


def give_good(_: Context) -> Outcome:
    return GOOD


def leave_a_child(_: Context) -> Outcome:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return GOOD


def lose_a_library(_: Context) -> Outcome:
    raise OSError("libcublas.so.11: cannot open shared object file: No such file or directory")


def one(work: Callable[[Context], Outcome], *, framework: bool) -> Result:
    check = Check("made.up", "Made up", work, limit_s=2.0, framework=framework)
    (result,) = run([check], Context(), prepare=nothing)
    return result


@pytest.mark.parametrize("framework", [False, True], ids=["from the parent", "from the stage"])
@cases(
    "work status word",
    ("a good check passes", give_good, Status.PASS, "fine"),
    ("a crash names its signal", crash, Status.ERROR, "SIGSEGV"),
    ("a SIGKILL speaks of memory", run_out_of_memory, Status.ERROR, "memory"),
    ("a megabyte of output is borne", flood, Status.ERROR, "after the flood"),
    ("exit 0 without a result is none", fall_silent, Status.ERROR, "without a result"),
    ("a check may not end the suite", leave, Status.ERROR, "SystemExit"),
    ("garbage is no outcome", give_garbage, Status.ERROR, "not an Outcome"),
    ("what JSON cannot say is no outcome", give_nan, Status.ERROR, "JSON"),
    ("a cause is looked up", lose_a_library, Status.ERROR, "libcublas.so.11"),
    ("what a check leaves running is ended", leave_a_child, Status.PASS, "fine"),
)
def test_every_end_is_a_result(
    work: Callable[[Context], Outcome], status: Status, word: str, *, framework: bool
) -> None:
    result = one(work, framework=framework)
    assert result.outcome.status is status
    assert word in f"{result.outcome.message} | {result.outcome.cause}"
    assert (result.outcome.cause is None) == (status is Status.PASS)
    assert result.seconds < HANG_S


@pytest.mark.parametrize("framework", [False, True], ids=["from the parent", "from the stage"])
def test_a_hang_fails_at_its_limit(*, framework: bool) -> None:
    check = Check("made.up", "Made up", hang, limit_s=0.3, framework=framework)
    (result,) = run([check], Context(), prepare=nothing)
    assert result.outcome.status is Status.FAIL
    assert (result.outcome.cause or "").startswith("hang")
    assert 0.2 < result.seconds < HANG_S


def late(_: Context) -> Outcome:
    time.sleep(0.6)
    return GOOD


@pytest.mark.parametrize("framework", [False, True], ids=["from the parent", "from the stage"])
@cases(
    "work timed status word",
    ("what passes passes", give_good, False, Status.PASS, "fine"),
    ("what breaks is broken", lose_a_library, False, Status.ERROR, "libcublas"),
    ("it has ten times as long", late, False, Status.PASS, "fine"),
    ("a crash may be the emulator's", crash, False, Status.SKIP,
     "lost under emulation (qemu): killed by SIGSEGV"),
    ("so may a hang", hang, False, Status.SKIP, "lost under emulation (qemu): did not finish"),
    ("no time is judged", give_good, True, Status.SKIP, "those of the emulator"),
    ("it is not even run", crash, True, Status.SKIP, "those of the emulator"),
)  # fmt: skip
def test_an_emulator_is_no_processor(
    work: Callable[[Context], Outcome], status: Status, word: str, *, timed: bool, framework: bool
) -> None:
    check = Check("made.up", "Made up", work, limit_s=0.2, framework=framework, gauge=timed)
    (result,) = run([check], Context(emulator="qemu"), prepare=nothing)
    assert (result.outcome.status, result.check) == (status, check)
    assert word in f"{result.outcome.message} | {result.outcome.cause}"
    if status is Status.SKIP:
        assert "machine with such a processor" in (result.outcome.fix or "")
    be_patient(1.0)


def test_a_framework_that_is_lost_under_emulation_is_not_the_images_fault() -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    checks = [Check("made." + name, "Made up", give_good) for name in ("a", "b")]
    results = list(run(checks, Context(emulator="qemu"), prepare=die))
    be_patient(1.0)
    assert [one.outcome.status for one in results] == [Status.SKIP, Status.SKIP]
    assert verdict(results) == "no-verdict"


@cases(
    "framework gpus limit_s",
    ("without a GPU", True, 0, 100),
    ("one starts", True, 1, 103),
    ("eight start and compute one after another", True, 8, 194),
    ("nothing is computed", False, 8, 124),
)
def test_the_limit_grows_with_the_gpus(*, framework: bool, gpus: int, limit_s: float) -> None:
    check = Check("made.up", "Made up", give_good, limit_s=100, framework=framework)
    assert limit_of(check, Context(gpus=gpus)) == pytest.approx(limit_s)


@pytest.mark.parametrize("limit_s", [0.0, -5.0])
def test_a_child_that_ended_long_ago_is_not_called_late(limit_s: float) -> None:
    """Whoever waits for several, one after the other, has no time left for the last."""
    child = Child(lambda: "done")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and can still be asked
    ending = child.wait(limit_s)
    assert (ending.value, ending.timed_out) == ("done", False)


def test_only_the_tail_of_the_output_is_kept() -> None:
    output = one(flood, framework=True).outcome.measured["output"]
    assert len(output) <= TAIL_BYTES
    assert "the end" in output


def test_a_bad_check_does_not_take_the_next_one_along() -> None:
    works = (crash, fall_silent, give_good)
    checks = [Check("made.up" + str(i), "Made up", work) for i, work in enumerate(works)]
    results = list(run(checks, Context(), prepare=nothing))
    statuses = [result.outcome.status for result in results]
    assert statuses == [Status.ERROR, Status.ERROR, Status.PASS]


def sharing(name: str, work: Callable[[], Outcome], *, framework: bool = False) -> Check:
    return Check(name, name, lambda _: work(), limit_s=1.0, framework=framework, shares=True)


def here() -> Outcome:
    return Outcome(Status.PASS, str(os.getpid()))


def fails() -> Outcome:
    return Outcome(Status.FAIL, str(os.getpid()), "because", "mend it")


def crashes() -> Outcome:
    os.kill(os.getpid(), signal.SIGSEGV)
    return here()


def hangs() -> Outcome:
    time.sleep(60)
    return here()


def raises() -> Outcome:
    raise ValueError("this check is broken")


@pytest.mark.parametrize("framework", [False, True], ids=["alone", "after an import"])
def test_checks_that_share_run_in_one_process(*, framework: bool) -> None:
    checks = [sharing(str(i), here, framework=framework) for i in range(4)]
    found = list(run(checks, Context(), prepare=lambda: None))
    assert [result.outcome.status for result in found] == [Status.PASS] * 4
    assert len({result.outcome.message for result in found}) == 1
    assert os.getpid() not in {int(result.outcome.message) for result in found}


@pytest.mark.parametrize("framework", [False, True], ids=["alone", "after an import"])
@cases(
    "bad status word",
    ("a failure may have spoiled the process", fails, Status.FAIL, ""),
    ("a crash", crashes, Status.ERROR, "SIGSEGV"),
    ("a hang", hangs, Status.FAIL, "did not finish"),
    ("a check that is broken", raises, Status.ERROR, "this check is broken"),
)
def test_a_check_that_is_lost_takes_none_along_that_it_shares_with(
    bad: Callable[[], Outcome],
    status: Status,
    word: str,
    *,
    framework: bool,
) -> None:
    work = [here, here, bad, here, here]
    checks = [sharing(str(i), one, framework=framework) for i, one in enumerate(work)]
    found = list(run(checks, Context(), prepare=lambda: None))
    assert [result.check.id for result in found] == ["0", "1", "2", "3", "4"]
    assert found[2].outcome.status is status
    assert word in found[2].outcome.message
    others = [result.outcome for i, result in enumerate(found) if i != 2]
    assert [outcome.status for outcome in others] == [Status.PASS] * 4
    assert others[0].message == others[1].message != others[2].message == others[3].message


class Counting(Machine):
    """A machine without a driver that notes each attempt to load one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self, name: str) -> Any:
        with self._file.open("a") as file:
            file.write(f"{os.getpid()} {name}\n")
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def test_the_quick_level_starts_the_driver_a_few_times(tmp_path: Path) -> None:
    """A start costs seconds for each GPU without persistence mode; each check made its own."""
    counts = tmp_path / "starts"
    checks = [check for check in CHECKS["pytorch"] if check.level == "quick" and check.replays]
    found = list(run(checks, Context(machine=Counting(counts))))
    assert len(found) == len(checks) > 10
    lines = [line.split() for line in counts.read_text().splitlines()]
    processes = {pid for pid, name in lines if "nvidia-ml" in name}
    readings = sum("nvidia-ml" in name for _, name in lines)
    # the keeper, the checks that share, and libraries.compat
    assert len(processes) == 3
    # the list of GPUs, one reading for all, and another for what is read twice; two outside
    assert readings <= 5


@cases(
    "shared outcome status",
    ("a GPU that somebody else has filled", "GPU 0: process 7, 97 % load",
     Outcome(Status.FAIL, "x", "no GPU memory is left"), Status.SKIP),
    ("nobody else is on it: the check or the card is at fault", None,
     Outcome(Status.ERROR, "CUDA out of memory. Tried to allocate 2 GiB"), Status.ERROR),
    ("wrong answers are wrong beside others, too", "GPU 0: process 7, 97 % load",
     Outcome(Status.FAIL, "3 of 512 results wrong", "the GPU"), Status.FAIL),
)  # fmt: skip
def test_what_runs_out_of_memory_beside_others_has_no_verdict(
    shared: str | None, outcome: Outcome, status: Status
) -> None:
    result = Result(sharing("any", lambda: outcome), outcome, 0.1)
    found = as_shared(result, Context(shared=shared))
    assert found.outcome.status is status
    if status is Status.SKIP:
        assert "process 7" in found.outcome.message


def test_two_checks_share_one_import() -> None:
    def read_stage(_: Context) -> Outcome:
        return Outcome(Status.PASS, "fine", measured={"stage": os.getppid()})

    checks = [Check("made." + name, "Made up", read_stage) for name in ("a", "b")]
    first, second = run(checks, Context(), prepare=nothing)
    assert first.outcome.measured == second.outcome.measured
    assert first.outcome.measured["stage"] != os.getpid()


@cases(
    "compiled writable folder is_kept",
    ("read-only and not compiled: kept", False, False, "", True),
    ("the package is compiled", True, False, "", False),
    ("Python can write beside the sources", False, True, "", False),
    ("no room but shared memory", False, False, "/dev/shm/verify-x", False),
)
def test_a_module_that_cannot_be_compiled_in_place_is_compiled_once_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    *,
    compiled: bool,
    writable: bool,
    is_kept: bool,
) -> None:
    package = tmp_path / "framework_x"
    package.mkdir()
    (package / "__init__.py").touch()
    if compiled:
        compileall.compile_dir(package, quiet=1)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(os, "access", lambda path, _: writable or path != str(package))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")  # it is there again afterwards
    folder = folder or str(tmp_path / "run")
    keep_byte_code("framework_x", folder)
    keep_byte_code("no_such_module", folder)
    where = [sys.executable, "-c", "import framework_x; print(framework_x.__cached__)"]
    done = subprocess.run(where, capture_output=True, text=True, check=True, timeout=60)
    cached = Path(done.stdout.strip())
    assert cached.is_file()
    assert cached.is_relative_to(folder) == is_kept


def no_module() -> None:
    raise ModuleNotFoundError("No module named 'torch'")


def exit_now() -> None:
    os._exit(3)


def stall() -> None:
    time.sleep(60)


@cases(
    "prepare word",
    ("no such module", no_module, "not installed"),
    ("a crash", lambda: crash(Context()), "SIGSEGV"),
    ("an exit", exit_now, "code 3"),
    ("a hang", stall, "hung"),
    ("an exception that is no Exception", sys.exit, "SystemExit"),
)
def test_an_import_that_goes_wrong_is_an_error_on_each_check(
    prepare: Callable[[], Any], word: str
) -> None:
    checks = [Check("made.a", "A", give_good), Check("made.b", "B", give_good)]
    plain = Check("made.plain", "Plain", give_good, framework=False)
    results = list(run([*checks, plain], Context(), prepare=prepare, import_limit_s=0.5))
    assert [result.outcome.status.value for result in results] == ["pass", "error", "error"]
    for result in results[1:]:
        assert word in f"{result.outcome.message} | {result.outcome.cause}"


def test_children_that_wait_for_a_lost_one_are_not_waited_for() -> None:
    started = time.monotonic()
    children = [Child(lambda: time.sleep(10 * HANG_S)), Child(lambda: os._exit(1))]
    endings = wait_all(children, limit_s=5 * HANG_S, grace_s=0.2)
    assert time.monotonic() - started < HANG_S
    assert [ending.timed_out for ending in endings] == [True, False]


def made(status: Status, *, gpu: bool = False, device: str = "cuda") -> Result:
    check = Check("made.up", "Made up", give_good, gpu=gpu)
    return Result(check, Outcome(status, "said", measured={"device": device}), 0.0)


P, F, S, E = Status.PASS, Status.FAIL, Status.SKIP, Status.ERROR


@cases(
    "results expected",
    ("all passed", [made(P), made(P, gpu=True)], "fit"),
    ("a skip that proves no GPU is no matter", [made(P), made(S)], "fit"),
    ("a GPU check was skipped", [made(P), made(S, gpu=True)], "no-verdict"),
    ("the CPU is no proof of a GPU", [made(P, gpu=True, device="cpu")], "no-verdict"),
    ("a failure outweighs a skip", [made(F), made(S, gpu=True)], "unfit"),
    ("a broken check has proven nothing", [made(P), made(E)], "unfit"),
    ("nothing ran", [made(S)], "no-verdict"),
    ("nothing was there to run", [], "no-verdict"),
)
def test_verdict(results: list[Result], expected: str) -> None:
    assert verdict(results) == expected


def test_a_required_skip_fails_and_says_why() -> None:
    result = demand(made(S), ["made.up"])
    assert result.outcome.status is F
    assert result.outcome.message == "required, but it did not run: said"
    assert result.outcome.cause == "said"


def test_another_skip_stays_one() -> None:
    assert demand(made(S), ["made.other"]).outcome.status is S
    assert demand(made(P), ["made.up"]).outcome.status is P


def test_what_closes_a_run_is_last() -> None:
    checks = [
        Check("health.end", "end", lambda _: GOOD, framework=False, closes=True),
        Check("work", "work", lambda _: GOOD),
        Check("early", "early", lambda _: GOOD, framework=False),
    ]
    found = [result.check.id for result in run(checks, Context(), prepare=nothing)]
    assert found == ["early", "work", "health.end"]
