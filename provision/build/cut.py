"""`provision build --cut`: layers with code for some GPUs alone, and what was removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from images.oci.sources import LayerSource
from images.store.store import Store
from provision.catalog.catalog import Catalog
from provision.errors import NothingCompatibleError
from provision.lock.labels import targets_of
from provision.model.plan import ComputeCapability, Plan
from provision.output.console import Console
from provision.resolve.builds import builds_of
from provision.resolve.fleet import GpuKind
from provision.resolve.rules.gpu_code import code_blocker, code_for

if TYPE_CHECKING:
    from images.layers.cut import LibraryCut

LICENCE = (
    "--cut modifies libraries, and NVIDIA's licences allow neither modifying its libraries nor "
    "distributing modified ones without its permission: for your own use only, do not distribute "
    "this image (docs/images.md quotes the licence)."
)
_FACTS = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutReport:
    """What was removed from an image, for GPUs by compute capability. `libraries` are those with
    GPU code, without the ranges. `unknown` are the layers whose libraries were not read: the target
    had the layer, and its wheel is not on this machine.
    """

    gpus: tuple[ComputeCapability, ...]
    libraries: tuple[LibraryCut, ...]
    unknown: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[LibraryCut, ...]:
        """The libraries that differ from those of their wheels."""
        return tuple(one for one in self.libraries if one.sha256 is not None)

    def to_json(self) -> dict[str, Any]:
        """The part of the account of the build."""
        return {
            "gpus": targets_of(self.gpus),
            "before_bytes": sum(one.before for one in self.libraries),
            "after_bytes": sum(one.after for one in self.libraries),
            "libraries": [_to_json(one) for one in self.libraries],
            "not_read": list(self.unknown),
        }


def refuse_without_code(
    plans: Iterable[Plan], gpus: Iterable[ComputeCapability], catalog: Catalog
) -> None:
    """Refuse GPUs that a lock's build has no code for: nothing of it would be left for them. What
    the catalog does not know is not refused. NothingCompatibleError: there is such a GPU.
    """
    for plan in plans:
        build = next(
            (
                one
                for one in builds_of(plan.framework, plan.arch or "", catalog)
                if (one.version, one.cuda, one.tag)
                == (plan.framework_version, plan.cuda, plan.wheel_tag)
            ),
            None,
        )
        for gpu in gpus if build else ():
            assert build is not None
            code = code_for(build, gpu, tegra=gpu in catalog.tegra_capabilities)
            blocker = code_blocker(build, GpuKind(name=None, capability=gpu), code)
            if blocker is not None:
                error = NothingCompatibleError(blocker.message, fix=blocker.fix)
                error.code = blocker.code
                raise error


def cut_layers(
    sources: Sequence[LayerSource], gpus: tuple[ComputeCapability, ...]
) -> tuple[LayerSource, ...]:
    """The layers with code for these GPUs alone, if there are any."""
    if not gpus:
        return tuple(sources)
    from images.layers.cut import CutLayer
    from images.layers.transcode import WheelLayer

    return tuple(
        CutLayer(source=one, gpus=gpus) if isinstance(one, WheelLayer) else one for one in sources
    )


def report_of(
    layers: Iterable[LayerSource], gpus: tuple[ComputeCapability, ...], store: Store
) -> CutReport | None:
    """What was removed from the layers, which have been written, in whatever form; None: nothing
    was cut. Kept in the store, because a layer that the target has is not read.
    """
    from images.layers.cut import CutLayer

    if not gpus:
        return None
    libraries: list[LibraryCut] = []
    unknown: list[str] = []
    for cut in layers:
        if not isinstance(cut, CutLayer):
            continue
        found = _from_json(store.facts(_FACTS, cut.key))
        if found is None and all(store.wheel(wheel.sha256) for wheel in cut.wheels):
            found = [replace(one, ranges=()) for one in cut.cuts()]
            store.remember_facts(_FACTS, cut.key, {"libraries": [_to_json(one) for one in found]})
        if found is None:
            unknown.append(cut.title)
        libraries += found or []
    return CutReport(gpus=gpus, libraries=tuple(libraries), unknown=tuple(unknown))


def note_kept(report: CutReport | None, console: Console) -> None:
    """Name the libraries that could not be cut."""
    for one in report.libraries if report else ():
        if one.kept_why:
            console.note(f"{one.path} is kept whole: {one.kept_why}")


def _to_json(one: LibraryCut) -> dict[str, Any]:
    return {
        "package": one.package,
        "path": one.path,
        "before_bytes": one.before,
        "after_bytes": one.after,
        "sha256": one.sha256,
        "kept_why": one.kept_why,
    }


def _from_json(value: Mapping[str, Any] | None) -> list[LibraryCut] | None:
    """What the store remembers; None if it has nothing, or something else."""
    from images.layers.cut import LibraryCut

    try:
        rows = (value or {})["libraries"]
        return [
            LibraryCut(
                package=str(row["package"]),
                path=str(row["path"]),
                before=int(row["before_bytes"]),
                after=int(row["after_bytes"]),
                sha256=None if row["sha256"] is None else str(row["sha256"]),
                kept_why=str(row["kept_why"]),
            )
            for row in rows
        ]
    except (KeyError, TypeError, ValueError):
        return None
