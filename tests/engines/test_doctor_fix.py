"""The recipes of --fix, run for real on a Debian of the tests' own: broken, diagnosed, mended,
proven, taken back, and broken again.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import provision.doctor
from provision.doctor import diagnose
from provision.doctor.knowledge import Knowledge, parse
from provision.doctor.mending import FixIO, mend, read_journal, undo
from provision.doctor.mending.shell import commands, without_sudo
from provision.doctor.model import Fact, Fix
from provision.errors import Exit
from tests import need
from tests.engines.debian_machine import DebianMachine, debian_machine
from tests.kit.private_index import make_authority

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.docker

RECIPES = tomllib.loads(
    (Path(provision.doctor.__file__).parent / "data" / "recipes.toml").read_text(encoding="utf-8")
)
DEBIAN: Mapping[str, bool | str] = {"os.id": "debian", "os.family": "debian"}
DOCKER: Mapping[str, bool | str] = {**DEBIAN, "docker.installed": True}

# Recipes that are run in this file, whole or as far as said, and why the others are not.
RUN_HERE = {
    "install-driver": "Debian's sources and what apt would install; nothing is installed",
    "remove-mixed-driver": "with packages of the same names that hold nothing",
    "install-container-toolkit": "every line, from a repository that stands in for NVIDIA's",
    "configure-docker-runtime": "with that repository's nvidia-ctk",
    "cgroup-reload-trap": "Docker's cgroup driver; not the links, which need the driver's devices",
    "rootless-no-cgroups": "the file; no toolkit reads it here",
    "install-engine": "Debian's",
    "start-docker": "without systemd",
    "restart-docker": "without systemd",
    "docker-group": "whole",
    "fix-daemon-json": "whole",
    "docker-disk-space": "whole, on a full disk",
    "larger-shm": "Docker's",
    "raise-nofile": "Docker's; the file of limits with a lower limit",
}
NOT_RUN = {
    "install-open-driver": "needs NVIDIA's repository",
    "install-proprietary-driver": "needs the headers of this machine's kernel, and a driver",
    "rebuild-module": "needs the headers of this machine's kernel, and a driver",
    "load-module": "needs the driver's modules",
    "reboot": "would restart this machine",
    "blacklist-nouveau": "needs an initramfs of this machine",
    "enroll-module-key": "needs UEFI and a person",
    "install-persistence": "needs the driver",
    "device-nodes": "needs the driver",
    "start-fabric-manager": "needs NVSwitches",
    "configure-containerd-runtime": "needs NVIDIA's nvidia-ctk and systemd",
    "generate-cdi": "needs NVIDIA's nvidia-ctk and a driver",
    "update-wsl": "needs Windows",
}

# Where the machine that runs the tests keeps a lower limit than Debian's script asks for.
DEFAULTS = 'DOCKER_OPTS="--iptables=false --ip6tables=false"\nulimit() { :; }\n'


def test_each_recipe_is_run_or_the_reason_is_said() -> None:
    names = {row["name"] for row in RECIPES["recipe"]}
    assert set(RUN_HERE) | set(NOT_RUN) == names
    assert not set(RUN_HERE) & set(NOT_RUN)


# --- a case -------------------------------------------------------------------------------------


class Case:
    """One recipe as the fix of one failure, on a machine."""

    def __init__(
        self,
        machine: DebianMachine,
        folder: Path,
        *,
        recipe: str,
        pattern: str,
        confirm: str,
        facts: Mapping[str, bool | str] = DOCKER,
    ) -> None:
        row = {
            "code": recipe,
            "layer": "docker",
            "title": recipe,
            "cause": "A test broke it.",
            "symptoms": [pattern],
            "confirm": confirm,
            "sources": ["https://example.org/"],
            "fix": [{"recipe": recipe}],
        }
        self.knowledge: Knowledge = parse({"recipes": RECIPES, "own": {"failure": [row]}})
        self.machine, self.folder, self.confirm = machine, folder, confirm
        self.facts = {name: Fact(value=value, where="test") for name, value in facts.items()}
        self.said: list[str] = []
        self.io = FixIO(
            say=self.said.append,
            ask=None,
            run=machine.run,
            is_root=True,
            has_sudo=False,
            home=Path("/root"),
        )

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    def fixes(self, text: str) -> tuple[Fix, ...]:
        (cause,) = diagnose([("log", text)], self.facts, knowledge=self.knowledge).causes
        return cause.fixes

    def mend(self, text: str) -> Exit:
        assert self.machine.output(self.confirm)[0] != 0, "it is not broken"
        causes = diagnose([("log", text)], self.facts, knowledge=self.knowledge).causes
        assert [cause.code for cause in causes] == list(self.knowledge.by_code)
        return mend(
            causes,
            knowledge=self.knowledge,
            io=self.io,
            journals=self.folder,
            assume_yes=self.io.ask is None,
        )

    def must_mend(self, text: str) -> None:
        end = self.mend(text)
        assert end is Exit.DONE, self.text
        assert self.machine.output(self.confirm)[0] == 0

    def journal(self) -> Path:
        return max(self.folder.iterdir())

    def undo(self) -> Exit:
        return undo(self.journal(), knowledge=self.knowledge, io=self.io, assume_yes=True)

    def take_back(self, *, restart: bool = True) -> None:
        assert self.undo() is Exit.DONE
        if restart:
            self.machine.run("service docker restart || service docker start")
            # it ends by itself, or it answers
            self.machine.until("docker version || ! pgrep -x dockerd")
        assert self.machine.output(self.confirm)[0] != 0, "it was not taken back"


@pytest.fixture(scope="module")
def machine() -> Iterator[DebianMachine]:
    need.program("dpkg-deb", "dpkg")
    # procps: without ps, Debian's script for docker starts and never stops
    packages = ["python3", "passwd", "login", "procps", "busybox-static", "gpg", "gpg-agent"]
    with debian_machine([*packages, "curl", "ca-certificates"]) as found:
        found.write("/etc/default/docker", DEFAULTS)
        found.write("/etc/apt/apt.conf.d/languages", 'Acquire::Languages "none";\n')
        found.must("useradd --create-home ann")
        yield found


@pytest.fixture(scope="module")
def engine(machine: DebianMachine, tmp_path_factory: pytest.TempPathFactory) -> DebianMachine:
    """The machine with an engine, which the recipe installed."""
    case = Case(
        machine,
        tmp_path_factory.mktemp("engine"),
        recipe="install-engine",
        pattern=r"docker: (?:command )?not found",
        confirm="docker version",
        facts=DEBIAN,
    )
    _, text = machine.output("docker version")
    case.must_mend(text)
    machine.must("mkdir -p /root/probe/bin && cp /bin/busybox /root/probe/bin")
    machine.must("for name in sh dd df cat; do ln -s busybox /root/probe/bin/$name; done")
    machine.must("tar -C /root/probe -c . | docker import - probe")
    return machine


@pytest.fixture
def settled(engine: DebianMachine) -> Iterator[DebianMachine]:
    """The engine without settings, before and after."""
    yield engine
    engine.must("rm -f /etc/docker/daemon.json /etc/docker/daemon.json.before-*")
    engine.restart_engine()


# --- Docker -------------------------------------------------------------------------------------


def test_an_engine_is_installed_and_keeps_the_settings_that_were_there(
    engine: DebianMachine,
) -> None:
    assert "Server:" in engine.must("docker version")
    assert engine.must("cat /etc/default/docker").strip() == DEFAULTS.strip()


def refused_settings(machine: DebianMachine, text: str, mode: int = 0o644) -> str:
    """What dockerd says of settings that it cannot read."""
    machine.must("service docker stop && : > /var/log/docker.log")
    machine.write("/etc/docker/daemon.json", text, mode)
    machine.must("service docker start")
    return machine.until("grep 'unable to configure' /var/log/docker.log")


def test_a_broken_daemon_json_is_mended_and_keeps_its_keys(
    settled: DebianMachine, tmp_path: Path
) -> None:
    broken = '\ufeff{\n  // who we are\n  “labels”: ["owner=ann"],\n  "debug": true,\n}\n'
    refused = refused_settings(settled, broken, 0o640)
    case = Case(
        settled,
        tmp_path,
        recipe="fix-daemon-json",
        pattern=r"unable to configure the Docker daemon with file .*daemon\.json",
        confirm="docker version",
    )
    case.must_mend(refused)
    assert "owner=ann" in settled.must("docker info --format '{{json .Labels}}'")
    assert settled.must("stat -c %a /etc/docker/daemon.json") == "640"
    case.take_back()
    assert (settled.tree / "etc/docker/daemon.json").read_text(encoding="utf-8") == broken


def test_a_daemon_json_that_cannot_be_mended_stays_and_its_place_is_said(
    settled: DebianMachine, tmp_path: Path
) -> None:
    refused = refused_settings(settled, '{"debug": tru}\n')
    case = Case(
        settled,
        tmp_path,
        recipe="fix-daemon-json",
        pattern="unable to configure the Docker daemon",
        confirm="docker version",
    )
    assert case.mend(refused) is Exit.HOST_UNFIT
    assert "Expecting value: line 1 column 11" in case.text
    assert settled.must("cat /etc/docker/daemon.json") == '{"debug": tru}'
    assert read_journal(case.journal()).result == "failed"


def test_containers_get_a_larger_dev_shm(settled: DebianMachine, tmp_path: Path) -> None:
    settled.write("/etc/docker/daemon.json", '{"labels": ["owner=ann"]}\n')
    settled.restart_engine()
    fill = "docker run --rm --network none probe dd if=/dev/zero of=/dev/shm/x bs=1M count=100"
    case = Case(
        settled, tmp_path, recipe="larger-shm", pattern="No space left on device", confirm=fill
    )
    case.must_mend(settled.output(fill)[1])
    assert "owner=ann" in settled.must("docker info --format '{{json .Labels}}'")
    case.take_back()


def test_a_running_container_is_not_stopped_unasked(settled: DebianMachine, tmp_path: Path) -> None:
    name = settled.must("docker run --detach --network none probe cat /dev/zero")
    fill = "docker run --rm --network none probe dd if=/dev/zero of=/dev/shm/x bs=1M count=100"
    case = Case(
        settled, tmp_path, recipe="larger-shm", pattern="No space left on device", confirm=fill
    )
    assert case.mend(settled.output(fill)[1]) is Exit.HOST_UNFIT
    assert "stops 1 running container" in case.text
    assert settled.must("docker ps --quiet --no-trunc") == name
    settled.must(f"docker rm --force {name}")


def test_containers_get_larger_limits(settled: DebianMachine, tmp_path: Path) -> None:
    look = "docker inspect --format '{{json .HostConfig.Ulimits}}' $(docker create probe sh)"
    case = Case(
        settled,
        tmp_path,
        recipe="raise-nofile",
        pattern="error setting limit|can't set limit",
        confirm=f"{look} | grep -q nofile",
    )
    command = "docker run --rm --network none probe sh -c 'ulimit -H -n 1; ulimit -H -n 99999'"
    case.must_mend(settled.output(command)[1])
    case.take_back()


def test_the_file_of_limits_is_read_at_the_next_login(
    machine: DebianMachine, tmp_path: Path
) -> None:
    case = Case(
        machine, tmp_path, recipe="raise-nofile", pattern="low", confirm="false", facts=DEBIAN
    )
    (fix,) = [fix for fix in case.fixes("low") if not fix.on]
    # this machine may forbid to raise a limit, never to lower it
    machine.must(without_sudo(fix.run).replace(" 1048576", " 512"))
    try:
        assert machine.must("su ann -c 'ulimit -n'") == "512"
    finally:
        machine.must(f"rm {fix.backup[0]}")
    assert machine.must("su ann -c 'ulimit -n'") != "512"


def test_a_full_disk_of_docker_gets_room(settled: DebianMachine, tmp_path: Path) -> None:
    settled.must("service docker stop")
    settled.must("mount -t tmpfs -o size=130m tmpfs /var/lib/docker")
    settled.restart_engine()
    try:
        for name, size in (("one", 40), ("two", 40), ("three", 60)):
            folder = f"/root/{name}"
            settled.must(f"mkdir {folder} && head -c {size}M /dev/urandom > {folder}/x")
        for name in ("one", "two"):  # the second takes the first one's name
            settled.must(f"tar -C /root/{name} -c . | docker import - same")
        case = Case(
            settled,
            tmp_path,
            recipe="docker-disk-space",
            pattern="no space left on device",
            confirm="tar -C /root/three -c . | docker import - three && docker rmi three",
        )
        text = settled.output(case.confirm)[1]
        assert case.mend(text) is Exit.HOST_UNFIT
        assert "--yes takes no packages or images away" in case.text
        case.io = replace(case.io, ask=lambda _: True)
        case.must_mend(text)
        assert "same" in settled.must("docker images --format '{{.Repository}}'")
    finally:
        settled.must("service docker stop")
        settled.must("umount /var/lib/docker; rm -r /root/one /root/two /root/three")


def test_a_user_may_use_the_engine_at_the_next_login(engine: DebianMachine, tmp_path: Path) -> None:
    case = Case(
        engine,
        tmp_path,
        recipe="docker-group",
        pattern="permission denied while trying to connect to the Docker daemon socket",
        confirm="su ann -c 'docker version'",
    )
    run = engine.run
    # as sudo does
    case.io = FixIO(
        say=case.said.append,
        ask=None,
        run=lambda command, limit_s, on_line: run(
            f"export SUDO_USER=ann\n{command}", limit_s, on_line
        ),
        is_root=True,
        has_sudo=False,
        home=Path("/root"),
    )
    case.must_mend(engine.output(case.confirm)[1])
    assert "gpasswd -d" in case.text
    engine.must("gpasswd -d ann docker")
    assert engine.output(case.confirm)[0] != 0


@pytest.mark.parametrize("recipe", ["start-docker", "restart-docker"])
def test_a_stopped_engine_is_started_again(
    settled: DebianMachine, tmp_path: Path, recipe: str
) -> None:
    settled.must("service docker stop")
    case = Case(
        settled,
        tmp_path,
        recipe=recipe,
        pattern="Cannot connect to the Docker daemon",
        confirm="docker version",
    )
    case.must_mend(settled.output("docker version")[1])


def test_docker_sets_cgroups_itself(settled: DebianMachine, tmp_path: Path) -> None:
    settled.write(
        "/etc/docker/daemon.json", '{"debug": true, "exec-opts": ["native.cgroupdriver=systemd"]}\n'
    )
    settled.restart_engine()
    look = "docker info --format '{{.CgroupDriver}}' | grep -qx cgroupfs"
    assert settled.output(look)[0] != 0
    case = Case(settled, tmp_path, recipe="cgroup-reload-trap", pattern="x", confirm=look)
    (fix,) = [fix for fix in case.fixes("x") if fix.on == ("docker",)]
    for command in commands(fix.run):
        settled.must(without_sudo(command))
    settled.restart_engine()
    settled.must(look)
    assert json.loads(settled.must("cat /etc/docker/daemon.json"))["debug"] is True


# --- files and packages -------------------------------------------------------------------------

TOOLKIT_CONFIG = """disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
environment = []
load-kmods = true
#no-cgroups = false
ldconfig = "@/sbin/ldconfig"

[nvidia-container-runtime]
mode = "auto"
"""


def test_the_toolkit_may_not_set_cgroups_of_a_user(machine: DebianMachine, tmp_path: Path) -> None:
    path = "/etc/nvidia-container-runtime/config.toml"
    machine.write(path, TOOLKIT_CONFIG)
    read = (
        f'import tomllib; d = tomllib.load(open("{path}", "rb"));'
        ' exit(not d["nvidia-container-cli"].get("no-cgroups"))'
    )
    case = Case(
        machine,
        tmp_path,
        recipe="rootless-no-cgroups",
        pattern="failed to add device rules",
        confirm=f"python3 -c '{read}'",
        facts={**DOCKER, "docker.rootless": True},
    )
    case.must_mend("nvidia-container-cli: mount error: failed to add device rules: x\n")
    case.take_back(restart=False)
    assert machine.must(f"cat {path}") == TOOLKIT_CONFIG.strip()


@pytest.mark.parametrize("style", ["one line", "deb822"])
def test_apt_finds_debians_driver(machine: DebianMachine, tmp_path: Path, style: str) -> None:
    listed = (machine.tree / "etc/apt/sources.list").read_text(encoding="utf-8")
    if style == "deb822":
        machine.must("rm /etc/apt/sources.list")
        machine.write(
            "/etc/apt/sources.list.d/debian.sources",
            re.sub(
                r"deb (\S+) (\S+) (.+)",
                r"Types: deb\nURIs: \1\nSuites: \2\nComponents: \3\n",
                listed,
            ),
        )
    try:
        machine.must("apt-get update")
        assert machine.output("apt-get install --dry-run nvidia-driver")[0] != 0
        case = Case(
            machine, tmp_path, recipe="install-driver", pattern="x", confirm="false", facts=DEBIAN
        )
        (fix,) = case.fixes("x")
        *before, install = (without_sudo(command) for command in commands(fix.run))
        for _ in range(2):  # and once more: it changes nothing then
            for command in before:
                machine.must(command)
        assert install.count("install -y ") == 1
        said = machine.must(install.replace("install -y ", "install --dry-run -y "))
        for package in ("nvidia-driver", "nvidia-kernel-dkms", "nvidia-smi", "libcuda1"):
            assert f"Inst {package} " in said
        for file in fix.backup:
            assert machine.output(f"cat {file}")[1].count(" non-free ") <= len(listed.splitlines())
    finally:
        machine.must("rm -f /etc/apt/sources.list.d/debian.sources")
        machine.write("/etc/apt/sources.list", listed)
        machine.must("apt-get update")


def add_package(machine: DebianMachine, name: str, files: Mapping[str, str], where: str) -> None:
    """Build a Debian package in the machine, as a file of the folder `where`."""
    tree = f"/root/packages/{name}"
    control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.org>\n"
    machine.write(f"{tree}/DEBIAN/control", f"{control}Description: stands in for another\n")
    for path, text in files.items():
        machine.write(f"{tree}{path}", text, 0o755)
    machine.must(f"mkdir -p {where} && dpkg-deb --build {tree} {where}/{name}.deb")


def test_the_driver_goes_and_the_container_toolkit_stays(
    machine: DebianMachine, tmp_path: Path
) -> None:
    driver = ("nvidia-driver-1", "libnvidia-compute-1", "nvidia-dkms-2", "cuda-drivers")
    others = ("libnvidia-container1", "nvidia-container-toolkit-base", "cuda-toolkit-x")
    for name in (*driver, *others):
        add_package(machine, name, {}, "/root/mixed")
    machine.must("dpkg -i /root/mixed/*.deb")
    case = Case(
        machine, tmp_path, recipe="remove-mixed-driver", pattern="x", confirm="false", facts=DEBIAN
    )
    (fix,) = case.fixes("x")
    for command in commands(fix.run):
        machine.must(without_sudo(command))
    left = machine.must("dpkg-query -W -f='${Package}\\n'").splitlines()
    assert not set(driver) & set(left)
    assert set(others) <= set(left)
    machine.must(f"dpkg --purge {' '.join(others)}")


# --- NVIDIA's repository ------------------------------------------------------------------------

NVIDIA_CTK = """#!/usr/bin/python3
import json, pathlib, sys
assert sys.argv[1:] == ["runtime", "configure", "--runtime=docker"], sys.argv
path = pathlib.Path("/etc/docker/daemon.json")
settings = json.loads(path.read_text()) if path.exists() else {}
runtime = {"path": "nvidia-container-runtime", "args": []}
settings.setdefault("runtimes", {})["nvidia"] = runtime
path.parent.mkdir(exist_ok=True)
path.write_text(json.dumps(settings))
"""
NVIDIA_RUNTIME = '#!/bin/sh\nexec runc "$@"\n'
SIGN = """set -e
{ dpkg-deb --field *.deb
  echo "Filename: ./$(ls *.deb)"
  echo "Size: $(stat -c %s *.deb)"
  echo "SHA256: $(sha256sum *.deb | cut -d' ' -f1)"; } > Packages
{ echo 'Date: Thu, 01 Jan 2026 00:00:00 UTC'
  echo SHA256:
  echo " $(sha256sum Packages | cut -d' ' -f1) $(stat -c %s Packages) Packages"; } > Release
gpg --batch --passphrase '' --quick-generate-key nobody@example.org ed25519 sign never
gpg --batch --yes --clearsign --output InRelease Release
"""
HOST = "nvidia.github.io"
ADDRESS = "127.0.0.7"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def repository(engine: DebianMachine, tmp_path: Path) -> Iterator[None]:
    """A repository under NVIDIA's name, as the machine sees it: TLS, a signature, one package."""
    place = engine.tree / "root/site/libnvidia-container"
    deb = f"{place.relative_to(engine.tree)}/stable/deb"
    files = {"/usr/bin/nvidia-ctk": NVIDIA_CTK, "/usr/bin/nvidia-container-runtime": NVIDIA_RUNTIME}
    add_package(engine, "nvidia-container-toolkit", files, f"/{deb}/amd64")
    engine.write(
        f"/{deb}/nvidia-container-toolkit.list",
        f"deb https://{HOST}/libnvidia-container/stable/deb/$(ARCH) /\n"
        f"#deb https://{HOST}/libnvidia-container/experimental/deb/$(ARCH) /\n",
    )
    engine.write("/root/sign", SIGN)
    for command in (
        f"cd /{deb}/amd64 && sh /root/sign",
        "gpg --armor --export > /root/site/libnvidia-container/gpgkey",
        f"echo '{ADDRESS} {HOST}' >> /etc/hosts",
    ):
        engine.must(command)
    chain = make_authority(tmp_path, "of the test", HOST).chain
    engine.write("/usr/local/share/ca-certificates/test.crt", (tmp_path / "ca.pem").read_text())
    engine.must("update-ca-certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    handler = functools.partial(Quiet, directory=str(engine.tree / "root/site"))
    with http.server.ThreadingHTTPServer((ADDRESS, 443), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield
        server.shutdown()
        thread.join()
    engine.must(f"sed '/{HOST}/d' /etc/hosts > /root/hosts && cp /root/hosts /etc/hosts")


RUNTIME = "docker run --rm --network none --runtime=nvidia probe sh -c 'exit 0'"


def toolkit_case(machine: DebianMachine, folder: Path, recipe: str) -> Case:
    return Case(
        machine,
        folder,
        recipe=recipe,
        pattern=r"[Uu]nknown (?:or invalid )?runtime (?:name|specified)",
        confirm=RUNTIME,
    )


@pytest.mark.usefixtures("repository")
def test_the_toolkit_comes_from_nvidias_repository_and_docker_learns_of_it(
    settled: DebianMachine, tmp_path: Path
) -> None:
    settled.write("/etc/docker/daemon.json", '{"labels": ["owner=ann"]}\n')
    settled.restart_engine()
    case = toolkit_case(settled, tmp_path / "state", "install-container-toolkit")
    case.must_mend(settled.output(RUNTIME)[1])
    assert "owner=ann" in settled.must("docker info --format '{{json .Labels}}'")
    case.take_back()
    for file in ("/etc/apt/sources.list.d/nvidia-container-toolkit.list",
                 "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"):  # fmt: skip
        assert settled.output(f"test -e {file}")[0] != 0
    assert json.loads(settled.must("cat /etc/docker/daemon.json")) == {"labels": ["owner=ann"]}

    # the toolkit is still there: now Docker alone must learn of it
    other = toolkit_case(settled, tmp_path / "other", "configure-docker-runtime")
    other.must_mend(settled.output(RUNTIME)[1])
    other.take_back()
    settled.must("dpkg --purge nvidia-container-toolkit")


def test_without_nvidias_repository_the_fix_stops_and_leaves_nothing(
    settled: DebianMachine, tmp_path: Path
) -> None:
    """Its name leads to an address where nobody listens."""
    settled.must(f"echo '127.0.0.8 {HOST}' >> /etc/hosts")
    case = toolkit_case(settled, tmp_path, "install-container-toolkit")
    try:
        assert case.mend(settled.output(RUNTIME)[1]) is Exit.HOST_UNFIT
    finally:
        settled.must(f"sed '/{HOST}/d' /etc/hosts > /root/hosts && cp /root/hosts /etc/hosts")
    assert "Failed to connect to nvidia.github.io" in case.text
    assert "To put the kept files back" in case.text
    done = read_journal(case.journal()).done
    assert [one.code == 0 for one in done] == [True, True, False]
    assert case.undo() is Exit.DONE
    settled.must("apt-get update")
    assert settled.output("ls /usr/share/keyrings/nvidia-container-toolkit-keyring.asc")[0] != 0
