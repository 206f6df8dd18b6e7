"""A stand-in for the API server of Kubernetes and for the kubelets of its nodes.

It speaks as much of the API as the real kubectl needs here. A pod's command is really run, on this
machine; what else becomes of a pod depends on the name of its node.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+))?(/log)?")
_RESOURCES = [
    {"name": "nodes", "singularName": "node", "kind": "Node", "namespaced": False},
    {"name": "pods", "singularName": "pod", "kind": "Pod", "namespaced": True},
]
_PULL = {"reason": "ErrImagePull", "message": "not found"}
_BACKOFF = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nosuch"'}
_NO_PYTHON = (
    "failed to create containerd task: OCI runtime create failed: exec: "
    '"python3": executable file not found in $PATH: unknown'
)
_FULL = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
}


def node(name: str, *, ready: str = "True", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A Node, as the API lists it."""
    allocatable = {"cpu": "4", "memory": "16Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": ready, "message": f"kubelet says {ready}"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {}},
        "spec": spec,
        "status": {
            "allocatable": allocatable,
            "conditions": conditions,
            "nodeInfo": {"operatingSystem": "linux"},
        },
    }


def expanded(word: str) -> str:
    """A word of a command as the kubelet passes it on; no variable is known."""
    return word.replace("$$", "$")


class KubernetesApi:
    """`nodes` and `pods` are what it has now, `made` every pod that it got, by its node. `wrapper`
    is a command that runs a pod's command as in its image.
    """

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.pods: dict[str, dict[str, Any]] = {}
        self.made: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.namespaces: set[str] = set()
        self.wrapper: tuple[str, ...] = ()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.get(self)

            def do_POST(self) -> None:
                outer.create(self)

            def do_DELETE(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.delete(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self, path: Path, *contexts: str) -> None:
        """A configuration of kubectl with these contexts, all of which are this server."""
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [
                {"name": name, "context": {"cluster": "here", "user": "me"}} for name in contexts
            ],
            "current-context": contexts[0],
        }
        path.write_text(json.dumps(config))

    def get(self, handler: Any) -> None:
        url = urlsplit(handler.path)
        found = _PODS.fullmatch(url.path)
        if url.path == "/api":
            _answer(handler, {"kind": "APIVersions", "versions": ["v1"]})
        elif url.path == "/apis":
            _answer(handler, {"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
        elif url.path == "/api/v1":
            verbs = ["create", "delete", "get", "list"]
            resources = [{**one, "verbs": verbs} for one in _RESOURCES]
            kind = {"kind": "APIResourceList", "groupVersion": "v1"}
            _answer(handler, {**kind, "resources": resources})
        elif url.path == "/api/v1/nodes":
            _answer(handler, {"kind": "NodeList", "apiVersion": "v1", "items": self.nodes})
        elif found and found[3]:
            _send(handler, 200, "text/plain", self.logs.get(found[2], "").encode())
        elif found and found[2]:
            with self.lock:
                pod = self.pods.get(found[2])
            _answer(handler, pod or _status(404, "NotFound", f'pods "{found[2]}" not found'))
        else:
            _answer(handler, _status(404, "NotFound", "the server could not find the resource"))

    def create(self, handler: Any) -> None:
        pod = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        found = _PODS.fullmatch(urlsplit(handler.path).path)
        assert found
        self.namespaces.add(found[1])
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        term = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
        (place,) = term["matchFields"][0]["values"]
        self.made[place] = pod
        if place == "forbidden":
            said = 'pods is forbidden: User "me" cannot create resource "pods"'
            _answer(handler, _status(403, "Forbidden", said))
            return
        name = pod["metadata"]["name"]
        pod["metadata"].update({"namespace": found[1], "uid": name, "resourceVersion": "1"})
        self.set(name, {"phase": "Pending"}, pod)
        _answer(handler, pod, 201)
        threading.Thread(target=self.run, args=(name, place, pod), daemon=True).start()

    def set(self, name: str, status: dict[str, Any], pod: dict[str, Any] | None = None) -> None:
        """A pod has another status now, unless it was deleted."""
        with self.lock:
            old = pod or self.pods.get(name)
            if old is None:
                return
            self.pods[name] = {**old, "status": status}

    def remove(self, name: str) -> bool:
        with self.lock:
            return self.pods.pop(name, None) is not None

    def delete(self, handler: Any) -> None:
        found = _PODS.fullmatch(urlsplit(handler.path).path)
        assert found
        if self.remove(found[2]):
            _answer(handler, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        else:
            _answer(handler, _status(404, "NotFound", f'pods "{found[2]}" not found'))

    def run(self, name: str, place: str, pod: dict[str, Any]) -> None:
        """The kubelet."""

        def state(phase: str, kind: str, **more: Any) -> None:
            self.set(name, {"phase": phase, "containerStatuses": [{"state": {kind: more}}]})

        if place == "busy":
            self.set(name, {"phase": "Pending", "conditions": [_FULL]})
            return
        state("Pending", "waiting", reason="ContainerCreating")
        if place == "no-image":
            state("Pending", "waiting", **_PULL)
            time.sleep(0.3)
            state("Pending", "waiting", **_BACKOFF)
        elif place == "no-python":
            state("Failed", "terminated", exitCode=128, reason="StartError", message=_NO_PYTHON)
        elif place == "oom":
            state("Failed", "terminated", exitCode=137, reason="OOMKilled")
        elif place == "evicted":
            said = "The node was low on resource: memory."
            self.set(name, {"phase": "Failed", "reason": "Evicted", "message": said})
        elif place == "deleted":
            state("Running", "running")
            time.sleep(0.5)
            self.remove(name)
        elif place == "hangs":
            state("Running", "running")
        else:
            state("Running", "running")
            (container,) = pod["spec"]["containers"]
            command = [*self.wrapper]
            command += [expanded(word) for word in container["command"]]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            self.logs[name] = done.stdout
            phase = "Failed" if done.returncode else "Succeeded"
            state(phase, "terminated", exitCode=done.returncode, reason="Completed")

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    kind = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**kind, "code": code, "reason": reason, "message": message}


def _answer(handler: Any, value: dict[str, Any], code: int = 200) -> None:
    failed = value.get("kind") == "Status" and value.get("status") == "Failure"
    data = json.dumps(value).encode()
    _send(handler, value["code"] if failed else code, "application/json", data)


def _send(handler: Any, code: int, kind: str, data: bytes) -> None:
    with contextlib.suppress(OSError):
        handler.send_response(code)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@contextlib.contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """A server that ends with the block."""
    api = KubernetesApi()
    try:
        yield api
    finally:
        api.stop()
