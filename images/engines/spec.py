"""The input and output of builders and runners."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.oci.sources import LayerSource
from images.system.interruption import HandedOn


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """One image to build. The same spec results in the same image.

    `base` is a reference that the engine can resolve (with its digest if it is from a registry);
    `lock` is a PEP 751 file or a requirements file with hashes; `apt_packages` install Python in a
    base without it; `nvcc_flags` become the image's NVCC_APPEND_FLAGS; `wheels` are those that an
    engine cannot download, by the address of each: on this machine, or behind a login. `installed`
    is the text of the lock for the installer, if it is another one than in the image.
    `project` is the layer of the user's own files; the image starts in `working_dir` and runs
    `command`.
    """

    base: str
    lock: Path
    labels: Mapping[str, str]
    apt_packages: tuple[str, ...] = ()
    nvcc_flags: str = ""
    wheels: Mapping[str, Path] = field(default_factory=dict)
    installed: str | None = None
    project: LayerSource | None = None
    working_dir: str = "/workspace"
    command: tuple[str, ...] = ("python3",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """`image_id` is the digest of its config ("sha256:..."); `size_bytes` is the engine's count."""

    image_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run of a command in an image.

    `gpus`: "none", "runtime" (the NVIDIA container runtime or hook) or "cdi". `files` are copied
    into the container before it starts (absolute path -> content), which works with a remote
    engine, too. `outputs` are directories that the command writes (absolute path -> an empty
    directory of this machine, which has their files after an exit code of 0). They are the
    command's: links in them may lead anywhere. `signals` are handed on to the command.
    """

    image: str
    command: tuple[str, ...]
    gpus: str = "none"
    files: Mapping[str, bytes] = field(default_factory=dict)
    shm_bytes: int = 1 << 30
    memlock_unlimited: bool = True
    stack_bytes: int = 64 << 20
    timeout_s: float = 1800.0
    environment: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Path] = field(default_factory=dict)
    signals: HandedOn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or directory of this machine, at an absolute path of the container."""

    source: Path
    target: str
    writable: bool = True

    def __str__(self) -> str:
        """As docker and podman take it."""
        return f"{self.source}:{self.target}:{'rw' if self.writable else 'ro'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of the container, at one of this machine; `address`: of which, "" for all."""

    inside: int
    here: int
    protocol: str = "tcp"
    address: str = ""

    def __str__(self) -> str:
        """As docker and podman take it."""
        address = f"{self.address}:" if self.address else ""
        return f"{address}{self.here}:{self.inside}/{self.protocol}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreground:
    """What a job gets that runs in the foreground: this process's input and output, the network,
    and these. `terminal`: in a terminal, which both ends of ours must be. `directory`: "" is the
    image's. Its files, outputs and time limit are not used, and without a command it runs the
    image's own.
    """

    terminal: bool = False
    binds: tuple[Bind, ...] = ()
    ports: tuple[Port, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """`notes` say what was refused and omitted ("memlock=-1: not permitted here")."""

    exit_code: int
    stdout: str
    stderr_tail: str
    notes: tuple[str, ...] = ()


def not_permitted(limit: str) -> str:
    """The note on a limit that the machine refuses."""
    return f"ulimit {limit}: not permitted on this machine, skipped"


SMALLER_FIX = "Build the image again, with fewer or shorter variables and a shorter command."
# Linux's limits for a string passed to a program (MAX_ARG_STRLEN), for a path (PATH_MAX), and for
# all strings, a quarter of the stack limit, by default 2 MB: execve(2). A launcher's words count,
# too.
_LONGEST_WORD = 128 << 10
_LONGEST_PATH = 4096
_MOST_OF_WORDS = 1 << 20


def too_much_to_pass(words: Sequence[str], directory: str) -> str:
    """Why Linux would refuse to start this command with these variables in this directory; "" if
    it would not. Engines report this late, or not at all.
    """
    sizes = [len(os.fsencode(word)) + 1 for word in words]
    if max(sizes, default=0) > _LONGEST_WORD or sum(sizes) > _MOST_OF_WORDS:
        return (
            f"its command and its variables are {len(sizes):,} words of {sum(sizes):,} bytes, the "
            f"longest of {max(sizes):,}; Linux passes {_MOST_OF_WORDS:,} bytes to a program, and "
            f"words of {_LONGEST_WORD:,}."
        )
    length = len(os.fsencode(directory))
    if length >= _LONGEST_PATH:
        most = _LONGEST_PATH - 1
        return f"its working directory is a path of {length:,} bytes; Linux follows {most:,}."
    return ""
