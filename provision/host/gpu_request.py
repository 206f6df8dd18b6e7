"""How a container engine of this host is asked for its GPUs."""

from __future__ import annotations

from provision.model.plan import HostFacts


def gpus_to_request(facts: HostFacts | None) -> str:
    """How GPUs are requested from the engine: not at all if there are none, through CDI if only
    that is set up, else through the NVIDIA runtime.
    """
    if facts is None or not facts.gpus:
        return "none"
    docker = next((e for e in facts.engines or () if e.name == "docker"), None)
    if docker and not docker.gpu_runtime and docker.cdi_devices:
        return "cdi"
    return "runtime"
