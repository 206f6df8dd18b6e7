"""Links and peers: what the judges say of PCIe, NVLink, P2P and copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from verify.checks.devices.peers import PeerCopy, judge_copies
from verify.checks.health.links import judge_peers, slowest_link
from verify.checks.health.nvlinks import judge_nvlink
from verify.checks.health.pcie import judge_pcie
from verify.device.pci import PciGpu
from verify.device.telemetry import GpuState, NvLink, Pair, State
from verify.model.check import Outcome, Status

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP


def holds(outcome: Outcome, status: Status, word: str = "") -> None:
    """The status, the telling word somewhere, and a cause and a fix on every failure."""
    assert outcome.status is status
    assert word in " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))
    assert "\n" not in outcome.message
    if status is not SKIP:
        assert (outcome.cause is not None, outcome.fix is not None) == ((status is FAIL),) * 2


def links(states: str, errors: int | None = 0, gbs: float | None = 25.0) -> tuple[NvLink, ...]:
    """A "+" is an active link, a "-" one that is off."""
    return tuple(
        NvLink(i, active=sign == "+", gbs=gbs, errors=errors) for i, sign in enumerate(states)
    )


def gpu(index: int = 0, **more: Any) -> GpuState:
    fields = {"pcie_generation": 4, "pcie_generation_max": 4, "pcie_width": 16}
    return GpuState(index, **{"name": "A card", **fields, "pcie_width_max": 16, **more})


def state(*gpus: GpuState, pairs: tuple[Pair, ...] = (), **more: Any) -> State:
    return State(**{"gpus": gpus, "pairs": pairs, "found": True, **more})


ABSENT = State(error="libnvidia-ml.so.1: cannot open shared object file", found=False)
BROKEN = State(error="nvmlInit_v2: Driver/library version mismatch (18)", found=True)


@pytest.mark.parametrize("judge", [judge_pcie, judge_nvlink, judge_peers])
@pytest.mark.parametrize(
    ("seen", "word"),
    [
        pytest.param(ABSENT, "no NVIDIA driver library", id="no driver"),
        pytest.param(BROKEN, "version mismatch", id="NVML fails"),
        pytest.param(state(), "sees no GPU", id="no GPU"),
    ],
)
def test_without_nvml_nothing_is_said(judge: Any, seen: State, word: str) -> None:
    holds(judge(seen), SKIP, word)


@pytest.mark.parametrize(
    ("seen", "status", "word"),
    [
        pytest.param(state(gpu(), gpu(1)), PASS, "PCIe 4.0 x16, 2 GPUs", id="full width"),
        pytest.param(
            state(gpu(), gpu(1), gpu(2, pcie_width=4)),
            PASS,
            "fewer lanes than the slot or card may have: GPU 2",
            id="x4 where its twins have x16, in a slot of which nothing is known",
        ),
        pytest.param(
            state(gpu(), gpu(1, pcie_width=4)),
            PASS,
            "fewer lanes than the slot or card may have: GPU 1",
            id="the second card of a desktop",
        ),
        pytest.param(
            state(gpu(), gpu(1), gpu(2, pcie_width=4, name="Another")),
            PASS,
            "GPU 2",
            id="x4 on a card of another kind",
        ),
        pytest.param(
            state(*(gpu(i, pcie_width=8) for i in range(4))), PASS, "x8", id="four with x8 of x16"
        ),
        pytest.param(state(gpu(pcie_width=8, pcie_width_max=8)), PASS, "x8", id="x8 in a x8 slot"),
        pytest.param(
            state(gpu(pcie_generation=1, utilization_percent=0)),
            PASS,
            "at a lower speed now: GPU 0",
            id="an idle card's link sleeps",
        ),
        pytest.param(state(gpu(pcie_generation=1)), PASS, "idle", id="unknown load counts as idle"),
        pytest.param(
            state(gpu(pcie_generation=1, utilization_percent=97)),
            FAIL,
            "PCIe 1.0 of 4.0 although it is 97 % busy",
            id="a busy card's link does not sleep",
        ),
        pytest.param(state(gpu(pcie_width=None)), SKIP, "reports no PCIe link", id="a virtual GPU"),
        pytest.param(
            state(gpu(pcie_width=None), gpu(1, pcie_width=4)), PASS, "GPU 1", id="one of two known"
        ),
        pytest.param(state(gpu(pcie_width=1)), PASS, "slot or card may have: GPU 0", id="a riser"),
        pytest.param(
            state(gpu(pcie_width=1, pcie_width_max=1)), PASS, "x1", id="a GH200, beside its C2C"
        ),
        pytest.param(
            state(gpu(pcie_generation=1, utilization_percent=97, virtualization="passthrough")),
            PASS,
            "lower speed",
            id="a virtual machine's PCIe is its hypervisor's",
        ),
        pytest.param(
            state(gpu(pcie_generation=1, utilization_percent=97, name="RTX 4060 Laptop GPU")),
            PASS,
            "lower speed",
            id="a laptop saves power at work, too",
        ),
        pytest.param(
            state(gpu(pcie_width_max=None, pcie_generation_max=None)), PASS, "x16", id="no maximum"
        ),
    ],
)
def test_pcie(seen: State, status: Status, word: str) -> None:
    holds(judge_pcie(seen), status, word)


def in_slots(*links: str, **more: Any) -> tuple[State, list[PciGpu]]:
    """Cards with sixteen lanes; each link is "its lanes/those of its port"."""
    cards, on_bus = [], []
    for index, link in enumerate(links):
        lanes, slot = link.split("/")
        at = f"{index:02x}:00.0"
        fields = {"bus_id": f"00000000:{at}", "pcie_width": int(lanes), **more}
        cards.append(gpu(index, **fields))
        port = int(slot) if slot != "?" else None
        on_bus.append(PciGpu(f"0000:{at}", width_max=16, port_width_max=port))
    return state(*cards), on_bus


WELL = "all lanes of a slot that has fewer than the card: GPU "


@pytest.mark.parametrize(
    ("machine", "status", "word"),
    [
        pytest.param(in_slots(*["16/16"] * 8), PASS, "8 GPUs", id="all lanes"),
        pytest.param(in_slots("16/16", "16/16", "8/8"), PASS, WELL + "2", id="x16/x16/x8 boards"),
        pytest.param(in_slots(*["16/16"] * 6, "8/8"), PASS, WELL + "6", id="seven, one with x8"),
        pytest.param(in_slots("1/1", "1/1"), PASS, WELL + "0-1", id="risers in slots of one lane"),
        pytest.param(
            in_slots("16/16", *["1/16"] * 5), PASS, "GPU 1-5", id="risers of one lane in full slots"
        ),
        pytest.param(in_slots("1/16", utilization_percent=99), PASS, "GPU 0", id="a riser at work"),
        pytest.param(
            in_slots("1/16", "1/16", utilization_percent=99, pcie_generation=1),
            PASS,
            "busy, yet at a lower speed now: GPU 0-1",
            id="risers at the speed that the BIOS of a mining board sets",
        ),
        pytest.param(
            in_slots("16/1"), PASS, "PCIe 4.0 x16, 1 GPU", id="a port that a hypervisor invented"
        ),
        pytest.param(in_slots("2/4", name="GeForce MX150"), PASS, "x2", id="a laptop on two lanes"),
        pytest.param(in_slots("16/16", "16/16", "8/?"), PASS, "GPU 2", id="an unknown port"),
        pytest.param(
            in_slots(*["16/32"] * 3, "8/32", virtualization="passthrough"),
            PASS,
            "GPU 3",
            id="a virtual machine's ports are invented",
        ),
        pytest.param(in_slots("1/16", "16/16", c2c_links=10), PASS, "GPU 0", id="a GH200"),
        pytest.param(
            in_slots(*["16/16"] * 7, "8/16"),
            FAIL,
            "GPU 7: PCIe x8, although the card and its port have x16",
            id="a link with half of the lanes of both ends",
        ),
        pytest.param(
            in_slots(*["16/16"] * 7, "1/16"), FAIL, "GPU 7: PCIe x1", id="one lane beside seven"
        ),
        pytest.param(
            in_slots("8/8", "8/8", "8/8", "4/8"), FAIL, "port have x8", id="less than a small slot"
        ),
        pytest.param(in_slots("8/16"), PASS, "GPU 0", id="alone, idle and narrow"),
        pytest.param(
            in_slots("8/16", utilization_percent=99), FAIL, "GPU 0: PCIe x8", id="alone at work"
        ),
        pytest.param(
            in_slots(*["4/16"] * 4, utilization_percent=99),
            PASS,
            "GPU 0-3",
            id="four alike behind a board's switch (A16)",
        ),
        pytest.param(
            in_slots("16/16", *["8/16"] * 3, utilization_percent=99),
            FAIL,
            "GPU 1-3: PCIe x8",
            id="three at work, of which a fourth shows that they could have more",
        ),
    ],
)
def test_lanes_are_compared_with_those_of_card_and_port(
    machine: tuple[State, list[PciGpu]], status: Status, word: str
) -> None:
    holds(judge_pcie(*machine), status, word)


@pytest.mark.parametrize(
    ("port", "load", "status"),
    [
        pytest.param(3, 99, PASS, id="as fast as its port"),
        pytest.param(4, 99, FAIL, id="slower than card and port at work"),
        pytest.param(4, 3, PASS, id="idle"),
        pytest.param(None, 99, FAIL, id="an unknown port"),
    ],
)
def test_speed_is_compared_with_that_of_card_and_port(
    port: int | None, load: int, status: Status
) -> None:
    at = "00000000:01:00.0"
    seen = state(gpu(bus_id=at, pcie_generation=3, utilization_percent=load))
    card = PciGpu("0000:01:00.0", generation_max=4, port_generation_max=port)
    holds(judge_pcie(seen, [card]), status, "PCIe 3.0 of 4.0" if status is FAIL else "")


A100: dict[str, Any] = {"name": "NVIDIA A100-SXM4-80GB", "virtualization": "none"}
IN_VM: dict[str, Any] = {**A100, "virtualization": "passthrough"}
H100: dict[str, Any] = {"name": "NVIDIA H100 80GB HBM3"}
V100: dict[str, Any] = {
    "name": "Tesla V100-SXM2-16GB",
    "compute_capability": "7.0",
    "virtualization": "passthrough",
}


@pytest.mark.parametrize(
    ("seen", "status", "word"),
    [
        pytest.param(state(gpu()), SKIP, "no NVLinks", id="a card without NVLink"),
        pytest.param(
            state(gpu(nvlinks=links("++")), gpu(1, nvlinks=links("++"))),
            PASS,
            "active: 2 of 2, 2 of 2; errors since the driver was loaded: 0",
            id="all up",
        ),
        pytest.param(
            state(gpu(nvlinks=links("++")), gpu(1, nvlinks=links("+-"))),
            FAIL,
            "GPU 1: 1 of 2 NVLinks active, off: 1",
            id="one fewer than its twin",
        ),
        pytest.param(
            state(*(gpu(i, nvlinks=links("++--")) for i in range(2))),
            PASS,
            "2 of 4",
            id="one of two bridges is fitted on both",
        ),
        pytest.param(
            state(*(gpu(i, nvlinks=links("--")) for i in range(2))),
            PASS,
            "no bridge",
            id="no bridge at all",
        ),
        pytest.param(
            state(
                gpu(nvlinks=links("+")),
                gpu(1, nvlinks=links("+")),
                gpu(2, nvlinks=links("-")),
            ),
            PASS,
            "0 of 1",
            id="a third card has no bridge",
        ),
        pytest.param(
            state(
                gpu(nvlinks=links("++"), name="One"),
                gpu(1, nvlinks=links("+-"), name="Other"),
            ),
            PASS,
            "",
            id="another kind of card is no twin",
        ),
        pytest.param(
            state(*(gpu(i, nvlinks=links("--"), **A100) for i in range(2))),
            PASS,
            "or a board that wires none",
            id="two SXM modules on adapters",
        ),
        pytest.param(
            state(*(gpu(i, nvlinks=links("--"), **IN_VM) for i in range(2))),
            PASS,
            "no link is active",
            id="an SXM board whose fabric the virtual machine was not given",
        ),
        pytest.param(
            state(gpu(nvlinks=links("++--"), **V100), gpu(1, nvlinks=links("+---"), **V100)),
            PASS,
            "2 of 4, 1 of 4",
            id="a part of a V100's mesh in a virtual machine",
        ),
        pytest.param(
            state(gpu(nvlinks=links("++"), **H100), gpu(1, nvlinks=links("--"), **H100)),
            FAIL,
            "GPU 1: 0 of 2 NVLinks active, off: 0-1; others of the same model have 2",
            id="an H100 board has SXM not in its name, one GPU has no link",
        ),
        pytest.param(
            state(gpu(nvlinks=links("+" * 17 + "-"), name="NVIDIA GB200")),
            FAIL,
            "17 of 18",
            id="one link of a GPU that hangs on NVSwitches",
        ),
        pytest.param(
            state(gpu(nvlinks=links("--"), name="NVIDIA GH200 480GB", virtualization="none")),
            PASS,
            "a single GPU",
            id="a GH200 without an NVLink fabric",
        ),
        pytest.param(
            state(*(gpu(i, nvlinks=links("--"), name="NVIDIA H100 NVL") for i in range(2))),
            PASS,
            "no bridge",
            id="H100 NVL cards without a bridge",
        ),
        pytest.param(
            state(gpu(nvlinks=links("--"), mig=True, **A100), gpu(1, nvlinks=links("-+"), **A100)),
            PASS,
            "MIG is on",
            id="MIG takes the links down, beside it too",
        ),
        pytest.param(
            state(gpu(nvlinks=links("--"), **A100)),
            PASS,
            "no link is active",
            id="one SXM card in a virtual machine of its own",
        ),
        pytest.param(
            state(gpu(nvlinks=links("+-"), fabric_state="completed", virtualization="none")),
            FAIL,
            "off: 1",
            id="every link of a machine with NVSwitch must be up",
        ),
        pytest.param(
            state(gpu(nvlinks=links("+", errors=505))),
            PASS,
            "loaded: 505",
            id="errors of a year are no rate",
        ),
        pytest.param(
            state(gpu(nvlinks=links("+", errors=None))), PASS, "loaded: 0", id="errors unknown"
        ),
    ],
)
def test_nvlink(seen: State, status: Status, word: str) -> None:
    holds(judge_nvlink(seen), status, word)


def joined(name: str, *ups: int, links: int, vm: bool = False, **more: Any) -> State:
    """GPUs of one model with so many of their links up; the ends are not known."""
    place = {"virtualization": "passthrough" if vm else "none", **more}
    wires = [links_up(up, links) for up in ups]
    return state(*(gpu(i, name=name, nvlinks=w, **place) for i, w in enumerate(wires)))


def links_up(up: int, of: int, far: str | None = None) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(i, active=i < up, errors=0, far=far if i < up else "unknown") for i in range(of)
    )


def meshed(name: str, *rows: str, links: int, **more: Any) -> State:
    """GPUs with known ends: of each, the links that are up to every other one, in hexadecimal."""
    found = []
    for i, row in enumerate(rows):
        ends = [f"0000:0{j}:00.0" for j, count in enumerate(row) for _ in range(int(count, 16))]
        wires = tuple(
            NvLink(k, active=k < len(ends), far="gpu", far_bus_id=ends[k] if k < len(ends) else "")
            for k in range(links)
        )
        found.append(gpu(i, name=name, bus_id=f"0000:0{i}:00.0", nvlinks=wires, **more))
    return state(*found)


SXM2, SXM4, HGX = "Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
VOLTA: dict[str, Any] = {"compute_capability": "7.0"}
AMPERE: dict[str, Any] = {"compute_capability": "8.0"}
HOPPER: dict[str, Any] = {"compute_capability": "9.0"}
ON: dict[str, Any] = {"fabric_state": "completed", **HOPPER}
GIVEN: dict[str, Any] = {"fabric_state": "completed", **AMPERE}
BARE: dict[str, Any] = {"virtualization": "none"}
DARK = NvLink(5, active=False, far="gpu", far_bus_id="0000:01:00.0")


@cases(
    "seen status word",
    ("every GPU of a virtual machine lacks two links",
     joined(HGX, *[16] * 8, links=18, vm=True, **ON),
     FAIL, "GPU 0-7: 16 of 18 NVLinks active, off: 16-17"),
    ("the fabric is not known, the links end at switches",
     state(*(gpu(i, name=SXM4, nvlinks=links_up(10, 12, "switch")) for i in range(8))),
     FAIL, "a link to an NVSwitch, or the switch, failed"),
    ("eight A100 without known ends lack the links of one switch",
     joined(SXM4, *[10] * 8, links=12, **AMPERE), FAIL, "10 of 12"),
    ("two GPUs of a fabric in a virtual machine have all their links",
     joined(HGX, 18, 18, links=18, vm=True, **ON), PASS, "18 of 18, 18 of 18"),
    ("a virtual machine with one GPU of a fabric has none",
     joined(HGX, 0, links=18, vm=True, **ON), PASS, "no link is active"),
    ("no link of a joined GPU is up on bare metal",
     joined(HGX, 0, links=18, **ON), FAIL, "0 of 18"),
    ("four A100 in a virtual machine that was given half of the switches",
     joined(SXM4, 6, 6, 6, 6, links=12, vm=True, **GIVEN), PASS, "6 of 12"),
    ("two A100 in a virtual machine that was given one switch",
     joined(SXM4, 2, 2, links=12, vm=True, **GIVEN), PASS, "2 of 12"),
    ("one of them lacks a link",
     joined(SXM4, 6, 6, 6, 5, links=12, vm=True, **GIVEN), FAIL, "GPU 3"),
    ("an H800 uses eight links", joined("NVIDIA H800", *[8] * 8, links=18, **ON), PASS, "8 of 18"),
    ("an H800 has seven", joined("NVIDIA H800", *[8] * 7, 7, links=18, **ON), FAIL, "GPU 7: 7 of"),
    ("a board of Hopper without any link up is on no adapter",
     joined(HGX, 0, 0, links=18, **HOPPER), FAIL, "GPU 0-1: 0 of 18"),
    ("two GH200 without an NVLink fabric",
     joined("NVIDIA GH200 480GB", 0, 0, links=18, **HOPPER), PASS, "no link is active"),
    ("a board of four that wires some, beside a card for the display",
     replace(joined(SXM4, *[8] * 4, links=12, **AMPERE),
             gpus=(*joined(SXM4, *[8] * 4, links=12, **AMPERE).gpus, gpu(4, name="Display"))),
     PASS, "8 of 12"),
    ("two V100-SXM2 on adapters", joined(SXM2, 0, 0, links=6, **VOLTA), PASS, "no link is active"),
    ("a board that wires some of the links", joined(SXM2, 2, 2, links=6, **VOLTA), PASS,
     "the others of GPU 0-1 are not wired"),
    ("four A100-SXM4 on adapters", joined(SXM4, *[0] * 4, links=12, **AMPERE), PASS, "wires none"),
    ("four A100 of a board in pairs", joined(SXM4, *[4] * 4, links=12, **AMPERE), PASS, "4 of 12"),
    ("two of four H200 NVL in a virtual machine",
     joined("NVIDIA H200 NVL", 6, 6, links=18, vm=True, **HOPPER), PASS, "6 of 18"),
    ("five links of a bridge there",
     joined("NVIDIA H200 NVL", 5, 5, links=18, vm=True, **HOPPER), FAIL, "5 of 18"),
    ("a board of which one GPU lacks links", joined(SXM2, 6, 6, 6, 4, links=6, **VOLTA), FAIL,
     "GPU 3: 4 of 6"),
    ("a whole mesh in a virtual machine, one GPU lacks links",
     joined(SXM2, *[6] * 7, 4, links=6, vm=True, **VOLTA), FAIL, "GPU 7: 4 of 6"),
    ("a board of four in a virtual machine, one GPU lacks links",
     joined(SXM2, 6, 6, 6, 4, links=6, vm=True, **VOLTA), FAIL, "GPU 3: 4 of 6"),
    ("three GPUs of a mesh in a virtual machine", joined(SXM2, 3, 2, 3, links=6, vm=True, **VOLTA),
     PASS, "3 of 6, 2 of 6, 3 of 6"),
    ("half of a mesh in a virtual machine, with known ends",
     meshed(SXM2, "0112", "1021", "1201", "2110", links=6, **VOLTA), PASS, "4 of 6"),
    ("a link that is up at one end only",
     meshed(SXM2, "02", "10", links=6, **VOLTA), FAIL, "GPU 1: 1 of 6 NVLinks active, off: 1-5"),
    ("a link of which both ends do not agree", meshed(SXM2, "02", "101", links=2, **VOLTA), FAIL,
     "GPU 1: 2 of 2 NVLinks active, and one that only its other end has"),
    ("a link that is down and whose other end is here",
     state(gpu(0, name=SXM2, bus_id="0000:00:00.0", nvlinks=(*links("+++++"), DARK), **BARE),
           gpu(1, name=SXM2, bus_id="0000:01:00.0", nvlinks=links("+++++-"), **BARE)),
     FAIL, "GPU 0: 5 of 6 NVLinks active, off: 5 | the link is down although its other end is"),
    ("a switch that is there on bare metal", state(gpu(0, name=SXM4, nvlinks=links_up(0, 12),
     **BARE), gpu(1, name=SXM4, nvlinks=(*links_up(0, 11), NvLink(11, active=False, far="switch")),
     **BARE)), FAIL, "GPU 1: 0 of 12"),
)  # fmt: skip
def test_links_that_are_down_by_fault_or_by_design(seen: State, status: Status, word: str) -> None:
    holds(judge_nvlink(seen), status, word)


@cases(
    "name links sound",
    ("A100 PCIe", "NVIDIA A100-PCIE-40GB", 12, [0, 4, 8, 12]),
    ("A100 80GB PCIe", "NVIDIA A100 80GB PCIe", 12, [0, 4, 8, 12]),
    ("A30", "NVIDIA A30", 4, [0, 4]),
    ("H100 PCIe", "NVIDIA H100 PCIe", 18, [0, 4, 8, 12, 16]),
    ("H100 NVL", "NVIDIA H100 NVL", 18, [0, 4, 8, 12, 16]),
    ("H200 NVL", "NVIDIA H200 NVL", 18, [0, 18]),
    ("RTX 3090", "NVIDIA GeForce RTX 3090", 4, [0, 4]),
    ("RTX A6000", "NVIDIA RTX A6000", 4, [0, 4]),
    ("RTX A5500", "NVIDIA RTX A5500", 4, [0, 4]),
    ("RTX A4500", "NVIDIA RTX A4500", 4, [0, 4]),
    ("A40", "NVIDIA A40", 4, [0, 4]),
    ("RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti", 2, [0, 2]),
    ("TITAN RTX", "TITAN RTX", 2, [0, 2]),
    ("Quadro RTX 8000", "Quadro RTX 8000", 2, [0, 2]),
    ("Quadro GV100", "Quadro GV100", 4, [0, 2, 4]),
    ("TU104, with one link", "NVIDIA GeForce RTX 2080", 1, [0, 1]),
    ("a card without a known bridge", "NVIDIA A800 40GB Active", 4, [0, 1, 2, 3, 4]),
)
def test_a_bridge_joins_a_fixed_number_of_links(name: str, links: int, sound: list[int]) -> None:
    seen = {up: joined(name, up, up, links=links) for up in range(links + 1)}
    passed = [up for up, one in seen.items() if judge_nvlink(one).status is PASS]
    assert passed == sound
    bad = [judge_nvlink(one) for up, one in seen.items() if up not in sound]
    assert all("not fully plugged" in (outcome.cause or "") for outcome in bad)


@cases(
    "rows status word",
    ("pairs with different numbers of bridges", ("0c00", "c000", "0008", "0080"), PASS, "8 of 12"),
    ("two in a row of three", ("040", "404", "040"), PASS, "4 of 12, 8 of 12, 4 of 12"),
    ("a bridge that one card does not see", ("08", "40"), FAIL, "GPU 1: 4 of 12"),
)
def test_cards_whose_bridges_are_known_by_their_ends(
    rows: tuple[str, ...], status: Status, word: str
) -> None:
    seen = meshed("NVIDIA A100 80GB PCIe", *rows, links=12)
    holds(judge_nvlink(seen), status, word)


@pytest.mark.parametrize(
    ("errors", "status", "word"),
    [
        pytest.param((7, 106), PASS, "loaded: 106", id="a few within a moment"),
        pytest.param((7, 107), FAIL, "100 more within a moment", id="many within a moment"),
        pytest.param((None, 100), FAIL, "100 more", id="many where none were known before"),
    ],
)
def test_errors_are_judged_by_their_growth(
    errors: tuple[int | None, int], status: Status, word: str
) -> None:
    before, after = (state(gpu(nvlinks=links("+", errors=count))) for count in errors)
    holds(judge_nvlink(after, before), status, word)


@pytest.mark.parametrize(
    ("counts", "status", "word"),
    [
        pytest.param([0] * 17 + [505], FAIL, "NVLink 17 has counted 505 errors", id="the only one"),
        pytest.param([0] * 17 + [99], PASS, "loaded: 99", id="a few"),
        pytest.param([300] + [0] * 16 + [505], PASS, "loaded: 805", id="two of them"),
        pytest.param([505, 0], PASS, "loaded: 505", id="one of two"),
    ],
)
def test_the_only_link_with_errors_is_a_finding(
    counts: list[int], status: Status, word: str
) -> None:
    some = tuple(NvLink(i, active=True, errors=count, gbs=25.0) for i, count in enumerate(counts))
    holds(judge_nvlink(state(gpu(nvlinks=some))), status, word)


@pytest.mark.parametrize(
    ("virtualization", "words"),
    [
        pytest.param("none", "although this model has them", id="on bare metal"),
        pytest.param("passthrough", "without their links", id="one GPU of a board in a VM"),
    ],
)
def test_a_driver_that_reports_no_nvlinks(virtualization: str, words: str) -> None:
    seen = state(gpu(virtualization=virtualization))
    holds(judge_nvlink(seen, expected=True), SKIP, words)


def two(path: str | None, read: str | None = "ok", write: str | None = "ok", **more: Any) -> State:
    return state(gpu(0, **more), gpu(1, **more), pairs=(Pair(0, 1, path, read, write),))


@pytest.mark.parametrize(
    ("seen", "status", "word"),
    [
        pytest.param(state(gpu()), SKIP, "one GPU", id="one GPU"),
        pytest.param(state(gpu(), gpu(1)), SKIP, "does not report", id="pairs unknown"),
        pytest.param(two("NV4"), PASS, "connected by NV4; P2P between all", id="NVLink"),
        pytest.param(
            two("PHB", "chipset-not-supported", "chipset-not-supported"),
            PASS,
            "(chipset-not-supported): copies go through host memory",
            id="no P2P over PCIe costs speed only",
        ),
        pytest.param(
            two("NV4", "chipset-not-supported"), FAIL, "connected by NVLink, but", id="over NVLink"
        ),
        pytest.param(two("NV", "ok", "not-supported"), FAIL, "(NV)", id="NVLinks uncounted"),
        pytest.param(
            two("PIX", "disabled-by-regkey"), FAIL, "NVreg_RegistryDwords", id="switched off"
        ),
        pytest.param(
            two("NV4", "not-supported", mig=True), PASS, "not available", id="MIG has no peers"
        ),
        pytest.param(two("SYS", None, None), PASS, "does not report P2P", id="P2P unknown"),
        pytest.param(two(None), PASS, "connected by unknown", id="path unknown"),
    ],
)
def test_peers(seen: State, status: Status, word: str) -> None:
    holds(judge_peers(seen), status, word)


def test_the_matrix_is_as_nvidia_smi_has_it() -> None:
    seen = state(
        *(gpu(i) for i in range(3)),
        pairs=(Pair(0, 1, "NV4", "ok", "ok"), Pair(0, 2, "SYS", "not-supported", "ok")),
    )
    paths, reach = judge_peers(seen).measured["tables"]
    assert paths["columns"] == ["GPU", "0", "1", "2"]
    assert paths["rows"] == [
        ["0", "X", "NV4", "SYS"],
        ["1", "NV4", "X", None],
        ["2", "SYS", None, "X"],
    ]
    assert reach["rows"][0] == ["0", "X", "ok", "not-supported"]


FOUR: dict[str, Any] = {"nvlinks": links("++++")}


@pytest.mark.parametrize(
    ("seen", "words", "gbs"),
    [
        pytest.param(two("NV4", **FOUR), "NVLink (4 links a pair)", 100.0, id="NVLink"),
        pytest.param(
            two("NV18", nvlinks=links("+" * 18, gbs=50.0)), "18 links", 900.0, id="NVLink 5"
        ),
        pytest.param(two("PIX"), "PCIe 4.0 x16 through a PCIe switch", 31.504, id="switch"),
        pytest.param(two("SYS"), "through the host", 31.504, id="two sockets"),
        pytest.param(two("PIX", "not-supported"), "through the host", 31.504, id="no P2P"),
        pytest.param(
            two("PHB", pcie_width=8), "PCIe 4.0 x8", 15.752, id="the lanes that a card has count"
        ),
    ],
)
def test_what_the_links_can_do(seen: State, words: str, gbs: float) -> None:
    link = slowest_link(seen, 2)
    assert link is not None
    assert words in link.words
    assert link.gbs == pytest.approx(gbs)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(State(), id="nothing read"),
        pytest.param(state(gpu(), gpu(1)), id="pairs unknown"),
        pytest.param(two(None), id="path unknown"),
        pytest.param(two("NV", **FOUR), id="NVLinks uncounted"),
        pytest.param(two("NV4", nvlinks=links("+", gbs=None)), id="a link of unknown speed"),
        pytest.param(two("NV4", nvlinks=links("-")), id="no active link"),
        pytest.param(two("PIX", pcie_generation_max=None), id="no PCIe generation"),
        pytest.param(two("PIX", pcie_generation_max=9), id="a PCIe to come"),
        pytest.param(two("PIX", mig=True), id="MIG"),
        pytest.param(replace(two("PIX"), gpus=(gpu(),)), id="another number of GPUs"),
    ],
)
def test_unknown_links_have_no_figure(seen: State) -> None:
    assert slowest_link(seen, 2) is None


@given(st.permutations(["NV4", "NV2", "NV12"]))
def test_the_slowest_pair_counts_in_any_order(paths: list[str]) -> None:
    pairs = tuple(
        Pair(a, b, path) for (a, b), path in zip([(0, 1), (0, 2), (1, 2)], paths, strict=True)
    )
    link = slowest_link(state(*(gpu(i, **FOUR) for i in range(3)), pairs=pairs), 3)
    assert link is not None
    assert link.gbs == 50.0


@given(st.integers(1, 16), st.integers(1, 16))
def test_no_number_of_lanes_is_a_fault_where_the_port_is_unknown(now: int, best: int) -> None:
    outcome = judge_pcie(state(gpu(pcie_width=now, pcie_width_max=best, pcie_generation=1)))
    assert outcome.status is PASS
    assert ("fewer lanes" in outcome.message) == (now < best)


# Copies


def copy(source: int = 0, target: int = 1, **more: Any) -> PeerCopy:
    fields = {"direct": True, "wrong": 0, "total": 100, "seconds": (0.5, 0.25, 1.0)}
    return PeerCopy(source, target, **{**fields, "bytes": 10**9, **more})


@pytest.mark.parametrize(
    ("copies", "status", "word"),
    [
        pytest.param([copy(), copy(1, 0)], PASS, "2 of 2 by P2P, at least 2 GB/s", id="all whole"),
        pytest.param(
            [copy(direct=False), copy(1, 0)], PASS, "1 of 2 by P2P", id="one through host memory"
        ),
        pytest.param(
            [copy(), copy(1, 0, wrong=1)],
            FAIL,
            "GPU 1 to GPU 0: 1 of 100 numbers wrong",
            id="one wrong number names its way",
        ),
        pytest.param([copy(wrong=1)], FAIL, "IOMMU or PCIe ACS", id="P2P names the IOMMU"),
        pytest.param([copy(wrong=1, direct=False)], FAIL, "host memory", id="host memory"),
        pytest.param([copy(wrong=1, direct=None)], FAIL, "IOMMU", id="unknown whether by P2P"),
        pytest.param([copy(total=0)], FAIL, "0 of 0", id="nothing compared"),
        pytest.param([], FAIL, "nothing was copied", id="nothing copied"),
    ],
)
def test_copies(copies: list[PeerCopy], status: Status, word: str) -> None:
    holds(judge_copies(copies), status, word)


def test_copies_are_shown_by_direction() -> None:
    measured = judge_copies([copy(), copy(1, 0, seconds=(0.1,))]).measured
    (table,) = measured["tables"]
    assert table["rows"] == [["0", "X", 2.0], ["1", 10.0, "X"]]
    assert [m["labels"] for m in measured["metrics"]] == [
        {"source": "0", "target": "1"},
        {"source": "1", "target": "0"},
    ]
