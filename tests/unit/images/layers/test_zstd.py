"""A layer by zstd has the same tar as the one by gzip, and never another's digest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from images.errors import Failure
from images.layers.install import InstallLocation
from images.layers.transcode import WheelLayer
from images.layers.zstd import LEVEL, ZstdLayer
from images.oci.inflate import zstd_library
from images.oci.model import LAYER_ZSTD, read_descriptors
from tests import need
from tests.kit.layer_maker import PLACE, Piece, collect, craft, locked, pieces_of
from tests.kit.memory_target import DictMemory, TextLayer
from tests.kit.oci_images import a_tar
from tests.unit.images.assembly.test_build import made


def test_the_program_for_zstd_reads_the_tar_of_the_other_layer() -> None:
    plain = TextLayer("a", text=b"x" * 3_000_000)
    packed, unpacked = collect(ZstdLayer(source=plain).stream(None))
    argv = [need.program("zstd"), "-dc"]
    done = subprocess.run(argv, input=packed, capture_output=True, timeout=60, check=True)
    assert done.stdout == a_tar({"a": plain.text})
    _, expected = made(plain)
    assert unpacked.size == len(done.stdout)
    assert unpacked.diff_id in str(expected.blobs.values())
    assert collect(ZstdLayer(source=plain).stream(unpacked)) == (packed, unpacked)


def test_its_key_says_how_it_was_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TextLayer("a")
    keys = {plain.key, ZstdLayer(source=plain).key, ZstdLayer(source=plain, level=LEVEL + 1).key}
    monkeypatch.setattr(zstd_library(), "zstd_version", "0.0.1")
    keys.add(ZstdLayer(source=plain).key)
    assert len(keys) == 4


def test_an_image_says_which_layers_are_compressed_so() -> None:
    memory = DictMemory()
    one, two = ZstdLayer(source=TextLayer("a")), TextLayer("b")
    built, target = made(one, two, memory=memory)
    types = [
        layer.media_type for layer in read_descriptors(json.loads(built.content)["layers"], "it")
    ]
    assert [kind.rpartition("+")[2] for kind in types[-2:]] == ["zstd", "gzip"]
    again, _ = made(one, two, memory=memory, target=target)
    assert again.content == built.content
    assert memory.found[one.key].media_type == LAYER_ZSTD


def test_a_wheel_that_is_damaged_inside_is_refused(tmp_path: Path) -> None:
    wrong = Piece(name="a.py", content=b"x" * 5000, said={"crc": 1}, said_before={"crc": 1})
    (tmp_path / "it.whl").write_bytes(craft(pieces_of(wrong)))
    layer = WheelLayer(
        wheels=(locked(),),
        place=InstallLocation(**PLACE),
        exclude_unneeded=False,
        fetch=lambda _: tmp_path / "it.whl",
    )
    with pytest.raises(Failure):
        collect(ZstdLayer(source=layer).stream(None))
