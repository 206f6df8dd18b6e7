"""The driver: its kernel module loaded and on disk, its libraries, its packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.catalog.loading import load
from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.doctor.probes.packages import branches_mixed, is_driver, read_packages
from provision.doctor.probes.smi import WHERE, read_smi
from provision.host import loader
from provision.host.machine import ProbedMachine
from provision.host.nvml import SOURCE as NVML
from provision.host.proc import PROC_VERSION, loaded_version, read_wsl
from provision.host.source_facts import one_line

_MODULES = "/proc/modules"
_PARAMS = "/proc/driver/nvidia/params"
_DKMS = "/var/lib/dkms"
_MODPROBE = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_LINE_LIMIT = 512
_LOADED = {
    "modules.nouveau": "nouveau",
    "modules.nova": "nova_core",
    "modules.uvm": "nvidia_uvm",
    "modules.modeset": "nvidia_modeset",
    "modules.peermem": "nvidia_peermem",
    "modules.vfio": "vfio_pci",
}
_PRESERVE = re.compile(
    r"^(?:PreserveVideoMemoryAllocations: (\d)"
    r"|[ \t]*options[ \t]+nvidia[ \t].*NVreg_PreserveVideoMemoryAllocations=(\d).*)$",
    re.MULTILINE,
)
# dkms 3 writes "nvidia/570.86.15, 6.8.0-51-generic, x86_64: installed", older ones a comma first.
_DKMS_LINE = re.compile(
    r"^nvidia[^/,]*[/,]\s*[^,:]+(?:,\s*(?P<kernel>[^,]+),[^:]*)?:\s*(?P<state>[a-z-]+)"
)
_INIT = re.compile(r"Failed to initialize NVML: (.+)")


def probe_module(machine: ProbedMachine) -> Iterator[Found]:
    """The loaded module. On WSL the kernel module is Windows', so there is none to find."""
    if read_wsl(machine):
        return
    version, where = loaded_version(machine)
    modules, told_by = loaded_modules(machine)
    if version is not None or modules is not None:
        is_loaded = version is not None or "nvidia" in (modules or ())
        yield from fact("driver.loaded", is_loaded, where if version else told_by)
    yield from fact("driver.version", version, where)
    yield from fact("driver.branch", int(version.split(".")[0]) if version else None, where)
    yield from fact("driver.open_modules_only", has_open_modules_only(version), where)
    if modules is not None:
        for name, module in _LOADED.items():
            yield from fact(name, module in modules, told_by)
    library, where = library_version(machine)
    yield from fact("driver.versions_differ", versions_differ(version, library), where)


def loaded_modules(machine: ProbedMachine) -> tuple[frozenset[str] | None, str]:
    """By name, with the source; for a kernel without loadable modules the built-in ones. None:
    unknown.
    """
    text = machine.text(_MODULES)
    if text is not None:
        return frozenset(line.split(" ")[0] for line in text.splitlines()), _MODULES
    built_in = machine.names("/sys/module")
    return None if built_in is None else frozenset(built_in), "/sys/module"


def versions_differ(module: str | None, library: str | None) -> bool | None:
    """Whether the versions of the kernel module and the libraries differ: an upgrade without a
    reboot.
    """
    return None if module is None or library is None else module != library


def probe_libraries(machine: ProbedMachine) -> Iterator[Found]:
    """The driver's own libraries, not those of a cuda-compat package."""
    version, _ = library_version(machine)
    packages = read_packages(machine)
    parts = [p for p in packages.found if is_driver(p.name)] if packages else []
    if packages is not None:
        listed = tuple(sorted(f"{p.name} {p.version}" for p in parts))
        yield from fact("driver.packages", listed, packages.where)
        yield from fact("driver.branches_mixed", branches_mixed(parts), packages.where)
    there = _library_paths(machine)
    known_by = there[0] if there else packages.where if packages else loader.CACHE
    yield from fact("driver.installed", bool(there or parts or version), known_by)
    path = commands.find(machine, commands.SMI)
    yield from fact("driver.nvidia_smi", path is not None, path or "PATH")


def library_version(machine: ProbedMachine) -> tuple[str | None, str]:
    """From the library's file name, else from NVML itself."""
    found = loader.driver_library(machine)
    if found.version is not None:
        return found.version, found.path
    library = (machine.nvml() or {}).get("library")
    return (library, NVML) if isinstance(library, str) else (None, NVML)


def probe_answers(machine: ProbedMachine) -> Iterator[Found]:
    """What the driver reports when it is queried."""
    answer, smi = machine.nvml(), read_smi(machine)
    cuda = answer.get("cuda") if answer is not None else None
    if isinstance(cuda, str):
        yield from fact("driver.cuda", cuda, NVML)
    elif smi is not None:
        yield from fact("driver.cuda", smi.cuda, WHERE)
    said = _INIT.search(smi.failed or "") if smi else None
    if said:
        yield from fact("driver.nvml_error", one_line(said[1]), "nvidia-smi")
    elif answer is not None and isinstance(failed := answer.get("failed"), str):
        yield from fact("driver.nvml_error", failed, NVML)


def probe_settings(machine: ProbedMachine) -> Iterator[Found]:
    found = machine.processes("nvidia-persistenced")
    if found is not None:
        yield from fact("driver.persistence", bool(found), "/proc")
    texts = [(path, machine.text(path) or "") for path in modprobe_files(machine)]
    for path, text in [(_PARAMS, machine.text(_PARAMS) or ""), *texts]:
        preserved = _PRESERVE.search(text)
        if preserved:
            is_kept = (preserved[1] or preserved[2]) != "0"
            yield from fact("driver.hibernation_preserved", is_kept, path)
            break


def modprobe_files(machine: ProbedMachine) -> tuple[str, ...]:
    """Its configuration; if two files have the same name, the one in the earlier directory
    counts.
    """
    found: dict[str, str] = {}
    for folder in _MODPROBE:
        for path in machine.paths(folder, r".*\.conf"):
            found.setdefault(path.rpartition("/")[2], path)
    return tuple(found.values())


def probe_on_disk(machine: ProbedMachine) -> Iterator[Found]:
    """What is installed for the running kernel. None of it is visible inside a container."""
    release = machine.word("/proc/sys/kernel/osrelease")
    if not release or machine.names(f"/lib/modules/{release}") is None:
        return
    index = f"/lib/modules/{release}/modules.dep"
    paths = [line.partition(":")[0] for line in machine.lines(index, "nvidia.ko") or ()]
    files = [path for path in paths if re.search(r"(?:^|/)nvidia\.ko(?:\.\w+)?$", path)]
    yield from fact("driver.module_built", bool(files), index)
    yield from _dkms(machine, release)


def probe_flavour(machine: ProbedMachine) -> Iterator[Found]:
    """From what the loaded module says about itself, else from the licence of the one on disk."""
    text = machine.text(PROC_VERSION)
    if text is not None and "NVRM version" in text:
        flavour = "open" if "Open Kernel Module" in text else "proprietary"
        yield from fact("driver.flavour", flavour, PROC_VERSION)
        return
    info = commands.ask(machine, commands.MODINFO)
    licence = re.search(r"^license:\s*(.+)$", info.out, re.MULTILINE) if info and info.ok else None
    if licence:
        is_open = "MIT" in licence[1] or "GPL" in licence[1]
        yield from fact("driver.flavour", "open" if is_open else "proprietary", "modinfo nvidia")


def has_open_modules_only(version: str | None) -> bool | None:
    """Whether the driver's branch has no proprietary modules; None if the catalogue does not know
    the branch.
    """
    catalog = load()
    if version is None or not catalog.is_known_branch(version):
        return None
    branch = catalog.branch_of(version)
    return branch is not None and branch.open_modules == "only"


def dkms_state(status: str, release: str, log: str) -> str:
    """For the running kernel: installed | built | added | failed | absent. A build that failed
    leaves the module "added", with the log of the build for that kernel.
    """
    states = [
        (found["kernel"], found["state"])
        for line in status.splitlines()
        if (found := _DKMS_LINE.match(line[:_LINE_LIMIT].strip()))
    ]
    for state in ("installed", "built"):
        if (release, state) in states:
            return state
    if "broken" in {state for _, state in states} or (states and f"for kernel {release} " in log):
        return "failed"
    return "added" if states else "absent"


def dkms_tree(machine: ProbedMachine) -> str:
    """What `dkms status` would report for NVIDIA's modules, from dkms' own directories."""
    lines: list[str] = []
    for module in machine.paths(_DKMS, r"nvidia.*"):
        for version in machine.paths(module, r"\d[\d.]*"):
            name = f"{module.rpartition('/')[2]}/{version.rpartition('/')[2]}"
            kernels = [k for k in machine.names(version) or () if k not in {"build", "source"}]
            lines += [f"{name}, {kernel}, any: built" for kernel in kernels]
            lines += [f"{name}: added"] * (not kernels)
    return "\n".join(lines)


def _dkms(machine: ProbedMachine, release: str) -> Iterator[Found]:
    if machine.names(_DKMS) is None:
        return
    done = commands.ask(machine, commands.DKMS)
    asked = done is not None and done.ok
    status = done.out if done is not None and asked else dkms_tree(machine)
    logs = "\n".join(_build_logs(machine))
    where = "dkms status" if asked else _DKMS
    yield from fact("driver.dkms", dkms_state(status, release, logs), where)


def _build_logs(machine: ProbedMachine) -> Iterator[str]:
    """First lines of the logs, which name the kernel."""
    for module in machine.paths(_DKMS, r"nvidia.*"):
        for version in machine.paths(module, r"\d[\d.]*"):
            lines = machine.lines(f"{version}/build/make.log", "make.log for ") or ()
            yield from (line.replace("(", " (") + " " for line in lines)


def _library_paths(machine: ProbedMachine) -> Sequence[str]:
    found = [
        path
        for name in ("libnvidia-ml.so.1", "libcuda.so.1")
        for path in loader.in_loaders_way(machine, name)
    ]
    return [path for path in found if not loader.is_compat(machine, path) and "/stubs/" not in path]
