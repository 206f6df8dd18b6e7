"""Faults of health: one field of a healthy machine of two GPUs is broken at a time."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Callable

from tests.mutations import rows

RESET = "nvidia-smi --gpu-reset"
BUS_IDS = ("00000000:17:00.0", "00000000:65:00.0")


def healthy_gpu(index: int) -> Any:
    """A card as NVML tells of it where nothing is wrong."""
    from verify.device.telemetry import GpuState, NvLink

    return GpuState(
        index,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-0000000{}".format(index),
        compute_capability="9.0",
        bus_id=BUS_IDS[index],
        mig=False,
        memory_total_bytes=80 << 30,
        memory_used_bytes=1 << 29,
        processes=(),
        utilization_percent=0,
        memory_utilization_percent=0,
        temperature_c=34,
        slowdown_c=89,
        power_w=71.5,
        power_limit_w=700.0,
        clock_sm_mhz=345,
        clock_sm_max_mhz=1980,
        clock_memory_mhz=2619,
        clock_memory_max_mhz=2619,
        throttle_reasons=("gpu_idle",),
        persistence=True,
        compute_mode="default",
        ecc_enabled=True,
        ecc_corrected=0,
        ecc_uncorrected=0,
        ecc_uncorrected_ever=0,
        retired_pages=0,
        retired_pending=False,
        remapped_rows=0,
        remap_pending=False,
        remap_failed=False,
        spare_rows=(2560, 0, 0, 0, 0),
        sram_uncorrected=0,
        sram_threshold_exceeded=False,
        pcie_replays=0,
        nvlinks=(NvLink(0, active=True, errors=0), NvLink(1, active=True, errors=0)),
        recovery="none",
        pcie_width=16,
        fabric_state="completed",
    )


def healthy() -> None:
    """Two healthy GPUs, each behind a port of its own, and a kernel log without trouble."""
    from verify.device import kernel_log, pci, state
    from verify.device.telemetry import State

    whole = State("580.65.06", (healthy_gpu(0), healthy_gpu(1)), found=True)
    state.read = lambda *_: whole
    line = kernel_log.Line("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06", 12.0)
    kernel_log.read = lambda: kernel_log.Log((line,), "/dev/kmsg")
    cards = tuple(
        pci.PciGpu(pci.bus_address(bus_id), driver="nvidia", ports=(port,))
        for bus_id, port in zip(BUS_IDS, ("0000:16:01.0", "0000:64:01.0"))
    )
    pci.read = lambda *_: cards


def broken(**fields: Any) -> Callable[[], None]:
    """The second GPU with these fields."""

    def seed() -> None:
        from verify.device import state

        whole = state.read()
        gpus = (whole.gpus[0], dataclasses.replace(whole.gpus[1], **fields))
        state.read = lambda *_: dataclasses.replace(whole, gpus=gpus)

    return seed


def logged(*texts: str) -> Callable[[], None]:
    """These lines in the kernel log."""

    def seed() -> None:
        from verify.device import kernel_log

        log = kernel_log.read()
        lines = (*log.lines, *(kernel_log.Line(text, 20.0) for text in texts))
        kernel_log.read = lambda: dataclasses.replace(log, lines=lines)

    return seed


def both(*seeds: Callable[[], None]) -> Callable[[], None]:
    """Several faults."""

    def seed() -> None:
        for one in seeds:
            one()

    return seed


def busy() -> None:
    """A process holds a GPU that takes one at a time."""
    from verify.device.telemetry import GpuProcess

    broken(compute_mode="exclusive-process", processes=(GpuProcess(4711, 1 << 30),))()


def nvlink(**fields: Any) -> Callable[[], None]:
    """The second GPU's first NVLink with these fields."""
    from verify.device.telemetry import NvLink

    links = healthy_gpu(1).nvlinks
    return broken(nvlinks=(NvLink(**{**dataclasses.asdict(links[0]), **fields}), *links[1:]))


def gone() -> None:
    """NVML lists the first GPU only."""
    from verify.device import state

    whole = state.read()
    state.read = lambda *_: dataclasses.replace(whole, gpus=whole.gpus[:1])


def no_nvml() -> None:
    """NVML has an error."""
    from verify.device import state
    from verify.device.telemetry import State

    state.read = lambda *_: State(found=True, error="Driver Not Loaded")


_rows = partial(rows, sound=healthy, level="quick")
HOT, BRAKE = ("hw_slowdown", "hw_thermal_slowdown"), ("hw_power_brake_slowdown",)
XID = "NVRM: Xid (PCI:0000:65:00): "
MIG = "NVRM: Xid (PCI:0000:65:00 GPU-I:05): "
PORT = "pcieport 0000:64:01.0: "
ASKS = "154, GPU recovery action changed from 0x0 (None) to 0x1 ({})"
ROWS = {
    "pytorch": (
        *_rows(
            "health.memory",
            (
                "an uncorrected ECC error in the SRAM",
                broken(ecc_uncorrected=1, sram_uncorrected=1),
                "nvidia-smi --gpu-reset -i 1",
            ),
            (
                "an uncorrected ECC error on a card that remaps no rows",
                broken(ecc_uncorrected=1, remap_pending=None, remap_failed=None),
                "driver was loaded: 1",
            ),
            ("the SRAM wears out", broken(sram_threshold_exceeded=True), "replaced"),
            ("a page waits to be retired", broken(retired_pending=True), RESET),
            ("a row could not be remapped", broken(remap_failed=True), "replaced"),
            ("the card has worn out", broken(retired_pages=60), "NVIDIA's limit is 60"),
        ),
        *_rows(
            "health.memory",
            ("a bank has no spare row left", broken(spare_rows=(2559, 0, 0, 0, 1)), "any: 1"),
            ("a row waits to be remapped", broken(remap_pending=True), RESET),
            status="pass",
        ),
        *_rows(
            "health.clocks",
            (
                "the hardware slows it down",
                broken(throttle_reasons=("hw_slowdown",)),
                "hw_slowdown",
            ),
            (
                "it is too hot for its clocks",
                broken(throttle_reasons=("hw_slowdown", "hw_thermal_slowdown")),
                "fans",
            ),
            (
                "the driver cools it at work",
                broken(throttle_reasons=("sw_thermal_slowdown",), utilization_percent=97),
                "too hot",
            ),
            (
                "the power brake is on at rest",
                broken(throttle_reasons=("gpu_idle", "hw_power_brake_slowdown")),
                "power supply",
            ),
            (
                "the power brake is on",
                broken(throttle_reasons=("hw_power_brake_slowdown",)),
                "power supply",
            ),
        ),
        *_rows(
            "health.temperature",
            ("it is at its limit", broken(temperature_c=89), "not cooled"),
            ("it tells no degrees left", broken(slowdown_c=None, slowdown_margin_c=-1), "1 C over"),
        ),
        *_rows(
            "health.mode",
            ("closed to CUDA", broken(compute_mode="prohibited"), "-c DEFAULT"),
            ("the driver asks for a reset", broken(recovery="reset the GPU"), "--gpu-reset"),
            (
                "a virtual GPU without a licence",
                broken(virtualization="vgpu", license="unlicensed"),
                "nvidia-gridd",
            ),
            ("the IMEX domain failed", broken(recovery="recover the IMEX domain"), "nvidia-imex"),
            ("MIG mode without a MIG device", broken(mig=True), "no MIG device"),
        ),
        *_rows(
            "health.mode",
            ("one process at a time, and one is there", busy, "process 4711"),
            status="skip",
        ),
        *_rows(
            "health.fabric",
            ("Fabric Manager is not running", broken(fabric_state="in-progress"), "580.65.06"),
            ("it was never started", broken(fabric_state="not-started"), "nvidia-fabricmanager"),
            ("the fabric gave the GPU up", broken(fabric_status="Unknown Error"), "Unknown Error"),
            ("a route is unhealthy", broken(fabric_health=("a route is unhealthy",)), "NVLinks"),
            (
                "a rack's GPU has not joined",
                broken(name="NVIDIA GB200", fabric_state="in-progress"),
                "nmx-controller",
            ),
            (
                "a rack's GPU has less bandwidth",
                broken(name="NVIDIA GB300", fabric_health=("bandwidth is degraded",)),
                "nmx-telemetry",
            ),
        ),
        *_rows(
            "health.log",
            (
                "a GPU fell off the bus",
                logged(XID + "79, pid=1, GPU has fallen off the bus."),
                "fallen off the bus",
            ),
            ("a double-bit error", logged(XID + "48, pid=1, DBE"), "--gpu-reset -i 1"),
            ("a double-bit error of a MIG device", logged(MIG + "95, pid=1, x"), "any application"),
            (
                "the card's error and what it did to an application",
                logged(XID + "119, pid=7, Timeout", XID + "45, pid=7, name=python"),
                "GSP",
            ),
            ("an NVLink failed", logged(XID + "145, RLW_REMAP Fatal XC0 i0 Link 08"), "RLW"),
            ("the driver asks for a reboot", logged(XID + ASKS.format("Node Reboot")), "Node Reb"),
            (
                "it was repaired, and came back twice",
                logged(*(XID + "48, pid=1, DBE", XID + ASKS.format("None")) * 3),
                "came back",
            ),
            (
                "an NVSwitch failed",
                logged("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32"),
                "NVSwitch",
            ),
            (
                "a GPU was never on the bus",
                logged(
                    "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5)",
                    "NVRM: installed in this system has",
                    "NVRM: fallen off the bus and is not responding to commands.",
                ),
                "GPU at 0000:b3:00",
            ),
            (
                "the driver could not take a GPU into use",
                logged("NVRM: The NVIDIA probe routine failed for 1 device(s)."),
                "probe failed",
            ),
            (
                "a GPU does not start",
                logged("NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x26:0x56:1482)"),
                "could not start the GPU",
            ),
            ("a GPU left the bus", logged(XID.replace("65", "b3") + "79, pid=1"), "0000:b3:00"),
            (
                "a reset is due, and no Xid says so",
                both(broken(recovery=None), logged("NVRM: x [NV_ERR_RESET_REQUIRED] (0x00000062)")),
                "reset required",
            ),
            (
                "unified memory failed",
                logged("NVRM: x: uvm encountered global fatal error 0x60, requiring os reboot"),
                "unified memory failed",
            ),
            (
                "a fatal PCIe error",
                logged(PORT + "AER: Uncorrected (Fatal) error received: 0000:65:00.0"),
                "the PCIe link had a fatal error",
            ),
            (
                "a PCIe error of the GPU's port that was not corrected",
                logged(PORT + "AER: Uncorrected (Non-Fatal) error received: 0000:64:01.0"),
                "an error that was not corrected",
            ),
            (
                "a storm of corrected PCIe errors",
                logged(*(PORT + "AER: Corrected error received: 0000:65:00.0",) * 60),
                "60 errors in a minute",
            ),
            ("the PCIe link went down", logged(PORT + "pciehp: Slot(1): Link Down"), "link down"),
            (
                "the host's memory is damaged",
                logged("mce: [Hardware Error]: CPU 5: Machine Check Exception: 5 Bank 7: be0000"),
                "machine check",
            ),
        ),
        *_rows(
            "health.log",
            (
                "no fault: a contained error",
                logged(XID + "94, pid=7, name=python, Contained"),
                "restart the application",
            ),
            (
                "no fault: a row is marked for replacement",
                logged(XID + "63, pid=7, Row Remapper"),
                "marked for replacement",
            ),
            (
                "no fault: a program was ended",
                logged(XID + "45, pid=7, name=python, Ch 00000010"),
                "ended from outside",
            ),
            (
                "no fault: a double-bit error, repaired",
                logged(
                    XID + "48, pid=1, DBE", XID + ASKS.format("Reset"), XID + ASKS.format("None")
                ),
                "Xid 48, repaired",
            ),
            (
                "no fault: a PCIe error of a NIC",
                logged(PORT + "AER: Uncorrected (Fatal) error received: 0000:5e:00.0"),
                "(lines read: 2)",
            ),
            ("no fault: an Xid without an entry", logged(XID + "999, pid=1"), "catalogue"),
            status="pass",
        ),
        *_rows(
            "health.after",
            ("memory lost data under load", broken(ecc_uncorrected=2), "2 more uncorrected ECC"),
            ("its SRAM lost data under load", broken(sram_uncorrected=1), "register lost data"),
            ("a row was remapped", broken(remapped_rows=1), "a row of its memory is damaged"),
            ("a page was retired", broken(retired_pages=1), "a page of its memory is damaged"),
            ("a row waits to be remapped since", broken(remap_pending=True), RESET),
            ("a page waits to be retired since", broken(retired_pending=True), RESET),
            ("no spare row was left", broken(remap_failed=True), "no spare row"),
            ("the SRAM wore out", broken(sram_threshold_exceeded=True), "wearing out"),
            ("its PCIe link repeats packets", broken(pcie_replays=500), "500 more PCIe replays"),
            ("its PCIe link lost lanes", broken(pcie_width=8), "from x16 to x8"),
            ("its NVLink repeats packets", nvlink(errors=500), "500 more errors of an NVLink"),
            ("its NVLink went down", nvlink(active=False), "NVLink 0 went down"),
            ("it left the fabric", broken(fabric_state="in-progress"), "left the NVSwitch fabric"),
            ("the driver asks for a reset since", broken(recovery="reset the GPU"), RESET),
            ("the load made it too hot", broken(throttle_reasons=HOT), "fans"),
            ("the load drew too much", broken(throttle_reasons=BRAKE), "power supply"),
            ("it no longer answers", broken(failure="GPU is lost"), "lost during the run: GPU is"),
            ("it is no longer listed", gone, "GPU 1: it answered before the run"),
            ("NVML fails after the load", no_nvml, "NVML listed 2 GPUs before the run"),
            ("it fell off the bus", logged(XID + "79, pid=1, GPU has fallen off"), "Xid 79"),
        ),
    ),
}
