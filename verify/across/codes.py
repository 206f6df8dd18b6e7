"""Stable codes for what NCCL, gloo and torch's store say when they fail. The first match wins.

`own` says that the node where it was said is the one at fault; the others name a connection, which
has two ends. The texts are those of NCCL 2.10 to 2.27 and torch 1.13 to 2.13.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Tuple


class LibraryError(NamedTuple):
    """A code, the texts that it stands for, and whether it is the node's own fault."""

    code: str
    pattern: str
    own: bool


def _own(code: str, pattern: str) -> LibraryError:
    return LibraryError(code, pattern, own=True)


def _between(code: str, pattern: str) -> LibraryError:
    return LibraryError(code, pattern, own=False)


ERRORS: Tuple[LibraryError, ...] = (
    _own("nccl-no-interface", r"no socket interface found"),
    _own("nccl-shared-memory", r"extend /dev/shm|shared memory segment|/dev/shm.*No space"),
    _own("nccl-duplicate-gpu", r"Duplicate GPU detected"),
    _own("gpu-out-of-memory", r"CUDA out of memory|OutOfMemoryError|'out of memory'"),
    _own("nccl-cuda-error", r"ncclUnhandledCudaError|unhandled cuda error|CUDA error"),
    _between("nccl-remote-error", r"ncclRemoteError|remote process exited"),
    _between("nccl-timeout", r"Watchdog caught collective operation timeout"),
    _between("nccl-system-error", r"ncclSystemError|unhandled system error"),
    _between("nccl-internal-error", r"ncclInternalError|NCCL.*internal error"),
    _between("nccl-invalid-usage", r"ncclInvalidUsage|NCCL.*invalid usage"),
    _between("nccl-invalid-argument", r"ncclInvalidArgument"),
    _own(
        "gloo-no-interface",
        r"[Uu]nable to find (address|interface)|ifa != nullptr|unable to resolve hostname",
    ),
    _between(
        "gloo-connection-closed",
        r"Connection closed by peer|Connection reset by peer|Broken pipe|Read error|"
        r"writev.*(reset|pipe)",
    ),
    _between("gloo-timeout", r"Timed out waiting \d+ ?ms|Application timeout"),
    _between(
        "gloo-connect-failed",
        r"connectFullMesh|[Cc]onnect timeout|gloo.*(SO_ERROR|connect|No route|refused)",
    ),
    _between(
        "store-unreachable",
        r"client socket has (failed|timed out)|DistNetworkError|DistStoreError|Socket [Tt]imeout|"
        r"TCP client failed|wait timeout|Failed to recv",
    ),
)
UNKNOWN = _own("across-rank-failed", "")
DIED = _own("across-rank-died", "")
HANG = _own("across-hang", "")


def classify(text: str) -> LibraryError:
    """The row of an error's text."""
    return next((row for row in ERRORS if re.search(row.pattern, text)), UNKNOWN)
