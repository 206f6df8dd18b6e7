"""Which of the things that can run an image on this host is used: docker, podman, or a sandbox.

The modules that do the running know nothing of each other; here is what they have in common, and in
which order they are asked. Asking is quick, and who cannot serve says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from images.engines.archive import engine_archive, engine_image_id
from images.engines.docker import Docker
from images.engines.podman import Podman
from images.engines.sandbox.run import Sandbox
from images.engines.spec import RunJob, RunResult
from images.errors import Failure
from images.oci.sources import Image
from images.system.errors import NoRunnerError

if TYPE_CHECKING:
    from docker import DockerClient

RunnerName = Literal["docker", "podman", "sandbox"]
ORDER: tuple[RunnerName, ...] = ("docker", "podman", "sandbox")


class Runner(Protocol):
    """Runs commands in images that lie anywhere: in a layout, an archive, a registry."""

    @property
    def name(self) -> str:
        """For people: "podman 4.3.1"."""

    def prepare(
        self, image: Image, on_bytes: Callable[[int], None], *, source: str = "", name: str = ""
    ) -> str:
        """Put the image where it can be run, unless it is there; gives what `RunJob.image` takes.

        `on_bytes` hears how many more bytes of its layers have been read. `source` is the image as
        podman and skopeo name it ("oci:DIR:NAME"), where it has such a name; `name` is given to it
        where it is put, if that has names.
        """

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run a command to its end; nothing of it stays, whatever happens."""

    def remove(self, handle: str) -> None:
        """Take away what `prepare` put there; what was there before stays."""

    def shell_command(self, handle: str, *, gpus: str, notes: Sequence[str] = ()) -> str:
        """What a person types to get in; `notes` are those of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """What could not serve, and why."""

    name: RunnerName
    problem: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What runs the image, and what was asked before it."""

    runner: Runner
    passed_over: tuple[PassedOver, ...] = ()


class DockerRunner(Docker):
    """A Docker engine, for images that it does not have yet."""

    def __init__(self, client: DockerClient) -> None:
        super().__init__(client)
        self._brought: set[str] = set()

    @property
    def name(self) -> str:
        return f"docker {self.version()}"

    def prepare(
        self, image: Image, on_bytes: Callable[[int], None], *, source: str = "", name: str = ""
    ) -> str:
        """Load an image; layers that the engine has are neither read nor sent."""
        del source
        handle = image.image_id if self.has(image.image_id) else engine_image_id(image)
        if not self.has(handle):
            pieces: Any = engine_archive(image, on_bytes, self.layer_chains())
            loaded = self._guard(lambda: self._client.images.load(pieces))
            # an engine with containerd's store counts by a manifest that it makes itself
            handle = str(loaded[0].id) if loaded else handle
            self._brought.add(handle)
        if name:
            self.tag(handle, name)
        return handle

    def remove(self, handle: str) -> None:
        """Remove an image that `prepare` brought, with its names; others were here before."""
        if handle not in self._brought:
            return
        self._brought.discard(handle)
        self._guard(lambda: self._client.images.remove(handle, force=True))

    def shell_command(self, handle: str, *, gpus: str, notes: Sequence[str] = ()) -> str:
        """What a person types to get in."""
        words = ["docker", "run", "--rm", "-it"]
        words += {"runtime": ["--gpus", "all"], "cdi": ["--device", "nvidia.com/gpu=all"]}.get(
            gpus, []
        )
        words += ["--shm-size", "1g"]
        refused = " ".join(notes)
        for name, value in (("memlock", -1), ("stack", 64 << 20)):
            words += [] if f"ulimit {name}" in refused else ["--ulimit", f"{name}={value}"]
        return " ".join([*words, handle])


def choose_runner(
    *, cache: Path, wanted: RunnerName | Literal["auto"] = "auto", docker_fix: str = ""
) -> Chosen:
    """Choose what runs images on this host. `cache` is where a sandbox keeps unpacked ones.

    NoRunnerError says of each why it cannot; what was asked for by name fails in its own words.
    """
    passed_over: list[PassedOver] = []
    for name in ORDER if wanted == "auto" else (wanted,):
        found = _try(name, cache, docker_fix)
        if not isinstance(found, Failure):
            return Chosen(runner=found, passed_over=tuple(passed_over))
        if wanted != "auto":
            raise found
        passed_over.append(PassedOver(name=name, problem=found))
    raise NoRunnerError(
        "Nothing on this host can run the image: no container engine answers, and no sandbox can "
        "be started.",
        fix=f"{passed_over[-1].problem.fix} (or install podman), or skip the verification: "
        "--no-verify",
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
