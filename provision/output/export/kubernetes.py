"""Manifests for Kubernetes: a Job, an Indexed Job with its Service, or a JobSet.

https://kubernetes.io/docs/concepts/workloads/controllers/job/
https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
https://jobset.sigs.k8s.io/docs/concepts/
JobSet's names: https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/util/placement/placement.go
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Literal, TypeAlias

from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.export.deployment import (
    GATE,
    PORT,
    Deployment,
    over_the_network,
    reference_of,
    remark,
    size,
)
from provision.output.export.launch import needs_launcher, on_one_node, torchrun
from provision.output.export.yaml import Node, Remark, to_yaml

JobKind: TypeAlias = Literal["job", "indexed", "jobset"]

_LABEL = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_LONGEST_NAME = 45
"""Names of pods and hosts have 63 characters, and end in "-workers-0-" and a number."""
_PRODUCT, _DRIVER = "nvidia.com/gpu.product", "nvidia.com/cuda.driver-version.major"
"""Labels of gpu-feature-discovery 0.15 and newer; `cuda.driver.major` is deprecated:
https://github.com/NVIDIA/k8s-device-plugin/blob/v0.20.0/docs/gpu-feature-discovery/README.md
"""
_OF_THE_CLUSTER = """\
# The pod has neither tolerations nor imagePullSecrets. If it stays Pending due to a taint of the
# GPU nodes (kubectl describe nodes), add to its spec, with the key of the taint:
#   tolerations: [{key: nvidia.com/gpu, operator: Exists}]
# If the registry needs a login, create a secret (kubectl create secret docker-registry --help), and
# add to its spec:
#   imagePullSecrets: [{name: NAME}]"""
"""https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/
"""
_CAPABILITY = "nvidia.com/gpu.compute.{}"
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}


def to_manifest(one: Deployment, kind: JobKind, file: str = "") -> str:
    """One or two documents, for a file of that name (default: that of the job). BadInputError: the
    job's name is not one that Kubernetes takes.
    """
    check_name(one.name)
    documents = {"job": _job, "indexed": _indexed, "jobset": _jobset}[kind](one)
    named = shlex.quote(file or f"{one.name}.yaml")
    head = [remark(f"{one.title}: {one.room}."), "#", remark(f"  kubectl create -f {named}")]
    head += _without_rdma(one)
    head.append(_OF_THE_CLUSTER)
    if one.gate:
        what = f"job/{one.name}" if kind != "jobset" else f"job/{one.name}-workers-0"
        head.append(remark(f"  kubectl logs {what} -c gate    # what the suite found"))
    return "\n".join([*head, "---\n".join(map(to_yaml, documents))])


def _without_rdma(one: Deployment) -> list[str]:
    root = "" if one.user == 0 else " (--user 0: other users do not get it)"
    return over_the_network(
        one,
        "Add to resources.limits of the container what `kubectl describe nodes` lists as "
        "allocatable, such as rdma/NAME or vpc.amazonaws.com/efa, and to its securityContext "
        f"capabilities: add: [IPC_LOCK]{root}, or raise LimitMEMLOCK of the nodes' container "
        "runtime. NVLink between the nodes of a rack needs a resource claim of a ComputeDomain.",
    )


def check_name(name: str) -> None:
    """A name for a Job, its Service and its pods (RFC 1035). BadInputError: it is not one."""
    if not _LABEL.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise BadInputError(
            f"--name {quoted(name)} is not a name that Kubernetes takes.",
            fix=f"Use at most {_LONGEST_NAME} lower-case letters, digits and hyphens, a letter "
            "first: --name train",
        )


def _job(one: Deployment) -> list[dict[str, Node]]:
    again = "a pod that fails is replaced, maybe on another node"
    spec: dict[str, Node] = {
        "backoffLimit": Remark(again, 2),
        "template": {"spec": _pod(one, [literal(word) for word in on_one_node(one)])},
    }
    return [_object("batch/v1", "Job", one.name, spec)]


def _indexed(one: Deployment) -> list[dict[str, Node]]:
    service: dict[str, Node] = {
        "clusterIP": Remark("headless: it only gives the pods their names", "None"),
        "publishNotReadyAddresses": True,
        "selector": {"job-name": one.name},
    }
    spec: dict[str, Node] = {
        "completionMode": "Indexed",
        "completions": one.nodes,
        "parallelism": one.nodes,
        "backoffLimit": 2,
        "template": {"spec": _pod(one, _words(one, f"{one.name}-0.{one.name}"), one.name)},
    }
    return [
        _object("v1", "Service", one.name, service),
        _object("batch/v1", "Job", one.name, spec),
    ]


def _jobset(one: Deployment) -> list[dict[str, Node]]:
    first = f"{one.name}-workers-0-0.{one.name}"
    job: dict[str, Node] = {
        "completionMode": "Indexed",
        "completions": one.nodes,
        "parallelism": one.nodes,
        "backoffLimit": Remark("one lost pod ends the others' collectives: all start again", 0),
        "template": {"spec": _pod(one, _words(one, first))},
    }
    spec: dict[str, Node] = {
        "failurePolicy": {"maxRestarts": 2},
        "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
    }
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", one.name, spec)]


def _object(version: str, kind: str, name: str, spec: Node) -> dict[str, Node]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def literal(text: str) -> str:
    """A word of a command or a value of a variable, in which Kubernetes expands $(NAME), and $$ to
    $: https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
    """
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _words(one: Deployment, first: str) -> list[str | Remark]:
    """The command of each pod; `first` is the host name of the pod with index 0."""
    if not needs_launcher(one):
        return [literal(word) for word in one.command]
    rank = "--node-rank=$(JOB_COMPLETION_INDEX)"
    words = torchrun(one, rank, f"--master-addr={first}", f"--master-port={PORT}")
    known = Remark("set in each pod of an Indexed Job", rank)
    return [known if word is rank else literal(word) for word in words]


def _pod(one: Deployment, words: list[str] | list[str | Remark], subdomain: str = "") -> Node:
    shm: list[Node] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108  in the pod
    image: dict[str, Node] = {"image": reference_of(one, "Kubernetes")}
    rest: dict[str, Node] = {"resources": {"limits": {"nvidia.com/gpu": str(one.gpus or 1)}}}
    if one.user:
        rest["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    rest["volumeMounts"] = shm
    env = _environment(one, one.environment)
    gate: Node = {"name": "gate", **image, "command": [*GATE], **_environment(one, ()), **rest}
    job: Node = {"name": one.name, **image, "command": [*words], **env, **rest}
    pod: dict[str, Node] = {"subdomain": subdomain} if subdomain else {}
    pod["restartPolicy"] = "Never"
    if one.user:
        pod["securityContext"] = Remark(
            "images of `provision build` need no root",
            {
                "runAsNonRoot": True,
                "runAsUser": one.user,
                "runAsGroup": one.user,
                "fsGroup": one.user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        )
    pod |= _placement(one)
    if one.gate:
        why = "the job starts only if the suite passes: in its image, on its node, with its GPUs"
        pod["initContainers"] = Remark(why, [gate])
    pod["containers"] = [job]
    volume: Node = {"medium": "Memory", "sizeLimit": size(one.shm, ("Gi", "Mi", ""))}
    why = "for NCCL and DataLoader workers; it counts against the pod's memory limit, if it has one"
    pod["volumes"] = [Remark(why, {"name": "shm", "emptyDir": volume})]
    return pod


def _environment(one: Deployment, given: Sequence[tuple[str, str]]) -> dict[str, Node]:
    pairs: list[tuple[str, Node]] = []
    if one.user:
        pairs += [("HOME", "/tmp"), ("USER", "job")]  # noqa: S108  in the pod
    pairs += [(name, literal(value)) for name, value in given]
    rows: list[Node] = [{"name": name, "value": value} for name, value in pairs]
    if one.user:
        rows[0] = Remark("the user has no home in the image, and no name", rows[0])
    return {"env": rows} if rows else {}


def _placement(one: Deployment) -> dict[str, Node]:
    found: dict[str, Node] = {}
    if one.arch in _ARCHES:
        found["nodeSelector"] = {"kubernetes.io/arch": _ARCHES[one.arch or ""]}
    kinds = [_in(_PRODUCT, [product_label(name) for name in one.products])] if one.products else []
    terms: list[list[Node]] = [[rule] for rule in kinds]
    terms += [
        [
            _in(_CAPABILITY.format("major"), [str(major)]),
            _in(_CAPABILITY.format("minor"), [str(minor)]),
        ]
        for major, minor in one.capabilities
    ]
    if terms:
        newer = _driver_rule(one)
        rows: list[Node] = [{"matchExpressions": [*rules, *newer]} for rules in terms]
        why = "labels of gpu-feature-discovery; shared GPUs and MIG devices have other ones"
        required: Node = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rows}
        }
        found["affinity"] = Remark(why, {"nodeAffinity": required})
    return found


def _in(key: str, values: list[str]) -> Node:
    return {"key": key, "operator": "In", "values": [*values]}


def _driver_rule(one: Deployment) -> list[Node]:
    if one.driver is None:
        return []
    before = str(int(one.driver.partition(".")[0]) - 1)
    why = f"this job needs driver {one.driver}; the label has only its branch"
    return [Remark(why, {"key": _DRIVER, "operator": "Gt", "values": [before]})]


def product_label(name: str) -> str:
    """A GPU's name as gpu-feature-discovery writes it:
    https://github.com/NVIDIA/k8s-device-plugin/blob/v0.20.0/internal/lm/resource.go (sanitise)
    """
    return "-".join(re.sub(r"[^A-Za-z0-9_. -]", "", name).split())
