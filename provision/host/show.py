"""Host facts in a line."""

from __future__ import annotations

from collections import Counter

from provision.model.plan import HostFacts


def in_short(facts: HostFacts) -> str:
    """One line: "2 x NVIDIA H100 80GB HBM3, driver 550.54.15"."""
    if facts.gpus:
        names = Counter(gpu.name or "unnamed GPU" for gpu in facts.gpus)
        gpus = ", ".join(
            f"{count} x {name}" if count > 1 else name for name, count in names.items()
        )
    else:
        gpus = "GPUs unknown" if facts.gpus is None else "no NVIDIA GPU"
    return f"{gpus}, {f'driver {facts.driver}' if facts.driver else 'no driver found'}"
