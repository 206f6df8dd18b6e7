"""Runs an image's command without an engine, on the unpacked root."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from images.engines.sandbox.bounds import bounded
from images.engines.sandbox.devices import Driver, find_driver
from images.engines.sandbox.errors import SandboxError
from images.engines.sandbox.launch import Launcher, environment, explain, find_launcher
from images.engines.sandbox.plan import Mount, SandboxPlan, plan_run
from images.engines.sandbox.roots import Root, Roots
from images.engines.spec import Foreground, Port, RunJob, RunResult
from images.oci.sources import Image
from images.system import process
from images.system.foreground import attend, first_below

_TERMINAL = Path(__file__).with_name("terminal.py")
_NOT_STARTED = re.compile(r"^(bwrap|unshare|sandbox|setpriv): ")
_TAIL_LINES = 50
_LITTLE_BYTES = 1 << 20
_GRACE_S = 1.0


def confine(
    root: Path, at: str, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The command that runs a program in a sandbox with only one directory, at `at`, and the
    variables for this command. More words can be appended to it. NoRunnerError: this machine has
    no sandbox.
    """
    made = [Mount(kind="directory", target=place) for place in ("/proc", "/dev", "/sys")]
    plan = SandboxPlan(
        mounts=(
            Mount(kind="memory", target="/"),
            *made,
            Mount(kind="bind", target=at, source=str(root)),
        ),
        devices=(),
        env=env,
        argv=tuple(argv),
        directory="/",
        shm_bytes=_LITTLE_BYTES,
        memory_bytes=_LITTLE_BYTES,
    )
    return tuple(find_launcher().command(plan, root.parent)), environment()


class Sandbox:
    """Runs images in separate namespaces, with bubblewrap or unshare."""

    def __init__(
        self, launcher: Launcher, roots: Path, *, driver: Callable[[], Driver] = find_driver
    ) -> None:
        self._launcher = launcher
        self._roots = Roots(roots)
        self._driver = driver
        self._in_use: dict[str, Root] = {}

    @classmethod
    def connect(cls, roots: Path) -> Sandbox:
        """The sandbox of this host, tested. NoRunnerError: none can be started."""
        return cls(find_launcher(), roots)

    @property
    def name(self) -> str:
        return f"sandbox ({self._launcher.kind} {self._launcher.version})"

    def storage(self) -> Path:
        """Where images are unpacked."""
        return self._roots.directory

    def prepare(
        self, image: Image, on_bytes: Callable[[int], None], *, source: str = "", name: str = ""
    ) -> str:
        """Unpack an image, or mount its squashfs; returns its handle for `RunJob.image`."""
        del source, name
        handle = str(image.squashfs.path) if image.squashfs else image.image_id
        if handle not in self._in_use:
            mounted = self._roots.mount(image) if image.squashfs else None
            self._in_use[handle] = mounted or self._roots.use(image, on_bytes)
        return handle

    def remove(self, handle: str) -> None:
        """Remove the unpacked or mounted root, unless another process uses it."""
        root = self._in_use.pop(handle, None)
        if root is not None:
            root.release()
            self._roots.clear()

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run the command to its end, and end all processes that it leaves behind."""
        root = self._root(job.image)
        # next to the root: a killed process's leftovers are removed with it
        with (
            tempfile.TemporaryDirectory(prefix="run-", dir=root.place) as made,
            bounded(job) as bounds,
        ):
            scratch = Path(made)
            argv, notes = self._command(job, root, scratch)
            notes = (*bounds.notes, *notes)
            if job.signals is not None:
                job.signals.to(_send_signal)
            try:
                done = process.run(
                    [*bounds.words, *argv],
                    timeout_s=job.timeout_s,
                    on_line=on_line,
                    apart=True,
                    grace_s=_GRACE_S,
                    env=environment(),
                    inherit_env=False,
                    input=b"",  # a pipe, not the host's /dev/null
                    cwd=Path("/"),
                )
            except process.CommandTimedOut as error:
                raise SandboxError(
                    "The verification timed out and was stopped.",
                    fix="Check the host (dmesg, nvidia-smi), or allow more time: "
                    "provision verify IMAGE --timeout SECONDS",
                    detail=error.completed.last_lines(),
                ) from error
        if not done.ok and not done.stdout and _NOT_STARTED.match(done.last_lines(1)):
            why, fix = explain(done.last_lines(1))
            raise SandboxError(
                f"The sandbox did not start: {why}", fix=fix, detail=done.last_lines()
            )
        code = done.code if done.code >= 0 else 128 - done.code
        return RunResult(
            exit_code=code,
            stdout=done.stdout,
            stderr_tail=done.last_lines(_TAIL_LINES),
            notes=notes,
        )

    def attend(self, job: RunJob, front: Foreground, on_note: Callable[[str], None]) -> int:
        """Run the command with our input, output and network; returns its exit code. The files that
        it writes in `binds` belong to this user. All processes that it leaves behind are ended.
        """
        root = self._root(job.image)
        with (
            tempfile.TemporaryDirectory(prefix="run-", dir=root.place) as made,
            bounded(job) as bounds,
        ):
            argv, notes = self._command(job, root, Path(made), front=front)
            for note in (*bounds.notes, *notes, *map(_not_published, front.ports)):
                if note:
                    on_note(note)
            words = [*bounds.words, *argv]
            if front.terminal:
                words = [sys.executable, "-I", "-S", str(_TERMINAL), *words]
            return attend(
                words,
                env=environment(),
                cwd=Path("/"),
                terminal=front.terminal,
                first=first_below,
            )

    def _root(self, handle: str) -> Root:
        found = self._in_use.get(handle)
        if found is None:
            raise SandboxError(f"The image {handle} is not unpacked.", fix="Prepare it first.")
        return found

    def _command(
        self,
        job: RunJob,
        root: Root,
        scratch: Path,
        *,
        front: Foreground | None = None,
    ) -> tuple[list[str], tuple[str, ...]]:
        """The command of a job, and notes on what differs from the request."""
        files = scratch / "files"
        files.mkdir()
        driver = self._driver() if job.gpus != "none" else None
        plan = plan_run(root.tree, root.config, job, driver, files, front)
        notes: list[str] = []
        if (user := image_user(root.config)) != "":
            notes.append(f"user {user}: the sandbox runs everything as its own root")
        notes += driver.notes if driver is not None else ()
        terminal = front is not None and front.terminal
        words = self._launcher.command(plan, scratch, terminal=terminal)
        return [*words, *(plan.argv if terminal else ())], tuple(notes)


def image_user(config: Mapping[str, Any]) -> str:
    """The user that the image's configuration names; "" for root."""
    settings = config.get("config")
    user = settings.get("User") if isinstance(settings, dict) else None
    name = user.partition(":")[0] if isinstance(user, str) else ""
    return "" if name in {"", "0", "root"} else name


def _send_signal(number: int) -> None:
    """Send a signal to the first process of the sandbox that this one runs."""
    with contextlib.suppress(OSError):  # it has ended
        if (first := first_below(os.getpid())) is not None:
            os.kill(first, number)


def _not_published(port: Port) -> str:
    if port.here == port.inside:
        return ""
    return (
        f"port {port.inside} is at {port.inside}, not at {port.here}: the sandbox has this "
        "machine's network"
    )
