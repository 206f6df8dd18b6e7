"""How asking a registry can fail."""

from __future__ import annotations

from images.errors import Failure

CONNECT_FIX = "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE)."

PUSH_FIX = (
    "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE) and push again: "
    "blobs that have arrived are not sent twice."
)


class RegistryUnreachableError(Failure):
    """A registry did not answer, or not in time, or only with its own errors."""

    code = "registry-unreachable"
    exit_code = 5


class RegistryAnswerError(Failure):
    """A registry answered with something damaged, or that is not a registry's answer."""

    code = "registry-bad-answer"
    exit_code = 5


class ImageNotFoundError(Failure):
    """A registry has no such image, or not for the architecture that is needed."""

    code = "image-not-found"
    exit_code = 5


class RegistryDeniedError(Failure):
    """A registry refused: no login, a wrong one, or its limit is used up."""

    code = "registry-denied"
    exit_code = 5


class PushRefusedError(Failure):
    """A registry does not take what was pushed: too large, no such repository, a fixed tag."""

    code = "push-refused"
    exit_code = 5
