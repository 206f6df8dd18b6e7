"""The request of one build, and what is known of each image once it is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.build.base import BuildSettings
from provision.build.destination import Destination
from provision.build.documents import Documenting
from provision.build.maker import MadeImage
from provision.build.packing import Making
from provision.build.project.code import ProjectCode
from provision.catalog.catalog import Catalog
from provision.lock.lockfile import Lock
from provision.model.plan import Plan, Request
from provision.sources.find import Project
from provision.verification.suite import SuiteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob:
    """One build: of what, by which builder, for which destination, and its options.

    `locks` are the files that decide instead of the request: several make one index of platforms.
    `images` is the layout of this user's own images. `project` is what declared the request, `code`
    becomes the last layer; `without`: names that it may import and not have. `again`: it is tested
    also if an image of the same lock was tested on this machine.
    """

    request: Request
    catalog: Catalog
    settings: BuildSettings
    suite: SuiteRequest
    making: Making
    images: Path
    documenting: Documenting
    locks: tuple[Path, ...] = ()
    tag: str | None = None
    builder: str = "auto"
    destination: Destination | None = None
    verify: bool = True
    dry_run: bool = False
    project: Project | None = None
    code: ProjectCode | None = None
    without: tuple[str, ...] = ()
    again: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedImage:
    """One built image: its lock, the lock's file, and the result."""

    lock: Lock
    path: Path
    produced: MadeImage

    @property
    def plan(self) -> Plan:
        return self.lock.plan
