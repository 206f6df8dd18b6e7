"""What an image's own suite says of an error and what the doctor says: they know the same errors.

The suite runs alone inside the image, so its short table cannot be the doctor's; here both are
asked about each row of it. The texts are those of CUDA, cuDNN, NCCL, PyTorch and the loader.
"""

from __future__ import annotations

import re

import pytest

from provision.doctor import diagnose
from verify.running.symptoms import SYMPTOMS, explain

TEXTS = {
    ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system "
     "to recover this GPU"): "nvidia-smi-device-handle-unknown",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "cuda-ecc-uncorrectable",
    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution":
        "xid-74-nvlink",
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable":
        "compute-mode-exclusive-busy",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable":
        "compute-mode-exclusive-busy",
    "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.":
        "ptx-unsupported-toolchain",
    "RuntimeError: GET was unable to find an engine to execute this computation":
        "cudnn-no-algorithm",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`":
        "cublas-type-not-supported",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`":
        "cublas-handle-out-of-memory",
    "RuntimeError: CUDA error: invalid device ordinal": "cuda-invalid-device-ordinal",
    "RuntimeError: CUDA error: the launch timed out and was terminated": "kernel-launch-timeout",
    "RuntimeError: CUDA error: peer access is not supported between these two devices":
        "peer-access-unsupported",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "illegal-memory-access",
    ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
     "multiprocessing, you must use the 'spawn' start method"): "cuda-fork-reinit",
    "ModuleNotFoundError: No module named 'torch'": "python-package-not-there",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device":
        "gpu-newer-than-build",
    "AssertionError: Torch not compiled with CUDA enabled": "torch-cpu-wheel",
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 10020). Please "
     "update your GPU driver"): "driver-too-old-for-runtime",
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported "
     "display driver / cuda driver combination"): "libcuda-other-than-module",
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet "
     "initialized"): "cuda-802-fabric-manager",
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility "
     "was attempted on non supported HW"): "cuda-compat-shadows-driver",
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
     "GPU and installed a driver"): "no-driver-visible",
    "RuntimeError: No CUDA GPUs are available": "cuda-visible-devices-hardcoded",
    ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, "
     "e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available "
     "devices to be zero."): "cuda-unknown-error-uvm",
    "Failed to initialize NVML: Driver/library version mismatch": "driver-library-mismatch",
    ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (8, 7, 0) but "
     "found runtime version (8, 2, 1)."): "cudnn-version-mismatch",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED": "cudnn-not-initialized-oom",
    "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH":
        "cudnn-sublibrary-version-mismatch",
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.65 "
     "GiB total capacity; 22.00 GiB already allocated; 1.20 GiB free; 22.10 GiB reserved in total "
     "by PyTorch)"): "gpu-out-of-memory",
    ("ncclSystemError: Error while creating shared memory segment /dev/shm/nccl-4xUHbC (size "
     "9637888)"): "nccl-shm-too-small",
    "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000":
        "nccl-duplicate-gpu",
    "NCCL WARN Bootstrap : no socket interface found": "nccl-socket-ifname-wrong",
    "RuntimeError: Numpy is not available": "numpy2-abi",
    ("ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.35' not found (required by "
     "/app/libtorch.so)"): "extension-newer-glibc",
    "ImportError: libcublas.so.11: cannot open shared object file: No such file or directory":
        "cuda-library-missing",
    ("ImportError: /app/libcudnn_cnn_train.so.8: undefined symbol: "
     "_ZN5cudnn3cnn34layerNormFwd_execute_internal_implERKNS_7backend11VariantPackE"):
        "cudnn-sublibrary-version-mismatch",
    ("ImportError: libtorch_cpu.so: cannot enable executable stack as shared object requires: "
     "Invalid argument"): "library-wants-executable-stack",
    "RuntimeError: CUDA error: operation not supported": "cuda-operation-not-supported",
    "Failed to initialize NVML: Driver Not Loaded": "container-cli-driver-not-loaded",
    "n1:401:512 [0] transport/nvls.cc:307 NCCL WARN Cuda failure 1 'invalid argument'":
        "nccl-nvls-multicast",
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), TEXTS.items(), ids=TEXTS)
def test_both_know_the_error(text: str, code: str) -> None:
    cause, fix = explain(text)
    assert cause
    assert fix
    found = diagnose([("log", f'Traceback (most recent call last):\n  File "a.py"\n{text}\n')])
    assert code in [one.code for one in found.causes[:2]]


# Errors of a function without a public name, which the suite calls on purpose.
SUITE_ALONE = "RuntimeError: Rowwise scaling is not currently supported on your device"


def test_each_row_of_the_suite_has_its_text() -> None:
    texts = (*TEXTS, SUITE_ALONE)
    found = {next(row[1] for row in SYMPTOMS if re.search(row[1], text)) for text in texts}
    assert {row[1] for row in SYMPTOMS} == found
