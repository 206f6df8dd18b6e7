"""Faults of links: PCIe lanes, NVLinks, peers, and copies between GPUs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable

from tests.mutations import patching, rows
from tests.mutations.patching import always, backend, maker
from verify.model.check import Context

ODD_PLACE = 4097  # where a bit is flipped


def two_sound_gpus() -> None:
    """Two GPUs as NVML tells of them, joined by four NVLinks."""
    from verify.device import state
    from verify.device.telemetry import GpuState, NvLink, Pair, State

    links = tuple(NvLink(i, active=True, gbs=25.0, errors=0) for i in range(4))
    gpu = GpuState(
        0,
        name="NVIDIA A100-SXM4-40GB",
        pcie_generation=4,
        pcie_generation_max=4,
        pcie_width=16,
        pcie_width_max=16,
        utilization_percent=0,
        nvlinks=links,
    )
    gpus = (gpu, replace(gpu, index=1))
    seen = State(gpus=gpus, pairs=(Pair(0, 1, "NV4", "ok", "ok"),), found=True)
    state.read = lambda *_: seen


def second_gpu(**fields: Any) -> Callable[[], None]:
    """Change what NVML tells of the second GPU."""

    def seed() -> None:
        from verify.device import state

        seen = state.read()
        first, second = seen.gpus
        broken = replace(seen, gpus=(first, replace(second, **fields)))
        state.read = lambda *_: broken

    return seed


def second_link(**fields: Any) -> Callable[[], None]:
    """Change what NVML tells of one NVLink of the second GPU."""

    def seed() -> None:
        from verify.device import state

        links = state.read().gpus[1].nvlinks
        second_gpu(nvlinks=(*links[:3], replace(links[3], **fields)))()

    return seed


def both(up: int, of: int = 4, **fields: Any) -> Callable[[], None]:
    """Change both GPUs, and how many of their NVLinks are up."""

    def seed() -> None:
        from verify.device import state

        seen = state.read()
        link = seen.gpus[0].nvlinks[0]
        links = tuple(replace(link, link=i, active=i < up) for i in range(of))
        gpus = tuple(replace(gpu, nvlinks=links, **fields) for gpu in seen.gpus)
        state.read = lambda *_: replace(seen, gpus=gpus)

    return seed


def up_at_one_end() -> None:
    """All links of the first GPU end at the second one, of whose links one is down."""
    from verify.device import state

    seen = state.read()
    places = ("0000:01:00.0", "0000:02:00.0")
    first, second = (
        replace(gpu, bus_id=here, nvlinks=tuple(replace(x, far_bus_id=there) for x in gpu.nvlinks))
        for gpu, here, there in zip(seen.gpus, places, reversed(places))
    )
    down = (*second.nvlinks[:3], replace(second.nvlinks[3], active=False, far_bus_id=None))
    state.read = lambda *_: replace(seen, gpus=(first, replace(second, nvlinks=down)))


def pair(**fields: Any) -> Callable[[], None]:
    """Change what NVML tells of what lies between the GPUs."""

    def seed() -> None:
        from verify.device import state

        seen = state.read()
        broken = replace(seen, pairs=(replace(seen.pairs[0], **fields),))
        state.read = lambda *_: broken

    return seed


def two_places() -> None:
    """Two places in host memory stand for two GPUs; the copies between them are real."""
    from verify.device import driver

    framework = backend()
    if "torch" not in sys.modules:  # which has one device of the CPU
        framework.split_cpu()
    framework.look(Context())
    places = (framework.place("cpu", 0), framework.place("cpu", 1))
    vars(framework)["find_gpus"] = lambda _: (None, places)
    patching.replace(driver, "reaches", always(value=True))


def four_sound_gpus() -> None:
    """Four GPUs of one kind, the last in a slot of eight lanes."""
    from verify.device import pci, state

    two_sound_gpus()
    seen = state.read()
    lanes = (16, 16, 16, 8)
    four = tuple(
        replace(seen.gpus[0], index=i, bus_id="00000000:0{}:00.0".format(i), pcie_width=width)
        for i, width in enumerate(lanes)
    )
    state.read = lambda *_: replace(seen, gpus=four, pairs=())
    cards = tuple(
        pci.PciGpu("0000:0{}:00.0".format(i), width_max=16, port_width_max=width)
        for i, width in enumerate(lanes)
    )
    pci.read = lambda *_: cards


def one_narrow_link() -> None:
    from verify.device import state

    seen = state.read()
    gpus = (*seen.gpus[:3], replace(seen.gpus[3], pcie_width=4))
    state.read = lambda *_: replace(seen, gpus=gpus)


def one_narrow_busy_link() -> None:
    """The only card of its kind."""
    from verify.device import state

    seen = state.read()
    alone = replace(seen.gpus[0], pcie_width=4, utilization_percent=99)
    state.read = lambda *_: replace(seen, gpus=(alone,))


def errors_at_each_reading() -> None:
    """A link that counts 12,345 errors more whenever it is looked at."""
    from verify.device import state

    seen, counted = state.read(), [0]

    def read(*_: Any) -> Any:
        counted[0] += 12345
        links = seen.gpus[1].nvlinks
        bad = replace(seen.gpus[1], nvlinks=(*links[:3], replace(links[3], errors=counted[0])))
        return replace(seen, gpus=(seen.gpus[0], bad))

    vars(state)["read"] = read


def no_link_on_one_gpu() -> None:
    """On a board whose name does not say that its links are wired."""
    from verify.device import state

    seen = state.read()
    first, second = (replace(gpu, name="NVIDIA H100 80GB HBM3") for gpu in seen.gpus)
    down = tuple(replace(link, active=False) for link in second.nvlinks)
    state.read = lambda *_: replace(seen, gpus=(first, replace(second, nvlinks=down)))


def damage(change: Callable[[Any], Any]) -> None:
    """What a place receives is changed, as an array of NumPy."""
    place, back = type(backend().place("cpu")), maker()

    def make(real: Any) -> Any:
        import numpy as np

        return lambda self, block: back(change(np.array(real(self, block))))

    patching.replace(place, "receive", make)


def flip_a_bit() -> None:
    def change(block: Any) -> Any:
        block[ODD_PLACE] ^= 1 << 40
        return block

    damage(change)


def copy_nothing() -> None:
    """As on machines where the IOMMU swallows what one GPU writes to another."""
    damage(lambda block: block * 0)


def not_direct() -> None:
    from verify.device import driver

    patching.replace(driver, "reaches", always(value=False))
    flip_a_bit()


_COPIES = rows(
    "devices.peer-copies",
    ("a bit is flipped on the way", flip_a_bit, "GPU 0 to GPU 1: 1"),
    ("a copy writes nothing", copy_nothing, "IOMMU"),
    ("host memory damages a copy", not_direct, "host memory"),
    sound=two_places,
    level="quick",
)
ROWS = {
    "pytorch": (
        *rows(
            "health.pcie",
            (
                "a card has four lanes of a slot of eight",
                one_narrow_link,
                "GPU 3: PCIe x4, although the card and its port have x8",
            ),
            (
                "a busy card without a twin has four lanes of sixteen",
                one_narrow_busy_link,
                "GPU 0: PCIe x4, although the card and its port have x16",
            ),
            sound=four_sound_gpus,
        ),
        *rows(
            "health.pcie",
            (
                "a busy card's link stays slow",
                second_gpu(pcie_generation=1, utilization_percent=99),
                "PCIe 1.0 of 4.0",
            ),
            sound=two_sound_gpus,
            level="quick",
        ),
        *rows(
            "health.nvlink",
            ("an NVLink is off", second_link(active=False), "GPU 1: 3 of 4"),
            (
                "an NVLink makes errors",
                errors_at_each_reading,
                "NVLink 3 counts errors: 12345 more",
            ),
            ("no link of one GPU is up", no_link_on_one_gpu, "GPU 1: 0 of 4 NVLinks"),
            ("a bridge is half plugged", both(3, name="NVIDIA RTX A6000"), "not fully plugged"),
            (
                "a virtual machine's GPUs lack links to the switches",
                both(16, 18, fabric_state="completed", virtualization="passthrough"),
                "GPU 0-1: 16 of 18",
            ),
            ("a link is up at one end only", up_at_one_end, "its other end is here"),
            sound=two_sound_gpus,
            level="quick",
        ),
        *rows(
            "health.nvlink",
            ("modules on adapters that wire no links", both(0), "wires none"),
            ("modules on adapters that wire some", both(2), "2 of 4, 2 of 4"),
            sound=two_sound_gpus,
            level="quick",
            status="pass",
        ),
        *rows(
            "devices.peers",
            (
                "the driver allows no P2P over NVLink",
                pair(can_read="chipset-not-supported"),
                "no P2P between GPU 0 and GPU 1",
            ),
            (
                "P2P is switched off in the driver",
                pair(path="PHB", can_read="ok", can_write="disabled-by-regkey"),
                "NVreg_RegistryDwords",
            ),
            sound=two_sound_gpus,
            level="quick",
        ),
        *_COPIES,
    ),
    "tensorflow": _COPIES,
    "jax": _COPIES,
}
