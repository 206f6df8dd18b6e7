"""`provision fleet verify` on a real Slurm cluster of three nodes, and over Debian's sshd.

The command is the real one on both sides; a stand-in for the engine says what the suite finds on a
node. The last test runs the real suite in a real image.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from images.engines.podman import Podman
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from tests import ROOT, need
from tests.clusters.slurm_cluster import SlurmCluster, slurm_cluster
from tests.clusters.ssh_servers import SshServers, free_port, ssh_servers
from tests.engines.podman_place import debian_base, podman_storage
from tests.kit.fake_engine import PLAN, TAG
from tests.kit.programs import run_program
from tests.kit.sandbox_images import entry, layer

LABELS = labels_for(Lock(text="the lock", plan=PLAN, wheels=()), "1")
LIMIT_S = 300

PROVISION = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
node, place = os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE"), Path(__file__).parent
os.environ["XDG_STATE_HOME"] = str(place / "states" / str(node))
from images.engines import docker
from provision import host
from provision.cli import main as cli
from tests.kit.fake_engine import FACTS, Engine, broken, report, says
verdict = gemm = ""
if node:
    verdict, _, gemm = (place / "says" / node).read_text().partition(" ")
    with open(place / "asked", "a") as file:
        file.write(node + "\\n")
if verdict == "hangs":
    time.sleep(600)
suite = broken() if verdict == "broken" else says(report(verdict, float(gemm or 600)))
docker.Docker.connect = lambda **_: Engine(suite)
host.detect = lambda: FACTS
sys.exit(cli.main(sys.argv[1:]))
"""


# What `detect` finds on each node: the GPU of the stand-in's reports.
SMI = """#!/bin/sh
case "$*" in
*query-gpu*) echo 'NVIDIA H100 80GB HBM3, GPU-1, 9.0, 81920, [N/A]' ;;
*) echo '| NVIDIA-SMI 535.104.05  Driver Version: 535.104.05  CUDA Version: 12.2 |' ;;
esac
"""


class Place:
    """A place with the command that sender and nodes share."""

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        need.no_gpu()
        self.place = place
        self.bin = place / "bin"
        self.bin.mkdir()
        (self.bin / "nvidia-smi").write_text(SMI)
        (self.bin / "nvidia-smi").chmod(0o755)
        self.env = {**env, "PATH": f"{self.bin}:{env['PATH']}"}
        self.out = place / "out"
        self.provision = place / "provision"
        self.provision.write_text(PROVISION)
        self.provision.chmod(0o755)
        (place / "says").mkdir()

    def find(self, **said: str) -> None:
        """What the suite finds on nodes from now on: a verdict, "broken" or "hangs"; "fit 500":
        with this speed.
        """
        for node, text in said.items():
            (self.place / "says" / node).write_text(text)

    def asked(self) -> list[str]:
        """The nodes that were asked, and forgets them."""
        path = self.place / "asked"
        found = sorted(path.read_text().split()) if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def argv(self, *more: str, on: str = "slurm") -> list[str]:
        words = ["fleet", "verify", "--on", on, "--image", TAG, "--output", str(self.out)]
        shared = ["--provision", shlex.quote(str(self.provision))]
        return [str(self.provision), *words, *shared, *more]

    def verify(self, *more: str, on: str = "slurm") -> tuple[int, dict[str, Any]]:
        """The exit code, and the result."""
        return self._run(self.argv("--json", *more, on=on))

    def undrain(self, *more: str) -> tuple[int, dict[str, Any]]:
        """The same of `fleet undrain`."""
        return self._run([str(self.provision), "fleet", "undrain", "--json", *more])

    def _run(self, argv: list[str]) -> tuple[int, dict[str, Any]]:
        done = run_program(argv, env=self.env, timeout=LIMIT_S)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)


def undrained(found: dict[str, Any]) -> dict[str, bool | None]:
    return {one["node"]: one["done"] for one in found["nodes"]}


def standings(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["standing"] for one in found["nodes"]}


def codes(found: dict[str, Any]) -> dict[str, str | None]:
    return {one["name"]: one["code"] for one in found["nodes"]}


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    # not pytest's own folder, which only root may enter: munge runs as another user
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        Path(name).chmod(0o755)
        with slurm_cluster(Path(name), nodes=4) as found:
            yield found


def test_nodes_of_slurm_from_good_to_dead(cluster: SlurmCluster) -> None:
    tested = Place(cluster.place, cluster.env)

    # the sick one is named and drained, and the others are not
    tested.find(n0="fit", n1="unfit", n2="fit", n3="fit")
    page, junit = cluster.place / "fleet.html", cluster.place / "fleet.xml"
    code, found = tested.verify("--html", str(page), "--junit", str(junit), "--drain")
    assert (code, standings(found)) == (1, {"n1": "unfit", "n0": "fit", "n2": "fit", "n3": "fit"})
    assert found["nodes"][0]["failed"][0]["check"] == "devices.kernel"
    assert found["drain"][0]["done"] is None
    assert cluster.states()["n1"] == "idle", "without --yes nothing is changed"
    assert "devices.kernel" in page.read_text()
    assert next(case.get("name") for case in ET.parse(junit).iter("testcase")) == "n1"
    assert tested.asked() == ["n0", "n1", "n2", "n3"]
    code, found = tested.verify("--drain", "--yes")
    assert (code, tested.asked()) == (1, []), "all reports are there"
    assert [one["done"] for one in found["drain"]] == [True]
    assert cluster.states()["n1"].startswith("drain")
    reasons = cluster.command("sinfo", "--noheader", "--list-reasons", "--format", "%200E|%N")
    assert "gpu-provision: devices.kernel: of devices.kernel" in reasons

    # the drained one is not asked; one job is canceled while it runs, one meets its time limit, one
    # node dies with its job; Slurm requeues no job of ours
    tested.find(n0="hangs", n2="hangs", n3="hangs")
    words = tested.argv("--json", "--again", "--timeout", "300")
    with subprocess.Popen(words, env=tested.env, stdout=subprocess.PIPE, text=True) as process:
        cluster.wait(lambda: len(asked_nodes(tested)) == 3, "the jobs do not start")
        # its end is moved, since limits are in minutes: Slurm looks for them every 30 s
        cluster.command("scontrol", "update", f"jobid={job_on(cluster, 'n3')}", "endtime=now+1")
        cluster.command("scontrol", "requeue", job_on(cluster, "n3"))
        assert len(cluster.command("squeue", "--noheader").splitlines()) == 3
        cluster.command("scancel", job_on(cluster, "n0"))
        cluster.kill("n2")
        cluster.command("scontrol", "update", "nodename=n2", "state=down", "reason=it died")
        out, _ = process.communicate(timeout=LIMIT_S)
    found = json.loads(out)
    assert process.returncode == 5
    assert codes(found) == {
        "n0": "job-canceled",
        "n1": "node-out-of-service",
        "n2": "node-silent",
        "n3": "job-time-limit",
    }
    assert {one["standing"] for one in found["nodes"]} == {"not-tested"}
    assert not list(tested.out.glob("*.json")), "an old report says nothing about today"
    tested.asked()

    # only the node that we drained is returned: n2 is down, and n3's reason is somebody's own
    cluster.command("scontrol", "update", "nodename=n3", "state=drain", "reason=bad DIMM")
    code, found = tested.undrain()
    assert (code, undrained(found)) == (0, {"n1": None})
    assert cluster.states()["n1"].startswith("drain"), "without --yes nothing is changed"
    assert found["nodes"][0]["reason"].startswith(
        "gpu-provision: devices.kernel: of devices.kernel"
    )
    code, found = tested.undrain("--yes")
    assert (code, undrained(found)) == (0, {"n1": True})
    assert cluster.states()["n3"].startswith("drain")
    assert tested.undrain("--yes")[1]["nodes"] == []
    cluster.command("scontrol", "update", "nodename=n3", "state=resume")

    # killed, and resumed: what was tested is kept
    back = {"n1": "idle", "n3": "idle"}.items()
    cluster.wait(lambda: back <= cluster.states().items(), "n1 and n3 are not back")
    tested.find(n0="fit", n1="hangs", n3="fit")
    killed = subprocess.Popen(tested.argv("--json"), env=tested.env, stdout=subprocess.PIPE)
    for name in ("n0", "n3"):
        cluster.wait((tested.out / f"{name}.json").exists, f"{name} is not tested")
    cluster.wait(lambda: "n1" in asked_nodes(tested), "n1 is not asked")
    killed.send_signal(signal.SIGINT)
    killed.communicate(timeout=LIMIT_S)
    assert killed.returncode == 130
    cluster.wait(
        lambda: not cluster.command("squeue", "--noheader").strip(), "a job was left behind"
    )
    assert sorted(path.name for path in tested.out.iterdir()) == ["hosts", "n0.json", "n3.json"]
    tested.asked()
    tested.find(n1="fit")
    code, found = tested.verify()
    assert tested.asked() == ["n1"]
    assert standings(found) == {"n2": "not-tested", "n0": "fit", "n1": "fit", "n3": "fit"}
    assert code == 5

    # the directory takes one or two reports: all are judged, and the next run asks for the others
    tested.find(n1="unfit")
    tested.out = cluster.place / "full"
    tested.out.mkdir()
    with small_folder(tested.out, "32k"):
        code, found = tested.verify("--nodes", "n[0,1,3]")
        assert (code, standings(found)) == (1, {"n1": "unfit", "n0": "fit", "n3": "fit"})
        assert tested.asked() == ["n0", "n1", "n3"]
        kept = {path.stem for path in tested.out.glob("*.json")}
        lost = {name for name, code in codes(found).items() if code == "report-not-kept"}
        assert kept | lost == {"n0", "n1", "n3"}
        assert len(kept) + len(lost) == 3
        assert kept
        assert lost
        assert not [path for path in tested.out.rglob("*") if "partial" in path.name]
        assert all("No space left" in (one["message"] or "No space left") for one in found["nodes"])
        subprocess.run(["mount", "-o", "remount,size=4m", str(tested.out)], check=True)
        code, found = tested.verify("--nodes", "n[0,1,3]")
        assert tested.asked() == sorted(lost)
        assert (code, standings(found)) == (1, {"n1": "unfit", "n0": "fit", "n3": "fit"})
        assert set(codes(found).values()) == {None}


@contextlib.contextmanager
def small_folder(folder: Path, size: str) -> Iterator[None]:
    """A file system of that size there."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False).returncode != 0:
        need.lacking("a small file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def job_on(cluster: SlurmCluster, node: str) -> str:
    """The one job that runs on a node."""
    words = ("--noheader", f"--nodelist={node}", "--states=R", "--format", "%i")
    (job,) = cluster.command("squeue", *words).split()
    return job


def asked_nodes(tested: Place) -> list[str]:
    path = tested.place / "asked"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SshServers]:
    with ssh_servers(tmp_path) as found:
        yield found


def test_nodes_over_ssh(servers: SshServers) -> None:
    """Two nodes answer, one port is closed."""
    tested = Place(servers.place, {**os.environ})
    with servers.config.open("a") as config:
        for name in ("a", "b"):
            path = f"{tested.bin}:/usr/bin:/bin"
            port = servers.start(name, SetEnv=f"NODE={name} PATH={path}")
            config.write(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n")
        config.write(f"Host c\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    hosts = servers.place / "hosts"
    hosts.write_text("a\nb\nc\n")
    words = ("--ssh-config", str(servers.config))
    tested.find(a="fit", b="unfit")
    code, found = tested.verify(*words, on=f"ssh:{hosts}")
    assert code == 1
    assert standings(found) == {"b": "unfit", "c": "not-tested", "a": "fit"}
    assert codes(found)["c"] == "connection-refused"


def test_the_real_suite_in_a_real_image_by_podman_over_ssh(
    servers: SshServers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The image has no framework, which its suite finds and reports. A node that is asked by a
    command that is killed ends its container.
    """
    need.no_gpu()
    suite = [
        entry(
            f"opt/gpu-provision/lib/verify/{path.relative_to(ROOT / 'verify')}", path.read_bytes()
        )
        for path in (ROOT / "verify").rglob("*")
        if path.suffix in {".py", ".json"}
    ]
    image = debian_base({"Labels": LABELS, "Env": ["PATH=/usr/bin:/bin"]}, layer(*suite))
    place = tmp_path_factory.mktemp("podman")
    layout = f"oci:{place}/shared:suite"
    with podman_storage(place) as env:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            handle = Podman.connect(place).prepare(image, lambda _: None)
            push = ["podman", "push", "--quiet", handle.removeprefix("sha256:"), layout]
            subprocess.run(push, check=True, timeout=LIMIT_S)
        settings = " ".join(f"{name}={value}" for name, value in env.items())
        port = servers.start("a", SetEnv=f"{settings} PATH={os.environ['PATH']}")
        hosts = servers.place / "hosts"
        hosts.write_text(f"127.0.0.1:{port}\n")
        out = servers.place / "out"
        words = ["fleet", "verify", "--on", f"ssh:{hosts}", "--image", layout, "--output", str(out)]
        words += ["--ssh-config", str(servers.config), "--level", "quick", "--json"]
        done = run_program([sys.executable, "-m", "provision", *words], cwd=ROOT, timeout=LIMIT_S)
        found = json.loads(done.stdout)
        (node,) = found["nodes"]
        assert (done.returncode, node["standing"]) == (1, "unfit"), node
        assert (node["way"], node["code"]) == ("podman", None)
        assert "torch" in node["failed"][0]["message"]
        report = json.loads((out / "127.0.0.1.json").read_text())
        assert report["environment"]["image"] == found["image"]
        assert report["environment"]["container"]

        # a killed command leaves no container
        killed = subprocess.Popen(
            [sys.executable, "-m", "provision", *words, "--again"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + LIMIT_S
        while not _containers(env):
            assert time.monotonic() < deadline
            assert killed.poll() is None, "the suite ended before it was killed"
            time.sleep(0.05)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait(timeout=60)
        while _containers(env):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def _containers(env: dict[str, str]) -> list[str]:
    words = ["podman", "ps", "--all", "--quiet"]
    done = run_program(words, env={**os.environ, **env}, check=True)
    return done.stdout.split()
