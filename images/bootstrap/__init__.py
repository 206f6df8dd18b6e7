"""Makes a small Debian base with Python, for hosts that reach a Debian mirror but no registry.

How data flows, and which module does what:

    the host's apt sources  --mirrors-->  the lines for a suite
                            --tools---->  a root file system, as a tar (mmdebstrap or debootstrap)
                            --tree----->  a layer: cleaned, sorted, no time later than `epoch`
                            --archive-->  a docker-archive, which engines and builders read
                            --store---->  <store>/bases, where it is found again

`make` leads through it, `host` says what this machine has and lacks, `errors` how it can fail.
Imports go one way: `make` uses all; `tools` uses `host`, `mirrors` and `tree`; `host` uses
`mirrors`; the others stand alone.

The same packages from the same mirrors give the same image id on every host: nothing else of the
host or of the day stays in the tree (names, logs, caches, byte code), files are sorted, and owners
are numbers. After some days a base is made again, so that security updates arrive.
"""

from __future__ import annotations

from images.bootstrap.errors import (
    BootstrapError,
    BootstrapToolError,
    BootstrapUnfitError,
    MirrorError,
    NoSpaceError,
)
from images.bootstrap.make import DEFAULT_PACKAGES, bootstrap
from images.bootstrap.store import BootstrapBase, find

__all__ = [
    "DEFAULT_PACKAGES",
    "BootstrapBase",
    "BootstrapError",
    "BootstrapToolError",
    "BootstrapUnfitError",
    "MirrorError",
    "NoSpaceError",
    "bootstrap",
    "find",
]
