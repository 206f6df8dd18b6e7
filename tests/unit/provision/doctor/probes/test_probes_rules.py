"""The rules by which probes derive facts, each with its cases."""

from __future__ import annotations

import pytest

from provision.catalog.catalog import Catalog
from provision.doctor.probes import (
    cdi,
    cgroup,
    daemon_json,
    docker,
    driver,
    environment,
    gpus,
    libraries,
    network,
    packages,
    python,
    smi,
    system,
)
from provision.host import tree
from provision.host.machine import DiskSpace
from tests.kit.doctor_hosts import config_with_acs


@pytest.mark.parametrize(
    ("module", "library", "differ"),
    [
        ("550.54.15", "550.54.15", False),
        ("550.54.15", "550.90.07", True),
        (None, "550.90.07", None),
        ("550.54.15", None, None),
    ],
)
def test_versions_differ_where_both_are_known(
    module: str | None, library: str | None, *, differ: bool | None
) -> None:
    assert driver.versions_differ(module, library) is differ


@pytest.mark.parametrize(
    ("engine", "mode", "char_links", "trap"),
    [
        ("systemd", None, False, True),
        ("systemd", "auto", False, True),
        ("systemd", "legacy", False, True),
        ("systemd", "cdi", False, False),
        ("systemd", "legacy", True, False),
        ("cgroupfs", "legacy", False, False),
        ("cgroupfs", None, None, False),
        (None, "legacy", False, None),
        ("systemd", "legacy", None, None),
    ],
)
def test_the_reload_trap_needs_systemd_the_hook_and_no_links(
    engine: str | None, mode: str | None, *, char_links: bool | None, trap: bool | None
) -> None:
    assert cgroup.reload_trap(driver=engine, mode=mode, char_links=char_links) is trap


@pytest.mark.parametrize(
    ("missing", "written_for", "loaded", "stale"),
    [
        ((), "550.54.15", "550.54.15", False),
        ((), "550.54.15", "570.86.15", True),
        (("/dev/nvidia1",), None, None, True),
        ((), None, "570.86.15", False),
        ((), "550.54.15", None, False),
    ],
)
def test_a_specification_is_stale_by_files_or_by_its_driver(
    missing: tuple[str, ...], written_for: str | None, loaded: str | None, *, stale: bool
) -> None:
    assert cdi.is_stale(missing, written_for, loaded) is stale


def test_two_files_of_one_folder_conflict_and_of_two_folders_do_not() -> None:
    def spec(path: str) -> cdi.SpecFile:
        return cdi.SpecFile(path=path, devices=("nvidia.com/gpu=0",), host_paths=())

    assert cdi.conflict([spec("/etc/cdi/a.yaml"), spec("/etc/cdi/b.yaml")])
    assert not cdi.conflict([spec("/etc/cdi/a.yaml"), spec("/var/run/cdi/a.yaml")])


def test_the_driver_of_a_specification_is_in_its_libraries_names() -> None:
    paths = ("/dev/nvidiactl", "/usr/lib/libcuda.so.550.54.15", "/usr/bin/nvidia-cdi-hook")
    assert cdi.driver_of(paths) == "550.54.15"


@pytest.mark.parametrize(
    ("modified", "started", "newer"),
    [(100, 200, False), (201, 200, False), (202, 200, True), (100, 0, None)],
)
def test_daemon_json_is_newer_than_the_engine_that_read_it(
    modified: int, started: int, *, newer: bool | None
) -> None:
    assert docker.was_changed_after(modified, started) is newer


@pytest.mark.parametrize(
    ("argv", "keys", "conflict"),
    [
        (("dockerd", "-H", "fd://"), ("hosts",), ("hosts",)),
        (("dockerd", "--host=fd://"), ("hosts",), ("hosts",)),
        (("dockerd", "--data-root", "/x"), ("data-root",), ("data-root",)),
        (("dockerd", "--insecure-registry=a"), ("insecure-registries",), ("insecure-registries",)),
        (("dockerd", "--add-runtime", "nvidia=x"), ("runtimes",), ()),
        (("dockerd", "-H", "fd://"), ("data-root",), ()),
        (("dockerd",), ("hosts",), ()),
    ],
)
def test_a_key_in_both_places_is_a_conflict(
    argv: tuple[str, ...], keys: tuple[str, ...], conflict: tuple[str, ...]
) -> None:
    assert daemon_json.conflicting(keys, daemon_json.flags_of(argv)) == conflict


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", ""),
        ("", ""),
        (" \n", ""),
        ("\ufeff{}", ""),
        ("[]", "it holds no object"),
        ('{"a": 1,}', "line 1, column"),
        ("{'a': 1}", "line 1, column 2"),
    ],
)
def test_daemon_json_is_judged_as_dockerd_reads_it(text: str, problem: str) -> None:
    keys, found = daemon_json.parse_daemon_json(text)
    assert found.startswith(problem)
    assert (keys is None) == bool(problem)


def test_an_empty_exec_start_takes_the_earlier_away() -> None:
    unit = "[Service]\nExecStart=/usr/bin/dockerd -H fd:// \\\n  --debug\n"
    assert docker.unit_exec_start(unit) == ("/usr/bin/dockerd", "-H", "fd://", "--debug")
    dropped = unit + "ExecStart=\nExecStart=/usr/bin/dockerd\n"
    assert docker.unit_exec_start(dropped) == ("/usr/bin/dockerd",)


@pytest.mark.parametrize(
    ("status", "log", "state"),
    [
        ("nvidia/550.54.15, 6.8.0-51-generic, x86_64: installed", "", "installed"),
        ("nvidia, 470.57.02, 6.8.0-51-generic, x86_64: installed", "", "installed"),
        ("nvidia/1.0, 6.8.0-51-generic, x86_64: installed (WARNING! Diff)", "", "installed"),
        ("nvidia/550.54.15, 6.8.0-51-generic, x86_64: built", "", "built"),
        ("nvidia/550.54.15, 6.5.0-41-generic, x86_64: installed", "", "added"),
        ("nvidia/550.54.15: added", "", "added"),
        ("nvidia/550.54.15: added", "make.log for nvidia for kernel 6.8.0-51-generic (", "failed"),
        ("nvidia/550.54.15: added", "make.log for nvidia for kernel 6.5.0-41-generic (", "added"),
        ("nvidia/550.54.15: broken", "", "failed"),
        ("zfs/2.2.2, 6.8.0-51-generic, x86_64: installed", "", "absent"),
        ("", "", "absent"),
    ],
)
def test_dkms_is_judged_for_the_running_kernel(status: str, log: str, state: str) -> None:
    assert driver.dkms_state(status, "6.8.0-51-generic", log) == state


@pytest.mark.parametrize(
    ("found", "mixed"),
    [
        ([("nvidia-dkms-550", "550.90.07-1"), ("libnvidia-compute-550", "550.90.07-1")], False),
        ([("nvidia-dkms-550", "550.90.07-1"), ("libnvidia-compute-535", "535.183.01-1")], True),
        ([("nvidia-driver", "1:570.86.15-1"), ("nvidia-modprobe", "535.161.07-1")], False),
        ([("nvidia-dkms-550", "550.90.07-1"), ("nvidia-settings", "510.47.03-1")], False),
        ([("nvidia-dkms-550", "550.90.07-1"), ("nvidia-cuda-toolkit", "11.8.89-1")], False),
        ([("linux-modules-nvidia-570-6.8.0", "6.8.0-51.52"), ("nvidia-utils", "570.86-1")], False),
        ([("nvidia-container-toolkit", "1.17.4-1")], None),
    ],
)
def test_branches_are_mixed_only_by_parts_of_the_driver(
    found: list[tuple[str, str]], *, mixed: bool | None
) -> None:
    assert packages.branches_mixed(packages.InstalledPackage(*one) for one in found) is mixed


@pytest.mark.parametrize(
    ("current", "device", "port", "narrow"),
    [
        ("16", "16", "16", False),
        ("4", "16", "16", True),
        ("8", "16", "8", False),
        ("0", "16", "16", None),
        ("16", "16", None, None),
        ("255", "x", "16", None),
    ],
)
def test_a_link_is_narrow_where_both_ends_can_more(
    current: str, device: str, port: str | None, *, narrow: bool | None
) -> None:
    assert gpus.is_narrow(current, device, port) is narrow


@pytest.mark.parametrize(
    ("config", "redirects"),
    [
        (config_with_acs(0x0C), True),
        (config_with_acs(0x04), True),
        (config_with_acs(0x01), False),
        (config_with_acs(0x0C)[:256], None),
        (b"", None),
        (b"\xff" * 4096, None),
    ],
)
def test_acs_redirects_by_its_control_bits(config: bytes, *, redirects: bool | None) -> None:
    assert gpus.acs_redirects(config) is redirects


@pytest.mark.parametrize(
    ("names", "consumer", "capabilities", "modules"),
    [
        (("NVIDIA GeForce RTX 4090",), True, ("8.9",), {"optional"}),
        (("NVIDIA H100 80GB HBM3",), False, ("9.0",), {"optional"}),
        (("NVIDIA GH200 480GB",), False, ("9.0",), {"required"}),
        (("NVIDIA B200",), False, ("10.0",), {"required"}),
        (("Tesla V100-SXM2-16GB",), False, ("7.0",), {"unsupported"}),
        (("Tesla T4",), False, ("7.5",), {"optional"}),
        (("NVIDIA GeForce RTX 5090", "NVIDIA A100-PCIE-40GB"), True, ("12.0", "8.0"),
         {"optional", "required"}),
        (("no such card",), None, None, set()),
    ],
)  # fmt: skip
def test_a_name_tells_what_the_catalogue_knows_of_it(
    names: tuple[str, ...],
    capabilities: tuple[str, ...] | None,
    modules: set[str],
    catalog: Catalog,
    *,
    consumer: bool | None,
) -> None:
    assert gpus.is_consumer(catalog, names) is consumer
    assert gpus.capabilities(catalog, names) == capabilities
    assert gpus.open_modules(catalog, names, capabilities or ()) == modules


@pytest.mark.parametrize(
    ("capability", "modules"),
    [("7.0", {"unsupported"}), ("9.0", {"optional"}), ("12.1", {"required"})],
)
def test_a_gpu_without_a_known_name_is_judged_by_its_capability(
    capability: str, modules: set[str], catalog: Catalog
) -> None:
    """NVML tells the capability of a card that the catalogue has not."""
    assert gpus.open_modules(catalog, ("NVIDIA Z999",), (capability,)) == modules


@pytest.mark.parametrize(
    ("version", "only"),
    [("620.70.06", True), ("615.71.09", False), ("580.95.05", False), ("999", None), (None, None)],
)
def test_a_branch_tells_whether_it_has_proprietary_modules(
    version: str | None, *, only: bool | None
) -> None:
    assert driver.has_open_modules_only(version) is only


def test_entities_of_a_report_are_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    assert smi.parse_smi(bomb) is None
    assert smi.parse_smi("<nvidia_smi_log><gpu>") is None
    assert smi.parse_smi("<nvidia_smi_log/>") == smi.Smi()


def test_old_labels_of_nvidia_smi_are_read() -> None:
    text = (
        "<nvidia_smi_log><gpu><compute_mode>Prohibited</compute_mode><ecc_errors><volatile>"
        "<double_bit><total>4</total></double_bit></volatile></ecc_errors>"
        "<clocks_throttle_reasons><clocks_throttle_reason_hw_power_brake_slowdown>Active"
        "</clocks_throttle_reason_hw_power_brake_slowdown></clocks_throttle_reasons>"
        "</gpu></nvidia_smi_log>"
    )
    found = smi.parse_smi(text)
    assert found is not None
    (gpu,) = found.gpus
    assert (gpu.compute_mode, gpu.ecc_uncorrected, gpu.slowdown) == ("Prohibited", 4, "power brake")


@pytest.mark.parametrize(
    ("release", "on_disk", "modular", "required"),
    [
        ("6.8.0-51", ("6.8.0-51",), True, False),
        ("6.8.0-51", ("6.8.0-52",), True, True),
        ("6.8.0-51", ("6.8.0-52",), False, False),
        ("6.8.0-51", (), True, False),
    ],
)
def test_a_reboot_is_due_where_the_modules_are_gone(
    release: str, on_disk: tuple[str, ...], *, modular: bool, required: bool
) -> None:
    assert system.reboot_required(release, on_disk, modular=modular) is required


@pytest.mark.parametrize(
    ("os_id", "like", "family"),
    [
        ("ubuntu", ("debian",), "debian"),
        ("neon", ("ubuntu", "debian"), "debian"),
        ("rocky", ("rhel", "centos", "fedora"), "rhel"),
        ("amzn", ("fedora",), "rhel"),
        ("opensuse-leap", ("suse", "opensuse"), "suse"),
        ("alpine", (), "alpine"),
        ("nixos", (), "nixos"),
        ("gentoo", (), "other"),
    ],
)
def test_families_are_told_by_the_id_and_its_relatives(
    os_id: str, like: tuple[str, ...], family: str
) -> None:
    assert system.family(os_id, like) == family


@pytest.mark.parametrize(
    ("flags", "dmi", "virtual"),
    [
        ("flags : fpu vme", "Amazon EC2 p5.metal", "none"),
        ("flags : fpu hypervisor", "QEMU Standard PC", "kvm"),
        ("flags : fpu hypervisor", "Microsoft Corporation Virtual Machine", "hyperv"),
        ("flags : fpu hypervisor", "VMware, Inc. VMware7,1", "vmware"),
        ("flags : fpu hypervisor", "", None),
        (None, "QEMU", None),
    ],
)
def test_a_hypervisor_is_told_by_flag_and_name(
    flags: str | None, dmi: str, virtual: str | None
) -> None:
    assert system.virtual_by_files(flags, dmi) == virtual


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("Linux version 5.15.167.4-microsoft-standard-WSL2", 2),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", 1),
    ],
)
def test_wsl_1_writes_its_maker_with_a_capital(version: str, number: int) -> None:
    assert system.wsl_version(version) == number


@pytest.mark.parametrize(
    ("bridge", "out", "differs"),
    [
        ("1500", "1450", True),
        ("1450", "1500", False),
        ("1500", "1500", False),
        (None, "1500", None),
    ],
)
def test_a_bridge_sends_too_large_where_its_mtu_is_larger(
    bridge: str | None, out: str | None, *, differs: bool | None
) -> None:
    assert network.mtu_differs(bridge, out) is differs


def test_the_way_out_is_the_default_route_of_the_lowest_metric() -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    routes = head + "wlan0 00000000 0101A8C0 0003 0 0 600 00000000 0 0 0\n"
    routes += "eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0\n"
    assert network.way_out(routes) == "eth0"
    assert network.way_out(head) is None


@pytest.mark.parametrize(
    ("torch", "vision", "wanted", "mismatch"),
    [
        ("2.0.1+cu117", "0.15.2+cu117", "0.15.2", False),
        ("2.0.1+cu117", "0.14.1+cu117", "0.15.2", True),
        ("2.0.1+cu117", "0.15.2+cpu", "0.15.2", True),
        ("2.0.1", "0.15.2", "0.15.2", False),
        ("9.9.9", "0.99", None, None),
    ],
)
def test_torch_and_torchvision_belong_together(
    torch: str, vision: str, wanted: str | None, *, mismatch: bool | None
) -> None:
    assert python.is_mismatch(torch, vision, wanted) is mismatch


def test_torchs_own_file_says_its_cuda() -> None:
    text = (
        "from typing import Optional\n__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\n"
    )
    assert python.parse_version_py(text + "hip: Optional[str] = None\n") == {
        "__version__": "2.6.0+cu124",
        "cuda": "12.4",
        "hip": "",
    }


@pytest.mark.parametrize(
    ("tag", "cuda"),
    [("cu117", "11.7"), ("cu128", "12.8"), ("cpu", ""), ("", None), ("rocm6", None)],
)
def test_a_local_version_tells_the_cuda(tag: str, cuda: str | None) -> None:
    assert python.cuda_of_tag(tag) == cuda


@pytest.mark.parametrize(
    ("free", "total", "low"), [(10, 100, False), (4, 100, True), (0, 0, None), (5, 100, False)]
)
def test_inodes_are_low_under_a_twentieth(free: int, total: int, *, low: bool | None) -> None:
    room = DiskSpace(total=1, free=1, inodes=total, inodes_free=free)
    assert environment.inodes_low(room) is low


def test_memory_limits_are_looked_for_up_to_the_root() -> None:
    assert list(environment.cgroup_paths("0::/a/b\n")) == [
        "/sys/fs/cgroup/a/b",
        "/sys/fs/cgroup/a",
        "/sys/fs/cgroup",
    ]
    assert list(environment.cgroup_paths("9:memory:/x\n3:cpu:/x\n")) == [
        "/sys/fs/cgroup/memory/x",
        "/sys/fs/cgroup/memory",
    ]


@pytest.mark.parametrize(
    ("locked", "low"), [("unlimited", False), ("8388608", True), ("67108864", False)]
)
def test_locked_memory_is_low_under_64_mib(locked: str, *, low: bool) -> None:
    assert environment.is_low(locked) is low


@pytest.mark.parametrize(
    ("folder", "is_cuda"),
    [
        ("/usr/local/cuda/lib64", True),
        ("/usr/local/cuda-12.4/lib64/", True),
        ("/usr/local/cuda/lib64/stubs", False),
        ("/opt/nvidia/lib", False),
    ],
)
def test_a_toolkits_folder_is_known_by_its_name(folder: str, *, is_cuda: bool) -> None:
    assert libraries.is_cuda_folder(folder) is is_cuda


def test_versions_are_in_the_order_of_numbers() -> None:
    assert libraries.by_version(["12.4", "9.2", "10.0", "9.2"]) == ("9.2", "10.0", "12.4")


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "may"),
    [
        (0o666, 0, 0, True),
        (0o660, 0, 44, False),
        (0o660, 0, 1000, True),
        (0o600, 1000, 0, True),
        (0o060, 1000, 1000, False),
        (0o444, 0, 0, False),
    ],
)
def test_the_first_class_that_we_are_in_decides(
    mode: int, uid: int, gid: int, *, may: bool
) -> None:
    assert tree.may_use(mode, uid, gid, 1000, frozenset({1000})) is may


@pytest.mark.parametrize(
    ("mounts", "is_disk"),
    [
        ("/dev/vda / ext4 rw 0 0", True),
        ("overlay / overlay rw 0 0", False),
        ("/dev/mapper/docker-8:1-1-abc / ext4 rw 0 0", False),
        ("/dev/sda1 / ext4 rw 0 0\noverlay / overlay rw 0 0", False),
        ("", False),
    ],
)
def test_a_disk_of_its_own_is_no_container(mounts: str, *, is_disk: bool) -> None:
    assert system.has_disk_for_root(mounts) is is_disk
