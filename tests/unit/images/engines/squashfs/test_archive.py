"""The merged tar has what an unpacker makes of the same layers."""

from __future__ import annotations

import io
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.engines.sandbox.unpack import unpack
from images.engines.squashfs import merge as module
from images.engines.squashfs.archive import archive
from images.engines.squashfs.files import (
    RECORD,
    add_files,
    apptainer_files,
    enroot_files,
    read_record,
    write_record,
)
from images.engines.squashfs.merge import merge
from images.errors import Failure
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.model import to_bytes
from images.oci.sources import ImageLayer
from images.system.hashed_file import FileState, HashedFile
from tests.kit.cases import cases
from tests.kit.programs import run_program
from tests.kit.sandbox_images import entry, image, layer, layer_of, link


def archived(*layers: ImageLayer) -> dict[str, str]:
    """What is in the tar: content, "dir", or "-> target"."""
    tar = b"".join(archive(merge(layers), layers))
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isreg() or member.islnk() else None
            if member.issym():
                found[member.name] = f"-> {member.linkname}"
            else:
                found[member.name] = content.read().decode() if content else "dir"
    assert found.pop(".") == "dir"
    return found


def unpacked(root: Path, *layers: ImageLayer) -> dict[str, str]:
    """The same of the directory that a sandbox makes, without the places that are mounted on."""
    root.mkdir()
    unpack(layers, root, lambda _: None)
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "dir" if path.is_dir() else path.read_text()
    return found


@cases(
    "layers expected",
    ("a whiteout hides a file of a lower layer",
     [layer(entry("a/f", b"1"), entry("a/g", b"2")), layer(entry("a/.wh.f", b""))],
     {"a": "dir", "a/g": "2"}),
    ("an opaque directory keeps what its own layer has",
     [layer(entry("a/f", b"1"), entry("a/d/g", b"2")), layer(entry("a/d/g", b"new"),
     entry("a/.wh..wh..opq", b""))], {"a": "dir", "a/d": "dir", "a/d/g": "new"}),
    ("a hard link into a lower layer keeps the content that was there",
     [layer(entry("a", b"1")), layer(link("b", "a", hard=True)), layer(entry("a", b"2"))],
     {"a": "2", "b": "1"}),
    ("a link on the way is followed",
     [layer(entry("u/lib/f", b"1"), link("lib", "u/lib")), layer(entry("lib/g", b"2"))],
     {"lib": "-> u/lib", "u": "dir", "u/lib": "dir", "u/lib/f": "1", "u/lib/g": "2"}),
    ("a link to what is not there yet is followed, too",
     [layer(link("lib", "u/lib")), layer(entry("lib/f", b"1"))],
     {"lib": "-> u/lib", "u": "dir", "u/lib": "dir", "u/lib/f": "1"}),
    ("of two members with one name the last one counts",
     [layer(entry("a", b"1"), entry("a", b"22"))], {"a": "22"}),
    ("aufs's own notes are omitted", [layer(entry("a/.wh..wh.plnk", b""), entry("f", b""))],
     {"f": ""}),
    ("long names are kept",
     [layer(entry("/".join(["d" * 60] * 4), b"deep"), entry("e" * 255, b"long"))],
     {"d" * 60: "dir", "/".join(["d" * 60] * 2): "dir", "/".join(["d" * 60] * 3): "dir",
     "/".join(["d" * 60] * 4): "deep", "e" * 255: "long"}),
    ("long targets keep their first slash", [layer(link("l", "/" + "x" * 300), link("m", "/näh"))],
     {"l": "-> /" + "x" * 300, "m": "-> /näh"}),
)  # fmt: skip
def test_layers_are_merged(layers: list[ImageLayer], expected: dict[str, str]) -> None:
    assert archived(*layers) == expected


@cases(
    "layers",
    ("a name with dots", [layer(entry("../out", b"x"))]),
    ("a hard link to nothing", [layer(link("l", "nothing", hard=True))]),
    ("a directory's hard link", [layer(entry("d"), link("l", "d", hard=True))]),
    ("a name longer than file systems take", [layer(entry("x" * 300, b"x"))]),
    ("a whiteout of nothing", [layer(entry(".wh.", b""))]),
    ("a link to nothing", [layer(link("l", ""))]),
    ("an owner that no system has", [layer(entry("f", b"", uid=1 << 40))]),
    ("no tar", [layer_of(b"no tar" * 200)]),
)
def test_what_no_honest_tool_makes_is_refused(layers: list[ImageLayer]) -> None:
    with pytest.raises(ImageUnreadableError) as caught:
        archived(*layers)
    assert caught.value.fix


def test_a_layer_other_than_promised_is_refused() -> None:
    honest = layer(entry("f", b"1"))
    with pytest.raises(DigestMismatchError):
        archived(layer_of(b"".join(honest.stream()), diff_id=f"sha256:{'0' * 64}"))


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MEMBERS", 3)
    many = [entry(f"{n}", b"") for n in range(4)]
    assert len(archived(layer(*many[:3]))) == 3
    with pytest.raises(ImageUnreadableError, match="more than 3 files"):
        archived(layer(*many[:2]), layer(*many[2:]))


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
kinds = st.sampled_from(["white", "opaque", "file", "dir", "link", "hard"])
members = st.lists(st.tuples(kinds, names, names), max_size=8)


@settings(max_examples=300)
@given(layers=st.lists(members, max_size=3))
def test_the_tar_has_what_the_unpacker_makes(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[tuple[str, str, str]]]
) -> None:
    def member(kind: str, name: str, target: str, number: int) -> Any:
        above, _, last = name.rpartition("/")
        if kind == "white":
            return entry(f"{above}/.wh.{last}".lstrip("/"), b"")
        if kind == "opaque":
            return entry(f"{name}/.wh..wh..opq", b"")
        if kind in {"link", "hard"}:
            return link(name, target, hard=kind == "hard")
        return entry(name, None if kind == "dir" else f"{number}{target}".encode())

    # whiteouts first: between a layer's own files, unpackers disagree on what they mean
    hiding = {"white", "opaque"}
    real = [
        layer(*(member(*one, i) for one in sorted(rows, key=lambda row: row[0] not in hiding)))
        for i, rows in enumerate(layers)
    ]
    try:
        expected = unpacked(tmp_path_factory.mktemp("same") / "root", *real)
    except Failure:
        return  # it refuses a file as a directory, and links in a circle
    found = archived(*real)
    extra = {name: what for name, what in expected.items() if name not in found}
    assert {name: what for name, what in expected.items() if name in found} == found
    assert all(what in {"dir", ""} for what in extra.values())  # where a sandbox mounts


SETTINGS = {
    "Env": ["A=1", "B=two words", "C=a\nb"],
    "Entrypoint": ["/bin/it's"],
    "Cmd": ["--x", "$HOME"],
    "WorkingDir": "/my work",
    "Volumes": {"/data": {}},
    "Labels": {"name": "two\nlines"},
}


def test_enroot_gets_the_images_settings() -> None:
    files = enroot_files({"config": SETTINGS})
    assert files["/etc/environment"] == b"A=1\nB=two words\n"
    assert files["/etc/fstab"] == (
        b"${ENROOT_ROOTFS}/data /data none x-create=dir,bind,rw,nosuid,nodev\n"
    )
    assert files["/etc/rc"].startswith(b"# name two lines\n")
    assert b". /etc/rc.local\n" in files["/etc/rc"]  # pyxis writes there what is to run


@pytest.mark.parametrize(
    "path",
    ["/../../etc", "/a/..", "data", "/a b", "/a\n/b", "/${HOME}", "/\\056\\056/etc", "/a\0"],
    ids=repr,
)
def test_enroot_mounts_no_volume_from_outside_the_image(path: str) -> None:
    assert enroot_files({"config": {"Volumes": {path: {}}}})["/etc/fstab"] == b""


@cases(
    "arguments expected",
    ("the image's command", [], ["--x", "$HOME"]),
    ("the user's command", ["a b", "c"], ["a b", "c"]),
)
def test_the_start_script_runs_the_command(
    tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    show = tmp_path / "it's"
    show.write_text('#!/bin/sh\npwd\nfor word in "$@"; do echo "$word"; done\n')
    show.chmod(0o755)
    place = tmp_path / "my work"
    config = {"config": {**SETTINGS, "Entrypoint": [str(show)], "WorkingDir": str(place)}}
    script = tmp_path / "rc"
    script.write_bytes(enroot_files(config)["/etc/rc"])
    done = run_program(["/bin/sh", str(script), *arguments], check=True)
    assert done.stdout.splitlines() == [str(place), *expected]


def test_an_image_without_a_command_starts_a_shell() -> None:
    assert b"exec  /bin/sh\n" in enroot_files({})["/etc/rc"]
    words = enroot_files({"config": {"Entrypoint": ["/x"]}})["/etc/rc"].decode().split("else")[1]
    assert shlex.split(words)[:2] == ["exec", "/x"]


def apptainer_prints(tmp_path: Path, script: str, **env: str) -> list[str]:
    """What a container prints, whose scripts were sourced in their order."""
    place = tmp_path / "env"
    place.mkdir()
    for path, content in apptainer_files({"config": SETTINGS}).items():
        if "/env/" in path:
            (place / Path(path).name).write_bytes(content)
    done = run_program(
        ["/bin/sh", "-uc", f'for one in {place}/*.sh; do . "$one"; done; {script}'],
        env={"PATH": "/usr/bin:/bin", **env},
        check=True,
    )
    return done.stdout.splitlines()


@cases(
    "env expected",
    ("the image's variables", {}, ["1", "two words", "a", "b", "/.singularity.d/libs"]),
    ("the caller's variables", {"B": "of the caller", "LD_LIBRARY_PATH": "/x"},
     ["1", "of the caller", "a", "b", "/x:/.singularity.d/libs"]),
)  # fmt: skip
def test_apptainer_sources_the_images_settings(
    tmp_path: Path, env: dict[str, str], expected: list[str]
) -> None:
    script = 'for one in "$A" "$B" "$C" "$LD_LIBRARY_PATH"; do echo "$one"; done'
    assert apptainer_prints(tmp_path, script, **env) == expected


def test_apptainer_gets_the_images_path_and_command(tmp_path: Path) -> None:
    files = apptainer_files({"config": {"Env": ["PATH=/opt/it's/bin", "a-b=1"]}})
    environment = files["/.singularity.d/env/10-docker2singularity.sh"].decode()
    assert environment.splitlines()[1:] == ["export PATH='/opt/it'\"'\"'s/bin'"]
    script = tmp_path / "runscript"
    config = {"Entrypoint": ["/bin/echo", "it's"], "Cmd": ["$HOME"]}
    script.write_bytes(apptainer_files({"config": config})["/.singularity.d/runscript"])
    for words, expected in ((["a b"], "it's a b\n"), ([], "it's $HOME\n")):
        done = run_program(["/bin/sh", script, *words], check=True)
        assert done.stdout == expected


FILE = HashedFile(Path("image.sqfs"), f"sha256:{'f1' * 32}", FileState(1, 2, 3, 4, 5))


def test_a_file_is_identified_by_its_bytes_and_its_record_is_a_claim() -> None:
    one = image([layer(entry("f", b"1"))], {"Env": ["A=ü"], "Labels": {"x": "y"}})
    found = read_record(write_record(one), FILE)
    assert (found.image_id, found.digest, found.squashfs) == (FILE.digest, FILE.digest, FILE)
    assert found.claims == (one.image_id, one.digest)
    assert (found.config, found.platform) == (one.config, one.platform)


@cases(
    "content",
    ("nothing", b""),
    ("a list", b"[]"),
    ("a newer schema", b'{"schema":2}'),
    ("no digest", to_bytes({"schema": 1, "digest": "sha256:0", "config": {}})),
    ("no platform", to_bytes({"schema": 1, "digest": f"sha256:{'0' * 64}", "config": {}})),
    ("no settings", to_bytes({"schema": 1, "digest": f"sha256:{'0' * 64}", "config": 3})),
)
def test_a_damaged_record_is_refused(content: bytes) -> None:
    with pytest.raises(Failure) as caught:
        read_record(content, FILE)
    assert "image.sqfs" in caught.value.message
    assert caught.value.fix


def test_places_that_an_image_lacks_are_added_and_others_kept() -> None:
    one = image([layer(entry("tmp", mode=0o700), entry("etc/rc", b"old"), link("run", "/x"))])
    merged = merge(one.layers)
    add_files(merged.tree, one)
    found = dict(merged.tree.walk())
    assert found["/tmp"].attributes is not None
    assert found["/tmp"].attributes.mode == 0o700
    assert found["/var/tmp"].attributes is not None
    assert found["/var/tmp"].attributes.mode == 0o1777
    rc = merged.tree.file("/etc/rc")
    assert rc is not None
    assert rc.text is not None
    assert rc.text.startswith(b"\nmkdir")
    assert RECORD in found
    assert "/proc" in found
