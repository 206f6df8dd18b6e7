"""A layout on disk: what is written is whole, what is read is checked, many write at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.errors import Failure
from images.oci.errors import (
    DigestMismatchError,
    ImagePlaceError,
    ImageUnreadableError,
    PlatformMissingError,
    TargetError,
)
from images.oci.layout import LayoutTarget, name_annotations
from images.oci.layout_reader import open_layout
from images.oci.model import (
    INDEX,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    Platform,
    descriptor_of,
    digest_of,
    to_bytes,
)
from images.oci.sources import Stream
from images.oci.tarstream import layer_members
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.oci_images import AMD64, TARS, a_stream, a_tar, in_members, write_image

ARM64 = Platform(architecture="arm64")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[LayoutTarget]:
    with contextlib.closing(LayoutTarget.open(path)) as target:
        yield target


def put(path: Path, name: str = "app:1", tars: Any = TARS, **config: Any) -> Descriptor:
    with opened(path) as target:
        return target.publish(write_image(target, tars, **config), MANIFEST, name=name)


def index_of(path: Path) -> list[dict[str, Any]]:
    return list(json.loads((path / "index.json").read_bytes())["manifests"])


def contents(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def blob_files(path: Path) -> dict[str, Path]:
    return {f"sha256:{file.name}": file for file in (path / "blobs/sha256").iterdir()}


def test_an_image_comes_back_as_it_was_written(tmp_path: Path) -> None:
    published = put(tmp_path / "l")
    image = open_layout(tmp_path / "l", "app:1", AMD64)
    assert (image.digest, image.platform) == (published.digest, AMD64)
    names = [m.name for layer in image.layers for m, _ in layer_members(layer)]
    assert names == ["bin/tool", "etc/settings"]
    assert all(digest == digest_of(file.read_bytes()) for digest, file in
               blob_files(tmp_path / "l").items())  # fmt: skip
    (entry,) = index_of(tmp_path / "l")
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    assert entry["annotations"] == {
        "io.containerd.image.name": "docker.io/library/app:1",
        "org.opencontainers.image.ref.name": "app:1",
    }
    assert not list(tmp_path.rglob(".*"))


@cases(
    "name containerd",
    ("a word is only a word", "latest", None),
    ("a tag makes a reference", "app:1", "docker.io/library/app:1"),
    ("a whole one", "r.example:5000/team/app:1", "r.example:5000/team/app:1"),
    ("what docker would not take", "Not An Image:1", None),
)
def test_names(name: str, containerd: str | None) -> None:
    assert name_annotations(name).get("io.containerd.image.name") == containerd


def test_names_keep_each_other_and_a_name_is_replaced(tmp_path: Path) -> None:
    first = put(tmp_path, "a:1")
    other = put(tmp_path, "b:1", tars=(a_tar({"b": b"b"}),))
    again = put(tmp_path, "a:1", tars=(a_tar({"a": b"new"}),))
    assert {open_layout(tmp_path, name).digest for name in ("a:1", "b:1")} == {
        again.digest,
        other.digest,
    }
    with opened(tmp_path) as target:
        before = blob_files(tmp_path)
        pruned = target.prune()
        assert first.digest in before
        gone = set(before) - set(blob_files(tmp_path))
        assert (pruned.blobs, pruned.busy) == (4, False) == (len(gone), False)
        assert pruned.size == sum(1 for _ in gone) or pruned.size > 100
        assert target.forget("a:1")
        assert not target.forget("a:1")
        assert target.prune().blobs == 3
    assert [m.name for m, _ in layer_members(open_layout(tmp_path).layers[0])] == ["b"]


def test_what_others_wrote_into_the_index_stays(tmp_path: Path) -> None:
    put(tmp_path, "a:1")
    document = json.loads((tmp_path / "index.json").read_bytes())
    stranger = {"mediaType": "x/y", "digest": "sha512:00", "size": 1, "unknown": [1]}
    document["manifests"].append(stranger)
    document["annotations"] = {"k": "v"}
    (tmp_path / "index.json").write_text(json.dumps(document))
    put(tmp_path, "b:1")
    kept = json.loads((tmp_path / "index.json").read_bytes())
    assert stranger in kept["manifests"]
    assert kept["annotations"] == {"k": "v"}


def test_nothing_is_pruned_while_another_writes(tmp_path: Path) -> None:
    with opened(tmp_path / "l") as writer:
        manifest = write_image(writer)
        with opened(tmp_path / "l") as other:
            assert other.prune().busy
        writer.publish(manifest, MANIFEST, name="a:1")
    assert open_layout(tmp_path / "l").layers


def test_a_part_of_an_index_has_no_name(tmp_path: Path) -> None:
    with opened(tmp_path) as target:
        parts = []
        for platform in (AMD64, ARM64):
            manifest = write_image(target, architecture=platform.architecture)
            part = target.publish(manifest, MANIFEST, name=None)
            parts.append({**part.to_json(), "platform": platform.to_json()})
        assert index_of(tmp_path) == []
        index = to_bytes({"schemaVersion": 2, "mediaType": INDEX, "manifests": parts})
        published = target.publish(index, INDEX, name="multi:1")
        assert target.prune().blobs == 0
    assert open_layout(tmp_path, "multi:1", ARM64).platform == ARM64
    assert open_layout(tmp_path, platform=AMD64).config["architecture"] == "amd64"
    assert index_of(tmp_path)[0]["digest"] == published.digest
    with pytest.raises(ImageUnreadableError, match="several platforms"):
        open_layout(tmp_path)
    with pytest.raises(PlatformMissingError, match="linux/amd64, linux/arm64"):
        open_layout(tmp_path, platform=Platform(architecture="riscv64"))


def test_other_bytes_than_expected_are_refused(tmp_path: Path) -> None:
    expected = descriptor_of(LAYER_GZIP, in_members(TARS[0]))
    with opened(tmp_path / "l") as target:
        for tar in (TARS[1], a_tar({"big": b"1" * 99999})):
            with pytest.raises(DigestMismatchError, match=expected.digest):
                target.write(
                    lambda tar=tar: a_stream(tar, tar),  # type: ignore[misc]
                    expected=expected,
                    on_bytes=lambda _: None,
                )
        assert contents(tmp_path / "l") == {"index.json", "oci-layout"}
    assert not (tmp_path / "l").exists()


def test_a_cut_off_blob_is_written_again(tmp_path: Path) -> None:
    published = put(tmp_path)
    layer = descriptor_of(LAYER_GZIP, in_members(TARS[0]))
    path = blob_files(tmp_path)[layer.digest]
    path.write_bytes(path.read_bytes()[:-1])
    with opened(tmp_path) as target:
        assert not target.has(layer)
        assert target.has(published)
        with pytest.raises(ImageUnreadableError, match="instead of"):
            open_layout(tmp_path)
        write_image(target)
        assert target.has(layer)
    assert open_layout(tmp_path).layers


def test_a_manifest_whose_parts_are_not_here_is_not_published(tmp_path: Path) -> None:
    with opened(tmp_path) as target:
        manifest = write_image(target)
        next(iter(blob_files(tmp_path).values())).unlink()
        with pytest.raises(TargetError, match="has lost sha256:"):
            target.publish(manifest, MANIFEST, name="a:1")
    assert not (tmp_path / "index.json").exists() or not index_of(tmp_path)


@pytest.mark.parametrize("made", ["missing", "empty"])
def test_a_layout_for_an_image_that_never_came_is_removed(tmp_path: Path, made: str) -> None:
    place = tmp_path / "deep/l"
    if made == "empty":
        place.mkdir(parents=True)
    with opened(place) as target:
        write_image(target)
        assert (place / "oci-layout").is_file()
    assert not contents(tmp_path)
    assert place.exists() is (made == "empty")
    put(place)
    with opened(place):
        pass
    assert open_layout(place).layers


@cases(
    "make words",
    ("other files", lambda p: (p / "precious.txt").write_text("x"), "precious"),
    ("a file", lambda p: (p.rmdir(), p.write_text("x")), "is a file"),
)
def test_what_is_no_layout_is_left_alone(tmp_path: Path, make: Any, words: str) -> None:
    place = tmp_path / "l"
    place.mkdir()
    make(place)
    before = contents(tmp_path)
    with pytest.raises(ImagePlaceError, match=words) as caught:
        LayoutTarget.open(place)
    assert caught.value.exit_code == 2
    assert contents(tmp_path) == before


def test_a_layout_of_another_version_is_refused(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}')
    for use in (lambda: LayoutTarget.open(tmp_path), lambda: open_layout(tmp_path)):
        with pytest.raises(ImageUnreadableError, match=r"2\.0\.0"):
            use()


def test_a_damaged_index_is_not_written_over(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with opened(tmp_path) as target:
        manifest = write_image(target)
        with pytest.raises(ImageUnreadableError):
            target.publish(manifest, MANIFEST, name="a:1")
        with pytest.raises(ImageUnreadableError):
            target.prune()
    assert (tmp_path / "index.json").read_text() == "{"


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        put(tmp_path / "l")
    finally:
        os.umask(before)
    assert {oct(f.stat().st_mode & 0o777) for f in blob_files(tmp_path / "l").values()} == {"0o640"}
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o750


# -- a disk that fills up, a process that is killed, many at once


def child(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    root = str(ROOT)
    script = f"import sys; sys.path.insert(0, {root!r})\n{code}"
    argv = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE)


def test_a_full_disk_is_told_with_numbers_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file sizes gives the same kind of error in the same place as a full disk."""
    code = """
import resource, signal
from contextlib import closing
from pathlib import Path
from images.errors import DiskFullError
from images.oci.layout import LayoutTarget
from tests.kit.oci_images import a_stream
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
place = Path(sys.argv[1])
with closing(LayoutTarget.open(place)) as target:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        target.write(lambda: a_stream(b"", b"x" * 300_000), expected=None, on_bytes=lambda n: None)
    except DiskFullError as error:
        assert "GB free" in error.message and "df -h" in error.fix, error.message
        left = sorted(path.name for path in place.rglob("*") if path.is_file())
        assert left == ["index.json", "oci-layout"], left
        sys.exit(7)
"""
    with child(code, tmp_path / "l") as process:
        assert process.wait(60) == 7
    assert not (tmp_path / "l").exists()


def test_an_error_of_the_disk_is_a_failure(tmp_path: Path) -> None:
    def broken() -> Stream:
        yield b"x"
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path) as target, pytest.raises(TargetError, match="Input/output error"):
        target.write(broken, expected=None, on_bytes=lambda _: None)


WRITER = """
from contextlib import closing
from pathlib import Path
from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from tests.kit.oci_images import a_tar, write_image
place, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("begun", flush=True)
for turn in range(count):
    tars = (a_tar({"own": f"{name} {turn}".encode() * 20000}), a_tar({"shared": b"s" * 50000}))
    with closing(LayoutTarget.open(place)) as target:
        target.publish(write_image(target, tars), MANIFEST, name=name)
"""


def test_several_processes_write_into_one_layout(tmp_path: Path) -> None:
    place = tmp_path / "l"
    writers = [child(WRITER, place, f"app:{number}", 4) for number in range(4)]
    for writer in writers:
        with writer:
            assert writer.wait(60) == 0
    for number in range(4):
        image = open_layout(place, f"app:{number}")
        names = [m.name for layer in image.layers for m, _ in layer_members(layer)]
        assert names == ["own", "shared"]
    assert len(index_of(place)) == 4
    assert not list(tmp_path.glob(".*"))


def test_killed_at_any_moment_it_leaves_a_layout_that_holds(tmp_path: Path) -> None:
    chance = random.Random(5)
    place = tmp_path / "l"
    put(place, "kept:1")
    for _ in range(6):
        with child(WRITER, place, "app:1", 1000) as writer:
            assert writer.stdout
            assert writer.stdout.readline() == b"begun\n"
            time.sleep(chance.random() * 0.15)  # some turns, and one that is not finished
            writer.kill()
        for digest, file in blob_files(place).items():
            assert digest == digest_of(file.read_bytes())
        for entry in index_of(place):
            name = entry["annotations"]["org.opencontainers.image.ref.name"]
            for layer in open_layout(place, name).layers:
                assert list(layer_members(layer))
    with opened(place) as target:
        target.prune()
    assert not list(place.glob(".*"))
    assert {"app:1", "kept:1"} >= {
        entry["annotations"]["org.opencontainers.image.ref.name"] for entry in index_of(place)
    }


def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    put(tmp_path)
    with opened(tmp_path) as target:
        assert target.prune().busy
    assert open_layout(tmp_path).layers


# -- layouts that somebody else made


def changed(place: Path, *, key: str, value: object, of: str = "manifest") -> None:
    """Write a manifest (or index entry) that is whole but says something else."""
    (entry,) = index_of(place)
    blobs = place / "blobs/sha256"
    if of == "manifest":
        document = json.loads((blobs / entry["digest"][7:]).read_bytes())
        document[key] = value
        content = to_bytes(document)
        (blobs / digest_of(content)[7:]).write_bytes(content)
        entry |= {"digest": digest_of(content), "size": len(content)}
    else:
        entry[key] = value
    (place / "index.json").write_bytes(to_bytes({"schemaVersion": 2, "manifests": [entry]}))


def loop(place: Path) -> None:
    """An index in an index in an index..., deeper than anything real."""
    content = to_bytes({"schemaVersion": 2, "mediaType": INDEX, "manifests": index_of(place)})
    for _ in range(8):
        (place / "blobs/sha256" / digest_of(content)[7:]).write_bytes(content)
        entry = descriptor_of(INDEX, content).to_json()
        content = to_bytes({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    (place / "index.json").write_bytes(content)


def link_out(place: Path) -> None:
    for file in blob_files(place).values():
        outside = place.parent / f"outside-{file.name}"
        file.rename(outside)
        file.symlink_to(outside)


def to_fifos(place: Path) -> None:
    for file in blob_files(place).values():
        file.unlink()
        os.mkfifo(file)


def swap(place: Path) -> None:
    """Two blobs of one size with each other's names: the sizes hold, the digests do not."""
    for file in blob_files(place).values():
        content = file.read_bytes()
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def remove(place: Path) -> None:
    largest = max(blob_files(place).values(), key=lambda file: file.stat().st_size)
    largest.unlink()


LAYERS = [{"mediaType": LAYER_GZIP, "digest": "sha256:" + "0" * 64, "size": 3}]


@cases(
    "damage",
    ("digests that lie", swap),
    ("a blob that is not there", remove),
    ("links that lead out", link_out),
    ("pipes that would hang", to_fifos),
    ("indexes without end", loop),
    ("an index that is none", lambda p: (p / "index.json").write_text("[]")),
    ("deep nesting", lambda p: (p / "index.json").write_text("[" * 99999)),
    ("no index", lambda p: (p / "index.json").unlink()),
    ("a huge manifest", lambda p: changed(p, key="size", value=1 << 40, of="entry")),
    ("a short size", lambda p: changed(p, key="size", value=5, of="entry")),
    ("a digest that is a path",
     lambda p: changed(p, key="digest", value="sha256:../../../etc/passwd", of="entry")),
    ("other layers", lambda p: changed(p, key="layers", value=LAYERS)),
    ("no layers", lambda p: changed(p, key="layers", value=None)),
    ("many layers", lambda p: changed(p, key="layers", value=LAYERS * 9999)),
    ("layers that the registry does not keep",
     lambda p: changed(p, key="layers", value=[{**LAYERS[0],
     "mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"}] * 2)),
    ("an index and an image", lambda p: changed(p, key="manifests", value=[])),
    ("the first schema", lambda p: changed(p, key="schemaVersion", value=1)),
    ("another media type", lambda p: changed(p, key="mediaType", value="x/y")),
    ("something that is no image",
     lambda p: changed(p, key="config", value={**LAYERS[0], "mediaType": "x/y"})),
)  # fmt: skip
def test_a_hostile_layout_is_refused(tmp_path: Path, damage: Any) -> None:
    place = tmp_path / "l"
    put(place)
    damage(place)
    with pytest.raises((ImageUnreadableError, DigestMismatchError)):
        [list(layer_members(layer)) for layer in open_layout(place).layers]


@cases(
    "config error words",
    ("another system", {"os": "windows"}, PlatformMissingError, "windows/amd64"),
    ("another arch", {"architecture": "arm64"}, PlatformMissingError, "arm64"),
    ("no arch", {"architecture": None}, ImageUnreadableError, "no platform"),
    ("no diffIDs", {"rootfs": {}}, ImageUnreadableError, "no layers by sha256"),
    ("too few diffIDs", {"rootfs": {"diff_ids": [digest_of(b"")]}}, ImageUnreadableError,
     "names 1 layers"),
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused(
    tmp_path: Path, config: dict[str, Any], error: type[Failure], words: str
) -> None:
    with opened(tmp_path) as target:
        manifest = write_image(target)
        document = json.loads(manifest)
        raw = json.loads(
            (tmp_path / "blobs/sha256" / document["config"]["digest"][7:]).read_bytes()
        )
        blob = target.write_bytes(to_bytes({**raw, **config}), document["config"]["mediaType"])
        content = to_bytes({**document, "config": blob.to_json()})
        digest = target.write_bytes(content, MANIFEST)
        (tmp_path / "index.json").write_bytes(to_bytes({"manifests": [digest.to_json()]}))
    with pytest.raises(error, match=words):
        open_layout(tmp_path, platform=AMD64)


def test_which_image_is_meant_must_be_said(tmp_path: Path) -> None:
    put(tmp_path, "a:1")
    put(tmp_path, "b:1", tars=(a_tar({"b": b"b"}),))
    with pytest.raises(ImagePlaceError, match=r"several images: a:1, b:1") as caught:
        open_layout(tmp_path)
    assert caught.value.exit_code == 2
    with pytest.raises(ImagePlaceError, match=r"images here are: a:1, b:1"):
        open_layout(tmp_path, "c:1")
    assert open_layout(tmp_path, "docker.io/library/b:1").layers
    with pytest.raises(ImagePlaceError, match="no file oci-layout"):
        open_layout(tmp_path / "blobs")
