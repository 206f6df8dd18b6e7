"""The interface that both ways of making an image share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from images.engines.runner import Runner
from images.oci.model import Descriptor
from images.oci.sources import Image
from provision.build.base import PinnedBase
from provision.build.cut import CutReport
from provision.build.destination import Destination
from provision.build.loading import LoadVerdict
from provision.lock.lockfile import Lock
from provision.model.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeImage:
    """An image without a name. `manifest` describes what its destination has (None: an engine has
    it, which knows it by `image_id` alone); `size_bytes` as its place counts, compressed or not;
    `image` is set if it can be read without that place. `loading` says whether its libraries will
    load; None: that was not judged. `cut`: what was removed from its libraries; None: nothing.
    """

    image_id: str
    size_bytes: int
    manifest: Descriptor | None = None
    image: Image | None = None
    layers: tuple[Mapping[str, Any], ...] = field(default=())
    loading: LoadVerdict | None = None
    cut: CutReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnableImage:
    """What can run an image here, and the name that it uses for the image."""

    runner: Runner
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedImage:
    """Everything that determines an image: its lock, and the place of the base that the
    lock pins.
    """

    lock: Lock
    base: PinnedBase

    @property
    def plan(self) -> Plan:
        return self.lock.plan


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptImage:
    """Where an image that failed is found, and its name there."""

    tag: str
    destination: Destination


class Maker(Protocol):
    """One way of making an image; a context manager, which releases its resources."""

    @property
    def place(self) -> str:
        """For people: where the image will be."""

    def make(self, image: LockedImage, path: Path, /) -> MadeImage:
        """Make the image; its lock is in the file `path`."""

    def ready(self, made: MadeImage) -> AbstractContextManager[RunnableImage]:
        """Make the image runnable; it is removed afterwards if it was put there only for that."""

    def publish(self, made: tuple[MadeImage, ...]) -> MadeImage:
        """Give it its name; several images become one index of platforms."""

    def keep(self, made: tuple[MadeImage, ...], state: str) -> KeptImage:
        """Keep an image that may not have its name, under another: `state` is "unfit" or
        "untested". Nothing is sent for that, and what has the name keeps it.
        """
