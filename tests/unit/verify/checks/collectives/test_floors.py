"""What bus bandwidth is enough, by class and size, and where nothing is known."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.cases import cases
from verify.checks.collectives import bandwidth, floors, room
from verify.checks.collectives.ranks import Rank, Team, Trace, World
from verify.checks.health.links import slowest_link
from verify.device.telemetry import GpuProcess, GpuState, NvLink, Pair, State
from verify.model.check import Status
from verify.running.children import Ending

MIB, GIB = 1 << 20, 1 << 30
PASS, FAIL = Status.PASS, Status.FAIL


def board(name: str, capability: str, count: int = 8, links: int = 18, **more: Any) -> State:
    """GPUs that NVLinks join with each other, or the host, if there are none."""
    fields = {"pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16, **more}
    wired = tuple(NvLink(i, active=True) for i in range(links))
    gpus = tuple(
        GpuState(i, name=name, compute_capability=capability, nvlinks=wired, **fields)
        for i in range(count)
    )
    path = f"NV{links}" if links else "SYS"
    pairs = tuple(Pair(i, j, path, "ok") for i in range(count) for j in range(i + 1, count))
    return State(gpus=gpus, pairs=pairs, found=True)


H100 = board("NVIDIA H100 80GB HBM3", "9.0")
H100_IN_VM = board("NVIDIA H100 80GB HBM3", "9.0", virtualization="passthrough")
H200 = board("NVIDIA H200", "9.0")
A100 = board("NVIDIA A100-SXM4-80GB", "8.0", links=12)
B200 = board("NVIDIA B200", "10.0")
GB300 = board("NVIDIA GB300", "10.3", 4)
RTX_4090 = board("NVIDIA GeForce RTX 4090", "8.9", links=0)


def reached(
    gbs: float, size: int, count: int, operation: str = "all-reduce", *, together: bool = False
) -> World:
    seconds = size * bandwidth.bus_factor(operation, count) / gbs / 1e9
    rows = [{"operation": operation, "bytes": size, "seconds": [seconds] * 5}]
    value = [rows] * count if together else rows
    endings = (Ending(value=value, returned=True),) * (1 if together else count)
    return World(Team("nccl", count), endings, (Trace(),) * len(endings), together=together)


@cases(
    "gbs size seen status word",
    ("H100 as published", 480, 8 * GIB, H100, PASS, "all-reduce 480 GB/s of 450 (NVLink"),
    ("H100 by a ring without NVLS", 366, 8 * GIB, H100, PASS, ""),
    ("H100 far below its class", 300, 8 * GIB, H100, FAIL, "8 H100 or H200 reach 480"),
    ("in a virtual machine too", 300, 8 * GIB, H100_IN_VM, FAIL, "8 H100 or H200 reach 480"),
    ("of 1 GB less is published", 300, GIB, H100, PASS, ""),
    ("H100 at 1 GiB", 280, GIB, H100, FAIL, "8 H100 or H200 reach 443"),
    ("H200 at 256 MiB", 240, 256 * MIB, H200, FAIL, "8 H100 or H200 reach 386"),
    ("at 64 MiB the link's share counts", 140, 64 * MIB, H100, PASS, ""),
    ("below the link's share", 130, 64 * MIB, H100, FAIL, "NVLink (18 links a pair) can do 450"),
    ("small messages", 1, 32 * MIB, H100, PASS, "not judged"),
    ("four of the board's GPUs", 300, 8 * GIB, board("NVIDIA H100 80GB HBM3", "9.0", 4), PASS, ""),
    ("H100 NVL is another card", 300, 8 * GIB, board("NVIDIA H100 NVL", "9.0"), PASS, ""),
    ("H800", 130, 8 * GIB, board("NVIDIA H800", "9.0", links=8), FAIL, "8 H800 reach 215"),
    ("A100 as a cloud demands", 228, 8 * GIB, A100, PASS, ""),
    ("A100 at a third of the link", 120, 8 * GIB, A100, FAIL, "8 A100 SXM reach 228"),
    ("A100 at 4 GiB", 120, 4 * GIB, A100, PASS, ""),
    ("B200", 500, 8 * GIB, B200, FAIL, "8 B200 reach 830"),
    ("of B200 nothing is published at 64 MiB", 100, 64 * MIB, B200, PASS, "not judged"),
    ("a tray", 681, 8 * GIB, GB300, PASS, "of 900 (NVLink"),
    ("a slow tray", 400, 8 * GIB, GB300, FAIL, "4 GB200 or GB300 of a tray reach 681"),
    ("two GPUs of a tray", 1, 8 * GIB, board("NVIDIA GB200", "10.0", 2), PASS, "not judged"),
    ("over the host", 14.5, 128 * MIB, RTX_4090, PASS, "through the host"),
    ("MIG", 1, 8 * GIB, board("NVIDIA H100 80GB HBM3", "9.0", mig=True), PASS, "1 GB/s, 8 GPUs"),
    ("encrypted memory", 1, 8 * GIB, replace(H100, confidential=True), PASS, "not judged"),
    ("unknown links", 1, 8 * GIB, State(), PASS, "1 GB/s, 8 GPUs"),
)  # fmt: skip
def test_bandwidth_by_class(gbs: float, size: int, seen: State, status: Status, word: str) -> None:
    outcome = bandwidth.judge_bandwidth(reached(gbs, size, len(seen.gpus) or 8), seen, {})
    assert outcome.status is status, outcome.message
    assert word in outcome.message


def test_slow_links_that_others_use_give_no_verdict() -> None:
    user = replace(H100.gpus[3], processes=(GpuProcess(4711),), utilization_percent=90)
    before = replace(H100, gpus=(*H100.gpus[:3], user, *H100.gpus[4:]))
    slow = bandwidth.judge_bandwidth(reached(100, 8 * GIB, 8), H100, {}, before)
    assert slow.status is Status.SKIP
    assert slow.message.startswith("in use (GPU 3: process 4711")
    assert "nvidia-smi" in str(slow.fix)
    assert bandwidth.judge_bandwidth(reached(480, 8 * GIB, 8), H100, {}, before).status is PASS


@cases(
    "world",
    ("an operation of which nothing is published", reached(140, 8 * GIB, 8, "all-gather")),
    ("a framework that joins its calls otherwise", reached(140, 8 * GIB, 8, together=True)),
)
def test_only_what_was_measured_so_is_compared_with_its_class(world: World) -> None:
    assert bandwidth.judge_bandwidth(world, H100, {}).status is PASS


def test_the_table_is_sound() -> None:
    data = floors.published()
    assert 0.6 <= data["least_share"] <= 0.7
    for row in data["rows"]:
        assert set(row) == {"class", "cards", "gpus", "bytes", "gbs", "source"}
        re.compile(row["cards"])
        assert row["bytes"] >= floors.LARGE
    assert slowest_link(B200, 8)


# What there is room for


class _Place:
    def __init__(self, free: int | None) -> None:
        self._free = free

    def release(self) -> None:
        pass

    def free_bytes(self) -> int | None:
        return self._free


class _Rank(Rank):
    """A rank whose GPU has so much memory left, and whose vote is all there are."""

    free: int | None = None

    @property
    def place(self) -> Any:
        return _Place(self.free)


def _rows(size: int, wrong_at: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"bytes": size, "wrong": int(size in wrong_at)}, {"bytes": size, "wrong": 0}]


@cases(
    "most wrong_at sizes",
    ("all are right", 64, (), [64, 64]),
    ("there is no room for the last", 16, (), [16, 16]),
    ("the first is always tried", 1, (), [4, 4]),
    ("the first wrong one stays", 64, (16, 64), [16, 64]),
)
def test_sizes_go_as_far_as_there_is_room(
    most: int, wrong_at: tuple[int, ...], sizes: list[int]
) -> None:
    rows = room.at_sizes([4, 16, 64], lambda size, *_: size <= most, lambda s: _rows(s, wrong_at))
    assert [row["bytes"] for row in rows] == sizes


@cases(
    "size free left_s outcome",
    ("a message that is always sent", room.ALWAYS, 0, -1.0, True),
    ("memory and time", 8 * GIB, 30 * GIB, 10.0, True),
    ("too little memory", 8 * GIB, 20 * GIB, 10.0, False),
    ("too little time", 8 * GIB, 30 * GIB, 2.0, False),
    ("memory that is not counted", 8 * GIB, None, 10.0, True),
)
def test_what_there_is_room_for(
    size: int, free: int | None, left_s: float, outcome: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_on_all", lambda _, here: here)
    monkeypatch.setattr(_Rank, "free", free)
    rank = _Rank(0, Team("nccl", 2), "")
    assert room.has(rank, size=size, copies=3, left_s=left_s, needed_s=5.0) is outcome
