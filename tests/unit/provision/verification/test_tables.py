"""A lazy image is proven by a record that names its manifest, and whose tables were compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from images.assembly.build import Recipe, build
from images.layers.lazy import formats
from images.layers.lazy.checking import checked
from images.oci.assemble import ContainerSettings
from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from images.oci.sources import ImageLayer
from provision.verification import origin_check, tables
from provision.verification.subject import Subject
from tests.kit.fake_engine import Engine, report, says
from tests.kit.lazy_maker import Change, Rows
from tests.kit.memory_target import Bar, DictMemory, base_image
from tests.unit.images.layers.lazy.test_layer import files_layer, lazy
from tests.unit.provision.cli.test_cli import Said, main
from tests.unit.provision.verification.conftest import Place

WRITE = formats.write_table


class Loaded(Engine):
    """An engine into which an image of a layout is loaded."""

    def prepare(self, image: Any, _: Callable[[int], None], **__: str) -> str:
        self.digest = image.image_id
        return self.digest

    def remove(self, handle: str) -> None:
        assert handle == self.digest

    def has(self, image: str) -> bool:
        return image == "none"


def set_uid(rows: Rows) -> Rows:
    return [{**row, "mode": 0o4755} if row["name"] == "bin/tool" else row for row in rows]


@pytest.fixture(autouse=True)
def engine(here: Place, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    found = Loaded()
    chosen = SimpleNamespace(runner=found, passed_over=())
    monkeypatch.setattr("images.engines.runner.choose_runner", lambda **_: chosen)
    monkeypatch.setenv("XDG_CACHE_HOME", str(here.path / "cache"))
    here.engine = found
    return found


def layout(
    here: Place, name: str, monkeypatch: pytest.MonkeyPatch, change: Change = lambda rows: rows
) -> str:
    """A layout with one lazy image, zstd:chunked; all have one configuration."""
    with monkeypatch.context() as patch:
        patch.setattr(formats, "write_table", lambda rows: WRITE(change(list(rows))))
        source = lazy("zstd", files_layer({"bin/tool": b"#!/bin/sh\n"}))
        labels = Engine().labels(Engine().digest)
        settings = ContainerSettings(env={}, working_dir="/", command=("sh",), labels=labels)
        recipe = Recipe(base=base_image(), sources=(source,), settings=settings)
        with closing(LayoutTarget.open(here / name)) as target:
            built = build(recipe, target, DictMemory(), Bar(), workers=1)
            target.publish(built.content, MANIFEST, name="a:1")
    return f"oci:{here / name}"


def told(said: Said) -> Any:
    return json.loads(said.out)


def test_a_record_covers_the_tables_of_its_manifest(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = layout(here, "good", monkeypatch)
    assert main("verify", name, "--record", "r.json").code == 0
    found = main("verify", name, "--check-record", "r.json", "--json")
    assert (found.code, told(found)["proven"]) == (0, True)
    assert main("verify", name).code == 0
    assert main("gate", name, "--no-test").code == 0


def test_layers_are_compared_once(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    name = layout(here, "good", monkeypatch)
    read: list[str] = []

    def heard(layer: ImageLayer) -> ImageLayer:
        read.append(layer.blob.digest)
        return checked(layer)

    monkeypatch.setattr(tables, "checked", heard)
    for _ in range(2):
        assert main("verify", name).code == 0
    assert len(read) == 1
    said = "images.store.store.changed_by_others"
    monkeypatch.setattr(said, lambda path: f"{path} can be changed")
    main("verify", name)
    assert len(read) == 2, "what others may write is not believed"


def test_a_table_that_differs_is_refused_before_anything_runs(
    here: Place, engine: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = layout(here, "bad", monkeypatch, set_uid)
    said = main("verify", name, "--json", "--record", "r.json")
    assert said.code == 1
    assert "'bin/tool' (mode 0644 in the tar, 4755 in the table)" in said.err
    assert (engine.jobs, (here / "r.json").exists()) == ([], False)
    found = main("gate", name, "--json")
    assert (found.code, told(found)["open"], told(found)["error"]["code"]) == (
        7,
        None,
        "table-mismatch",
    )


def test_the_record_of_one_table_does_not_prove_another_with_the_same_configuration(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = layout(here, "good", monkeypatch)
    assert main("verify", good).code == 0
    bad = layout(here, "bad", monkeypatch, set_uid)
    found = main("verify", bad, "--check-record", "--json")
    assert (found.code, told(found)["error"]["code"]) == (7, "record-without-tables")
    found = main("gate", bad, "--no-test", "--json")
    assert (found.code, told(found)["error"]["code"]) == (7, "record-without-tables")


@pytest.mark.parametrize("verdict", ["fit", "unfit"])
def test_a_record_of_an_earlier_release_leaves_the_gate_undecided_and_is_renewed(
    here: Place, engine: Loaded, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    name = layout(here, "good", monkeypatch)
    engine.suite = says(report(verdict))
    with monkeypatch.context() as before:
        before.setattr(Subject, "manifest", None)
        main("verify", name)
        code = main("verify", name, "--check-record").code
        assert code == {"fit": 0, "unfit": 1}[verdict], "a pull runs what was tested"
    found = main("gate", name, "--no-test", "--json")
    assert (found.code, told(found)["error"]["code"]) == (7, "record-without-tables")
    assert f"provision verify {name}" in told(found)["error"]["fix"]
    engine.suite = says(report())
    assert main("verify", name).code == 0
    assert main("verify", name, "--check-record").code == 0
    assert main("gate", name, "--no-test").code == 0


@pytest.mark.parametrize("is_lazy", [True, False])
def test_provenance_of_the_configuration_alone_does_not_prove_a_lazy_image(
    here: Place, monkeypatch: pytest.MonkeyPatch, *, is_lazy: bool
) -> None:
    seen: list[tuple[str, ...]] = []

    def judge(_: object, *, images: list[str], **__: object) -> Any:
        seen.append(tuple(images))
        raise ValueError("judged")

    monkeypatch.setattr(origin_check, "judge", judge)
    monkeypatch.setattr(origin_check, "read_statement", lambda *_: (None, None))
    name = layout(here, "good", monkeypatch)
    if not is_lazy:
        monkeypatch.setattr(Subject, "manifest", None)
    (here / "p.json").write_text("{}")
    main("verify", name, "--check-provenance", str(here / "p.json"))
    ((manifest, *others),) = seen
    assert len(others) == (0 if is_lazy else 1)
    index = json.loads((here / "good" / "index.json").read_text())
    assert manifest == index["manifests"][0]["digest"]
