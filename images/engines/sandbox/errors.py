"""Errors from running an image without an engine."""

from __future__ import annotations

from images.errors import Failure


class SandboxError(Failure):
    """The sandbox did not start, or did not end."""

    code = "sandbox-failed"
    exit_code = 5


class MountError(Failure):
    """A squashfs cannot be mounted on this host."""

    code = "image-mount"
    exit_code = 5
