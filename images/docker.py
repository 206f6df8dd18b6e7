"""A Docker engine: BuildKit through the CLI builds (`images.buildkit`), the SDK does the rest."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images import process
from images.buildkit import Builder, build_argv, secret_files, staged_context
from images.errors import Failure
from images.interruption import uninterrupted
from images.scratch import scratch_directory
from images.spec import (
    SMALLER_FIX,
    BuiltImage,
    ImageSpec,
    RunJob,
    RunResult,
    Secrets,
    too_much_to_pass,
)

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

DEFAULT_HOST = "unix:///var/run/docker.sock"
_BUILD_TIMEOUT_S = 4 * 3600.0
# A firewall's reload or another engine can take docker0 away from a running engine.
_BRIDGE_IS_BROKEN = re.compile(r"failed to create endpoint .* on network bridge")
# The last of them is all that an older client says; it ends with exit code 0 then.
_ENGINE_WENT_AWAY = re.compile(
    r"error during connect|cannot connect to the docker daemon|code = Unavailable|EOF$"
    r"|server did not provide an image ID",
    re.IGNORECASE | re.MULTILINE,
)


class NoEngineError(Failure):
    """No container engine answers."""

    code = "no-engine"
    exit_code = 5


class EngineError(Failure):
    """The engine refused, or stopped half-way."""

    code = "engine-failed"
    exit_code = 5


class BuildFailedError(Failure):
    """A step of the Dockerfile failed."""

    code = "build-failed"
    exit_code = 6


class DiskFullError(Failure):
    """The engine's disk has no room for the image."""

    code = "disk-full"
    exit_code = 6


class NoGpuRuntimeError(Failure):
    """The host has GPUs, and the engine cannot hand them to a container."""

    code = "no-gpu-runtime"
    exit_code = 4


class Docker:
    """One reachable Docker engine."""

    def __init__(self, client: DockerClient) -> None:
        self._client = client

    @classmethod
    def connect(cls, *, fix: str, timeout_s: int = 600) -> Docker:
        """The engine that the environment names; NoEngineError with `fix` when none answers."""
        host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        try:
            # the SDK takes a while to load, and leaves a socket open that nobody listens to
            if host.startswith("unix://"):
                knock(host)
        except OSError as error:
            raise _no_engine(error, fix) from error
        import docker
        from docker.errors import DockerException

        client = None
        try:
            client = docker.from_env(timeout=10)
            client.ping()
        except (DockerException, OSError, ValueError) as error:
            if client is not None:
                client.close()
            raise _no_engine(error, fix) from error
        client.api.timeout = timeout_s
        return cls(client)

    def version(self) -> str:
        """The engine's version ("20.10.24+dfsg1")."""
        return str(self._guard(self._client.version)["Version"])

    def info(self) -> dict[str, Any]:
        """What `docker info` knows."""
        found: dict[str, Any] = self._guard(self._client.info)
        return found

    def free_bytes(self) -> int | None:
        """Free space where the engine keeps images; None when that is not on this machine."""
        root = self.info().get("DockerRootDir")
        local = (os.environ.get("DOCKER_HOST") or "unix://").startswith("unix://")
        if not root or not local:
            return None
        try:
            return shutil.disk_usage(root).free
        except OSError:  # it is in another machine's file system, or where we may not look
            return None

    def build_network(self) -> str | None:
        """An engine without its bridge network can build on the host's only."""
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
        """Load an image archive (`docker save` form)."""
        with archive.open("rb") as stream:
            self._guard(lambda: self._client.images.load(stream))

    def save(self, image: str, archive: Path) -> None:
        """Write an image as `docker load` reads it; under the file's name only once it is whole."""
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
        """Push a tag; gives the digest of its manifest, as the registry told it."""
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
        """Give an image its name; an older image of that name loses it."""
        repository, _, tag = reference.rpartition(":")
        found = self._get(image)
        self._guard(lambda: found.tag(repository, tag))

    def labels(self, image: str) -> dict[str, str]:
        """The labels of an image; EngineError when there is none of that name."""
        return dict(self._get(image).labels)

    def image_id(self, image: str) -> str:
        """The digest of the image's config."""
        return str(self._get(image).id)

    def emulates(self, image: str) -> bool:
        """Whether the image is for another processor than the engine's own."""
        its = self._get(image).attrs.get("Architecture")
        own = self._guard(self._client.version).get("Arch")
        return bool(its and own and its != own)

    def repo_digest(self, reference: str) -> str | None:
        """The registry digest under which the engine holds this image, if it does."""
        found = self._find(reference)
        digests: list[str] = (found.attrs.get("RepoDigests") or []) if found else []
        return digests[0].rpartition("@")[2] if digests else None

    def size_bytes(self, image: str) -> int:
        """The image's size as the engine counts it."""
        return int(self._get(image).attrs.get("Size", 0))

    def layer_chains(self) -> frozenset[tuple[str, ...]]:
        """The layers (diffIDs) of every image here, and of every image below one of them.

        Empty where the engine keeps images in containerd: that takes an archive only when it is
        complete, and this is asked in order to leave out what is here.
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
        """Build and load the image, untagged: its name is given once it has been proven."""
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
            if not done.ok and network is None and _BRIDGE_IS_BROKEN.search(done.output):
                on_line("the engine's bridge network is broken; building on the host's network")
                done = attempt("host")
            if not done.ok or not iid.exists():
                raise _build_failure(done.output, engine_answers=self._answers())
            image = iid.read_text(encoding="ascii").strip()
        return BuiltImage(image_id=image, size_bytes=self.size_bytes(image))

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run the command to its end and remove the container, whatever happens.

        Limits that this engine may not grant are left out and said in the notes: a machine
        without the right to raise them is still worth verifying.
        """
        from docker.types import Ulimit

        self._refuse_too_much(job)
        notes: list[str] = []
        ulimits = [Ulimit(name="stack", soft=job.stack_bytes, hard=job.stack_bytes)]
        if job.memlock_unlimited:
            ulimits.append(Ulimit(name="memlock", soft=-1, hard=-1))
        ending: tuple[int, str, str] | None = None
        while ending is None:
            with self._container(job, ulimits) as container:
                with uninterrupted():
                    started = _start(container, job.files, may_lack_limits=bool(ulimits))
                if started:
                    ending = self._await(container, job.timeout_s, on_line)
                else:
                    name = ulimits.pop().name
                    notes.append(f"ulimit {name}: not permitted on this machine, left out")
        code, stdout, stderr = ending
        return RunResult(exit_code=code, stdout=stdout, stderr_tail=stderr, notes=tuple(notes))

    def _refuse_too_much(self, job: RunJob) -> None:
        """Some engines take minutes to refuse a large configuration, or never do."""
        config = self._guard(lambda: self._client.images.get(job.image).attrs).get("Config") or {}
        settings = [config.get(name) or [] for name in ("Entrypoint", "Env")]
        words = [str(word) for setting in settings for word in setting]
        if problem := too_much_to_pass([*words, *job.command], str(config.get("WorkingDir") or "")):
            raise EngineError(f"The image cannot be run: {problem}", fix=SMALLER_FIX)

    @contextlib.contextmanager
    def _container(self, job: RunJob, ulimits: list[Any]) -> Iterator[Container]:
        """A container that is gone afterwards, whatever happens."""
        from docker.types import DeviceRequest

        requests = {
            "runtime": [DeviceRequest(count=-1, capabilities=[["gpu"]])],
            "cdi": [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])],
        }.get(job.gpus, [])
        made: list[Container] = []
        try:
            with uninterrupted():  # else it might exist without our knowing it
                made.append(
                    self._guard(
                        lambda: self._client.containers.create(
                            job.image,
                            list(job.command),
                            network_mode="none",
                            shm_size=job.shm_bytes,
                            ulimits=ulimits,
                            device_requests=requests,
                            environment=dict(job.environment),
                            labels={"org.gpu-provision.role": "verify"},
                        )
                    )
                )
            yield made[0]
        finally:
            with uninterrupted():
                for container in made:
                    _remove(container)

    def _await(
        self, container: Container, timeout_s: float, on_line: Callable[[str], None]
    ) -> tuple[int, str, str]:
        overdue = threading.Event()
        watchdog = threading.Timer(timeout_s, _stop_overdue, (container, overdue))
        watchdog.daemon = True
        watchdog.start()
        try:
            ending: tuple[int, str, str] = self._guard(lambda: _follow(container, on_line))
        except EngineError:
            if overdue.is_set():
                raise _overdue() from None
            raise
        finally:
            watchdog.cancel()
        if overdue.is_set():
            raise _overdue()
        return ending

    @staticmethod
    def _guard(call: Callable[[], Any]) -> Any:  # noqa: ANN401  the SDK is untyped
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            return call()
        except (DockerException, RequestException, OSError) as error:
            raise EngineError(
                f"The engine stopped or refused the request: {_short(error)}",
                fix="Check its log (journalctl -u docker), then run this again.",
            ) from error


def _build_failure(tail: str, *, engine_answers: bool) -> Failure:
    if "no space left on device" in tail.lower():
        return DiskFullError(
            "The engine's disk is full; no image was tagged.",
            fix="Make room: docker builder prune, docker image prune; df -h shows the disks.",
            detail=_last_lines(tail),
            log=tail,
        )
    # uv's words, and pip's
    if re.search(r"hash(es)? mismatch|do not match the hashes", tail, re.IGNORECASE):
        return BuildFailedError(
            "A downloaded wheel does not have the hash that the lock names.",
            fix="If you trust the index, lock again: provision lock",
            detail=_last_lines(tail),
            log=tail,
        )
    if not engine_answers or _ENGINE_WENT_AWAY.search(tail):
        return EngineError(
            "The engine stopped while it built the image.",
            fix="Check its log (journalctl -u docker), then run this again.",
            detail=_last_lines(tail),
            log=tail,
        )
    return BuildFailedError(
        "A step of Dockerfile.cuda failed.",
        fix="Its last lines say why. If a download failed, check the network, the proxy and "
        "--ca-bundle, then run this again.",
        detail=_last_lines(tail),
        log=tail,
    )


def _start(container: Container, files: Mapping[str, bytes], *, may_lack_limits: bool) -> bool:
    """Start it. False where the machine does not permit its limits, and it can do with fewer."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    try:
        if files:
            container.put_archive("/", _archive(files))
        container.start()
    except APIError as error:
        if "rlimit" in str(error) and may_lack_limits:
            return False
        raise _start_failure(error) from error
    except (RequestException, OSError) as error:
        raise _start_failure(error) from error
    return True


def _start_failure(error: Exception) -> Failure:
    text = str(error)
    if "could not select device driver" in text or "unresolvable CDI" in text:
        return NoGpuRuntimeError(
            "This host has GPUs, but the engine cannot pass them to a container.",
            fix="Install the NVIDIA Container Toolkit, then: "
            "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
            detail=_short(error),
        )
    if "nvidia-container-cli" in text:
        return NoGpuRuntimeError(
            "The NVIDIA container runtime refused to start the container.",
            fix="Its message says why. Check the driver: nvidia-smi",
            detail=_short(error),
        )
    return EngineError(
        f"The container did not start: {_short(error)}",
        fix="Check the engine's log: journalctl -u docker",
        log=text,
    )


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _follow(container: Container, on_line: Callable[[str], None]) -> tuple[int, str, str]:
    """Hand its stderr on until it ends; give its exit code, stdout, and the end of stderr."""
    with uninterrupted():
        chunks = container.logs(stdout=False, stderr=True, stream=True, follow=True)
    for line in _lines(chunks):
        on_line(line)
    code = int(container.wait(timeout=60)["StatusCode"])
    stdout = _beginning(container.logs(stdout=True, stderr=False, stream=True))
    stderr = _end(container.logs(stdout=False, stderr=True, stream=True, tail=50))
    return code, stdout, stderr


def _beginning(chunks: Iterator[bytes]) -> str:
    """As much as is kept of any command's standard output; a container may have written more."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk[: process.CAPTURE_BYTES - len(kept)]
        if len(kept) == process.CAPTURE_BYTES:
            break
    return kept.decode("utf-8", "replace")


def _end(chunks: Iterator[bytes]) -> str:
    kept = b""
    for chunk in chunks:
        kept = (kept + chunk)[-process.KEEP_BYTES :]
    return kept.decode("utf-8", "replace")


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    pending = b""
    for chunk in chunks:
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if len(pending) > process.KEEP_BYTES:  # a line without an end
            yield pending.decode("utf-8", "replace")
            pending = b""
    if pending:
        yield pending.decode("utf-8", "replace")


def _remove(container: Container) -> None:
    from docker.errors import APIError
    from requests.exceptions import RequestException

    with contextlib.suppress(APIError, RequestException, OSError):
        container.remove(force=True, v=True)


def _stop_overdue(container: Container, overdue: threading.Event) -> None:
    overdue.set()
    _remove(container)


def _overdue() -> EngineError:
    return EngineError(
        "The verification timed out and was stopped.",
        fix="Check the host (dmesg, nvidia-smi), or allow more time: "
        "provision verify IMAGE --timeout SECONDS",
    )


def knock(host: str) -> None:
    """Connect to a unix:// socket and leave; OSError where nobody listens, or it is not ours."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(10)
        probe.connect(host.removeprefix("unix://"))


def _no_engine(error: Exception, fix: str) -> NoEngineError:
    host = os.environ.get("DOCKER_HOST") or "the default socket"
    if "permission denied" in str(error).lower():
        return NoEngineError(
            f"A Docker engine runs at {host}, but this user may not use it.",
            fix="Join the group docker: sudo usermod -aG docker $USER, then log in again "
            "(or: newgrp docker).",
            detail=str(error),
        )
    return NoEngineError(f"No container engine answers at {host}.", fix=fix, detail=_short(error))


def _short(error: Exception) -> str:
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text if len(text) <= 400 else text[:400] + "..."


def _last_lines(text: str, count: int = 20) -> str:
    return "\n".join(text.splitlines()[-count:])
