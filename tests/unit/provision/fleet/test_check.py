"""Which images run on which nodes: by the rules that plan them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from provision.cli.hostfiles import FleetHost
from provision.fleet.check import check_image
from provision.fleet.classes import NodeClass, classes_of
from provision.model.facts import host_to_json
from provision.model.plan import HostFacts, Plan, Request
from provision.resolve import resolve
from provision.verification.on_host import judge_host
from tests.kit.cases import cases
from tests.kit.fake_engine import PLAN, TAG, Engine
from tests.kit.hosts import host
from tests.unit.provision.cli.test_cli import Said, main
from tests.unit.provision.fleet.test_images import (
    A100,
    B200,
    CATALOG,
    DARK,
    GRACE,
    K80,
    NONE,
    RADEON,
)
from tests.unit.provision.resolve.test_properties import HOSTS

V100 = host("535.104.05", "Tesla V100-SXM2-32GB")
H100 = host("580.95.05", "NVIDIA H100 80GB HBM3")
OLD_H100 = host("535.104.05", "NVIDIA H100 80GB HBM3")
OLD_4090 = host("535.104.05", "NVIDIA GeForce RTX 4090")


def plan_for(facts: HostFacts, **asked: str) -> Plan:
    found = resolve([facts], Request(**asked), CATALOG)  # type: ignore[arg-type]
    assert found.error is None, found.error
    return found


NEWEST = plan_for(H100)
CU130 = plan_for(H100, cuda="13.0")
COMPAT = plan_for(OLD_H100, cuda="13.0")


@cases(
    "plan facts runs how",
    ("an old build on a newer driver", PLAN, A100, True, "direct"),
    ("no code for the GPU", PLAN, B200, False, "no-gpu-code"),
    ("another processor", PLAN, GRACE, False, "other-processor"),
    ("no GPU", PLAN, NONE, None, "no-gpu"),
    ("nothing is known of the node", PLAN, DARK, None, "node-unknown"),
    ("no NVIDIA GPU", PLAN, RADEON, False, "gpu-not-nvidia"),
    ("the newest where it was made for", NEWEST, H100, True, "direct"),
    ("a GPU that it has dropped", NEWEST, V100, False, "no-gpu-code"),
    ("a data-centre GPU, no compat", CU130, OLD_H100, False, "needs-compat"),
    ("a data-centre GPU with compat", COMPAT, OLD_H100, True, "forward"),
    ("compat that is not needed", COMPAT, H100, True, "direct"),
    ("a GeForce takes no compat", CU130, OLD_4090, False, "driver-too-old"),
    ("not known", PLAN._replace(framework_version="99.1"), A100, None, "no-such-build"),
)
def test_an_image_on_a_node(plan: Plan, facts: HostFacts, runs: object, how: str) -> None:
    found = judge_host(plan, facts, CATALOG)
    assert (found.runs, found.how) == (runs, how), found.message
    assert (found.message == "") == (found.runs is True)


def test_an_image_that_was_cut_runs_on_nodes_with_its_gpus_alone() -> None:
    fleet = classes(a=A100, b=H100)
    names = {one.nodes[0]: number for number, one in enumerate(fleet)}
    found = check_image("cut", NEWEST, fleet, None, CATALOG, ((9, 0),))
    assert found.now[names["b"]].runs is True
    other = found.now[names["a"]]
    assert (other.runs, other.how) == (False, "cut-for-other-gpu")
    assert "A100" in other.message


@given(HOSTS)
@settings(max_examples=60)
def test_an_image_runs_where_it_was_planned_for(facts: HostFacts) -> None:
    plan = resolve([facts], Request(), CATALOG)
    known = facts.gpus and (facts.arch is not None)
    if plan.error is None and known:
        found = judge_host(plan, facts, CATALOG)
        assert (found.runs, found.how) == (True, plan.verdict), found.message


def classes(**hosts: HostFacts) -> tuple[NodeClass, ...]:
    named = [FleetHost(facts._replace(label=name), f"{name}.json") for name, facts in hosts.items()]
    return classes_of(named)


def test_what_a_driver_breaks_and_what_it_makes_possible() -> None:
    fleet = classes(k=K80, a=OLD_4090, b=H100)
    old = plan_for(K80)
    names = {one.nodes[0]: number for number, one in enumerate(fleet)}
    found = check_image("old", old, fleet, "580.95.05", CATALOG)
    assert found.now[names["k"]].runs is True
    assert names["k"] in found.breaks, "driver 580 does not support Kepler"
    assert found.gains == ()
    new = check_image("new", CU130, fleet, "580.95.05", CATALOG)
    assert new.gains == (names["a"],)
    assert new.breaks == ()
    assert new.then is not None
    assert new.then[names["b"]] == new.now[names["b"]], "it has this driver already"
    same = check_image("new", CU130, fleet, None, CATALOG)
    assert (same.then, same.breaks, same.gains) == (None, (), ())


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("images.engines.docker.Docker.connect", lambda **_: Engine())
    for name, facts in {"a1": A100, "b1": B200, "k1": K80, "login": NONE}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(host_to_json(facts)))
    return tmp_path


def check(fleet: Path, *words: str) -> Said:
    return main("fleet", "check", str(fleet), *words)


def test_the_table_has_every_class_of_every_image(fleet: Path) -> None:
    said = check(fleet, "--image", TAG, "--json")
    found = json.loads(said.out)
    assert said.code == 0
    (image,) = found["images"]
    assert [one["class"] for one in image["now"]] == [0, 1, 2, 3]
    by_node = {found["classes"][one["class"]]["nodes"][0]: one["runs"] for one in image["now"]}
    assert by_node == {"a1": True, "b1": False, "k1": True, "login": None}
    assert (image["then"], image["breaks"], image["gains"]) == (None, [], [])
    text = check(fleet, "--image", TAG).out
    assert max(map(len, text.splitlines())) <= 80
    assert "PyTorch 2.0.1, CUDA 11.7" in text


def test_a_driver_that_breaks_an_image_is_the_exit_code(fleet: Path) -> None:
    said = check(fleet, "--image", TAG, "--if-driver", "580.95.05")
    assert said.code == 1
    assert "breaks      k1, with 580.95.05:" in said.out
    assert check(fleet, "--image", TAG, "--if-driver", "535.104.05").code == 1
    (fleet / "k1.json").unlink()
    said = check(fleet, "--image", TAG, "--if-driver", "580.95.05")
    assert said.code == 0
    assert "changes nothing" in said.out


def test_an_image_that_runs_nowhere(fleet: Path) -> None:
    for name in ("a1", "k1", "login"):
        (fleet / f"{name}.json").unlink()
    said = check(fleet, "--image", TAG)
    assert said.code == 3
    assert "runs on" not in said.out


@cases(
    "words message",
    ("no image", [], "No image is named"),
    ("no driver", ["--image", TAG, "--if-driver", "new"], "--if-driver"),
    ("no name", ["--image", "A b"], "is not an image's path"),
)
def test_wrong_usage(fleet: Path, words: list[str], message: str) -> None:
    said = check(fleet, *words)
    assert said.code == 2
    assert message in said.err
