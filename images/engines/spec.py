"""What a builder needs to know, and what it gives back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


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


SMALLER_FIX = "Build the image again, with fewer or shorter variables and a shorter command."
# Linux passes no longer string to a program (MAX_ARG_STRLEN), no longer path (PATH_MAX), and a
# quarter of the stack in all, which is 2 MB where nobody has set another limit: execve(2). What a
# launcher adds is among them.
_LONGEST_WORD = 128 << 10
_LONGEST_PATH = 4096
_MOST_OF_WORDS = 1 << 20


def too_much_to_pass(words: Sequence[str], directory: str) -> str:
    """Why Linux starts no program with this command and these variables in this directory; "" where
    it does. Engines say so late, or not at all.
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
