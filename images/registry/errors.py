"""Errors from requests to registries."""

from __future__ import annotations

from images.errors import Failure

CONNECT_FIX = "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE)."

PUSH_FIX = (
    "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE) and push again: "
    "blobs that have arrived are not sent twice."
)


class RegistryUnreachableError(Failure):
    """A registry did not answer, not in time, or only with server errors."""

    code = "registry-unreachable"
    exit_code = 5


class RegistryAnswerError(Failure):
    """A registry's answer was damaged, or not like a registry's."""

    code = "registry-bad-answer"
    exit_code = 5


class ImageNotFoundError(Failure):
    """A registry has no such image, or not for the required architecture."""

    code = "image-not-found"
    exit_code = 5


class RegistryDeniedError(Failure):
    """A registry refused the request: no login, a wrong one, or its rate limit was reached."""

    code = "registry-denied"
    exit_code = 5


class PushRefusedError(Failure):
    """A registry rejected the push: too large, no such repository, an immutable tag."""

    code = "push-refused"
    exit_code = 5
