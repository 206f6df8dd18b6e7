"""Ranks, collectives and their bandwidth: what the judges say of readings no machine here gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from verify.checks.collectives import bandwidth, messages, nccl_log, operations, ranks, room
from verify.checks.collectives.ranks import Team, Trace, World
from verify.checks.health.links import Link
from verify.device.telemetry import GpuState, NvLink, Pair, State
from verify.model.check import Outcome, Status
from verify.running.children import Ending

PASS, FAIL = Status.PASS, Status.FAIL


def holds(outcome: Outcome, status: Status, word: str = "") -> None:
    """The status, the telling word somewhere, one line, and a cause and a fix on every failure."""
    assert outcome.status is status
    assert word in " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))
    assert "\n" not in outcome.message
    assert (outcome.cause is not None, outcome.fix is not None) == ((status is FAIL),) * 2


# NCCL's log, in the form of its versions 2.10 to 2.27

PREFIX = "node1:850301:851341 [0] "
START = (
    PREFIX + "NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n" + PREFIX + "NCCL INFO NET/Plugin : "
    "dlerror=libnccl-net.so: cannot open shared object file: No such file or directory\n"
    + PREFIX
    + "misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    + PREFIX
    + "NCCL INFO Using network Socket\n"
)
BY_P2P = PREFIX + "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
OLD_P2P = PREFIX + "NCCL INFO Channel 04 : 15[b2000] -> 13[89000] via P2P/direct pointer\n"
BY_SHM = PREFIX + "NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct\n"
BY_NET = PREFIX + "NCCL INFO Channel 00/0 : 2[1] -> 1[0] [receive] via NET/Socket/0\n"


def via(way: str) -> str:
    return PREFIX + f"NCCL INFO Channel 01/0 : 3[3] -> 0[0] via {way}\n"


def with_channels(count: int, more: str = "0 collnet channels, ") -> str:
    return PREFIX + f"NCCL INFO 24 coll channels, {more}{count} nvls channels, 32 p2p channels\n"


DONE = PREFIX + "NCCL INFO comm 0x55c6 rank 0 nranks 2 cudaDev 0 busId 4c000 - Init COMPLETE\n"
NO_SHM = (
    "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes, "
    "error: No space left on device (28)"
)
ECHO = (
    "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<55693>\n"
    + PREFIX
    + "proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x7f4774cc9620"
)
NVLS_WARNING = PREFIX + "transport/nvls.cc:254 NCCL WARN Cuda failure 401 'not in this state'"
MEMORY = "include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'"


@cases(
    "log line",
    ("no log", "", ""),
    ("a log without warnings that matter", START + BY_P2P, ""),
    ("the warning", START + PREFIX + NO_SHM, PREFIX + NO_SHM),
    ("its own trouble before the echo of another rank's",
     START + PREFIX + ECHO + "\n" + PREFIX + MEMORY + "\n", PREFIX + MEMORY),
    ("an echo where there is more", PREFIX + ECHO, PREFIX + ECHO.splitlines()[0]),
    ("the first of two", PREFIX + MEMORY + "\n" + PREFIX + NO_SHM, PREFIX + MEMORY),
)  # fmt: skip
def test_the_telling_line(log: str, line: str) -> None:
    assert nccl_log.telling(log) == line


@cases(
    "log phase",
    ("nothing written", "", None),
    ("early", START.splitlines()[0], "while NCCL's ranks looked for each other"),
    ("the machine", START, "while NCCL looked at the machine's links"),
    ("connecting", START + BY_P2P, "while NCCL connected the GPUs"),
    ("ready", START + BY_P2P + DONE, "after NCCL had started"),
)
def test_how_far_nccl_came(log: str, phase: str | None) -> None:
    assert nccl_log.phase(log) == phase


@pytest.mark.parametrize(
    ("log", "ways"),
    [
        ("", ()),
        (START, ()),
        (BY_P2P, ("P2P/CUMEM",)),
        (OLD_P2P + BY_SHM, ("P2P/direct", "SHM")),
        (via("P2P/IPC"), ("P2P/IPC",)),
        (via("P2P/MNNVL/read"), ("P2P/MNNVL",)),
        (via("P2P/indirect/3[3]"), ("P2P/indirect",)),
        (via("direct shared memory"), ("SHM",)),
        (BY_NET, ("NET/Socket/0",)),
        (via("NET/IB/3(1)/GDRDMA/Shared"), ("NET/IB/3/GDRDMA",)),
        (via("NET/IB/3"), ("NET/IB/3",)),
        (via("NET/AWS Libfabric/0/GDRDMA"), ("NET/AWS Libfabric/0/GDRDMA",)),
        (via("COLLNET/SHARP"), ("COLLNET",)),
    ],
)
def test_which_way_data_went(log: str, ways: tuple[str, ...]) -> None:
    assert nccl_log.transports(log) == ways


ABLE = PREFIX + "NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)\n"
UNABLE = PREFIX + "NCCL INFO NVLS multicast support is not available on dev 1\n"


@cases(
    "log setup",
    ("no log", "", nccl_log.CollectiveSetup()),
    ("set up", ABLE + with_channels(16), nccl_log.CollectiveSetup(24, 16, multicast=True)),
    ("without collnet", with_channels(8, ""), nccl_log.CollectiveSetup(24, 8)),
    ("one GPU without multicast counts for all", ABLE + UNABLE + with_channels(0),
     nccl_log.CollectiveSetup(24, 0, multicast=False)),
    ("one rank without it counts for all", with_channels(16) + with_channels(0),
     nccl_log.CollectiveSetup(24, 0)),
    ("failed", ABLE + NVLS_WARNING,
     nccl_log.CollectiveSetup(multicast=True, nvls_failure=NVLS_WARNING)),
)  # fmt: skip
def test_what_nccl_set_up(log: str, setup: nccl_log.CollectiveSetup) -> None:
    assert nccl_log.collective_setup(log) == setup


# Lost ranks

HERE = Ending(value=[], returned=True)
HANG = Ending(timed_out=True, seconds=120.0)
KILLED = Ending(signal="SIGKILL", seconds=1.0)
PEER_GONE = Ending(
    raised="DistBackendError: ncclRemoteError: remote process exited or there was a network error",
    code=0,
    output="Error: remote process exited",
    seconds=0.5,
)
RAISED = Ending(raised="RuntimeError: CUDA error: Xid", code=0, seconds=2.0)


def world(*endings: Ending, traces: tuple[Trace, ...] = (), backend: str = "nccl") -> World:
    return World(Team(backend, len(endings)), endings, traces)


@cases(
    "lost message rest",
    ("killed, not waiting", world(HANG, KILLED), "rank 1 of 2 killed", "memory"),
    ("killed, not the echo", world(PEER_GONE, KILLED), "rank 1 of 2", "memory"),
    ("raised, not the echo", world(PEER_GONE, RAISED), "rank 1 of 2", "Xid"),
    ("hangs, not the echo", world(PEER_GONE, HANG), "rank 1 of 2 did", "hang"),
    ("one of two raised", world(HERE, RAISED), "rank 1 of 2 Runtime", "Xid"),
    ("one of two hangs", world(HERE, HANG), "rank 1 of 2 did not", "hang"),
    ("both hang, nothing known", world(HANG, HANG), "none of 2 ranks", "hang"),
    ("the rank behind is to blame",
     world(HANG, HANG, traces=(Trace(3, "all-to-all"), Trace(2, "broadcast"))),
     "rank 1 of 2 did not finish in 120 s, at broadcast, while another was at all-to-all", "hang"),
    ("how far NCCL came is told",
     world(HANG, HANG, traces=(Trace(2, "barrier", BY_P2P + DONE),) * 2),
     "none of 2 ranks finished in 120 s, at barrier", "hang after NCCL had started"),
    ("a hang by P2P names IOMMU and ACS",
     world(HANG, HANG, traces=(Trace(2, "barrier", BY_P2P + DONE),) * 2), "none of 2",
     "NCCL_P2P_DISABLE=1: if that fixes it, switch PCIe ACS"),
    ("another rank's warning explains",
     world(HANG, HANG, traces=(Trace(1, "x"), Trace(1, "x", START + PREFIX + NO_SHM))), "none of 2",
     "--shm-size 1g"),
    ("a missing network plugin is no missing library", world(HANG, traces=(Trace(1, "x", START),)),
     "rank 0 of 1", "--ipc host"),
    ("NVLS does not start", world(HANG, traces=(Trace(1, "x", NVLS_WARNING),)), "rank 0 of 1",
     "NCCL_NVLS_ENABLE=0"),
    ("NVLS cannot bind its memory",
     world(replace(RAISED, raised="Failed to bind NVLink SHARP (NVLS) Multicast memory")),
     "rank 0 of 1", "reboot the host"),
    ("gloo has its own fix", world(HANG, HANG, backend="gloo"), "none of 2", "loopback"),
)  # fmt: skip
def test_lost_ranks(lost: World, message: str, rest: str) -> None:
    outcome = ranks.judge_lost(lost, "it")
    holds(outcome, FAIL, rest)
    assert outcome.message.startswith("it: " + message)


def test_a_missing_plugin_is_not_taken_for_a_missing_library() -> None:
    outcome = ranks.judge_lost(world(HANG, traces=(Trace(1, "x", START),)), "it")
    assert "missing" not in str(outcome.cause)


@given(
    st.lists(st.sampled_from([HERE, HANG, KILLED, PEER_GONE, RAISED]), min_size=1).filter(
        lambda endings: any(not e.returned for e in endings)
    ),
    st.data(),
)
def test_whoever_is_lost_a_lost_rank_is_named(endings: list[Ending], data: st.DataObject) -> None:
    log = st.sampled_from(["", START, START + BY_P2P + DONE, PREFIX + NO_SHM])
    made = st.builds(Trace, st.integers(0, 3), st.sampled_from(["", "all-reduce"]), log)
    traces = data.draw(st.lists(made, min_size=len(endings), max_size=len(endings)))
    outcome = ranks.judge_lost(world(*endings, traces=tuple(traces)), "it")
    holds(outcome, FAIL)
    named = [i for i, e in enumerate(endings) if f"rank {i} of" in outcome.message]
    assert all(not endings[i].returned for i in named)
    if KILLED in endings or RAISED in endings:
        assert endings[named[0]] in (KILLED, RAISED)


# Operations


def row(operation: str = "all-reduce", dtype: str = "float32", **more: Any) -> dict[str, Any]:
    clean = {"operation": operation, "dtype": dtype, "wrong": 0, "total": 64, "kind": None}
    return {**clean, **more}


def of_ranks(*values: list[dict[str, Any]], backend: str = "nccl") -> World:
    return world(*(Ending(value=rows, returned=True) for rows in values), backend=backend)


LACKS = row("reduce-scatter", "bfloat16", total=0, unsupported="Invalid scalar type")


@cases(
    "seen status word",
    ("right", of_ranks([row()], [row()]), PASS, "1 operations with correct"),
    ("the second rank is wrong", of_ranks([row()], [row(wrong=3, kind="was not written")]), FAIL,
     "nccl all-reduce of float32: rank 1 was not written, 3 of 64 wrong"),
    ("a large message is wrong in one place",
     of_ranks([row()], [row(wrong=1, kind="has other numbers", bytes=1 << 33, place=7, total=9)]),
     FAIL, "rank 1 has other numbers, 1 of 9 wrong, first number 7 of a message of 8 GiB"),
    ("every size is right", of_ranks(*[[row(), row(bytes=1 << 33), row(bytes=1 << 31)]] * 2), PASS,
     "correct results at all sizes up to 2 GiB, 2 GPUs over NCCL"),
    ("what is not supported is told", of_ranks([row(), LACKS], [row(), LACKS], backend="gloo"),
     PASS, "not supported here: reduce-scatter of bfloat16"),
    ("nothing", of_ranks(*[[row(total=0, unsupported="no")]] * 2), FAIL, "no all-reduce"),
    ("a barrier has no dtype",
     of_ranks([row(), row("barrier", "-", wrong=1, kind="was passed early")]), FAIL,
     "nccl barrier: rank 0"),
    ("a lost rank", world(HERE, KILLED), FAIL, "rank 1 of 2"),
)  # fmt: skip
def test_operations(seen: World, status: Status, word: str) -> None:
    holds(operations.judge_operations(seen), status, word)


def test_operations_are_shown_by_dtype() -> None:
    rows = [row(), row(dtype="int64", wrong=1, kind="has other numbers"), LACKS]
    measured = operations.judge_operations(of_ranks(rows, rows)).measured
    (table,) = measured["tables"]
    assert table["columns"] == ["operation", "float32", "float16", "bfloat16", "int64"]
    assert table["rows"] == [
        ["all-reduce", "right", "", "", "wrong"],
        ["reduce-scatter", "", "", "not supported", ""],
    ]


def test_what_is_lacking_is_told_in_short() -> None:
    lacks = {"total": 0, "unsupported": "no"}
    rows = [
        row(),
        row("broadcast", "bfloat16", **lacks),
        row("all-gather", "bfloat16", **lacks),
        *(row("reduce-scatter", dtype, **lacks) for dtype in operations.DTYPES),
    ]
    message = operations.judge_operations(of_ranks(rows, rows)).message
    said = "not supported here: reduce-scatter; broadcast, all-gather of bfloat16"
    assert message.endswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "ProcessGroupGloo does not support reduce_scatter",
        "no support for _allgather_base in Gloo process group",
        "Invalid scalar type",
        "Backend gloo does not support allgather_into_tensor_coalesced",
        "ProcessGroupNCCL: AllReduce is not implemented for this type",
    ],
)
def test_how_backends_say_what_they_lack(text: str) -> None:
    assert operations.UNSUPPORTED.search(text)


@pytest.mark.parametrize(
    "text", ["Connection closed by peer", "NCCL error: unhandled system error", "CUDA error: Xid"]
)
def test_trouble_is_not_taken_for_a_lack(text: str) -> None:
    assert not operations.UNSUPPORTED.search(text)


def test_gloo_is_no_proof() -> None:
    outcome = operations.judge_operations(of_ranks([row()], [row()], backend="gloo"))
    assert outcome.measured["device"] == "cpu"
    assert "NCCL not tested" in outcome.message


@given(st.integers(2, 128))
def test_every_sum_is_exact_in_bfloat16(size: int) -> None:
    assert messages.numbers_below(size) * size <= 256
    assert messages.numbers_below(size) >= 2


@cases(
    "name blocks",
    ("every rank's part is added", "all-reduce", [[0, 1, 2]]),
    ("each block is a rank's part", "all-gather", [[0], [1], [2]]),
    ("the blocks for this rank are added", "reduce-scatter", [[1, 4, 7]]),
    ("the blocks for this rank", "all-to-all", [[1], [4], [7]]),
    ("from the last", "broadcast", [[2]]),
    ("from the previous", "send and receive", [[0]]),
)
def test_what_the_second_of_three_ranks_receives(name: str, blocks: list[list[int]]) -> None:
    assert messages.sources(name, 1, 3) == blocks


@cases(
    "size words",
    ("bytes", 16, "16 bytes"),
    ("KiB", 1 << 10, "1 KiB"),
    ("MiB", 3 << 19, "1.5 MiB"),
    ("GiB", 1 << 33, "8 GiB"),
)
def test_how_a_size_is_written(size: int, words: str) -> None:
    assert operations.in_words(size) == words


# Bandwidth


@pytest.mark.parametrize(
    ("operation", "size", "factor"),
    [("all-reduce", 2, 1.0), ("all-reduce", 8, 1.75), ("all-gather", 2, 0.5)],
)
def test_the_factors_of_nccl_tests(operation: str, size: int, factor: float) -> None:
    assert bandwidth.bus_factor(operation, size) == factor


def test_sizes_go_by_fours_up_to_the_largest() -> None:
    assert room.sizes(1 << 10) == [16, 64, 256, 1024]
    assert room.sizes(1 << 26)[-1] == 1 << 26


@given(st.integers(16, 1 << 30))
def test_no_size_is_below_the_smallest(largest: int) -> None:
    found = room.sizes(largest)
    assert found == sorted(set(found))
    assert room.SMALLEST <= found[0] < room.SMALLEST * room.STEP


def timed(*seconds: float, operation: str = "all-reduce", size: int = 10**9) -> dict[str, Any]:
    return {"operation": operation, "bytes": size, "seconds": list(seconds)}


def test_the_slowest_rank_counts_in_each_sample() -> None:
    (found,) = bandwidth.series([[timed(1.0, 4.0)], [timed(2.0, 2.0)]])
    assert found.seconds == (2.0, 4.0)
    assert found.gbs == (0.5, 0.25)


def measured_at(gbs: float, *, log: str = "", backend: str = "nccl") -> World:
    rows = [
        timed(*[1 / gbs / (1 if op == "all-reduce" else 2)] * 5, operation=op, size=size)
        for op in ("all-reduce", "all-gather")
        for size in (16, 10**9)
    ]
    endings = (Ending(value=rows, returned=True),) * 2
    return World(Team(backend, 2), endings, (Trace(1, "x", log),) * 2)


def machine(path: str = "NV4", **more: Any) -> State:
    links = tuple(NvLink(i, active=True, gbs=25.0, errors=0) for i in range(4))
    fields = {"pcie_generation_max": 4, "pcie_width": 16, "pcie_width_max": 16, "nvlinks": links}
    gpus = tuple(GpuState(i, **{**fields, **more}) for i in range(2))
    return State(gpus=gpus, pairs=(Pair(0, 1, path, "ok", "ok"),), found=True)


NARROW = machine("PIX", pcie_width=4)
OFF = machine("NV4", nvlinks=(NvLink(0, active=True, gbs=25.0), NvLink(1, active=False)))
NO_P2P = State(
    gpus=machine().gpus, pairs=(Pair(0, 1, "NV4", "chipset-not-supported", "ok"),), found=True
)


@cases(
    "gbs seen log environ status word",
    ("near NVLink's", 80, machine(), BY_P2P, {}, PASS, "of 100 (NVLink (4 links"),
    ("a third of it is enough", 31, machine(), BY_P2P, {}, PASS, ""),
    ("no verdict on unknown links", 1, State(), BY_SHM, {}, PASS, "1 GB/s"),
    ("host memory", 2, machine("PHB"), BY_SHM, {}, PASS, "through the host"),
    ("far below the host's", 1, machine("PHB"), BY_SHM, {}, FAIL, "another job"),
    ("past the NVLink", 10, machine(), BY_SHM, {}, FAIL, "NCCL used SHM although"),
    ("the user switched P2P off", 10, machine(), BY_SHM, {"NCCL_P2P_DISABLE": "1"}, FAIL,
     "unset NCCL_P2P_DISABLE"),
    ("a zero is off", 10, machine(), "", {"NCCL_P2P_DISABLE": "0"}, FAIL, "another job"),
    ("P2P level", 10, machine(), "", {"NCCL_P2P_LEVEL": "LOC"}, FAIL, "NCCL_P2P_LEVEL"),
    ("four of sixteen lanes", 1, NARROW, BY_P2P, {}, FAIL, "PCIe x4 of x16"),
    ("an inactive NVLink", 2, OFF, BY_P2P, {}, FAIL, "not active"),
    ("no P2P over NVLink", 2, NO_P2P, BY_SHM, {}, FAIL, "chipset-not-supported"),
    ("the network", 1, machine("PHB"), BY_NET, {}, FAIL, "--shm-size"),
)  # fmt: skip
def test_bandwidth(
    gbs: float, seen: State, log: str, environ: dict[str, str], status: Status, word: str
) -> None:
    holds(bandwidth.judge_bandwidth(measured_at(gbs, log=log), seen, environ), status, word)


def on_switches(count: int, capability: str = "9.0", **more: Any) -> State:
    fields = {"compute_capability": capability, "fabric_state": "completed", **more}
    return State(gpus=tuple(GpuState(i, **fields) for i in range(count)), found=True)


@cases(
    "log seen environ words",
    ("set up", with_channels(16), State(), {}, "NVLS with 16 channels"),
    ("failed", NVLS_WARNING, on_switches(8), {}, f"NVLS failed ({NVLS_WARNING})"),
    ("absent", with_channels(0), on_switches(4), {},
     "no NVLS, which these GPUs and NVSwitches have"),
    ("without multicast", UNABLE + with_channels(0), on_switches(8, "10.0"), {},
     "no NVLS: the driver has no multicast here (a container or VM may lack it)"),
    ("off", with_channels(0), on_switches(8), {"NCCL_NVLS_ENABLE": "0"},
     "no NVLS (NCCL_NVLS_ENABLE=0)"),
    ("two GPUs do not need it", with_channels(0), on_switches(2), {}, None),
    ("Ampere does not have it", with_channels(0), on_switches(8, "8.0"), {}, None),
    ("no NVSwitches", with_channels(0), on_switches(8, fabric_state="not-supported"), {}, None),
    ("MIG", with_channels(0), on_switches(8, mig=True), {}, None),
    ("a log that does not say it", DONE, on_switches(8), {}, None),
)  # fmt: skip
def test_nvls_is_named(log: str, seen: State, environ: dict[str, str], words: str | None) -> None:
    assert bandwidth.nvls_words(nccl_log.collective_setup(log), seen, environ) == words


def test_a_pass_names_transports_and_nvls() -> None:
    log = BY_P2P + ABLE + with_channels(16)
    outcome = bandwidth.judge_bandwidth(measured_at(80, log=log), machine(), {})
    assert outcome.message.endswith("over NCCL by P2P/CUMEM, NVLS with 16 channels")
    assert [outcome.measured[key] for key in ("channels", "nvls_channels")] == [24, 16]


def test_the_loopback_is_never_judged() -> None:
    outcome = bandwidth.judge_bandwidth(measured_at(0.001, backend="gloo"), machine(), {})
    holds(outcome, PASS, "NCCL not tested")
    assert outcome.measured["device"] == "cpu"


def test_a_lost_rank_gives_no_bandwidth() -> None:
    holds(bandwidth.judge_bandwidth(world(HERE, KILLED), State(), {}), FAIL, "rank 1 of 2")


def test_metrics_are_of_the_largest_and_the_smallest_size() -> None:
    measured = bandwidth.judge_bandwidth(measured_at(80), machine(), {}).measured
    wide = [m for m in measured["metrics"] if m["name"] == "bus_bandwidth"]
    quick = [m for m in measured["metrics"] if m["name"] == "collective_latency"]
    assert [m["labels"]["bytes"] for m in wide] == ["1000000000"] * 2
    assert [m["of_spec"] for m in wide] == pytest.approx([0.8, 0.8])
    assert [(m["labels"]["bytes"], m["better"]) for m in quick] == [("16", "lower")] * 2
    (plot,) = measured["plots"]
    assert [line["name"] for line in plot["lines"]] == ["all-reduce", "all-gather"]


@given(st.floats(1e-3, 1e4), st.floats(1.0, 1e3), st.floats(0.01, 1.0))
def test_only_less_than_the_least_share_is_a_finding(gbs: float, can: float, share: float) -> None:
    link = Link("a link", can, share)
    slow = gbs < link.gbs * link.share
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "slowest_link", lambda *_: link)
        found = bandwidth.judge_bandwidth(measured_at(gbs), State(), {})
    near = abs(gbs - link.gbs * link.share) < 1e-9 * gbs
    assert near or (found.status is FAIL) == slow


@cases(
    "errors status",
    ("a few errors under load", 99, PASS),
    ("a link that damages data under load", 100, FAIL),
)
def test_links_that_count_errors_under_load_are_found(errors: int, status: Status) -> None:
    before = machine()
    worn = tuple(replace(link, errors=errors) for link in before.gpus[1].nvlinks[:1])
    links = (*worn, *before.gpus[1].nvlinks[1:])
    after = replace(before, gpus=(before.gpus[0], replace(before.gpus[1], nvlinks=links)))
    outcome = bandwidth.judge_bandwidth(measured_at(80), after, {}, before)
    assert outcome.status is status
    assert status is PASS or "GPU 1: NVLink 0 counts errors: 100 more" in outcome.message
