"""The images that provision built: which they are, where they are, what is removed with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from images.engines.docker_errors import EngineError, NoEngineError
from images.engines.listing import EngineContainer, EngineImage, read_image
from images.engines.sandbox.roots import Roots
from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from provision.attestation.record.store import write_verdict
from provision.cli.commands.rm import NotOurImageError, choose, in_use
from provision.output.prompt import NotConfirmedError, confirm
from provision.verification.own_images import (
    OwnImages,
    Removal,
    is_whole,
    list_images,
    remove_images,
)
from tests.kit.cases import cases
from tests.kit.fake_engine import Engine
from tests.kit.oci_images import a_tar, write_image
from tests.kit.sandbox_images import entry, image, layer

OCI = ["the base image", "gpu-provision: install torch==2.0.1", "gpu-provision: the lock x"]
BUILDKIT = [
    "RUN /bin/sh -c python3 -m venv /opt/venv # buildkit",
    "COPY verify /opt/gpu-provision/lib/verify # buildkit",
    "RUN /bin/sh -c printf '#!/bin/sh\\nexec python3 /opt/gpu-provision/lib/verify' # buildkit",
    "WORKDIR /workspace",
    'CMD ["python3"]',
]
PROJECT = ["ADD project.tar.gz / # buildkit", "WORKDIR /app", 'CMD ["python3" "train.py"]']


@cases(
    "history whole",
    ("made from wheels", OCI, True),
    ("with a project", [*OCI, "gpu-provision: the project in /app"], True),
    ("made by an engine", BUILDKIT, True),
    ("by an engine, with a project", [*BUILDKIT, *PROJECT], True),
    ("as older engines write settings",
     [*BUILDKIT[:3], *(f"/bin/sh -c #(nop)  {step}" for step in BUILDKIT[3:])], True),
    ("a user's step on top", [*OCI, "RUN pip install x # buildkit"], False),
    ("only settings on top of wheels", [*OCI, "WORKDIR /x", "CMD []"], False),
    ("a variable on top", [*BUILDKIT, "ENV A=1"], False),
    ("another command on top", [*BUILDKIT, 'CMD ["sh"]'], False),
    ("both settings once more", [*BUILDKIT, "WORKDIR /x", "CMD []"], False),
    ("docker commit", [*BUILDKIT, ""], False),
    ("never ours", ["RUN echo gpu-provision:", "CMD []"], False),
    ("nothing is known of its steps", [], False),
)  # fmt: skip
def test_an_image_on_top_of_ours_is_the_users(history: Sequence[str], *, whole: bool) -> None:
    assert is_whole(history) is whole


@dataclass
class FakeEngineImages:
    """An engine with images, some of which it does not remove."""

    name: str = "docker"
    images: list[EngineImage] = field(default_factory=list)
    others: tuple[str, ...] = ()
    refuses: str = ""
    removed: list[str] = field(default_factory=list)

    def labelled(self, label: str) -> tuple[EngineImage, ...]:
        return tuple(one for one in self.images if label in one.labels)

    def has(self, name: str) -> bool:
        return name in self.others

    def remove(self, name: str) -> None:
        if name == self.refuses:
            raise EngineError(f"{name} has children.", fix="Remove them.")
        self.removed.append(name)

    def loaded(self, repository: str) -> tuple[EngineImage, ...]:
        del repository
        return ()

    def leftovers(self) -> tuple[EngineContainer, ...]:
        return ()

    def remove_container(self, name: str) -> None:
        raise AssertionError(name)


def labels() -> dict[str, str]:
    engine = Engine()
    return engine.labels(engine.digest)


def in_docker(
    *names: str, number: int = 1, history: Sequence[str] = BUILDKIT, box: str = "", **more: Any
) -> EngineImage:
    image_id = f"sha256:{number:064x}"
    boxes = [EngineContainer(name=box, image_id=image_id, running=True)] if box else []
    fields: dict[str, Any] = {"labels": labels(), "size": 7_000_000, "created": 2e9 - number}
    fields |= {"history": tuple(history), "containers": tuple(boxes), **more}
    return EngineImage(image_id=image_id, names=names, **fields)


@dataclass
class Machine:
    """A layout, roots, records, and what answers as Docker and podman."""

    place: Path
    docker: FakeEngineImages = field(default_factory=FakeEngineImages)
    podman: FakeEngineImages | Exception = field(
        default_factory=lambda: NoEngineError("podman is not installed.", fix="Install it")
    )

    @property
    def layout(self) -> Path:
        return self.place / "images"

    @property
    def roots(self) -> Path:
        return self.place / "roots"

    @property
    def home(self) -> Path:
        return self.place / "state"

    def write(self, name: str, content: str, **config: Any) -> str:
        """Write an image into the layout; returns its ID."""
        config = {"config": {"Labels": labels()}, **config}
        tars = [a_tar({"shared": b"s" * 5000}), a_tar({"own": content.encode()})]
        target = LayoutTarget.open(self.layout)
        manifest = write_image(target, tars, **config)
        target.publish(manifest, MANIFEST, name=name)
        target.close()
        return str(json.loads(manifest)["config"]["digest"])

    def find(self) -> OwnImages:
        def podman() -> FakeEngineImages:
            if isinstance(self.podman, Exception):
                raise self.podman
            return self.podman

        engines: dict[Any, Callable[[], Any]] = {"docker": lambda: self.docker, "podman": podman}
        return list_images(self.layout, roots=self.roots, home=self.home, engines=engines)

    def remove(self, *texts: str) -> Removal:
        found = self.find()
        chosen = [pair for text in texts for pair in choose(text, found)]
        paths = {"images": self.layout, "roots": self.roots, "home": self.home}
        return remove_images(chosen, found, **paths)

    def blobs(self) -> int:
        return sum(1 for _ in (self.layout / "blobs/sha256").glob("*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    place = tmp_path / "data" / "gpu-provision"
    place.mkdir(parents=True)
    return Machine(place)


def test_all_places_are_listed_the_newest_first(machine: Machine) -> None:
    image_id = machine.write("team/app:1", "a")
    os.utime(machine.layout / "blobs/sha256" / image_id.removeprefix("sha256:"))
    machine.docker.images = [
        in_docker("app:1", "app:2"),
        in_docker("users:1", number=2, history=[*BUILDKIT, "RUN pip install x"]),
        in_docker(number=3, created=None),
    ]
    write_verdict(machine.home, f"sha256:{1:064x}", "unfit")
    found = machine.find()
    assert [(one.title, one.where, one.verdict) for one in found.images] == [
        ("app:1, app:2", "docker", "unfit"),
        ("team/app:1", "layout", "untested"),
        (f"sha256:{3:064x}"[:19], "docker", "untested"),
    ]
    assert found.images[0].packages == "PyTorch 2.0.1, CUDA 11.7"
    assert [(one.where, one.problem.code) for one in found.skipped] == [("podman", "no-engine")]


def test_an_image_of_a_layout_that_cannot_be_read_is_listed_and_removed(machine: Machine) -> None:
    image_id = machine.write("a:1", "a")
    machine.write("foreign:1", "b", config={"Labels": {}})
    (machine.layout / "blobs/sha256" / image_id.removeprefix("sha256:")).unlink()
    found = machine.find()
    assert [(one.title, one.plan) for one in found.images] == [("a:1", None)]
    machine.remove("a:1")
    assert machine.find().images == ()
    assert machine.layout.exists()  # another tool's image is in it


def test_what_only_a_removed_image_needs_goes_with_it(machine: Machine) -> None:
    first, second = machine.write("a:1", "a"), machine.write("b:1", "b")
    for one in (first, second):
        write_verdict(machine.home, one, "fit")
    whole = machine.blobs()
    done = machine.remove("a:1")
    assert ([one.title for one in done.removed], done.kept, done.busy) == (["a:1"], (), False)
    assert machine.blobs() == whole - 3  # manifest, configuration, its own layer
    assert [one.title for one in machine.find().images] == ["b:1"]
    assert len(list((machine.home / "builds").iterdir())) == 1
    machine.remove("b:1")
    assert not machine.layout.exists()
    assert list((machine.home / "builds").iterdir()) == []


def test_the_record_stays_while_the_image_has_a_name_elsewhere(machine: Machine) -> None:
    image_id = machine.write("a:1", "a")
    write_verdict(machine.home, image_id, "fit")
    machine.write("a:2", "a")
    machine.remove("a:1")
    assert [(one.title, one.verdict) for one in machine.find().images] == [("a:2", "fit")]


def test_an_unpacked_image_is_removed_unless_it_is_in_use(machine: Machine) -> None:
    root = Roots(machine.roots).use(image([layer(entry("a", b"x"))]), lambda _: None)
    image_id = f"sha256:{root.place.name}"
    machine.docker.images = [in_docker("a:1", number=int(root.place.name, 16))]
    roots = Roots(machine.roots)
    assert roots.is_used(image_id)
    root.release()
    assert not roots.is_used(image_id)
    machine.remove("a:1")
    assert not root.place.exists()


def test_a_root_in_use_keeps_its_image(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write("a:1", "a")
    monkeypatch.setattr(Roots, "is_used", lambda *_: True)
    done = machine.remove("a:1")
    assert [(one.title, why) for one, why in done.kept] == [
        ("a:1", "in use by a process in its unpacked root")
    ]
    assert len(machine.find().images) == 1


def test_files_that_a_running_build_may_need_stay(machine: Machine) -> None:
    machine.write("a:1", "a")
    build = LayoutTarget.open(machine.layout)
    done = machine.remove("a:1")
    assert done.busy
    assert machine.find().images == ()
    assert machine.blobs() == 4
    build.close()


@cases(
    "text removed",
    ("one of two names", "app:1", ["app:1"]),
    ("a name without a tag", "plain", ["plain:latest"]),
    ("an ID means all its names", f"sha256:{1:064x}", ["app:1", "app:2"]),
    ("the beginning of three IDs means all three", "000000", None),
    ("as skopeo writes it", "docker-daemon:app:2", ["app:2"]),
)
def test_what_a_name_means(machine: Machine, text: str, removed: list[str] | None) -> None:
    machine.docker.images = [
        in_docker("app:1", "app:2"),
        in_docker("plain:latest", number=2),
        in_docker(number=3),
    ]
    machine.remove(text)
    everything = ["app:1", "app:2", "plain:latest", f"sha256:{3:064x}"]
    assert machine.docker.removed == (everything if removed is None else removed)


@cases(
    "text message fix",
    ("a typing error", "app:9", "There is no image app:9", "Did you mean app:1"),
    ("not ours", "debian:12", "not built by gpu-provision", "docker rmi debian:12"),
    ("a path", "/tmp/x", "place of your own", "rm -r /tmp/x"),
    ("a registry's", "docker://h/x:1", "in a registry", "provision ls"),
)
def test_what_is_not_removed(machine: Machine, text: str, message: str, fix: str) -> None:
    machine.docker = FakeEngineImages(images=[in_docker("app:1")], others=("debian:12",))
    with pytest.raises(NotOurImageError, match=message) as caught:
        machine.remove(text)
    assert fix in caught.value.fix
    assert machine.docker.removed == []


def test_what_an_engine_refuses_is_kept(machine: Machine) -> None:
    machine.docker = FakeEngineImages(
        images=[in_docker("a:1"), in_docker("b:1", number=2, box="job")], refuses="a:1"
    )
    write_verdict(machine.home, f"sha256:{1:064x}", "fit")
    done = machine.remove("a:1", "b:1")
    assert {one.title: why for one, why in done.kept} == {
        "a:1": "a:1 has children.",
        "b:1": "in use by container job",
    }
    failure = in_use(done)
    assert failure is not None
    assert (failure.exit_code, failure.fix) == (5, "docker stop job")
    assert len(list((machine.home / "builds").iterdir())) == 1


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert confirm("Remove?", yes=True, command="x --yes")
    with pytest.raises(NotConfirmedError, match="no terminal") as caught:
        confirm("Remove?", yes=False, command="provision rm --yes a")
    assert (caught.value.exit_code, caught.value.fix) == (2, "Confirm it: provision rm --yes a")


DOCKER = {
    "Id": "sha256:" + "a" * 64,
    "RepoTags": ["gpu-provision:x", "gpu-provision-in-use:12ab"],
    "Created": "1970-01-01T00:00:00Z",
    "Size": 12,
    "Config": {"Labels": {"k": "v"}},
    "Metadata": {"LastTagTime": "2026-11-29T10:13:57.123456789Z"},
}
PODMAN = {
    "Id": "b" * 64,
    "RepoTags": ["localhost/gpu-provision:x"],
    "Created": "2026-11-29T10:13:57.5+01:00",
    "Size": 12,
    "Config": {"Labels": None},
}


@cases(
    "about names held made",
    ("Docker: the time of the name, if not its own", DOCKER, 1, 1, 1795947237),
    ("podman: without the registry that it invents", PODMAN, 1, 0, 1795943637),
    ("a reproducible image has no time", {**DOCKER, "Metadata": {}}, 1, 1, None),
    ("little is known", {"Id": "c", "RepoTags": None, "Created": 7}, 0, 0, None),
)
def test_what_an_engine_says(
    about: dict[str, Any], names: int, held: int, made: int | None
) -> None:
    box = EngineContainer(name="box", image_id=str(about["Id"]), running=False)
    found = read_image(about, ["step"], [box])
    assert found.names == ("gpu-provision:x",) * names
    assert (len(found.run_tags), found.containers) == (held, (box,))
    assert (None if found.created is None else int(found.created)) == made
