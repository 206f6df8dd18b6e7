"""Podman, through its command line: loads an image, runs a command in it, and cleans up.

GPUs are passed only through CDI: some versions accept `--gpus` but ignore it.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from images.engines.archive import (
    engine_archive,
    engine_image_id,
    files_archive,
    is_holder,
    new_holder,
)
from images.engines.docker_errors import (
    EngineError,
    NoEngineError,
    NoGpuRuntimeError,
    missing_program,
)
from images.engines.podman_arguments import (
    LIMIT_REFUSED,
    bare,
    create_words,
    fewer_limits,
    own_limits,
)
from images.engines.run_arguments import limit_values, limit_words
from images.engines.spec import Foreground, RunJob, RunResult, not_permitted
from images.errors import DiskFullError, Failure
from images.oci.model import Platform
from images.oci.sources import Image
from images.system import process
from images.system.errors import NoProgramError
from images.system.foreground import attend, is_first
from images.system.scratch import scratch_directory

INSTALL_FIX = "sudo apt-get install -y --no-install-recommends podman"

_ASK_TIMEOUT_S = 60.0
_LOAD_TIMEOUT_S = 3600.0
_TAIL_LINES = 50
_GRACE_S = 0.5
_NOT_FOUND = 127
_OWN_FAILURES = frozenset({125, 126, _NOT_FOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImage:
    """An image in podman's storage."""

    image_id: str
    labels: Mapping[str, str]
    platform: Platform


class Podman:
    """One usable podman; `scratch` is the directory for archives while it reads them."""

    def __init__(self, program: str, version: str, scratch: Path | None = None) -> None:
        self._program = program
        self._version = version
        self._scratch = scratch
        self._holders: dict[str, str] = {}
        self._granted: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}

    @classmethod
    def connect(cls, scratch: Path | None = None) -> Podman:
        """The podman of this host. NoEngineError: it is missing or unusable."""
        program = process.which("podman")
        if program is None:
            raise NoEngineError("podman is not installed.", fix=INSTALL_FIX)
        try:
            done = process.run(
                [program, "info", "--format", "{{.Version.Version}}"],
                timeout_s=_ASK_TIMEOUT_S,
                apart=True,
            )
        except Failure as failure:
            raise NoEngineError(
                "podman does not answer.", fix="Check: podman info", detail=failure.message
            ) from failure
        version = done.stdout.strip()
        if not done.ok or not re.fullmatch(r"\d+(\.\d+)+\S*", version):
            raise NoEngineError(
                "podman is installed but not usable on this host.",
                fix="Check: podman info",
                detail=done.last_lines(),
            )
        _refuse_one_that_starts_nothing(program)
        return cls(program, version, scratch)

    @classmethod
    def find(cls, name: str) -> FoundImage | None:
        """The image of that name in podman's storage; None: it has none, or there is no podman."""
        program = process.which("podman")
        if program is None:
            return None
        words = ["image", "inspect", "--format", "{{.Id}} {{.Architecture}} {{json .Labels}}"]
        done = process.run([program, *words, bare(name)], timeout_s=_ASK_TIMEOUT_S, apart=True)
        if not done.ok:
            return None
        image_id, architecture, labels = done.stdout.split(None, 2)
        return FoundImage(
            image_id=f"sha256:{image_id}",
            labels=json.loads(labels) or {},
            platform=Platform(architecture=architecture),
        )

    @property
    def name(self) -> str:
        return f"podman {self._version}"

    def prepare(
        self,
        image: Image,
        on_bytes: Callable[[int], None],
        *,
        source: str = "",
        name: str = "",
    ) -> str:
        """Load an image into podman's storage, and keep it there until `remove`; returns its ID.

        `source` is a source on this host that podman can read itself ("oci:DIR:NAME"), which saves
        an archive. It must be the same image.
        """
        handle = image.image_id if source else engine_image_id(image)
        if handle not in self._holders and not self._shares(handle):
            holder = new_holder()
            if source:
                self._load(["pull", "--quiet", source])
            else:
                with self._archive(image, on_bytes, holder) as archive:
                    self._load(["load", "--quiet", "--input", str(archive)])
            if not self._has(handle):
                raise EngineError(
                    f"podman loaded {image.shown} but does not list the image {handle[:19]}.",
                    fix="Check podman images, then build the image again.",
                )
            if source:
                self._ask(["tag", bare(handle), holder])
            self._holders[handle] = holder
        if name:
            self._ask(["tag", bare(handle), name])
        return handle

    def _shares(self, handle: str) -> bool:
        """Whether the image is there, and no other run will delete it: one that another run has
        loaded gets a tag from this run, too.
        """
        words = ["image", "inspect", "--format", '{{join .RepoTags " "}}', bare(handle)]
        names = self._run(words)
        if not names.ok or not any(map(is_holder, names.stdout.split())):
            return names.ok
        holder = new_holder()
        if not self._run(["tag", bare(handle), holder]).ok:
            return False
        self._holders[handle] = holder
        return self._has(handle)

    def remove(self, handle: str) -> None:
        """Remove an image that `prepare` loaded; keeps images from before, those that have a name,
        and those that another run or a container uses.
        """
        holder = self._holders.pop(handle, None)
        if holder is not None:
            with contextlib.suppress(Failure):
                self._ask(["rmi", holder])

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run the command to its end, and always remove the container.

        Limits that are not permitted here are omitted and reported in the notes.
        """
        wanted = limit_values(job.stack_bytes, memlock_unlimited=job.memlock_unlimited)
        asked = tuple(wanted.items())
        limits = self._granted.get(asked, wanted)

        def tell(line: str) -> None:
            if not LIMIT_REFUSED.search(line):  # it is tried again without the limit
                on_line(line)

        while True:
            done = self._run_once(job, limits, tell)
            if done.code not in _OWN_FAILURES or done.stdout:
                break
            fewer = fewer_limits(limits, done.output)
            if fewer is None:
                raise _start_failure(done)
            limits = fewer
        self._granted[asked] = limits
        return RunResult(
            exit_code=done.code,
            stdout=done.stdout,
            stderr_tail=done.last_lines(_TAIL_LINES),
            notes=tuple(not_permitted(name) for name in wanted if name not in limits),
        )

    def attend(self, job: RunJob, front: Foreground, on_note: Callable[[str], None]) -> int:
        """Run the command with our input and output, and always remove the container; returns its
        exit code. With fewer limits if some are not permitted here. NoProgramError: the image does
        not have it.
        """
        wanted = limit_values(job.stack_bytes, memlock_unlimited=job.memlock_unlimited)
        limits: Mapping[str, str] = wanted
        name = f"gpu-provision-{secrets.token_hex(8)}"
        try:
            while not (made := self._init(job, front, name, limits)).ok:
                fewer = fewer_limits(limits, made.output)
                if fewer is None:
                    raise _start_failure(made)
                limits = fewer
                self._remove_container(name)
            for limit in wanted:
                if limit not in limits:
                    on_note(not_permitted(limit))
            asked = self._ask(["container", "inspect", "--format", "{{.State.Pid}}", name])
            return attend(
                [self._program, "start", "--attach", "--interactive", name],
                env=process.environment(),
                terminal=front.terminal,
                first=lambda _: pid if is_first(pid := int(asked)) else None,
            )
        finally:
            self._remove_container(name)

    def _init(
        self, job: RunJob, front: Foreground, name: str, limits: Mapping[str, str]
    ) -> process.Completed:
        """Create a container up to its command, which has not been started yet."""
        words = create_words(job, name, limits, front)
        made = self._run(["create", *words])
        if "container-init" in made.output:  # podman can be installed without it
            made = self._run(["create", *(word for word in words if word != "--init")])
        return self._run(["init", name]) if made.ok else made

    def _run_once(
        self, job: RunJob, limits: Mapping[str, str], on_line: Callable[[str], None]
    ) -> process.Completed:
        name = f"gpu-provision-{secrets.token_hex(8)}"
        try:
            made = self._run(["create", *create_words(job, name, limits)], _ASK_TIMEOUT_S)
            if not made.ok:
                raise _start_failure(made)
            if job.files:
                self._ask(["cp", "-", f"{name}:/"], files_archive(job.files))
            if job.signals is not None:
                job.signals.to(partial(self._send_signal, name))
            done = process.run(
                [self._program, "start", "--attach", name],
                timeout_s=job.timeout_s,
                on_line=on_line,
                apart=True,
                grace_s=_GRACE_S,  # its container is removed below
            )
            for path, to in (job.outputs if done.ok else {}).items():
                self._run(["cp", f"{name}:{path}/.", str(to)], _LOAD_TIMEOUT_S)
        except process.CommandTimedOut as error:
            raise EngineError(
                "The verification timed out and was stopped.",
                fix="Check the host (dmesg, nvidia-smi), or allow more time: "
                "provision verify IMAGE --timeout SECONDS",
                detail=error.completed.last_lines(),
            ) from error
        finally:
            # by the name that we chose: this works even if its creation was interrupted
            self._remove_container(name)
        return done

    def _send_signal(self, name: str, number: int) -> None:
        with contextlib.suppress(Failure):
            self._run(["kill", "--signal", str(number), name])

    def _remove_container(self, name: str) -> None:
        with contextlib.suppress(Failure):
            self._run(["rm", "--force", "--ignore", "--volumes", "--time", "0", name])

    def storage(self) -> Path | None:
        """Where podman keeps images."""
        done = self._run(["info", "--format", "{{.Store.GraphRoot}}"])
        root = Path(done.stdout.strip())
        return root if done.ok and root.is_absolute() else None

    def _has(self, handle: str) -> bool:
        return self._run(["image", "exists", bare(handle)]).ok

    @contextlib.contextmanager
    def _archive(self, image: Image, on_bytes: Callable[[int], None], tag: str) -> Iterator[Path]:
        with scratch_directory(self._scratch) as made:
            archive = made / "image.tar"
            try:
                with archive.open("wb") as file:
                    for piece in engine_archive(image, on_bytes, tag=tag):
                        file.write(piece)
            except OSError as error:
                raise DiskFullError(
                    f"{made} cannot hold the image: {error.strerror}.",
                    fix=f"Free space (df -h {made}), or name another disk: TMPDIR.",
                ) from error
            yield archive

    def _load(self, words: list[str]) -> None:
        done = self._run(words, _LOAD_TIMEOUT_S)
        if "no space left on device" in done.output.lower():
            raise DiskFullError(
                "The disk where podman keeps its images is full.",
                fix="Free space: podman image prune; podman info shows where it keeps them.",
                detail=done.last_lines(),
            )
        if not done.ok:
            raise EngineError(
                "podman could not load the image.",
                fix="Its message says why; podman info shows how it is set up.",
                detail=done.last_lines(),
            )

    def _ask(self, words: list[str], data: bytes | None = None) -> str:
        return answer_of(words, self._run(words, _ASK_TIMEOUT_S, data))

    def _run(
        self, words: list[str], timeout_s: float = _ASK_TIMEOUT_S, data: bytes | None = None
    ) -> process.Completed:
        return process.run(
            [self._program, *words],
            timeout_s=timeout_s,
            apart=True,
            input=data,
            missing_fix=INSTALL_FIX,
        )


def answer_of(words: Sequence[str], done: process.Completed) -> str:
    """What `podman WORDS` printed. EngineError: it failed."""
    if not done.ok:
        raise EngineError(
            f"podman {words[0]} failed: {done.last_lines(1) or process.describe_exit(done.code)}",
            fix="Check that podman works: podman info",
            detail=done.last_lines(),
        )
    return done.stdout


def _refuse_one_that_starts_nothing(program: str) -> None:
    """Test podman with a program that does not exist, in an empty root: if it fails only because
    of that, it can start containers. Tested first, because loading an image takes minutes.
    """
    with scratch_directory() as empty:

        def start(limits: Mapping[str, str]) -> process.Completed:
            words = ["run", "--rm", "--network", "none", *limit_words(limits)]
            return process.run(
                [program, *words, "--rootfs", str(empty), "/none"],
                timeout_s=_ASK_TIMEOUT_S,
                apart=True,
            )

        done = start({})
        if done.code != _NOT_FOUND:
            done = start(own_limits())
    if done.code != _NOT_FOUND:
        raise NoEngineError(
            f"podman is installed but cannot start a container: {done.last_lines(1)}",
            fix="Check: podman info, man containers.conf (runtime, cgroup_manager, ulimits)",
            detail=done.last_lines(),
        )


def _start_failure(done: process.Completed) -> Failure:
    if "CDI" in done.output:
        return NoGpuRuntimeError(
            "This host has GPUs, but podman has no CDI specification of them.",
            fix="Install the NVIDIA Container Toolkit, then: "
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            detail=done.last_lines(),
        )
    if (missing := missing_program(done.output)) is not None:
        return NoProgramError(missing)
    return EngineError(
        f"The container did not start: {done.last_lines(1)}",
        fix="Check that podman works: podman info",
        detail=done.last_lines(),
    )
