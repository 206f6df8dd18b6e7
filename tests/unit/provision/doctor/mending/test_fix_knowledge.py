"""Every command that the doctor tells: it is shell, its programs are known, and what may be run
without a person typing it keeps the rules.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import provision.doctor
from provision.doctor.knowledge import Knowledge, load, parse
from provision.doctor.mending import check_fixes
from provision.doctor.mending.effects import effects
from provision.doctor.mending.shell import commands, programs, without_sudo
from tests import need
from tests.kit.cases import cases
from tests.kit.programs import run_program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = Path(provision.doctor.__file__).parent / "data" / "recipes.toml"

# By the package (or the product) that brings them.
PACKAGES = """
    POSIX, the shell itself, coreutils: . : [ awk basename cat chmod chown command cp cut date df
    dirname du echo env eval exec exit export false file find fuser getconf grep hash head
    hostname id install ipcs kill less ln ls mkdir mktemp mv nohup nproc paste printenv printf ps
    pwd read readlink realpath rm sed seq set sh shuf sleep sort stat stty sync tail tee test
    timeout touch tr true truncate type ulimit umask uname uniq unset wait wc which xargs; sudo:
    sudo sudoedit; passwd: groupadd usermod gpasswd; login: newgrp; libc-bin: getent ldconfig ldd;
    util-linux: dmesg fallocate findmnt hwclock losetup lsblk lscpu lsipc mkswap mount prlimit
    setsid swapon umount unshare; procps: free pgrep pkill sysctl top; kmod: depmod lsmod modinfo
    modprobe rmmod; pciutils: lspci setpci; iproute2: ip ss; iputils-ping: ping; netcat: nc;
    nftables: nft; ufw: ufw; firewalld: firewall-cmd; lsof: lsof; quota: quota; numactl: numactl;
    tmux: tmux; curl: curl; gpg: gpg; openssl: openssl; git: git; openssh-client: ssh ssh-copy-id
    ssh-keygen; systemd: journalctl loginctl reboot resolvectl systemctl systemd-tmpfiles
    timedatectl; init-system-helpers: service; openrc: rc-service rc-update; dpkg: dpkg dpkg-query
    update-alternatives; apt: apt-cache apt-get apt-mark; rpm: rpm; dnf: dnf yum; zypper: zypper;
    pacman: pacman; apk-tools: apk; snapd: snap; initramfs-tools: update-initramfs; dracut:
    dracut; mkinitcpio: mkinitcpio; grub2-common: update-grub; grubby: grubby; ca-certificates:
    update-ca-certificates update-ca-trust; shim-signed: update-secureboot-policy; mokutil:
    mokutil; dkms: dkms; akmods: akmods kmodgenca; policycoreutils: getsebool setsebool
    restorecon; ubuntu-drivers-common: ubuntu-drivers; nvidia-prime: prime-select; mig-parted:
    nvidia-mig-parted; Container-Optimized OS: cos-extensions; python3: python python3; pip: pip
    pip3; uv: uv uvx; conda: conda mamba; gcc: cc g++ gcc; make: make; cmake: cmake; ninja-build:
    ninja; binutils: nm objdump readelf strings; Docker: docker dockerd; podman: podman; skopeo:
    skopeo; runc: runc; containerd: containerd ctr; cri-tools: crictl; kubectl: kubectl; helm:
    helm; apptainer: apptainer singularity; enroot: enroot; Proxmox: pct; NVIDIA's driver:
    nvidia-bug-report.sh nvidia-cuda-mps-control nvidia-modprobe nvidia-smi nvidia-uninstall
    nvidia-imex-ctl; NVIDIA's container toolkit: nvidia-container-cli nvidia-container-runtime
    nvidia-container-runtime-hook nvidia-ctk; CUDA toolkit: compute-sanitizer cuobjdump nvcc
    ptxas; TensorRT: trtexec; DCGM: dcgmi; Windows, from WSL: cmd.exe nvidia-smi.exe wsl.exe
    wslpath; wslu: wslpath; Open MPI: mpirun ompi_info; UCX: ucx_info; libfabric-bin: fi_info
    fi_pingpong; rdma-core: ibstat ibstatus ibv_devices ibv_devinfo show_gids; Slurm: sbatch
    scontrol sinfo slurmd srun; Ollama: ollama; squashfs-tools: unsquashfs; gzip: zgrep; gVisor:
    runsc; nerdctl: nerdctl; auditd: ausearch; policycoreutils-python-utils: audit2allow semodule;
    libselinux-utils: getenforce; util-linux-extra: namei; py-spy: py-spy; PyTorch: torchrun; Ray:
    ray; TensorFlow: tf_upgrade_v2; DeepSpeed: deepspeed ds_report; Numba: numba; huggingface_hub:
    hf huggingface-cli; this project: provision verify
"""
KNOWN = frozenset(name for one in PACKAGES.split(";") for name in one.partition(":")[2].split())
# A program by its path, one that a variable names, or a version of a compiler.
BY_PATH = re.compile(
    r"(?:/|\.?[\w.-]+/)[\w./-]+|\$[A-Z_]+|\$\(command -v [\w-]+\)|g(?:cc|\+\+)-\d+"
)


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return load()


def texts(knowledge: Knowledge) -> Iterator[tuple[str, str, bool]]:
    """Each (where it stands, the text, whether it may be run without a person typing it)."""
    for failure in knowledge.failures:
        automatic = any(fix.automatic for fix in failure.fixes)
        if failure.confirm:
            yield f"{failure.code}.confirm", failure.confirm, automatic
        if failure.check:
            yield f"{failure.code}.check", failure.check, automatic
        for number, fix in enumerate(failure.fixes):
            if fix.run:
                yield f"{failure.code}.{number}", fix.run, fix.automatic


def written(found: Iterator[tuple[str, str]], folder: Path) -> list[str]:
    """Each text once, though several fixes have it."""
    folder.mkdir()
    names = {text: name for name, text in found}
    for text, name in names.items():
        (folder / f"{name}.sh").write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    return sorted(str(path) for path in folder.iterdir())


def unreadable(shell: str, files: list[str]) -> str:
    """What a shell says of the files that it cannot read, and their names."""
    each = 'for file; do "$0" -n "$file" || echo "$file"; done'
    done = run_program([shell, "-c", each, shell, *files], check=True, timeout=300)
    return done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_command_is_shell(knowledge: Knowledge, shell: str, tmp_path: Path) -> None:
    need.program(shell)
    found = ((name, text) for name, text, _ in texts(knowledge))
    assert not unreadable(shell, written(found, tmp_path / "texts"))


def test_the_shell_finds_a_broken_command(tmp_path: Path) -> None:
    files = written(iter([("good", "a && b"), ("bad", "if a; then b")]), tmp_path / "texts")
    assert "bad.sh" in unreadable("sh", files)
    assert "good.sh" not in unreadable("sh", files)


def test_each_command_of_an_automatic_fix_is_shell_by_itself(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    found = (
        (f"{name}.{number}", command)
        for name, text, automatic in texts(knowledge)
        if automatic
        for number, command in enumerate(commands(text))
    )
    assert not unreadable("sh", written(found, tmp_path / "commands"))


def complaints(files: list[str], *options: str) -> list[str]:
    done = run_program([need.program("shellcheck"), "--format=json", *options, *files], timeout=300)
    return [
        f"{Path(one['file']).name}:{one['line']}: SC{one['code']}: {one['message']}"
        for one in json.loads(done.stdout)
    ]


def test_shellcheck_finds_no_error(knowledge: Knowledge, tmp_path: Path) -> None:
    found = ((name, text) for name, text, _ in texts(knowledge))
    files = written(found, tmp_path / "texts")
    # every shell in use has options of ulimit that POSIX lacks
    assert not complaints(files, "--severity=error", "--exclude=SC3045")


def test_shellcheck_finds_nothing_to_warn_of_in_what_is_run(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    found = ((name, text) for name, text, automatic in texts(knowledge) if automatic)
    files = written(found, tmp_path / "texts")
    assert not complaints(files, "--severity=warning", "--exclude=SC3045")


def test_shellcheck_finds_an_unquoted_variable(tmp_path: Path) -> None:
    files = written(iter([("bad", "cd $(pwd)")]), tmp_path / "texts")
    assert any("SC2046" in one for one in complaints(files, "--severity=warning"))


def test_every_program_has_its_package(knowledge: Knowledge) -> None:
    unknown = {
        program: name
        for name, text, _ in texts(knowledge)
        for program in programs(text)
        if program not in KNOWN and not BY_PATH.fullmatch(program)
    }
    assert not unknown


def test_what_is_run_without_a_person_keeps_the_rules(knowledge: Knowledge) -> None:
    assert not check_fixes(knowledge)


def test_every_recipe_has_fixes_and_none_waits_to_be_written() -> None:
    rows = tomllib.loads(RECIPES.read_text(encoding="utf-8"))["recipe"]
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    for row in rows:
        assert row["fix"], row["name"]
        for fix in row["fix"]:
            assert fix.get("run") or fix.get("note") or fix.get("recipe"), row["name"]
            assert "To be written" not in fix.get("note", "")


# What judge.tags may say of a machine; distributions by the ID of their os-release.
TAGS = """ubuntu debian fedora rhel amzn suse arch alpine nixos other wsl docker podman rootless
    snap-docker docker-desktop systemd"""


def test_a_fix_names_only_places_that_the_judge_knows(knowledge: Knowledge) -> None:
    named = {tag: one.code for one in knowledge.failures for fix in one.fixes for tag in fix.on}
    families = re.compile(r"[a-z]+(?:-[a-z]+)*")
    assert not {tag: code for tag, code in named.items() if not families.fullmatch(tag)}
    rows = tomllib.loads(RECIPES.read_text(encoding="utf-8"))["recipe"]
    assert {tag for row in rows for fix in row["fix"] for tag in fix.get("on", ())} <= set(
        TAGS.split()
    )


# --- the rules, each with a fix that breaks it --------------------------------------------------

GOOD = {"run": "sudo apt-get install -y x", "automatic": True}


def made(fix: dict[str, Any], confirm: str = "true", **changes: str) -> Knowledge:
    row = {
        "code": "one",
        "layer": "disk",
        "title": "t",
        "cause": "c",
        "symptoms": [r"lost (?P<what>\S+)"],
        "sources": ["https://example.org/"],
        "confirm": confirm,
        "fix": [{**GOOD, **fix}],
        **changes,
    }
    return parse({"own.toml": {"failure": [row]}})


@pytest.mark.parametrize(
    "fix",
    [
        {},
        {"run": "echo {what}", "automatic": False},
        {"run": "IMAGE=your/image\ndocker run $IMAGE", "automatic": False},
        {"run": "systemctl reboot", "automatic": False, "reboot": True},
        {"run": "a | sudo tee /etc/x", "backup": ["/etc/x"]},
        {"run": "a >/dev/null 2>&1"},
        {"run": "sudo apt-get install --yes x"},
        {"run": "sed -i 's/a/b/' /etc/x", "backup": ["/etc/x"]},
        {"run": "A=1 b"},
        {"run": "b", "backup": ["~/.config/x"]},
        {"run": 'echo "$(. /etc/os-release && echo "$ID")"'},
        {"run": "awk '{print $1}' x"},
    ],
)
def test_a_good_fix_breaks_no_rule(fix: dict[str, Any]) -> None:
    assert check_fixes(made(fix)) == []


@pytest.mark.parametrize(
    ("fix", "problem"),
    [
        ({"run": "echo {what}"}, "a log may fill"),
        ({"run": "echo '{what}'"}, "a log may fill"),
        ({"run": "b", "backup": ["/etc/{what}"]}, "a log may fill"),
        ({"run": ""}, "no command"),
        ({"run": "", "automatic": False}, "says nothing"),
        ({"reboot": True}, "restart of the machine"),
        ({"run": "sudo systemctl reboot; reboot"}, "`reboot` is not"),
        ({"run": "sudo mokutil --import x"}, "`mokutil` is not"),
        ({"run": "VERSION=1\nb $VERSION"}, "does not see"),
        ({"run": "VERSION=1"}, "does not see"),
        ({"run": "cd /x\nb"}, "only the shell"),
        ({"run": "export A=1"}, "only the shell"),
        ({"run": "docker run <image>"}, "to fill in"),
        ({"run": "docker run your/image"}, "to fill in"),
        ({"run": "sudo apt-get install x"}, "may ask"),
        ({"run": "sudo dnf install x"}, "may ask"),
        ({"run": "sudo zypper install -y x"}, "may ask"),
        ({"run": "sudo pacman -S x"}, "may ask"),
        ({"run": "docker image prune"}, "may ask"),
        ({"run": "sudo -u somebody b"}, "options to sudo"),
        ({"run": "a | sudo tee /etc/x"}, "/etc/x, which is not kept"),
        ({"run": "a | sudo tee -a /etc/x", "backup": ["/etc/y"]}, "/etc/x, which is not kept"),
        ({"run": "a > /etc/x"}, "/etc/x, which is not kept"),
        ({"run": "sudo sed -i -E 's/a/b/' /etc/x"}, "/etc/x, which is not kept"),
        ({"run": "sudo curl -fsS https://x -o /etc/x"}, "/etc/x, which is not kept"),
        ({"run": "sudo x --output=/etc/x"}, "/etc/x, which is not kept"),
        ({"run": "sudo rm -f /etc/x /etc/y", "backup": ["/etc/x"]}, "/etc/y, which is not kept"),
        ({"run": "sudo rm -f /etc/x/*.list", "backup": ["/etc/x/a"]}, "*.list, which is not kept"),
        ({"run": "sudo mv /etc/x /etc/y", "backup": ["/etc/y"]}, "/etc/x, which is not kept"),
        ({"run": "sudo cp a /etc/y"}, "/etc/y, which is not kept"),
        ({"run": "sudo truncate -s 0 /etc/y"}, "/etc/y, which is not kept"),
        ({"run": "ls | xargs rm"}, "that it does not name"),
        ({"backup": ["/etc/*; id"]}, "no pattern"),
        ({"backup": ["etc/x"]}, "no whole path"),
        ({"backup": ["/etc/../x"]}, "no whole path"),
    ],
)
def test_a_broken_rule_is_named(fix: dict[str, Any], problem: str) -> None:
    assert any(problem in one for one in check_fixes(made(fix))), check_fixes(made(fix))


@cases(
    "confirm problem",
    ("it only shows", "df -h /x", "succeeds whatever"),
    ("its last command only shows", "test -e /x; ulimit -n", "succeeds whatever"),
    ("it shows what another says", 'df -h "$(docker info)"', "succeeds whatever"),
    ("it loads a module", "sudo modprobe x && x", "changes the machine"),
    ("it removes a file", "rm /x && x", "changes the machine"),
    ("it searches what is shown", "df -h /x | grep y", ""),
    ("it compares what is shown", 'test "$(ulimit -n)" -gt 9', ""),
)
def test_a_confirming_command_decides_and_changes_nothing(confirm: str, problem: str) -> None:
    found = check_fixes(made({}, confirm=confirm))
    assert any(problem in one for one in found) if problem else not found
    assert check_fixes(made({}, confirm="df -h /x", check=confirm)) == found


def answer(folder: Path, confirm: str, programs: dict[str, str]) -> int:
    """What a shipped command ends with, where these programs answer so."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-ec", confirm], env=env, check=False, timeout=60).returncode


DF = "echo Filesystem 1M-blocks Used Available; echo /dev/sda 100000 50000 {free} 50% /"


@cases(
    "free code is_healthy",
    ("40 GB are free", 40960, "docker-layer-no-space", True),
    ("300 MB are free", 300, "docker-layer-no-space", False),
    ("40 GB are free in the end", 40960, "docker-disk-low", True),
    ("300 MB are free in the end", 300, "docker-disk-low", False),
)
def test_dockers_disk_is_full_only_where_it_is(
    knowledge: Knowledge, tmp_path: Path, free: int, code: str, *, is_healthy: bool
) -> None:
    programs = {"docker": "echo /var/lib/docker", "df": DF.format(free=free)}
    assert (answer(tmp_path, knowledge.by_code[code].confirm, programs) == 0) is is_healthy


UNSIGNED = "E: The repository 'https://nvidia.github.io/libnvidia-container x' is not signed."


@cases(
    "said code is_healthy",
    ("apt reads its sources", "Reading package lists...", 0, True),
    ("apt has no network", "Could not resolve 'deb.example.org'", 100, True),
    ("another source", "E: 'http://x.example stable' is not signed", 100, True),
    ("the toolkit's source is not signed", UNSIGNED, 100, False),
    ("the toolkit's key is missing", "W: NO_PUBKEY DDCAE044F796ECB0", 0, False),
)
def test_the_toolkits_key_is_missing_only_where_apt_says_so(
    knowledge: Knowledge, tmp_path: Path, said: str, code: int, *, is_healthy: bool
) -> None:
    confirm = without_sudo(knowledge.by_code["toolkit-repo-key-missing"].confirm)
    programs = {"apt-get": f'cat <<"END"\n{said}\nEND\nexit {code}'}
    assert (answer(tmp_path, confirm, programs) == 0) is is_healthy


@cases(
    "name text is_healthy",
    ("a page of the web", "nvidia-docker.list", "<!doctype html>\n", False),
    ("an unreadable entry", "libnvidia-container.list", "deb\n", False),
    ("a good file", "nvidia-docker.list", "# nothing\n", True),
    ("a page under another name", "other.list", "<!doctype html>\n", True),
)
def test_apt_itself_says_whether_a_source_of_nvidia_cannot_be_read(
    knowledge: Knowledge, tmp_path: Path, name: str, text: str, *, is_healthy: bool
) -> None:
    need.program("apt-cache", "apt")
    lists = tmp_path / "etc" / "apt" / "sources.list.d"
    lists.mkdir(parents=True)
    (lists / name).write_text(text)
    config = tmp_path / "apt.conf"
    config.write_text(f'Dir::Etc "{tmp_path}/etc/apt";\nDir::State "{tmp_path}";\n')
    confirm = knowledge.by_code["toolkit-repo-list-is-html"].confirm
    done = subprocess.run(
        ["sh", "-ec", confirm],
        env={**os.environ, "APT_CONFIG": str(config)},
        check=False,
        timeout=60,
    )
    assert (done.returncode == 0) is is_healthy


@cases(
    "spec is_healthy",
    ("every file is there", '- path: "{folder}/there"\n', True),
    ("one is gone", "- hostPath: {folder}/there\n- path: {folder}/gone\n", False),
)
def test_a_cdi_specification_is_stale_only_where_a_file_is_gone(
    knowledge: Knowledge, tmp_path: Path, spec: str, *, is_healthy: bool
) -> None:
    (tmp_path / "there").write_text("")
    (tmp_path / "nvidia.yaml").write_text(spec.format(folder=tmp_path))
    confirm = (knowledge.by_code["cdi-spec-stale"].check or "").replace("/etc/cdi", str(tmp_path))
    programs = {"nvidia-ctk": "echo nvidia.com/gpu=all"}
    assert (answer(tmp_path, confirm, programs) == 0) is is_healthy


def test_what_is_mended_without_a_person_must_be_confirmed_without_a_word_of_a_log() -> None:
    assert "no command confirms it" in check_fixes(made({}, confirm=""))[0]
    assert "would be run" in check_fixes(made({}, confirm="ls {what}"))[0]
    assert "would be run" in check_fixes(made({}, check="ls {what}"))[0]
    assert not check_fixes(made({"automatic": False}, confirm="ls {what}"))


# --- what fixes do ------------------------------------------------------------------------------

# Packages as Ubuntu 22.04 and 24.04, Debian 12 and NVIDIA's repositories name them.
_OF_A_DRIVER = """
nvidia-driver-535 nvidia-driver-550-open nvidia-driver-570-server nvidia-dkms-535 nvidia-kernel-dkms
nvidia-kernel-common-550 nvidia-kernel-source-550-open nvidia-kernel-support nvidia-utils-535
nvidia-utils-470-server nvidia-compute-utils-550 nvidia-headless-570 nvidia-firmware-535-535.183.01
libnvidia-cfg1-550 libnvidia-common-550 libnvidia-compute-535 libnvidia-decode-535
libnvidia-encode-535 libnvidia-extra-535 libnvidia-fbc1-535 libnvidia-gl-535
"""
_NOT_OF_A_DRIVER = """
nvidia-container-toolkit nvidia-container-toolkit-base nvidia-container-runtime nvidia-docker2
libnvidia-container1 libnvidia-container-tools nvidia-fabricmanager-535 nvidia-imex-570 nvlsm
nvidia-cuda-toolkit nvidia-cuda-dev nvidia-cudnn nvidia-fs-dkms nvidia-gds nvidia-gds-12-4 libnvsdm
nvidia-nsight-compute datacenter-gpu-manager libnccl2 libcudnn9-cuda-12 cuda-toolkit-12-4
cuda-compat-12-4 nvidia-opencl-dev libnvidia-nscq-535 nvidia-mig-manager linux-image-generic
"""
OF_A_DRIVER = tuple(_OF_A_DRIVER.split())
NOT_OF_A_DRIVER = tuple(_NOT_OF_A_DRIVER.split())
PURGED = re.compile(r"(?:purge|remove)(?: -\S+)*((?: +'[^']+')+)|grep -E '([^']+)'.*\|[^|]*purge")


def purged(knowledge: Knowledge) -> set[str]:
    """The expressions for names of packages in commands that take packages away."""
    found: set[str] = set()
    for _, text, _ in texts(knowledge):
        for match in PURGED.finditer(text):
            found.update(re.findall(r"'([^']+)'", match[1] or "") or [match[2]])
    return {one for one in found if "nvidia" in one}


def test_what_takes_a_driver_away_leaves_what_is_not_of_it(knowledge: Knowledge) -> None:
    found = purged(knowledge)
    assert len(found) >= 4
    reached = {
        (expression, name)
        for expression in found
        for name in NOT_OF_A_DRIVER
        if re.search(expression, name)
    }
    assert reached == set()


def test_it_takes_all_of_a_driver(knowledge: Knowledge) -> None:
    wide = [one for one in purged(knowledge) if "driver" in one or "libnvidia" in one]
    missed = [name for name in OF_A_DRIVER if not any(re.search(one, name) for one in wide)]
    assert missed == []


def test_no_fix_removes_by_a_wide_expression(knowledge: Knowledge) -> None:
    wide = {"^nvidia-.*", "^libnvidia-.*", "nvidia*", "libnvidia-*", "^cuda.*", "*nvidia*"}
    found = {
        name
        for name, text, _ in texts(knowledge)
        for word in re.findall(r"'([^']+)'", text)
        if word in wide and "purge" in text
    }
    assert found == set()


# apt takes "gcc-" for an order to remove gcc: a name may not end where a command found nothing.
_FOUND = re.compile(r"^\s*(\w+)=(?:\$\(|\$\{)", re.MULTILINE)
_ENDS_OPEN = r"\bapt(?:-get)? (?:-\S+ )*install\b[^\n]*-\$(?:{0}\b|\{{{0}\}})(?=[\"'\s]|$)"


def opens(run: str) -> list[str]:
    """The variables that a command fills and that a package's name ends with, unguarded."""
    return [name for name in _FOUND.findall(run) if re.search(_ENDS_OPEN.format(name), run)]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ('V=$(uname -r)\nsudo apt-get install -y "gcc-$V"', ["V"]),
        ('V=$(uname -r)\nsudo apt-get install -y "gcc-${V}" g++', ["V"]),
        ('V=$(uname -r)\nsudo apt-get install -y "gcc-${V:?}"', []),
        ('V=12\nsudo apt-get install -y "gcc-$V"', []),
        ('V=$(uname -r)\nsudo apt-get install -y "gcc-$V-base"', []),
    ],
)
def test_a_name_that_ends_open_is_found(run: str, expected: list[str]) -> None:
    assert opens(run) == expected


def test_no_name_ends_where_a_command_found_nothing(knowledge: Knowledge) -> None:
    runs = {
        f"{one.code}.{i}": fix.run for one in knowledge.failures for i, fix in enumerate(one.fixes)
    }
    assert {code: found for code, run in runs.items() if (found := opens(run))} == {}


def test_what_may_run_by_itself_neither_removes_nor_reboots(knowledge: Knowledge) -> None:
    """Deleting is asked for even with --yes (test_doctor_fix.py)."""
    found = {
        failure.code
        for failure in knowledge.failures
        for fix in failure.fixes
        if fix.automatic and {"removes", "reboots"} & set(effects(fix.run))
    }
    assert found == set()


APPENDS = re.compile(r">> *(?!/dev/)\S|tee -a\b")


def test_a_line_is_added_once_however_often_a_fix_is_run(knowledge: Knowledge) -> None:
    unguarded = {
        name
        for name, text, _ in texts(knowledge)
        for line in text.splitlines()
        if (APPENDS.search(line) or "sed -i 's/^GRUB_CMDLINE" in line) and "grep -" not in line
    }
    assert unguarded == set()


ADDING = [
    pytest.param(without_sudo(command), id=name)
    for name, text, _ in texts(load())
    for command in commands(text)
    if APPENDS.search(command) or "sed -i 's/^GRUB_CMDLINE" in command
]


@pytest.mark.parametrize("command", ADDING)
def test_twice_is_as_once(command: str, tmp_path: Path) -> None:
    """Each command that adds to a file is really run, below a folder that stands for the root."""
    for folder in ("etc/default", "etc/enroot", "etc/apptainer", "etc/pve/lxc", "home/.config"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/.config/containers").mkdir()
    (tmp_path / "etc/default/grub").write_text('GRUB_CMDLINE_LINUX="quiet"\n')
    for name in ("etc/enroot/enroot.conf", "etc/apptainer/nvliblist.conf", "etc/pve/lxc/1.conf"):
        (tmp_path / name).write_text("# there before\n")
    (tmp_path / "home/.bashrc").write_text("# there before\n")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "CONFIG": str(tmp_path / "wslconfig"),
        "NAME": "X",
        "CT": "1",
    }
    here = re.sub(r"(?<![\w.])/etc/", f"{tmp_path}/etc/", command)
    states = []
    for _ in range(3):
        states.append(
            {
                str(path.relative_to(tmp_path)): path.read_bytes()
                for path in sorted(tmp_path.rglob("*"))
                if path.is_file()
            }
        )
        subprocess.run(
            ["/bin/sh", "-ec", here],
            cwd=tmp_path,
            env=env,
            check=True,
            capture_output=True,
            timeout=30,
        )
    assert states[1] != states[0]
    assert states[2] == states[1]


def test_no_fix_is_for_one_architecture_alone(knowledge: Knowledge) -> None:
    """Where a path or an address holds the architecture, the machine says which."""
    bound = {
        name
        for name, text, _ in texts(knowledge)
        if re.search(r"(?:/|-)x86_64[-/]", text) and "uname -m" not in text
    }
    assert bound == set()


@pytest.mark.parametrize(
    ("run", "does"),
    [
        ("nvidia-smi", ("reads",)),
        ("nvidia-smi | tee /dev/null", ("changes",)),
        ("sudo apt-get -y install x", ("installs",)),
        ("python3 -m pip uninstall -y torch", ("removes",)),
        ("dpkg-query -W | grep x | xargs -r sudo env A=1 apt-get purge -y", ("removes",)),
        ("docker system prune -f", ("deletes",)),
        ("sudo rm -f /x && nvidia-smi", ("deletes",)),
        ("sudo systemctl daemon-reload && sudo systemctl restart docker", ("restarts",)),
        ("echo a > ~/x", ("changes",)),
        ("ls 2>/dev/null >&2", ("reads",)),
        ("swapon --show || { sudo mkswap /x && sudo swapon /x; }", ("changes",)),
        ("sudo reboot", ("reboots",)),
        ("", ()),
    ],
)
def test_what_commands_do(run: str, does: tuple[str, ...]) -> None:
    assert effects(run) == does
