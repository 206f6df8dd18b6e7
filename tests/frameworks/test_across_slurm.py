"""Real PyTorch over gloo on a real Slurm cluster of three nodes, one of them at fault.

A stand-in for docker runs the suite of this checkout with PyTorch instead of an image.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision.fleet.across.groups import AcrossOrder, RoundRun
from provision.fleet.across.result import verify_across
from provision.fleet.nodes.slurm import SlurmJob, list_nodes, slurm_calls
from tests.clusters.slurm_cluster import SlurmCluster, slurm_cluster
from tests.clusters.test_fleet_verify import Place
from tests.frameworks.place import ROOT, python_of
from tests.frameworks.test_across import FAULTS

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(200)]

DOCKER = """#!/bin/sh
case "$1" in version | rm) exit 0 ;; esac
while [ "$1" != across ]; do shift; done
cd {root} && exec {python} {place}/start.py "$@"
"""
PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
path = {place!r} + "/fault-" + os.environ["SLURMD_NODENAME"]
fault = open(path).read() if os.path.exists(path) else ""
import signal, time
import torch
from verify.across import work
from verify.checks.collectives import ranks
from verify.commands.main import main
true = work.contribution
exec(fault)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    # not pytest's own folder, which only root may enter: munge runs as another user
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        place = Path(name)
        place.chmod(0o755)
        with slurm_cluster(place) as found:
            monkeypatch.setenv("SLURM_CONF", found.env["SLURM_CONF"])
            monkeypatch.setenv("PATH", f"{place / 'bin'}:{found.env['PATH']}")
            yield found


def write_docker(place: Path) -> None:
    """The stand-in, in the folder that is first on the nodes' PATH."""
    (place / "start.py").write_text(PROGRAM.format(root=str(ROOT), place=str(place)))
    docker = place / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    python = shlex.quote(str(python_of("pytorch")))
    docker.write_text(DOCKER.format(root=shlex.quote(str(ROOT)), python=python, place=place))
    docker.chmod(0o755)


def test_a_node_that_spoils_all_sums_is_found_by_pairs(cluster: SlurmCluster) -> None:
    write_docker(cluster.place)
    (cluster.place / "fault-n1").write_text(FAULTS["adds 1 to every sum"])
    order = AcrossOrder(
        image="any", master="127.0.0.1", sizes="4K", join_s=40, timeout_s=40, wait_s=20
    )
    job = SlurmJob(wait_s=20, run_s=order.limit_s, whole=True)
    rounds: list[RoundRun] = []
    found = verify_across(slurm_calls(list_nodes(None), job), order, rounds.append)
    assert [run.code for run in rounds[0].groups] == ["across-wrong-result"]
    assert (found["sick"], found["links"], found["suspects"]) == (["n1"], [], [])
    assert (found["complete"], found["status"], found["exit_code"]) == (True, "fail", 1)
    assert found["report"]["nodes"][1]["number"] == 1, "of the two that work"
    assert "over gloo; NCCL not tested" in found["report"]["message"]
    assert len(found["rounds"]) <= 6
    cluster.wait(lambda: not cluster.command("squeue", "--noheader").strip(), "a job is left")

    # a node dies before its job starts: it is a result, and the others are tested
    (cluster.place / "fault-n1").unlink()
    short = replace(order, join_s=12, wait_s=10)
    calls = slurm_calls(list_nodes(None), job._replace(wait_s=10))
    cluster.kill("n2")
    rounds.clear()
    found = verify_across(calls, short, rounds.append)
    assert [one["node"] for one in found["named"]] == ["n2"]
    assert (found["sick"], found["suspects"], found["complete"]) == ([], [], True)
    assert [len(run.nodes) for one in rounds for run in one.groups] == [3, 2]
    assert found["rounds"][1]["groups"][0]["ok"]


def test_the_command_tests_together_what_the_suite_found_fit(cluster: SlurmCluster) -> None:
    tested = Place(cluster.place, cluster.env)
    write_docker(cluster.place)
    tested.find(n0="fit", n1="unfit", n2="fit")
    words = ("--across", "--master-address", "127.0.0.1", "--sizes", "4K")
    code, found = tested.verify(*words)
    assert code == 1, "n1 is unfit"
    across = found["across"]
    assert (across["status"], across["backend"], across["exit_code"]) == ("pass", "gloo", 7)
    assert [one["nodes"] for one in across["rounds"][0]["groups"]] == [["n0", "n2"]]
    assert across["rounds"][0]["groups"][0]["gbs"] > 0
