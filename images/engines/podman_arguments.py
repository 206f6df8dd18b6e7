"""What podman is asked for a container, and with which limits if some are refused."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping

from images.engines.run_arguments import ROLE, RUN_ROLE, container_words
from images.engines.spec import Foreground, RunJob

LIMIT_REFUSED = re.compile(
    r"rlimit type (?P<number>\d+)|set ?rlimit `?RLIMIT_(?P<name>[A-Z]+)", re.IGNORECASE
)
_NUMBERS = {"3": "stack", "6": "nproc", "7": "nofile", "8": "memlock"}
# The limits that podman raises by itself if any limit is requested.
_PODMANS_OWN = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}


def create_words(
    job: RunJob, name: str, limits: Mapping[str, str], front: Foreground | None = None
) -> list[str]:
    """The words after `podman create`. `front`: for a job in the foreground. Its container's root
    is this user, or this is root: the files in its mounts belong to this user.
    """
    words = container_words(
        "podman",
        name=name,
        gpus=job.gpus,
        limits=limits,
        shm_bytes=job.shm_bytes,
        network="none" if front is None else "",
        environment=job.environment,
        role=ROLE if front is None else RUN_ROLE,
    )
    words += [] if front is None else _front_words(front)
    return [*words, "--pull", "never", bare(job.image), *job.command]


def _front_words(front: Foreground) -> list[str]:
    words = ["--init", "--interactive"]
    words += ["--tty"] if front.terminal else []
    words += ["--workdir", front.directory] if front.directory else []
    for one in front.binds:
        words += ["--volume", str(one)]
    # as for a home directory: relabelling it for SELinux would keep others from it
    words += ["--security-opt", "label=disable"] if front.binds else []
    for port in front.ports:
        words += ["--publish", str(port)]
    return words


def bare(handle: str) -> str:
    """An ID in the form that every version of podman accepts."""
    return handle.removeprefix("sha256:")


def fewer_limits(limits: Mapping[str, str], output: str) -> dict[str, str] | None:
    """The limits to try next after one was refused; None if the failure has another cause.

    If any limit is requested, podman raises those for files and processes by itself. If that is
    refused, we set them to our limits; if even that is refused, we request none.
    """
    found = LIMIT_REFUSED.search(output)
    if found is None or not limits:
        return None
    name = _NUMBERS.get(found["number"] or "", (found["name"] or "").lower())
    if name in _PODMANS_OWN:
        return {} if name in limits else {**limits, **own_limits()}
    return {key: value for key, value in limits.items() if key != name and name in limits}


def own_limits() -> dict[str, str]:
    hard = {name: resource.getrlimit(kind)[1] for name, kind in _PODMANS_OWN.items()}
    return {name: f"{value}:{value}" for name, value in hard.items()}
