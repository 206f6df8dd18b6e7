"""`verify monitor`: real commands, the fake driver, recordings, and a terminal of our own."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT, fake_driver, need
from tests.kit.cases import cases
from verify.commands import monitor
from verify.device.telemetry import GpuState, State
from verify.model.check import UsageError
from verify.monitoring import render, samples, view
from verify.monitoring.processes import Tree, parse_stat
from verify.monitoring.sampler import Sampler, choose, next_time, why_none
from verify.monitoring.samples import Host, Recorder, Sample
from verify.monitoring.summary import Gauge, Run, judge

DATA = ROOT / "tests" / "data" / "verify" / "monitor"
GIB = 1 << 30
LIMIT_S = 60
GPU = GpuState(
    0,
    name="NVIDIA L4",
    utilization_percent=97,
    memory_utilization_percent=35,
    memory_used_bytes=12 * GIB,
    memory_total_bytes=24 * GIB,
    power_w=60.0,
    power_limit_w=72.0,
    temperature_c=61,
    clock_sm_mhz=2000,
    clock_sm_max_mhz=2040,
    throttle_reasons=(),
)
HOST = Host(
    machine_percent=50.0,
    cores=0.5,
    cpus=8,
    workers=0,
    worker_cores=0.0,
    thread_cores=0.4,
    rss_bytes=GIB,
    read_bytes_s=0.0,
    waiting=False,
)


def run_of(*moments: Sample) -> Run:
    run = Run()
    for moment in moments:
        run.add(moment)
    return run


def steady(gpu: Mapping[str, Any], host: Mapping[str, Any] | None = None, count: int = 10) -> Run:
    """The same moment again and again, a second apart."""
    there = None if host is None else replace(HOST, **host)
    return run_of(*(Sample(float(i), (replace(GPU, **gpu),), there) for i in range(count)))


# The judge


@cases(
    "gpu host kind word",
    ("busy with full clocks", {}, {}, "compute", "SM clock at 98 %"),
    ("busy, clocks not told", {"clock_sm_mhz": None}, {}, "compute", "97 %"),
    ("bandwidth", {"memory_utilization_percent": 88}, {}, "memory", "88 %"),
    ("busy and full", {"memory_used_bytes": int(23.9 * GIB)}, {}, "compute", "no room"),
    ("power limit", {"clock_sm_mhz": 1500, "throttle_reasons": ("sw_power_cap",)}, {}, "power",
     "at the power limit in 100 %"),
    ("a harmless limit", {"throttle_reasons": ("sw_power_cap",)}, {}, "compute", "98 %"),
    ("hot", {"throttle_reasons": ("hw_slowdown", "hw_thermal_slowdown")}, {}, "heat", "heat"),
    ("brake", {"throttle_reasons": ("hw_power_brake_slowdown",)}, {}, "power", "cables"),
    ("low clocks, no reason", {"clock_sm_mhz": 1000}, {}, "unknown", "no reason"),
    ("workers that never rest", {"utilization_percent": 20},
     {"cores": 7.9, "workers": 8, "worker_cores": 7.6}, "data", "8 data workers use 7.6 CPU cores"),
    ("more workers than cores", {"utilization_percent": 20},
     {"cores": 7.9, "workers": 32, "worker_cores": 7.6}, "data", "7.9 of 8 CPU cores are busy"),
    ("a disk at work", {"utilization_percent": 20}, {"read_bytes_s": 450e6}, "data",
     "450 MB/s are read"),
    ("a slow disk", {"utilization_percent": 20}, {"waiting": True}, "data", "100 %"),
    ("one core full", {"utilization_percent": 20}, {"cores": 1.0, "thread_cores": 0.99}, "host",
     "99 % of a CPU core"),
    ("workers before the main thread", {"utilization_percent": 20},
     {"cores": 5.0, "thread_cores": 0.99, "workers": 4, "worker_cores": 3.9}, "data",
     "always busy"),
    ("idle workers are no sign", {"utilization_percent": 20}, {"workers": 8, "worker_cores": 0.4},
     "unknown", "neither"),
    ("full", {"utilization_percent": 20, "memory_used_bytes": 24 * GIB}, {}, "memory",
     "100 % full"),
    ("nothing explains it", {"utilization_percent": 20}, {}, "unknown", "neither"),
    ("all cores busy", {"utilization_percent": 20}, {"cores": 7.8}, "host", "7.8 of 8"),
    ("others take the CPUs", {"utilization_percent": 20}, {"machine_percent": 99.0}, "host",
     "0.5 cores of them with this program"),
    ("no host", {"utilization_percent": 20}, None, "unknown", "were not measured"),
    ("unused", {"utilization_percent": 0}, {}, "unused", "did any work"),
    ("not told", {"utilization_percent": None}, {}, "unknown", "its utilization"),
)  # fmt: skip
def test_the_bottleneck(
    gpu: dict[str, Any], host: dict[str, Any] | None, kind: str, word: str
) -> None:
    found = judge(steady(gpu, host))
    text = " | ".join((*found.evidence, found.advice or ""))
    assert (found.kind, word in text) == (kind, True), text


def test_a_few_samples_are_too_few() -> None:
    found = judge(steady({}, {}, count=4))
    assert (found.kind, "4 samples are too few" in found.evidence[0]) == ("unknown", True)


def test_without_a_gpu_nothing_is_judged() -> None:
    found = judge(run_of(*(Sample(float(i), (), HOST) for i in range(9))))
    assert found.evidence == ("no GPU was measured",)


def test_only_the_time_at_work_is_judged() -> None:
    """Loading a model and saving it are not what the training is like."""
    idle = replace(GPU, utilization_percent=0)
    loading = [Sample(float(i), (idle,), replace(HOST, thread_cores=1.0)) for i in range(100)]
    work = [Sample(100.0 + i, (GPU,), HOST) for i in range(10)]
    saving = [Sample(110.0 + i, (idle,), HOST) for i in range(100)]
    run = run_of(*loading, *work, *saving)
    assert judge(run).kind == "compute"
    assert run.gpus[0].window.samples == 10
    assert run.gpus[0].whole.samples == 210


def test_pauses_between_work_count() -> None:
    moments = [
        Sample(float(i), (replace(GPU, utilization_percent=90 if i % 3 == 0 else 0),), HOST)
        for i in range(31)
    ]
    run = run_of(*moments)
    assert run.gpus[0].window.samples == 31
    assert judge(run).kind == "unknown"


def test_unlike_gpus_are_told_of() -> None:
    pair = (
        GPU,
        replace(GPU, index=1, utilization_percent=64),
        replace(GPU, index=2, utilization_percent=0),
    )
    found = judge(run_of(*(Sample(float(i), pair, HOST) for i in range(9))))
    assert found.evidence[:3] == (
        "2 GPUs were busy 80 % of the time while at work",
        "unevenly: 64 % to 97 % of the time from GPU to GPU",
        "GPU 2 did nothing",
    )


@given(st.floats(1.0, 700.0), st.lists(st.floats(0.01, 50.0), min_size=1, max_size=30))
def test_energy_of_a_steady_power_is_power_by_time(power: float, steps: list[float]) -> None:
    run, now = Run(), 0.0
    for step in (0.0, *steps):
        now += step
        run.add(Sample(now, (replace(GPU, power_w=power),)))
    run.finish(now + 1.0)
    assert run.gpus[0].energy_wh == pytest.approx(power * (now + 1.0) / 3600)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=50), st.integers(0, 50))
def test_gauges_merge_as_if_counted_together(values: list[float | None], cut: int) -> None:
    whole, first, second = Gauge(), Gauge(), Gauge()
    for i, value in enumerate(values):
        whole.add(value)
        (first if i < cut else second).add(value)
    first.merge(second)
    assert (first.count, first.peak) == (whole.count, whole.peak)
    assert first.total == pytest.approx(whole.total, abs=1e-3)


def test_a_long_run_takes_no_more_memory_than_a_short_one() -> None:
    def weight(run: Run) -> int:
        return len(repr(run))

    assert weight(steady({}, {}, count=2000)) < 1.2 * weight(steady({}, {}, count=20))


@given(st.floats(0, 1e6), st.floats(0.05, 3600))
def test_the_schedule_never_drifts(now: float, interval: float) -> None:
    then = next_time(now, interval)
    assert now < then <= now + interval * (1 + 1e-9) + 1e-9
    assert abs(then / interval - round(then / interval)) < 1e-6


# Recordings


@cases(
    "name parts",
    ("nvidia-smi, past midnight", "compute.csv",
     ["11 samples in 10.0 s", "0.167 Wh", "at most 70 C", "compute", "97 %", "22.5 GiB"]),
    ("reasons", "power.csv", ["slowed by power limit 100 %", "1.36 Wh", "bottleneck: power"]),
    ("older names, no units, a second header, a line cut short", "two-gpus.csv",
     ["6 samples in 50.0 s", "3.47 Wh", "0.694 Wh", "GPU 1 did nothing", "compute"]),
    ("n/a", "no-answers.csv", ["at most 44 C", "no GPU reports its utilization"]),
    ("a torn file", "cut-short.json", ["7 samples", "8 data workers", "data:"]),
)  # fmt: skip
def test_a_recording_is_summed_up(
    name: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert monitor.main(["--replay", str(DATA / name)]) == 0
    said = capsys.readouterr()
    text = re.sub(r"\s+", " ", said.out)
    assert [part for part in parts if part not in text] == []
    assert max(map(len, said.out.splitlines())) <= 80
    assert said.err == ""


@cases(
    "text why",
    ("empty", "", "no timestamp column"),
    ("no header", "0, 97 %\n0, 98 %\n", "no timestamp column"),
    ("a header alone", "timestamp, index\n", "no samples in it"),
    ("no time", "timestamp, index\nyesterday, 0\n", "no samples in it"),
    ("empty JSON", "{}", "no samples in it"),
    ("other JSON", '{"samples": [{"gpus": []}]}', "not a recording"),
    ("JSON of numbers", '{"samples": [3]}', "not a recording"),
)
def test_what_is_no_recording_is_said_to_be_none(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "recording"
    path.write_text(text)
    with pytest.raises(UsageError, match=why):
        monitor.main(["--replay", str(path)])


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        monitor.main(["--replay", str(tmp_path / "none")])


gpu_states = st.builds(
    GpuState,
    index=st.integers(0, 15),
    name=st.none() | st.sampled_from(["NVIDIA L4", 'a "b", c']),
    utilization_percent=st.none() | st.integers(0, 100),
    memory_utilization_percent=st.none() | st.integers(0, 100),
    memory_used_bytes=st.none() | st.integers(0, 1 << 17).map(lambda mib: mib << 20),
    memory_total_bytes=st.none() | st.integers(0, 1 << 17).map(lambda mib: mib << 20),
    power_w=st.none() | st.integers(0, 10**6).map(lambda mw: mw / 1000),
    power_limit_w=st.none() | st.integers(0, 1000).map(float),
    temperature_c=st.integers(0, 120),
    clock_sm_mhz=st.none() | st.integers(0, 3000),
    clock_sm_max_mhz=st.none() | st.integers(0, 3000),
    throttle_reasons=st.none() | st.sampled_from([(), ("sw_power_cap",), ("hw_slowdown", "0x200")]),
)
hosts = st.builds(
    Host,
    machine_percent=st.none() | st.integers(0, 100).map(float),
    cores=st.none() | st.integers(0, 9000).map(lambda x: x / 1000),
    cpus=st.integers(1, 256),
    workers=st.integers(0, 64),
    rss_bytes=st.integers(0, 1 << 20).map(lambda mib: mib << 20),
    waiting=st.none() | st.booleans(),
)
moments = st.lists(
    st.tuples(st.lists(gpu_states, max_size=4, unique_by=lambda gpu: gpu.index), st.none() | hosts),
    min_size=1,
    max_size=6,
).map(lambda rows: [Sample(i / 2, tuple(gpus), host) for i, (gpus, host) in enumerate(rows)])


def record(found: Sequence[Sample]) -> tuple[str, str]:
    table, document = io.StringIO(), io.StringIO()
    table.close, document.close = lambda: None, lambda: None  # type: ignore[method-assign]
    recorder = Recorder(table, document, {"command": "x"}, 1_700_000_000.0)
    for sample in found:
        recorder.add(sample)
    recorder.finish({"exit_code": 0})
    return table.getvalue(), document.getvalue()


@given(moments)
def test_both_formats_give_back_what_was_measured(found: list[Sample]) -> None:
    table, document = record(found)
    assert list(samples.parse_json(document)) == found
    assert json.loads(document)["exit_code"] == 0
    again = list(samples.parse_csv(io.StringIO(table)))
    assert again == found


@given(moments)
def test_a_recording_gives_the_same_summary(found: list[Sample]) -> None:
    table, document = record(found)
    direct = run_of(*found)
    wanted = render.as_dict(direct, judge(direct))
    for again in (samples.parse_csv(io.StringIO(table)), samples.parse_json(document)):
        run = run_of(*again)
        assert render.as_dict(run, judge(run)) == wanted


def test_our_csv_has_nvidia_smis_columns() -> None:
    table, _ = record([Sample(0.0, (GPU,), HOST)])
    (row,) = csv.DictReader(io.StringIO(table))
    lines = (DATA / "compute.csv").read_text().splitlines()
    smi = next(csv.reader(lines, skipinitialspace=True))
    assert {name for name in smi[:12] if name not in row} == set()
    assert row["memory.used [MiB]"] == "12288"


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    recorder = Recorder(Full(), None, {})
    recorder.add(Sample(0.0, (GPU,), HOST))
    recorder.finish({})
    assert recorder.failed == "No space left on device"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (300 * GIB, "300 GiB"), (1 << 41, "2.0 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (61, "0:01:01"),
        (3599.6, "1:00:00"),
        (360000, "100:00:00"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


# Which GPUs


NAMES = [replace(GPU, index=i, uuid=f"GPU-{i}{i}{i}") for i in range(4)]


@cases(
    "asked environ watched missing",
    ("all", None, {}, (0, 1, 2, 3), []),
    ("asked for", [2, 0], {}, (2, 0), []),
    ("asked in vain", [2, 9], {}, (2,), [9]),
    ("by number", None, {"CUDA_VISIBLE_DEVICES": "1,2"}, (1, 2), []),
    ("by UUID", None, {"CUDA_VISIBLE_DEVICES": "GPU-33"}, (3,), []),
    ("hidden: all", None, {"CUDA_VISIBLE_DEVICES": ""}, (0, 1, 2, 3), []),
    ("--gpu goes first", [1], {"CUDA_VISIBLE_DEVICES": "3"}, (1,), []),
)
def test_the_gpus_that_are_watched(
    asked: list[int] | None, environ: dict[str, str], watched: tuple[int, ...], missing: list[int]
) -> None:
    assert choose(NAMES, asked, environ) == (watched, missing)


def test_numbers_of_unlike_cards_are_not_trusted() -> None:
    mixed = [NAMES[0], replace(NAMES[1], name="NVIDIA A100")]
    assert choose(mixed, None, {"CUDA_VISIBLE_DEVICES": "1"})[0] == (0, 1)
    by_bus = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert choose(mixed, None, by_bus)[0] == (1,)


@pytest.mark.parametrize(
    ("failed", "word"),
    [
        (State(error="x: cannot open shared object file"), "no NVIDIA driver library"),
        (State(error="nvmlInit_v2: Unknown Error (999)", found=True), "Unknown Error"),
        (State(), "NVML sees no GPU"),
    ],
)
def test_why_there_are_no_gpus(failed: State, word: str) -> None:
    assert word in why_none(failed)


# /proc


@pytest.mark.parametrize(
    "name", ["python", "a b", "x) R 1 (y", "((("], ids=["plain", "space", "brackets", "open"]
)
def test_any_name_may_stand_in_stat(name: str) -> None:
    rest = "S 7 1 1 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 987 4096 25 0"
    found = parse_stat(f"42 ({name}) {rest}")
    assert found is not None
    assert (found.pid, found.parent, found.state) == (42, 7, "S")
    assert (found.ticks, found.start, found.rss_pages) == (42, 987, 25)


def test_a_process_that_is_gone_is_none() -> None:
    assert parse_stat("") is None


FORKS = """
import os, sys, time
children = [os.fork() for _ in range(1)]
if children[0] and os.fork() and os.fork() == 0:
    os.execv("/bin/sleep", ["sleep", "60"])
sys.stdout.write("x"); sys.stdout.flush()
time.sleep(60)
"""


@contextlib.contextmanager
def running(code: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program of its own session, once so many of its processes have said something."""
    argv = [sys.executable, "-c", code]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.read(count) == b"x" * count
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def eventually(ask: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    deadline = time.monotonic() + limit_s
    while True:
        answer = ask()
        if answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


def test_workers_are_forked_processes_and_programs_are_not() -> None:
    with running(FORKS, 3) as process:
        tree, now = Tree(process.pid), [0.0]

        def settled() -> Host | None:
            now[0] += 1.0
            host = tree.sample(now[0])
            return host if host and host.workers == 2 else None

        host = eventually(settled)  # the sleep counts as a worker until it has started
    assert host is not None
    assert host.rss_bytes > 0
    assert host.cpus >= 1
    assert tree.sample(99.0) is None


def test_cpu_time_is_counted_from_sample_to_sample() -> None:
    with running("import sys\nsys.stdout.write('x'); sys.stdout.flush()\nwhile True: pass", 1) as p:
        tree = Tree(p.pid)
        first = tree.sample(10.0)
        assert first is not None
        assert first.cores is None
        time.sleep(0.3)
        deadline = time.monotonic() + LIMIT_S
        host = tree.sample(11.0)
        while host is not None and not host.thread_cores and time.monotonic() < deadline:
            time.sleep(0.2)
            host = tree.sample(tree._before + 1.0 if tree._before else 12.0)
    assert host is not None
    assert host.cores is not None
    assert host.cores > 0
    assert host.thread_cores is not None
    assert host.worker_cores == 0


def make_proc(folder: Path, ticks: int, read: int, state: str = "D") -> None:
    """A /proc of one process with one thread, and of a machine that was busy for so long."""
    task = folder / "7" / "task" / "7"
    task.mkdir(parents=True, exist_ok=True)
    stat = f"7 (x) {state} 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 5 4096 256 0"
    (folder / "7" / "stat").write_text(stat)
    (task / "stat").write_text(stat)
    (folder / "7" / "cmdline").write_text("x\0")
    (folder / "7" / "io").write_text(f"rchar: 1\nread_bytes: {read}\n")
    (folder / "stat").write_text(f"cpu {ticks} 0 0 {ticks} 0 0 0 0 0 0\n")


def test_rates_are_by_the_second(tmp_path: Path) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    make_proc(tmp_path, 100, 1000)
    tree = Tree(7, str(tmp_path))
    tree.sample(10.0)
    make_proc(tmp_path, 100 + hertz, 5000)
    host = tree.sample(12.0)
    assert host is not None
    assert (host.cores, host.thread_cores) == (0.5, 0.5)
    assert (host.read_bytes_s, host.waiting) == (2000.0, True)
    assert host.machine_percent == 50.0
    assert host.rss_bytes == 256 * os.sysconf("SC_PAGE_SIZE")


# The command


Monitor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def watch(tmp_path: Path) -> Monitor:
    """Run the real command line, without a driver unless the environment names one."""

    def run(*argv: str, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "verify", "monitor", *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            **more,
        )

    return run


@cases(
    "command code word",
    ("well", ["true"], 0, "true ended with exit code 0"),
    ("failing", ["sh", "-c", "exit 7"], 7, "sh ended with exit code 7"),
    ("killed", ["sh", "-c", "kill -9 $$"], 137, "was ended by SIGKILL"),
    ("terminated", ["sh", "-c", "kill -TERM $$"], 143, "was ended by SIGTERM"),
    ("not found", ["no-such-command"], 127, "no-such-command: not found"),
    ("a folder", ["/"], 126, "cannot run: Permission denied"),
)
def test_the_exit_code_is_the_commands(
    watch: Monitor, command: list[str], code: int, word: str
) -> None:
    done = watch("--", *command)
    assert (done.returncode, word in done.stderr) == (code, True), done.stderr
    assert done.stdout == ""


@cases(
    "text code word",
    ("interpreter", "#!/no/such/shell\n", 126, "interpreter in its first line"),
    ("no interpreter", "echo no first line\n", 126, "Exec format error"),
)
def test_scripts_that_cannot_start_say_why(
    watch: Monitor, tmp_path: Path, text: str, code: int, word: str
) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    done = watch("--", str(script))
    assert (done.returncode, word in done.stderr) == (code, True), done.stderr


@cases(
    "argv word",
    ("nothing", [], "no command to run"),
    ("zero", ["--interval", "0", "--", "true"], "'0' is not a number of seconds"),
    ("not a number", ["--interval", "nan", "--", "true"], "'nan' is no"),
    ("gpu", ["--gpu", "a", "--", "true"], "'a' is not a list of GPU numbers"),
    ("csv", ["--csv", "/no/such/x", "--", "true"], "--csv /no/such/x: No such"),
    ("both", ["--replay", "x", "--", "true"], "cannot be used with a command"),
    ("an option that is none", ["--odd", "--", "true"], "--odd"),
)
def test_wrong_usage_is_a_sentence(watch: Monitor, argv: list[str], word: str) -> None:
    done = watch(*argv)
    assert (done.returncode, word in done.stderr) == (2, True), done.stderr
    assert done.stderr.count("\n") == 1


def test_the_commands_streams_are_untouched(watch: Monitor) -> None:
    done = watch("--", "sh", "-c", "cat; echo err >&2; exit 3", input="in\n")
    assert (done.returncode, done.stdout) == (3, "in\n")
    assert done.stderr.startswith("err\n\nverify monitor: sh ended with exit code 3")


def test_the_commands_open_files_and_signals_are_untouched(watch: Monitor) -> None:
    reader, writer = os.pipe()
    code = (
        "import os, signal, sys; os.write(int(sys.argv[1]), b'hello');"
        "sys.exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    )
    done = watch("--", sys.executable, "-c", code, str(writer), pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert (done.returncode, file.read()) == (0, b"hello"), done.stderr


@pytest.mark.parametrize("stream", ["0", "1", "2"])
def test_a_closed_stream_is_no_trouble(watch: Monitor, stream: str) -> None:
    argv = [sys.executable, "-m", "verify", "monitor", "--", "sh", "-c", "exit 6"]
    done = watch("--", "sh", "-c", f'exec "$@" {stream}>&-', "sh", *argv)
    assert (done.returncode, "a bug" in done.stderr) == (6, False), done.stderr


def test_options_of_the_command_are_the_commands(watch: Monitor) -> None:
    done = watch("--no-live", "--", "echo", "--csv", "--", "-h")
    assert done.stdout == "--csv -- -h\n"


def test_the_end_is_noticed_at_once(watch: Monitor) -> None:
    watch("--interval", "3600", "--", "true")  # at the next sample would be after the time limit


def test_what_outlives_the_command_is_left_alone(watch: Monitor, tmp_path: Path) -> None:
    code = f"sleep 60 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    assert watch("--", "sh", "-c", code).returncode == 0
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_a_recording_is_written_and_read_again(watch: Monitor, tmp_path: Path) -> None:
    files = ["--csv", "a.csv", "--json", "a.json", "--interval", "0.05"]
    done = watch(*files, "--", "sleep", "0.5")
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["command"], document["exit_code"]) == ("sleep", 0)
    assert document["summary"]["samples"] == len(document["samples"]) >= 1
    again = watch("--replay", "a.csv")
    assert again.returncode == 0
    count = "({} samples".format(document["summary"]["samples"])
    assert count in done.stderr
    assert count in again.stdout


def test_secrets_in_arguments_are_not_written_down(watch: Monitor, tmp_path: Path) -> None:
    done = watch("--json", "a.json", "--", "true", "--token=hunter2")
    assert "hunter2" not in done.stderr + (tmp_path / "a.json").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_us_goes_to_the_command_once(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import os, signal, sys, time\n"
        # not print: the signal may come while it writes, and it cannot be entered twice
        "def got(n, _): os.write(1, b'got %d\\n' % n); time.sleep(0.5); sys.exit(5)\n"
        f"signal.signal({int(number)}, got)\nos.write(1, b'ready\\n')\n"
        # short sleeps: Python sleeps on if the signal comes just before the system call
        "while True: time.sleep(0.05)"
    )
    argv = [sys.executable, "-m", "verify", "monitor", "--", sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (5, f"got {int(number)}\n")
    assert "ended with exit code 5" in err


# With the fake driver


CARD: dict[str, object] = {
    "driver": "580.65.06",
    "nvml": "13.580.65.06",
    "cuda": 13000,
    "count": 2,
    **{
        f"gpu.{index}.{key}": value
        for index in (0, 1)
        for key, value in {
            "name": "NVIDIA L4",
            "uuid": f"GPU-{index}",
            "capability": "8.9",
            "memory": 24 * GIB,
            "used": GIB,
            "utilization": 0,
            "memory_utilization": 0,
            "temperature": 40,
            "power": 20000,
            "power_limit": 72000,
            "clock.1": 2000,
            "clock.2": 6250,
            "clock_max.1": 2040,
            "clock_max.2": 6251,
            "throttle": 1,
        }.items()
    },
}
# Works through the moments of its argument: each is what the card says until it was asked 7 times.
PHASES = """
import json, os, sys, time
path = os.environ["FAKE_DRIVER"]
def asked():
    try:
        return open(path + ".log").read().count("nvmlDeviceGetCurrentClocksEventReasons 1")
    except OSError:
        return 0
for phase in json.loads(sys.argv[1]):
    with open(path + ".new", "w") as file:
        file.write("".join("{} = {}\\n".format(*item) for item in phase.items()))
    os.replace(path + ".new", path)
    until = asked() + 7
    while asked() < until:
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"), switches=("ERROR_TEXTS",))


@pytest.fixture
def card(driver: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a machine with the fake driver."""

    def make(**changes: object) -> dict[str, str]:
        path = fake_driver.write_settings(tmp_path / "settings", {**CARD, **changes})
        return {"LD_LIBRARY_PATH": str(driver), "FAKE_DRIVER": str(path)}

    return make


def test_a_changing_card_is_followed(
    watch: Monitor, card: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    at_work = {
        **CARD,
        "gpu.1.utilization": 98,
        "gpu.1.memory_utilization": 30,
        "gpu.1.used": 20 * GIB,
        "gpu.1.power": 71000,
        "gpu.1.temperature": 77,
        "gpu.1.throttle": 4,
    }
    phases = json.dumps([CARD, at_work, CARD])
    files = ["--interval", "0.05", "--gpu", "1,5", "--json", "a.json"]
    done = watch(*files, "--", sys.executable, "-c", PHASES, phases, env=card())
    assert done.returncode == 0, done.stderr
    text = re.sub(r"\s+", " ", done.stderr)
    assert "Likely bottleneck: compute" in text
    assert "GPU 1 was busy 98 % of the time while at work" in text
    assert "peak memory 20.0 GiB of 24.0 GiB" in text
    assert "at most 77 C" in text
    assert "Note: GPU 5 does not exist; watching 1" in text
    summary = json.loads((tmp_path / "a.json").read_text())["summary"]
    (gpu,) = summary["gpus"]
    assert (gpu["utilization_percent_peak"], gpu["power_w_peak"]) == (98, 71.0)
    assert 0 < gpu["utilization_percent_mean"] < 98
    assert 0 < gpu["throttle_shares"]["sw_power_cap"] < 1
    least, most = (20 * summary["seconds"] / 3600, 71 * summary["seconds"] / 3600)
    assert least * 0.99 < gpu["energy_wh"] < most


def test_a_driver_that_fails_leaves_the_cpu(
    watch: Monitor, card: Callable[..., dict[str, str]]
) -> None:
    done = watch("--", "true", env=card(**{"error.nvmlInit": fake_driver.UNKNOWN}))
    assert done.returncode == 0
    text = re.sub(r"\s+", " ", done.stderr)
    assert "NVML fails (nvmlInit_v2: Unknown Error (999)): only the CPU is measured" in text


def test_a_driver_that_hangs_holds_nothing_up(
    watch: Monitor, card: Callable[..., dict[str, str]]
) -> None:
    done = watch("--", "sh", "-c", "exit 4", env=card(**{"sleep.nvmlInit": LIMIT_S * 2}))
    assert done.returncode == 4
    assert "NVML stopped answering" in re.sub(r"\s+", " ", done.stderr)


def test_trouble_while_sampling_is_told_and_nothing_more() -> None:
    class Broken:
        failed = State()

        def gpus(self, *_: object) -> tuple[GpuState, ...]:
            raise ValueError("odd")

    said: list[str] = []
    sampler = Sampler(os.getpid(), 0.0, 1.0, None, lambda _: None, said.append, Broken)
    sampler.start()
    assert sampler.stop(LIMIT_S)
    assert sampler.failed == "ValueError: odd"


# The live view


class Screen:
    """As much of a terminal as is needed to see what a person would see."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.top, self.bottom = 0, rows - 1
        self.saved = (0, 0)
        self.unknown: list[str] = []
        self.wrapped = False
        self.rest = ""

    def feed(self, text: str) -> None:
        whole = re.match(r"(?:\x1b\[[?0-9;]*[A-Za-z]|\x1b[^\[]|[^\x1b])*", self.rest + text)
        assert whole is not None
        self.rest = (self.rest + text)[whole.end() :]  # a sequence that is not yet complete
        for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b.|[^\x1b]", whole[0], re.DOTALL):
            if token.startswith("\x1b["):
                self._control(token[2:-1], token[-1])
            elif token in {"\x1b7", "\x1b8", "\x1bD"}:
                self._escape(token[1])
            elif token in "\r\n":
                self.column = 0 if token == "\r" else self.column
                self._down() if token == "\n" else None
            elif token >= " ":
                self._put(token)

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.wrapped, self.column = True, 0
            self._down()
        self.cells[self.row][self.column] = character
        self.column += 1

    def _down(self) -> None:
        if self.row == self.bottom:
            del self.cells[self.top]
            self.cells.insert(self.bottom, [" "] * self.columns)
        elif self.row < self.rows - 1:
            self.row += 1

    def _escape(self, letter: str) -> None:
        if letter == "7":
            self.saved = (self.row, self.column)
        elif letter == "8":
            self.row, self.column = self.saved
        else:
            self._down()

    def _control(self, numbers: str, letter: str) -> None:
        values = [int(part) for part in numbers.split(";") if part]
        if letter == "A":
            self.row = max(0, self.row - values[0])
        elif letter == "H":
            self.row, self.column = values[0] - 1, values[1] - 1
        elif letter == "K":
            assert values == [2]
            self.cells[self.row] = [" "] * self.columns
        elif letter == "r":
            self.top, self.bottom = (values[0] - 1, values[1] - 1) if values else (0, self.rows - 1)
            self.row = self.column = 0
        else:
            self.unknown.append(numbers + letter)

    @property
    def text(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]


@dataclass
class Terminal:
    """A program on a terminal of its own."""

    process: subprocess.Popen[bytes]
    master: int
    screen: Screen
    seen: str = ""

    def read(self, until: str, limit_s: float = LIMIT_S) -> None:
        """Read until the text has come, or to the end."""
        deadline = time.monotonic() + limit_s
        while not self._complete(until) and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    data = os.read(self.master, 65536)
                except OSError:  # the other end is closed
                    return
                text = data.decode()
                self.seen += text
                self.screen.feed(text)

    def _complete(self, until: str) -> bool:
        """The text has come, and no drawing is half done."""
        drawing = self.seen.count("\x1b7") > self.seen.count("\x1b8")
        return until in self.seen and not drawing

    def finish(self) -> int:
        self.read("\0never")
        return self.process.wait(timeout=LIMIT_S)


@contextlib.contextmanager
def on_terminal(
    argv: Sequence[str], env: Mapping[str, str], columns: int = 80, rows: int = 24
) -> Iterator[Terminal]:
    master, slave = need.terminal()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "verify", "monitor", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **env},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=take_terminal,  # noqa: PLW1509  # pytest has one thread here
    )
    os.close(slave)
    try:
        yield Terminal(process, master, Screen(columns, rows))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(master)


TALKING = """
import sys, time
for i in range(40):
    print("line", i, flush=True)
    time.sleep(0.02)
sys.stdout.write("ready> "); sys.stdout.flush()
sys.stdin.readline()
print("bye")
"""


def test_the_live_view_stays_below_what_the_command_prints(
    card: Callable[..., dict[str, str]],
) -> None:
    env = card(**{"gpu.0.utilization": 97, "gpu.0.throttle": 0x48, "gpu.0.temperature": 91})
    argv = ["--interval", "0.05", "--", sys.executable, "-c", TALKING]
    with on_terminal(argv, env) as terminal:
        terminal.read("ready> ")
        terminal.seen = ""
        terminal.read("GPU 1 [")
        shown = terminal.screen.text
        assert [line[:14] for line in shown[-3:]] == [
            "verify monitor",
            "GPU 0 [#######",
            "GPU 1 [       ",
        ]
        assert shown[-2].endswith("SLOWED")
        assert shown[20] == "ready>"
        assert shown[19] == "line 39"
        assert shown[0] == "line 20"
        os.write(terminal.master, b"\n")
        assert terminal.finish() == 0
    left = terminal.screen.text
    assert (terminal.screen.unknown, terminal.screen.wrapped) == ([], False)
    assert not [line for line in left if line.startswith(("verify monitor  ", "GPU 0 ["))]
    assert "bye" in left
    assert any(line.startswith("verify monitor: python") for line in left)
    assert (terminal.screen.top, terminal.screen.bottom) == (0, 23)


INTERRUPTED = """
import signal, sys, time
count = 0
def got(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, got)
print("ready", flush=True)
while not count:
    time.sleep(0.05)
time.sleep(0.5)
print("interrupted", count, flush=True)
sys.exit(3)
"""


def test_ctrl_c_reaches_the_command_once_and_the_summary_comes(
    card: Callable[..., dict[str, str]],
) -> None:
    argv = ["--interval", "0.05", "--", sys.executable, "-c", INTERRUPTED]
    with on_terminal(argv, card()) as terminal:
        terminal.read("ready")
        terminal.read("GPU 0 [")
        os.write(terminal.master, b"\x03")
        assert terminal.finish() == 3
    assert "interrupted 1" in terminal.seen
    left = terminal.screen.text
    assert any("ended with exit code 3" in line for line in left)
    assert not [line for line in left if line.startswith("GPU 0 [")]
    assert (terminal.screen.top, terminal.screen.bottom) == (0, 23)


def test_ctrl_z_stops_both_and_gives_the_terminal_back(
    card: Callable[..., dict[str, str]],
) -> None:
    argv = ["--interval", "0.05", "--", "sleep", "60"]
    with on_terminal(argv, card()) as terminal:
        terminal.read("GPU 0 [")
        os.write(terminal.master, b"\x1a")

        def stopped() -> bool:
            stat = Path(f"/proc/{terminal.process.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"

        assert eventually(stopped)
        terminal.read("\0never", limit_s=0.3)
        assert not [line for line in terminal.screen.text if line.startswith("GPU 0 [")]
        assert terminal.screen.bottom == 23
        terminal.seen = ""
        os.killpg(terminal.process.pid, signal.SIGCONT)
        terminal.read("GPU 0 [")
        assert terminal.screen.bottom == 20
        os.write(terminal.master, b"\x03")
        assert terminal.finish() == 130


def test_a_terminal_of_another_size_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    screen, block = Screen(80, 30), view.View(writer)
    sizes = [os.terminal_size((80, 24)), os.terminal_size((80, 30))]
    monkeypatch.setattr("verify.monitoring.view.os.get_terminal_size", lambda _: sizes[0])
    for _ in range(2):
        block.draw(Sample(1.0, (GPU,), HOST))
        screen.feed(os.read(reader, 65536).decode())
        del sizes[:-1]
    drawn = [i for i, line in enumerate(screen.text) if line.startswith(("verify", "GPU"))]
    assert (drawn, screen.bottom) == ([28, 29], 27)
    block.close()
    block.draw(Sample(2.0, (GPU,), HOST))  # too late
    screen.feed(os.read(reader, 65536).decode())
    assert (set(screen.text), screen.bottom) == ({""}, 29)
    os.close(reader)
    os.close(writer)


@cases(
    "argv columns rows term",
    ("not wanted", ["--no-live"], 80, 24, "xterm"),
    ("no room", [], 80, 8, "xterm"),
    ("a dumb terminal", [], 80, 24, "dumb"),
)
def test_where_it_cannot_be_drawn_there_is_only_the_summary(
    card: Callable[..., dict[str, str]], argv: list[str], columns: int, rows: int, term: str
) -> None:
    command = [*argv, "--interval", "0.05", "--", "sleep", "0.3"]
    with on_terminal(command, {**card(), "TERM": term}, columns, rows) as terminal:
        assert terminal.finish() == 0
    assert "\x1b" not in terminal.seen
    assert "ended with exit code 0" in terminal.seen


def test_a_narrow_terminal_is_not_overrun(card: Callable[..., dict[str, str]]) -> None:
    argv = ["--interval", "0.05", "--", "sleep", "0.5"]
    with on_terminal(argv, card(), columns=40) as terminal:
        terminal.read("GPU 1 [")
        assert not terminal.screen.wrapped
        assert terminal.screen.text[-2].startswith("GPU 0 [")
        assert terminal.finish() == 0


@given(st.lists(gpu_states, max_size=12), st.none() | hosts, st.floats(0, 1e6))
def test_the_block_is_never_wider_than_80_columns(
    gpus: list[GpuState], host: Host | None, seconds: float
) -> None:
    text = view.lines(Sample(seconds, tuple(gpus), host))
    assert max(map(len, text)) <= 80
    assert len(text) <= 10
