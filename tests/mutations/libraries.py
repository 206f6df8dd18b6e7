"""Faults of libraries: torch and the versions of its CUDA libraries, and libcuda."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from tests.mutations import Row, rows

PLAN = {
    "framework": {"name": "pytorch", "version": "2.9.1"},
    "wheel_tag": "cu128",
    "cuda": "12.8",
    "cudnn": "9.10.2.21",
    "nccl": "2.27.5",
}


def cuda_build() -> None:
    """torch says that it was built for CUDA 12.8, and its libraries answer."""
    import torch

    from verify.checks.libraries import pytorch as libraries

    torch.version.cuda = "12.8"
    torch.__version__ = "2.9.1+cu128"
    libraries._runtime_version = lambda: 12080
    torch.backends.cudnn.version = lambda: 91002
    torch.cuda.nccl.version = lambda: (2, 27, 5)


def say_version(version: str, cuda: "str | None" = "12.8") -> Callable[[], None]:
    """torch is another one."""

    def seed() -> None:
        import torch

        torch.__version__, torch.version.cuda = version, cuda

    return seed


def from_home() -> None:
    """torch stands in the user's own packages."""
    import site

    import torch

    site.getusersitepackages = lambda: str(Path(torch.__file__).parents[1])


def older_runtime() -> None:
    """Another libcudart is loaded."""
    from verify.checks.libraries import pytorch as libraries

    libraries._runtime_version = lambda: 12040


def answer(module: str, value: Any) -> Callable[[], None]:
    """`torch.backends.cudnn` or `torch.cuda.nccl` says this, or raises it."""

    def seed() -> None:
        import importlib

        def version() -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        importlib.import_module(module).version = version  # type: ignore[attr-defined]

    return seed


def break_numpy() -> None:
    """NumPy is of the other ABI."""
    import torch

    def fail(*_: Any) -> None:
        raise RuntimeError("Numpy is not available")

    torch.from_numpy = fail


def change_arrays() -> None:
    """What comes out of NumPy is not what went in."""
    import torch

    right = torch.from_numpy
    torch.from_numpy = lambda array: right(array) + 1


# libcuda


def host_driver() -> None:
    """libcuda of the host's own driver."""
    load_libcuda("/usr/lib/x86_64-linux-gnu/libcuda.so.535.104.05", None)()


def load_libcuda(path: str, error: "str | None", card: str = "Tesla T4") -> Callable[[], None]:
    """This libcuda is mapped, and starts or does not; the kernel module is 535.104.05."""

    def world() -> None:
        from verify.device import driver, machine, nvml

        count = None if error else 1
        said = driver.CudaDriver(found=True, version="12.8", count=count, error=error)
        driver.read = lambda *_: said
        nvml.read = lambda *_: nvml.Nvml(found=True, gpus=(nvml.NvmlGpu(card, "GPU-a"),))
        maps = "7f00-7f01 r-xp 00000000 00:1f 42    {}\n".format(path)
        vars(machine).update(read_maps=lambda: maps)
        setattr(machine.Machine, "kernel_module", lambda _: "535.104.05")  # noqa: B010

    return world


def rows_of(
    check: str, sound: Callable[[], None], *faults: "tuple[str, Callable[[], None], str]"
) -> "tuple[Row, ...]":
    """The faults of one check, each as (what is broken, what breaks it, a telling word)."""
    return rows(check, *faults, sound=sound, expect=PLAN)


COMPAT = "/usr/local/cuda-12.8/compat/libcuda.so."
E803 = "Error 803: system has unsupported display driver / cuda driver combination"
E804 = "Error 804: forward compatibility was attempted on non supported HW"
NO_LIBRARY = "libnccl.so.2: cannot open shared object file: No such file or directory"

ROWS = {
    "pytorch": (
        *rows_of(
            "libraries.framework",
            cuda_build,
            ("torch is another version", say_version("2.8.0+cu128"),
             "2.8.0 instead of the requested 2.9.1"),
            ("torch is of another CUDA", say_version("2.9.1+cu130", "13.0"),
             "cu130 instead of the requested cu128"),
            ("torch is a CPU build", say_version("2.9.1+cpu", None), "is a CPU build"),
            ("torch comes from a mounted home", from_home, "PYTHONNOUSERSITE"),
        ),
        *rows_of(
            "libraries.cuda",
            cuda_build,
            ("another libcudart is loaded", older_runtime, "running on 12.4"),
            ("torch was compiled for another CUDA", say_version("2.9.1", "12.6"),
             "12.6 instead of the requested 12.8"),
            ("torch was compiled without CUDA", say_version("2.9.1", None), "without CUDA"),
        ),
        *rows_of(
            "libraries.cudnn",
            cuda_build,
            ("another cuDNN", answer("torch.backends.cudnn", 90100),
             "9.1.0 instead of the requested 9.10.2.21"),
            ("cuDNN's files are mixed",
             answer("torch.backends.cudnn", RuntimeError("cuDNN version incompatibility: x")),
             "the one that torch was built for"),
        ),
        *rows_of(
            "libraries.nccl",
            cuda_build,
            ("another NCCL", answer("torch.cuda.nccl", (2, 21, 5)),
             "2.21.5 instead of the requested 2.27.5"),
            ("NCCL is missing", answer("torch.cuda.nccl", OSError(NO_LIBRARY)), "libnccl.so.2"),
        ),
        *rows(
            "libraries.numpy",
            ("NumPy has another ABI", break_numpy, "numpy<2"),
            ("arrays come changed", change_arrays, "is 15.0"),
        ),
        *rows_of(
            "libraries.compat",
            host_driver,
            ("cuda-compat is used on a GeForce",
             load_libcuda(COMPAT + "570.86.10", E804, "NVIDIA GeForce RTX 4090"),
             "not on NVIDIA GeForce RTX 4090"),
            ("cuda-compat is older than the host's driver",
             load_libcuda(COMPAT + "525.60.13", E803), "older than the kernel module"),
            ("libcuda is a stub", load_libcuda("/usr/local/cuda/stubs/libcuda.so.1", None),
             "a stub"),
        ),
    )
}  # fmt: skip
