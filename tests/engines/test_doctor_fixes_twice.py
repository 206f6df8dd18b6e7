"""Every fix that changes something is run twice on a Debian: the second time changes nothing more.

Its shell is run as it stands. Programs that need hardware, a network or an engine are stand-ins
that do nothing, so this is about the files that a fix writes itself; the Debian has the files that
fixes look for. What a stand-in keeps from its end must stop at the same place both times.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision.doctor import load
from provision.doctor.causes import explained
from provision.doctor.mending.effects import effects
from tests import need
from tests.engines.debian_machine import make_tree
from tests.kit.cases import cases
from tests.kit.programs import run_program
from tests.unit.provision.doctor.mending.test_fix_knowledge import KNOWN

pytestmark = pytest.mark.docker

PACKAGES = ("python3", "procps", "passwd", "login", "gpg", "gpg-agent", "kmod")
LIMIT_S = 30
# Programs that Debian has, and that would reach this machine or another one, or take long.
NOT_FOR_REAL = frozenset(
    """
    apt apt-cache apt-get apt-mark dd depmod dmesg dpkg dpkg-query dpkg-reconfigure fallocate insmod
    kill killall ldconfig losetup mkswap modprobe mount passwd pkill poweroff reboot rmmod service
    shutdown swapoff swapon sysctl systemctl udevadm umount update-alternatives
    """.split()  # noqa: SIM905  one word a line would be forty lines
)
SUDO = """#!/bin/sh
while true; do
    case $1 in
        -u|-g) shift 2 ;;
        -*) shift ;;
        [A-Z]*=*) export "$1"; shift ;;
        *) exec "$@" ;;
    esac
done
"""
MODULES = ("pip", "venv", "ensurepip", "torch", "tensorflow", "jax", "numpy", "numba", "cupy")
MODULE = """__version__ = "1"
def __getattr__(name):
    from unittest.mock import MagicMock
    return MagicMock()
"""
FILES: Mapping[str, str] = {
    "etc/default/grub": 'GRUB_CMDLINE_LINUX="quiet"\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
    "etc/nvidia-container-runtime/config.toml": "#no-cgroups = false\n[nvidia-container-cli]\n",
    "etc/docker/daemon.json": '{"log-driver": "json-file"}\n',
    "etc/containerd/config.toml": "version = 2\n",
    "etc/containerd/config.d/99-nvidia.toml": "version = 3\n",
    "etc/containerd/conf.d/99-nvidia.toml": "version = 3\n",
    "etc/cdi/nvidia.yaml": "cdiVersion: 0.5.0\n",
    "etc/containers/containers.conf": "",
    "etc/enroot/enroot.conf": "",
    "etc/apptainer/nvliblist.conf": "",
    "etc/slurm/slurm.conf": "",
    "etc/slurm/gres.conf": "",
    "etc/slurm/plugstack.conf.d/pyxis.conf": "",
    "etc/subuid": "root:1:1\n",
    "etc/subgid": "root:1:1\n",
    "etc/wsl.conf": "",
    "etc/fuse.conf": "",
    "etc/apt/sources.list.d/cuda.list": "deb https://example.org/ x main\n",
    "etc/yum.repos.d/CentOS-Base.repo": "[base]\nmirrorlist=http://mirrorlist.example.org\n",
    "etc/modprobe.d/other.conf": "",
    "etc/modules-load.d/other.conf": "",
    "etc/sysctl.d/other.conf": "",
    "etc/tmpfiles.d/other.conf": "",
    "etc/systemd/system/other.conf": "",
    "etc/security/limits.conf": "",
    "etc/rpm/macros": "",
    "etc/pki/ca-trust/source/anchors/other.pem": "",
    "sys/module/nvidia/version": "580.65.06\n",
    "usr/local/cuda-12.2/lib64/libcudart.so.12": "",
    "var/lib/docker/other": "",
    "var/lib/dkms/other": "",
    "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": "",
    "root/.docker/config.json": '{\n\t"auths": {},\n\t"credsStore": "desktop"\n}\n',
    "root/.cache/pip/other": "",
    "root/.config/other": "",
    "root/.venv/bin/activate": "",
    "root/requirements.txt": "torch==2.0.1\n",
    "root/Dockerfile": "FROM ubuntu\nRUN true\n",
    "root/setup.py": "",
    "root/.env.example": "",
    "root/company-ca.crt": "",
    "root/entrypoint.sh": "#!/bin/sh\r\ntrue\r\n",
    "home/ann/other": "",
}


@pytest.fixture(scope="module")
def lower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folders of the sound machine, as an overlay is told of them: files, and the Debian."""
    need.root()
    need.program("bwrap", "bubblewrap")
    place = tmp_path_factory.mktemp("twice")
    make_tree(place / "debian", PACKAGES)
    files, stubs = place / "files", place / "files" / "opt" / "stubs"
    users = (place / "debian" / "etc" / "passwd").read_text(encoding="utf-8")
    for name, text in {
        **FILES,
        "etc/passwd": f"{users}ann:x:1000:1000::/home/ann:/bin/sh\n",
        **{f"opt/modules/{name}/__init__.py": "" if name == "pip" else MODULE for name in MODULES},
        **{f"opt/modules/{name}/__main__.py": "" for name in MODULES},
    }.items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_text(text, encoding="utf-8")
    stubs.mkdir()
    there = {path.name for path in (place / "debian" / "usr").glob("*bin/*")}
    for name in ({*KNOWN} - there | NOT_FOR_REAL) - {"sudo"}:
        if "/" not in name and name.strip("."):
            (stubs / name).write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    (stubs / "sudo").write_text(SUDO, encoding="utf-8")
    for path in stubs.iterdir():
        path.chmod(0o755)
    yield f"{files}:{place / 'debian'}"
    shutil.rmtree(place)


@contextmanager
def machine(lower: str, place: Path) -> Iterator[tuple[Path, Path]]:
    """The root of a machine that is thrown away, and the folder of what is changed there."""
    changed, work, root = (place / name for name in ("changed", "work", "root"))
    for folder in (changed, work, root):
        folder.mkdir(parents=True)
    options = f"lowerdir={lower},upperdir={changed},workdir={work}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(root)]
    done = run_program(mount)
    if done.returncode:
        need.lacking(f"no overlay can be mounted here: {done.stderr.strip()}")
    try:
        yield root, changed
    finally:
        subprocess.run(["umount", str(root)], check=True, timeout=30)
        shutil.rmtree(place)


def run(text: str, root: Path) -> int:
    """The exit code of a fix, without a network, with processes and temporary files of its own."""
    env = {"PATH": "/opt/stubs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    env.update(HOME="/root", USER="ann", PYTHONPATH="/opt/modules", PYTHONDONTWRITEBYTECODE="1")
    argv = ["bwrap", "--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--clearenv"]
    argv += ["--tmpfs", "/tmp", "--tmpfs", "/run", "--chdir", "/root", "--die-with-parent"]
    argv += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-add", "ALL"]
    argv += [word for name, value in env.items() for word in ("--setenv", name, value)]
    return subprocess.run(
        [*argv, "/bin/sh", "-ec", text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    ).returncode


def state(changed: Path) -> dict[str, str]:
    """Each path with its mode and what it holds."""
    found = {}
    for path in sorted(changed.rglob("*")):
        held = ""
        if path.is_symlink():
            held = str(path.readlink())
        elif path.is_file():
            held = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(changed))] = f"{path.lstat().st_mode:o} {held}"
    return found


def fixes() -> dict[str, list[tuple[str, str]]]:
    """By layer: each text once, with the first cause that has it; what only reads is left out."""
    found: dict[str, list[tuple[str, str]]] = {}
    seen = set()
    for failure in load().failures:
        for number, fix in enumerate(explained(failure).fixes):
            if fix.run not in seen and set(effects(fix.run)) - {"reads"}:
                seen.add(fix.run)
                found.setdefault(failure.layer, []).append((f"{failure.code}.{number}", fix.run))
    return found


@pytest.mark.parametrize("layer", fixes())
def test_the_second_time_changes_nothing_more(layer: str, lower: str, tmp_path: Path) -> None:
    wrong, ended = [], 0
    for name, text in fixes()[layer]:
        with machine(lower, tmp_path / name) as (root, changed):
            codes, states = [], []
            for _ in range(2):
                codes.append(run(text, root))
                states.append(state(changed))
        ended += codes[0] == 0
        paths = {*states[0], *states[1]}
        more = sorted(path for path in paths if states[0].get(path) != states[1].get(path))
        if more or codes[0] != codes[1]:
            wrong.append((name, codes, more))
    assert wrong == []
    assert ended >= 0.5 * len(fixes()[layer]), "too few of them come to their end here"


@cases(
    "text",
    ("a line is added each time", "echo more >> /etc/fuse.conf"),
    ("it fails when it is done", "mv /etc/cdi/nvidia.yaml /etc/cdi/old"),
    ("the copy is lost", "cp /etc/wsl.conf /etc/wsl.old; echo new > /etc/wsl.conf"),
)
def test_a_fix_that_is_not_for_twice_is_found(text: str, lower: str, tmp_path: Path) -> None:
    with machine(lower, tmp_path / "machine") as (root, changed):
        first = run(text, root), state(changed)
        second = run(text, root), state(changed)
    assert first != second
