"""libcuda: the host's own, or cuda-compat in its place, which few cards support.

The kernel module's version is in /proc; libcuda.so.1 links to a file with its own version in the
name. Normally the two are equal. A newer libcuda on an older kernel module is forward compatibility
(the package cuda-compat), supported on data-centre GPUs; an older libcuda never works. See
https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from verify.device import driver, nvml
from verify.model.check import IMAGE, NODE, UNKNOWN, Check, Context, Outcome, Status
from verify.running.faults import of_text
from verify.running.symptoms import explain


@dataclass(frozen=True)
class LoadedLibrary:
    """The libcuda that a program gets here, and the kernel module's version."""

    path: Optional[str] = None  # the mapped file, links resolved
    version: Optional[str] = None
    kernel: Optional[str] = None
    answer: driver.CudaDriver = field(default_factory=lambda: driver.CudaDriver(found=False))
    cards: Tuple[str, ...] = ()  # from NVML


def check_compat(context: Context) -> Outcome:
    """Load libcuda as any program would, initialise it, and see which file was loaded."""
    machine = context.machine
    answer = driver.read(machine.load)
    path = machine.libcuda()
    cards = tuple(gpu.name or "" for gpu in nvml.read(machine.load).gpus)
    kernel = machine.kernel_module()
    return judge_compat(LoadedLibrary(path, version_in(path or ""), kernel, answer, cards))


def version_in(path: str) -> Optional[str]:
    """The version in a file name: libcuda.so.535.104.05 has 535.104.05, libcuda.so.1 has none."""
    match = re.search(r"libcuda\.so\.(\d+\.[\d.]+)$", path)
    return match.group(1) if match else None


def judge_compat(seen: LoadedLibrary) -> Outcome:
    """Whether libcuda and the kernel module work together; CUDA's own answer decides."""
    measured: Dict[str, Any] = {
        "libcuda": seen.path,
        "version": seen.version,
        "kernel_module": seen.kernel,
        "compat": _is_compat(seen),
        "error": seen.answer.error,
    }
    expected = {"version": seen.kernel}
    if seen.path is None:
        message = "no libcuda.so.1 is here: " + (seen.answer.error or "it was not loaded")
        cause, fix = explain("libcuda.so.1: cannot open shared object file")
        return Outcome(Status.SKIP, message, cause, fix, measured, expected)
    if "/stubs/" in seen.path:
        message = "libcuda.so.1 is a stub: " + seen.path
        cause = "a stub is for linking at build time and does nothing at run time"
        fix = "take {} out of LD_LIBRARY_PATH".format(os.path.dirname(seen.path))
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    if seen.answer.error:
        return _judge_error(seen, measured, expected)
    message = "libcuda {} on kernel module {}".format(
        seen.version or "of unknown version", seen.kernel or "of unknown version"
    )
    if _is_compat(seen):
        message = "forward compatibility works: " + message
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _judge_error(
    seen: LoadedLibrary, measured: Dict[str, Any], expected: Dict[str, Any]
) -> Outcome:
    cause, fix = explain(seen.answer.error or "")
    message = "libcuda {} does not start: {}".format(seen.version or seen.path, seen.answer.error)
    whose = of_text(seen.answer.error or "") or UNKNOWN
    others = sorted({card for card in seen.cards if _is_consumer(card)})
    if seen.version and seen.kernel and _numbers(seen.version) < _numbers(seen.kernel):
        cause = "libcuda {} is older than the kernel module {}".format(seen.version, seen.kernel)
        fix = "remove {}: the container runtime mounts the host's own".format(seen.path)
        whose = IMAGE
    elif "/compat/" in (seen.path or "") or "804" in (seen.answer.error or ""):
        doubt = "cuda-compat {} does not work with the kernel module {}"
        cause = cause or doubt.format(seen.version, seen.kernel)
        if others:
            cause = "cuda-compat works only on data-centre GPUs, not on " + ", ".join(others)
        folder = os.path.dirname(seen.path or "")
        remove = (
            "take {} out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, or upgrade the host's driver"
        )
        fix, whose = remove.format(folder), IMAGE
    elif _is_compat(seen):
        cause = (
            "the host's driver was upgraded to {}, and its kernel module {} stayed loaded".format(
                seen.version, seen.kernel
            )
        )
        fix, whose = "reboot the host, or reload the nvidia kernel modules", NODE
    fix = fix or "look at nvidia-smi on the host, and at its kernel log"
    cause = cause or seen.answer.error
    return Outcome(Status.FAIL, message, cause, fix, measured, expected, whose)


def _is_compat(seen: LoadedLibrary) -> bool:
    """Whether libcuda is cuda-compat: by its folder's name, or newer than the kernel module."""
    newer = bool(seen.version and seen.kernel and _numbers(seen.version) > _numbers(seen.kernel))
    return newer or "/compat/" in (seen.path or "")


def _is_consumer(name: str) -> bool:
    return re.search(r"GeForce|TITAN", name) is not None


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


CHECKS = (
    Check(
        "libraries.compat",
        "libcuda matches the kernel driver",
        check_compat,
        framework=False,
        replays=True,
    ),
)
