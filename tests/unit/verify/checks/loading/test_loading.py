"""What the loading checks say of readings, and what is read of control groups."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.backends.pytorch import Place
from verify.checks.loading.forks import ForkedChild, in_short, judge_started, kinds_of, read
from verify.checks.loading.room import MemoryNeed, MemoryRoom, Shm, judge_room, judge_shm
from verify.checks.loading.workers import (
    BATCH,
    NEAR,
    LoadedSamples,
    MovedBatch,
    count,
    counts,
    epoch_size,
    judge_moved,
    judge_workers,
    most_workers,
    recommend,
)
from verify.device import limits
from verify.device.limits import Limits
from verify.model.check import Status
from verify.running.children import Ending
from verify.workloads.samples import Batches, Sums

PASS, FAIL = Status.PASS, Status.FAIL
MIB = 1 << 20


def loaded(workers: int, rate: float, pinned: bool = False) -> LoadedSamples:  # noqa: FBT001, FBT002
    return LoadedSamples(workers, pinned, (rate, rate * 1.01, rate * 0.99), 0.2, 64)


GOOD = [loaded(0, 400), loaded(1, 410), loaded(2, 790), loaded(4, 1500)]


@pytest.mark.parametrize(
    ("readings", "cpus", "quota", "status", "word"),
    [
        pytest.param(GOOD, 4, None, PASS, "num_workers=4 is fastest: 1500", id="it scales"),
        pytest.param([*GOOD, loaded(4, 1600, pinned=True)], 4, None, PASS, "1500 samples/s",
                     id="pinned"),
        pytest.param([loaded(0, 400), loaded(1, 400), loaded(2, 420)], 2, 1.0, PASS,
                     "CPU quota is 1", id="slow scaling under a quota names the quota"),
        pytest.param([loaded(0, 400), loaded(1, 400), loaded(2, 410), loaded(4, 420)], 4, None,
                     PASS,
                     "4 workers are 1.1 times as fast as one: CPUs that share cores, other work",
                     id="slow scaling without a quota names other work"),
        pytest.param([*GOOD, replace(loaded(8, 0), rates=(), missing=3)], 8, None, FAIL,
                     "8 workers: 3 of 64 samples are missing",
                     id="lost samples fail, whatever came before"),
        pytest.param([replace(loaded(2, 9), doubled=1, missing=1)], 2, None, FAIL,
                     "1 of 64 samples are missing; 1 of 64 samples were repeated",
                     id="one in place of another"),
        pytest.param([replace(loaded(1, 9), damaged=2)], 1, None, FAIL,
                     "1 worker: 2 samples have wrong content", id="damaged samples fail"),
        pytest.param([replace(loaded(0, 9), damaged=2)], 1, None, FAIL, "in the main process",
                     id="no worker"),
        pytest.param([replace(loaded(1, 9), disordered=True)], 1, None, FAIL, "order was lost",
                     id="order"),
        pytest.param([LoadedSamples(2,
                                    error="RuntimeError: DataLoader timed out after 30 seconds")],
                     2, None, FAIL, "loading.fork", id="a hang points at the fork check"),
        pytest.param(
            [
                LoadedSamples(
                    2,
                    error="RuntimeError: DataLoader timed out after 30.0 seconds (unable to"
                    " allocate shared memory(shm) for file </torch_1>: No space left on device)",
                )
            ],
            2,
            None,
            FAIL,
            "--shm-size 1g",
            id="a time-out for want of shared memory is no hang",
        ),
        pytest.param([LoadedSamples(2, error="exited unexpectedly (killed by signal: Killed)")], 2,
                     None, FAIL, "give the container more memory", id="a killed worker"),
        pytest.param([LoadedSamples(2, error="OSError: [Errno 24] Too many open files")], 2, None,
                     FAIL, "--ulimit nofile=65536", id="too many open files"),
        pytest.param([LoadedSamples(2, error="RuntimeError: can't start new thread")], 2, None,
                     FAIL, "--pids-limit", id="too many threads"),
        pytest.param([LoadedSamples(2, error="killed by SIGSEGV after 0.1 s")], 2, None, FAIL,
                     "crashed", id="crash"),
        pytest.param([], 2, None, FAIL, "nothing was loaded", id="nothing loaded is no pass"),
    ],
)  # fmt: skip
def test_workers(
    readings: list[LoadedSamples], cpus: int, quota: float | None, status: Status, word: str
) -> None:
    holds(judge_workers(readings, cpus, quota, "cpu"), status, word)


def test_the_report_has_a_metric_and_a_point_for_each_setting() -> None:
    measured = judge_workers([*GOOD, loaded(4, 1600, pinned=True)], 4, None, "cuda").measured
    rates = [m for m in measured["metrics"] if m["name"] == "loader"]
    assert [m["labels"] for m in rates[-2:]] == [
        {"workers": "4", "pinned": "no"},
        {"workers": "4", "pinned": "yes"},
    ]
    assert [len(line["points"]) for line in measured["plots"][0]["lines"]] == [4, 1]
    assert measured["recommended_workers"] == 4


@given(st.dictionaries(st.integers(0, 256), st.floats(0.1, 1e6), min_size=1))
def test_the_recommendation_is_the_smallest_that_is_nearly_the_best(
    rates: dict[int, float],
) -> None:
    chosen, best = recommend(rates), max(rates.values())
    assert rates[chosen] >= best * (1 - NEAR)
    assert all(rate < best * (1 - NEAR) for n, rate in rates.items() if n < chosen)


@given(st.integers(1, 512))
def test_counts_rise_from_none_to_every_cpu(most: int) -> None:
    found = counts(most)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, most)
    assert len(found) <= most.bit_length() + 2


@given(st.integers(0, 256), st.floats(0, 1e6))
def test_an_epoch_gives_every_worker_as_many_batches(workers: int, rate: float) -> None:
    size = epoch_size(workers, rate)
    batches, rest = divmod(size, BATCH)
    assert rest == 0
    assert batches % max(1, workers) == 0
    assert batches >= 4 * max(1, workers)


@given(st.integers(1, 50), st.randoms(use_true_random=False))
def test_every_way_to_lose_or_repeat_a_sample_is_counted(size: int, random: Any) -> None:
    numbers = list(range(size))
    asked = LoadedSamples(1, samples=size)
    assert count(numbers, asked).trouble() is None
    at = random.randrange(size)
    assert count(numbers[:at] + numbers[at + 1 :], asked).missing == 1
    assert count([*numbers, at], asked).doubled == 1
    other = (at + 1) % size
    swapped = list(numbers)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    assert count(swapped, asked).disordered is (size > 1)
    assert count([], asked).missing == size


NEED = MemoryNeed(workers=4, cpus=8)
ENOUGH = Shm(1024 * MIB, 1000 * MIB, wrote=NEED.shm_bytes)


@cases(
    "found status word",
    ("enough", ENOUGH, PASS, "1000 of 1024 MiB free; 4 workers with 2 batches"),
    ("Docker's default", Shm(64 * MIB, 64 * MIB), FAIL, "--shm-size 1g"),
    ("it is named", Shm(64 * MIB, 64 * MIB), FAIL, "64 MB is Docker's default"),
    ("still too small", Shm(100 * MIB, 100 * MIB), FAIL, "100 MiB; 4 workers"),
    ("full of others", Shm(1024 * MIB, 10 * MIB), FAIL, "10 of 1024 MiB free"),
    ("room that is refused", replace(ENOUGH, error="No space left on device", full=True), FAIL,
     "but no room"),
    ("none at all", Shm(None, error="No such file"), FAIL, "No such file"),
    ("not to be written", replace(ENOUGH, error="Permission denied"), FAIL, "mode 1777"),
    ("damaged", replace(ENOUGH, damaged=True), FAIL, "memtest86+"),
    ("short of memory is told", replace(ENOUGH, wrote=MIB), PASS, "only 1 MiB tested"),
    ("no tmpfs is told", replace(ENOUGH, own=False), PASS, "on another file system"),
)  # fmt: skip
def test_shm(found: Shm, status: Status, word: str) -> None:
    holds(judge_shm(found, NEED), status, word)


@given(st.integers(2, 4), st.integers(0, 16), st.integers(1, 256))
def test_a_need_is_above_dockers_default_and_within_a_gibibyte(
    workers: int, gpus: int, cpus: int
) -> None:
    """So that what the fix says, 1 GiB, is enough for it."""
    need = MemoryNeed(workers, gpus, cpus)
    assert 64 * MIB < need.loader_bytes <= need.shm_bytes < 1024 * MIB
    assert 256 < need.files < 1024
    assert judge_shm(Shm(1 << 30, 1 << 30), need).status is PASS


def test_what_nccl_needs_counts_with_more_than_one_gpu_only() -> None:
    assert MemoryNeed(4, 1).shm_bytes == MemoryNeed(4, 0).shm_bytes == 9 * Batches.BYTES
    assert "and NCCL" in MemoryNeed(4, 8).shm_words()


ROOM = MemoryRoom(65536, 1 << 20, NEED.files, None, None, NEED.processes)


@cases(
    "room status word",
    ("enough", ROOM, PASS, "65536 open files, no limit processes"),
    ("1024 are told", replace(ROOM, files_soft=1024), PASS, "--ulimit nofile=65536"),
    ("256 fail", replace(ROOM, files_soft=256, files_had=248, files_error="Too many open files"),
     FAIL, "248 files can be opened (limit 256); 4 workers need"),
    ("hard limit", replace(ROOM, files_soft=256, files_had=248), FAIL, "ulimit -n 1048576"),
    ("what could not be had counts, whatever the limit",
     replace(ROOM, files_had=100, files_error="Too many open files in system"), FAIL, "in system"),
    ("few processes fail", replace(ROOM, processes_limit=50, processes_now=40, processes_had=9),
     FAIL, "9 threads can be started (limit 50, 40 in use)"),
)  # fmt: skip
def test_room(room: MemoryRoom, status: Status, word: str) -> None:
    holds(judge_room(room, NEED), status, word)


@cases(
    "moved status word",
    ("all came", MovedBatch(4, 9, 0, "file_descriptor"), PASS, "by file_descriptor"),
    ("one is missing", MovedBatch(4, 8), FAIL, "8 came"),
    ("two are wrong", MovedBatch(4, 9, 2), FAIL, "2 have wrong content"),
    ("SIGBUS", MovedBatch(4, 0, error="killed by SIGBUS after 1.0 s"), FAIL, "--shm-size"),
)
def test_moved(moved: MovedBatch, status: Status, word: str) -> None:
    holds(judge_moved(moved, 9), status, word)


RIGHT = [Sums.answer(i) for i in range(8)]
TRAP = "RuntimeError: Cannot re-initialize CUDA in forked subprocess"


def started(method: str, device: str = "cpu", **more: Any) -> ForkedChild:
    return read(method, device, Ending(**{"value": RIGHT, "returned": True, **more}))


def on_gpu(trap: ForkedChild) -> list[ForkedChild]:
    return [started("fork"), started("spawn", "cuda"), started("forkserver", "cuda"), trap]


RAISED = started("fork", "cuda", returned=False, raised=TRAP)
HUNG = started("fork", "cuda", returned=False, timed_out=True, seconds=30.0)


@cases(
    "found device status word",
    ("CPU", [started("fork"), started("spawn")], "cpu", PASS, "with fork, spawn, on the CPU"),
    ("the trap", on_gpu(RAISED), "cuda", PASS, "raises an error, as expected"),
    ("a trap that hangs", on_gpu(HUNG), "cuda", FAIL, "did not finish in 30 s"),
    ("no trap at all", on_gpu(started("fork", "cuda")), "cuda", PASS, "CUDA works even"),
    ("the same error on the CPU is no trap", [started("fork", returned=False, raised=TRAP)], "cpu",
     FAIL, "Cannot re-initialize"),
    ("wrong", [started("spawn", value=[1, *RIGHT[1:]])], "cpu", FAIL, "7 of 8 results"),
    ("too few", [started("spawn", value=RIGHT[:5])], "cpu", FAIL, "5 of 8 results"),
    ("a spawned worker that hangs",
     [started("spawn", returned=False, timed_out=True, seconds=90.0)], "cpu", FAIL,
     "did not start"),
    ("a worker that cannot start", [started("forkserver", returned=False, raised="EOFError")],
     "cpu", FAIL, "__main__"),
)  # fmt: skip
def test_started(found: list[ForkedChild], device: str, status: Status, word: str) -> None:
    holds(judge_started(found, device), status, word)


@cases(
    "error short",
    ("a signal", "killed by SIGBUS after 1.0 s", "killed by SIGBUS after 1.0 s"),
    ("lines", "OSError: [Errno 24]\nToo many", "OSError: [Errno 24] Too many"),
    ("of a worker's traceback, what it raised",
     ("RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
      "Original Traceback (most recent call last):\n"
      '  File "worker.py", line 3, in _worker_loop\n'
      "    data = fetcher.fetch(index)\n"
      "RuntimeError: Cannot re-initialize CUDA in forked subprocess\n"),
     "RuntimeError: Cannot re-initialize CUDA in forked subprocess"),
)  # fmt: skip
def test_an_error_is_told_in_one_line(error: str, short: str) -> None:
    assert in_short(error) == short


V2 = "sys/fs/cgroup"
V1 = "9:cpu,cpuacct:/docker/abc\n8:pids:/docker/abc\n4:memory:/docker/abc\n"


@cases(
    "place exclusive on_gpu",
    ("a GPU that lets all in", Place("cuda"), False, ["fork", "forkserver", "spawn"]),
    ("a GPU that lets one process in", Place("cuda"), True, []),
    ("no GPU", Place("cpu"), False, []),
)
def test_workers_compute_on_a_gpu_that_lets_them_in(
    place: Place,
    exclusive: bool,  # noqa: FBT001
    on_gpu: list[str],
) -> None:
    kinds = kinds_of(place, exclusive=exclusive)
    assert sorted(method for method, device in kinds if device == "cuda") == on_gpu
    assert {method for method, _ in kinds} == {"fork", "spawn", "forkserver"}


@cases(
    "cpus shm most",
    ("Docker's default of 64 MiB has room for two", 4, 64 << 20, 2),
    ("a worker for each CPU", 4, 1 << 30, 4),
    ("a big server: no more than any job uses", 224, 1 << 30, 32),
    ("a big server with little shared memory", 224, 256 << 20, 9),
    ("none free: one is tried, and says so", 8, 0, 1),
    ("no /dev/shm to ask", 8, None, 8),
)
def test_workers_are_tried_as_far_as_there_is_room(cpus: int, shm: int | None, most: int) -> None:
    assert most_workers(cpus, shm) == most


@cases(
    "files found",
    ("no control groups: no limits", {}, Limits()),
    ("v2: the page cache that would go is not in use",
     {"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "150000 100000\n",
      f"{V2}/memory.max": "1000000\n", f"{V2}/memory.current": "400000\n",
      f"{V2}/memory.stat": "anon 5\ninactive_file 100000\n", f"{V2}/pids.max": "max\n",
      f"{V2}/pids.current": "12\n"}, Limits(1.5, 1000000, 300000)),
    ("v2: a group above that is tighter counts",
     {"proc/self/cgroup": "0::/jobs/mine\n", f"{V2}/jobs/cpu.max": "200000 100000\n",
      f"{V2}/jobs/mine/cpu.max": "max 100000\n", f"{V2}/jobs/memory.max": "5000\n",
      f"{V2}/jobs/memory.current": "4000\n", f"{V2}/jobs/mine/memory.max": "4500\n",
      f"{V2}/jobs/mine/memory.current": "100\n", f"{V2}/jobs/mine/pids.max": "100\n",
      f"{V2}/jobs/mine/pids.current": "7\n"}, Limits(2.0, 5000, 4000, 100, 7)),
    ("v1 in a container: the mount is the container's own group",
     {"proc/self/cgroup": V1, f"{V2}/cpu/cpu.cfs_quota_us": "50000\n",
      f"{V2}/cpu/cpu.cfs_period_us": "100000\n",
      f"{V2}/memory/memory.limit_in_bytes": "9223372036854771712\n",
      f"{V2}/memory/memory.usage_in_bytes": "5\n", f"{V2}/pids/pids.max": "64\n",
      f"{V2}/pids/pids.current": "3\n"}, Limits(0.5, None, None, 64, 3)),
    ("v1 on the host: the group's own folder, and no quota",
     {"proc/self/cgroup": V1, f"{V2}/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
      f"{V2}/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
      f"{V2}/memory/docker/abc/memory.limit_in_bytes": "8000\n",
      f"{V2}/memory/docker/abc/memory.usage_in_bytes": "6000\n",
      f"{V2}/memory/docker/abc/memory.stat": "total_inactive_file 1000\n"},
     Limits(None, 8000, 5000)),
)  # fmt: skip
def test_limits(files: dict[str, str], found: Limits, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert limits.read(str(tmp_path)) == found


@cases(
    "quota affinity found",
    ("no quota: the affinity", None, 8, 8),
    ("a quota is rounded up", 1.5, 8, 2),
    ("never none", 0.2, 8, 1),
    ("a quota above the affinity says nothing", 64.0, 8, 8),
)
def test_cpus(
    quota: float | None, affinity: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    assert limits.cpus(Limits(cpus=quota)) == found
