"""`provision fleet build`: what is asked for, the tags, and the result in words and as JSON. Builds
themselves are in tests/engines.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.cli.hostfiles import FleetHost
from provision.errors import NothingCompatibleError
from provision.fleet.classes import classes_of
from provision.fleet.commands.build import BuiltForFleet, built_to_json, describe_built, free_tag
from provision.fleet.images import FleetImage, FleetPlan, FleetResolver, plan_fleet
from provision.model.facts import host_to_json
from provision.model.plan import HostFacts, Request
from tests.kit import schemas
from tests.kit.cases import cases
from tests.kit.hosts import host
from tests.unit.provision.cli.test_cli import main
from tests.unit.provision.fleet.test_images import A100, CATALOG, GRACE, NONE, OLD_B200
from tests.unit.provision.lock.test_lock import PLAN as SMALL

PLAN = SMALL._replace(framework_version="2.9.1", cuda="12.8", wheel_tag="cu128", python="3.12")
DIGEST = f"h.example/p@sha256:{'1' * 64}"


def fleet(**hosts: HostFacts) -> FleetPlan:
    named = [FleetHost(facts._replace(label=name), f"{name}.json") for name, facts in hosts.items()]
    return plan_fleet(classes_of(named), FleetResolver(Request(), CATALOG))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "a1.json").write_text(json.dumps(host_to_json(A100)))
    return str(tmp_path)


@cases(
    "words message",
    ("no target", [], "required"),
    ("two targets", ["--push", "h/p", "--output", "d"], "not allowed with"),
    ("a tag", ["--push", "h.example/p:1"], "names one image"),
    ("a digest", ["--push", f"h.example/p@sha256:{'1' * 64}"], "names one image"),
    ("no path", ["--push", "fleet"], "has no path"),
    ("no repository", ["--push", "A b"], "does not name an image"),
    ("an empty directory name", ["--output", ""], "not a directory"),
    ("pushed", ["--push", "h.example/p", "--squashfs"], "requires --output"),
    ("an archive holds one image", ["--output", "all.tar"], "not a directory"),
    ("no builder", ["--output", "d", "--builder", "x"], "--builder"),
    ("no CUDA", ["--output", "d", "--cuda", "latest"], "--cuda"),
)
def test_wrong_usage_is_said_before_anything_is_made(
    folder: str, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = main("fleet", "build", folder, *words)
    assert said.code == 2
    assert message in said.err
    assert [one.name for one in tmp_path.iterdir()] == ["a1.json"]


@cases(
    "facts code",
    ("the driver is too old", OLD_B200, 4),
    ("no node with a GPU", NONE, 4),
)
def test_nodes_that_no_image_serves_are_named(tmp_path: Path, facts: HostFacts, code: int) -> None:
    (tmp_path / "b1.json").write_text(json.dumps(host_to_json(facts)))
    said = main("fleet", "build", str(tmp_path), "--output", str(tmp_path / "out"))
    assert said.code == code
    assert "b1" in said.out
    assert not (tmp_path / "out").exists()


def test_tags_are_those_of_build_and_never_twice_the_same() -> None:
    taken: set[str] = set()
    for plan, tag in (
        (PLAN, "gpu-provision:pytorch2.9.1-cu128"),
        (PLAN, "gpu-provision:pytorch2.9.1-cu128-2"),
        (PLAN._replace(arch="aarch64"), "gpu-provision:pytorch2.9.1-cu128-aarch64"),
        (PLAN, "gpu-provision:pytorch2.9.1-cu128-3"),
        (PLAN._replace(flavour="devel"), "gpu-provision:pytorch2.9.1-cu128-devel"),
    ):
        found = free_tag(plan, taken)
        assert found == tag
        taken.add(found)


def results(plan: FleetPlan) -> list[BuiltForFleet]:
    """The first image is built, the second is not."""
    built = {"image": {"digest": f"sha256:{'a' * 64}", "size_bytes": 9}, "lock": {"path": "p"}}
    failure = NothingCompatibleError("Nothing fits.", fix="Ask for less.")
    first: FleetImage
    first, second = plan.images
    return [
        BuiltForFleet(planned=first, image="registry.example/team/fleet:1", account=built),
        BuiltForFleet(planned=second, failure=failure),
    ]


def test_the_result_names_each_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    many = {f"node{number}": host("535.104.05", "NVIDIA A100-SXM4-80GB") for number in range(40)}
    plan = fleet(**many, g=GRACE, old=OLD_B200, login=NONE)
    text = describe_built(results(plan), plan.unserved, plan.without_gpu)
    assert max(map(len, text.splitlines())) <= 80
    assert "node0, node1" in text
    assert "and 32 more" in text
    assert "not built" in text
    assert "Nothing fits." in text
    assert "login: no image is needed" in text
    found = built_to_json(results(plan), plan.without_gpu, plan.unserved)
    assert schemas.problems("fleet-build", found) == []
    nodes = [node for one in found["images"] for node in one["nodes"]]
    nodes += [node for one in found["unserved"] for node in one["nodes"]]
    assert sorted([*nodes, *found["without_gpu"]]) == sorted([*many, "g", "old", "login"])
    assert [one["error"] and one["error"]["code"] for one in found["images"]] == [
        None,
        "nothing-compatible",
    ]
