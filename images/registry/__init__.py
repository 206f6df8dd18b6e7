"""Talks to container registries: which digest a tag stands for, and images in both directions.

Every request goes the same way: `session` shows what the registry asks for (`tokens`, of docker's
own configuration: `auth`), asks again where that helps, and says what a refusal means (`answers`).
The network itself is `images.net`.

How data flows, and which module does what:

    a name  --oci.reference-->  registry, repository, tag or digest
            --reader-------->  manifests and blobs, checked; from `mirrors` first
            --digest-------->  the digest of a tag, once it fits the architecture
            --tags---------->  the tags of a repository
    layers  --target-------->  `upload` of each `body`, then the manifest; `referrers` beside it

`errors` says how it can fail. No small question waits for longer than its time limit, whatever the
network does: the work is done by a thread that is left behind if need be, because neither a name
look-up nor a credential helper can be told to hurry.
"""

from __future__ import annotations

from images.net.errors import BadCaBundle
from images.oci.errors import BadReference
from images.oci.reference import Reference, parse_reference
from images.registry.auth import Login
from images.registry.errors import (
    ImageNotFoundError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)

__all__ = [
    "BadCaBundle",
    "BadReference",
    "ImageNotFoundError",
    "Login",
    "Reference",
    "RegistryAnswerError",
    "RegistryDeniedError",
    "RegistryUnreachableError",
    "parse_reference",
]
