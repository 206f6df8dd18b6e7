"""One container of a Docker engine: started, followed to its end, removed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from images.engines.archive import files_archive
from images.engines.docker_errors import EngineError, start_failure
from images.engines.run_arguments import CDI_GPUS, ROLE, RUN_ROLE
from images.engines.spec import Foreground, RunJob
from images.system import output, process
from images.system.interruption import uninterrupted

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.types import Ulimit


def settings_of(job: RunJob, limits: Sequence[Ulimit]) -> dict[str, Any]:
    """The arguments of `containers.create` for a job, without a network."""
    from docker.types import DeviceRequest

    requests = {
        "runtime": [DeviceRequest(count=-1, capabilities=[["gpu"]])],
        "cdi": [DeviceRequest(driver="cdi", device_ids=[CDI_GPUS])],
    }.get(job.gpus, [])
    return {
        "image": job.image,
        "command": list(job.command),
        "network_mode": "none",
        "shm_size": job.shm_bytes,
        "ulimits": list(limits),
        "device_requests": requests,
        "environment": dict(job.environment),
        "labels": dict([ROLE.split("=")]),
    }


def front_settings(
    job: RunJob, front: Foreground, network: str | None, user: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments that differ for a job in the foreground. `network`: None is the engine's
    default; `user`: see `own_user`.
    """
    names = ("HOME", "USER", "LOGNAME") if user else ()
    return {
        "network_mode": network,
        "environment": {**{name: user[name] for name in names}, **job.environment},
        "labels": dict([RUN_ROLE.split("=")]),
        "stdin_open": True,
        "tty": front.terminal,
        "init": True,  # which the kernel's rules for the first process do not keep from signals
        "volumes": [str(one) for one in front.binds],
        "ports": {}
        if network == "host"
        else {f"{one.inside}/{one.protocol}": (one.address, one.here) for one in front.ports},
        **({"working_dir": front.directory} if front.directory else {}),
        **({"user": user["user"]} if user else {}),
    }


def own_user(info: Mapping[str, Any], root: Path) -> dict[str, str]:
    """The user of a container whose files are this user's: "UID:GID", and variables for a user that
    the image does not know. {}: the image's, if this is root, or if the engine is this user's own,
    which maps root to it.
    """
    own = any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
    if os.geteuid() == 0 or own:
        return {}
    uid, gid = os.geteuid(), os.getegid()
    names = [line.split(":") for line in (root / "etc/passwd").read_text("utf-8").splitlines()]
    name = next((row[0] for row in names if row[2:3] == [str(uid)]), str(uid))
    return {"user": f"{uid}:{gid}", "HOME": "/tmp", "USER": name, "LOGNAME": name}  # noqa: S108


def limits_of(job: RunJob) -> list[Ulimit]:
    """The limits that a job is to have."""
    from docker.types import Ulimit

    stack = Ulimit(name="stack", soft=job.stack_bytes, hard=job.stack_bytes)
    memlock = [Ulimit(name="memlock", soft=-1, hard=-1)] if job.memlock_unlimited else []
    return [stack, *memlock]


def start(container: Container, files: Mapping[str, bytes], *, may_lack_limits: bool) -> bool:
    """Start it. False if the machine does not permit its limits and it can run with fewer."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    try:
        if files:
            container.put_archive("/", files_archive(files))
        container.start()
    except APIError as error:
        if "rlimit" in str(error) and may_lack_limits:
            return False
        raise start_failure(error) from error
    except (RequestException, OSError) as error:
        raise start_failure(error) from error
    return True


def copy_out(container: Container, path: str, to: Path) -> None:
    """Copy the regular files below a directory of a container; links and devices stay behind."""
    pieces, _ = container.get_archive(path)
    with tarfile.open(fileobj=_Pieces(pieces), mode="r|") as tar:
        for entry in tar:
            _, *parts = PurePosixPath(entry.name).parts or ("",)
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is None or not parts or ".." in parts:
                continue
            place = to.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                shutil.copyfileobj(content, file)


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a stream to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._rest += piece
        size = len(self._rest) if size < 0 else size
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def follow(container: Container, on_line: Callable[[str], None]) -> tuple[int, str, str]:
    """Pass its stderr on until it ends; returns its exit code, stdout, and the end of stderr."""
    with uninterrupted():
        chunks = container.logs(stdout=False, stderr=True, stream=True, follow=True)
    for line in _lines(chunks):
        on_line(line)
    code = int(container.wait(timeout=60)["StatusCode"])
    stdout = _beginning(container.logs(stdout=True, stderr=False, stream=True))
    stderr = _end(container.logs(stdout=False, stderr=True, stream=True, tail=50))
    return code, stdout, stderr


def _beginning(chunks: Iterator[bytes]) -> str:
    """The beginning of a container's stdout, up to the limit for captured output."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk[: output.CAPTURE_BYTES - len(kept)]
        if len(kept) == output.CAPTURE_BYTES:
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


def remove(container: Container) -> None:
    from docker.errors import APIError
    from requests.exceptions import RequestException

    with contextlib.suppress(APIError, RequestException, OSError):
        container.remove(force=True, v=True)


def send_signal(container: Container, number: int) -> None:
    """Send a signal to its command."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    with contextlib.suppress(APIError, RequestException, OSError):  # it has ended
        container.kill(signal.Signals(number).name)


def stop_overdue(container: Container, overdue: threading.Event) -> None:
    overdue.set()
    remove(container)


def overdue_failure() -> EngineError:
    return EngineError(
        "The verification timed out and was stopped.",
        fix="Check the host (dmesg, nvidia-smi), or allow more time: "
        "provision verify IMAGE --timeout SECONDS",
    )
