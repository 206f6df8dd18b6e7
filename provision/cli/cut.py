"""`--cut`: the GPUs whose code an image keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.options import what_if_gpu
from provision.errors import BadInputError
from provision.lock.labels import TARGET, targets_of
from provision.model.plan import ComputeCapability, Gpu, HostFacts

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog


def read_cut(text: str | None, catalog: Catalog, builder: str = "auto") -> tuple[Gpu, ...]:
    """The GPUs of --cut: names of the catalog, or "sm_86" or "8.6"; (): the option is not given.
    BadInputError: one is not known, or the builder does not cut.
    """
    if text is None:
        return ()
    if builder == "docker":
        raise BadInputError(
            "An engine installs packages as they are; --cut changes their libraries.",
            fix="Use --builder oci.",
        )
    found = tuple(_gpu(word.strip(), catalog) for word in text.split(",") if word.strip())
    if not found:
        raise BadInputError("--cut names no GPU.", fix="For example: --cut A40, or --cut sm_86")
    return found


def _gpu(word: str, catalog: Catalog) -> Gpu:
    if match := TARGET.fullmatch(word):
        return Gpu(compute_capability=(int(match[1]), int(match[2])))
    return what_if_gpu(word, catalog, "--cut")


def capabilities(gpus: Sequence[Gpu]) -> tuple[ComputeCapability, ...]:
    """Their compute capabilities, ascending, each once."""
    return tuple(sorted({gpu.compute_capability for gpu in gpus if gpu.compute_capability}))


def planned_for(hosts: Sequence[HostFacts], cut: Sequence[Gpu]) -> tuple[HostFacts, ...]:
    """The hosts that an image with code for the GPUs of --cut is for: the same, with these GPUs."""
    if not cut:
        return tuple(hosts)
    gpus = tuple(cut)
    return tuple(
        facts._replace(
            gpus=gpus, sources=tuple(pair for pair in facts.sources if pair[0] != "gpus")
        )
        for facts in hosts
    )


def refuse_contradiction(named: Sequence[Gpu], cut: Sequence[Gpu]) -> None:
    """Refuse a GPU of --gpu whose code --cut would remove. BadInputError: there is one."""
    kept = capabilities(cut)
    for gpu in named:
        if cut and gpu.compute_capability not in kept:
            (target,) = targets_of([gpu.compute_capability or (0, 0)])
            raise BadInputError(
                f"--gpu asks for an image for {gpu.name or target}, and --cut removes its code.",
                fix=f"Name it in both: --cut {','.join([*targets_of(kept), target])}",
            )
