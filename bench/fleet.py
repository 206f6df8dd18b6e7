"""How long one plan for a fleet of 10,000 hosts takes, beside a plan for one of them.

    ./run python bench/fleet.py

Two fleets: one as they are (a few dozen kinds of node), and one in which no two hosts are alike, so
that nothing can be shared. Medians; both are run in turn, in one process, on the shipped catalog.
The budget is 5 s.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

from provision.catalog.loading import load
from provision.model.plan import Gpu, HostFacts, Request
from provision.resolve import resolve

HOSTS = 10_000
ROUNDS = 5


def fleet(*, alike: bool) -> tuple[HostFacts, ...]:
    """Nodes of one to eight GPUs, their drivers from a few versions or each its own."""
    chance = random.Random(7)
    catalog = load()
    models = [row for row in catalog.gpus if row.compute_capability >= (7, 5)]
    drivers = ("535.104.05", "550.54.15", "570.124.06", "580.95.05")
    kinds = [(chance.choice(models), chance.choice(drivers)) for _ in range(40)]
    hosts = []
    for number in range(HOSTS):
        model, driver = chance.choice(kinds)
        if not alike:
            model = chance.choice(models)
            driver = f"{chance.choice((535, 550, 570, 580))}.{number // 100 + 50}.{number % 100:02}"
        gpu = Gpu(name=model.name, compute_capability=model.compute_capability)
        hosts.append(
            HostFacts(
                driver=driver,
                arch="x86_64",
                python="3.11",
                gpus=(gpu,) * chance.randint(1, 8),
                label=f"node{number}",
            )
        )
    return tuple(hosts)


def seconds(hosts: Sequence[HostFacts], request: Request) -> float:
    """Wall time of one plan."""
    began = time.perf_counter()
    resolve(hosts, request, load())
    return time.perf_counter() - began


def main() -> None:
    """Print the medians."""
    groups = {"one host": fleet(alike=True)[:1], "10,000 hosts, 40 kinds": fleet(alike=True),
              "10,000 hosts, none alike": fleet(alike=False)}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(ROUNDS):
        for name, hosts in groups.items():
            times[name].append(seconds(hosts, Request()))
    for name, found in times.items():
        print(f"{name:<26} {statistics.median(found) * 1000:8.1f} ms")


if __name__ == "__main__":
    main()
