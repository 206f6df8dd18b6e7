"""Which image is meant by what a person types."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from images.assembly.build import Recipe, build
from images.engines.docker_errors import NoEngineError
from images.engines.emulation import OtherMachineError
from images.engines.runner import DockerRunner
from images.errors import Failure
from images.oci.assemble import ContainerSettings
from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST, Platform
from images.store.layout_storage import LayoutStorage
from provision.output.console import Console
from provision.verification.subject import ImagePlaces, find_subject, ready
from tests.kit.cases import cases
from tests.kit.fake_engine import IMAGE, TAG, Engine
from tests.kit.memory_target import Bar, DictMemory, TextLayer, base_image

LABELS = {"org.example.made": "yes"}


def layout(path: Path, name: str, text: bytes = b"x", arch: str = "amd64") -> str:
    """A layout with one image; gives the image's id."""
    settings = ContainerSettings(env={}, working_dir="/", command=("sh",), labels=LABELS)
    base = replace(base_image(), platform=Platform(architecture=arch))
    recipe = Recipe(base=base, sources=(TextLayer("a", text),), settings=settings)
    with closing(LayoutTarget.open(path)) as target:
        built = build(recipe, target, DictMemory(), Bar(), workers=1)
        target.publish(built.content, MANIFEST, name=name)
    return built.image_id


def no_engine() -> DockerRunner:
    raise NoEngineError("No container engine answers.", fix="Start one.")


def places(tmp_path: Path, connect: Callable[[], Any] = no_engine) -> ImagePlaces:
    return ImagePlaces(connect=connect, images=tmp_path / "images", state=tmp_path / "state")


def test_the_engine_s_image_comes_first(tmp_path: Path) -> None:
    layout(tmp_path / "images", TAG)
    found = find_subject(TAG, places(tmp_path, lambda: cast("DockerRunner", Engine())))
    assert (found.image_id, found.image) == (IMAGE, None)


@pytest.mark.parametrize("engine", [no_engine, Engine], ids=["no engine", "an engine without it"])
def test_then_one_s_own(tmp_path: Path, engine: Any) -> None:
    image_id = layout(tmp_path / "images", "own:1")
    found = find_subject("own:1", places(tmp_path, engine))
    assert (found.image_id, found.labels, found.engine) == (image_id, LABELS, None)
    assert found.digest != found.image_id


@pytest.mark.parametrize("form", ["oci:{}:a:1", "{}:a:1", "oci:{}"])
def test_a_place_is_what_lies_there_whatever_the_engine_has(tmp_path: Path, form: str) -> None:
    image_id = layout(tmp_path / "layout", "a:1")
    text = form.format(tmp_path / "layout")
    assert find_subject(text, places(tmp_path, Engine)).image_id == image_id


@cases(
    "text engine says",
    ("no engine", "team/none:1", no_engine, "no image team/none:1: .*no container engine answers"),
    ("not there", "team/none:1", Engine, "no image team/none:1: .*does not have it"),
    ("no such directory", "oci:/nowhere/layout", Engine, "no directory"),
    ("no such registry", "docker://127.0.0.1:9/x:1", Engine, "127.0.0.1:9"),
    ("a host is a registry's", "127.0.0.1:9/x:1", no_engine, "127.0.0.1:9"),
)
def test_what_is_not_there_is_said(tmp_path: Path, text: str, engine: Any, says: str) -> None:
    with pytest.raises(Failure, match=says) as caught:
        find_subject(text, places(tmp_path, engine))
    assert caught.value.fix


def test_a_name_on_docker_hub_is_not_asked_for_unasked(tmp_path: Path) -> None:
    with pytest.raises(NoEngineError):
        find_subject("debian:12", places(tmp_path))


def test_a_layout_is_looked_after(tmp_path: Path) -> None:
    root = tmp_path / "images"
    layout(root, "a:1")
    layout(root, "a:1", b"newer")
    room = LayoutStorage(root)
    (before,) = room.du()
    cleared = room.gc(limit_bytes=None, everything=True)
    assert cleared.freed == before.size - cleared.kept > 0
    assert find_subject("a:1", places(tmp_path)).image is not None
    sound = room.verify(lambda *_: None)
    assert (sound.damaged, sound.size) == ((), cleared.kept)
    blob = max((root / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"damaged")
    (damaged,) = room.verify(lambda *_: None).damaged
    assert blob.name[:12] in damaged.title
    assert not blob.exists()


@pytest.mark.parametrize("form", ["oci:{}:a:1", "a:1"], ids=["a place", "one's own"])
@cases(
    "arches emulated arch emulator",
    ("its own needs no emulator", ["amd64"], "arm64", "amd64", ""),
    ("the only one, where it is emulated", ["arm64"], "arm64", "arm64", "qemu"),
    ("it is found where it cannot be run, too", ["arm64"], "", "arm64", ""),
    ("of several its own", ["arm64", "amd64"], "arm64", "amd64", ""),
    ("else one that is emulated", ["arm64", "s390x"], "s390x", "s390x", "qemu"),
)
def test_the_platform_that_is_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    arches: list[str],
    emulated: str,
    arch: str,
    emulator: str,
) -> None:
    monkeypatch.setattr("images.oci.model.os.uname", lambda: SimpleNamespace(machine="x86_64"))
    monkeypatch.setattr(
        "provision.verification.subject.emulator_of",
        lambda platform: "qemu" if platform.architecture == emulated else "",
    )
    index(tmp_path / "images", "a:1", arches)
    found = find_subject(form.format(tmp_path / "images"), places(tmp_path))
    assert found.image is not None
    assert (found.image.platform.architecture, found.emulator) == (arch, emulator)


def index(path: Path, name: str, arches: list[str]) -> None:
    """A layout in which one name is an image for each of these."""
    for arch in arches:
        layout(path, f"{name}-{arch}", arch.encode(), arch)
    file = path / "index.json"
    held = json.loads(file.read_text())
    for one in held["manifests"]:
        one["annotations"] = {"org.opencontainers.image.ref.name": name}
    file.write_text(json.dumps(held))


def test_what_cannot_run_here_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("images.oci.model.os.uname", lambda: SimpleNamespace(machine="x86_64"))
    layout(tmp_path / "images", "a:1", arch="s390x")
    subject = find_subject("a:1", places(tmp_path))
    runner = SimpleNamespace(name="a runner")
    monkeypatch.setattr("provision.verification.subject.runner_here", lambda *_: runner)
    console = Console()
    with (
        pytest.raises(OtherMachineError, match="for linux/s390x"),
        ready(subject, places(tmp_path), console),
    ):
        pass


@pytest.mark.parametrize("emulated", [True, False], ids=["another processor's", "its own"])
def test_an_engine_says_itself_what_it_emulates(
    tmp_path: Path,
    emulated: bool,  # noqa: FBT001
) -> None:
    engine = Engine(emulated=emulated)
    found = find_subject(TAG, places(tmp_path, lambda: cast("DockerRunner", engine)))
    assert bool(found.emulator) is emulated
