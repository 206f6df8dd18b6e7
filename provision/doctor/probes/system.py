"""The machine itself: distribution, kernel, WSL, container, hypervisor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from images.system.os_release import FILES, parse_os_release
from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.host.machine import ProbedMachine
from provision.host.proc import read_wsl
from provision.host.source_facts import one_line
from provision.host.system import distribution

SECURE_BOOT_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

_RELEASE = "/proc/sys/kernel/osrelease"
_NAME = "/proc/sys/kernel/hostname"
_FAMILIES: Mapping[str, frozenset[str]] = {
    "debian": frozenset({"debian", "ubuntu", "linuxmint", "pop", "raspbian", "kali"}),
    "rhel": frozenset(
        {"rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn", "mariner", "azurelinux"}
    ),
    "suse": frozenset({"suse", "sles", "sled", "opensuse", "opensuse-leap", "opensuse-tumbleweed"}),
    "arch": frozenset({"arch", "manjaro", "endeavouros", "cachyos"}),
    "alpine": frozenset({"alpine"}),
    "nixos": frozenset({"nixos"}),
}
_CONTAINER_GROUP = re.compile(
    r"/(?:docker|kubepods|lxc|libpod|containerd|garden)\b|docker-[0-9a-f]"
)
_HYPERVISORS = (
    ("kvm", ("qemu", "kvm", "amazon ec2", "google", "openstack", "digitalocean", "hetzner")),
    ("vmware", ("vmware",)),
    ("hyperv", ("microsoft corporation virtual",)),
    ("xen", ("xen",)),
    ("oracle", ("innotek", "virtualbox")),
)
_NAMES = {"microsoft": "hyperv", "amazon": "kvm", "google": "kvm", "qemu": "kvm"}


def probe_os(machine: ProbedMachine) -> Iterator[Found]:
    for path in FILES:
        text = machine.text(path)
        if text is not None:
            os_id, version = distribution(text)
            yield from fact("os.id", os_id, path)
            yield from fact("os.version", version, path)
            like = parse_os_release(text).get("ID_LIKE", "").split()  # the closest relative first
            yield from fact("os.family", family(os_id, like) if os_id else None, path)
            return


def family(os_id: str, like: Sequence[str]) -> str:
    """From ID, then from ID_LIKE: "debian", "rhel", ..., or "other"."""
    for word in (os_id, *like):
        for name, members in _FAMILIES.items():
            if word.lower() in members:
                return name
    return "other"


def probe_kernel(machine: ProbedMachine) -> Iterator[Found]:
    yield from fact("machine.name", machine.word(_NAME) or None, _NAME)
    release = machine.word(_RELEASE)
    yield from fact("kernel.release", release or None, _RELEASE)
    yield from _arch(machine)
    yield from _secure_boot(machine)
    path = "/sys/kernel/security/lockdown"
    yield from fact("kernel.lockdown", chosen(machine.text(path) or ""), path)
    if release and not in_container(machine) and not read_wsl(machine):
        folders = (
            f"/lib/modules/{release}/build",
            f"/usr/src/linux-headers-{release}",
            f"/usr/src/kernels/{release}",
        )
        there = next(filter(machine.exists, folders), None)
        yield from fact("kernel.headers", there is not None, there or folders[0])
        yield from _reboot(machine, release)


def chosen(text: str) -> str | None:
    """The word in brackets of a kernel's list: "none [integrity] confidentiality"."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


def reboot_required(release: str, on_disk: Sequence[str], *, modular: bool) -> bool:
    """Whether the running kernel's modules were removed while others remain: it was upgraded.

    A kernel without loaded modules (in a small virtual machine) may never have had any on disk.
    """
    return modular and bool(on_disk) and release not in on_disk


def probe_kinds(machine: ProbedMachine) -> Iterator[Found]:
    """The kind of machine: WSL, container, virtual, with systemd; and whether we are root."""
    version = machine.text("/proc/version")
    is_wsl = read_wsl(machine)
    yield from fact("wsl", is_wsl, "/proc/version")
    if is_wsl and version is not None:
        yield from fact("wsl.version", wsl_version(version), "/proc/version")
    yield from _container(machine)
    yield from _virtual(machine)
    user = machine.user()
    yield from fact("machine.root", None if user is None else user.uid == 0, "effective user id")
    if machine.names("/run") is not None:
        path = "/run/systemd/system"
        yield from fact("systemd", machine.exists(path), path)


def wsl_version(version: str) -> int:
    """WSL 1 has no Linux kernel; it says "4.4.0-19041-Microsoft", with a capital M."""
    return 1 if re.search(r"-Microsoft\b", version) else 2


def in_container(machine: ProbedMachine) -> bool | None:
    found = dict(_container(machine)).get("machine.container")
    return bool(found.value) if found else None


def has_disk_for_root(mounts: str) -> bool:
    """Whether / is a separate disk, from /proc/self/mounts: a virtual machine whose disk was made
    from an image keeps the image's marks of a container.
    """
    roots = [line.split(" ") for line in mounts.splitlines() if line.split(" ")[1:2] == ["/"]]
    return bool(roots) and roots[-1][0].startswith("/dev/") and "docker" not in roots[-1][0]


def virtual_by_files(flags: str | None, dmi: str) -> str | None:
    """From the processor's flags ("hypervisor" among them) and the names in the DMI tables."""
    if flags is not None and "hypervisor" not in flags.split():
        return "none"
    low = dmi.lower()
    for name, words in _HYPERVISORS:
        if any(word in low for word in words) and flags is not None:
            return name
    return None


def _arch(machine: ProbedMachine) -> Iterator[Found]:
    path = "/proc/sys/kernel/arch"
    arch = machine.word(path)
    if arch:
        yield from fact("kernel.arch", one_line(arch), path)
    elif (done := commands.ask(machine, commands.UNAME)) is not None and done.ok:
        yield from fact("kernel.arch", one_line(done.out) or None, "uname -m")


def _secure_boot(machine: ProbedMachine) -> Iterator[Found]:
    flag = machine.data(SECURE_BOOT_VARIABLE)  # a byte after four of attributes
    if flag is not None and len(flag) == 5:
        yield from fact("kernel.secure_boot", flag[4] == 1, SECURE_BOOT_VARIABLE)
        return
    done = commands.ask(machine, commands.SECURE_BOOT)
    said = re.search(r"SecureBoot (enabled|disabled)", done.out if done else "")
    if said:
        yield from fact("kernel.secure_boot", said[1] == "enabled", "mokutil --sb-state")
    elif machine.exists("/sys/firmware/acpi") and not machine.exists("/sys/firmware/efi"):
        yield from fact("kernel.secure_boot", value=False, where="/sys/firmware")


def _reboot(machine: ProbedMachine, release: str) -> Iterator[Found]:
    for path in ("/run/reboot-required", "/var/run/reboot-required"):
        if machine.exists(path):
            yield from fact("kernel.reboot_required", value=True, where=path)
            return
    path = "/lib/modules"
    loaded = machine.text("/proc/modules")
    names = machine.names(path)
    if names is not None and loaded is not None:
        required = reboot_required(release, names, modular=bool(loaded.strip()))
        yield from fact("kernel.reboot_required", required, path)


def _container(machine: ProbedMachine) -> Iterator[Found]:
    name = "machine.container"
    on_disk = has_disk_for_root("\n".join(machine.lines("/proc/self/mounts", " / ") or ()))
    for path in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"):
        if machine.exists(path) and not on_disk:
            yield from fact(name, value=True, where=path)
            return
    if machine.env.get("container"):
        yield from fact(name, value=True, where="the variable 'container'")
        return
    path = "/proc/1/cgroup"
    text = machine.text(path)
    if text is not None:
        yield from fact(name, _CONTAINER_GROUP.search(text) is not None, path)


def _virtual(machine: ProbedMachine) -> Iterator[Found]:
    text = machine.text("/sys/hypervisor/type")
    if text and text.strip():
        yield from fact("machine.virtual", one_line(text), "/sys/hypervisor/type")
        return
    folder = "/sys/class/dmi/id"
    dmi = " ".join(
        machine.word(f"{folder}/{name}") or "" for name in ("sys_vendor", "product_name")
    )
    flags = next(iter(machine.lines("/proc/cpuinfo", "flags\t") or ()), None)
    by_files = virtual_by_files(flags, dmi)
    if by_files:
        yield from fact(
            "machine.virtual", by_files, "/proc/cpuinfo" if by_files == "none" else folder
        )
        return
    done = commands.ask(machine, commands.VIRT)
    word = one_line(done.out) if done and not done.problem else ""
    if word:
        yield from fact("machine.virtual", _NAMES.get(word, word), commands.words(commands.VIRT))
