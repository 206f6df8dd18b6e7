"""The order in which an image is written, what is spared, and what a failure leaves."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.assembly.build import KEY, Built, Recipe, build, known_from
from images.oci.assemble import ContainerSettings
from images.oci.errors import DigestMismatchError, TargetError
from images.oci.model import MANIFEST, read_descriptors
from images.oci.sources import LayerSource, Stream, Unpacked
from tests.kit.cases import cases
from tests.kit.memory_target import Bar, DictMemory, MemoryTarget, TextLayer, base_image

SETTINGS = ContainerSettings(
    env={"PATH": "/opt/venv/bin:/usr/bin", "VIRTUAL_ENV": "/opt/venv"},
    working_dir="/workspace",
    command=("python3",),
    labels={"org.example.made": "yes"},
)


def made(
    *sources: LayerSource,
    target: MemoryTarget | None = None,
    memory: DictMemory | None = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[Built, MemoryTarget]:
    target = target if target is not None else MemoryTarget()
    built = build(
        Recipe(base=base_image(**(config or {})), sources=sources, settings=SETTINGS),
        target,
        memory if memory is not None else DictMemory(),
        Bar(),
        workers=2,
        **more,
    )
    return built, target


def config_of(built: Built, target: MemoryTarget) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(target.blobs[built.image_id])
    return found


def test_nothing_is_published_and_the_configuration_is_written_after_all_layers() -> None:
    _, target = made(TextLayer("a"), TextLayer("b"))
    assert target.names == {}
    assert [call.partition(" ")[0] for call in target.calls] == ["write"] * 3 + ["bytes"]


def test_a_manifest_names_what_is_there_in_the_order_of_the_recipe() -> None:
    layers = (TextLayer("large", b"x" * 9999), TextLayer("small"))
    built, target = made(*layers)
    manifest = json.loads(built.content)
    assert manifest["mediaType"] == MANIFEST
    described = read_descriptors(manifest["layers"], "layers")
    assert [target.blobs[layer.digest] for layer in described[1:]] == [
        b"".join(layer.stream(None)) for layer in layers
    ]
    assert all(layer.size == len(target.blobs[layer.digest]) for layer in described)
    diff_ids = config_of(built, target)["rootfs"]["diff_ids"]
    assert len(diff_ids) == len(described)


def test_what_the_target_has_is_neither_opened_nor_written() -> None:
    memory, layer = DictMemory(), TextLayer("a")
    first, target = made(layer, memory=memory)
    again = TextLayer("a")
    second, _ = made(again, memory=memory, target=target)
    assert second.content == first.content
    assert again.opened == []
    assert [one.how for one in second.layers] == ["there", "there"]
    assert second.written == 0


def test_what_is_known_is_written_elsewhere_without_finding_it_out_again() -> None:
    memory = DictMemory()
    first, _ = made(TextLayer("a"), memory=memory)
    layer = TextLayer("a")
    second, _ = made(layer, memory=memory)
    assert layer.opened == ["known"]
    assert second.content == first.content


def test_a_memory_that_lies_about_a_digest_is_found_out_and_put_right() -> None:
    memory = DictMemory()
    first, _ = made(TextLayer("a"), TextLayer("b"), memory=memory)
    one, other = memory.found
    memory.found[one], memory.found[other] = memory.found[other], memory.found[one]
    second, _ = made(TextLayer("a"), TextLayer("b"), memory=memory)
    assert second.content == first.content


def _other() -> Generator[bytes, None, None]:
    yield b"other"


def test_a_layer_that_is_not_what_the_base_s_manifest_says_is_refused() -> None:
    target = MemoryTarget()
    base = base_image()
    broken = replace(base, layers=(replace(base.layers[0], stream=_other),))
    with pytest.raises(DigestMismatchError):
        build(
            Recipe(base=broken, sources=(), settings=SETTINGS),
            target,
            DictMemory(),
            Bar(),
            workers=2,
        )
    assert target.names == {}


def test_what_runs_beside_the_layers_ends_the_build_if_it_fails() -> None:
    started, target = threading.Event(), MemoryTarget()

    class Slow(TextLayer):
        def stream(self, known: Unpacked | None) -> Stream:
            started.set()
            for _ in range(600):  # a minute, unless it is stopped
                time.sleep(0.1)
                yield b"."
            return (yield from super().stream(known))

    def beside(stopped: Callable[[], bool]) -> None:
        assert started.wait(60)
        assert not stopped()
        raise TargetError("not like this", fix="")

    with pytest.raises(TargetError, match="not like this"):
        made(Slow("a"), target=target, beside=beside)
    assert target.names == {}


def test_what_runs_beside_the_layers_is_told_that_one_failed() -> None:
    heard = threading.Event()

    class Broken(TextLayer):
        def stream(self, known: Unpacked | None) -> Stream:
            yield from super().stream(known)
            raise TargetError("a broken layer", fix="")

    def beside(stopped: Callable[[], bool]) -> None:
        for _ in range(6000):
            if stopped():
                heard.set()
                return
            time.sleep(0.01)

    with pytest.raises(TargetError, match="a broken layer"):
        made(Broken("a"), beside=beside)
    assert heard.is_set()


def test_an_image_that_was_made_earlier_tells_of_its_layers() -> None:
    memory = DictMemory()
    built, target = made(TextLayer("a"), TextLayer("b"), memory=memory)
    layers = read_descriptors(json.loads(built.content)["layers"], "layers")
    told = known_from(layers, config_of(built, target)["rootfs"]["diff_ids"])
    assert {key: (k.digest, k.size, k.unpacked.diff_id) for key, k in told.items()} == {
        key: (k.digest, k.size, k.unpacked.diff_id) for key, k in memory.found.items()
    }
    assert all(layer.annotations.get(KEY) for layer in layers[1:])


def test_a_base_layer_is_mounted_where_that_is_possible() -> None:
    built, target = made(TextLayer("a"), mount=lambda _: True)
    assert built.layers[0].how == "mounted"
    assert built.layers[0].digest not in target.blobs


def test_what_has_to_be_made_is_told_before_the_first_layer_is() -> None:
    told: list[list[str]] = []
    target = MemoryTarget()

    def wanted(sources: Any) -> None:
        assert target.calls == []
        told.append([source.title for source in sources])

    made(TextLayer("a"), TextLayer("b"), target=target, wanted=wanted)
    assert told == [["a", "b"]]


class Broken(TextLayer):
    """A layer that fails half-way."""

    def stream(self, known: Unpacked | None) -> Stream:
        yield from itertools.islice(TextLayer.stream(self, known), 1)
        raise TargetError("The wheel is damaged.", fix="Fetch it anew.")


class Waiting(TextLayer):
    """A layer that waits for a download that will never come."""

    gave_up = threading.Event()

    def stream(self, known: Unpacked | None) -> Stream:
        assert self.gave_up.wait(30)
        yield from TextLayer.stream(self, known)
        raise TargetError("The download was given up.", fix="-")


def test_one_failure_ends_the_others_and_is_the_one_that_is_told() -> None:
    Waiting.gave_up.clear()
    target = MemoryTarget()
    with pytest.raises(TargetError, match="The wheel is damaged"):
        made(Waiting("w", b"x" * 999), Broken("b"), target=target, give_up=Waiting.gave_up.set)
    assert not any(call.startswith(("bytes", "publish")) for call in target.calls)


def test_an_image_just_made_can_be_read_again() -> None:
    built, target = made(TextLayer("a"))
    assert [b"".join(layer.stream()) for layer in built.image.layers] == [
        target.blobs[layer.blob.digest] for layer in built.image.layers
    ]
    assert built.image.config == config_of(built, target)


BASE = {
    "created": "2024-05-01T00:00:00Z",
    "config": {
        "Env": ["PATH=/usr/bin", "LANG=C.UTF-8", "PYTHON_VERSION=3.11.9"],
        "Entrypoint": ["/entry"],
        "Cmd": ["bash"],
        "Labels": {"maintainer": "somebody"},
        "Hostname": "3f2b",
        "OnBuild": ["RUN x"],
        "User": "",
    },
    "history": [{"created_by": "ADD rootfs"}, {"created_by": "ENV x", "empty_layer": True}],
    "container": "3f2b...",
    "docker_version": "20.10",
}


def test_the_configuration_is_what_a_dockerfile_would_inherit() -> None:
    built, target = made(TextLayer("a"), config=BASE)
    config = config_of(built, target)
    assert config["config"] == {
        "Env": [
            "PATH=/opt/venv/bin:/usr/bin",
            "LANG=C.UTF-8",
            "PYTHON_VERSION=3.11.9",
            "VIRTUAL_ENV=/opt/venv",
        ],
        "Entrypoint": ["/entry"],
        "Cmd": ["python3"],
        "Labels": {"maintainer": "somebody", "org.example.made": "yes"},
        "WorkingDir": "/workspace",
    }
    assert config["created"] == BASE["created"]
    assert [one["created_by"] for one in config["history"]] == ["ADD rootfs", "ENV x", "the file a"]
    assert not config.keys() & {"container", "docker_version"}


@cases(
    "history",
    ("none at all", None),
    ("an empty one", []),
    ("more layers than there are", [{"created_by": "a"}, {"created_by": "b"}]),
    ("no list", "nonsense"),
)
def test_a_history_that_does_not_fit_the_layers_is_not_taken_over(history: object) -> None:
    built, target = made(TextLayer("a"), config={"history": history})
    assert len(config_of(built, target)["history"]) == 2


@given(st.permutations(["PATH=/b", "HOME=/r", "A=1"]), st.integers(1, 8))
def test_equal_recipes_give_equal_bytes_whatever_the_threads_do(
    env: list[str], workers: int
) -> None:
    layers = [TextLayer(name, name.encode() * 50) for name in "abcdef"]
    recipe = Recipe(base=base_image(config={"Env": env}), sources=tuple(layers), settings=SETTINGS)
    contents = {
        build(recipe, MemoryTarget(), DictMemory(), Bar(), workers=count).content
        for count in (1, workers)
    }
    assert len(contents) == 1
