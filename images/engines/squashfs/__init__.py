"""One file that is an image: a squashfs of its files, for enroot, pyxis, Apptainer and our sandbox.

    an image's layers  --merge---->  a tree: what is left of them, and in which layer it is
    its configuration  --files---->  what enroot and Apptainer read, and a record of the image
    tree and layers    --archive-->  one tar, streamed
    the tar            --write---->  tar2sqfs, and the file under its name
    a file             --reader--->  the image again, from its record

Nothing is unpacked, and no root is needed. The layers are read twice, for the tree and for the
contents; a layer of wheels is inflated only for the contents.
"""

from __future__ import annotations

ENDINGS = (".sqfs", ".sqsh", ".squashfs", ".sif")
"""How the names of such files end: enroot calls them .sqsh; a .sif has Apptainer's header."""
