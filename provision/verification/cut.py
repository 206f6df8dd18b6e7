"""Images that have code for some GPUs alone (`provision build --cut`) do not run on others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from images.errors import Failure
from provision.catalog.catalog import Catalog
from provision.errors import Exit
from provision.lock.labels import cut_of, targets_of
from provision.model.plan import ComputeCapability, Gpu, HostFacts


class OtherGpuError(Failure):
    """An image without code for a GPU of this machine, because that code was removed."""

    code = "cut-for-other-gpu"
    exit_code = Exit.NOTHING_COMPATIBLE


def refuse_other_gpus(
    labels: Mapping[str, str], image: str, facts: HostFacts, catalog: Catalog
) -> None:
    """Refuse an image on a machine with a GPU whose code was removed from it, before anything runs.
    OtherGpuError: there is such a GPU.
    """
    cut = cut_of(labels, image)
    other = other_gpu(cut, facts, catalog)
    if other is None or other.compute_capability is None:
        return
    (target,) = targets_of([other.compute_capability])
    kept = targets_of(cut)
    raise OtherGpuError(
        f"{image} has GPU code for {' and '.join(kept)} alone (--cut), and this machine has "
        f"{_name(other)} ({target}).",
        fix=f"Build one for it: provision build --cut {','.join([*kept, target])}; without --cut "
        "the image has the code for all GPUs of its packages",
    )


def other_gpu(cut: Collection[ComputeCapability], facts: HostFacts, catalog: Catalog) -> Gpu | None:
    """The first GPU of a machine that is not one of `cut`, with its capability, from the catalog if
    the machine does not say it; None: all are, or nothing was cut, or the others are not known.
    """
    for gpu in (facts.gpus or ()) if cut else ():
        capability = catalog.capability_of(gpu)
        if capability is not None and capability not in cut:
            return gpu._replace(compute_capability=capability)
    return None


def _name(gpu: Gpu) -> str:
    return f"a {gpu.name}" if gpu.name else "a GPU"
