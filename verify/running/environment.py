"""Reads where the suite runs: facts that a report needs to be useful."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import asdict
from typing import Any, Dict, Mapping, Optional, cast

from verify.device import nvml
from verify.device.machine import Machine
from verify.model.expectations import Expectations
from verify.model.frameworks import FRAMEWORKS
from verify.model.report import Environment
from verify.running.children import Child

DRIVER_LIMIT_S = 30.0
_GPU = ("name", "uuid", "compute_capability", "mig")


# Where the firmware states the maker and the model: a server's or PC's, and a Jetson's.
_MODELS = (
    ("sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name"),
    ("proc/device-tree/model",),
)
_UNSET = ("to be filled by o.e.m.", "system manufacturer", "system product name", "default string")


def read(
    expect: Expectations, framework: str, emulator: Optional[str], machine: Machine
) -> Environment:
    """Everything that can be read without importing a framework."""
    found = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "image": expect.digest,
        "python": platform.python_version(),
        "framework": {"name": framework, "version": FRAMEWORKS[framework].version()},
        "kernel": platform.release(),
        "arch": platform.machine(),
        **({"emulator": emulator} if emulator else {}),
        "glibc": platform.libc_ver()[1] or None,
        "cpus": len(os.sched_getaffinity(0)),
        "shm_bytes": _shm_bytes(),
        "container": container(),
        **({"replayed": machine.recorded} if machine.recorded else {"machine": _machine(expect)}),
        "visible_devices": machine.environ().get("CUDA_VISIBLE_DEVICES"),
        "device_nodes": len(machine.nodes()),
        **_driver(machine),
    }
    return cast(Environment, found)


def emulator() -> Optional[str]:
    """The emulator of this processor, if it can be detected: "qemu-aarch64". Under qemu-user,
    /proc/self/exe links to the emulated program, and other names of that link lead to qemu.
    """
    try:
        name = os.path.basename(os.readlink("/proc/thread-self/exe"))
    except OSError:
        return None
    found = re.match(r"qemu-\w+", name)
    return found.group() if found else None


def container(root: str = "/", environ: Mapping[str, str] = os.environ) -> Optional[str]:
    """The container engine that this runs in, if it can be detected. A virtual machine whose disk
    was made from an image keeps that image's marks: there / is a disk of its own.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if os.path.exists(os.path.join(root, "run/.containerenv")):
        return "podman"
    if os.path.exists(os.path.join(root, ".dockerenv")) and not _root_is_disk(root):
        return "docker"
    return environ.get("container") or None


def _root_is_disk(root: str) -> bool:
    try:
        with open(os.path.join(root, "proc/self/mounts"), "rb") as file:
            devices = [line.split()[0] for line in file if line.split()[1:2] == [b"/"]]
    except OSError:
        return False
    return bool(devices) and devices[-1].startswith(b"/dev/") and b"docker" not in devices[-1]


def _machine(expect: Expectations) -> Dict[str, Optional[str]]:
    """The host's name, unless it is that of a container, and its product."""
    name = expect.machine or (None if container() else platform.node() or None)
    return {"name": name, "product": product()}


def product(root: str = "/") -> Optional[str]:
    """Maker and model, as the firmware states them: "NVIDIA DGXH100"."""
    for names in _MODELS:
        words = []
        for name in names:
            try:
                with open(os.path.join(root, name), "rb") as file:
                    text = file.read(200).decode("utf-8", "replace").strip("\0 \n")
            except OSError:
                continue
            # What a maker leaves in the field says nothing.
            if text and text.lower() not in _UNSET:
                words.append(text)
        if words:
            return " ".join(words)
    return None


def _driver(machine: Machine) -> Dict[str, Any]:
    """NVML's data, read in a child: a driver library may hang or crash."""
    ending = Child(lambda: asdict(nvml.read(machine.load))).wait(DRIVER_LIMIT_S)
    seen: Dict[str, Any] = ending.value if ending.returned else {}
    error = seen.get("error") if ending.returned else "NVML " + ending.how()
    return {
        "driver": seen.get("driver"),
        "cuda_driver": seen.get("cuda"),
        "gpus": [{name: gpu[name] for name in _GPU} for gpu in seen.get("gpus", [])],
        "driver_error": error,
    }


def _shm_bytes() -> Optional[int]:
    try:
        size = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None
    return size.f_frsize * size.f_blocks
