"""`provision clean`: all that is ours goes, what is in use or somebody else's stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from images.engines.listing import EngineContainer, EngineImage
from images.engines.sandbox.roots import Roots
from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from images.store.locks import alone, present
from images.store.store import Store
from provision.attestation.record.store import write_verdict
from provision.verification import own_images
from tests.kit.cases import cases
from tests.kit.oci_images import write_image
from tests.kit.sandbox_images import entry, image, layer
from tests.unit.provision.verification.test_own_images import FakeEngineImages, in_docker, labels
from tests.unit.test_contract import run

BLOB = bytes(20_000)
DIGEST = "87e5de9e0d4d6b8a2fe37ab3e4f4e4d9d4a7fc4e6f7d5a9ce0b5a3a8f2b7a1c0"


class Home:
    """A home directory, and what `provision` keeps in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.cache = place / ".cache" / "gpu-provision"
        self.data = place / ".local" / "share" / "gpu-provision"
        self.state = place / ".local" / "state" / "gpu-provision"
        self.engine = FakeEngineImages()

    def fill(self) -> None:
        """Something of every kind."""
        layout = LayoutTarget.open(self.data / "images")
        content = write_image(layout, config={"Labels": labels()})
        layout.publish(content, MANIFEST, name="app:1")
        layout.close()
        with Store.open(self.cache) as store:
            store.remember_facts("known", "a", {})
        Roots(self.cache / "roots").use(unpackable("a"), lambda _: None).release()
        for path in (
            self.cache / "bases" / "index.json",
            self.cache / "locks" / "pylock.app.toml",
            self.cache / "logs" / "wheel-a.log",
            self.data / "wheels" / DIGEST / "a.whl",
            self.data / "catalog.json",
            self.state / "keys" / "key.pem",
            self.state / "records" / "a.json",
            self.state / "mended" / "journal.json",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        write_verdict(self.state, f"sha256:{DIGEST}", "fit")

    def files(self) -> list[str]:
        found = (str(path.relative_to(self.place)) for path in self.place.rglob("*"))
        return sorted(found)

    def clean(self, *words: str) -> dict[str, Any]:
        code, out, _ = run(["clean", "--json", "--yes", *words])
        assert code == 0
        data: dict[str, Any] = json.loads(out)
        return data


def unpackable(name: str) -> Any:
    return image([layer(entry(name, BLOB))])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    found = Home(place)
    monkeypatch.setattr(own_images, "image_engines", lambda: {"docker": lambda: found.engine})
    return found


def test_everything_goes(home: Home) -> None:
    (home.place / "mine").write_text("x")
    home.fill()
    data = home.clean()
    assert (data["kept"], data["freed_bytes"] > len(BLOB)) == ([], True)
    assert home.files() == ["mine"]


def test_where_there_is_nothing_nothing_is_made(home: Home) -> None:
    assert home.clean()["parts"] == []
    code, out, _ = run(["clean"])  # nobody needs to be asked
    assert (code, out) == (0, "nothing was removed\n")
    assert home.files() == []


def test_it_is_confirmed_first(home: Home) -> None:
    home.fill()
    before = home.files()
    code, out, err = run(["clean"])
    assert (code, out) == (2, "")
    assert "provision clean --yes" in err
    assert "your signing key" in err
    assert home.files() == before


def test_what_is_not_ours_stays(home: Home, tmp_path: Path) -> None:
    home.fill()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    (home.cache / "logs" / "wheel-a.log").unlink()
    (home.cache / "logs").rmdir()
    (home.cache / "logs").symlink_to(elsewhere)
    (home.data / "notes").write_text("x")
    (home.cache / "store-1" / "blobs" / "notes").write_text("x")
    layout = LayoutTarget.open(home.data / "images")
    layout.publish(write_image(layout, config={"Labels": {}}), MANIFEST, name="other:1")
    layout.close()
    kept = {Path(one["what"]).name: one["why"] for one in home.clean()["kept"]}
    assert kept["logs"] == f"it is a link, to {elsewhere}"
    assert kept["notes"] == "gpu-provision did not make it"
    assert kept["images"] == "it has other:1"
    assert "blobs/notes" in kept["store-1"]
    assert kept.keys() == {"logs", "notes", "images", "store-1"}
    assert (elsewhere / "file").exists()
    assert (home.cache / "store-1" / "blobs" / "notes").exists()


def test_a_running_build_keeps_what_it_may_need(home: Home) -> None:
    home.fill()
    home.engine.images = [in_docker("app:1", run_tags=("gpu-provision-in-use:a",))]
    root = Roots(home.cache / "roots").use(unpackable("b"), lambda _: None)
    with present(home.cache), alone(home.cache) as is_alone:
        assert not is_alone
        data = home.clean()
    why = {Path(one["what"]).name: one["why"] for one in data["kept"]}
    assert why.pop("roots") == "a process uses an unpacked image"
    assert set(why.values()) == {"a build or a test is running"}
    assert why.keys() >= {"store-1", "bases", "locks", "keys", "wheels"}
    assert home.engine.removed == ["app:1"]
    root.release()
    assert home.clean()["kept"] == []
    assert home.files() == []


@cases(
    "image removed",
    ("all names of an image of ours", in_docker("app:1", "app:2"), ["app:1", "app:2"]),
    ("a tag of a run that was killed", in_docker(run_tags=("gpu-provision-in-use:a",)),
     ["gpu-provision-in-use:a"]),
    ("an image without a name", in_docker(), [f"sha256:{1:064x}"]),
    ("not what a container uses", in_docker("app:1", box="job"), []),
    ("not an image of somebody else", in_docker("mine:1", labels={}), []),
    ("not one on ours", in_docker("mine:1", history=["gpu-provision: x", "RUN y"]), []),
)  # fmt: skip
def test_images_of_an_engine(home: Home, image: EngineImage, removed: Sequence[str]) -> None:
    home.engine.images = [image]
    home.clean()
    assert home.engine.removed == removed


def test_what_builds_and_tests_left_in_an_engine(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["gpu-provision bootstrap bookworm amd64"]
    bases = [
        in_docker("gpu-provision/base:a", labels={}, history=base),
        in_docker("gpu-provision/base:b", labels={}, history=base, box="job"),
        in_docker("gpu-provision/base:c", labels={}, history=[*base, "RUN x"]),
    ]
    box = EngineContainer(name="suite", image_id="", running=False)
    monkeypatch.setattr(FakeEngineImages, "loaded", lambda *_: tuple(bases))
    monkeypatch.setattr(FakeEngineImages, "leftovers", lambda _: (box,))
    boxes: list[str] = []
    monkeypatch.setattr(FakeEngineImages, "remove_container", lambda _, name: boxes.append(name))
    with present(home.cache):
        home.clean()
    assert (boxes, home.engine.removed) == ([], [])
    data = home.clean()
    assert (boxes, home.engine.removed) == (["suite"], ["gpu-provision/base:a"])
    assert [(one["kind"], one["name"]) for one in data["engines"]] == [
        ("container", "suite"),
        ("base", "gpu-provision/base:a"),
    ]
    assert not home.cache.exists()
