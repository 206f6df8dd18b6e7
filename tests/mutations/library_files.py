"""Faults of library files, of compilers and of torchvision.

Whether torch is a CPU build or one for any CUDA, a folder of our own stands for its packages: files
of the right names, which are really mapped, and metadata, which is really read.
"""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from tests.mutations import rows
from tests.mutations.libraries import cuda_build, rows_of

# package, version, its folder, its file
PACKAGES = (
    ("nvidia_cublas_cu12", "12.8.4.1", "cublas", "libcublas.so.12"),
    ("nvidia_cublas_cu12", "12.8.4.1", "cublas", "libcublasLt.so.12"),
    ("nvidia_cudnn_cu12", "9.10.2.21", "cudnn", "libcudnn.so.9"),
    ("nvidia_cudnn_cu12", "9.10.2.21", "cudnn", "libcudnn_graph.so.9"),
    ("nvidia_nvjitlink_cu12", "12.8.93", "nvjitlink", "libnvJitLink.so.12"),
)
SAY = {  # what the libraries' own functions answer: version, CUDA
    "libcublas": ("12.8.4", "12.8"),
    "libcublasLt": ("12.8.4", "12.8"),
    "libcudnn": ("9.10.2", "12.9"),
    "libcudnn_graph": ("9.10.2", "12.9"),
    "libnvJitLink": ("12.8", None),
}
_kept: List[Any] = []  # what is mapped stays mapped


# A check's process ends without tidying up; the one that started it removes what they all made.
ROOT = Path(tempfile.gettempdir()) / "gpu-provision-libraries-{}".format(os.getpid())
atexit.register(shutil.rmtree, str(ROOT), ignore_errors=True)


def folder() -> Path:
    """A new one."""
    ROOT.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(dir=str(ROOT)))


def write(path: Path, text: str) -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def map_file(path: Path) -> None:
    """Have the file in this process's memory map."""
    with path.open("rb") as file:
        _kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


# Files and versions


def packages() -> None:
    """A site-packages folder with NVIDIA's packages, their files mapped."""
    from verify.checks.libraries import files, versions

    cuda_build()
    site = folder() / "site-packages"
    records: Dict[Tuple[str, str], List[str]] = {}
    for package, version, name, file in PACKAGES:
        path = "nvidia/{}/lib/{}".format(name, file)
        map_file(write(site / path, "library " * 40))
        records.setdefault((package, version), []).append(path)
    for (package, version), paths in records.items():
        info = site / "{}-{}.dist-info".format(package, version)
        name = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(package, version)
        write(info / "METADATA", name)
        write(info / "RECORD", "".join(p + ",,\n" for p in paths))
    sys.path.append(str(site))
    for module in (files, versions):
        vars(module).update(convolve=lambda: True, read_maps=_maps_without_torchs_own)
    said = dict(SAY)
    versions._read = _reader(said)
    _kept.append(said)


def _maps_without_torchs_own() -> str:
    import torch

    from verify.device import maps

    own = str(Path(torch.__file__).parents[1])
    return "".join(line for line in maps.read_maps().splitlines(keepends=True) if own not in line)


def _reader(said: "Dict[str, Tuple[str, str | None]]") -> Callable[..., Any]:
    from verify.checks.libraries import versions

    def read(stem: str, path: str, owners: Any) -> Any:
        package, package_version = owners.get(os.path.realpath(path), (None, None))
        version, cuda = said.get(stem, (None, None))
        return versions.Library(stem, path, version, cuda, package, package_version)

    return read


def say(stem: str, version: str, cuda: "str | None") -> Callable[[], None]:
    """A library's own functions say something else."""

    def seed() -> None:
        next(row for row in _kept if isinstance(row, dict))[stem] = (version, cuda)

    return seed


def other_cudnn() -> None:
    """A system's cuDNN is loaded beside the packages'."""
    map_file(write(folder() / "libcudnn.so.9", "another cuDNN"))


def stub() -> None:
    """The stub of libcuda is loaded."""
    map_file(write(folder() / "stubs" / "libcuda.so.1", "a stub"))


def shadow() -> None:
    """A part of cuDNN that loads later will come from LD_LIBRARY_PATH."""
    write(Path(sys.path[-1]) / "nvidia/cudnn/lib/libcudnn_ops.so.9", "own part")
    path = write(folder() / "libcudnn_ops.so.9", "a part of another release")
    os.environ["LD_LIBRARY_PATH"] = str(path.parent)


def broken_nvrtc() -> None:
    """The libnvrtc that is loaded is damaged."""
    map_file(write(Path(sys.path[-1]) / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "no library"))


# torchvision: where it is not installed, two operators written out in torch stand for it

_OPS = """
import torch

def nms(boxes, scores, threshold):
    kept = []
    for i in torch.argsort(scores, descending=True).tolist():
        if all(_overlap(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept)

def _overlap(a, b):
    size = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).prod()
    return size / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - size)

def roi_align(plane, rois, size, sampling_ratio, aligned):
    side = plane.shape[-1] // size
    return torch.nn.functional.avg_pool2d(plane, side).clone()
"""


def vision() -> None:
    """A torchvision that is made for this torch."""
    import importlib.util

    import torch

    if importlib.util.find_spec("torchvision") is None:
        site = folder()
        write(site / "torchvision" / "__init__.py", "from torchvision import ops\n")
        write(site / "torchvision" / "ops.py", _OPS)
        info = (
            "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\nRequires-Dist: torch=={}\n"
        )
        plain = str(torch.__version__).partition("+")[0]
        name = "torchvision-0.28.0.dist-info"
        write(site / name / "METADATA", info.format(plain))
        sys.path.append(str(site))


def for_another_torch() -> None:
    """torchvision is pinned to another torch."""
    from verify.checks.libraries import vision as module

    module._metadata = lambda: ("0.27.0", "2.12.0")


def no_operators() -> None:
    """Its compiled half does not load."""
    import torchvision

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    torchvision.ops.nms = fail


def keep_all_boxes() -> None:
    """Nothing is suppressed."""
    import torch
    import torchvision

    torchvision.ops.nms = lambda _, scores, __: torch.argsort(scores, descending=True)


def shift_pooling() -> None:
    """RoIAlign reads half a cell beside."""
    import torchvision

    right = torchvision.ops.roi_align
    torchvision.ops.roi_align = lambda *words, **more: right(*words, **more) + 0.5


# Compilers


def set_compiler(variable: str, script: str) -> Callable[[], None]:
    """A program stands for the compiler; an empty script: it is not there."""

    def seed() -> None:
        path = folder() / "compiler"
        if script:
            write(path, "#!/bin/sh\n" + script).chmod(stat.S_IRWXU)
        os.environ[variable] = str(path)

    return seed


def no_headers() -> None:
    """Python's header files are not installed."""
    import sysconfig

    right = sysconfig.get_paths
    sysconfig.get_paths = lambda *words: {**right(*words), "include": str(folder())}


def devel_without_compiler() -> None:
    """nvcc is here, and nothing else."""
    path = write(folder() / "nvcc", "#!/bin/sh\n")
    path.chmod(stat.S_IRWXU)
    os.environ["PATH"] = str(path.parent)
    os.environ.pop("CC", None)
    os.environ.pop("CXX", None)


ROWS = {
    "pytorch": (
        *rows_of(
            "libraries.files",
            packages,
            ("a system's cuDNN is loaded too", other_cudnn, "outside the image's packages"),
            ("a stub of the driver is loaded", stub, "a stub is loaded"),
            ("LD_LIBRARY_PATH holds another cuDNN", shadow, "would be loaded instead"),
            ("NVRTC does not compile", broken_nvrtc, "compiles nothing"),
        ),
        *rows_of(
            "libraries.versions",
            packages,
            ("a file was replaced", say("libcudnn", "9.1.0", "12.4"),
             "nvidia-cudnn-cu12 is 9.10.2"),
            ("cuDNN is for another CUDA", say("libcudnn", "9.10.2", "11.8"), "from CUDA 11.8"),
            ("nvJitLink is too old", say("libnvJitLink", "12.4", None),
             "nvjitlink-cu12 is 12.8.93"),
        ),
        *rows_of(
            "libraries.vision",
            vision,
            ("torchvision is for another torch", for_another_torch, "requires torch 2.12.0"),
            ("torchvision's operators do not load", no_operators, "does not exist"),
            ("nothing is suppressed", keep_all_boxes, "nms gives [3, 0, 1, 2]"),
            ("RoIAlign reads half a cell beside", shift_pooling, "roi_align gives"),
        ),
        *rows(
            "libraries.compiler",
            ("CC names nothing", set_compiler("CC", ""), "unset CC"),
            ("g++ lacks its own parts",
             set_compiler("CXX", "echo 'g++: fatal error: cannot execute cc1plus' >&2; exit 1\n"),
             "is incomplete"),
            ("no Python.h", no_headers, "libpython3-dev"),
            ("a devel image has no compiler", devel_without_compiler, "nvcc is here"),
        ),
    )
}  # fmt: skip
