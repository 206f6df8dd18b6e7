"""Libraries on the linker's path, CUDA toolkits, compilers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.doctor.probes.python import site_folders
from provision.host import loader
from provision.host.machine import ProbedMachine

PATH = "LD_LIBRARY_PATH"

_LOCAL = "/usr/local"
_CUDA_FOLDER = re.compile(r"/cuda(?:-\d+(?:\.\d+)*)?/(?:lib64|lib|targets/[\w-]+/lib)$")
_WHEELS = {
    "cudnn": re.compile(r"nvidia_cudnn_cu\d+-(\d+(?:\.\d+)+)\.dist-info", re.IGNORECASE),
    "nccl": re.compile(r"nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info", re.IGNORECASE),
}


def probe_path(machine: ProbedMachine) -> Iterator[Found]:
    entries = loader.path_entries(machine)
    yield from fact("library.path", entries, PATH)
    yield from fact("library.cuda_on_path", any(map(is_cuda_folder, entries)), PATH)
    listed = [(entry, PATH) for entry in entries] + list(loader.conf_folders(machine))
    # the toolkit keeps a stub of libcuda.so there, which is only for linking
    stubs = next((w for folder, w in listed if folder.rstrip("/").endswith("/stubs")), None)
    yield from fact("library.stubs_on_path", stubs is not None, stubs or PATH)


def is_cuda_folder(folder: str) -> bool:
    """Whether it is the library directory of a CUDA toolkit."""
    return _CUDA_FOLDER.search(folder.rstrip("/")) is not None


def probe_libcuda(machine: ProbedMachine) -> Iterator[Found]:
    paths = loader.in_loaders_way(machine, "libcuda.so.1")
    where = paths[0] if paths else loader.CACHE
    yield from fact("library.libcuda", paths, where)
    yield from fact("library.libcuda_in_loader", bool(paths), where)
    compat = [loader.is_compat(machine, path) for path in paths]
    yield from fact("library.compat_in_use", compat[:1] == [True], where)
    first = next((path for path, is_it in zip(paths, compat, strict=True) if is_it), None)
    if first is not None:
        version = loader.version_in_name(machine, first, "libcuda")
        yield from fact("library.compat_version", version, first)


def probe_cudnn_and_nccl(machine: ProbedMachine) -> Iterator[Found]:
    files = dict.fromkeys(_versioned_files(machine, "libcudnn"))
    where = next((path for path, _ in files), loader.CACHE)
    by_wheels = _wheel_versions(machine, "cudnn")
    versions = dict.fromkeys((*(version for _, version in files), *by_wheels))
    yield from fact("library.cudnn", tuple(versions), where)
    yield from fact("library.cudnn_several", len(files) > 1, where)
    nccl = list(_versioned_files(machine, "libnccl"))
    versions = dict.fromkeys((*(v for _, v in nccl), *_wheel_versions(machine, "nccl")))
    yield from fact("library.nccl", tuple(versions), nccl[0][0] if nccl else loader.CACHE)


def probe_toolkits(machine: ProbedMachine) -> Iterator[Found]:
    names = machine.names(_LOCAL)
    if names is not None:
        found = (re.fullmatch(r"cuda-(\d+\.\d+)", name) for name in names)
        versions = (match[1] for match in found if match)
        yield from fact("toolkits.cuda", by_version(versions), _LOCAL)
    real = machine.real(f"{_LOCAL}/cuda")
    if real is not None and real != f"{_LOCAL}/cuda":
        yield from fact("toolkits.cuda_link", real, f"{_LOCAL}/cuda")
    yield from _nvcc(machine)
    yield from _gcc(machine)


def by_version(versions: Iterable[str]) -> tuple[str, ...]:
    """In numeric order: "9.2" before "10.0"."""
    return tuple(sorted(set(versions), key=lambda text: [int(part) for part in text.split(".")]))


def parse_nvcc(text: str) -> str | None:
    """ "Cuda compilation tools, release 12.4, V12.4.131" -> "12.4"."""
    found = re.search(r"\brelease (\d+\.\d+)", text)
    return found[1] if found else None


def _nvcc(machine: ProbedMachine) -> Iterator[Found]:
    path = machine.which("nvcc")
    if path is None:
        return
    done = commands.ask(machine, commands.NVCC)
    version = parse_nvcc(done.out) if done is not None and done.ok else None
    if version is None:
        by_folder = re.search(r"/cuda-(\d+\.\d+)/", machine.real(path) or "")
        version = by_folder[1] if by_folder else None
    yield from fact("toolkits.nvcc", version, path)


def _gcc(machine: ProbedMachine) -> Iterator[Found]:
    path = machine.which("gcc")
    if path is None:
        return
    done = commands.ask(machine, commands.GCC)
    text = done.out.split("\n")[0].strip() if done is not None and done.ok else ""
    if not re.fullmatch(r"\d+(?:\.\d+)*", text):
        by_name = re.search(r"gcc-(\d+)$", machine.real(path) or "")
        text = by_name[1] if by_name else ""
    yield from fact("compiler.gcc", text or None, path)


def _versioned_files(machine: ProbedMachine, stem: str) -> Iterator[tuple[str, str]]:
    """(path, version) of the main library in each folder of the linker: libcudnn.so.8.9.7."""
    for folder in loader.folders(machine):
        real = machine.real(folder)
        if real is None:
            continue
        for path in machine.paths(real, rf"{stem}\.so\.\d+\.\d+\.\d+(?:\.\d+)?"):
            yield path, path.rpartition(".so.")[2]


def _wheel_versions(machine: ProbedMachine, name: str) -> Iterator[str]:
    for folder in site_folders(machine):
        for entry in machine.names(folder) or ():
            found = _WHEELS[name].fullmatch(entry)
            if found:
                yield found[1]
