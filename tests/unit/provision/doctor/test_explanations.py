"""What an image's own suite says of an error and what the doctor says: they know the same errors.

The suite runs alone inside the image, so its short tables cannot be the doctor's; here both are
asked about each alternative of each row. The texts are those of CUDA, cuDNN, NCCL, gloo, PyTorch,
the loader and the kernel's log.
"""

from __future__ import annotations

import re

import pytest

from provision.doctor import diagnose
from tests.unit.verify.device.test_kernel_log import FORMS, WITHOUT_ADDRESS
from verify.across.codes import ERRORS
from verify.checks.loading.workers import TROUBLE as WORKERS
from verify.device.driver_errors import codes, line_rules
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
    "RuntimeError: Rowwise scaling is not currently supported on your device":
        "torch-format-no-kernel",
    "RuntimeError: torch.float8_e4m3fn grouped mm is not supported on your device":
        "torch-format-no-kernel",
    "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing":
        "cuda-graph-capture",
    "torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture":
        "cuda-graph-capture",
    "NVRM: GPU 0000:4f:00.0: GPU has fallen off the bus.": "xid-79-fallen-off-bus",
    "Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)":
        "xid-79-fallen-off-bus",
    "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered": "cuda-ecc-uncorrectable",
    ("NVRM: Xid (PCI:0000:4f:00): 48, pid=1, An uncorrectable double bit error (DBE): "
     "double-bit ECC"): "xid-48-double-bit-ecc",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE: uncorrectable NVLink error detected": "xid-74-nvlink",
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 46: all "
     "CUDA-capable devices are busy or unavailable"): "compute-mode-exclusive-busy",
    ("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICES_UNAVAILABLE: "
     "CUDA-capable device(s) is/are busy or unavailable"): "compute-mode-exclusive-busy",
    ("INTERNAL: Failed to load PTX: CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX "
     "was compiled with an unsupported toolchain."): "ptx-unsupported-toolchain",
    "RuntimeError: FIND was unable to find an engine to execute this computation":
        "cudnn-no-algorithm",
    ("RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans "
     "support the graph."): "cudnn-not-supported",
    ("RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No valid engine configs "
     "for ConvFwd"): "cudnn-not-supported",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED": "cudnn-not-supported",
    "RuntimeError: No available kernel. Aborting execution.": "attention-no-kernel",
    "RuntimeError: No viable backend for scaled_dot_product_attention was found.":
        "attention-no-kernel",
    "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'": "half-on-cpu",
    "RuntimeError: \"fft_r2c\" not implemented for 'BFloat16'": "torch-type-not-implemented",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED": "gpu-out-of-memory",
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.":
        "jax-out-of-memory",
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory": "gpu-out-of-memory",
    "failed to allocate 22.5GiB (24159191040 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY":
        "gpu-out-of-memory",
    ("ResourceExhaustedError: OOM when allocating tensor with shape[4096,4096] on "
     "device:GPU:0 by allocator GPU_0_bfc"): "gpu-out-of-memory",
    "RuntimeError: CUDA error: unspecified launch failure": "unspecified-launch-failure",
    "RuntimeError: CUDA error: device-side assert triggered": "device-side-assert",
    "RuntimeError: CUDA error: initialization error": "cuda-initialization-error",
    "ModuleNotFoundError: No module named 'tensorflow'": "python-package-not-there",
    "ModuleNotFoundError: No module named 'jax'": "python-package-not-there",
    "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version":
        "driver-too-old-for-runtime",
    ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver / cuda "
     "driver combination"): "libcuda-other-than-module",
    "CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized": "cuda-802-fabric-manager",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 801: operation not supported":
        "cuda-operation-not-supported",
    "CUDA_ERROR_NOT_SUPPORTED: operation not supported": "cuda-operation-not-supported",
    "cudaGetDeviceCount returned cudaErrorNotSupported (801)": "cuda-operation-not-supported",
    ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: forward compatibility was attempted on "
     "non supported HW"): "cuda-compat-shadows-driver",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory":
        "libcuda-not-found",
    "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected": "cuda-no-device",
    "RuntimeError: CUDA error: no CUDA-capable device is detected": "cuda-no-device",
    "CUDA_ERROR_UNKNOWN: unknown error": "cuda-unknown-error-uvm",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 999: unknown error":
        "cuda-unknown-error-uvm",
    "pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded": "driver-module-not-loaded",
    "NVML_ERROR_DRIVER_NOT_LOADED": "driver-module-not-loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "driver-library-mismatch",
    "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED": "cudnn-sublibrary-missing",
    "NCCL WARN Error: failed to extend /dev/shm/nccl-4xUHbC to 33030532 bytes":
        "nccl-shm-too-small",
    ("RuntimeError: unable to write to file </torch_12_34>: No space left on device (28) "
     "in /dev/shm"): "dataloader-bus-error",
    "OSError: /dev/shm/torch_12_34: No space left on device": "dataloader-bus-error",
    "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152":
        "nccl-nvls-multicast",
    "UserWarning: Failed to initialize NumPy: _ARRAY_API not found": "numpy2-abi",
    "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.3 as it may crash.":
        "numpy2-abi",
    ("ImportError: libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by "
     "/app/libtorch.so)"): "extension-newer-libstdcxx",
    "ImportError: libstdc++.so.6: version `CXXABI_1.3.13' not found (required by /app/libtorch.so)":
        "extension-newer-libstdcxx",
    "OSError: libcublasLt.so.12: file too short": "library-file-damaged",
    "OSError: /app/libnet.so: invalid ELF header": "library-file-damaged",
    ("RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling "
     "`cusolverDnCreate(handle)`"): "cuda-library-internal",
    "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR": "cuda-library-internal",
    ("RuntimeError: CUDA error: CUSPARSE_STATUS_INTERNAL_ERROR when calling "
     "`cusparseCreate(handle)`"): "cuda-library-internal",
    "RuntimeError: Failed to find C compiler. Please specify via CC environment variable":
        "triton-no-c-compiler",
    "torch._inductor.exc.TritonMissing: Cannot find a working triton installation.":
        "triton-not-there",
    "RuntimeError: Dynamo is not supported on Python 3.13+": "dynamo-python-too-new",
    "ncclUnhandledCudaError: Call to CUDA function failed.": "nccl-unhandled-cuda-error",
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error (run with "
     "NCCL_DEBUG=INFO for details)"): "nccl-unhandled-cuda-error",
    ("ncclRemoteError: A call failed possibly due to a network error or a remote process "
     "exiting prematurely."): "nccl-remote-process-exited",
    "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error":
        "nccl-remote-process-exited",
    ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, "
     "OpType=ALLREDUCE, Timeout(ms)=600000)"): "nccl-collective-timeout",
    ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed "
     "or device error."): "nccl-system-error",
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error (run with "
     "NCCL_DEBUG=INFO for details)"): "nccl-system-error",
    "ncclInternalError: Internal check failed.": "nccl-internal-error",
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, internal error - please report this issue "
     "to the NCCL developers"): "nccl-internal-error",
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.": "nccl-invalid-usage",
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, invalid usage (run with NCCL_DEBUG=WARN "
     "for details)"): "nccl-invalid-usage",
    "ncclInvalidArgument: Invalid value for an argument.": "nccl-invalid-usage",
    ("[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find "
     "interface for: [0.0.0.0]"): "gloo-interface-not-found",
    "RuntimeError: Gloo: Unable to find address for: eth7": "gloo-interface-not-found",
    "makeDeviceForHostname(): unsupported gloo device, unable to resolve hostname":
        "gloo-interface-not-found",
    "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.7]:36514":
        "nccl-remote-process-exited",
    "[gloo/transport/tcp/pair.cc:575] Read error [192.0.2.7]:36514: Connection reset by peer":
        "nccl-remote-process-exited",
    "[gloo/transport/tcp/pair.cc:302] writev [192.0.2.7]:36514: Broken pipe":
        "nccl-remote-process-exited",
    "[gloo/transport/tcp/pair.cc:302] writev [192.0.2.7]:36514: Connection reset by peer":
        "nccl-remote-process-exited",
    ("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
     "operation to complete"): "nccl-collective-timeout",
    "RuntimeError: Application timeout caused pair closure": "nccl-collective-timeout",
    "Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error":
        "gloo-connect-failed",
    "[gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:45161: Connection refused":
        "gloo-connect-failed",
    "[gloo/transport/tcp/pair.cc:144] SO_ERROR: No route to host, remote=[192.0.2.7]:36514":
        "gloo-connect-failed",
    "Gloo connectFullMesh failed: connect timeout": "gloo-connect-failed",
    ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms "
     "while trying to connect to (192.0.2.7, 29500)."): "rendezvous-unreachable",
    ("torch.distributed.DistNetworkError: The client socket has failed to connect to any "
     "network address of (node-b, 29500)."): "rendezvous-unreachable",
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
     "1/2 clients joined."): "rendezvous-ranks-missing",
    "RuntimeError: Socket Timeout": "rendezvous-ranks-missing",
    "RuntimeError: The TCP client failed to connect/validate to host 192.0.2.7:29500":
        "rendezvous-unreachable",
    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0":
        "nccl-rank0-not-ready",
    "RuntimeError: Failed to recv, got 0 bytes. Connection was likely closed.":
        "nccl-remote-process-exited",
    "DataLoader worker (pid 71) is killed by signal: Bus error.": "dataloader-bus-error",
    "unable to allocate shared memory(shm) for file </torch_71_1>: No space left on device (28)":
        "dataloader-bus-error",
    "terminated with signal SIGBUS": "dataloader-bus-error",
    "RuntimeError: received 0 items of ancdata": "dataloader-ancdata-fds",
    "OSError: [Errno 24] Too many open files": "open-files-exhausted",
    "RuntimeError: can't start new thread": "thread-limit-reached",
    "bash: fork: retry: Resource temporarily unavailable": "thread-limit-reached",
    "RuntimeError: DataLoader timed out after 30 seconds": "dataloader-timeout",
    "DataLoader worker (pid 71) is killed by signal: Killed.": "host-ram-exhausted",
    "Signal 9 (SIGKILL) received by PID 71": "host-ram-exhausted",
    "OSError: [Errno 12] Cannot allocate memory": "host-ram-exhausted",
    "NCCL WARN Cuda failure 'out of memory'": "gpu-out-of-memory",
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), TEXTS.items(), ids=TEXTS)
def test_the_doctor_knows_the_error(text: str, code: str) -> None:
    found = diagnose([("log", f'Traceback (most recent call last):\n  File "a.py"\n{text}\n')])
    assert not found.unexplained
    assert code in [one.code for one in found.causes[:2]]


def alternatives(pattern: str) -> list[str]:
    """What a pattern is made of, split where the whole pattern can be one thing or another."""
    depth, parts = 0, [""]
    for piece in re.findall(r"\\.|\[[^\]]*\]|.", pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


OWN_WORDS = {"no GPU memory is left", "did not finish"}  # the suite's, of its own checks
PATTERNS = {*(row[-3] for row in (*SYMPTOMS, *WORKERS)), *(row.pattern for row in ERRORS)}


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_each_alternative_of_the_suite_has_its_text(pattern: str) -> None:
    for one in {*alternatives(pattern)} - OWN_WORDS:
        assert [text for text in TEXTS if re.search(one, text)], one


def test_each_symptom_of_the_suite_is_the_first_of_a_text() -> None:
    found = {next((row[1] for row in SYMPTOMS if re.search(row[1], text)), "") for text in TEXTS}
    assert {row[1] for row in SYMPTOMS} <= found
    assert all(all(explain(text)) for text in TEXTS if explain(text)[0])


# --- the kernel's log ---------------------------------------------------------------------------

# The doctor's own causes for an Xid, else by NVIDIA's action for it.
OWN = {
    8: "gpu-locked-watchdog", 31: "xid-31-mmu-fault", 43: "xid-43-channel-reset",
    46: "gpu-locked-watchdog", 48: "xid-48-double-bit-ecc", 56: "xid-56-display",
    63: "xid-63-row-remap-pending", 64: "xid-64-row-remap-failure", 69: "xid-69-graphics-class",
    74: "xid-74-nvlink", 79: "xid-79-fallen-off-bus", 109: "xid-109-context-switch-timeout",
    119: "xid-119-gsp-timeout", 120: "xid-119-gsp-timeout", 154: "xid-154-recovery-action",
    **dict.fromkeys((137, *range(144, 151)), "xid-nvlink5"),
}  # fmt: skip
BY_ACTION = {
    "RESTART_APP": "xid-application", "WORKFLOW_XID_13": "xid-application",
    "WORKFLOW_XID_45": "xid-application", "RESET_GPU": "xid-reset-needed",
    "CHECK_UVM": "xid-reset-needed", "IGNORE": "xid-no-action", "TEST": "xid-no-action",
    "": "xid-no-action",
}  # fmt: skip


@pytest.mark.parametrize("place", ["PCI:0000:4f:00", "PCI:0000:4f:00 GPU-I:05"])
def test_each_xid_of_the_suite_is_known(place: str) -> None:
    for number, meaning in codes().items():
        line = f"[  123.4] NVRM: Xid ({place}): {number}, pid=77, name=python, Channel 00000012"
        code = OWN.get(number, BY_ACTION.get(meaning.action, "xid-support"))
        (first, *_) = diagnose([("log", line)]).causes
        assert first.code == code, number
        assert (first.severity == "warns") == (code == "xid-no-action")


# Which causes stand for a kind of line of the kernel's log.
LINES = {
    "off the bus": {"xid-79-fallen-off-bus"},
    "GPU lost": {"xid-79-fallen-off-bus"},
    "RmInitAdapter failed": {"rm-init-adapter-failed"},
    "probe failed": {"rm-init-adapter-failed"},
    "GPU not supported": {"gpu-not-supported-by-open", "gpu-legacy-branch"},
    "unified memory failed": {"uvm-fatal-error"},
    "reset required": {"gpu-requires-reset"},
    "PCIe error, fatal": {"pcie-aer-errors"},
    "PCIe error, not corrected": {"pcie-aer-errors"},
    "PCIe error, corrected": {"pcie-aer-errors"},
    "PCIe link down": {"pcie-aer-errors"},
    "machine check": {"machine-check"},
}
OTHERS = {
    "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST]":
        "GPU lost",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]":
        "reset required",
    "NVRM: The NVIDIA GPU 0000:4f:00.0 (PCI ID: 10de:1381) installed in this system is not "
    "supported by open nvidia.ko": "GPU not supported",
    "NVRM: The NVIDIA GT 710 GPU installed in this system is supported through the NVIDIA 470.xx "
    "Legacy drivers.": "GPU not supported",
    "nvidia-uvm: uvm encountered global fatal error 0x60, requiring os reboot to recover.":
        "unified memory failed",
    "pcieport 0000:40:01.1: pciehp: Slot(7): Link Down": "PCIe link down",
    "pcieport 0000:40:01.1: DPC: containment event, status:0x1f01": "PCIe link down",
}  # fmt: skip


@pytest.mark.parametrize(("line", "name"), {**FORMS, **WITHOUT_ADDRESS, **OTHERS}.items())
def test_each_line_of_the_kernels_log_is_known(line: str, name: str) -> None:
    found = diagnose([("log", f"[  123.4] {line}\n")]).causes
    assert found[0].code in LINES.get(name, {one.code for one in found})


REPAIRED = {rule.name for rule in line_rules() if rule.repairs}


def test_each_kind_of_line_has_its_causes() -> None:
    assert {rule.name for rule in line_rules()} == {*LINES, *REPAIRED}
