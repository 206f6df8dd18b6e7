"""Compares a lazy image's tables of contents with its layers, before a record may speak for both.

What runs here is unpacked from the layers; a node that starts the image lazily reads the tables.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, closing
from pathlib import Path

from images.layers.lazy.checking import checked
from images.oci.model import digest_of, to_bytes
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_members
from images.store.store import Store
from provision.output.console import Console
from provision.verification.subject import Subject

_TABLES, _FORMAT = "tables", 1
_SAME = {"same": True}


def compare_tables(subject: Subject, state: Path, console: Console) -> None:
    """Read every lazy layer that was not compared here before; other images cost nothing.
    TableMismatchError: a table shows other files than its layer has.
    """
    layers = subject.image.layers if subject.image is not None and subject.manifest else ()
    lazy = [layer for layer in layers if layer.blob.has_table]
    if not lazy:
        return
    with ExitStack() as stack:
        store = Store.private(state)
        if store is not None:
            stack.enter_context(store)
        unread = [one for one in lazy if store is None or store.facts(_TABLES, _key(one)) != _SAME]
        if not unread:
            return
        what = f"the tables of contents of {subject.name} with its layers"
        stack.enter_context(console.step("compare", what))
        for layer in unread:
            with closing(layer_members(checked(layer))) as members:
                deque(members, maxlen=0)
            if store is not None:
                store.remember_facts(_TABLES, _key(layer), _SAME)


def _key(layer: ImageLayer) -> str:
    about = {"format": _FORMAT, "blob": layer.blob.digest, "table": dict(layer.blob.of_table)}
    return digest_of(to_bytes(about)).removeprefix("sha256:")
