"""`provision fleet detect --on ray` on a real cluster of four nodes, as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.model.facts import parse_host
from tests import ROOT, need
from tests.clusters.ray_nodes import RayNodes, ray_nodes, wait
from tests.clusters.ssh_servers import free_port

LIMIT_S = 240

# nvidia-smi, which the program runs on the node: it says that it was started, by whom, and hangs
HANGS = "#!/bin/sh\necho $PPID > {asked}.new\nmv {asked}.new {asked}\nexec /bin/sleep 120\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    need.no_gpu()
    with ray_nodes() as found:
        found.start("n0")
        for program in Path("/usr/bin").iterdir():  # Ray itself needs some of them
            if not program.name.startswith("python"):
                (found.bin("n1") / program.name).symlink_to(program)
        found.start("n1", path=str(found.bin("n1")))
        found.start("n2")
        found.start("n3")
        # not before: Ray's start waits for it, too
        for name in ("n2", "n3"):
            program = found.bin(name) / "nvidia-smi"
            program.write_text(HANGS.format(asked=found.place / f"asked-{name}"))
            program.chmod(0o755)
        yield found


def start(cluster: RayNodes, *more: str, on: str | None = None) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "provision", "fleet", "detect", "--json", "--output"]
    words += [str(cluster.place / "hosts"), "--on", on or f"ray:127.0.0.1:{cluster.port}", *more]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=cluster.env
    )


def answer_of(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = run.communicate(timeout=LIMIT_S)
    assert "Traceback" not in err
    answer: dict[str, Any] = json.loads(out)
    return answer


def nodes_of(run: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    answer = answer_of(run)
    assert answer["error"] is None, answer["error"]
    return {one["name"]: one for one in answer["nodes"]}


def asked(cluster: RayNodes, name: str) -> int:
    """The process that runs our program on a node, when it has started."""
    path = cluster.place / f"asked-{name}"
    wait(path.exists, f"{name} was not asked")
    found = int(path.read_text())
    path.unlink()
    return found


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def drivers(cluster: RayNodes) -> list[str]:
    """The folders of drivers, which are removed at the end of a run."""
    del cluster
    return [one.name for one in Path("/tmp").glob("provision-ray-*")]


def test_a_node_that_dies_and_one_that_hangs_are_named_and_the_others_read(
    cluster: RayNodes,
) -> None:
    run = start(cluster, "--timeout", "9")
    program = asked(cluster, "n2")
    asked(cluster, "n3")
    cluster.kill("n3")
    nodes = nodes_of(run)
    assert run.returncode == 5
    assert (nodes["n2"]["code"], nodes["n3"]["code"]) == ("node-timeout", "node-lost"), nodes
    assert all(one["fix"] for one in nodes.values() if one["code"])
    wait(lambda: is_gone(program), "the program on n2 was not ended")

    # asked again: only those without a file; now through Ray's client, as from elsewhere
    def states() -> bool:
        again = start(cluster, "--timeout", "9", on=f"ray:ray://127.0.0.1:{cluster.client_port}")
        answer = answer_of(again)
        if answer["error"] is not None:  # where the machine is busy, Ray's client may not start
            assert answer["error"]["code"] == "ray-unreachable", answer["error"]
            return False
        nodes.update({one["name"]: one for one in answer["nodes"]})
        # n0 and n1 may need a second run where the machine is busy
        read = {nodes[name]["status"] for name in ("n0", "n1")} == {"kept"}
        return read and bool(nodes["n3"]["code"] == "node-out-of-service")

    wait(states, f"n0 and n1 are not read, or n3 is not listed as dead: {nodes}")
    for name in ("n0", "n1"):  # n1 without python3 on its PATH: Ray's own is used
        facts = parse_host((cluster.place / "hosts" / f"{name}.json").read_text(), label=name)
        assert facts.arch == os.uname().machine
    assert sorted(os.listdir(cluster.place / "hosts")) == ["n0.json", "n1.json"]  # noqa: PTH208
    assert nodes["n2"]["code"] == "node-timeout"
    assert "dead" in nodes["n3"]["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
def test_a_run_that_is_ended_leaves_no_program_on_a_node(
    cluster: RayNodes, number: signal.Signals
) -> None:
    (cluster.place / "asked-n2").unlink(missing_ok=True)
    before = drivers(cluster)
    run = start(cluster, "--again", "--timeout", "300")
    program = asked(cluster, "n2")
    wait((cluster.place / "hosts" / "n0.json").exists, "n0 was not read")
    run.send_signal(number)
    _, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    wait(lambda: is_gone(program), "the program on n2 still runs")
    if number == signal.SIGINT:
        assert not set(drivers(cluster)) - set(before)


@pytest.mark.parametrize("client", [False, True], ids=["its own port", "the client's port"])
def test_a_cluster_that_does_not_answer_is_named_soon(cluster: RayNodes, client: bool) -> None:  # noqa: FBT001
    address = f"{'ray://' if client else ''}127.0.0.1:{free_port()}"
    run = start(cluster, on=f"ray:{address}")
    out, err = run.communicate(timeout=LIMIT_S)
    answer = json.loads(out)
    assert (run.returncode, answer["error"]["code"]) == (5, "ray-unreachable")
    assert "refused" in answer["error"]["message"]
    assert "Traceback" not in err
