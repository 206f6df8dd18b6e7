"""A machine in four lines: its GPUs, their driver, the engine, and what can be done here. Pure.

What is missing is said as it is, and is no finding by itself: images are built on laptops and in
containers without a GPU, and without an engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from provision.doctor.model import Fact, Facts, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewLine:
    """One line: what was looked at, what it is, and where that was read."""

    what: Literal["gpu", "driver", "engine", "here"]
    says: str
    where: str


def overview(facts: Facts, *, unfit: bool) -> tuple[OverviewLine, ...]:
    """The lines, in their order. `unfit`: a sure cause keeps the GPUs from working."""
    gpu, driver, engine = _gpu(facts), _driver(facts), _engine(facts)
    here = OverviewLine(what="here", says=_conclusion(facts, unfit=unfit), where="")
    return (gpu, driver, engine, here)


def without_gpu(facts: Facts) -> str:
    """Why no program sees a GPU here; "" if one may see it, or if nothing is known of it."""
    count = _number(facts, "gpu.count")
    if _none_in_container(facts):
        return "the container was given none of the machine's GPUs"
    if _is(facts, "wsl") or _is(facts, "device.dxg"):
        given = _value(facts, "driver.installed") is not False
        return "" if given else "no NVIDIA GPU is given by Windows"
    if _words(facts, "gpu.names") or count is None:
        return ""
    if count == 0:
        return "no NVIDIA GPU is on the PCI bus"
    if _words(facts, "gpu.bound_to") == ("vfio-pci",):
        return "the GPU is held for virtual machines (vfio-pci)"
    return "the driver is not loaded" if _value(facts, "driver.loaded") is False else ""


def _gpu(facts: Facts) -> OverviewLine:
    names, count = _words(facts, "gpu.names"), _number(facts, "gpu.count")
    if names:
        several = Counter(names)
        says = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in several.items())
        return _reading("gpu", says, facts, "gpu.names")
    if _is(facts, "wsl"):
        there = _is(facts, "driver.installed")
        says = "given by Windows" if there else "no NVIDIA GPU is given by Windows"
        return _reading("gpu", says, facts, "driver.installed")
    if count is None:
        return _reading("gpu", "unknown: the PCI bus cannot be read here", facts, "gpu.count")
    if count == 0:
        return _reading("gpu", "no NVIDIA GPU on the PCI bus", facts, "gpu.count")
    says = f"{count} NVIDIA GPU{'' if count == 1 else 's'} on the PCI bus"
    if _none_in_container(facts):
        says += ", none in this container"
    elif _words(facts, "gpu.bound_to") == ("vfio-pci",):
        says += ", held for virtual machines (vfio-pci)"
    return _reading("gpu", says, facts, "gpu.count")


def _driver(facts: Facts) -> OverviewLine:
    version, cuda = _word(facts, "driver.version"), _word(facts, "driver.cuda")
    newest = f", CUDA up to {cuda}" if cuda else ""
    if version:
        flavour = _word(facts, "driver.flavour")
        kind = f", {flavour} kernel modules" if flavour else ""
        away = _is(facts, "machine.container") and not _is(facts, "driver.installed")
        where = "; its libraries are not in this container" if away else ""
        return _reading("driver", f"{version}{kind}{newest}{where}", facts, "driver.version")
    if _is(facts, "wsl") and _is(facts, "driver.installed"):
        return _reading("driver", f"the one of Windows{newest}", facts, "driver.installed")
    if _is(facts, "driver.installed"):
        return _reading("driver", "installed, not loaded", facts, "driver.installed")
    if "driver.installed" in facts:
        return _reading("driver", "not installed", facts, "driver.installed")
    return _reading("driver", "unknown", facts, "driver.installed")


def _engine(facts: Facts) -> OverviewLine:
    version, podman = _word(facts, "docker.version"), _word(facts, "podman.version")
    found: list[str] = []
    fact = "docker.installed"
    if version:
        fact = "docker.version"
        found.append(", ".join(filter(None, (f"Docker {version}", _gpu_access(facts)))))
    elif _is(facts, "docker.installed"):
        found.append(_silent_docker(facts))
    if podman or _is(facts, "podman.installed"):
        fact = fact if found else "podman.installed"
        found.append(f"podman {podman}" if podman else "podman")
    if not found and "docker.installed" not in facts:
        return _reading("engine", "unknown", facts, fact)
    return _reading("engine", "; ".join(found) or "none (not needed to build images)", facts, fact)


def _gpu_access(facts: Facts) -> str:
    """How the engine passes GPUs on; nothing where there are none."""
    ways = [
        words
        for fact, words in (("docker.nvidia_runtime", "NVIDIA runtime"), ("docker.cdi", "CDI"))
        if _is(facts, fact)
    ]
    has_gpus = _words(facts, "gpu.names") or _number(facts, "gpu.count")
    return " and ".join(ways) or ("no NVIDIA runtime" if has_gpus else "")


def _silent_docker(facts: Facts) -> str:
    if _is(facts, "docker.running"):
        return "Docker runs, but does not answer this user"
    if _is(facts, "machine.container"):
        return "the docker command, but no engine (its socket is not mounted in this container)"
    if _is(facts, "docker.engine"):
        return "Docker is installed, but not running"
    return "the docker command, but no engine"


def _conclusion(facts: Facts, *, unfit: bool) -> str:
    built = "images can be built"
    if _none_in_container(facts):
        return f"{built}, not GPU-tested: this container was started without GPUs (--gpus all)"
    if not _words(facts, "gpu.names"):
        if _is(facts, "wsl") and not _is(facts, "driver.installed"):
            return f"{built}, not GPU-tested"
        if _number(facts, "gpu.count") == 0:
            return f"{built}, not GPU-tested"
    if unfit:
        return f"{built}; GPU tests will fail until the error above is fixed"
    answers = "driver.version" in facts or "driver.cuda" in facts
    if _words(facts, "gpu.names") or (
        answers and (_number(facts, "gpu.count") or _is(facts, "wsl"))
    ):
        if _lacks_toolkit(facts):
            return f"{built}; to test them on the GPU, Docker needs the NVIDIA Container Toolkit"
        return f"{built} and tested on the GPU"
    return f"{built}; whether they can be GPU-tested is unknown"


def _lacks_toolkit(facts: Facts) -> bool:
    """An engine that uses the toolkit's hook shows no runtime of NVIDIA's."""
    return bool(
        _word(facts, "docker.version")
        and _value(facts, "docker.nvidia_runtime") is False
        and not _is(facts, "docker.cdi")
        and _value(facts, "toolkit.hook") is False
    )


def _none_in_container(facts: Facts) -> bool:
    """A container sees the whole bus and the kernel's driver, and only the devices given to it."""
    return (
        _is(facts, "machine.container")
        and _number(facts, "device.gpus") == 0
        and not _is(facts, "device.dxg")
        and bool(_number(facts, "gpu.count") or _word(facts, "driver.version"))
    )


def _reading(
    what: Literal["gpu", "driver", "engine"], says: str, facts: Facts, name: str
) -> OverviewLine:
    fact = facts.get(name)
    return OverviewLine(what=what, says=says, where=fact.where if fact else "")


def _value(facts: Facts, name: str) -> Value | None:
    fact: Fact | None = facts.get(name)
    return fact.value if fact else None


def _is(facts: Facts, name: str) -> bool:
    return _value(facts, name) is True


def _number(facts: Facts, name: str) -> int | None:
    value = _value(facts, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(facts: Facts, name: str) -> str:
    value = _value(facts, name)
    return value if isinstance(value, str) else ""


def _words(facts: Facts, name: str) -> Sequence[str]:
    value = _value(facts, name)
    return value if isinstance(value, tuple) else ()
