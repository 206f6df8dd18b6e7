"""Which runner is chosen, and the archive that engines load."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests

from images.engines.archive import engine_archive, engine_image_id
from images.engines.docker_errors import EngineError, NoEngineError
from images.engines.runner import DockerRunner, choose_runner
from images.oci.archive_reader import open_archive
from images.oci.model import Platform, digest_of
from images.oci.sources import Image
from images.system.errors import NoRunnerError
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer


def made() -> Image:
    return image([layer(entry("a", b"x" * 700)), layer(entry("b", b"y"), packed=True)])


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with nothing on it; gives the one directory on its PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("DOCKER_HOST", "nowhere://at.all")
    return programs


def install(programs: Path, name: str, script: str) -> None:
    program = programs / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.usefixtures("bare")
def test_a_bare_host_is_told_of_every_way(tmp_path: Path) -> None:
    with pytest.raises(NoRunnerError) as caught:
        choose_runner(cache=tmp_path, otherwise=", or otherwise")
    assert [line.split(":")[0] for line in caught.value.detail.splitlines()] == [
        "docker", "podman", "sandbox",
    ]  # fmt: skip
    for part in ("bubblewrap", "podman", "otherwise"):
        assert part in caught.value.fix


def test_podman_goes_before_a_sandbox(bare: Path, tmp_path: Path) -> None:
    install(bare, "bwrap", "exit 0")
    install(bare, "podman", "test $1 = info && echo 4.9.3 || exit 127")
    chosen = choose_runner(cache=tmp_path)
    assert chosen.runner.name == "podman 4.9.3"
    assert [one.name for one in chosen.passed_over] == ["docker"]


def test_a_sandbox_is_what_remains(bare: Path, tmp_path: Path) -> None:
    install(bare, "podman", "exit 125")
    install(bare, "bwrap", "case $1 in --version) echo bubblewrap 0.8.0;; esac")
    chosen = choose_runner(cache=tmp_path)
    assert chosen.runner.name == "sandbox (bubblewrap 0.8.0)"
    assert [one.name for one in chosen.passed_over] == ["docker", "podman"]
    assert all(one.problem.fix for one in chosen.passed_over)


@pytest.mark.usefixtures("bare")
def test_what_was_asked_for_fails_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(NoEngineError, match="No container engine answers") as caught:
        choose_runner(cache=tmp_path, wanted="docker", docker_fix="start it")
    assert caught.value.fix == "start it"
    with pytest.raises(NoEngineError, match="podman is not installed"):
        choose_runner(cache=tmp_path, wanted="podman")


# The archive -----------------------------------------------------------------------------------


def members(pieces: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(pieces)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def test_the_archive_is_what_an_engine_saves(tmp_path: Path) -> None:
    one, told = made(), []  # type: ignore[var-annotated]
    content = b"".join(engine_archive(one, told.append))
    (tmp_path / "x.tar").write_bytes(content)
    read = open_archive(tmp_path / "x.tar")
    assert (read.image_id, read.config) == (one.image_id, one.config)
    assert [b"".join(found.stream()) for found in read.layers] == [
        b"".join(layer.stream()) for layer in one.layers
    ]
    assert sum(told) == sum(layer.blob.size for layer in one.layers)


def test_the_archive_is_the_same_every_time() -> None:
    first, second = (b"".join(engine_archive(made(), lambda _: None)) for _ in range(2))
    assert first == second


def test_layers_that_the_engine_has_are_neither_read_nor_sent() -> None:
    one = made()

    def unread() -> Any:
        raise AssertionError("it was read")

    below = replace(one.layers[0], stream=unread)
    one = replace(one, layers=(below, one.layers[1]))
    told: list[int] = []
    content = b"".join(engine_archive(one, told.append, {(below.diff_id,)}))
    found = members(content)
    about = json.loads(found["manifest.json"])[0]
    assert len(about["Layers"]) == 2
    assert [name in found for name in about["Layers"]] == [False, True]
    assert sum(told) == sum(layer.blob.size for layer in one.layers)


def test_a_layer_that_comes_twice_is_sent_once() -> None:
    twice = layer(entry("a", b"x"))
    one = image([twice, twice])
    names = list(members(b"".join(engine_archive(one, lambda _: None))))
    assert len(names) == 3


# Docker, with a client of ours -----------------------------------------------------------------


@dataclass
class Loaded:
    """The SDK's image."""

    id: str
    images: Images

    @property
    def tags(self) -> list[str]:
        return [name for name, its in self.images.names.items() if its == self.id]

    def tag(self, repository: str, tag: str) -> None:
        if self.id in self.images.vanishing:  # between the look and the tag
            self.images.here.discard(self.id)
            raise docker.errors.ImageNotFound("gone")
        self.images.names[f"{repository}:{tag}"] = self.id


@dataclass
class Images:
    """The SDK's `images`: an image goes with its last name."""

    here: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    vanishing: set[str] = field(default_factory=set)
    received: bytes = b""
    trouble: Exception | None = None

    def list(self) -> Sequence[Any]:
        return [Loaded(one, self) for one in sorted(self.here)]

    def get(self, reference: str) -> Loaded:
        its = self.names.get(reference, reference)
        if its not in self.here:
            raise docker.errors.ImageNotFound("no")
        return Loaded(its, self)

    def load(self, pieces: Any) -> Sequence[Loaded]:
        self.received = pieces if isinstance(pieces, bytes) else b"".join(pieces)
        found = members(self.received)
        about = json.loads(found["manifest.json"])[0]
        handle = digest_of(found[about["Config"]])
        self.here.add(handle)
        self.names.update(dict.fromkeys(about["RepoTags"], handle))
        return [Loaded(handle, self)]

    def remove(self, name: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        its = self.names.pop(name)
        if its not in self.names.values():
            self.here.discard(its)


@dataclass
class Client:
    images: Images = field(default_factory=Images)

    def info(self) -> dict[str, Any]:
        return {}


def on(client: Client) -> Any:
    """A run of its own on this engine."""
    return DockerRunner(client)  # type: ignore[arg-type]


def test_docker_gets_what_it_lacks_and_loses_only_that() -> None:
    client, one = Client(), made()
    runner = on(client)
    handle = runner.prepare(one, lambda _: None)
    assert handle == one.image_id == engine_image_id(one)
    assert runner.names() == (), "what holds an image is not one of its names"
    runner.remove(handle)
    runner.remove(handle)
    assert client.images.here == set()
    client.images.here.add(handle)  # a user's, without a name
    client.images.received = b""
    again = on(client)
    again.remove(again.prepare(one, lambda _: None))
    assert client.images.received == b""
    assert (client.images.here, client.images.names) == ({handle}, {})


@pytest.mark.parametrize("first_ends", [True, False], ids=["first ends first", "last ends first"])
def test_an_image_stays_until_the_last_run_has_ended(*, first_ends: bool) -> None:
    client, one = Client(), made()
    runs = [on(client), on(client)]
    handles = [run.prepare(one, lambda _: None) for run in runs]
    for run in runs if first_ends else reversed(runs):
        assert client.images.here == {handles[0]}
        run.remove(handles[0])
    assert (client.images.here, client.images.names) == (set(), {})


def test_a_name_that_an_image_got_meanwhile_stays() -> None:
    client, one = Client(), made()
    runner, other = on(client), on(client)
    handle = runner.prepare(one, lambda _: None)
    other.remove(other.prepare(one, lambda _: None, name="team/torch:1"))
    runner.remove(handle)
    assert client.images.names == {"team/torch:1": handle}
    assert client.images.here == {handle}


def test_an_image_that_goes_before_it_is_held_is_loaded() -> None:
    client, one = Client(), made()
    handle = on(client).prepare(one, lambda _: None)
    client.images.vanishing.add(handle)
    client.images.received = b""
    assert on(client).prepare(one, lambda _: None) == handle
    assert client.images.received
    assert client.images.here == {handle}


def test_an_image_that_is_kept_loses_only_what_held_it() -> None:
    client, one = Client(), made()
    runner = on(client)
    handle = runner.prepare(one, lambda _: None)
    runner.keep(handle)
    runner.keep(handle)
    assert (client.images.here, client.images.names) == ({handle}, {})


def refusal(status: int) -> docker.errors.APIError:
    response = requests.Response()
    response.status_code = status
    return docker.errors.APIError("refused", response=response)


@cases(
    "trouble",
    ("a container of another run uses it", refusal(409)),
    ("another run has removed it", docker.errors.ImageNotFound("gone")),
)
def test_an_image_that_another_run_has_too_is_no_trouble(trouble: Exception) -> None:
    client = Client(Images(trouble=trouble))
    runner: Any = DockerRunner(client)  # type: ignore[arg-type]
    runner.remove(runner.prepare(made(), lambda _: None))


def test_an_image_that_cannot_be_removed_is_trouble() -> None:
    client = Client(Images(trouble=refusal(500)))
    runner: Any = DockerRunner(client)  # type: ignore[arg-type]
    with pytest.raises(EngineError):
        runner.remove(runner.prepare(made(), lambda _: None))


def test_docker_is_given_an_image_for_another_processor() -> None:
    """It is run elsewhere, or not at all: `build --no-verify` gives an engine what it made."""
    other = replace(made(), platform=Platform(architecture="s390x"))
    runner: Any = DockerRunner(Client())  # type: ignore[arg-type]
    assert runner.prepare(other, lambda _: None) == other.image_id
