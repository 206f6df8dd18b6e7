"""The checks, cheap to dear. A new one is a function in one of these files and a line here."""

from __future__ import annotations

from verify.checks import collectives, compute, devices, files, libraries, training
from verify.core import Check

# fmt: off
CHECKS = (
    Check("devices.nvml", "NVML names the GPUs", devices.check_nvml, framework=False, gpu=True),
    Check("libraries.framework", "The framework is the one asked for", libraries.check_framework),
    Check("libraries.cuda", "The CUDA runtime is the one asked for", libraries.check_cuda),
    Check("libraries.cudnn", "cuDNN loads and is the one asked for", libraries.check_cudnn),
    Check("libraries.nccl", "NCCL loads and is the one asked for", libraries.check_nccl),
    Check("libraries.files", "Each CUDA library is loaded once, from here", files.check_files),
    Check("libraries.numpy", "NumPy and the framework share arrays", libraries.check_numpy),
    Check("devices.count", "All see the same GPUs", devices.check_count, gpu=True),
    Check("devices.architectures", "The build has code for them", devices.check_code, gpu=True),
    Check("devices.kernel", "Kernels compute rightly", compute.check_kernel, limit_s=120, gpu=True),
    Check("devices.convolution", "cuDNN convolves", compute.check_cudnn, limit_s=120, gpu=True),
    Check("collectives.gloo", "Two processes all-reduce", collectives.check_gloo, "standard", 90),
    Check("collectives.nccl", "GPUs all-reduce", collectives.check_nccl, "standard", 250, gpu=True),
    Check("training.loss", "A model's loss falls", training.check_loss, "standard", 120, gpu=True),
)
# fmt: on
