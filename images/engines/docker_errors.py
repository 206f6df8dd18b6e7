"""Turns Docker's errors into ours, with what to type then."""

from __future__ import annotations

import os
import re

from images.errors import DiskFullError, Failure
from images.system.errors import NoProgramError

# A firewall reload or another engine can remove docker0 from a running engine.
BRIDGE_IS_BROKEN = re.compile(r"failed to create endpoint .* on network bridge")
# The last one is all that an older client prints, with exit code 0.
_ENGINE_WENT_AWAY = re.compile(
    r"error during connect|cannot connect to the docker daemon|code = Unavailable|EOF$"
    r"|server did not provide an image ID",
    re.IGNORECASE | re.MULTILINE,
)

_NOT_IN_IMAGE = re.compile(
    r'exec: "(?P<runc>[^"]+)": (executable file not found|stat [^ ]+: no such file)'
    r"|executable file `(?P<crun>[^`]+)` not found"
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


class NoGpuRuntimeError(Failure):
    """The host has GPUs, but the engine cannot pass them to a container."""

    code = "no-gpu-runtime"
    exit_code = 4


def build_failure(tail: str, *, engine_answers: bool) -> Failure:
    shown = {"detail": "\n".join(tail.splitlines()[-20:]), "log": tail}
    if "no space left on device" in tail.lower():
        return DiskFullError(
            "The engine's disk is full; no image was tagged.",
            fix="Free space: docker builder prune, docker image prune; df -h shows the disks.",
            **shown,
        )
    # uv's message, and pip's
    if re.search(r"hash(es)? mismatch|do not match the hashes", tail, re.IGNORECASE):
        return BuildFailedError(
            "A downloaded wheel does not have the hash that the lock names.",
            fix="If you trust the index, lock again: provision lock",
            **shown,
        )
    if not engine_answers or _ENGINE_WENT_AWAY.search(tail):
        return EngineError(
            "The engine stopped while it built the image.",
            fix="Check its log (journalctl -u docker), then run this again.",
            **shown,
        )
    return BuildFailedError(
        "A step of Dockerfile.cuda failed.",
        fix="Its last lines say why. If a download failed, check the network, the proxy and "
        "--ca-bundle, then run this again.",
        **shown,
    )


def start_failure(error: Exception) -> Failure:
    text = str(error)
    if "could not select device driver" in text or "unresolvable CDI" in text:
        return NoGpuRuntimeError(
            "This host has GPUs, but the engine cannot pass them to a container.",
            fix="Install the NVIDIA Container Toolkit, then: "
            "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
            detail=short(error),
        )
    if "nvidia-container-cli" in text:
        return NoGpuRuntimeError(
            "The NVIDIA container runtime refused to start the container.",
            fix="Its message says why. Check the driver: nvidia-smi",
            detail=short(error),
        )
    if (missing := missing_program(text)) is not None:
        return NoProgramError(missing)
    return EngineError(
        f"The container did not start: {short(error)}",
        fix="Check the engine's log: journalctl -u docker",
        log=text,
    )


def missing_program(text: str) -> str | None:
    """The program that an engine did not find in an image; None: it says nothing of the kind."""
    found = _NOT_IN_IMAGE.search(text)
    return (found["runc"] or found["crun"]) if found else None


def no_engine(error: Exception, fix: str) -> NoEngineError:
    host = os.environ.get("DOCKER_HOST") or "the default socket"
    if "permission denied" in str(error).lower():
        return NoEngineError(
            f"A Docker engine runs at {host}, but this user has no access to it.",
            fix="Join the group docker: sudo usermod -aG docker $USER, then log in again "
            "(or: newgrp docker).",
            detail=str(error),
        )
    return NoEngineError(f"No container engine answers at {host}.", fix=fix, detail=short(error))


def short(error: Exception) -> str:
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text if len(text) <= 400 else text[:400] + "..."
