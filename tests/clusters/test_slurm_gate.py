"""templates/slurm/gate.sh on a real cluster of three nodes: the sick one is drained, and named.

`provision gate` is the real command; a stand-in for the engine says what the suite finds on a node.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.clusters.slurm_cluster import SlurmCluster, slurm_cluster
from tests.kit.fake_engine import TAG
from tests.kit.programs import run_program

PROVISION = f"""#!{sys.executable}
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
node, place = os.environ["SLURMD_NODENAME"], Path(__file__).parent
os.environ["XDG_STATE_HOME"] = str(place / "states" / node)
from images.engines import docker
from provision import host
from provision.cli import main as cli
from tests.kit.fake_engine import FACTS, Engine, broken, report, says
said = (place / "says" / node).read_text()
engine = Engine(broken() if said == "broken" else says(report(said)))
docker.Docker.connect = lambda **_: engine
host.detect = lambda: FACTS
sys.exit(cli.main(sys.argv[1:]))
"""


class Gated:
    """A cluster whose nodes ask the gate."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster

    def find(self, node: str, said: str) -> None:
        """What the suite finds on a node from now on: a verdict, or "broken"."""
        (self.cluster.place / "says" / node).write_text(said)

    def job(self, nodes: int) -> list[str]:
        """The nodes that a job ran on; [] if it did not start."""
        words = ("srun", "--immediate=50", f"--nodes={nodes}", "--gpus-per-node=1", "printenv")
        return sorted(self.cluster.command(*words, "SLURMD_NODENAME").split())

    def reasons(self) -> str:
        return self.cluster.command("sinfo", "--noheader", "--list-reasons", "--format", "%200E %N")


@pytest.fixture
def gated() -> Iterator[Gated]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copy(ROOT / "templates" / "slurm" / "gate.sh", place / "script")
        script = place / "gate.sh"  # slurmd passes none of our variables on
        script.write_text(f"#!/bin/sh\nGATE_CONF={place}/gate.conf exec {place}/script\n")
        (place / "provision").write_text(PROVISION)
        for program in (script, place / "provision"):
            program.chmod(0o755)
        (place / "gate.conf").write_text(
            f"IMAGE={TAG}\nPROVISION={place}/provision\nexport SLURM_CONF={place}/slurm.conf\n"
        )
        (place / "says").mkdir()
        settings = (
            f"Prolog={script}",
            "PrologFlags=Alloc",
            f"HealthCheckProgram={script}",
            "HealthCheckInterval=10",
        )
        for node in ("n0", "n1", "n2"):
            (place / "says" / node).write_text("fit")
        with slurm_cluster(place, settings=settings) as cluster:
            yield Gated(cluster)


def test_a_sick_node_is_drained_and_named_until_it_is_repaired(gated: Gated) -> None:
    cluster = gated.cluster
    gated.find("n1", "unfit")
    gated.find("n2", "broken")
    assert gated.job(3) == []
    cluster.wait(lambda: cluster.states()["n1"].startswith("drain"), "n1 is not drained")
    # the health check may have drained it once more, by the record of that test
    assert re.search("closed: unfit at level quick, tested .*: devices.kernel", gated.reasons())
    cluster.wait(
        lambda: [cluster.states()[node] for node in ("n0", "n2")] == ["idle", "idle"],
        "the others are not idle",
    )
    cluster.wait(lambda: gated.job(2) == ["n0", "n2"], "what cannot be decided keeps a job away")

    cluster.command("scontrol", "update", "nodename=n1", "state=resume")
    cluster.wait(
        lambda: cluster.states()["n1"].startswith("drain"), "the health check drains it again"
    )

    gated.find("n1", "fit")
    done = run_program(
        [cluster.place / "provision", "gate", "--again", TAG],
        env={**cluster.env, "SLURMD_NODENAME": "n1"},
    )
    assert done.stdout.startswith("open: fit"), done.stderr

    def all_run_a_job() -> bool:
        # a health check that began before the repair may drain the node once more
        cluster.command("scontrol", "update", "nodename=n1", "state=resume")
        return gated.job(3) == ["n0", "n1", "n2"]

    cluster.wait(all_run_a_job, "n1 runs no job")
