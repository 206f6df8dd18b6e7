"""Makes a small Debian base with Python, for hosts that reach a Debian mirror but no registry.

How data flows, and which module does what:

    the host's apt sources  --mirrors-->  the lines for a suite, of now or of a day
                            --tools---->  a root file system, as a tar (mmdebstrap or debootstrap)
                            --tree----->  a layer: cleaned, sorted, no time later than `epoch`
                            --squeeze-->  the layer, compressed by the base's own gzip
                            --archive-->  an archive, which engines and builders read
                            --store---->  <store>/bases, where it is found again

`make` leads through it, `host` says what this machine has and lacks, `errors` how it can fail.
Imports go one way: `make` uses all; `tools` uses `host`, `mirrors` and `tree`; `squeeze`
uses `tools`; `host` and `tree` use `mirrors`; the others stand alone.

The same packages give the same bytes on every host, whichever mirror they came from: nothing else
of the host or of the day stays in the tree (names, addresses, logs, caches, byte code), files are
sorted, and owners are numbers. A snapshot pins the packages. Without one a base is made again after
some days, so that security updates arrive.
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
from images.bootstrap.mirrors import stamp_before
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
    "stamp_before",
]
