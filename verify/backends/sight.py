"""Whether there is a GPU and CUDA starts on it. Every check that needs one calls this first.

Neither `torch.cuda.device_count()` nor `is_available()` is enough: both may use only NVML, on a
machine where no kernel can run. So this starts the CUDA runtime itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

from verify.device import nvml
from verify.model.check import IMAGE, UNKNOWN, Context, Outcome, Status
from verify.running import environment
from verify.running.faults import of_text
from verify.running.symptoms import explain

START_WITH_GPUS = (
    "start the container with --gpus all (docker) or --device nvidia.com/gpu=all (CDI)"
    if environment.container()
    else "run it where nvidia-smi lists the GPUs; a container needs --gpus all, or CDI's --device"
)


@dataclass(frozen=True)
class Sight:
    """What is known of GPUs without having run a kernel."""

    torch_cuda: Optional[str]  # None: a CPU build, or one for AMD's GPUs
    usable: int  # GPUs that the started CUDA runtime shows
    error: Optional[str] = None  # why it did not start
    nodes: int = 0
    nvml: int = 0
    expected: Optional[int] = None
    driver: bool = False  # libcuda exists and did not return "no device"
    rocm: Optional[str] = None  # of a build for AMD's GPUs

    def measured(self) -> Dict[str, Any]:
        """For the report."""
        return {"usable": self.usable, "device_nodes": self.nodes, "nvml": self.nvml}

    def hinted(self) -> str:
        """Why there should be a GPU, or an empty text."""
        if self.expected:
            return "{} expected".format(self.expected)
        if self.nvml:
            return "NVML sees {}".format(self.nvml)
        if self.nodes:
            return "{} device nodes in /dev".format(self.nodes)
        return "libcuda is present but fails" if self.driver else ""


def look(context: Context) -> Sight:
    """Start CUDA through torch, in this child."""
    import torch

    usable, error = 0, None
    try:
        torch.cuda.init()
        usable = int(torch._C._cuda_getDeviceCount())  # noqa: SLF001  # device_count() asks NVML
    except Exception as problem:
        error = "{}: {}".format(type(problem).__name__, problem)
    return Sight(
        torch_cuda=torch.version.cuda,
        usable=usable,
        error=error,
        nodes=len(context.machine.nodes()),
        nvml=len(nvml.read(context.machine.load).gpus),
        expected=context.expect.gpu_count,
        driver=error is not None
        and torch.version.cuda is not None  # a CPU build does not ask libcuda
        and "no NVIDIA driver" not in error
        and "No CUDA GPUs" not in error,
        rocm=getattr(torch.version, "hip", None),
    )


def short(error: str) -> str:
    """The key part of torch's long messages: CUDA's own text, without advice."""
    line = error.partition("\n")[0].partition(" Please ")[0]
    return line[line.find("Error ") :] if re.search(r"Error \d+: ", line) else line


def is_taken(error: str) -> bool:
    """Whether CUDA says that others use every GPU and each admits one process: there is no fault,
    and nothing can be tested meanwhile.
    """
    return re.search(r"busy or unavailable|Error 46\b|DEVICES_UNAVAILABLE", error) is not None


def judge_absent(sight: Sight) -> Optional[Outcome]:
    """None if GPUs can be used; else a skip if nothing hints at one, or a failure."""
    measured, expected = sight.measured(), {"gpus": sight.expected}
    if sight.torch_cuda is None:
        cause, fix = explain("Torch not compiled with CUDA enabled")
        message = "CPU build of torch"
        if sight.rocm:
            message = "torch for ROCm {}".format(sight.rocm)
            cause, fix = "this build uses AMD's GPUs only", "install the wheel of the CUDA index"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected, IMAGE)
    if sight.usable and not sight.error:
        return None
    error = short(sight.error or "CUDA starts, but reports no device")
    cause, fix = explain(error)
    hint = sight.hinted()
    if not hint:
        return Outcome(Status.SKIP, "no GPU visible", cause, fix or START_WITH_GPUS, measured)
    message = "no GPU usable ({}): {}".format(hint, error)
    fix = fix or START_WITH_GPUS
    if is_taken(error):
        return Outcome(Status.SKIP, message, cause, fix, measured, expected)
    whose = of_text(error) or UNKNOWN
    return Outcome(Status.FAIL, message, cause or error, fix, measured, expected, whose)
