"""Images that have code for some GPUs alone (`provision build --cut`) do not run on others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from images.errors import Failure
from provision.errors import Exit
from provision.lock.labels import cut_of, targets_of
from provision.model.plan import ComputeCapability, Gpu, HostFacts


class OtherGpuError(Failure):
    """An image without code for a GPU of this machine, because that code was removed."""

    code = "cut-for-other-gpu"
    exit_code = Exit.NOTHING_COMPATIBLE


def refuse_other_gpus(labels: Mapping[str, str], image: str, facts: HostFacts) -> None:
    """Refuse an image on a machine with a GPU whose code was removed from it, before anything runs.
    OtherGpuError: there is such a GPU.
    """
    cut = cut_of(labels, image)
    if (other := other_gpu(cut, facts)) is not None:
        kept = " and ".join(targets_of(cut))
        capability = other.compute_capability
        assert capability is not None
        (target,) = targets_of([capability])
        raise OtherGpuError(
            f"{image} has GPU code for {kept} alone (--cut), and this machine has "
            f"{_name(other)} ({target}).",
            fix=f"Build one for it: provision build --cut {','.join([*targets_of(cut), target])}; "
            "without --cut the image has the code for all GPUs of its packages",
        )


def other_gpu(cut: Collection[ComputeCapability], facts: HostFacts) -> Gpu | None:
    """The first GPU of a machine that is not one of `cut`; None: all are, or nothing was cut, or
    their capabilities are not known.
    """
    if not cut:
        return None
    known = (gpu for gpu in facts.gpus or () if gpu.compute_capability is not None)
    return next((gpu for gpu in known if gpu.compute_capability not in cut), None)


def _name(gpu: Gpu) -> str:
    return f"a {gpu.name}" if gpu.name else "a GPU"
