"""Makes a small Debian base with Python out of Debian's packages, without Debian's tools.

No registry, no root, no apt or dpkg on the host, and nothing of the base is run: so a base for
aarch64 is made on x86_64, and by any user. How data flows, and which module does what:

    the host's apt sources  --mirrors------>  the suites of a release, of now or of a day
                            --download----->  their signed Releases (signature, release), their
                                              indexes (index), and the packages of the base
                            --dependencies->  which packages these are (versions)
                            --unpack------->  each package (deb) as a compressed part of a layer
                            --configure---->  what the packages' scripts would have written
                            --layer-------->  the layer, from these parts (tree)
                            --archive------>  an archive, which engines and builders read
                            --store-------->  <store>/bases, where it is found again

`make` leads through it, `host` says what this machine knows of mirrors, `errors` how it can fail.
Imports go one way: `make` uses all; `layer` uses `configure` and `unpack`, which use `tree`, `deb`
and `index`; `download` uses what reads what it downloads; the others stand alone.

The same packages give the same bytes on every host, whichever mirror they came from: nothing else
of the host or of the day is in the image (names, addresses, logs, caches, byte code), files come in
a fixed order, and owners are numbers. A snapshot pins the packages. Without one a base is made
again after some days, so that security updates arrive.
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
