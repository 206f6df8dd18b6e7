"""For which GPUs `provision export` writes a job: their names, and whether the image runs there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provision.catalog.catalog import Catalog
from provision.errors import BadInputError
from provision.model.plan import ComputeCapability, Gpu, HostFacts, Plan, Request
from provision.model.request import parse_compute_capability
from provision.resolve import resolve
from provision.verification.on_host import judge_host


class Placement(NamedTuple):
    """The kinds of GPU of a job, as in a `Deployment`, and the oldest driver for it on them."""

    products: tuple[str, ...]
    capabilities: tuple[ComputeCapability, ...]
    driver: str | None


def placement(
    plan: Plan, named: Sequence[Gpu], cut: Sequence[ComputeCapability], catalog: Catalog
) -> Placement:
    """Where an image of a plan can run: on the GPUs that are named, else on those of its plan. A
    family stands for its products. BadInputError: it does not run on one of them.
    """
    gpus = tuple(dict.fromkeys(named or _gpus_of(plan)))
    for gpu in gpus:
        _refuse_contradiction(plan, gpu, cut, catalog)
    products: dict[str, None] = {}
    capabilities: dict[ComputeCapability, None] = {}
    for gpu in gpus:
        names = catalog.products(gpu.name) if gpu.name else ()
        products.update(dict.fromkeys(names))
        if not names and (capability := catalog.capability_of(gpu)) is not None:
            capabilities[capability] = None
    driver = None if plan.compat_package else _driver(plan, gpus, catalog)
    return Placement(tuple(products), tuple(capabilities), driver)


def _gpus_of(plan: Plan) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            name=one.name,
            compute_capability=parse_compute_capability(one.compute_capability or ""),
        )
        for one in plan.gpus
    )


def _refuse_contradiction(
    plan: Plan, gpu: Gpu, cut: Sequence[ComputeCapability], catalog: Catalog
) -> None:
    arch = catalog.find_gpu(gpu.name).host_arch if gpu.name else None
    found = judge_host(plan, HostFacts(gpus=(gpu,), arch=arch or plan.arch), catalog, cut)
    if found.runs is not False:
        return
    name = gpu.name or ".".join(map(str, gpu.compute_capability or ()))
    why = found.message.removesuffix(".")
    if found.how == "other-processor":
        why = f"it is for {plan.arch}, and such machines are {arch}"
    raise BadInputError(
        f"The image does not run on {name}: {why}.",
        fix=f"Build one for it: provision build --gpu '{name}' --driver VERSION; or name a GPU "
        "that this image is for: --gpu NAME",
    )


def _driver(plan: Plan, gpus: tuple[Gpu, ...], catalog: Catalog) -> str | None:
    """The oldest driver for the image on these GPUs; that of its plan where the catalog does not
    have its build.
    """
    request = Request(
        framework=plan.framework, framework_version=f"=={plan.framework_version}", cuda=plan.cuda
    )
    found = resolve([HostFacts(gpus=gpus or None, arch=plan.arch)], request, catalog)
    return plan.driver_need if found.error is not None else found.driver_need
