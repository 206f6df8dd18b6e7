"""Nodes of a Kubernetes cluster: lists them with kubectl, runs the program in a pod on each.

The pod gets to its node as those of a DaemonSet do, through the scheduler, so that the GPUs are
counted. https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/ and
https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from images.system import process
from images.system.process import Completed, describe_exit
from images.text.printable import printable
from provision.errors import BadInputError, Exit, IndexUnreachableError
from provision.fleet.nodes.calls import NodeCall, NodeFailure, last_line
from provision.fleet.nodes.kubernetes_call import FAILED, MARK, PodOrder, delete_words
from provision.fleet.nodes.program import PYTHON_FIX
from provision.model.request import quoted

LABEL = "app.kubernetes.io/managed-by"
OURS = "gpu-provision"
_LIST_S = 60
_SPARE_S = 60
_MEMORY = "256Mi"
_NOBODY = 65534
_SHM = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108  in the pod
_SHM_VOLUME = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
_GPU = re.compile(r"nvidia\.com/(?:gpu|mig-[a-z0-9.+-]+)", re.ASCII)
_HAS_GPU = re.compile(
    r"nvidia\.com/gpu\.present|feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]+_)?10de\.present"
)
"""The labels of GPU Feature Discovery and Node Feature Discovery."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}", re.ASCII)
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
# The autoscalers mark a node that they are about to remove.
_LEAVING = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "node.kubernetes.io/out-of-service",
    }
)


class KubernetesError(IndexUnreachableError):
    """The API server does not answer kubectl, or refuses."""

    code = "kubernetes-unreachable"
    exit_code = Exit.UNREACHABLE


class KubernetesNode(NamedTuple):
    """One Linux node. `gpus`: allocatable devices by the name of their resource; `hidden`: it has
    GPUs by its labels, but offers none to pods; `trouble`: why nothing should be run there, or "".
    """

    name: str
    gpus: tuple[tuple[str, int], ...]
    hidden: bool
    trouble: str


class PodOptions(NamedTuple):
    """What the pods are made of. `runtime_class` None: all GPUs of a node are requested. `wait_s`:
    how long a pod may wait for a place on its node; None: half of its time. `suite`: it runs the
    suite, with shared memory and without a limit for memory and CPUs.
    """

    image: str
    runtime_class: str | None
    timeout_s: float
    wait_s: float | None = None
    suite: bool = False


def kubectl_words(where: str) -> tuple[str, ...]:
    """kubectl with the context and the namespace of "kubernetes[:CONTEXT[/NAMESPACE]]". The names
    of contexts may have slashes. BadInputError: there is no such context. ToolMissing: no kubectl.
    """
    known = _run("config", "get-contexts", "--output=name").stdout.split()
    context, namespace = where, ""
    if where not in known:
        context, _, namespace = where.rpartition("/") if "/" in where else (where, "", "")
    if context and context not in known:
        raise BadInputError(
            f"--on kubernetes:{quoted(where)}: kubectl has no context {quoted(context)}.",
            fix="See them: kubectl config get-contexts",
        )
    if namespace and not _NAME.fullmatch(namespace):
        raise BadInputError(
            f"--on kubernetes:{quoted(where)}: {quoted(namespace)} is not a namespace.",
            fix="See them: kubectl get namespaces",
        )
    return (
        "kubectl",
        *((f"--context={context}",) if context else ()),
        *((f"--namespace={namespace}",) if namespace else ()),
    )


def _run(*words: str) -> Completed:
    return process.run(
        ("kubectl", *words),
        timeout_s=_LIST_S,
        env={"LC_ALL": "C"},
        apart=True,
        missing_fix="Install kubectl, in a version near that of the cluster.",
    )


def list_nodes(kubectl: Sequence[str]) -> tuple[KubernetesNode, ...]:
    """The nodes. KubernetesError: there is no answer. BadInputError: there are none."""
    fix = "See that it answers: kubectl get nodes (rights: kubectl auth can-i list nodes)"
    try:
        done = _run(*kubectl[1:], "get", "nodes", "--output=json", "--request-timeout=50s")
        nodes = parse_nodes(json.loads(done.stdout)["items"]) if done.ok else ()
    except process.CommandTimedOut as error:
        raise KubernetesError(f"kubectl did not answer within {_LIST_S} s.", fix=fix) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubernetesError("The list of nodes is damaged.", fix=fix) from error
    if not done.ok:
        said = printable(last_line(done.output), limit=300) or describe_exit(done.code)
        raise KubernetesError(f"kubectl failed: {said}", fix=fix)
    if not nodes:
        raise BadInputError(
            "Kubernetes has no nodes with Linux.", fix="See them: kubectl get nodes"
        )
    return nodes


def parse_nodes(items: Sequence[dict[str, Any]]) -> tuple[KubernetesNode, ...]:
    """The nodes of a NodeList that run Linux."""
    found = []
    for item in items:
        name = str(item["metadata"]["name"])
        status = item.get("status") or {}
        system = (status.get("nodeInfo") or {}).get("operatingSystem", "linux")
        if system == "linux" and _NAME.fullmatch(name):
            gpus, labels = _gpus(status), item["metadata"].get("labels") or {}
            hidden = not gpus and any(
                _HAS_GPU.fullmatch(label) and value == "true" for label, value in labels.items()
            )
            found.append(KubernetesNode(name, gpus, hidden, _trouble(item)))
    return tuple(found)


def _gpus(status: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    amounts = status.get("allocatable") or {}
    return tuple(
        (name, int(amount))
        for name, amount in sorted(amounts.items())
        if _GPU.fullmatch(name) and str(amount).isdecimal() and int(amount) > 0
    )


def _trouble(item: dict[str, Any]) -> str:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    ready = conditions.get("Ready")
    if ready is None or ready.get("status") != "True":
        return f"it is not ready{_said(ready)}"
    if item["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    for taint in spec.get("taints") or ():
        if taint.get("key") in _LEAVING:
            return f"it is about to be removed ({taint['key']})"
    if spec.get("unschedulable"):
        return "it is cordoned"
    for name in _PRESSURES:
        if (one := conditions.get(name)) and one.get("status") == "True":
            return f"{name}{_said(one)}"
    return ""


def _said(condition: dict[str, Any] | None) -> str:
    said = (condition or {}).get("message") or (condition or {}).get("reason") or ""
    return f": {printable(str(said), limit=200).rstrip('.')}" if said else ""


def pod_manifest(pod: str, node: KubernetesNode, options: PodOptions) -> dict[str, Any]:
    """The pod, without its program. It may run as the strictest of Pod Security's standards asks,
    on a node with any taint, and ends by itself if nobody deletes it.
    """
    limits = {} if options.suite else {"cpu": "1", "memory": _MEMORY}
    settings = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    if options.suite:  # the user has no home in the image, and no name
        settings.update({"HOME": "/tmp", "USER": "verify"})  # noqa: S108  in the pod
    if options.runtime_class is None:
        limits.update({name: str(count) for name, count in node.gpus})
    else:
        settings["NVIDIA_VISIBLE_DEVICES"] = "all"
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.name]}]}
    required = {"nodeSelectorTerms": [term]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "labels": {LABEL: OURS}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(options.timeout_s) + _SPARE_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"runtimeClassName": options.runtime_class} if options.runtime_class else {}),
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            },
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _NOBODY,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "verify" if options.suite else "detect",
                    "image": options.image,
                    "command": ["python3", "-I", "-"],
                    "env": [{"name": name, "value": value} for name, value in settings.items()],
                    "resources": {
                        "limits": limits,
                        "requests": {"cpu": "50m", "memory": "64Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **({"volumeMounts": [_SHM]} if options.suite else {}),
                }
            ],
            **({"volumes": [_SHM_VOLUME]} if options.suite else {}),
        },
    }


def kubernetes_calls(
    kubectl: Sequence[str], nodes: Sequence[KubernetesNode], options: PodOptions
) -> tuple[NodeCall, ...]:
    """The calls, each with a pod of its own."""
    nonce = secrets.token_hex(5)
    return tuple(
        _call(kubectl, node, f"{OURS}-{nonce}-{number}", options)
        for number, node in enumerate(nodes)
    )


def _call(kubectl: Sequence[str], node: KubernetesNode, pod: str, options: PodOptions) -> NodeCall:
    if node.trouble:
        return NodeCall(node.name, refused=_out_of_service(node))
    if node.hidden and options.runtime_class is None:
        return NodeCall(node.name, refused=_hidden(node))
    order = PodOrder(
        kubectl=list(kubectl),
        manifest=pod_manifest(pod, node, options),
        # before the call's own limit, so that it can say what the pod waits for
        seconds=max(options.timeout_s * 0.5, options.timeout_s - 5),
        free_s=options.timeout_s / 2 if options.wait_s is None else options.wait_s,
    )
    script = str(Path(__file__).parent / "kubernetes_call.py")
    return NodeCall(
        node.name,
        (sys.executable, "-I", script, json.dumps(order._asdict())),
        partial(explain_kubernetes, node.name, options.image),
        cleanup=(*kubectl, "--request-timeout=8s", *delete_words(pod)),
    )


def read_kubernetes_calls(where: str, options: PodOptions) -> tuple[NodeCall, ...]:
    """The calls to all nodes of "kubernetes[:CONTEXT[/NAMESPACE]]", with the errors of
    `kubectl_words` and `list_nodes`.
    """
    kubectl = kubectl_words(where)
    return kubernetes_calls(kubectl, list_nodes(kubectl), options)


def _out_of_service(node: KubernetesNode) -> NodeFailure:
    return NodeFailure(
        code="node-out-of-service",
        message=f"{node.name}: nothing is run there: {node.trouble}.",
        fix="See it: kubectl describe node NAME. Back in service: kubectl uncordon NAME",
    )


def _hidden(node: KubernetesNode) -> NodeFailure:
    """A pod would see no GPU, and the host file would be wrong."""
    return NodeFailure(
        code="node-gpus-hidden",
        message=f"{node.name}: it has NVIDIA GPUs by its labels, but offers none to pods.",
        fix="Check NVIDIA's device plugin on the node, or name the RuntimeClass that shows all "
        "GPUs: --runtime-class nvidia",
    )


def explain_kubernetes(name: str, image: str, done: Completed) -> NodeFailure:
    """Why a call gave no answer, by what `kubernetes_call` said."""
    found = re.search(rf"^{MARK}([a-z]+): (.*)$", done.output, re.MULTILINE)
    if done.code != FAILED or found is None:
        said = printable(last_line(done.output), limit=300) or describe_exit(done.code)
        return NodeFailure(
            code="node-failed",
            message=f"{name}: {said}",
            fix="Run the same by hand: kubectl run test --image IMAGE -- python3 --version",
        )
    kind, said = found[1], printable(found[2], limit=400)
    shown = printable(image, limit=200)
    failures = {
        "image": NodeFailure(
            code="no-image-on-node",
            message=f"{name}: it cannot pull {shown}: {said}",
            fix="Name an image that the nodes can pull: --image IMAGE",
        ),
        "python": NodeFailure(
            code="no-python", message=f"{name}: {shown} has no python3.", fix=PYTHON_FIX
        ),
        "busy": NodeFailure(
            code="node-busy",
            message=f"{name}: no pod with all its GPUs could start there in time: {said}",
            fix="Repeat the command later: it asks only nodes without a result. fleet detect sees "
            "busy GPUs, too, where the cluster allows it: --runtime-class nvidia",
        ),
        "lost": NodeFailure(
            code="node-lost",
            message=f"{name}: its pod was ended: {said}",
            fix="See why: kubectl get events, kubectl describe node NAME. Then repeat the command.",
        ),
        "memory": NodeFailure(
            code="node-out-of-memory",
            message=f"{name}: {said}.",
            fix="See the node's free memory: kubectl describe node NAME. fleet detect needs less "
            "than its limit of 256 MiB: report it if that was exceeded.",
        ),
        "time": NodeFailure(
            code="node-timeout",
            message=f"{name}: {said}",
            fix="See why: kubectl describe node NAME, or allow more time: --timeout SECONDS",
        ),
        "refused": NodeFailure(
            code="pod-refused",
            message=f"{name}: the API server refuses the pod: {said}",
            fix="See your rights (kubectl auth can-i create pods), or use another namespace: "
            "--on kubernetes:CONTEXT/NAMESPACE",
        ),
    }
    return failures.get(kind) or NodeFailure(
        code="node-failed",
        message=f"{name}: {said}",
        fix="See it: kubectl describe node NAME",
    )
