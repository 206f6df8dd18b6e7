"""No input crashes the way from what was typed and what a host file says to a printed plan.

The same inputs every time; `--fuzz N` tries N others, by seeds that a failure names. Half of the
worth lies in near misses: real names, versions and files with a piece changed.
"""

from __future__ import annotations

import json
import os
import random
import string
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from images.errors import Failure
from provision.catalog.loading import load
from provision.cli.render.plan import describe_plan
from provision.errors import Exit
from provision.model.facts import parse_host
from provision.model.plan import HostFacts, Plan
from provision.model.planfile import plan_from_json, plan_to_json
from provision.model.request import parse_request
from provision.resolve import resolve

CATALOG = load()
FRAMEWORKS = ("pytorch", "pytorch", "pytorch", "torch", "tensorflow", "tensorflow-gpu", "jax")
CUDAS = (*CATALOG.cuda_versions(), "cu117", "cu130", "11.77", "9.9")
SPECS = ("2.0.1", ">=2", "<2.1", "==2.*", "~=2.4", "!=2.0.1", "1.13.1", ">=99", "2.15.0", "0.4.30")
BASES = ("bootstrap", "python:3.11-slim-bookworm", "nvidia/cuda:12.8.1-devel-ubuntu22.04", "a/b:c")
DRIVERS = tuple(row.first_version or f"{row.branch}.10" for row in CATALOG.branches)
NAMES = tuple(row.name for row in CATALOG.gpus)
CHUNK = 2500
SAME = 10_000  # inputs, without --fuzz


def near(chance: random.Random, text: str) -> str:
    """The text, or the text with a letter more, less or other."""
    if chance.random() < 0.8 or not text:
        return text
    at = chance.randrange(len(text))
    letter = chance.choice(string.printable + "é\x00\u202e\uff18")
    return chance.choice((text[:at] + text[at + 1 :], text[:at] + letter + text[at:], letter))


def some(chance: random.Random, words: tuple[str, ...], often: float = 0.5) -> str | None:
    return near(chance, chance.choice(words)) if chance.random() < often else None


def any_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 2 else 6)
    if kind < 6:
        return (None, True, -1, 1e309, "8.6", [])[kind]
    if kind == 6:
        return [any_value(chance, depth + 1) for _ in range(2)]
    return {chance.choice(("driver", "gpus", "x")): any_value(chance, depth + 1)}


def host_text(chance: random.Random) -> str:
    """A host facts file, mostly well formed."""
    gpus = [
        {
            "name": some(chance, NAMES, 0.8),
            "compute_capability": some(chance, ("8.6", "12.0", "7.0", "9.0", "99.9"), 0.4),
        }
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3)))
    ]
    facts: dict[str, Any] = {
        "schema": 1,
        "driver": some(chance, DRIVERS, 0.9),
        "arch": some(chance, ("x86_64", "x86_64", "aarch64"), 0.9),
        "python": some(chance, ("3.8", "3.10", "3.12"), 0.5),
        "gpus": gpus,
    }
    if chance.random() < 0.1:
        facts[chance.choice(tuple(facts))] = any_value(chance)
    text = json.dumps(facts)
    return near(chance, text) if chance.random() < 0.1 else text


def one_plan(chance: random.Random) -> Plan | None:
    """What a user would get; None: refused as bad input."""
    try:
        request = parse_request(
            cuda=some(chance, CUDAS),
            framework=near(chance, chance.choice(FRAMEWORKS)),
            framework_version=some(chance, SPECS, 0.25),
            python=some(chance, ("3.8", "3.11", "3.13", "2.7"), 0.2),
            companions=tuple(filter(None, [some(chance, ("torchvision", "x>1"), 0.1)])),
            flavour=chance.choice(("runtime", "runtime", "devel")),
            base=some(chance, BASES, 0.1),
        )
        number = chance.choice((1, 1, 1, 1, 2, 3))
        hosts = [parse_host(host_text(chance), label=f"h{i}") for i in range(number)]
    except Failure as failure:
        if not failure.fix or failure.exit_code != Exit.USAGE:
            raise RuntimeError(f"a refusal without fix, or of another kind: {failure}") from failure
        return None
    return resolve(hosts, request, CATALOG)


def judge(plan: Plan) -> None:
    """What holds of every plan."""
    text = describe_plan(plan, explain=True)
    assert all(line == line.rstrip() for line in text.splitlines())
    read_back = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
    assert plan_to_json(read_back) == plan_to_json(plan), "we read what we write"
    assert (plan.error is None) == (plan.verdict != "none")
    if plan.error is not None:
        assert plan.error.code
        assert plan.error.message
        assert plan.error.fix
        return
    assert plan.base is not None
    assert plan.python is not None
    assert plan.cuda is not None
    assert plan.indexes
    assert all(reason.source and reason.message for reason in plan.reasons)
    assert all(warning.fix for warning in plan.warnings)
    if plan.verdict in {"direct", "minor-version", "forward"}:
        assert all(gpu.ok for gpu in plan.gpus)


def run_chunk(seed: int, count: int) -> tuple[int, str]:
    """How many plans came of `count` inputs, and what went wrong with the first bad one."""
    chance = random.Random(seed)
    made = 0
    for number in range(count):
        state = chance.getstate()
        try:
            plan = one_plan(chance)
            if plan is not None:
                made += 1
                judge(plan)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            chance.setstate(state)
            return made, f"seed {seed}, input {number}: {type(error).__name__}: {error}"
    return made, ""


def test_no_input_crashes(request: pytest.FixtureRequest) -> None:
    asked: int | None = request.config.getoption("--fuzz")
    total = asked or SAME
    first = random.SystemRandom().randrange(1 << 30) if asked else 0
    seeds = range(first, first + (total + CHUNK - 1) // CHUNK)
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        results = list(pool.map(run_chunk, seeds, [min(CHUNK, total)] * len(seeds)))
    assert [problem for _, problem in results if problem] == []
    made = sum(count for count, _ in results)
    assert made > total / 4, "the inputs are too wild to reach the resolver"


def test_the_fuzz_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(hosts: list[HostFacts], *_: object) -> Plan:
        raise KeyError(hosts[0].driver)

    monkeypatch.setattr("tests.unit.provision.resolve.test_fuzz.resolve", broken)
    assert "KeyError" in run_chunk(1, 50)[1]
