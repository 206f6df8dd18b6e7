"""The page of `provision catalog page`, made once for all tests that need it, and random questions
for it.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.catalog import Catalog
from provision.model.plan import Request
from provision.model.planfile import plan_to_json
from provision.page.questions import choices, host_of
from provision.resolve import resolve
from provision.resolve.specifiers import driver_is_at_least, version
from tests import ROOT
from tests.kit.once import made_once

LIMIT_S = 900  # one to two minutes of processor time, beside other tests
KEPT_BY_OTHERS = ("schema", "flavour", "blocked", "limited_by")  # the same for every question


def shared_page(temporary: pytest.TempPathFactory) -> Path:
    """The page, written by the command, once for all workers of a run."""

    def write(folder: Path) -> None:
        words = ["-m", "provision", "catalog", "page", "--output", str(folder)]
        subprocess.run([sys.executable, *words], check=True, timeout=LIMIT_S, cwd=ROOT)

    return made_once(temporary, "page", write) / "index.html"


def drivers_to_ask(catalog: Catalog, chance: random.Random) -> list[str | None]:
    """Drivers of every known branch: those of the tables, the numbers beside them, and others."""
    known = [row.min_driver for row in catalog.families]
    known += [row.driver for row in catalog.toolkits if row.driver]
    known += [v for row in catalog.branches for v in (row.first_version, row.latest_seen) if v]
    found: list[str | None] = [None, *(text for text in known if "." in text)]
    for text in known:
        head, dot, last = text.rpartition(".")
        if dot:
            found += [f"{head}.{max(int(last) + step, 0):02}" for step in (-1, 1)]
    for row in catalog.branches:
        found += [f"{row.branch}.{chance.randrange(200)}.{chance.randrange(20):02}"]
    branches = {row.branch for row in catalog.branches}
    return [d for d in dict.fromkeys(found) if d is None or version(d).major in branches]


def random_questions(catalog: Catalog, count: int, seed: int) -> list[dict[str, Any]]:
    """Questions that the page can be asked, as its scripts have them."""
    chance = random.Random(seed)
    drivers = drivers_to_ask(catalog, chance)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        one, gpu = chance.choice(choices(catalog)), chance.choice(catalog.gpus)
        if gpu.host_arch not in {None, one.arch}:
            continue
        question = {
            "gpus": [gpu.name],
            "driver": chance.choice(drivers),
            "framework": one.framework,
            "arch": one.arch,
            "cuda": chance.choice([None, *one.cudas]),
            "python": chance.choice([None, None, *one.pythons]),
        }
        found.append(question)
    return found


def planned(question: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """What `provision plan --json` says, as far as the page says it, too."""
    gpu = next(row for row in catalog.gpus if row.name == question["gpus"][0])
    request = Request(
        framework=question["framework"], cuda=question["cuda"], python=question["python"]
    )
    host = host_of(gpu, question["driver"], question["arch"])
    plan = plan_to_json(resolve([host], request, catalog))
    return {key: value for key, value in plan.items() if key not in KEPT_BY_OTHERS}


def answered(data: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    """What a page's data says of a question, looked up as its script does."""
    driver, (name,) = question["driver"], question["gpus"]
    gpu = next(row for row in data["gpus"] if row["name"] == name)
    ranges = [
        i
        for i, (branch, first, _) in enumerate(data["ranges"])
        if driver and branch == version(driver).major and driver_is_at_least(driver, first or "0")
    ]
    at = ranges[-1] if ranges else 0
    key = question["framework"], gpu["arch"] or question["arch"]
    which = [(one["framework"], one["arch"]) for one in data["choices"]].index(key)
    asked = data["choices"][which]
    python, cuda = (asked[f"{kind}s"].index(question[kind]) for kind in ("python", "cuda"))
    node = gpu["answers"]
    for position in (at, which, 0, python, cuda):
        node = data["nodes"][node][position + 1]
    told = {"gpu": name, "driver": driver, "native": data["ranges"][at][2], "since": gpu["since"]}
    found = _unfolded(data, node, {f"{{{hole}}}": str(text) for hole, text in told.items()})
    groups = [found.pop(group) for group in ("build", "image", "machine")]
    return {key: value for group in (*groups, found) for key, value in group.items()}


def _unfolded(data: dict[str, Any], node: int, holes: dict[str, str]) -> Any:
    value = data["nodes"][node]
    if isinstance(value, str):
        for hole, text in holes.items():
            value = value.replace(hole, text)
    if not isinstance(value, tuple):
        return value
    values = [_unfolded(data, child, holes) for child in value[1:]]
    keys = data["shapes"][value[0]]
    return dict(zip(keys, values, strict=True)) if value[0] else values
