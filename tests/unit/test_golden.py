"""The same lock is the same bytes, and gives the same image, in every version of this program.

A change of one of the two digests costs each user an upload and a download of what they have: it
is a new format, to be said in the CHANGELOG, and never a side effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from images.assembly.build import Recipe, build
from images.layers.base_facts import BaseFacts
from images.layers.order import wheel_sources
from images.layers.own import image_environment, lock_layer, skeleton_layer, suite_layer
from images.oci.model import LAYER, descriptor_of, digest_of
from images.oci.sources import Image, ImageLayer
from tests.kit.layer_maker import Piece, craft, locked, pieces_of
from tests.kit.memory_target import Bar, DictMemory, MemoryTarget, base_image
from tests.kit.oci_images import a_tar
from tests.unit.provision.lock.test_lock import finished

LOCK = "e28d03f4241373756f066ed61d3da569cc6f51d46b4c4490c36e94cbd1909082"
IMAGE = "sha256:cf8ee555117256a8f670223f72adc8254415970d035b2296437e261496573d97"

FACTS = BaseFacts(
    python="/usr/bin/python3.11", python_full="3.11.2", glibc="2.36", bash=True, cuda=False
)
WHEELS = {
    "torch": [
        Piece(name="torch/__init__.py", content=b"__version__ = '2.0.1'\n", method=0),
        Piece(name="torch/lib/libtorch.so", content=bytes(range(256)) * 300, method=0),
    ],
    "example": [
        Piece(name="example/__init__.py", content=b"", method=0),
        Piece(name="example-1.0.data/scripts/example", content=b"#!python\n", method=0),
    ],
}


def test_a_lock_is_written_as_it_always_was() -> None:
    assert hashlib.sha256(finished().encode()).hexdigest() == LOCK


def base() -> Image:
    """A base that is not compressed: what zlib makes of it differs between its releases."""
    tar = a_tar({"etc/os-release": b"ID=debian\n"})

    def stream() -> Generator[bytes, None, None]:
        yield tar

    layer = ImageLayer(blob=descriptor_of(LAYER, tar), diff_id=digest_of(tar), stream=stream)
    return replace(base_image(), layers=(layer,))


def test_an_image_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    for name, pieces in WHEELS.items():
        stored = [Piece(**{**vars(p), "method": 0}) for p in pieces_of(*pieces, name=name)]
        (tmp_path / name).write_bytes(craft(stored))
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "__init__.py").write_text("", encoding="utf-8")
    (suite / "__main__.py").write_text("print('fit')\n", encoding="utf-8")
    wheels = wheel_sources(
        [locked(name) for name in WHEELS],
        python="3.11",
        framework={"torch"},
        own={"example"},
        exclude_unneeded=False,
        fetch=lambda one: tmp_path / one.name,
    )
    recipe = Recipe(
        base=base(),
        sources=(
            skeleton_layer(FACTS, python="3.11"),
            *wheels,
            suite_layer(suite),
            lock_layer(b"lock-version = '1.0'\n"),
        ),
        settings=image_environment({}, nvcc_flags="", labels={"org.example.made": "yes"}),
    )
    built = build(recipe, MemoryTarget(), DictMemory(), Bar(), workers=2)
    assert built.manifest.digest == IMAGE
