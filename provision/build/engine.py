"""Builds on an engine: BuildKit runs Dockerfile.cuda, and the image is on that engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from images.engines.buildkit import Builder
from images.engines.runner import DockerRunner
from images.engines.spec import ImageSpec
from images.net.secrets import Secrets
from images.store.fetch import Fetcher
from images.store.local import local_path
from images.store.store import Store
from provision.build.base import BuildSettings
from provision.build.destination import Choice, Destination
from provision.build.maker import KeptImage, LockedImage, MadeImage, RunnableImage
from provision.build.next_commands import kept_name
from provision.build.pipeline import build_image, check_disk, image_spec, secrets_for
from provision.build.project.code import ProjectCode
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
        request: Request,
        code: ProjectCode | None,
        settings: BuildSettings,
        console: Console,
    ) -> None:
        self._engine = engine
        self._builder = builder
        self._destination = choice.destination
        self._tag = choice.destination.where if choice.destination.kind == "registry" else tag
        self._request = request
        self._code = code
        self._settings = settings
        self._console = console

    @property
    def place(self) -> str:
        return self._destination.where or self._engine.name

    def __exit__(self, *error: object) -> None:
        """No resources to release."""

    def make(self, image: LockedImage, path: Path) -> MadeImage:
        lock, base = image.lock, image.base
        check_disk(lock, self._engine)
        if base.archive is not None and not self._engine.has(base.reference):
            self._engine.load(base.archive)
        secrets = secrets_for(lock, self._request, self._settings)
        with ExitStack() as fetching:
            spec = image_spec(lock, path, base.reference, self._fetched(lock, secrets, fetching))
            built = build_image(
                self._engine,
                self._builder,
                lock,
                self._with_project(spec, lock.plan.python or ""),
                secrets,
                self._console,
            )
        return MadeImage(image_id=built.image_id, size_bytes=built.size_bytes)

    def _fetched(self, lock: Lock, secrets: Secrets, stack: ExitStack) -> dict[str, Path]:
        """The wheels that the user named by their addresses. All that an engine gets is the lock,
        which has these without login and query, and a refusal there would not say so.
        """
        direct = [
            wheel
            for wheel in lock.wheels
            if (wheel.direct or wheel.url in secrets.addresses) and local_path(wheel.url) is None
        ]
        if not direct:
            return {}
        store = stack.enter_context(
            Store.open(self._settings.state, limit_bytes=None, on_note=self._console.note)
        )
        offline = self._settings.offline
        with Fetcher(
            store, secrets=secrets, offline=offline, on_note=self._console.note
        ) as fetcher:
            return {wheel.url: fetcher.fetch(wheel) for wheel in direct}

    def _with_project(self, spec: ImageSpec, python: str) -> ImageSpec:
        if self._code is None:
            return spec
        program = self._code.program
        return replace(
            spec,
            project=self._code.layer(python),
            working_dir=program.directory,
            command=program.command,
        )

    @contextmanager
    def ready(self, made: MadeImage) -> Iterator[RunnableImage]:
        """It is where it was built."""
        yield RunnableImage(runner=self._engine, handle=made.image_id)

    def publish(self, made: tuple[MadeImage, ...]) -> MadeImage:
        (image,) = made
        self._engine.tag(image.image_id, self._tag)
        if self._destination.kind == "archive":
            self._engine.save(self._tag, Path(self._destination.where))
        elif self._destination.kind == "registry":
            self._engine.push(self._tag)
        return image

    def keep(self, made: tuple[MadeImage, ...], state: str) -> KeptImage:
        (image,) = made
        tag = kept_name(self._tag, state)
        self._engine.tag(image.image_id, tag)
        return KeptImage(tag=tag, destination=Destination(kind="engine"))
