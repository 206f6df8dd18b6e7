"""The layer of a user's own files: the same bytes whatever a checkout does to them."""

from __future__ import annotations

import gzip
import os
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from images.layers.own_errors import ProjectFilesError
from images.layers.project import DiskFile, ProjectLayer, sha256_of
from images.layers.tar import MTIME, TarEntry
from tests.kit.cases import cases
from tests.kit.layer_maker import collect, unpack


def on_disk(root: Path, name: str, content: bytes, *, runs: bool = False) -> DiskFile:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    sha256, size = sha256_of(path)
    return DiskFile(path=f"app/{name}", source=path, size=size, sha256=sha256, runs=runs)


def layer(*files: DiskFile, entries: tuple[TarEntry, ...] = ()) -> ProjectLayer:
    return ProjectLayer(title="project a", created_by="test", files=files, entries=entries)


def test_it_is_a_tar_of_files_links_and_what_is_beside_them(tmp_path: Path) -> None:
    large = os.urandom(3_000_000)
    made = layer(
        on_disk(tmp_path, "z.py", b"z"),
        on_disk(tmp_path, "a/run.sh", b"#!/bin/sh\n", runs=True),
        on_disk(tmp_path, "model.bin", large),
        on_disk(tmp_path, "empty", b""),
        entries=(
            TarEntry(path="app/link", kind="symlink", target="z.py"),
            TarEntry(path="opt/venv/bin/serve", mode=0o755, content=b"x"),
        ),
    )
    found = unpack(collect(made.stream(None))[0])
    assert found["app/a/run.sh"].mode == 0o755
    assert found["app/z.py"].mode == 0o644
    assert found["app/model.bin"].content == large
    assert found["app/link"].content == b"z.py"
    assert found["opt/venv/bin/serve"].mode == 0o755
    assert made.about_bytes > len(large)


def test_owners_times_and_the_order_of_files_do_not_matter(tmp_path: Path) -> None:
    made = []
    for folder, when in (("one", 1_000_000_000), ("two", 1_900_000_000)):
        files = [on_disk(tmp_path / folder, name, b"x" * 1000) for name in ("a.py", "b/c.py")]
        for file in files:
            os.utime(file.source, (when, when))
        made.append(layer(*(files if folder == "one" else reversed(files))))
    streams = [collect(one.stream(None))[0] for one in made]
    assert streams[0] == streams[1]
    assert made[0].key == made[1].key
    with tarfile.open(fileobj=BytesIO(gzip.decompress(streams[0]))) as tar:
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in tar} == {(0, 0, "", MTIME)}
        assert [one.name for one in tar] == ["app", "app/a.py", "app/b", "app/b/c.py"]


def test_the_key_changes_with_each_content_and_mode(tmp_path: Path) -> None:
    keys = {
        layer(on_disk(tmp_path, "a", b"x")).key,
        layer(on_disk(tmp_path, "a", b"y")).key,
        layer(on_disk(tmp_path, "a", b"x", runs=True)).key,
        layer(on_disk(tmp_path, "b", b"x")).key,
        layer(on_disk(tmp_path, "a", b"x"), entries=(TarEntry(path="c"),)).key,
    }
    assert len(keys) == 5


@cases(
    "content",
    ("another content of the same size", b"other"),
    ("a longer one", b"longer than before"),
    ("an empty one", b""),
    ("no file any more", None),
)
def test_a_file_that_changes_during_the_build_is_refused(
    content: bytes | None, tmp_path: Path
) -> None:
    file = on_disk(tmp_path, "a.py", b"first")
    if content is None:
        file.source.unlink()
    else:
        file.source.write_bytes(content)
    with pytest.raises(ProjectFilesError, match="changed during the build"):
        collect(layer(file).stream(None))
