"""Chooses what runs an image on this host: docker, podman, or a sandbox.

The runner modules do not know each other; this one has their common interface, and the order in
which they are tried. Trying is quick, and a runner that cannot be used says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from images.engines.archive import (
    empty_archive,
    engine_archive,
    engine_image_id,
    is_holder,
    new_holder,
)
from images.engines.docker import Docker
from images.engines.docker_errors import EngineError
from images.engines.podman import Podman
from images.engines.sandbox.run import Sandbox
from images.engines.spec import Foreground, RunJob, RunResult
from images.errors import Failure
from images.oci.sources import Image
from images.system.errors import NoRunnerError

if TYPE_CHECKING:
    from docker import DockerClient

RunnerName = Literal["docker", "podman", "sandbox"]
ORDER: tuple[RunnerName, ...] = ("docker", "podman", "sandbox")


class Runner(Protocol):
    """Runs commands in images from anywhere: a layout, an archive, a registry."""

    @property
    def name(self) -> str:
        """For messages: "podman 4.3.1"."""

    def storage(self) -> Path | None:
        """Where it keeps images; None if that is not on this machine, or not known."""

    def prepare(
        self, image: Image, on_bytes: Callable[[int], None], *, source: str = "", name: str = ""
    ) -> str:
        """Load the image, unless it is there already; returns the value for `RunJob.image`.

        `on_bytes` is called with how many more bytes of its layers have been read. `source` is the
        image's name for podman and skopeo ("oci:DIR:NAME"), if it has one; `name` is its name in
        the runner, if that supports names.
        """

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run a command to its end; always cleans up."""

    def attend(self, job: RunJob, front: Foreground, on_note: Callable[[str], None]) -> int:
        """Run a command in the foreground, to its end, and clean up; returns its exit code. Signals
        are passed on to it. `on_note` hears what differs from the request.
        """

    def remove(self, handle: str) -> None:
        """Remove what `prepare` loaded; keeps images from before, and what other runs use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A runner that cannot be used, and why."""

    name: RunnerName
    problem: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The chosen runner, and those that were tried before it."""

    runner: Runner
    passed_over: tuple[PassedOver, ...] = ()


class DockerRunner(Docker):
    """A Docker engine, for images that it does not have yet."""

    def __init__(self, client: DockerClient) -> None:
        super().__init__(client)
        self._holders: dict[str, str] = {}

    @property
    def name(self) -> str:
        return f"docker {self.version()}"

    def names(self) -> tuple[str, ...]:
        """The names and tags of the images that the engine has."""
        return tuple(name for name in super().names() if not is_holder(name))

    def prepare(
        self, image: Image, on_bytes: Callable[[int], None], *, source: str = "", name: str = ""
    ) -> str:
        """Load an image, and keep it there until `remove` or `keep`; skips layers that the engine
        has.
        """
        del source
        handle = image.image_id if self.has(image.image_id) else engine_image_id(image)
        if handle not in self._holders and not self._shares(handle):
            holder = new_holder()
            pieces: Any = engine_archive(image, on_bytes, self.layer_chains(), tag=holder)
            loaded = self._guard(lambda: self._client.images.load(pieces))
            # an engine with containerd's store uses the ID of a manifest that it creates
            handle = str(loaded[0].id) if loaded else handle
            self._holders[handle] = holder
        if name:
            self.tag(handle, name)
        return handle

    def _shares(self, handle: str) -> bool:
        """Whether the image is there, and no other run will delete it: one that another run has
        loaded gets a tag from this run, too.
        """
        found = self._find(handle)
        if found is None:
            return False
        if not any(map(is_holder, found.tags)):
            return True
        holder = new_holder()
        repository, _, tag = holder.rpartition(":")
        try:
            self._guard(lambda: found.tag(repository, tag))
        except EngineError:
            if self.has(handle):
                raise
            return False
        self._holders[handle] = holder
        return self.has(holder)

    def remove(self, handle: str) -> None:
        """Remove an image that `prepare` loaded; keeps images from before, those that have a name,
        and those that another run or a container uses.
        """
        holder = self._holders.pop(handle, None)
        if holder is not None:
            self._guard(lambda: self._remove(holder))

    def keep(self, handle: str) -> None:
        """Leave an image that `prepare` loaded in the engine, without a name."""
        holder = self._holders.pop(handle, None)
        if holder is None:
            return
        archive: Any = empty_archive(holder)
        self._guard(lambda: self._client.images.load(archive))
        self._guard(lambda: self._remove(holder))

    def _remove(self, holder: str) -> None:
        from docker.errors import APIError, ImageNotFound

        try:
            self._client.images.remove(holder)
        except ImageNotFound:  # a user has removed it
            return
        except APIError as error:
            if error.status_code != HTTPStatus.CONFLICT:
                raise


def choose_runner(
    *,
    cache: Path,
    wanted: RunnerName | Literal["auto"] = "auto",
    docker_fix: str = "",
    order: Sequence[RunnerName] = ORDER,
    otherwise: str = "",
) -> Chosen:
    """Choose what runs images on this host. `cache` is where a sandbox keeps unpacked images;
    `otherwise`: what else to type if there is nothing.

    NoRunnerError: none can be used, with the reason for each. A runner requested by name raises its
    own error.
    """
    passed_over: list[PassedOver] = []
    for name in order if wanted == "auto" else (wanted,):
        found = _try(name, cache, docker_fix)
        if not isinstance(found, Failure):
            return Chosen(runner=found, passed_over=tuple(passed_over))
        if wanted != "auto":
            raise found
        passed_over.append(PassedOver(name=name, problem=found))
    raise NoRunnerError(
        "Nothing on this host can run the image: no container engine answers, and no sandbox can "
        "be started.",
        fix=f"{passed_over[-1].problem.fix} (or install podman){otherwise}",
        detail="\n".join(f"{one.name}: {one.problem.message}" for one in passed_over),
    )


def _try(name: RunnerName, cache: Path, docker_fix: str) -> Runner | Failure:
    try:
        return _connect(name, cache, docker_fix)
    except Failure as problem:
        return problem


def _connect(name: RunnerName, cache: Path, docker_fix: str) -> Runner:
    if name == "docker":
        return DockerRunner.connect(fix=docker_fix or "Start it: sudo systemctl start docker")
    if name == "podman":
        return Podman.connect()
    return Sandbox.connect(cache / "roots")
