"""A Docker engine: the CLI builds (`buildkit.py`), the SDK does the rest."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.engines.buildkit import Builder, build_argv, secret_files, staged_context
from images.engines.container import (
    copy_out,
    follow,
    front_settings,
    limits_of,
    overdue_failure,
    own_user,
    remove,
    send_signal,
    settings_of,
    start,
    stop_overdue,
)
from images.engines.docker_errors import (
    BRIDGE_IS_BROKEN,
    EngineError,
    build_failure,
    no_engine,
    short,
)
from images.engines.spec import (
    SMALLER_FIX,
    BuiltImage,
    Foreground,
    ImageSpec,
    RunJob,
    RunResult,
    not_permitted,
    too_much_to_pass,
)
from images.net.secrets import Secrets
from images.system import process
from images.system.interruption import uninterrupted
from images.system.scratch import scratch_directory

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from typing_extensions import Self

DEFAULT_HOST = "unix:///var/run/docker.sock"
_BUILD_TIMEOUT_S = 4 * 3600.0


class Docker:
    """One reachable Docker engine."""

    def __init__(self, client: DockerClient) -> None:
        self._client = client

    @classmethod
    def connect(cls, *, fix: str, timeout_s: int = 600) -> Self:
        """The engine that the environment names. NoEngineError, with `fix`: none answers."""
        host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        try:
            # the SDK takes a while to load, and leaves a socket open if no engine listens
            if host.startswith("unix://"):
                knock(host)
        except OSError as error:
            raise no_engine(error, fix) from error
        import docker
        from docker.errors import DockerException

        client = None
        try:
            client = docker.from_env(timeout=10)
            client.ping()
        except (DockerException, OSError, ValueError) as error:
            if client is not None:
                client.close()
            raise no_engine(error, fix) from error
        client.api.timeout = timeout_s
        return cls(client)

    def version(self) -> str:
        """The engine's version ("20.10.24+dfsg1")."""
        return str(self._guard(self._client.version)["Version"])

    def info(self) -> dict[str, Any]:
        """The data of `docker info`."""
        found: dict[str, Any] = self._guard(self._client.info)
        return found

    def storage(self) -> Path | None:
        """Where the engine stores images; None if that is not on this machine."""
        root = self.info().get("DockerRootDir")
        local = (os.environ.get("DOCKER_HOST") or "unix://").startswith("unix://")
        try:
            return Path(root) if root and local and Path(root).is_dir() else None
        except OSError:  # not accessible to us
            return None

    def free_bytes(self) -> int | None:
        """Free space where the engine stores images; None if that is not on this machine."""
        root = self.storage()
        return None if root is None else shutil.disk_usage(root).free

    def build_network(self) -> str | None:
        """The network for builds: without its bridge network an engine needs the host's."""
        names = {network.name for network in self._guard(self._client.networks.list)}
        return None if "bridge" in names else "host"

    def has(self, reference: str) -> bool:
        """Whether the engine has this image."""
        return self._find(reference) is not None

    def names(self) -> tuple[str, ...]:
        """The names and tags of the images that the engine has."""
        found = self._guard(self._client.images.list)
        return tuple(sorted({str(tag) for image in found for tag in image.tags}))

    def load(self, archive: Path) -> None:
        """Load an image archive (`docker save` format)."""
        with archive.open("rb") as stream:
            self._guard(lambda: self._client.images.load(stream))

    def save(self, image: str, archive: Path) -> None:
        """Write an image as an archive for `docker load`, atomically."""
        found = self._get(image)
        partial = archive.with_name(f".{archive.name}.{os.getpid()}")
        try:
            chunks = iter(self._guard(lambda: found.save(named=True)))
            with partial.open("wb") as file:
                while chunk := self._guard(lambda: next(chunks, b"")):
                    file.write(chunk)
            partial.replace(archive)
        finally:
            partial.unlink(missing_ok=True)

    def push(self, reference: str) -> str:
        """Push a tag; returns the digest of its manifest, as reported by the registry."""
        repository, _, tag = reference.rpartition(":")
        digest = ""
        for event in self._guard(
            lambda: self._client.api.push(repository, tag=tag, stream=True, decode=True)
        ):
            if "error" in event:
                raise EngineError(
                    f"{reference} could not be pushed: {str(event['error'])[:300]}",
                    fix=f"Log in (docker login {reference.partition('/')[0]}), and check that you "
                    "may push there.",
                )
            digest = event.get("aux", {}).get("Digest", digest)
        return digest

    def tag(self, image: str, reference: str) -> None:
        """Tag an image; an older image with that name loses it."""
        repository, _, tag = reference.rpartition(":")
        found = self._get(image)
        self._guard(lambda: found.tag(repository, tag))

    def labels(self, image: str) -> dict[str, str]:
        """The labels of an image. EngineError: there is no image with that name."""
        return dict(self._get(image).labels)

    def image_id(self, image: str) -> str:
        """The digest of the image's config."""
        return str(self._get(image).id)

    def emulates(self, image: str) -> bool:
        """Whether the image is for another architecture than the engine's."""
        its = self._get(image).attrs.get("Architecture")
        own = self._guard(self._client.version).get("Arch")
        return bool(its and own and its != own)

    def repo_digest(self, reference: str) -> str | None:
        """The registry digest that the engine has for this image, if any."""
        found = self._find(reference)
        digests: list[str] = (found.attrs.get("RepoDigests") or []) if found else []
        return digests[0].rpartition("@")[2] if digests else None

    def size_bytes(self, image: str) -> int:
        """The image's size, as counted by the engine."""
        return int(self._get(image).attrs.get("Size", 0))

    def layer_chains(self) -> frozenset[tuple[str, ...]]:
        """The layers (diffIDs) of every image here, and all their prefixes from the base on.

        Empty if the engine stores images in containerd, which accepts only complete archives: the
        chains are used to omit layers from an archive.
        """
        status = self.info().get("DriverStatus") or []
        if any("io.containerd.snapshotter" in str(pair) for pair in status):
            return frozenset()
        chains: set[tuple[str, ...]] = set()
        for image in self._guard(self._client.images.list):
            layers = (image.attrs.get("RootFS") or {}).get("Layers") or []
            chains |= {tuple(layers[:end]) for end in range(1, len(layers) + 1)}
        return frozenset(chains)

    def _answers(self) -> bool:
        try:
            self._guard(self._client.ping)
        except EngineError:
            return False
        return True

    def _find(self, reference: str) -> Any:  # noqa: ANN401  the SDK is untyped
        from docker.errors import ImageNotFound

        def look() -> object:
            try:
                return self._client.images.get(reference)
            except ImageNotFound:
                return None

        return self._guard(look)

    def _get(self, image: str) -> Any:  # noqa: ANN401
        found = self._find(image)
        if found is None:
            raise EngineError(
                f"The engine has no image {image}.",
                fix=f"Build it (provision build), or pull it: docker pull {image}",
            )
        return found

    def build(
        self,
        builder: Builder,
        spec: ImageSpec,
        *,
        suite: Path,
        secrets: Secrets,
        on_line: Callable[[str], None],
    ) -> BuiltImage:
        """Build and load the image, untagged: it is tagged after it has been verified."""
        with (
            staged_context(spec, suite) as context,
            secret_files(secrets) as files,
            scratch_directory() as out,
        ):
            iid = out / "iid"

            def attempt(network: str | None) -> process.Completed:
                argv = build_argv(
                    builder, context=context, spec=spec, iid=iid, secrets=files, network=network
                )
                return process.run(
                    argv,
                    timeout_s=_BUILD_TIMEOUT_S,
                    env=builder.environment(),
                    on_line=on_line,
                    redact=secrets.values,
                )

            network = self.build_network()
            done = attempt(network)
            if not done.ok and network is None and BRIDGE_IS_BROKEN.search(done.output):
                on_line("the engine's bridge network is broken; building on the host's network")
                done = attempt("host")
            if not done.ok or not iid.exists():
                raise build_failure(done.output, engine_answers=self._answers())
            image = iid.read_text(encoding="ascii").strip()
        return BuiltImage(image_id=image, size_bytes=self.size_bytes(image))

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run the command to its end, and always remove the container.

        Limits that this engine does not permit are omitted and reported in the notes: a machine
        that may not raise them is still worth verifying.
        """
        self._refuse_too_much(job)
        notes: list[str] = []
        ulimits = limits_of(job)
        ending: tuple[int, str, str] | None = None
        while ending is None:
            with self._container(settings_of(job, ulimits)) as container:
                with uninterrupted():
                    started = start(container, job.files, may_lack_limits=bool(ulimits))
                if started:
                    if job.signals is not None:
                        job.signals.to(partial(send_signal, container))
                    ending = self._await(container, job.timeout_s, on_line)
                    if ending[0] == 0:
                        for path, to in job.outputs.items():
                            self._guard(partial(copy_out, container, path, to))
                else:
                    notes.append(not_permitted(ulimits.pop().name))
        code, stdout, stderr = ending
        return RunResult(exit_code=code, stdout=stdout, stderr_tail=stderr, notes=tuple(notes))

    def attend(self, job: RunJob, front: Foreground, on_note: Callable[[str], None]) -> int:
        """Run the command with our input and output, and always remove the container; returns its
        exit code. Its files in `binds` belong to this user. As `run`, with fewer limits if need be.
        """
        from images.engines.docker_attach import AttachedContainer

        self._refuse_too_much(job)
        ulimits, network = limits_of(job), self.build_network()
        mine = own_user(self.info(), Path("/"))
        while True:
            settings = {**settings_of(job, ulimits), **front_settings(job, front, network, mine)}
            with (
                self._container(settings) as container,
                contextlib.closing(
                    self._guard(partial(AttachedContainer, container, terminal=front.terminal))
                ) as attached,
            ):
                try:
                    with uninterrupted():
                        started = start(container, {}, may_lack_limits=bool(ulimits))
                except EngineError as failure:
                    if network or not BRIDGE_IS_BROKEN.search(failure.log):
                        raise
                    on_note("the engine's bridge network is broken; using the host's network")
                    network = "host"
                    continue
                if started:
                    return int(self._guard(attached.carry))
                on_note(not_permitted(ulimits.pop().name))

    def _refuse_too_much(self, job: RunJob) -> None:
        """Refuse a too large configuration here: some engines take minutes to, or never do."""
        config = self._guard(lambda: self._client.images.get(job.image).attrs).get("Config") or {}
        settings = [config.get(name) or [] for name in ("Entrypoint", "Env")]
        words = [str(word) for setting in settings for word in setting]
        if problem := too_much_to_pass([*words, *job.command], str(config.get("WorkingDir") or "")):
            raise EngineError(f"The image cannot be run: {problem}", fix=SMALLER_FIX)

    @contextlib.contextmanager
    def _container(self, settings: Mapping[str, Any]) -> Iterator[Container]:
        """A container that is always removed afterwards."""
        made: list[Container] = []
        try:
            with uninterrupted():  # else it might exist without us knowing its ID
                made.append(self._guard(lambda: self._client.containers.create(**settings)))
            yield made[0]
        finally:
            with uninterrupted():
                for container in made:
                    remove(container)

    def _await(
        self, container: Container, timeout_s: float, on_line: Callable[[str], None]
    ) -> tuple[int, str, str]:
        overdue = threading.Event()
        watchdog = threading.Timer(timeout_s, stop_overdue, (container, overdue))
        watchdog.daemon = True
        watchdog.start()
        try:
            ending: tuple[int, str, str] = self._guard(lambda: follow(container, on_line))
        except EngineError:
            if overdue.is_set():
                raise overdue_failure() from None
            raise
        finally:
            watchdog.cancel()
        if overdue.is_set():
            raise overdue_failure()
        return ending

    @staticmethod
    def _guard(call: Callable[[], Any]) -> Any:  # noqa: ANN401  the SDK is untyped
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            return call()
        except (DockerException, RequestException, OSError) as error:
            raise EngineError(
                f"The engine stopped or refused the request: {short(error)}",
                fix="Check its log (journalctl -u docker), then run this again.",
            ) from error


def knock(host: str) -> None:
    """Connect to a unix:// socket and close it; OSError if nothing listens or access is denied."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(10)
        probe.connect(host.removeprefix("unix://"))
