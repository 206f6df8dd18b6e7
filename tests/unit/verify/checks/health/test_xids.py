"""verify/checks/health/xids.py: NVIDIA's catalogue, repairs, time and repetition decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mutations.health import healthy_gpu
from verify.checks.health import xids
from verify.device import driver_errors
from verify.device.kernel_log import Line, Log
from verify.device.machine import Machine
from verify.device.pci import PciGpu
from verify.device.telemetry import GpuState, State
from verify.model.check import Outcome, Status

WELL = State("580.65.06", (healthy_gpu(0), healthy_gpu(1)), found=True)
XID = "NVRM: Xid (PCI:0000:{}:00): {}, pid=7, name=python, Ch 00000008"
LINK = (
    "NVRM: Xid (PCI:0000:65:00): {}, {} XC0 i0 Link 08 ({:#010x} {:#010x} 0x00000000 0x0 0x0 0x0)"
)
RECOVERY = "NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (A) to 0x1 ({})"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Mon"
CORE = "nvidia-nvlink: Nvlink Core is being initialized, major device number 511"
BUS = (
    PciGpu("0000:17:00.0", driver="nvidia", ports=("0000:16:01.0",)),
    PciGpu("0000:65:00.0", driver="nvidia", ports=("0000:60:00.0", "0000:64:01.1")),
)
OFF_BUS = "NVRM: The NVIDIA GPU 0000:{}:00.0 (PCI ID: 10de:26b9) installed in this system has "
OFF_BUS += "fallen off the bus and is not responding to commands."
NOT_STARTED = "NVRM: GPU 0000:{}:00.0: RmInitAdapter failed! (0x26:0x56:1)"
UVM = "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os "
UVM += "reboot to recover."
LOST = "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST]"
RESET_DUE = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required "
RESET_DUE += "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2827"
FATAL = "pcieport 0000:64:01.1: AER: Uncorrected (Fatal) error received: {}"
CORRECTED = "pcieport 0000:64:01.1: AER: Corrected error received: {}"
MCE = "mce: [Hardware Error]: CPU 5: Machine Check Exception: 5 Bank 7: be00000000800400"
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {}, Link 32 egress"


def log(*texts: str | tuple[float, str]) -> Log:
    """These lines, at second 60 or at the one given."""
    lines = [Line(one, 60.0) if isinstance(one, str) else Line(one[1], one[0]) for one in texts]
    return Log(tuple(lines), "/dev/kmsg")


def judge(
    *texts: str | tuple[float, str], found: State = WELL, bus: Sequence[PciGpu] = BUS
) -> Outcome:
    return xids.judge_log(log(*texts), found, 660.0, bus)


def second(**fields: Any) -> State:
    return replace(WELL, gpus=(WELL.gpus[0], replace(WELL.gpus[1], **fields)))


def words(outcome: Outcome) -> str:
    return " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))


# Read from NVIDIA's catalogue by hand, apart from the data file.
USED = {8, 11, 13, 25, 31, 32, *range(37, 42), *range(43, 47), 48, 54, 60, *range(62, 65)}
USED |= {*range(66, 73), *range(74, 81), *range(82, 87), 88, 89, *range(92, 108), 109, 110}
USED |= {119, 120, 121, *range(126, 138), *range(139, 173)}
REPAIR = {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 150, 151, 155}
REPAIR |= {156, 158, 159}


def test_the_catalogue_uses_109_codes_and_the_data_has_each() -> None:
    assert len(USED) == 109
    assert set(driver_errors.codes()) >= USED


@pytest.mark.parametrize("code", sorted(USED - {154}))
def test_every_code_is_judged_as_the_catalogue_says(code: int) -> None:
    outcome = judge(XID.format("65", code))
    assert outcome.status is (Status.FAIL if code in REPAIR else Status.PASS)
    assert "recurs, no action" not in words(outcome)
    if code in {106, 107}:
        assert "Xid" not in outcome.message
    else:
        assert f"Xid {code}" in outcome.message
        assert driver_errors.codes()[code].what in words(outcome)


@given(st.integers(0, 999999).filter(lambda code: code not in driver_errors.codes()))
def test_an_unknown_code_is_reported(code: int) -> None:
    outcome = judge(XID.format("65", code))
    assert outcome.status is Status.PASS
    assert f"Xid {code}, 10 min ago (an Xid that NVIDIA's catalogue does not" in outcome.message


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param(57, Status.FAIL, id="memory interface not programmed"),
        pytest.param(58, Status.FAIL, id="memory interface unstable"),
        pytest.param(61, Status.FAIL, id="internal controller"),
        pytest.param(56, Status.PASS, id="display engine"),
        pytest.param(122, Status.PASS, id="InfoROM not read"),
        pytest.param(123, Status.PASS, id="InfoROM not written"),
        pytest.param(14, Status.PASS, id="an error that a program made up"),
        pytest.param(108, Status.PASS, id="not used, and to be ignored"),
    ],
)
def test_codes_of_older_gpus(code: int, status: Status) -> None:
    assert judge(XID.format("65", code)).status is status


# Unit, severity: whether the catalogue asks for a reset.
LINKS = [
    (144, "SAW_MVB Nonfatal", False),
    (144, "SAW_MVB Fatal", True),
    (145, "RLW_CTRL Nonfatal", False),
    (145, "RLW_REMAP Nonfatal", False),
    (145, "RLW_REMAP Fatal", True),
    (145, "RLW_RSPCOL Nonfatal", False),
    (145, "RLW_RSPCOL Fatal", True),
    (145, "RLW_RXPIPE Nonfatal", False),
    (145, "RLW_RXPIPE Fatal", True),
    (145, "RLW_SRC_TRACK Nonfatal", False),
    (145, "RLW_SRC_TRACK Fatal", True),
    (145, "RLW_TAGSTATE Nonfatal", False),
    (145, "RLW_TAGSTATE Fatal", True),
    (146, "TLW_CTRL Nonfatal", False),
    (146, "TLW_CTRL Fatal", True),
    (146, "TLW_RX Nonfatal", False),
    (146, "TLW_RX Fatal", True),
    (146, "TLW_RX_PIPE0 Nonfatal", False),
    (146, "TLW_RX_PIPE0 Fatal", True),
    (146, "TLW_RX_PIPE1 Non-fatal", False),
    (146, "TLW_RX_PIPE1 Fatal", True),
    (146, "TLW_TX Nonfatal", False),
    (146, "TLW_TX Fatal", True),
    (146, "TLW_TX_PIPE0 Nonfatal", False),
    (146, "TLW_TX_PIPE0 Fatal", True),
    (146, "TLW_TX_PIPE1 Nonfatal", False),
    (146, "TLW_TX_PIPE1 Fatal", True),
    (147, "TREX Nonfatal", False),
    (148, "NVLPW_CTRL Nonfatal", False),
    (148, "NVLPW Nonfatal", False),
    (149, "NETIR Fatal", True),
    (149, "NETIR_INT Link Fatal", True),
    (149, "NETIR_BER_EVENT Nonfatal", False),
    (149, "NETIR_LINK_EVT Fatal", True),
    (149, "NETIR_LINK_EVT/NETIR_LINK_DOWN Link Fatal", True),
    (149, "NETIR_MFDE_EVENT Fatal", True),
    (149, "NETIR_MFDE_EVENT Nonfatal", False),
    (150, "MSE_WATCHDOG Fatal", True),
    (150, "MSE Degraded Fatal", True),
    (145, "RLW_OF_A_LATER_GPU Fatal", True),
    (145, "RLW_OF_A_LATER_GPU Nonfatal", False),
]


@pytest.mark.parametrize(("code", "unit", "bad"), LINKS, ids=[f"{c} {u}" for c, u, _ in LINKS])
def test_every_nvlink_unit_by_its_severity(code: int, unit: str, *, bad: bool) -> None:
    text = f"NVRM: Xid (PCI:0000:65:00): {code}, {unit} XC0 i0 Link 08"
    assert judge(text).status is (Status.FAIL if bad else Status.PASS)


REGISTERS = [
    (145, "RLW_REMAP Nonfatal", 0, 0x4, False, "unless the driver asks for more"),
    (145, "RLW_REMAP Nonfatal", 0, 0x100, False, "no action"),
    (145, "RLW_SRC_TRACK Nonfatal", 0, 0x8, False, "unless the driver asks for more"),
    (144, "SAW_MVB Nonfatal", 0, 0x8, False, "by its vendor"),
    (149, "NETIR_LINK_EVT Fatal", 0x004505C6, 0, True, "bridges, cables"),
    (149, "NETIR_LINK_EVT Fatal", 0x025001C6, 0, True, "other end of the link"),
    (149, "NETIR_LINK_DOWN Fatal", 0b100110 << 20, 0, False, "switched the link off"),
    (149, "NETIR_LINK_EVT Fatal", 0b101000 << 20, 0, False, "the host's other logs"),
    (149, "NETIR_MFDE_EVENT Fatal", 0x246, 0x3, True, "gpu-reset -i 1"),
    (149, "NETIR_LINK_EVT Fatal", 0x3F << 20, 0, True, "gpu-reset -i 1"),
    (144, "SAW_MVB", 0, 0x2, True, "gpu-reset -i 1"),
    (144, "SAW_MVB", 0, 0x4, False, "no action"),
    (144, "SAW_MVB", 0, 0x3, False, "decode it"),
]


@pytest.mark.parametrize(
    ("code", "unit", "info", "status", "bad", "word"),
    REGISTERS,
    ids=[f"{c} {u} {i:#x} {s:#x}" for c, u, i, s, _, _ in REGISTERS],
)
def test_the_registers_of_an_nvlink_error_decide(
    code: int, unit: str, info: int, status: int, *, bad: bool, word: str
) -> None:
    outcome = judge(LINK.format(code, unit, info, status))
    assert outcome.status is (Status.FAIL if bad else Status.PASS)
    assert word in words(outcome)


@pytest.mark.parametrize(
    ("registers", "status"),
    [
        pytest.param("0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Status.FAIL, id="a sympathetic bit"),
        pytest.param("0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Status.PASS, id="ignorable bits"),
        pytest.param("0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", Status.PASS, id="corrected ECC"),
        pytest.param("0x0, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0", Status.FAIL, id="ECC"),
        pytest.param("0x0, 0x0, 0x0, 0x0, 0x0, 0x1, 0x0", Status.FAIL, id="an unknown register"),
        pytest.param("0x0, 0x0", Status.FAIL, id="no bit"),
    ],
)
def test_the_registers_of_xid_74(registers: str, status: Status) -> None:
    text = "NVRM: Xid (PCI:0000:65:00): 74, pid=7, NVLink: fatal error detected on link 14({})"
    assert judge(text.format(registers)).status is status


P, F = Status.PASS, Status.FAIL
CASES = [
    ("clean", (LOADED,), P, "asks for a repair in the kernel log (lines read: 1)"),
    ("a reset is due", (XID.format("65", 48),), F, "GPU 1, 10 min ago: Xid 48"),
    ("the fix names the GPU", (XID.format("17", 48),), F, "--gpu-reset -i 0"),
    ("a contained error", (XID.format("65", 94),), P, "GPU 1: Xid 94, 10 min ago (an uncorr"),
    ("the step is NVIDIA's", (XID.format("65", 94),), P, "restart the application"),
    ("a replacement is marked", (XID.format("65", 63),), P, "marked for replacement; no action"),
    (
        "the same on several GPUs",
        (XID.format("17", 45), XID.format("65", 45), XID.format("65", 45)),
        P,
        "; GPU 0, GPU 1: Xid 45, 3 times, 10 min ago (an application",
    ),
    ("an application was ended", (XID.format("65", 45),), P, "ended from outside"),
    ("a restart of Fabric Manager", (XID.format("65", 45),), P, "restart Fabric Manager"),
    (
        "the error of the card and what followed",
        (XID.format("65", 74), XID.format("65", 45), XID.format("65", 45)),
        F,
        "GPU 1, 10 min ago: Xid 74, Xid 45 (2 times)",
    ),
    ("the first is the cause", (XID.format("65", 119), XID.format("65", 79)), F, "| Xid 119: "),
    (
        "each GPU is named",
        (XID.format("17", 79), XID.format("65", 48)),
        F,
        "GPU 0, 10 min ago: Xid 79; GPU 1, 10 min ago: Xid 48",
    ),
    ("a GPU that left the bus", (XID.format("b3", 79),), F, "GPU at 0000:b3:00, 10 min ago"),
    ("a part of a GPU", (XID.format("65", 95).replace("65:00", "65:00 GPU-I:05"),), F, "Xid 95"),
    ("old form", ("NVRM: Xid (0000:65:00): 62, Channel 00000001",), F, "Xid 62"),
    ("NVSwitch", (SWITCH.format("20034, Fatal"),), F, "NVSwitch 0000:c1:00"),
    ("NVSwitch, not fatal", (SWITCH.format("12028, Non-fatal"),), P, "had a non-fatal error"),
    ("a reboot is due", (RECOVERY.format("Node Reboot Required"),), F, "Node Reboot Required"),
    ("a reboot, by a later driver", (RECOVERY.format("OS Reboot"),), F, "| reboot the host"),
    ("a reset, by a later driver", (RECOVERY.format("PF FLR"),), F, "--gpu-reset -i 1"),
    ("the rack's memory", (RECOVERY.format("IMEX Recovery"),), F, "| restart nvidia-imex"),
    ("an action of a later driver", (RECOVERY.format("Swap Board"),), F, "asks for: Swap Board"),
    ("an action that is not named", (XID.format("65", 154),), P, "does not name"),
    ("nothing is due", (RECOVERY.format("None"),), P, "(lines read: 1)"),
    # Repairs
    (
        "repaired, as 154 says",
        (XID.format("65", 48), RECOVERY.format("None")),
        P,
        "Xid 48, repaired",
    ),
    ("repaired with its age", (XID.format("65", 48), LOADED), P, "repaired, 10 min ago (memory"),
    (
        "154 of another GPU",
        (XID.format("17", 48), RECOVERY.format("None")),
        F,
        "GPU 0, 10 min ago: Xid 48",
    ),
    ("154 before it", (RECOVERY.format("None"), XID.format("65", 48)), F, "GPU 1"),
    (
        "asked for, and done",
        (XID.format("65", 48), RECOVERY.format("GPU Reset Required"), RECOVERY.format("None")),
        P,
        "Xid 154, repaired",
    ),
    (
        "done, and due again",
        (XID.format("65", 48), RECOVERY.format("None"), RECOVERY.format("GPU Reset Required")),
        F,
        "asks for: GPU Reset Required",
    ),
    ("a PCI reset", (XID.format("65", 48), "nvidia 0000:65:00.0: reset done"), P, "repaired"),
    ("a reset of another", (XID.format("65", 48), "nvidia 0000:17:00.0: reset done"), F, "Xid 48"),
    ("NVSwitch, then a load", (SWITCH.format("20034, Fatal"), LOADED), P, "SXid 20034, repaired"),
    # Without an Xid
    ("off the bus", ("NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.",), F, "power cables"),
    (
        "found on the bus again",
        (XID.format("65", 79), "pci 0000:65:00.0: [10de:2330] type 00 class 0x030200"),
        P,
        "Xid 79, repaired",
    ),
    (
        "another card found",
        (XID.format("65", 79), "pci 0000:17:00.0: [10de:2330] type 00 class 0x030200"),
        F,
        "Xid 79",
    ),
    ("never on the bus", (OFF_BUS.format("b3"),), F, "GPU at 0000:b3:00"),
    ("probe failed", ("NVRM: The NVIDIA probe routine failed for 1 device(s).",), F, "the host"),
    ("not started", (NOT_STARTED.format("b3"),), F, "GPU at 0000:b3:00"),
    ("started at last", (NOT_STARTED.format("65"),), P, "RmInitAdapter failed, repaired"),
    ("probe failed in a load", (CORE, OFF_BUS.format("65"), LOADED), F, "off the bus"),
    ("loaded again", (OFF_BUS.format("65"), CORE, LOADED), P, "off the bus, repaired"),
    (
        "too old for the driver",
        (
            "NVRM: The NVIDIA GPU 0000:0a:00.0 (PCI ID: 10de:128b)",
            "NVRM: installed in this system is not supported by the",
            "NVRM: NVIDIA 580.65.06 driver release.",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        ),
        P,
        "the driver is not for this GPU",
    ),
    (
        "of an older branch of drivers",
        (
            "NVRM: The NVIDIA GeForce GTX 680 GPU installed in this system is",
            "NVRM:  supported through another branch. The 580.65.06 driver will ignore this GPU.",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        ),
        P,
        "the driver is not for this GPU",
    ),
    (
        "one too old, and one that failed",
        (
            "NVRM: The NVIDIA GeForce 8400 GS GPU installed in this system is",
            "NVRM:  supported through the NVIDIA 340.xx Legacy drivers.",
            "NVRM: The NVIDIA probe routine failed for 2 device(s).",
        ),
        F,
        "probe failed",
    ),
    (
        "called too old, although it is broken",
        (
            "NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2330)",
            "NVRM: installed in this system is not supported by the",
            "NVRM: NVIDIA 580.126.09 driver release.",
        ),
        P,
        "if others of its model work in this machine, it is broken",
    ),
    ("unified memory", (UVM,), F, "the host, 10 min ago: unified memory failed | "),
    ("unified memory, loaded again", (UVM, CORE, LOADED), P, "unified memory failed, repaired"),
    ("a reset is due, repaired", (RESET_DUE,), P, "the host: reset required, repaired"),
    # PCIe
    ("fatal", (FATAL.format("0000:65:00.0"),), F, "GPU 1, 10 min ago: PCIe error, fatal"),
    ("of the card's audio", (FATAL.format("0000:65:00.1"),), F, "GPU 1"),
    ("of the port itself", (FATAL.format("0000:64:01.1"),), F, "GPU 1"),
    ("of the root port", (FATAL.format("0000:60:00.0"),), F, "GPU 1"),
    ("old form of the port", (FATAL.format("id=6409"),), F, "GPU 1"),
    ("of another function", (FATAL.format("0000:64:01.0"),), P, "(lines read: 1)"),
    (
        "of a port that the GPU is known to be at",
        ("nvidia 0000:65:00.0: AER: can't recover (no error_detected callback)",),
        F,
        "GPU 1, 10 min ago: PCIe error, not corrected",
    ),
    ("of an older kernel", ("nvidia 0000:65:00.0: device has no AER-aware driver",), F, "GPU 1"),
    ("of a NIC", (FATAL.format("0000:5e:00.0"),), P, "(lines read: 1)"),
    (
        "the NIC's own line",
        ("mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x",),
        P,
        "(lines read: 1)",
    ),
    (
        "the kernel recovered",
        (
            FATAL.format("0000:65:00.0"),
            "nvidia 0000:65:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x",
            "pcieport 0000:64:01.1: AER: device recovery successful",
        ),
        P,
        "PCIe error, fatal, 2 times, repaired",
    ),
    ("before the driver", (FATAL.format("0000:65:00.0"), CORE, LOADED), P, "repaired"),
    ("a few corrected", (CORRECTED.format("0000:65:00.0"),) * 5, P, "a few are normal"),
    ("a storm", (CORRECTED.format("0000:65:00.0"),) * 40, F, "40 errors in a minute"),
    ("a storm of a NIC", (CORRECTED.format("0000:5e:00.0"),) * 40, P, "(lines read: 40)"),
    (
        "one an hour",
        tuple((3600.0 * i, CORRECTED.format("0000:65:00.0")) for i in range(40)),
        P,
        "corrected, 40 times",
    ),
    (
        "link down",
        ("pcieport 0000:64:01.1: pciehp: Slot(1): Link Down",),
        F,
        "GPU 1, 10 min ago: PCIe link down",
    ),
    (
        "of an older kernel's slot",
        ("pciehp 0000:64:01.1:pcie24: slot(6): Link Down event",),
        F,
        "1",
    ),
    (
        "link down, and the card left the bus",
        (
            "pci 0000:b2:00.0: PCI bridge to [bus b3]",
            "nvidia 0000:b3:00.0: enabling device (0000 -> 0002)",
            "pcieport 0000:b2:00.0: pciehp: Slot(5): Link Down",
        ),
        F,
        "GPU at 0000:b2:00, 10 min ago: PCIe link down",
    ),
    ("card gone", ("pciehp 0000:64:01.1:pcie004: Slot(1): Card not present",), F, "GPU 1"),
    ("contained", ("pcieport 0000:64:01.1: DPC: containment event, status:0x1f01",), F, "GPU 1"),
    ("a NIC's link", ("pcieport 0000:5d:01.0: pciehp: Slot(2): Link Down",), P, "(lines read: 1)"),
    (
        "link up again",
        (
            "pcieport 0000:64:01.1: pciehp: Slot(1): Link Down",
            "pcieport 0000:64:01.1: pciehp: Slot(1): Link Up",
        ),
        P,
        "PCIe link down, repaired",
    ),
    (
        "card there again",
        (
            "pcieport 0000:64:01.1: pciehp: Slot(1): Card not present",
            "pcieport 0000:64:01.1: pciehp: Slot(1): Card present",
        ),
        P,
        "PCIe link down, repaired",
    ),
    # The host
    ("machine check", (MCE,), F, "the host, 10 min ago: machine check"),
    ("of the last start", ((3.0, MCE),), P, "machine check, from before the start"),
    ("a load does not repair a CPU", (MCE, CORE, LOADED), F, "memory and CPUs tested"),
]


@pytest.mark.parametrize(
    ("texts", "status", "word"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_kernel_log(texts: tuple[Any, ...], status: Status, word: str) -> None:
    outcome = judge(*texts)
    assert outcome.status is status
    assert word in words(outcome)
    if status is Status.FAIL:
        assert outcome.cause
        assert outcome.fix


def test_nvml_has_the_last_word_on_a_repair() -> None:
    repaired = (XID.format("65", 48), RECOVERY.format("None"), LOADED)
    for found in (second(recovery="reset the GPU"), second(failure="GPU requires reset")):
        assert judge(*repaired, found=found).status is Status.FAIL
    assert judge(*repaired, found=second(recovery=None)).status is Status.PASS


def test_a_row_that_waits_for_remapping_is_reported() -> None:
    waits = second(recovery="drain and reset the GPU", remap_pending=True)
    texts = (
        XID.format("65", 119),
        LOADED,
        XID.format("65", 63),
        RECOVERY.format("Drain and Reset"),
    )
    outcome = judge(*texts, found=waits)
    assert outcome.status is Status.PASS
    assert "Xid 119, repaired" in outcome.message
    assert "asks for: Drain and Reset; when what runs on the GPU has ended" in outcome.message


def test_a_lost_gpu_that_the_driver_does_not_name() -> None:
    card = PciGpu("0000:b3:00.0", driver="nvidia")
    outcome = judge(LOST, bus=(*BUS, card))
    assert outcome.status is Status.FAIL
    assert "the host, 10 min ago: GPU lost | " in words(outcome)
    assert judge(LOST, bus=(*BUS, replace(card, driver=None))).status is Status.PASS
    assert judge(LOST, bus=(*BUS, replace(card, closed=True))).status is Status.PASS
    assert judge(LOST, LOADED, bus=(*BUS, card)).status is Status.PASS


@pytest.mark.parametrize("recovery", [None, "reset the GPU"])
def test_a_reset_that_the_driver_asks_for_without_an_xid(recovery: str | None) -> None:
    outcome = judge(RESET_DUE, found=second(recovery=recovery))
    assert outcome.status is Status.FAIL
    assert "(nvidia-smi --gpu-reset)" in (outcome.fix or "")
    assert judge(RESET_DUE, LOADED, found=second(recovery=None)).status is Status.PASS


def test_without_sysfs_a_gpu_that_is_not_visible_may_be_another_containers() -> None:
    outcome = judge(XID.format("b3", 79), bus=())
    assert "1 on GPUs that are not visible here" in outcome.message


def test_a_fault_that_comes_back_after_each_repair_counts() -> None:
    again = (XID.format("65", 48), RECOVERY.format("None"))
    assert judge(*again * 2).status is Status.PASS
    outcome = judge(*again * 3)
    assert outcome.status is Status.FAIL
    assert "came back" in (outcome.cause or "")
    assert "vendor" in (outcome.fix or "")
    year = [(i * 1e7, text) for i in range(3) for text in again]
    assert judge(*year).status is Status.PASS
    asked = RECOVERY.format("GPU Reset Required")
    other = [(XID.format("65", code), asked, LOADED) for code in (48, 95, 119)]
    assert judge(*(text for three in other for text in three)).status is Status.PASS


def sm(pid: int, gpc: int, tpc: int) -> str:
    said = f"Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Illegal Instruction"
    return f"NVRM: Xid (PCI:0000:65:00): 13, pid={pid}, name=p{pid}, {said}"


@pytest.mark.parametrize(
    ("texts", "likely"),
    [
        pytest.param((sm(1, 7, 7), sm(2, 7, 7)), True, id="two programs on one part"),
        pytest.param((sm(1, 7, 7), sm(1, 7, 7)), False, id="one program"),
        pytest.param((sm(1, 7, 7), sm(2, 7, 6)), False, id="several parts"),
        pytest.param((sm(1, 7, 7), sm(2, 6, 7)), False, id="several GPCs"),
        pytest.param((XID.format("65", 13), XID.format("65", 13)), False, id="no part is named"),
        pytest.param(
            tuple(sm(1, 7, 7).replace("pid=1", "pid='<unknown>'") for _ in "ab"),
            False,
            id="programs that are not named",
        ),
    ],
)
def test_xid_13_of_different_programs_on_one_part(texts: tuple[str, ...], *, likely: bool) -> None:
    outcome = judge(*texts)
    assert outcome.status is Status.PASS
    assert ("likely the hardware" in outcome.message) is likely


def test_a_lost_gpu_has_no_address_so_every_xid_counts() -> None:
    lost = replace(WELL, gpus=(WELL.gpus[0], GpuState(1)))
    outcome = judge(XID.format("65", 79), LOADED, found=lost)
    assert outcome.status is Status.FAIL
    assert outcome.message == "GPU at 0000:65:00, 10 min ago: Xid 79"
    named = "nvidia 0000:65:00.0: enabling device (0000 -> 0003)"
    assert judge(named, FATAL.format("0000:65:00.0"), found=lost).status is Status.FAIL


@pytest.mark.parametrize(
    ("card", "text", "status", "word"),
    [
        pytest.param(
            PciGpu("0000:b3:00.0", driver="nvidia", closed=True),
            OFF_BUS.format("b3"),
            Status.PASS,
            "not visible here",
            id="of another container",
        ),
        pytest.param(
            PciGpu("0000:b3:00.0", driver="nvidia", closed=True),
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
            Status.PASS,
            "not visible here",
            id="perhaps of another container",
        ),
        pytest.param(
            PciGpu("0000:b3:00.0", driver="nvidia", closed=True),
            XID.format("b3", 79),
            Status.PASS,
            "1 on GPUs that are not visible here",
            id="another container's GPU",
        ),
        pytest.param(
            PciGpu("0000:b3:00.0", driver="vfio-pci"),
            XID.format("b3", 79),
            Status.PASS,
            "not visible here",
            id="given to a virtual machine",
        ),
        pytest.param(
            PciGpu("0000:b3:00.0", driver="nvidia"),
            XID.format("b3", 79),
            Status.FAIL,
            "GPU at 0000:b3:00",
            id="lost: it may be used, and NVML does not list it",
        ),
        pytest.param(
            PciGpu("0000:b3:00.0"),
            OFF_BUS.format("b3"),
            Status.FAIL,
            "GPU at",
            id="no driver took it",
        ),
        pytest.param(
            PciGpu("0000:b3:00.0", driver="nvidia", ports=("0000:b2:00.0",)),
            FATAL.format("0000:b2:00.0"),
            Status.FAIL,
            "GPU at 0000:b2:00",
            id="the port of a lost GPU",
        ),
    ],
)
def test_a_gpu_that_nvml_does_not_list(card: PciGpu, text: str, status: Status, word: str) -> None:
    outcome = judge(text, bus=(*BUS, card))
    assert outcome.status is status
    assert word in words(outcome)
    assert judge(OFF_BUS.format("65"), bus=(*BUS, card)).status is Status.FAIL


def test_only_gpus_that_nvml_does_not_list_are_opened() -> None:
    opened = []

    class Bus(Machine):
        def pci(self) -> tuple[PciGpu, ...]:
            return (*BUS, PciGpu("0000:b3:00.0", driver="nvidia"))

        def is_closed(self, gpu: PciGpu) -> bool:
            opened.append(gpu.address)
            return True

    assert [card.closed for card in xids.read_bus(Bus(), WELL)] == [False, False, True]
    assert opened == ["0000:b3:00.0"]
    assert not any(card.closed for card in xids.read_bus(Bus(), State()))


def test_the_lines_of_the_start_say_which_port_a_gpu_has() -> None:
    start = "pci 0000:64:02.0: PCI bridge to [bus 65-66]"
    fault = "pcieport 0000:64:02.0: pciehp: Slot(1): Link Down"
    assert xids.judge_log(log(start, fault), WELL).status is Status.FAIL
    assert xids.judge_log(log(fault), WELL).status is Status.PASS


def test_xids_count_even_where_nvml_does_not_answer() -> None:
    found = State(found=True, error="nvmlInit_v2: Unknown Error (999)")
    assert judge(XID.format("65", 79), found=found).status is Status.FAIL
    assert judge(XID.format("65", 79), CORE, LOADED, found=found).status is Status.PASS


def test_a_gpu_without_a_number_is_reset_by_its_address() -> None:
    outcome = judge(XID.format("65", 48), found=State(found=True, error="nvmlInit_v2: x"))
    assert "--gpu-reset -i 0000:65:00.0" in (outcome.fix or "")


def test_without_a_driver_a_clean_log_proves_nothing() -> None:
    assert judge("usb 1-1: new device", found=State()).status is Status.SKIP


def test_a_closed_log_is_a_skip_that_says_where_to_look() -> None:
    outcome = xids.judge_log(Log(error="/dev/kmsg: Operation not permitted"), WELL)
    assert outcome.status is Status.SKIP
    assert "Operation not permitted" in outcome.message
    assert "on the host" in (outcome.fix or "")


def test_a_log_full_of_errors_is_judged_in_time() -> None:
    texts = (
        FATAL.format("0000:65:00.0"),
        CORRECTED.format("0000:65:00.0"),
        "pcieport 0000:64:01.1: AER: device recovery successful",
    )
    outcome = judge(*texts * 2000)
    assert outcome.status is Status.FAIL
    assert "came back" in (outcome.cause or "")


def test_every_action_of_the_data_has_its_step() -> None:
    data = driver_errors.knowledge()
    rows = data["codes"] + data["older"]["codes"] + data["nvlink"]["rules"]
    for row in rows:
        assert row["action"] in data["actions"]
        assert row.get("later", "") in data["actions"]
    assert {rule.repairs for rule in driver_errors.line_rules()} == {"", "all", "gpu", "port"}
