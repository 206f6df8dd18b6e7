"""`provision fleet verify --on kubernetes` with the real kubectl and a stand-in for the cluster.

The pods really run the suite, where an image would have it; only the look at the image's labels in
its registry is a stand-in, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.layers.own import SUITE
from tests import ROOT, need
from tests.clusters.kubernetes_api import KubernetesApi, kubernetes_api, node
from tests.clusters.test_kubernetes_templates import validated
from tests.kit.programs import run_program

IMAGE = "registry.example/team/torch:1"
DIGEST = f"sha256:{'b' * 64}"
PROGRAM = f"""
import sys
from provision.cli import main as cli
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from provision.verification import subject
from tests.kit.fake_engine import IMAGE, PLAN
labels = labels_for(Lock(text="the lock", plan=PLAN, wheels=()), "1")
subject.find_subject = lambda text, _: subject.Subject(
    name=text, image_id=IMAGE, labels=labels, registry=text, digest={DIGEST!r}
)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    need.root()
    need.no_gpu()
    need.program("kubectl", "kubernetes-client")
    place = Path(SUITE)
    copy = f"mkdir -p {place.parent} && cp -r {ROOT / 'verify'} {place}"
    unpack = f'mount -t tmpfs tmpfs /opt && {copy} && exec "$@"'
    with kubernetes_api() as found:
        found.wrapper = (need.program("unshare"), "--mount", "sh", "-c", unpack, "sh")
        found.kubeconfig(tmp_path / "config", "first")
        yield found


def verify(place: Path) -> tuple[int, dict[str, Any]]:
    words = ["fleet", "verify", "--on", "kubernetes:first/tests", "--json", "--image", IMAGE]
    words += ["--output", str(place / "out"), "--level", "quick", "--timeout", "60"]
    done = run_program(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(place / "config")},
        timeout=240,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_suite_runs_in_a_pod_on_each_node(api: KubernetesApi, tmp_path: Path) -> None:
    """Its Python has no framework, which the real suite finds; other nodes are named."""
    api.nodes = [node("good", gpus=8), node("no-image"), node("evicted"), node("no", ready="False")]
    code, found = verify(tmp_path)
    nodes = {one["name"]: one for one in found["nodes"]}
    assert {name: one["code"] for name, one in nodes.items()} == {
        "good": None,
        "no-image": "no-image-on-node",
        "evicted": "node-lost",
        "no": "node-out-of-service",
    }
    assert (code, nodes["good"]["standing"], nodes["good"]["way"]) == (1, "unfit", "inside")
    assert "torch" in nodes["good"]["failed"][0]["message"]
    report = json.loads((tmp_path / "out" / "good.json").read_text())
    assert report["environment"]["image"] == found["image"]
    assert api.pods == {}, "all were deleted"

    pod = api.made["good"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == f"registry.example/team/torch@{DIGEST}"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    shown = {name: pod[name] for name in ("apiVersion", "kind", "spec")}
    shown["metadata"] = {name: pod["metadata"][name] for name in ("name", "labels")}
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(shown))
    for release in ("1.25.0", "1.37.0"):
        done = validated(release, path)
        assert done.returncode == 0, done.stdout + done.stderr
    path.write_text(path.read_text().replace("sizeLimit", "sizelimit"))
    assert validated("1.37.0", path).returncode == 1
