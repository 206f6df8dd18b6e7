"""`provision fleet detect --on kubernetes` with the real kubectl and a stand-in for the cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.model.facts import parse_host
from tests import ROOT, need
from tests.clusters.kubernetes_api import KubernetesApi, kubernetes_api, node
from tests.clusters.test_kubernetes_templates import validated

LIMIT_S = 240


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    need.program("kubectl", "kubernetes-client")
    with kubernetes_api() as found:
        found.kubeconfig(tmp_path / "config", "first", "arn:aws:eks:x:1:cluster/two")
        yield found


def start(tmp_path: Path, *more: str, on: str = "kubernetes") -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "provision", "fleet", "detect", "--json", "--on", on]
    words += ["--output", str(tmp_path / "hosts"), "--image", "python:3.12-slim", *more]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "config")},
    )


def answer_of(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = run.communicate(timeout=LIMIT_S)
    assert "Traceback" not in err, err
    found: dict[str, Any] = json.loads(out)
    return found


def nodes_of(run: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    answer = answer_of(run)
    assert answer["error"] is None, answer["error"]
    return {one["name"]: one for one in answer["nodes"]}


def wait(ready: Callable[[], object], problem: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)


def test_every_kind_of_trouble_is_named_and_the_good_nodes_are_read(
    api: KubernetesApi, tmp_path: Path
) -> None:
    taint = [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"}]
    going = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
    api.nodes = [
        node("good", gpus=8, taints=taint),
        node("cpu"),
        node("no-image"),
        node("no-python"),
        node("oom"),
        node("evicted"),
        node("deleted"),
        node("forbidden"),
        node("not-ready", ready="Unknown"),
        node("cordoned", unschedulable=True),
        node("going", taints=going),
        node("hidden"),
        node("windows"),
    ]
    by_name = {one["metadata"]["name"]: one for one in api.nodes}
    by_name["hidden"]["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    by_name["windows"]["status"]["nodeInfo"]["operatingSystem"] = "windows"
    # they end by themselves, however long that takes
    two = "kubernetes:arn:aws:eks:x:1:cluster/two/tests"
    run = start(tmp_path, "--timeout", "200", on=two)
    nodes = nodes_of(run)
    assert run.returncode == 5
    assert {name: one["code"] for name, one in nodes.items()} == {
        "good": None, "cpu": None, "no-image": "no-image-on-node", "no-python": "no-python",
        "oom": "node-out-of-memory", "evicted": "node-lost", "deleted": "node-lost",
        "forbidden": "pod-refused", "not-ready": "node-out-of-service",
        "cordoned": "node-out-of-service", "going": "node-out-of-service",
        "hidden": "node-gpus-hidden",
    }, nodes  # fmt: skip
    for name, one in nodes.items():
        path = tmp_path / "hosts" / f"{name}.json"
        assert path.exists() == (one["status"] == "read")
        assert one["code"] is None or (name in one["message"] and one["fix"])
        if path.exists():
            assert parse_host(path.read_text(), label=name).arch == os.uname().machine
    assert "cannot create resource" in nodes["forbidden"]["message"]
    assert api.namespaces == {"tests"}
    assert api.pods == {}  # all were deleted
    assert set(api.made) == set(nodes) - {"not-ready", "cordoned", "going", "hidden"}
    limits = {name: pod["spec"]["containers"][0]["resources"] for name, pod in api.made.items()}
    assert limits["good"]["limits"]["nvidia.com/gpu"] == "8"
    assert "nvidia.com/gpu" not in limits["cpu"]["limits"]

    # those that have answered are not asked again; others end at the time limit
    api.nodes = [by_name["good"], by_name["cpu"], node("busy", gpus=1), node("hangs")]
    again = nodes_of(start(tmp_path, "--timeout", "12", on="kubernetes:first/tests"))
    assert {name for name, one in again.items() if one["status"] == "kept"} == {"good", "cpu"}
    assert (again["busy"]["code"], again["hangs"]["code"]) == ("node-busy", "node-timeout")
    assert "Running" in again["hangs"]["message"]
    assert "Insufficient nvidia.com/gpu" in again["busy"]["message"]
    assert api.pods == {}


def test_the_pods_are_valid_for_old_and_new_releases(api: KubernetesApi, tmp_path: Path) -> None:
    api.nodes = [node("plain", gpus=2)]
    assert nodes_of(start(tmp_path))["plain"]["status"] == "read"
    pods = [api.made["plain"]]
    run = start(tmp_path, "--again", "--runtime-class", "nvidia")
    assert nodes_of(run)["plain"]["status"] == "read"
    pods.append(api.made["plain"])
    assert pods[1]["spec"]["runtimeClassName"] == "nvidia"
    (container,) = pods[1]["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    paths = []
    for number, pod in enumerate(pods):
        shown = {name: pod[name] for name in ("apiVersion", "kind", "spec")}
        shown["metadata"] = {name: pod["metadata"][name] for name in ("name", "labels")}
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(yaml.safe_dump(shown))
    for release in ("1.25.0", "1.37.0"):
        done = validated(release, *paths)
        assert done.returncode == 0, done.stdout + done.stderr
    paths[0].write_text(paths[0].read_text().replace("runAsNonRoot", "runAsNonroot"))
    assert validated("1.37.0", paths[0]).returncode == 1


@pytest.mark.parametrize("ended", ["Ctrl-C", "the time limit"])
def test_a_pod_that_hangs_is_deleted(api: KubernetesApi, tmp_path: Path, ended: str) -> None:
    api.nodes = [node("hangs"), node("good")]
    run = start(tmp_path, "--timeout", "300" if ended == "Ctrl-C" else "8")
    wait(lambda: "hangs" in api.made, "no pod was made")
    if ended == "Ctrl-C":
        wait((tmp_path / "hosts" / "good.json").exists, "the good node was not read")
        run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == (130 if ended == "Ctrl-C" else 5)
    assert "Traceback" not in err
    assert api.pods == {}


def test_a_cluster_that_does_not_answer_and_an_unknown_context_are_refused(
    api: KubernetesApi, tmp_path: Path
) -> None:
    for on, exit_code, code in (
        ("kubernetes:third", 2, "bad-input"),
        ("kubernetes:first/No Namespace", 2, "bad-input"),
        ("kubernetes", 2, "bad-input"),  # it has no nodes
        ("kubernetes", 5, "kubernetes-unreachable"),
    ):
        if exit_code == 5:
            api.stop()
        run = start(tmp_path, on=on)
        error = answer_of(run)["error"]
        assert (run.returncode, error["code"]) == (exit_code, code), error
        assert error["fix"]
