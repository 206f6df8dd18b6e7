"""Asks a container registry which digest a tag stands for today.

The protocol is small (OCI distribution): one GET of the manifest, a token fetched when the registry
asks for one, the login read from docker's own configuration. No question waits for longer than its
time limit, whatever the network does: the work is done by a thread that is left behind if need be,
because neither a name look-up nor a credential helper can be told to hurry.

How data flows, and which module does what:

    a name  --reference-->  registry, repository, tag or digest
            --client----->  the manifest (by `http`; with a login by `auth`)
            --digest----->  its digest, once it fits the architecture and the digest announced

`digest` imports `client`, which imports the others; `errors` says how it can fail.
"""

from __future__ import annotations

from images.registry.auth import Login
from images.registry.digest import resolve_digest
from images.registry.errors import (
    BadCaBundle,
    BadReference,
    ImageNotFoundError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from images.registry.http import Answer, Http, proxy_for
from images.registry.reference import Reference, parse_reference

__all__ = [
    "Answer",
    "BadCaBundle",
    "BadReference",
    "Http",
    "ImageNotFoundError",
    "Login",
    "Reference",
    "RegistryAnswerError",
    "RegistryDeniedError",
    "RegistryUnreachableError",
    "parse_reference",
    "proxy_for",
    "resolve_digest",
]
