"""Faults of seeing GPUs, of their kernels, and of what CUDA_VISIBLE_DEVICES hides."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from tests.mutations import rows

FIRST, SECOND = "GPU-aa11bb22-0000", "GPU-aa99cc33-0000"
NAME = "NVIDIA A100-SXM4-80GB"
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"


def two_gpus() -> None:
    """NVML answers, and names two cards; no variable hides one."""
    from verify.device import machine, nvml, pci, state
    from verify.device.telemetry import GpuState, State

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.pop("CUDA_DEVICE_ORDER", None)
    gpus = tuple(
        nvml.NvmlGpu(NAME, uuid, "8.0", mig=False, bus_id="0000000" + bus)
        for uuid, bus in ((FIRST, "0:17:00.0"), (SECOND, "0:65:00.0"))
    )
    cards = tuple(pci.PciGpu("000" + bus, driver="nvidia") for bus in ("0:17:00.0", "0:65:00.0"))
    pci.read = lambda *_: cards
    seen = nvml.Nvml(found=True, driver="535.104.05", cuda="12.2", gpus=gpus)
    nvml.read = lambda *_: seen
    rows = tuple(GpuState(i, gpu.name, gpu.uuid, mig=False) for i, gpu in enumerate(gpus))
    state.read = lambda *_: State("535.104.05", rows, found=True)
    machine.device_nodes = lambda: ["/dev/nvidia0", "/dev/nvidia1"]


def change_nvml(**changes: Any) -> Callable[[], None]:
    """NVML's answer, with something else in it."""

    def seed() -> None:
        from dataclasses import replace

        from verify.device import nvml

        seen = replace(nvml.read(), **changes)
        nvml.read = lambda *_: seen

    return seed


def lose_a_gpu() -> None:
    """The second card has fallen off the bus: NVML counts it and cannot name it."""
    from verify.device import nvml

    change_nvml(gpus=(nvml.read().gpus[0], nvml.NvmlGpu()))()


def add_card(driver: Optional[str]) -> Callable[[], None]:
    """A third card of the same model, which NVML does not list."""

    def seed() -> None:
        from verify.device import machine, pci

        cards = (*(pci.read() or ()), pci.PciGpu("0000:b3:00.0", driver=driver))
        pci.read = lambda *_: cards
        pci.is_closed = lambda *_: False
        machine.device_nodes = lambda: ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]

    return seed


def fail_a_sensor(code: int) -> Callable[[], None]:
    """NVML cannot read the second card's temperature."""

    def seed() -> None:
        from dataclasses import replace

        from verify.device import state

        seen = state.read()
        failing = replace(seen.gpus[1], refused=(("nvmlDeviceGetTemperature", code),))
        state.read = lambda *_: replace(seen, gpus=(seen.gpus[0], failing))

    return seed


def hide_all_from_nvml() -> None:
    """Device nodes without cards."""
    change_nvml(gpus=())()


def set_variable(name: str, value: str) -> Callable[[], None]:
    """What a person has typed."""

    def seed() -> None:
        os.environ[name] = value

    return seed


def mix_the_cards() -> None:
    """A slower card stands first on the bus, and the order's name is mistyped."""
    from dataclasses import replace

    from verify.device import state

    seen = state.read()
    mixed = replace(seen, gpus=(replace(seen.gpus[0], name="NVIDIA T4"), *seen.gpus[1:]))
    state.read = lambda *_: mixed
    os.environ.update(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS")


def all_agree() -> None:
    """NVML, the CUDA driver, the CUDA runtime and torch have the same two cards."""
    two_gpus()
    import torch

    from verify.backends import pytorch
    from verify.backends.sight import Sight
    from verify.device import driver

    driver.read = lambda *_: driver.CudaDriver(found=True, version="12.2", count=2)
    vars(pytorch).update(look=lambda _: Sight("12.1", usable=2, nodes=2, nvml=2))
    torch.cuda.device_count = lambda: 2


def torch_counts_by_nvml() -> None:
    """torch reports what NVML has; CUDA itself can use one."""
    from verify.backends import pytorch
    from verify.backends.sight import Sight
    from verify.device import driver

    driver.read = lambda *_: driver.CudaDriver(found=True, version="12.2", count=1)
    vars(pytorch).update(look=lambda _: Sight("12.1", usable=1, nodes=2, nvml=2))


def driver_loses_one() -> None:
    """CUDA, and torch by it, has one card where NVML has two."""
    import torch

    torch_counts_by_nvml()
    torch.cuda.device_count = lambda: 1


def cuda_does_not_start() -> None:
    """NVML shows two cards, and the CUDA driver refuses to start."""
    from verify.backends import pytorch
    from verify.backends.sight import Sight
    from verify.device import driver

    said = "Error 803: system has unsupported display driver / cuda driver combination"
    driver.read = lambda *_: driver.CudaDriver(found=True, version="12.2", error=said)
    vars(pytorch).update(
        look=lambda _: Sight("12.1", 0, "RuntimeError: " + said, 2, 2, driver=True)
    )


def mig_without_devices() -> None:
    """The cards are in MIG mode, and nobody has cut them."""
    from dataclasses import replace

    from verify.backends import pytorch
    from verify.backends.sight import Sight
    from verify.device import driver, nvml, state

    change_nvml(gpus=tuple(replace(gpu, mig=True) for gpu in nvml.read().gpus))()
    seen = state.read()
    cut = replace(seen, gpus=tuple(replace(gpu, mig=True) for gpu in seen.gpus))
    state.read = lambda *_: cut
    driver.read = lambda *_: driver.CudaDriver(found=True, version="12.2", count=0)
    vars(pytorch).update(
        look=lambda _: Sight("12.1", 0, "RuntimeError: No CUDA GPUs are available", 2, 2)
    )


def code_for_it() -> None:
    """An A100, and a build with code for it."""
    import torch

    from verify.backends import pytorch
    from verify.backends.sight import Sight

    vars(pytorch).update(look=lambda _: Sight("12.1", usable=1))
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    torch.cuda.get_arch_list = lambda: ["sm_70", "sm_80"]


def a_newer_card() -> None:
    """The card is an H100."""
    import torch

    torch.cuda.get_device_capability = lambda *_: (9, 0)


def kernels_run() -> None:
    """The same code computes; the device it is given is the CPU."""
    from verify.backends import pytorch

    class Card(pytorch.Place):
        """A GPU in all but its device."""

        device = property(lambda _: pytorch.Place("cpu").device)
        card = property(lambda _: NAME)
        capability = property(lambda _: (8, 0))

    vars(pytorch.BACKEND).update(
        find_gpus=lambda _: (None, (Card("cuda"),)), architectures=lambda: ["sm_80"]
    )


def spoil_products() -> None:
    """One cell of each product of floating-point matrices is off by one."""
    import torch

    right = torch.Tensor.__matmul__

    def wrong(self: Any, other: Any) -> Any:
        result = right(self, other)
        if result.is_floating_point():
            result[17, 3] += 1
        return result

    torch.Tensor.__matmul__ = wrong


def lose_a_product() -> None:
    """Float64 products alone come out as zeros."""
    import torch

    right = torch.Tensor.__matmul__
    torch.Tensor.__matmul__ = lambda self, other: (
        right(self, other) * (0 if self.dtype is torch.float64 else 1)
    )


def no_kernel_image() -> None:
    """There is no code for this card."""
    import torch

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(NO_IMAGE)

    torch.arange, real = fail, torch.arange
    torch.arange = lambda *a, **k: fail() if "device" in k else real(*a, **k)


def spoil_the_convolution() -> None:
    """The corner is computed as if there were no edge."""
    import torch

    right = torch.nn.functional.conv2d

    def wrong(*words: Any, **more: Any) -> Any:
        result = right(*words, **more)
        result[..., 0, 0] = result[..., 5, 5]
        return result

    torch.nn.functional.conv2d = wrong


def cudnn_does_not_start() -> None:
    """Files of two cuDNN releases are mixed."""
    import torch

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH")

    torch.nn.functional.conv2d = fail


def another_card() -> None:
    """The container was given another GPU than the plan was made for."""
    from dataclasses import replace

    from verify.device import nvml

    first, second = nvml.read().gpus
    change_nvml(gpus=(first, replace(second, uuid="GPU-ee55ff66-0000")))()


EXPECTED = {"gpus": [{"uuid": FIRST}, {"uuid": SECOND}]}
HIDES = "CUDA_VISIBLE_DEVICES"


ROWS = {
    "pytorch": (
        *rows(
            "devices.nvml",
            ("a GPU has fallen off the bus", lose_a_gpu, "GPU 1"),
            ("NVML does not list a card that the driver has", add_card("nvidia"), "0000:b3:00.0"),
            ("the driver could not start a card", add_card(None), "reseat the card"),
            ("nouveau has taken a card", add_card("nouveau"), "blacklist nouveau"),
            ("a sensor fails on one of two cards", fail_a_sensor(999), "Temperature (unknown"),
            ("a sensor says that a card must be reset", fail_a_sensor(16), "--gpu-reset -i 1"),
            ("device nodes are there and NVML sees no GPU", hide_all_from_nvml, "yet GPUs are"),
            (
                "the driver's libraries are newer than its kernel module",
                change_nvml(error="nvmlInit_v2: Driver/library version mismatch (18)", gpus=()),
                "reboot the host",
            ),
            ("another GPU than the plan's was given", another_card, "not visible: " + SECOND),
            sound=two_gpus,
            expect=EXPECTED,
        ),
        *rows(
            "devices.visible",
            ("a digit of a UUID is wrong", set_variable(HIDES, FIRST + ",GPU-aa99cc34"), SECOND),
            ("the list holds the host's number", set_variable(HIDES, "0,2"), "stops at '2'"),
            ("the variable is empty", set_variable(HIDES, ""), "shows no GPU"),
            ("a GPU is named twice", set_variable(HIDES, "1,1"), "twice"),
            ("a word of the container runtime stands there", set_variable(HIDES, "all"), "'all'"),
            ("Slurm gave no GPU", set_variable(HIDES, "NoDevFiles"), "--gres=gpu:1"),
            ("a MIG device is named where none is", set_variable(HIDES, "MIG-1234"), "no GPU here"),
            ("the order's name is mistyped on mixed cards", mix_the_cards, "PCI_BUS_ID"),
            sound=two_gpus,
            expect=EXPECTED,
        ),
        *rows(
            "devices.count",
            ("the CUDA driver has lost a GPU", driver_loses_one, "the CUDA driver has 1"),
            ("torch believes NVML alone", torch_counts_by_nvml, "torch counts 2 GPUs"),
            ("CUDA does not start beside a working NVML", cuda_does_not_start, "cuda-compat"),
            ("MIG is on without MIG devices", mig_without_devices, "nvidia-smi mig -cgi"),
            ("the list of visible devices is short", set_variable(HIDES, "0"), "NVML shows 1"),
            sound=all_agree,
            expect=EXPECTED,
        ),
        *rows(
            "devices.architectures",
            (
                "the card is newer than every binary",
                a_newer_card,
                "no code for compute capability 9.0",
            ),
            sound=code_for_it,
        ),
        *rows(
            "devices.kernel",
            ("one cell of a product is wrong", spoil_products, "1 of 65536 results wrong"),
            ("float64 products come out as zeros", lose_a_product, "float64 product"),
            ("there is no code for the card", no_kernel_image, "compiled for sm_80"),
            sound=kernels_run,
            expect=EXPECTED,
        ),
        *rows(
            "devices.convolution",
            ("a corner of a convolution is wrong", spoil_the_convolution, "8 of 2048"),
            ("cuDNN's files are mixed", cudnn_does_not_start, "mixed cuDNN files"),
            sound=kernels_run,
            expect=EXPECTED,
        ),
    )
}
