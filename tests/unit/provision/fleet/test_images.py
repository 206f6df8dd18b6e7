"""Which images a fleet gets: the fewest, each a plan of the resolver for its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from provision.catalog.loading import load
from provision.cli.hostfiles import FleetHost
from provision.fleet.classes import NodeClass, classes_of
from provision.fleet.images import FleetPlan, FleetResolver, plan_fleet
from provision.fleet.what_if import DriverChange, change_driver
from provision.model.plan import HostFacts, Request
from provision.resolve import fitting_builds, resolve
from tests.kit.cases import cases
from tests.kit.hosts import host
from tests.unit.provision.resolve.test_properties import HOSTS, REQUESTS

CATALOG = load()
A100 = host("535.104.05", "NVIDIA A100-SXM4-80GB")
V100 = host("535.104.05", "Tesla V100-SXM2-32GB")
OLD_B200 = host("535.104.05", "NVIDIA B200")
B200 = host("580.95.05", "NVIDIA B200")
K80 = host("470.82.01", "Tesla K80")
GRACE = host("580.95.05", "NVIDIA GH200 480GB", arch="aarch64")
NONE = host(None)._replace(gpus=())
DARK = HostFacts()
RADEON = host(None, "AMD Instinct MI300X")


def classes(*facts: HostFacts) -> tuple[NodeClass, ...]:
    hosts = [one._replace(label=f"n{number}") for number, one in enumerate(facts)]
    return classes_of(FleetHost(one, f"{one.label}.json") for one in hosts)


def planned(*facts: HostFacts, request: Request | None = None) -> FleetPlan:
    return plan_fleet(classes(*facts), FleetResolver(request or Request(), CATALOG))


def nodes(plan: FleetPlan) -> list[tuple[str, ...]]:
    return sorted(image.nodes for image in plan.images)


@cases(
    "facts expected",
    ("one node", [A100], [("n0",)]),
    ("three equal nodes", [A100, A100, A100], [("n0", "n1", "n2")]),
    ("one build has code for all", [A100, V100, B200], [("n0", "n1", "n2")]),
    ("a GPU that only old builds have code for", [B200, K80], [("n0",), ("n1",)]),
    ("two CPU architectures", [A100, GRACE], [("n0",), ("n1",)]),
    ("a node without a GPU needs none", [A100, NONE], [("n0",)]),
    ("no node with a GPU", [NONE], []),
)
def test_who_shares_an_image(facts: list[HostFacts], expected: list[tuple[str, ...]]) -> None:
    plan = planned(*facts)
    assert nodes(plan) == expected
    assert plan.proven
    assert plan.unserved == ()
    assert bool(plan.against_one) == (len(expected) > 1)


@cases(
    "facts code",
    ("a driver that does not know the GPU", OLD_B200, "gpu-not-driven"),
    ("nothing was read", DARK, "node-unknown"),
    ("another vendor", RADEON, "gpu-not-nvidia"),
)
def test_a_node_that_no_image_serves_keeps_none_from_the_others(
    facts: HostFacts, code: str
) -> None:
    plan = planned(A100, facts)
    assert nodes(plan) == [("n0",)]
    assert [(one.node_class.nodes, one.error.code) for one in plan.unserved] == [(("n1",), code)]
    assert plan.unserved[0].error.fix
    assert planned(A100).images[0].plan == plan.images[0].plan


def test_why_one_image_does_not_do_is_the_resolvers_answer() -> None:
    plan = planned(B200, B200, K80, GRACE)
    mixed, gpus = plan.against_one
    assert mixed.plan.error is not None
    assert mixed.plan.error.code == "mixed-cpu-architectures"
    assert gpus.plan.error is not None
    assert gpus.plan.error.code == "no-common-build"
    assert "K80" in gpus.plan.error.message
    assert [one.nodes for one in plan.apart] == [("n0", "n1"), ("n2",), ("n3",)]


def test_an_image_that_a_class_left_is_planned_again_without_it() -> None:
    """The A100 may go with either."""
    plan = planned(A100, B200, B200, K80)
    for image in plan.images:
        assert image.plan == resolve([one.facts for one in image.classes], Request(), CATALOG)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.lists(HOSTS, min_size=1, max_size=4))
def test_the_builds_of_several_hosts_are_those_of_each(
    request_: Request, hosts: list[HostFacts]
) -> None:
    """What the cover relies on; and it asks the resolver itself."""
    hosts = [one._replace(label=f"n{number}") for number, one in enumerate(hosts)]
    together = fitting_builds(hosts, request_, CATALOG)
    assert bool(together) == (resolve(hosts, request_, CATALOG).error is None)
    for one in hosts:
        assert together <= fitting_builds([one], request_, CATALOG)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.lists(HOSTS, min_size=1, max_size=5))
def test_no_partition_into_fewer_images_exists(request_: Request, facts: list[HostFacts]) -> None:
    plan = planned(*facts, request=request_)
    assert plan.proven
    for image in plan.images:
        assert image.plan.error is None
    served = [one for image in plan.images for one in image.classes]
    for most in range(1, len(plan.images)):
        for places in itertools.product(range(most), repeat=len(served)):
            parts = [
                [one.facts for one, at in zip(served, places, strict=True) if at == number]
                for number in range(most)
            ]
            assert any(p and not fitting_builds(p, request_, CATALOG) for p in parts)


def changed(driver: str, *facts: HostFacts) -> tuple[FleetPlan, DriverChange]:
    resolver = FleetResolver(Request(), CATALOG)
    found = classes(*facts)
    return plan_fleet(found, resolver), change_driver(found, driver, resolver)


def members(found: Sequence[NodeClass]) -> list[tuple[str, ...]]:
    return [one.nodes for one in found]


OLD_T4 = host("418.87.01", "Tesla T4")


@cases(
    "facts driver images needed",
    ("no node needs it", [A100, B200], "580.95.05", (1, 1), []),
    ("an old node is freed", [OLD_T4, B200], "580.95.05", (2, 1), [("n0",)]),
    ("the large class stays", [OLD_T4, A100, A100, B200], "580.95.05", (2, 1), [("n0",)]),
    ("one more is served", [B200, OLD_B200], "580.95.05", (1, 1), [("n1",)]),
    ("an unknown node stays unknown", [A100, DARK], "580.95.05", (1, 1), []),
)
def test_who_needs_another_driver(
    facts: list[HostFacts], driver: str, images: tuple[int, int], needed: list[tuple[str, ...]]
) -> None:
    before, change = changed(driver, *facts)
    assert (len(before.images), len(change.plan.images)) == images
    assert members(change.changed) == needed
    assert change.lost == ()


def test_nodes_that_the_driver_drops_keep_theirs() -> None:
    before, change = changed("580.95.05", A100, K80)
    assert [one.node_class.nodes for one in change.lost] == [("n1",)]
    assert change.lost[0].error.code == "gpu-not-driven"
    assert nodes(change.plan) == nodes(before)


@settings(max_examples=40, deadline=None)
@given(st.lists(HOSTS, min_size=2, max_size=5), st.sampled_from(["535.104.05", "580.95.05"]))
def test_each_node_that_is_named_needs_the_driver(facts: list[HostFacts], driver: str) -> None:
    """Left with its own, there are more images, or fewer nodes that have one."""
    before, change = changed(driver, *facts)
    found = classes(*facts)
    now = (len(served(change.plan)), -len(change.plan.images))
    assert now >= (len(served(before)), -len(before.images))
    named = set(members(change.changed))
    for kept in named:
        other = [
            replace(one, facts=one.facts.with_driver(driver))
            if one.nodes in named and one.nodes != kept
            else one
            for one in found
        ]
        plan = plan_fleet(other, FleetResolver(Request(), CATALOG))
        assert (len(served(plan)), -len(plan.images)) < now


def served(plan: FleetPlan) -> list[str]:
    return [node for image in plan.images for node in image.nodes]
