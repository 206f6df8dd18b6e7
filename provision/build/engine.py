"""By an engine: BuildKit drives Dockerfile.cuda, and the image is on that engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from images.buildkit import Builder
from images.runner import DockerRunner
from provision.build.destination import Choice
from provision.build.maker import Made, Ready
from provision.build.pipeline import (
    PinnedBase,
    Settings,
    build_image,
    check_disk,
    image_spec,
    secrets_for,
)
from provision.lock.lockfile import Lock
from provision.model.plan import Request
from provision.output.console import Console


class EngineMaker(AbstractContextManager["EngineMaker"]):
    """Builds with BuildKit; names the image, saves it, or pushes it."""

    def __init__(
        self,
        engine: DockerRunner,
        builder: Builder,
        *,
        choice: Choice,
        tag: str,
        base: PinnedBase,
        request: Request,
        settings: Settings,
        console: Console,
    ) -> None:
        self._engine = engine
        self._builder = builder
        self._destination = choice.destination
        self._tag = choice.destination.where if choice.destination.kind == "registry" else tag
        self._base = base
        self._request = request
        self._settings = settings
        self._console = console

    @property
    def place(self) -> str:
        return self._destination.where or self._engine.name

    def __exit__(self, *error: object) -> None:
        """Nothing is held."""

    def make(self, lock: Lock, path: Path) -> Made:
        check_disk(lock, self._engine)
        reference = self._base.reference
        if self._base.archive is not None and not self._engine.has(reference):
            self._engine.load(self._base.archive)
        image = build_image(
            self._engine,
            self._builder,
            lock,
            image_spec(lock, path, reference),
            secrets_for(lock, self._request, self._settings),
            self._console,
        )
        return Made(image_id=image.image_id, size_bytes=image.size_bytes)

    @contextmanager
    def ready(self, made: Made) -> Iterator[Ready]:
        """It is where it was built."""
        yield Ready(runner=self._engine, handle=made.image_id)

    def publish(self, made: tuple[Made, ...]) -> Made:
        (image,) = made
        self._engine.tag(image.image_id, self._tag)
        if self._destination.kind == "archive":
            self._engine.save(self._tag, Path(self._destination.where))
        elif self._destination.kind == "registry":
            self._engine.push(self._tag)
        return image
