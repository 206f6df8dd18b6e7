"""`provision fleet build` from a real index into a real registry and a shared directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.model.facts import host_to_json
from provision.model.plan import HostFacts
from tests import need
from tests.engines.lab import Done, World, new_world
from tests.engines.small_build import Source
from tests.engines.test_build_without_engine import NO_ENGINE, an_index, run
from tests.kit.hosts import host
from tests.kit.private_index import Index, make_wheel

pytestmark = pytest.mark.docker

FLEET: Mapping[str, HostFacts] = {
    "a1": host("580.95.05", "NVIDIA H100 80GB HBM3"),
    "a2": host("580.95.05", "NVIDIA H100 80GB HBM3"),
    "g1": host("580.95.05", "NVIDIA GH200 480GB", arch="aarch64"),
}
ASKED = ("--framework-version", "2.9.1", "--cuda", "12.8", "--python", "3.11")
WORDS = (*ASKED, "--base", "bootstrap", "--json")


@pytest.fixture(scope="module")
def index(source: Source) -> Iterator[Index]:
    """Like that of a company: one release for both processors."""
    wheels = [
        make_wheel(
            f"torch-2.9.1+cu128-cp311-cp311-manylinux_2_28_{arch}.whl", {"torch/__init__.py": b""}
        )
        for arch in ("x86_64", "aarch64")
    ]
    newer = make_wheel("numpy-2.3.0-py3-none-any.whl", {"numpy/__init__.py": b""})
    with an_index(source, *wheels, newer) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A world without an engine, with the host files of a fleet."""
    with new_world(**NO_ENGINE) as found:
        (found.place / "hosts").mkdir()
        for name, facts in FLEET.items():
            (found.place / "hosts" / f"{name}.json").write_text(json.dumps(host_to_json(facts)))
        yield found


def fleet_build(world: World, source: Source, index: Index, *words: str) -> Done:
    hosts = str(world.place / "hosts")
    given = (hosts, *WORDS, "--index", index.url, *words)
    return run(world, source, index, "fleet", "build", *given)


def images(done: Done) -> dict[tuple[str, ...], Any]:
    assert done.account["schema"] == 1
    return {tuple(one["nodes"]): one for one in done.account["images"]}


def test_a_registry_gets_each_image_once_and_nothing_the_second_time(
    alone: World, source: Source, index: Index, registry: str
) -> None:
    done = fleet_build(alone, source, index, "--push", f"{registry}/team/fleet")
    assert done.code == 0, done.err
    found = images(done)
    assert set(found) == {("a1", "a2"), ("g1",)}
    x86, arm = found["a1", "a2"], found["g1",]
    assert x86["image"] == f"{registry}/team/fleet:pytorch2.9.1-cu128"
    assert arm["image"] == f"{registry}/team/fleet:pytorch2.9.1-cu128-aarch64"
    skopeo = need.program("skopeo")
    for one, arch in ((x86, "amd64"), (arm, "arm64")):
        argv = [skopeo, "inspect", "--tls-verify=false", f"docker://{one['image']}"]
        told = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
        assert (told["Digest"], told["Architecture"]) == (one["digest"], arch)
        assert Path(one["lock"]["path"]).is_file()
    again = fleet_build(alone, source, index, "--push", f"{registry}/team/fleet")
    assert {nodes: one["digest"] for nodes, one in images(again).items()} == {
        nodes: one["digest"] for nodes, one in found.items()
    }
    assert "none new" in again.err


def test_a_shared_directory_gets_them_all(alone: World, source: Source, index: Index) -> None:
    shared = alone.place / "shared"
    done = fleet_build(alone, source, index, "--output", str(shared))
    assert done.code == 0, done.err
    words = [word for one in images(done).values() for word in ("--image", one["image"])]
    asked = alone.provision("fleet", "check", str(alone.place / "hosts"), *words, "--json")
    for one, checked in zip(images(done).values(), asked.account["images"], strict=True):
        runs = {
            node
            for verdict in checked["now"]
            if verdict["runs"]
            for node in asked.account["classes"][verdict["class"]]["nodes"]
        }
        assert runs == set(one["nodes"])
    for one in images(done).values():
        assert one["image"].startswith(f"oci:{shared}:gpu-provision:pytorch2.9.1-cu128")
        asked = alone.provision("inspect", one["image"], "--json")
        assert asked.account["verdict"] in {"fit", "no-verdict"}, asked.out


def test_an_image_that_fails_does_not_keep_the_others_from_the_registry(
    alone: World, source: Source, registry: str
) -> None:
    """The index has the release for one processor only."""
    wheel = "torch-2.9.1+cu128-cp311-cp311-manylinux_2_28_x86_64.whl"
    newer = make_wheel("numpy-2.3.0-py3-none-any.whl", {"numpy/__init__.py": b""})
    with an_index(source, make_wheel(wheel, {"torch/__init__.py": b""}), newer) as index:
        done = fleet_build(alone, source, index, "--push", f"{registry}/team/half")
    found = images(done)
    assert found["a1", "a2"]["digest"]
    assert found["g1",]["image"] is None
    assert found["g1",]["error"]["code"]
    assert done.code not in {0, 70}
    assert "Traceback" not in done.err
