"""What error texts mean: one row per symptom, (kind, pattern, cause, fix). The first match wins.

The kind says where the cause is: hardware (the GPU itself), driver (it is broken on the host),
build (the image), pairing (the image needs another driver), config (how it was started), memory,
host (its limits), kernel (no code for this case), program, topology, unclear (one of several).
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

_GPUS = "start the container with --gpus all (docker) or --device nvidia.com/gpu=all (CDI)"
_IN_THAT_MODE = "; if that is its mode, look for NVRM in the host's kernel log and reset the GPU"
_SHM = "start the container with --shm-size 1g or --ipc host"

SYMPTOMS = (
    (
        "hardware",
        r"fallen off the bus|GPU is lost|GPU_IS_LOST",
        "the GPU does not answer on its bus any more",
        "look for Xid lines in the host's kernel log; reboot; check the card's seat and power",
    ),
    (
        "hardware",
        r"uncorrectable ECC error|ECC_UNCORRECTABLE|double[ -]bit ECC",
        "the GPU's memory lost data that ECC could not restore",
        "reset the GPU (nvidia-smi --gpu-reset); have it replaced if the error recurs",
    ),
    (
        "hardware",
        r"uncorrectable NVLink|NVLINK_UNCORRECTABLE",
        "an NVLink corrupts data",
        "look at nvidia-smi nvlink -e on the host; reset the GPUs or have the link repaired",
    ),
    (
        "config",
        r"CUDA-capable device\S* (is/)?are busy or unavailable|Error 46\b|DEVICES_UNAVAILABLE",
        "another process uses the GPU, whose compute mode allows one; or the GPU needs a reset",
        "end that process (nvidia-smi names it), or as root: nvidia-smi -c DEFAULT" + _IN_THAT_MODE,
    ),
    (
        "pairing",
        r"UNSUPPORTED_PTX_VERSION|PTX was compiled with an unsupported toolchain",
        "the driver is older than the toolkit that made this code",
        "upgrade the host's driver, or build for an older CUDA: provision plan names one",
    ),
    (
        "kernel",
        r"(GET|FIND) was unable to find an engine|No (valid )?(execution plans|engine configs)",
        "cuDNN has no kernel for this case on this GPU, or no memory for its workspace",
        "look for other users of the GPU's memory; try a newer cuDNN",
    ),
    (
        "kernel",
        r"CU(BLAS|DNN)_STATUS_NOT_SUPPORTED|No (available kernel|viable b)|not implemented for '",
        "the library has no kernel for this case on this GPU",
        "choose another dtype or shape, or a newer framework",
    ),
    (
        "memory",
        r"STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|OUT_OF_MEMORY|failed to allocate|OOM when.*GPU:",
        "no GPU memory is left",
        "end the GPU's other users (nvidia-smi lists them)",
    ),
    (
        "config",
        r"invalid device ordinal",
        "the program names a GPU by a number that is not visible",
        "look at CUDA_VISIBLE_DEVICES and --gpus: they may show fewer GPUs than it counts on",
    ),
    (
        "config",
        r"launch timed out and was terminated",
        "a kernel ran longer than a GPU with a screen may take",
        "use a GPU without a screen, or switch the watchdog off (Interactive in xorg.conf)",
    ),
    (
        "topology",
        r"peer access is not supported",
        "these GPUs cannot reach each other's memory; copies go through the host",
        "nothing to do; look at nvidia-smi topo -p2p r",
    ),
    (
        "program",
        r"illegal memory access|unspecified launch failure|device-side assert",
        "a kernel accessed memory outside its arrays",
        "run with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to find the kernel",
    ),
    (
        "program",
        r"Cannot re-initialize CUDA in forked|initialization error",
        "CUDA was started before a fork, or /dev/nvidia-uvm is missing",
        "start workers by spawn; start the container with --gpus all",
    ),
    (
        "build",
        r"No module named '(torch|tensorflow|jax)'",
        "the framework is not installed in this Python",
        "build the image with the framework, or run the suite with the Python that has it",
    ),
    (
        "build",
        r"no kernel image is available",
        "the framework was compiled for other GPU architectures",
        "choose a build whose architectures cover this GPU: provision plan names one",
    ),
    (
        "kernel",
        r"(Rowwise scaling|grouped mm) is not (currently )?supported on your",
        "this build has no kernel of this format for this GPU",
        "choose a build whose architectures cover this GPU: provision plan names one",
    ),
    (
        "build",
        r"not compiled with CUDA enabled",
        "this is a CPU build of torch",
        "install the wheel of the CUDA index (cu117, say), not the CPU one",
    ),
    (
        "pairing",
        r"driver on your system is too old|insufficient for CUDA runtime",
        "the NVIDIA driver is older than this CUDA needs",
        "upgrade the host's driver, or build for an older CUDA: provision plan names one",
    ),
    (
        "unclear",
        r"Error 803|unsupported display driver / cuda driver combination",
        "libcuda in the container is not the one of the host's driver",
        "remove libcuda and cuda-compat from the image, and their folders from LD_LIBRARY_PATH",
    ),
    (
        "driver",
        r"Error 802|802: system not yet initialized|system not yet initialized",
        "the GPUs' NVSwitch fabric is not up",
        "start nvidia-fabricmanager on the host, of the driver's own version",
    ),
    (
        "unclear",
        r"[Ee]rror:? 801\b|\(801\)|CUDA error: operation not supported|CUDA_ERROR_NOT_SUPPORTED",
        "this virtual GPU has no licence, or the driver is older than the code needs",
        "if nvidia-smi -q says Unlicensed, see journalctl -u nvidia-gridd; else upgrade the driver",
    ),
    (
        "pairing",
        r"Error 804|forward compatibility was attempted",
        "cuda-compat is in use, and it works on data-centre GPUs only",
        "remove the cuda-compat folder from LD_LIBRARY_PATH, or upgrade the driver",
    ),
    (
        "config",
        r"Found no NVIDIA driver|libcuda\.so\.1: cannot open",
        "no libcuda.so.1 in the container: it was started without GPUs, or without 'compute'",
        _GPUS + "; NVIDIA_DRIVER_CAPABILITIES must hold compute,utility",
    ),
    (
        "config",
        r"No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|no CUDA-capable device",
        "the driver is there, but no GPU is visible to CUDA",
        _GPUS + "; look at CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES",
    ),
    (
        "unclear",
        r"CUDA unknown error|CUDA_ERROR_UNKNOWN|Error 999",
        "the nvidia-uvm kernel module or a device node is missing, or the driver was just upgraded",
        "run nvidia-modprobe -u -c=0 on the host, or reboot it; then start the container again",
    ),
    (
        "driver",
        r"Driver Not Loaded|DRIVER_NOT_LOADED",
        "NVIDIA's kernel module is not loaded",
        "on the host: modprobe nvidia, and dmesg | grep NVRM if it fails; in WSL2: wsl --update",
    ),
    (
        "driver",
        r"LIB_RM_VERSION_MISMATCH|[Dd]river/library version mismatch",
        "the driver's libraries were upgraded while the old kernel module stayed loaded",
        "reboot the host, or reload the nvidia kernel modules",
    ),
    (
        "build",
        r"cuDNN version incompatibility",
        "the loaded cuDNN is not the one that torch was built for",
        "remove the other cuDNN's folder from LD_LIBRARY_PATH",
    ),
    (
        "unclear",
        r"CUDNN_STATUS_(NOT_INITIALIZED|SUBLIBRARY_LOADING_FAILED|SUBLIBRARY_VERSION_MISMATCH)",
        "cuDNN could not start: mixed cuDNN files, or no GPU memory left",
        "remove other cuDNN folders from LD_LIBRARY_PATH; look for other users of the GPU",
    ),
    (
        "memory",
        r"out of memory|no GPU memory is left",
        "no GPU memory is left",
        "end the GPU's other users (nvidia-smi lists them)",
    ),
    (
        "host",
        r"extend /dev/shm|shared memory segment|/dev/shm.*(No space|error)|No space left.*shm",
        "the shared memory folder /dev/shm is too small: for NCCL, or for DataLoader's workers",
        _SHM,
    ),
    (
        "unclear",
        r"nvls\.cc:\d+ NCCL WARN|NVLink SHARP \(NVLS\)",
        "NVLink SHARP (NVLS) did not start, as if Fabric Manager was restarted without the GPUs",
        "set NCCL_NVLS_ENABLE=0 (some collectives get slower), or reboot the host to reset both",
    ),
    (
        "config",
        r"Duplicate GPU detected",
        "two ranks were given one GPU",
        "look at CUDA_VISIBLE_DEVICES: it may name a GPU twice",
    ),
    (
        "config",
        r"no socket interface found",
        "NCCL found no network interface to start from",
        "unset NCCL_SOCKET_IFNAME, or start the container with a network",
    ),
    (
        "build",
        r"[Nn]um[Pp]y is not available|compiled using NumPy 1\.x|_ARRAY_API not found",
        "NumPy's ABI is not the one torch was built for: NumPy 2 with a torch older than 2.3",
        "install numpy<2 beside this torch",
    ),
    (
        "build",
        r"version `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",
        "the image's C or C++ library is older than the framework needs",
        "build on a newer base image",
    ),
    (
        "build",
        r"cannot open shared object file",
        "a library file that the framework needs is missing from the image",
        "build the image again; do not delete files from site-packages/nvidia",
    ),
    (
        "build",
        r"undefined symbol|file too short|invalid ELF header",
        "a library is damaged, or is not the version that was linked against",
        "look at LD_LIBRARY_PATH and LD_PRELOAD; build the image again",
    ),
    (
        "build",
        r"cannot enable executable stack",
        "the framework's library asks for an executable stack, which this kernel or glibc denies",
        "choose a newer framework version, or an older base image",
    ),
)


def explain(text: str) -> Tuple[Optional[str], Optional[str]]:
    """The cause of an error text and its fix, or two Nones."""
    for _, pattern, cause, fix in SYMPTOMS:
        if re.search(pattern, text):
            return _name_file(cause, text), fix
    return None, None


def kind(text: str) -> Optional[str]:
    """The kind of an error text's cause; None for a text without a known symptom."""
    return next((kind for kind, pattern, *_ in SYMPTOMS if re.search(pattern, text)), None)


def _name_file(cause: str, text: str) -> str:
    match = re.search(r"(\S+): cannot open shared object file", text)
    if match is None or match.group(1) in cause:
        return cause
    return "{} ({})".format(cause, match.group(1))


def last_words(output: str) -> str:
    """The most telling line of a log: NCCL's last warning, an error, or just the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for telling in ("NCCL WARN", "Fatal Python error", "Error: "):
        found = [line for line in lines if telling in line]
        if found:
            return found[-1][:300]
    return lines[-1][:300] if lines else ""
