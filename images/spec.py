"""What a builder needs to know, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A package's file, by its digest; `size` in bytes, None where the index does not say. `url`
    may be a `file:` one.
    """

    name: str
    version: str
    url: str
    size: int | None
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel(RemoteFile):
    """One locked wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """One image, decided. The same spec gives the same image.

    `base` is a reference the engine can resolve (with its digest when a registry gave it);
    `lock` is a PEP 751 file or a requirements file with hashes; `apt_packages` bring Python to a
    base that has none; `nvcc_flags` become NVCC_APPEND_FLAGS of the image.
    """

    base: str
    lock: Path
    labels: Mapping[str, str]
    apt_packages: tuple[str, ...] = ()
    nvcc_flags: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the build may see and the image may not hold. Contents, never paths of the host.

    `values` are the bare words (tokens, passwords) that are blotted out of everything shown.
    """

    ca_bundle: str = ""
    netrc: str = field(default="", repr=False)
    pip_index: str = field(default="", repr=False)
    values: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """`image_id` is the digest of its config ("sha256:..."); `size_bytes` as the engine counts."""

    image_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run of a command in an image.

    `gpus`: "none", "runtime" (the NVIDIA container runtime or hook) or "cdi". `files` are put into
    the container before it starts (absolute path -> content), so that a remote engine works too.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """`notes` say what the engine refused and was left out ("memlock=-1: not permitted here")."""

    exit_code: int
    stdout: str
    stderr_tail: str
    notes: tuple[str, ...] = ()
