"""Hosts in a word: what the resolver's tests ask about."""

from __future__ import annotations

from provision.model.plan import Gpu, HostFacts


def host(driver: str | None = "580.95.05", *gpus: str, **facts: str) -> HostFacts:
    """A host by its driver and its GPUs, each by name or as "8.6"."""
    found = []
    for text in gpus:
        head, dot, tail = text.partition(".")
        if dot and head.isdigit() and tail.isdigit():
            found.append(Gpu(compute_capability=(int(head), int(tail))))
        else:
            found.append(Gpu(name=text))
    return HostFacts(
        driver=driver,
        arch=facts.get("arch", "x86_64"),
        gpus=tuple(found) or None,
        python=facts.get("python"),
        label=facts.get("label", "this host"),
    )
