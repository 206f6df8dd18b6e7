"""Makes layers: of wheels, by copying what is compressed in them already, and of our own files.

    for source in wheel_sources(wheels, python="3.11", framework=("torch",), own=(), ...):
        unpacked = yield from source.stream(known=None)

How the data flows, and which module does what:

    wheels   --order-------> groups, one for each layer, the lowest first
    a file   --wheel_file--> its members, held to the zip's directory
    members  --install-----> files as pip would install them (with `scripts`, `record`, `unneeded`)
    files    --transcode---> the layer, by `tar` and `gzip`

`own`, `toolkit`, `bytecode` and others make layers of files that no wheel holds, by
`tar.file_layer`. The same input gives the same bytes on every machine: no clock, no user, no
umask, and no compressor that is not ours has a say in them.
"""

from __future__ import annotations

from images.layers.errors import WheelRefusedError
from images.layers.order import arrange, wheel_sources
from images.layers.tar import TarEntry, file_layer
from images.layers.transcode import WheelLayer, spared_in, wheel_layer, written_twice
from images.layers.unneeded import Spared

__all__ = [
    "Spared",
    "TarEntry",
    "WheelLayer",
    "WheelRefusedError",
    "arrange",
    "file_layer",
    "spared_in",
    "wheel_layer",
    "wheel_sources",
    "written_twice",
]
