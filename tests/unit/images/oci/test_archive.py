"""One tar file with an image: equal images are equal files, and what is read of one is checked."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from images.oci.archive import ArchiveTarget, write_tar
from images.oci.archive_reader import open_archive
from images.oci.errors import (
    DigestMismatchError,
    ImagePlaceError,
    ImageUnreadableError,
    PlatformMissingError,
    TargetError,
)
from images.oci.model import (
    INDEX,
    LAYER,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    Platform,
    descriptor_of,
    digest_of,
    to_bytes,
)
from images.oci.sources import Image
from images.oci.tarstream import layer_members
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.oci_images import AMD64, TARS, a_config, a_stream, a_tar, in_members, write_image


def put(out: Path | Any, name: str = "app:1", **config: Any) -> Descriptor:
    with contextlib.closing(ArchiveTarget.open(out)) as target:
        return target.publish(write_image(target, **config), MANIFEST, name=name)


def files_in(image: Image) -> dict[str, bytes]:
    return {
        member.name: content.read()
        for layer in image.layers
        for member, content in layer_members(layer)
        if content
    }


FILES = {"bin/tool": b"tool" * 5000, "etc/settings": b"on\n"}


def test_an_image_comes_back_as_it_was_written(tmp_path: Path) -> None:
    published = put(tmp_path / "a.tar")
    image = open_archive(tmp_path / "a.tar", "app:1", AMD64)
    assert (image.digest, files_in(image)) == (published.digest, FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_it_is_what_docker_writes_since_version_25(tmp_path: Path) -> None:
    put(tmp_path / "a.tar", "r.example/team/app:1")
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = archive.getmembers()
        names = [member.name for member in members]
        (entry,) = json.loads(read(archive, "manifest.json"))
        index = json.loads(read(archive, "index.json"))
        config = read(archive, entry["Config"])
        assert [read(archive, layer) for layer in entry["Layers"]] == [
            in_members(tar) for tar in TARS
        ]
    assert names == sorted(names)
    assert {"blobs", "blobs/sha256", "oci-layout", "index.json", "manifest.json"} < {*names}
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert entry["RepoTags"] == ["r.example/team/app:1"]
    assert config == a_config()
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == entry["RepoTags"][0]
    assert (tmp_path / "a.tar").stat().st_size % 10240 == 0


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_equal_images_are_equal_files_whichever_layer_was_first(tmp_path: Path) -> None:
    put(tmp_path / "a.tar")
    before = os.umask(0o077)
    try:
        with contextlib.closing(ArchiveTarget.open(tmp_path / "b.tar")) as target:
            for tar in reversed(TARS):
                target.write(lambda tar=tar: a_stream(tar), expected=None, on_bytes=lambda _: None)  # type: ignore[misc]
            target.publish(write_image(target), MANIFEST, name="app:1")
    finally:
        os.umask(before)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    tars = [a_tar({f"f{number}": os.urandom(200_000)}) for number in range(8)]
    with contextlib.closing(ArchiveTarget.open(tmp_path / "a.tar")) as target:
        heard: list[int] = []
        threads = [
            threading.Thread(
                target=lambda tar=tar: target.write(
                    lambda: a_stream(tar), expected=None, on_bytes=heard.append
                )
            )
            for tar in tars
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(heard) == sum(len(in_members(tar)) for tar in tars)
        assert all(target.has(descriptor_of(LAYER_GZIP, in_members(tar))) for tar in tars)
        target.publish(write_image(target, tars), MANIFEST, name="app:1")
    assert len(files_in(open_archive(tmp_path / "a.tar"))) == 8


def test_an_older_archive_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "a.tar"
    out.write_bytes(b"old")
    with contextlib.closing(ArchiveTarget.open(out)) as target:
        write_image(target)
        wrong = descriptor_of(LAYER_GZIP, b"other")
        with pytest.raises(DigestMismatchError):
            target.write(lambda: a_stream(TARS[0]), expected=wrong, on_bytes=lambda _: None)
        assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    put(out)
    assert open_archive(out).layers


def test_an_archive_that_lacks_a_part_is_not_written(tmp_path: Path) -> None:
    with contextlib.closing(ArchiveTarget.open(tmp_path / "a.tar")) as target:
        manifest = json.loads(write_image(target))
        manifest["layers"][0]["digest"] = digest_of(b"never written")
        with pytest.raises(TargetError, match="lacks sha256:"):
            target.publish(to_bytes(manifest), MANIFEST, name="app:1")
    assert not list(tmp_path.iterdir())


def test_a_directory_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ImagePlaceError, match="is a directory") as caught:
        ArchiveTarget.open(tmp_path)
    assert caught.value.exit_code == 2


def test_a_place_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="cannot be written"):
        ArchiveTarget.open(tmp_path / "file/a.tar")


def test_a_pipe_and_an_open_file_get_the_same_bytes(tmp_path: Path) -> None:
    put(tmp_path / "a.tar")
    expected = (tmp_path / "a.tar").read_bytes()
    buffer = io.BytesIO()
    put(buffer)
    assert buffer.getvalue() == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    put(pipe)
    reader.join(10)
    assert got == [expected]
    read_end, write_end = os.pipe()  # as standard output is where it is piped
    with os.fdopen(read_end, "rb") as source:
        reader = threading.Thread(target=lambda: got.append(source.read()))
        reader.start()
        with os.fdopen(write_end, "wb") as file:
            put(file)
        reader.join(10)
    assert got == [expected] * 2


def test_a_pipe_that_nobody_reads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.oci.archive._READER_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="Nobody reads from the pipe"):
        put(tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_an_image_of_several_platforms_is_for_oci_tools(tmp_path: Path) -> None:
    with contextlib.closing(ArchiveTarget.open(tmp_path / "a.tar")) as target:
        parts = []
        for name in ("amd64", "arm64"):
            part = target.publish(write_image(target, architecture=name), MANIFEST, name=None)
            platform = Platform(architecture=name)
            parts.append({**part.to_json(), "platform": platform.to_json()})
        index = to_bytes({"schemaVersion": 2, "mediaType": INDEX, "manifests": parts})
        target.publish(index, INDEX, name="app:1")
    found = open_archive(tmp_path / "a.tar", platform=Platform(architecture="arm64"))
    assert found.platform.architecture == "arm64"
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert "manifest.json" not in archive.getnames()


def test_beyond_eight_gigabytes_a_tar_says_so_in_gnus_way(tmp_path: Path) -> None:
    """Go, Python and GNU tar read it; the header alone is looked at here."""

    class Sparse(io.RawIOBase):
        def __init__(self) -> None:
            self.kept = b""

        def write(self, data: Any) -> int:
            self.kept += bytes(data[: max(0, 512 - len(self.kept))])
            return len(data)

    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 20)
    out = Sparse()
    write_tar({"x": huge}, out)  # type: ignore[arg-type]
    info = tarfile.TarInfo.frombuf(out.kept, "utf-8", "strict")
    assert info.size == 1 << 20
    info.size = 9 << 30
    again = tarfile.TarInfo.frombuf(info.tobuf(tarfile.GNU_FORMAT), "utf-8", "strict")
    assert again.size == 9 << 30


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    root = str(ROOT)
    code = f"""
import sys; sys.path.insert(0, {root!r})
from contextlib import closing
from pathlib import Path
from images.oci.archive import ArchiveTarget
from images.oci.model import MANIFEST
from tests.kit.oci_images import write_image
while True:
    with closing(ArchiveTarget.open(Path(sys.argv[1]))) as target:
        target.publish(write_image(target), MANIFEST, name="app:1")
"""
    out = tmp_path / "a.tar"
    chance = random.Random(3)
    put(out)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", code, str(out)])
        time.sleep(0.15 + chance.random() * 0.2)
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        assert files_in(open_archive(out)) == FILES
    with contextlib.closing(ArchiveTarget.open(out)):
        # one that is at work is not disturbed
        put(out)
        assert len(list(tmp_path.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


# -- archives that others made


def an_archive(path: Path, files: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def a_link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def docker_files(**changes: Any) -> dict[str, bytes | tarfile.TarInfo]:
    """As `docker save` of the engine's version 20.10 writes it."""
    config = a_config()
    entry = {
        "Config": f"{digest_of(config)[7:]}.json",
        "RepoTags": ["app:1"],
        "Layers": ["one/layer.tar", "two/layer.tar"],
        **changes,
    }
    return {
        entry["Config"]: config,
        "one/": a_link("one", "", tarfile.DIRTYPE),
        "one/layer.tar": TARS[0],
        "two/layer.tar": TARS[1],
        "manifest.json": json.dumps([entry]).encode(),
    }


def test_what_docker_saved_is_read(tmp_path: Path) -> None:
    image = open_archive(an_archive(tmp_path / "a.tar", docker_files()), "app:1", AMD64)
    assert files_in(image) == FILES
    assert image.digest == image.image_id == digest_of(a_config())
    assert [(layer.blob.media_type, layer.blob.digest) for layer in image.layers] == [
        (LAYER, digest_of(tar)) for tar in TARS
    ]


def test_a_layer_that_is_a_link_or_compressed_is_read(tmp_path: Path) -> None:
    packed = gzip.compress(TARS[1], mtime=0)
    files = docker_files()
    files["three/layer.tar"] = files["one/layer.tar"]
    files["one/layer.tar"] = a_link("one/layer.tar", "../three/layer.tar")
    files["two/layer.tar"] = packed
    image = open_archive(an_archive(tmp_path / "a.tar", files))
    assert files_in(image) == FILES
    assert (image.layers[1].blob.media_type, image.layers[1].blob.digest) == (
        LAYER_GZIP,
        digest_of(packed),
    )


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda files: files.pop(name)


@cases(
    "damage words",
    ("no manifest", without("manifest.json"), "neither index.json"),
    ("no layer", without("two/layer.tar"), "has no file 'two/layer.tar'"),
    ("another layer", lambda files: files.update({"one/layer.tar": a_tar({"x": b"y"})}),
        "promised|those of"),
    ("a link that leads out", lambda files: files.update({"one/layer.tar": a_link("one/layer.tar",
        "../../../etc/passwd")}), "has no file"),
    ("a link to itself", lambda files: files.update({"one/layer.tar": a_link("one/layer.tar",
        "layer.tar")}), "has no file"),
    ("no JSON", lambda files: files.update({"manifest.json": b"[1"}), "not a JSON object"),
    ("no paths", lambda files: files.update(docker_files(Layers=[1])), "names no layers"),
    ("too few layers", lambda files: files.update(docker_files(Layers=["one/layer.tar"])),
        "names 2 layers"),
    ("no image", lambda files: files.update({"manifest.json": b"[]"}), "names 0 images"),
)  # fmt: skip
def test_a_hostile_archive_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object], words: str
) -> None:
    files = docker_files()
    damage(files)
    path = an_archive(tmp_path / "a.tar", files)
    with pytest.raises((ImageUnreadableError, DigestMismatchError, ImagePlaceError), match=words):
        files_in(open_archive(path))


def test_a_blob_that_lies_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    at = whole.index(in_members(TARS[0]))
    (tmp_path / "a.tar").write_bytes(whole[: at + 20] + b"\0" + whole[at + 21 :])
    with pytest.raises((ImageUnreadableError, DigestMismatchError)):
        files_in(open_archive(tmp_path / "a.tar"))


def test_every_cut_is_seen(tmp_path: Path) -> None:
    put(tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    end = len(whole.rstrip(b"\0")) - 1
    for cut in range(0, end, max(1, end // 60)):
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(ImageUnreadableError):
            files_in(open_archive(tmp_path / "cut.tar"))


@cases(
    "content error words",
    ("compressed", gzip.compress(TARS[0]), ImagePlaceError, "gzip --decompress"),
    ("a zip", b"PK\3\4" * 300, ImageUnreadableError, "not a complete tar"),
    ("a tar of something else", TARS[0], ImageUnreadableError, "docker save"),
    ("an empty file", b"", ImageUnreadableError, "docker save"),
)
def test_what_is_no_archive_is_told(
    tmp_path: Path, content: bytes, error: type[ImageUnreadableError], words: str
) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(error) as caught:
        open_archive(tmp_path / "a.tar")
    assert words in f"{caught.value.message} {caught.value.fix}"


def test_which_image_is_meant_must_be_said(tmp_path: Path) -> None:
    files = docker_files()
    entry = json.loads(files["manifest.json"])[0]  # type: ignore[arg-type]
    files["manifest.json"] = json.dumps([entry, {**entry, "RepoTags": ["b:2"]}]).encode()
    path = an_archive(tmp_path / "a.tar", files)
    assert open_archive(path, "b:2").layers
    with pytest.raises(ImagePlaceError, match="app:1, b:2"):
        open_archive(path)
    with pytest.raises(PlatformMissingError):
        open_archive(path, "b:2", Platform(architecture="arm64"))
