"""The images that provision built and that are on this machine: in Docker, in podman, and in this
user's own layout.

An image is known by its label; one that a user built on top of it has the label, too, but other
last steps, and is the user's. Engines that do not answer are left out, with the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from images.engines.listing import (
    DockerImages,
    EngineContainer,
    EngineImage,
    EngineImages,
    PodmanImages,
)
from images.engines.sandbox.roots import Roots
from images.errors import Failure
from images.oci.layout import LayoutTarget
from images.oci.layout_reader import layout_images
from images.oci.model import is_digest
from provision.attestation.record.store import forget, last_verdict
from provision.lock.labels import PLAN, labels_in, plan_of
from provision.model.plan import TITLES, Plan
from provision.verification.subject import nearest, own_image

Where = Literal["docker", "podman", "layout"]
_OF_WHEELS = "gpu-provision: "
"""How a step begins that was made from wheels (`LayerSource.created_by`)."""
_OF_DOCKERFILE = ("/opt/gpu-provision/lib/verify", "project.tar.gz")
"""What the last steps of Dockerfile.cuda name that write files."""
_SETTINGS = ["CMD", "WORKDIR"]
"""The steps of Dockerfile.cuda after these, the last one first."""
_BASE = "gpu-provision bootstrap "


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """One image in one place. `image_id`: "" if it cannot be read; `created`: seconds since the
    epoch; `users`: what uses it now, which keeps it from being removed; `release` ends these uses.
    `run_tags`: tags of runs that loaded it for themselves.
    """

    where: Where
    names: tuple[str, ...]
    image_id: str
    size: int
    created: float | None
    plan: Plan | None
    verdict: str
    users: tuple[str, ...] = ()
    release: str = ""
    run_tags: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its names; without one its ID, as engines abbreviate it."""
        return ", ".join(self.names) or self.image_id[: len("sha256:") + 12]

    @property
    def packages(self) -> str:
        """ "PyTorch 2.0.1, CUDA 11.7"; "" if its plan cannot be read."""
        plan = self.plan
        if plan is None:
            return ""
        return f"{TITLES[plan.framework]} {plan.framework_version}, CUDA {plan.cuda}"

    def is_called(self, text: str) -> bool:
        """Whether this is one of its names, or the beginning of its ID."""
        whole = {text, f"{text}:latest"}
        hexa = text.removeprefix("sha256:")
        of_id = len(hexa) >= 6 and self.image_id.removeprefix("sha256:").startswith(hexa)
        return not whole.isdisjoint(self.names) or of_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEngine:
    """An engine that was left out, and why."""

    where: Where
    problem: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImages:
    """All images that were found, the engines that answered, and those that did not."""

    images: tuple[OwnImage, ...]
    engines: tuple[EngineImages, ...]
    skipped: tuple[SkippedEngine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What was removed, and what was kept and why. `busy`: a build writes into the layout, so that
    the blobs stay until `provision store gc`.
    """

    removed: tuple[OwnImage, ...]
    kept: tuple[tuple[OwnImage, str], ...]
    busy: bool


def list_images(
    images: Path,
    *,
    roots: Path,
    home: Path,
    engines: Mapping[Where, Callable[[], EngineImages]] | None = None,
) -> OwnImages:
    """All images that provision built: in the layout `images`, and on the engines of this machine.
    `roots`: where images are unpacked; `home`: where records are kept.
    """
    found: list[OwnImage] = []
    answered: list[EngineImages] = []
    skipped: list[SkippedEngine] = []
    verdict = partial(verdict_of, home)
    engines = image_engines() if engines is None else engines
    for where, connect in engines.items():
        try:
            engine = connect()
            here = [one for one in engine.labelled(PLAN) if is_whole(one.history)]
        except Failure as problem:
            skipped.append(SkippedEngine(where=where, problem=problem))
            continue
        answered.append(engine)
        found += [_of_engine(where, one, verdict) for one in here]
    found += _of_layout(images, roots, verdict)
    found.sort(key=lambda one: (-(one.created or 0), one.title, one.where))
    return OwnImages(images=tuple(found), engines=tuple(answered), skipped=tuple(skipped))


def image_engines() -> dict[Where, Callable[[], EngineImages]]:
    """What connects to Docker and to podman."""
    fix = "Start it: provision doctor says how"
    return {"docker": lambda: DockerImages.find(fix=fix), "podman": PodmanImages.find}


def is_whole(history: Sequence[str]) -> bool:
    """Whether the last steps of an image are ours: a user's image on top of ours has more steps."""
    # engines write "/bin/sh -c #(nop)  CMD ..." for a setting
    steps = [step.rpartition("#(nop)")[2].strip() for step in history]
    after = list(takewhile(lambda step: not _writes_ours(step), reversed(steps)))
    if len(after) == len(steps):
        return False
    if steps[-1 - len(after)].startswith(_OF_WHEELS):
        return not after
    return [step.partition(" ")[0] for step in after] == _SETTINGS


def is_base(history: Sequence[str]) -> bool:
    """Whether an image is a base that was built from Debian packages, and nothing on top of it."""
    return len(history) == 1 and history[0].startswith(_BASE)


def verdict_of(home: Path, image_id: str) -> str:
    """The verdict of the last test of an image on this machine; "untested" if nothing says so."""
    return (image_id and last_verdict(home, image_id)) or "untested"


def _writes_ours(step: str) -> bool:
    if step.startswith(_OF_WHEELS):
        return True
    return step.startswith(("RUN", "ADD")) and any(word in step for word in _OF_DOCKERFILE)


def _of_engine(where: Where, one: EngineImage, verdict: Callable[[str], str]) -> OwnImage:
    boxes = one.containers
    return OwnImage(
        where=where,
        names=one.names,
        image_id=one.image_id,
        size=one.size,
        created=one.created,
        plan=_plan(one.labels),
        verdict=verdict(one.image_id),
        users=tuple(f"container {box.name}{'' if box.running else ' (ended)'}" for box in boxes),
        release=_release(where, boxes),
        run_tags=one.run_tags,
    )


def _release(where: Where, boxes: Sequence[EngineContainer]) -> str:
    """What ends the uses of an image: running containers first, as others may end with them."""
    running = [box.name for box in boxes if box.running]
    if not boxes:
        return ""
    verb, names = ("stop", running) if running else ("rm", [box.name for box in boxes])
    return shlex.join([where, verb, *names])


def _of_layout(images: Path, roots: Path, verdict: Callable[[str], str]) -> list[OwnImage]:
    found = []
    for name, one in layout_images(images).items():
        try:
            image = nearest(partial(own_image, name, images))
        except Failure:
            image = None
        labels: Mapping[str, Any] = labels_in(image.config) if image else {}
        if image is not None and PLAN not in labels:  # another tool wrote it
            continue
        image_id = image.image_id if image else ""
        users = ("a process in its unpacked root",) if Roots(roots).is_used(image_id) else ()
        found.append(
            OwnImage(
                where="layout",
                names=(name,),
                image_id=image_id,
                size=sum(one.blobs.values()),
                created=one.created,
                plan=_plan(labels),
                verdict=verdict(image_id),
                users=users,
            )
        )
    return found


def _plan(labels: Mapping[str, str]) -> Plan | None:
    try:
        return plan_of(labels, "the image")
    except Failure:
        return None


def remove_images(
    chosen: Sequence[tuple[OwnImage, Sequence[str]]],
    found: OwnImages,
    *,
    images: Path,
    roots: Path,
    home: Path,
) -> Removal:
    """Remove these names of images, all that only they needed, and the records of images that are
    then gone. `found`: all images; the paths are those of `list_images`. An image in use is kept.
    """
    removed: list[OwnImage] = []
    kept: list[tuple[OwnImage, str]] = [(one, used_by(one)) for one, _ in chosen if one.users]
    engines = {engine.name: engine for engine in found.engines}
    of_layout = []
    for one, names in chosen:
        if one.users:
            continue
        if one.where == "layout":
            of_layout.append(one)
            continue
        try:
            for name in names or (one.image_id,):
                engines[one.where].remove(name)
        except Failure as failure:
            kept.append((one, failure.message))
        else:
            removed.append(replace(one, names=tuple(names)))
    busy = bool(of_layout) and _remove_of_layout(images, of_layout)
    removed += of_layout
    gone = {one.image_id for one in removed} - _left(found, removed)
    for image_id in filter(is_digest, gone):
        Roots(roots).clear(image_id)
        forget(home, image_id)
    return Removal(removed=tuple(removed), kept=tuple(kept), busy=busy)


def used_by(one: OwnImage) -> str:
    """Why an image in use is kept; "" if nothing uses it."""
    return f"in use by {', '.join(one.users)}" if one.users else ""


def _remove_of_layout(images: Path, chosen: Sequence[OwnImage]) -> bool:
    """Remove images of a layout; True: another process writes there, and the blobs stay."""
    layout = LayoutTarget.open(images)
    try:
        for one in chosen:
            layout.forget(one.names[0])
        return layout.prune().busy
    finally:
        layout.close_and_remove_if_empty()


def _left(found: OwnImages, removed: Sequence[OwnImage]) -> set[str]:
    """The IDs of images that still have a name somewhere."""
    names = {(one.where, one.image_id, name) for one in removed for name in one.names or ("",)}
    return {
        one.image_id
        for one in found.images
        if not all((one.where, one.image_id, name) in names for name in one.names or ("",))
    }
