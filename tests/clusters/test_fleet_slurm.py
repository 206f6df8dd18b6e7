"""`provision fleet detect --on slurm` on a real cluster of three nodes, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.model.facts import parse_host
from tests import ROOT
from tests.clusters.slurm_cluster import SlurmCluster, slurm_cluster
from tests.kit.programs import run_program

LIMIT_S = 300


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    # not pytest's own folder, which only root may enter: munge runs as another user
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        Path(name).chmod(0o755)
        with slurm_cluster(Path(name)) as found:
            yield found


def detect(
    cluster: SlurmCluster, *more: str, on: str = "slurm"
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and each node by its name."""
    words = [sys.executable, "-m", "provision", "fleet", "detect", "--on", on, "--json", "--output"]
    done = run_program(
        [*words, str(cluster.place / "hosts"), *more], cwd=ROOT, env=cluster.env, timeout=LIMIT_S
    )
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    assert answer["error"] is None, answer["error"]
    return done.returncode, {one["name"]: one for one in answer["nodes"]}


def codes(nodes: dict[str, dict[str, Any]]) -> dict[str, str | None]:
    return {name: one["code"] for name, one in nodes.items()}


def test_a_dead_and_a_drained_node_are_named_and_the_others_read(cluster: SlurmCluster) -> None:
    code, nodes = detect(cluster, on="slurm:gpu")
    assert code == 0
    assert codes(nodes) == {"n0": None, "n1": None, "n2": None}
    for name in nodes:
        path = cluster.place / "hosts" / f"{name}.json"
        assert parse_host(path.read_text(), label=name).python
        path.unlink()
    cluster.command("scontrol", "update", "nodename=n2", "state=drain", "reason=bad memory | row 3")
    cluster.kill("n1")
    code, nodes = detect(cluster, "--timeout", "40")
    assert code == 5
    assert codes(nodes) == {"n0": None, "n1": "node-silent", "n2": "node-out-of-service"}
    assert "drained: bad memory | row 3" in nodes["n2"]["message"]
    assert [path.name for path in (cluster.place / "hosts").iterdir()] == ["n0.json"]
    cluster.command("scontrol", "update", "nodename=n1", "state=down", "reason=it died")
    cluster.command("scontrol", "update", "nodename=n2", "state=resume")
    cluster.wait(lambda: cluster.states()["n2"] == "idle", "n2 is not back")
    code, nodes = detect(cluster, "--timeout", "40")
    assert nodes["n0"]["status"] == "kept"
    assert nodes["n2"]["status"] == "read"
    assert nodes["n1"]["code"] == "node-out-of-service"
    assert "it died" in nodes["n1"]["message"]


def test_a_node_gets_none_of_the_callers_secrets(cluster: SlurmCluster) -> None:
    """The caller's python3, as from an environment module, is used: PATH is passed."""
    seen = cluster.place / "seen"
    seen.mkdir()
    program = cluster.place / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nenv >{seen}/$SLURMD_NODENAME\nexec {sys.executable} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    path = f"{program.parent}:{cluster.env['PATH']}"
    secret = {
        "HF_TOKEN": "canary-1",
        "AWS_SECRET_ACCESS_KEY": "canary-2",
        "MYAPP_LOGIN": "canary-3",
    }
    theirs = {"PYTHONPATH": str(cluster.place), "SLURM_EXPORT_ENV": "ALL"}
    cluster.env |= {**secret, **theirs, "PATH": path}
    code, nodes = detect(cluster)
    assert (code, set(codes(nodes).values())) == (0, {None})
    assert sorted(file.name for file in seen.iterdir()) == ["n0", "n1", "n2"]
    for file in seen.iterdir():
        found = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
        assert "canary" not in file.read_text()
        assert "PYTHONPATH" not in found
        assert found["PATH"] == path
        assert found["HOME"] == cluster.env["HOME"]


def test_a_node_that_hangs_or_is_busy_holds_up_nothing(cluster: SlurmCluster) -> None:
    job = ["srun", "--nodelist=n0", "--gres=gpu:1", "--job-name=other", "sleep", "3000"]
    with subprocess.Popen(job, env=cluster.env, stderr=subprocess.DEVNULL) as other:
        cluster.wait(lambda: cluster.states()["n0"] in {"mixed", "allocated"}, "no job on n0")
        cluster.freeze("n1")
        code, nodes = detect(cluster, "--timeout", "8")
        if (nodes["n0"]["code"], nodes["n2"]["code"]) != ("node-busy", None):  # a slow machine
            code, nodes = detect(cluster, "--timeout", "100")
        assert code == 5
        assert codes(nodes)["n0"] == "node-busy"
        assert codes(nodes)["n1"] in {"node-timeout", "node-silent"}
        assert codes(nodes)["n2"] is None
        assert other.poll() is None  # jobs of others are left alone
        left = cluster.command("squeue", "--noheader", "--format=%j %T").splitlines()
        ours = [line for line in left if "gpu-provision" in line]
        assert all(line.endswith("COMPLETING") for line in ours)
        other.terminate()


def test_a_partition_without_nodes_and_a_controller_that_is_down_are_refused(
    cluster: SlurmCluster,
) -> None:
    words = [sys.executable, "-m", "provision", "fleet", "detect", "--json", "--output"]
    for on, exit_code, code in (
        ("slurm:nosuch", 2, "bad-input"),
        ("slurm", 5, "slurm-unreachable"),
    ):
        if on == "slurm":
            cluster.kill("slurmctld")
        done = run_program(
            [*words, str(cluster.place / "hosts"), "--on", on],
            cwd=ROOT,
            env=cluster.env,
            timeout=LIMIT_S,
        )
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["error"]["code"]) == (exit_code, code)
        assert answer["error"]["fix"]
