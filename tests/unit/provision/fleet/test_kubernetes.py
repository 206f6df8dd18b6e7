"""How the nodes of a Kubernetes cluster are listed, and what becomes of a pod. The statuses are
written from the documentation and source of Kubernetes and containerd, not recorded on a cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.system.process import Completed, ToolMissing
from provision.errors import BadInputError
from provision.fleet.nodes.kubernetes import (
    KubernetesError,
    KubernetesNode,
    PodOptions,
    explain_kubernetes,
    kubectl_words,
    kubernetes_calls,
    list_nodes,
    parse_nodes,
)
from provision.fleet.nodes.kubernetes_call import (
    PodEnd,
    arguments,
    judge_late,
    judge_pod,
    waits_for,
)
from tests.kit.cases import cases
from tests.kit.programs import run_program


@given(st.text(alphabet=st.sampled_from("$()AB {}é\n"), max_size=200))
def test_a_program_gets_to_the_pod_as_it_is(program: str) -> None:
    """What Kubernetes does to a word: $$ is $, and a name that it does not know stays."""
    words = arguments(program)
    assert "".join(word.replace("$$", "$") for word in words[words.index("-c") + 2 :]) == program
    assert not any("$(" in word.replace("$$", "") for word in words)


def test_a_long_program_runs_and_no_word_is_longer_than_linux_allows() -> None:
    program = f"x = '{'$é' * 200_000}'\nprint(len(x), __name__)\n"
    words = arguments(program)
    assert max(len(word.encode()) for word in words) < 128 << 10
    words = [sys.executable, *(word.replace("$$", "$") for word in words[1:])]
    done = run_program(words, check=True)
    assert done.stdout == "400000 __main__\n"


def container(kind: str, **state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {kind: state}}]}


@cases(
    "status kind",
    ("new", {}, None),
    ("waits", {"phase": "Pending"}, None),
    ("starts", container("waiting", reason="ContainerCreating"), None),
    ("the first pull failed", container("waiting", reason="ErrImagePull"), None),
    ("the second", container("waiting", reason="ImagePullBackOff"), "image"),
    ("never pulls", container("waiting", reason="ErrImageNeverPull"), "image"),
    ("no image name", container("waiting", reason="InvalidImageName"), "image"),
    ("it cannot be made", container("waiting", reason="CreateContainerError", message="no runtime"),
     "failed"),
    ("no Python (Docker)",
     container("waiting", reason="RunContainerError",
               message='exec: "python3": executable file not found in $PATH'), "python"),
    ("no Python (containerd)",
     container("terminated", reason="StartError", exitCode=128,
               message='exec: "python3": executable file not found in $PATH: unknown'), "python"),
    ("out of memory", container("terminated", reason="OOMKilled", exitCode=137), "memory"),
    ("it ended", container("terminated", reason="Completed", exitCode=0), "ended"),
    ("it failed", container("terminated", reason="Error", exitCode=3), "ended"),
    ("its deadline",
     {**container("terminated", reason="Error", exitCode=137), "phase": "Failed",
      "reason": "DeadlineExceeded"}, "time"),
    ("evicted while it ran",
     {**container("terminated", reason="Error", exitCode=137), "phase": "Failed",
      "reason": "Evicted"}, "lost"),
    ("evicted before", {"phase": "Failed", "reason": "Evicted"}, "lost"),
    ("node shut down", {"phase": "Failed", "reason": "NodeShutdown"}, "lost"),
    ("others were faster", {"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, "busy"),
    ("no devices", {"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "busy"),
    ("another failure", {"phase": "Failed", "reason": "NodeAffinity"}, "failed"),
    ("no reason", {"phase": "Failed"}, "failed"),
)  # fmt: skip
def test_what_becomes_of_a_pod(status: dict[str, Any], kind: str | None) -> None:
    found = judge_pod({"metadata": {"name": "x"}, "status": status})
    assert (found.kind if found else None) == kind


def test_a_pod_that_is_deleted_says_who_disrupts_it() -> None:
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempting to accommodate a higher priority pod",
    }
    pod = {"metadata": {"deletionTimestamp": "now"}, "status": {"conditions": [disrupted]}}
    found = judge_pod(pod)
    assert found is not None
    assert found.kind == "lost"
    assert "PreemptionByScheduler" in found.message
    assert judge_pod({**pod, "status": container("terminated", exitCode=0)}) == PodEnd("ended", "")


def test_what_a_pod_waits_for() -> None:
    full = {"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}
    assert waits_for({"status": {"conditions": [full]}}) == ("Insufficient nvidia.com/gpu", True)
    pull = container("waiting", reason="ErrImagePull", message="not found")
    assert waits_for({"status": pull}) == ("ErrImagePull: not found", False)
    assert waits_for({"status": {"phase": "Running"}}) == ("Running", False)
    assert waits_for({}) == ("no status", False)
    assert judge_late({"status": {"conditions": [full]}}).kind == "busy"
    assert judge_late({"status": pull}).message.endswith(
        "did not end in time: ErrImagePull: not found"
    )
    assert {judge_late({"status": pull}).kind, judge_late({}).kind} == {"time"}


def item(name: str = "n1", **more: Any) -> dict[str, Any]:
    """A node of the API, in order; `more` changes its parts."""
    return {
        "metadata": {"name": name, **more.get("metadata", {})},
        "spec": more.get("spec", {}),
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "DiskPressure", "status": "False"},
            ],
            "allocatable": {"nvidia.com/gpu": "4", "cpu": "8"},
            **more.get("status", {}),
        },
    }


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        pytest.param({}, "", id="in order"),
        pytest.param({"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}, "",
                     id="a taint that keeps others away"),
        pytest.param({"spec": {"unschedulable": True}}, "it is cordoned", id="cordoned"),
        pytest.param(
            {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
            "it is about to be removed (karpenter.sh/disrupted)",
            id="going",
        ),
        pytest.param({"metadata": {"deletionTimestamp": "now"}}, "it is being deleted",
                     id="deleted"),
        pytest.param({"status": {"conditions": []}}, "it is not ready", id="no conditions"),
        pytest.param(
            {
                "status": {
                    "conditions": [{"type": "Ready", "status": "False", "message": "PLEG is bad."}]
                }
            },
            "it is not ready: PLEG is bad",
            id="not ready",
        ),
        pytest.param(
            {
                "status": {
                    "conditions": [
                        {"type": "Ready", "status": "True"},
                        {"type": "DiskPressure", "status": "True", "reason": "KubeletHasPressure"},
                    ]
                }
            },
            "DiskPressure: KubeletHasPressure",
            id="pressure",
        ),
    ],
)  # fmt: skip
def test_why_nothing_is_run_on_a_node(changes: dict[str, Any], trouble: str) -> None:
    (found,) = parse_nodes([item(**changes)])
    assert found.trouble == trouble
    (call,) = kubernetes_calls(("kubectl",), [found], PodOptions("x", None, 60))
    assert (call.refused is not None) == bool(trouble)
    assert bool(call.argv) != bool(trouble)
    assert bool(call.cleanup) != bool(trouble)


@cases(
    "allocatable labels gpus hidden",
    ("GPUs", {"nvidia.com/gpu": "8"}, {}, (("nvidia.com/gpu", 8),), False),
    ("MIG devices", {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu": "0"},
     {"nvidia.com/gpu.present": "true"}, (("nvidia.com/mig-1g.10gb", 7),), False),
    ("GPUs for machines", {"nvidia.com/GA102GL_A10": "1"}, {}, (), False),
    ("GPUs of others", {"amd.com/gpu": "1"}, {}, (), False),
    ("no device plugin", {}, {"nvidia.com/gpu.present": "true"}, (), True),
    ("all unhealthy", {"nvidia.com/gpu": "0"},
     {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, (), True),
)  # fmt: skip
def test_the_gpus_of_a_node(
    allocatable: dict[str, str],
    labels: dict[str, str],
    gpus: tuple[tuple[str, int], ...],
    hidden: bool,  # noqa: FBT001
) -> None:
    (found,) = parse_nodes([item(metadata={"labels": labels}, status={"allocatable": allocatable})])
    assert (found.gpus, found.hidden) == (gpus, hidden)
    (plain,) = kubernetes_calls(("kubectl",), [found], PodOptions("x", None, 60))
    assert (plain.refused is not None) == hidden
    (seen,) = kubernetes_calls(("kubectl",), [found], PodOptions("x", "nvidia", 60))
    assert seen.refused is None


def test_only_linux_and_names_that_are_names() -> None:
    windows = item("w", status={"nodeInfo": {"operatingSystem": "windows"}})
    assert [one.name for one in parse_nodes([item("a.b-1"), windows, item("../x")])] == ["a.b-1"]


def fake_kubectl(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@cases(
    "where words",
    ("the current one", "", ()),
    ("a context", "a", ("--context=a",)),
    ("and a namespace", "a/ns", ("--context=a", "--namespace=ns")),
    ("a namespace only", "/ns", ("--namespace=ns",)),
    ("a name with a slash", "arn:x/y", ("--context=arn:x/y",)),
    ("and a namespace, too", "arn:x/y/ns", ("--context=arn:x/y", "--namespace=ns")),
)
def test_a_context_and_a_namespace(
    where: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kubectl(tmp_path / "bin", "printf 'a\\narn:x/y\\n'", monkeypatch)
    assert kubectl_words(where) == ("kubectl", *words)


@pytest.mark.parametrize("where", ["b", "b/ns", "a/-x", "a/N S", "--as=root"])
def test_a_context_that_is_none_is_refused(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kubectl(tmp_path / "bin", "printf 'a\\n'", monkeypatch)
    with pytest.raises(BadInputError) as raised:
        kubectl_words(where)
    assert raised.value.fix


@cases(
    "script words",
    ("it fails", "echo 'error: no rights' >&2; exit 1", "no rights"),
    ("no JSON", "echo nonsense", "damaged"),
    ("another JSON", "echo '[]'", "damaged"),
    ("a node without a name", "echo '{\"items\": [{}]}'", "damaged"),
)
def test_a_list_that_is_none(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kubectl(tmp_path / "bin", script, monkeypatch)
    with pytest.raises(KubernetesError) as raised:
        list_nodes(("kubectl",))
    assert words in str(raised.value)


def test_kubectl_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing):
        kubectl_words("")


@pytest.mark.parametrize(
    ("code", "err", "expected"),
    [
        (255, "gpu-provision: image: ImagePullBackOff: x", "no-image-on-node"),
        (255, "gpu-provision: python: x", "no-python"),
        (255, "gpu-provision: busy: x", "node-busy"),
        (255, "gpu-provision: lost: Evicted: x", "node-lost"),
        (255, "gpu-provision: memory: OOMKilled", "node-out-of-memory"),
        (255, "gpu-provision: time: x", "node-timeout"),
        (255, "gpu-provision: refused: Forbidden", "pod-refused"),
        (255, "gpu-provision: failed: x", "node-failed"),
        (1, "Traceback\nSyntaxError: x", "node-failed"),
        (-9, "", "node-failed"),
    ],
)
def test_what_a_call_says(code: int, err: str, expected: str) -> None:
    done = Completed(argv=("x",), code=code, output=err, stdout="", seconds=0.1)
    found = explain_kubernetes("n1", "image", done)
    assert found.code == expected
    assert found.message.startswith("n1: ")
    assert found.fix


def test_each_call_has_a_pod_of_its_own_that_its_cleanup_deletes() -> None:
    nodes = [KubernetesNode(f"n{number}", (), hidden=False, trouble="") for number in range(3)]
    calls = kubernetes_calls(("kubectl", "--context=a"), nodes, PodOptions("x", None, 60))
    pods = {call.cleanup[call.cleanup.index("pod") + 1] for call in calls}
    assert len(pods) == 3
    assert all(call.cleanup[:2] == ("kubectl", "--context=a") for call in calls)
