"""What the suite reads from a machine outside the framework: driver libraries, nodes, the log.

Checks take it from their context, so that a recorded machine can replace it.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import time
from typing import Any, List, Mapping, Optional, Tuple

from verify.device import kernel_log, pci, state
from verify.device.kernel_log import Log
from verify.device.maps import mapped, read_maps
from verify.device.pci import PciGpu
from verify.device.telemetry import State

ENVIRON = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
KERNEL_FILE = "/proc/driver/nvidia/version"


class Machine:
    """The machine that this runs on."""

    recorded: Optional[str] = None  # the date of the recording, if it is one
    _seen: Optional[State] = None

    def load(self, name: str) -> Any:
        """A driver library. Raises OSError where it cannot be loaded."""
        return ctypes.CDLL(name)

    def state(self) -> State:
        """All that NVML measures now."""
        return state.read(self.load)

    def live(self) -> Any:
        """NVML kept open, for readings that change from second to second: a `Live`."""
        return state.Live(self.load)

    def seen(self) -> State:
        """All that NVML measured when this process first called this."""
        if self._seen is None:
            self._seen = self.state()
        return self._seen

    def pause(self, seconds: float) -> None:
        """Wait between two readings of something that may change."""
        time.sleep(seconds)

    def nodes(self) -> List[str]:
        """The GPUs' device nodes."""
        return device_nodes()

    def pci(self) -> Optional[Tuple[PciGpu, ...]]:
        """The GPUs on the PCI bus; None if that is not known."""
        return pci.read()

    def is_closed(self, gpu: PciGpu) -> bool:
        """Whether this process may not use a GPU of the bus. Opens it, which may take a second."""
        return pci.is_closed(gpu)

    def environ(self) -> Mapping[str, str]:
        """The variables that control which GPUs a program sees."""
        return {name: os.environ[name] for name in ENVIRON if name in os.environ}

    def log(self) -> Log:
        """The kernel's log."""
        return kernel_log.read()

    def libcuda(self) -> Optional[str]:
        """The libcuda file that this process has loaded, links resolved."""
        path = next((path for stem, path in mapped(read_maps()) if stem == "libcuda"), None)
        return os.path.realpath(path) if path else None

    def kernel_module(self) -> Optional[str]:
        """The version of the kernel's NVIDIA module."""
        try:
            with open(KERNEL_FILE, encoding="utf-8", errors="replace") as file:
                return kernel_version(file.read())
        except OSError:
            return None


def device_nodes() -> List[str]:
    """The GPU device nodes that this container has."""
    return sorted(path for path in glob.glob("/dev/nvidia*") if re.search(r"nvidia\d+$", path))


def kernel_version(text: str) -> Optional[str]:
    """From "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ..."."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version")), "")
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line + " ")
    return match.group(1) if match else None
