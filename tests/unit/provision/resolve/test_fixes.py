"""Every fix that a plan prints works: it is read from the text, followed, and planned again."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from provision.catalog.loading import load
from provision.model.plan import HostFacts, Plan, Request
from provision.model.request import parse_request
from provision.resolve import resolve
from provision.resolve.cures import NO_CURE
from provision.resolve.packages import companions_of, ties
from provision.resolve.specifiers import version
from tests.kit.cases import cases
from tests.kit.fixes import ways, with_alternative, without_limit
from tests.kit.hosts import host
from tests.unit.provision.resolve.test_companions import (
    test_what_does_not_belong_to_the_build_is_refused as companions_table,
)
from tests.unit.provision.resolve.test_drivers import (
    test_a_driver_that_cannot_drive_a_gpu_is_refused as driven_table,
)
from tests.unit.provision.resolve.test_drivers import (
    test_a_gpu_without_code_is_told_which_builds_have_it as code_table,
)
from tests.unit.provision.resolve.test_drivers import (
    test_a_refusal_has_the_exit_code_of_what_has_to_change as exit_table,
)
from tests.unit.provision.resolve.test_known_wrong_answers import (
    test_the_right_refusal as known_table,
)
from tests.unit.provision.resolve.test_other_frameworks import (
    test_frameworks_that_do_not_go_together_are_refused as beside_table,
)

CATALOG = load()
GPUS = ("Tesla K80", "GTX 980", "GTX 1080 Ti", "Tesla V100-PCIE-16GB", "T4", "A100", "8.6", "H100",
        "RTX 4090", "B200", "RTX 5090", "12.1", "Orin", "Jetson AGX Thor")  # fmt: skip
DRIVERS = (None, "390.157", "440.33", "450.80.02", "470.256.02", "470", "515.65.01", "535.183.06",
           "550.54.14", "570.86.16", "580.95.05", "595.45.04")  # fmt: skip
RELEASES = {
    "pytorch": (None, "1.13.1", "2.0.1", "2.5.0", "2.8.0", "2.15.0", ">=2.2,<2.4", "9.9"),
    "tensorflow": (None, "2.10.1", "2.15.0", "2.17.0", "2.21.0", "2.4.0"),
    "jax": (None, "0.4.30", "0.6.2", "0.10.2"),
}
CUDAS = (None, None, "10.2", "11.2", "11.7", "11.8", "12.1", "12.4", "12.6", "12.8", "13.0", "13.2")
PYTHONS = (None, None, None, "3.8", "3.10", "3.12", "3.14")
BASES = (None, None, None, "bootstrap", "python:3.11-slim-bookworm",
         "nvidia/cuda:11.8.0-runtime-ubuntu22.04",
         "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04", "registry.example/own:1")  # fmt: skip
COMPANIONS = ((), (), (), ("torchvision",), ("torchvision==0.15.2",), ("torchvision==0.20.1+cpu",),
              ("numpy==2.1.0",), ("torchaudio==2.5.1", "torchvision==0.20.1"), ("jax",),
              ("jax==0.4.14",), ("tensorflow",), ("torch==2.4.1",), ("cupy-cuda11x",),
              ("torchcodec==0.2.1",))  # fmt: skip


ASKED_FOR: tuple[tuple[tuple[str | None, ...], dict[str, object]], ...] = (
    (("580.95.05", "GTX 1080 Ti", "RTX 5090"), {}),
    (("595.45.04", "RTX 5090", "Tesla K80"), {}),
    (("470.256.02", "Tesla V100-PCIE-16GB"), {"cuda": "12.1", "base": "bootstrap"}),
    (("580.95.05", "H100"), {"framework": "jax", "framework_version": "0.4.30", "cuda": "12.4",
                             "base": "bootstrap", "flavour": "devel"}),
    (("580.95.05", "T4"), {"framework": "tensorflow", "framework_version": "2.10.1",
                           "base": "bootstrap"}),
    (("550.54.14", "RTX 4090"), {"framework": "jax", "framework_version": "0.4.30",
                                 "base": "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04"}),
    (("595.45.04", "H100"), {"framework": "tensorflow", "framework_version": "2.10.1"}),
    (("515.65.01", "Jetson AGX Thor"), {"framework": "tensorflow", "framework_version": "2.17.0"}),
    (("535.183.06", "Jetson AGX Thor"), {"framework": "tensorflow"}),
    (("580.95.05", "Radeon RX 7900 XTX"), {}),
    ((None, "GTX 1080 Ti"), {"framework": "jax", "python": "3.8"}),
    (("450.80.02", "Tesla K80"), {}),
    (("580.95.05", "GTX 980"), {"companions": ["torchaudio"]}),
    ((None,), {"base": "registry.example/own:1", "framework": "tensorflow-gpu"}),
    (("510.47.03", "GTX 980"), {"framework": "tensorflow", "framework_version": "2.10.1",
                                "base": "python:3.8-slim"}),
    (("580.95.05", "8.6"), {"framework_version": "99.1"}),
)  # fmt: skip
"""A driver with GPUs, and the request, for what the tables and the draw seldom or never have."""
CODES = {
    "base-refuses-to-start", "companion-mismatch", "cudnn-lacks-gpu", "driver-too-old",
    "framework-beside", "gpu-not-driven", "gpu-not-nvidia", "mixed-cpu-architectures",
    "no-common-build", "no-compat-base", "no-cuda-base", "no-devel-base", "no-gpu-code",
    "no-such-build", "no-wheel-for-python", "ptx-needs-newer-driver", "ptx-of-one-gpu",
}  # fmt: skip


class Asked(NamedTuple):
    """What is planned."""

    hosts: Sequence[HostFacts]
    request: Request


def rows(table: object) -> list[tuple[object, ...]]:
    """The values of a parametrized test."""
    mark = next(one for one in table.pytestmark if one.name == "parametrize")  # type: ignore[attr-defined]
    return [row.values for row in mark.args[1]]


def of_the_tables() -> Iterator[Asked]:
    """The refused rows of the other tables."""
    for companions, asked, *_ in rows(companions_table):
        request = parse_request(companions=companions, **asked)  # type: ignore[arg-type]
        yield Asked([host("550.54.14", "8.6")], request)
    for companion, asked, *_ in rows(beside_table):
        request = parse_request(companions=[companion], **asked)  # type: ignore[arg-type,list-item]
        yield Asked([host("580.95.05", "8.6")], request)
    for facts, asked_for, *_ in (*rows(code_table), *rows(exit_table)):
        assert isinstance(facts, HostFacts)
        assert isinstance(asked_for, Request)
        yield Asked([facts], asked_for)
    for asked_for, facts, *_ in rows(known_table):
        assert isinstance(facts, HostFacts)
        assert isinstance(asked_for, Request)
        yield Asked([facts], asked_for)
    for driver, gpus, *_ in rows(driven_table):
        yield Asked([host(driver, *gpus)], Request())  # type: ignore[arg-type,misc]
    for (driver, *gpus), asked in ASKED_FOR:
        yield Asked([host(driver, *gpus)], parse_request(**asked))  # type: ignore[arg-type]
    two = [host("515.65.01", "8.6", label="a", arch=arch) for arch in ("x86_64", "aarch64")]
    yield Asked(two, Request(cuda="11.7"))
    three = [host(driver, "A100", label=driver) for driver in ("440.33", "535.54.03", "580.95.05")]
    yield Asked(three, Request(cuda="12.6"))


def drawn(count: int, seed: int) -> Iterator[Asked]:
    """Requests and hosts of all kinds: one GPU, two in one machine, two machines, an Arm one."""
    rng = random.Random(seed)
    for _ in range(count):
        framework = rng.choice(("pytorch", "pytorch", "tensorflow", "jax"))
        request = parse_request(
            framework=framework,
            framework_version=rng.choice(RELEASES[framework]),
            cuda=rng.choice(CUDAS),
            python=rng.choice(PYTHONS),
            base=rng.choice(BASES),
            companions=rng.choice(COMPANIONS),
            flavour=rng.choice(("runtime", "runtime", "runtime", "devel")),
        )
        shape, first = rng.random(), rng.choice(GPUS)
        arch = "aarch64" if rng.random() < 0.1 else "x86_64"
        hosts = [host(rng.choice(DRIVERS), first, arch=arch)]
        if shape < 0.1:
            hosts = [host(rng.choice(DRIVERS), first, rng.choice(GPUS))]
        elif shape < 0.25:
            other = host(rng.choice(DRIVERS), rng.choice(GPUS), label="node-b")
            hosts = [hosts[0]._replace(label="node-a"), other]
        yield Asked(hosts, request)


class Tried:
    """What was followed, and what of it does not plan."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []

    def of(self, asked: Asked) -> None:
        """Follow all that the plan for this request prints."""
        plan = resolve(asked.hosts, asked.request, CATALOG)
        self._refusal(asked, plan)
        for one in plan.alternatives:
            again = resolve(asked.hosts, with_alternative(asked.request, one), CATALOG)
            same = (again.cuda, again.framework_version) == (one.cuda, one.framework_version)
            self._note("alternatives", f"{asked} {one}", works=again.error is None and same)
        if plan.limited_by is not None:
            rest = without_limit(asked.hosts, plan.limited_by)
            again = resolve(rest, asked.request, CATALOG)
            same = again.framework_version == plan.limited_by.framework_version
            self._note("limits", f"{asked} {plan.limited_by}", works=again.error is None and same)
        for warning in plan.warnings:
            self._warning(asked, plan, warning.fix)

    def _refusal(self, asked: Asked, plan: Plan) -> None:
        if plan.error is None:
            return
        self.count[plan.error.code] += 1
        if plan.error.fix == NO_CURE:
            free = _free(asked.request)
            works = resolve(asked.hosts, free, CATALOG).error is not None
            self._note("no cure", f"{asked} has a cure", works=works)
        for way in ways(plan.error, asked.hosts, asked.request, CATALOG):
            again = resolve(way.hosts, way.request, CATALOG).error
            said = f"{asked}\n{plan.error.message} FIX {way.text} AGAIN {again and again.message}"
            self._note("fixes", said, works=again is None)

    def _warning(self, asked: Asked, plan: Plan, fix: str) -> None:
        after = _after_warning(asked, plan, fix)
        if after is None:
            assert not re.search(r"--(?!gpu NAME|driver VERSION|rm |gpus |query|format)", fix), fix
            return
        again = resolve(after.hosts, after.request, CATALOG)
        native = again.verdict != "minor-version" or "driver" not in fix
        self._note("warnings", f"{asked} {fix}", works=again.error is None and native)

    def _note(self, kind: str, said: str, *, works: bool) -> None:
        self.count[kind] += 1
        if not works:
            self.wrong.append(f"{kind}: {said}")


def _after_warning(asked: Asked, plan: Plan, fix: str) -> Asked | None:
    """What there is to plan after the fix of a warning; None: it changes neither."""
    hosts, request = asked
    if fix.startswith("Remove --base: "):
        return Asked(hosts, request._replace(base=None))
    if found := re.match(r"Specify it: --python ([\d.]+)", fix):
        return Asked(hosts, request._replace(python=found[1]))
    if found := re.match(r"Use --framework (\w+);", fix):
        assert found[1] == request.framework
        return Asked(hosts, request._replace(asked_as=None))
    if found := re.match(r"Use --cuda (\S+) --framework-version (\S+?)\.$", fix):
        release = f"=={found[2]}"
        return Asked(hosts, request._replace(cuda=found[1], framework_version=release))
    if found := re.match(r"Pin its last version: --with ((\S+?)==\S+)$", fix):
        others = (one for one in request.companions if one != found[2])
        return Asked(hosts, request._replace(companions=(*others, found[1])))
    if found := re.match(r"Upgrade the driver to one that natively supports CUDA ([\d.]+)", fix):
        toolkit = CATALOG.toolkit(found[1])
        assert toolkit is not None
        driver = str(toolkit.driver)
        release = f"=={plan.framework_version}"
        return Asked(
            [
                one.with_driver(driver) if version(one.driver or "0") < version(driver) else one
                for one in hosts
            ],
            request._replace(cuda=plan.cuda, framework_version=release),
        )
    return None


def _free(request: Request) -> Request:
    """A request without anything that limits which build it gets."""
    free = [one.text for one in companions_of(request) if not ties(one, request.framework)]
    return Request(framework=request.framework, companions=tuple(free))


def test_every_fix_that_a_plan_prints_plans() -> None:
    tried = Tried()
    for asked in (*of_the_tables(), *drawn(50, seed=3)):
        tried.of(asked)
    assert tried.wrong == []
    assert CODES - set(tried.count) == set()
    assert tried.count["fixes"] >= 150
    assert tried.count["alternatives"] >= 80
    assert tried.count["limits"] >= 2
    assert tried.count["warnings"] >= 5
    assert tried.count["no cure"] >= 3


@cases(
    "gpu driver request_ fix",
    ("a release that has no build for the CUDA", "A100", "515.65.01",
     Request(framework_version="==2.1.0", cuda="11.7"),
     "Use --cuda 11.8, or use --framework-version 2.0.1."),
    ("the CUDA without code for the GPU", "H100", "535.104.05",
     Request(framework_version="==2.0.1", cuda="11.7"), "Use --cuda 11.8."),
    ("a base without that Python", "RTX 4090", "580.95.05",
     Request(framework_version="==2.11.0", python="3.12", base="bootstrap"),
     "Use --python 3.11, or remove --base."),
    ("Debian packages, which only such a base takes", "RTX 4090", "580.95.05",
     Request(framework_version="==2.11.0", python="3.12", apt=("git",)),
     "Use --python 3.11, or remove --apt."),
)  # fmt: skip
def test_the_smallest_changes_are_named(gpu: str, driver: str, request_: Request, fix: str) -> None:
    error = resolve([host(driver, gpu)], request_, CATALOG).error
    assert error is not None
    assert error.fix == fix
