"""--cut: which GPUs it names, what it contradicts, and what the documents of the build say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.inspect.selection import tegra
from images.layers.cut import CutLayer
from images.layers.install import InstallLocation
from images.layers.lazy.formats import FORMATS
from images.layers.lazy.layer import LazyLayer
from images.layers.transcode import WheelLayer
from images.layers.zstd import ZstdLayer
from images.oci.sources import LayerSource
from images.store.store import Store
from provision.attestation.provenance.bom import ChangedFiles, bill_of_materials
from provision.build.builder import BuildEngine, choose_builder
from provision.build.cut import cut_layers, refuse_without_code, report_of
from provision.catalog.loading import load
from provision.cli.layers import capabilities, planned_for, read_cut, refuse_contradiction
from provision.errors import BadInputError, NothingCompatibleError
from provision.lock.lockfile import Lock
from provision.model.plan import Gpu, HostFacts
from tests.kit.cases import cases
from tests.kit.fake_engine import PLAN
from tests.kit.layer_maker import PLACE, Piece, craft, locked, pieces_of
from tests.kit.memory_target import TextLayer
from tests.unit.images.layers.test_cut import CODE, LIBRARY, NAME
from tests.unit.provision.cli.test_cli import main


@cases(
    "text expected",
    ("not given", None, ()),
    ("a target", "sm_86", ((8, 6),)),
    ("a capability", "8.6", ((8, 6),)),
    ("a card", "A40", ((8, 6),)),
    ("several, each once", "RTX 3090, sm_120,A40", ((8, 6), (12, 0))),
)
def test_the_gpus_that_it_names(text: str | None, expected: Any) -> None:
    assert capabilities(read_cut(text, load())) == expected


@cases(
    "text says",
    ("nothing", "", "names no GPU"),
    ("commas", " , ", "names no GPU"),
    ("an unknown card", "RTX 9999", "not in the catalog"),
    ("another maker's", "MI300X", "not an NVIDIA GPU"),
    ("a target that is no GPU", "sm_90a", "not in the catalog"),
    ("an endless name", "x" * 9999, "not in the catalog"),
)
def test_what_is_no_gpu_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInputError, match=says) as caught:
        read_cut(text, load())
    assert "--gpu" not in caught.value.message + caught.value.fix


def test_the_plan_is_for_the_gpus_that_are_kept() -> None:
    here = HostFacts(driver="535.104.05", gpus=(Gpu(compute_capability=(7, 0)),))
    cut = read_cut("A40", load())
    assert planned_for([here], ()) == (here,)
    (found,) = planned_for([here], cut)
    assert found == here._replace(gpus=cut)
    refuse_contradiction([Gpu(compute_capability=(8, 6))], cut)
    refuse_contradiction([Gpu(compute_capability=(7, 0))], ())
    with pytest.raises(BadInputError, match="removes its code") as caught:
        refuse_contradiction([Gpu(name="V100", compute_capability=(7, 0))], cut)
    assert caught.value.fix.endswith("--cut sm_86,sm_70")


def test_the_first_line_of_the_output_is_what_the_licences_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("provision.host.detect", HostFacts)
    words = ("--driver", "535.104.05", "--cuda", "11.7", "--dry-run", "--output", "x", "--json")
    said = main("build", "--cut", "A40", *words)
    assert said.code == 0, said
    assert said.err.startswith("warning: --cut modifies libraries, and NVIDIA's licences")
    assert "do not distribute" in " ".join(said.err.split())
    assert json.loads(said.out)["plan"]["gpus"][0]["compute_capability"] == "8.6"
    assert "licences" not in main("build", *words).err


def test_an_engine_does_not_cut() -> None:
    job: Any = SimpleNamespace(
        making=SimpleNamespace(cut=((8, 6),)),
        builder="auto",
        settings=SimpleNamespace(unpacked=None),
        destination=None,
    )
    with pytest.raises(BadInputError, match="--cut changes"):
        read_cut("A40", load(), "docker")
    choice, _ = choose_builder(job, BuildEngine(), [PLAN])
    assert choice.builder == "oci"


@cases(
    "gpus refused",
    ("it has code for it", ((8, 6),), None),
    ("older code runs on it", ((8, 9),), None),
    ("none", ((8, 6), (12, 0)), "no code for a GPU of compute capability 12.0"),
)
def test_a_lock_without_code_for_a_gpu_is_refused(gpus: Any, refused: str | None) -> None:
    plan = PLAN._replace(framework_version="2.0.1", cuda="11.7", wheel_tag="cu117", arch="x86_64")
    if refused is None:
        refuse_without_code([plan], gpus, load())
        return
    with pytest.raises(NothingCompatibleError, match=refused) as caught:
        refuse_without_code([plan], gpus, load())
    assert caught.value.code == "no-gpu-code"
    refuse_without_code([plan._replace(cuda="1.0")], gpus, load())  # not in the catalog


def test_the_two_lists_of_tegra_agree() -> None:
    assert tegra() >= load().tegra_capabilities
    others = {gpu.compute_capability for gpu in load().gpus if gpu.kind != "jetson"}
    assert not tegra() & others


def wheel_layer(directory: Path, content: bytes = LIBRARY) -> WheelLayer:
    path = directory / "example-1.0-py3-none-any.whl"
    path.write_bytes(craft(pieces_of(Piece(name=NAME, content=content))))
    return WheelLayer(
        wheels=(locked(),),
        place=InstallLocation(**PLACE),
        exclude_unneeded=False,
        fetch=lambda _: path,
    )


def contents(layer: LayerSource) -> dict[str, bytes]:
    members = layer.members()  # type: ignore[attr-defined]
    return {member.name: content.read() for member, content in members if content is not None}


def test_only_layers_of_wheels_are_cut(tmp_path: Path) -> None:
    plain, text = wheel_layer(tmp_path), TextLayer("a")
    assert cut_layers([plain, text], ()) == (plain, text)
    cut, same = cut_layers([plain, text], ((8, 6),))
    assert isinstance(cut, CutLayer)
    assert same is text


@cases(
    "written",
    ("compressed by zstd", lambda one: ZstdLayer(source=one)),
    ("lazy", lambda one: LazyLayer(sources=(one,), format=FORMATS["zstd"], first=None)),
)
def test_a_cut_layer_has_the_same_files_however_it_is_written(
    tmp_path: Path, written: Callable[[LayerSource], LayerSource]
) -> None:
    plain = wheel_layer(tmp_path)
    (cut,) = cut_layers([plain], ((8, 6),))
    assert contents(written(cut)) == contents(cut) != contents(plain)
    assert written(cut).key != written(plain).key


def test_the_account_is_kept_for_layers_that_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "store", on_note=lambda _: None) as store:
        gpus = ((8, 6),)
        layers = cut_layers([wheel_layer(tmp_path)], gpus)
        unread = report_of(layers, gpus, store)
        assert unread is not None
        assert (unread.libraries, unread.unknown) == ((), ("example 1.0",))
        monkeypatch.setattr(store, "wheel", lambda _: tmp_path / "x")
        first = report_of(layers, gpus, store)
        monkeypatch.setattr(store, "wheel", lambda _: None)
        assert report_of(layers, gpus, store) == first
        assert report_of(layers, (), store) is None
    assert first is not None
    (one,) = first.changed
    sizes = {word: len(code) for word, code in CODE.items()}
    assert (one.package, one.path) == ("example", NAME)
    assert (one.before, one.after) == (sum(sizes.values()), sizes["sm_86"])
    account = first.to_json()
    assert (account["gpus"], account["not_read"]) == (["sm_86"], [])
    assert account["after_bytes"] == sizes["sm_86"]


def test_the_bill_of_materials_names_changed_files() -> None:
    lock = Lock(text="the lock", plan=PLAN, wheels=(locked("my_code"), locked("other")))
    changed = ChangedFiles(why="--cut sm_86", files=[("my-code", NAME, "ab" * 32)])
    plain = bill_of_materials(lock)
    found = json.loads(bill_of_materials(lock, changed=changed))
    assert b"changed" not in plain
    assert found["serialNumber"] != json.loads(plain)["serialNumber"]
    parts = {part["name"]: part for part in found["components"]}
    assert parts["my_code"]["pedigree"] == {"notes": "1 file was changed by --cut sm_86"}
    said = {row["name"]: row["value"] for row in parts["my_code"]["properties"]}
    assert said[f"gpu-provision:changed-file:{NAME}"] == f"sha256:{'ab' * 32}"
    assert "pedigree" not in parts["other"]
    image = {row["name"]: row["value"] for row in found["metadata"]["component"]["properties"]}
    assert image["gpu-provision:changed-by"] == "--cut sm_86"
    assert bill_of_materials(lock, changed=changed) == bill_of_materials(lock, changed=changed)
