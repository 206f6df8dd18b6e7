"""What happens to an image that its checks refuse, or that could not be tested."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import Failure
from images.oci.archive import ArchiveTarget
from images.oci.model import Descriptor
from provision.attestation.record.store import last_verdict
from provision.build.destination import Choice, Destination
from provision.build.engine import EngineMaker
from provision.build.maker import KeptImage, MadeImage
from provision.build.next_commands import kept_name
from provision.build.trial import (
    keep_unfit,
    keep_verdict,
    kept_if_untested,
    known_verdict,
    withheld,
)
from provision.build.wheels import WheelMaker
from provision.errors import Exit
from provision.model.plan import HostFacts
from provision.output.console import Console
from tests.kit.cases import cases

DIGEST = "sha256:" + "1" * 64
MADE = MadeImage(
    image_id="sha256:" + "2" * 64,
    size_bytes=1,
    manifest=Descriptor(media_type="application/json", digest=DIGEST, size=1),
)


@cases(
    "name kept",
    ("a tag", "torch:1", "torch:1-unfit"),
    ("no tag is latest", "torch", "torch:latest-unfit"),
    ("a port", "r.example:5000/torch", "r.example:5000/torch:latest-unfit"),
    ("a registry", "r.example:5000/a/b:c", "r.example:5000/a/b:c-unfit"),
    ("the longest tag", "t:" + "x" * 128, "t:" + "x" * 122 + "-unfit"),
)
def test_the_name_of_an_unfit_image(name: str, kept: str) -> None:
    assert kept_name(name, "unfit") == kept


def wheel_maker(destination: Destination, target: object) -> Any:
    maker = WheelMaker.__new__(WheelMaker)
    for name, value in {
        "destination": destination,
        "tag": "t:1",
        "target": target,
        "built": [SimpleNamespace(content=b"{}")],
    }.items():
        setattr(maker, f"_{name}", value)
    return maker


@cases(
    "destination tag where published",
    ("one's own layout", Destination(kind="local"), "t:1-unfit", "", ["t:1-unfit"]),
    ("a directory", Destination(kind="layout", where="out"), "t:1-unfit", "out", ["t:1-unfit"]),
    ("a registry, which has it by its digest", Destination(kind="registry", where="r.example/t:1"),
     f"r.example/t@{DIGEST}", f"r.example/t@{DIGEST}", []),
)  # fmt: skip
def test_where_an_unfit_image_is_kept(
    destination: Destination, tag: str, where: str, published: list[str]
) -> None:
    names: list[str] = []
    target = SimpleNamespace(publish=lambda _content, _type, *, name: names.append(name))
    kept = wheel_maker(destination, target).keep((MADE,), "unfit")
    assert (kept.tag, kept.destination.where, names) == (tag, where, published)


def test_an_archive_that_is_unfit_gets_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "image.tar"
    file.write_bytes(b"of an earlier build")
    target = ArchiveTarget.open(file)
    monkeypatch.setattr(target, "publish", lambda *_, name: target._finish({name: b""}))
    maker = wheel_maker(Destination(kind="archive", where=str(file)), target)
    kept = maker.keep((MADE,), "unfit")
    target.close()
    assert kept.destination.where == str(tmp_path / "image-unfit.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image-unfit.tar", "image.tar"]
    assert file.read_bytes() == b"of an earlier build"


def test_an_engine_pushes_and_saves_nothing_that_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    maker: Any = EngineMaker.__new__(EngineMaker)
    given: list[tuple[str, str]] = []
    monkeypatch.setattr(maker, "_tag", "r.example/t:1", raising=False)
    engine = SimpleNamespace(tag=lambda image, tag: given.append((image, tag)))
    monkeypatch.setattr(maker, "_engine", engine, raising=False)
    assert maker.keep((MADE,), "unfit").destination == Destination(kind="engine")
    assert given == [(MADE.image_id, "r.example/t:1-unfit")]


@cases(
    "code state",
    ("the suite ended without a report", Exit.UNFIT, "unfit"),
    ("no space to unpack it", Exit.HOST_UNFIT, "untested"),
)
def test_an_image_that_cannot_be_tested_is_kept(
    code: Exit, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Failure):
        exit_code = code

    class Keeper:
        def keep(self, made: tuple[MadeImage, ...], state: str) -> KeptImage:
            assert made == (MADE,)
            return KeptImage(tag=f"t:1-{state}", destination=Destination(kind="local"))

    built: Any = [SimpleNamespace(produced=MADE)]
    maker: Any = Keeper()
    with pytest.raises(Broken), kept_if_untested(maker, built, Console()):
        raise Broken("It does not work.", fix="Do so.")
    assert f"the image is kept, {state}, as t:1-{state}" in capsys.readouterr().err


def test_what_keeps_nothing_does_not_hide_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    def keep(*_: object) -> KeptImage:
        raise Failure("The disk is full.", fix="Free space.")

    maker: Any = SimpleNamespace(keep=keep)
    assert keep_unfit(maker, (MADE,), Console()) is None
    assert "The unfit image was not kept: The disk is full." in capsys.readouterr().err


@cases(
    "destination name",
    ("a tag", Destination(kind="engine"), "t:1"),
    ("a reference", Destination(kind="registry", where="r.example/t:2"), "r.example/t:2"),
)
def test_why_an_image_did_not_get_its_name(destination: Destination, name: str) -> None:
    checks = [{"id": "a.b", "status": "pass"}, {"id": "c.d", "status": "fail"}]
    choice = Choice(builder="oci", destination=destination, why="so")
    found = withheld(choice, "t:1", [{"checks": checks[:1]}, {"checks": checks}])
    assert found == {"name": name, "because": "c.d failed"}


@cases(
    "reports lock known",
    ("the same packages", ["fit"], "a", "fit"),
    ("without a GPU, as before", ["fit", "no-verdict"], "a", "no-verdict"),
    ("other packages", ["fit"], "b", None),
    ("an unfit image is tested until it is fit", ["unfit"], "a", None),
    ("it was not tested", [], "a", None),
)
def test_packages_that_were_tested_are_not_tested_again(
    reports: list[str], lock: str, known: str | None, tmp_path: Path
) -> None:
    def image(name: str) -> Any:
        lock = SimpleNamespace(sha256=name * 64)
        return SimpleNamespace(lock=lock, produced=MADE, plan=SimpleNamespace(arch=None))

    found = [{"verdict": one} for one in reports]
    keep_verdict(tmp_path, [image("a")], found, HostFacts(), None)
    assert known_verdict(tmp_path, [image(lock)]) == known
    assert known_verdict(tmp_path, [image(lock), image("c")]) is None


def test_an_image_whose_packages_were_tested_has_their_verdict(tmp_path: Path) -> None:
    lock = SimpleNamespace(sha256="a" * 64)
    image: Any = SimpleNamespace(lock=lock, produced=MADE, plan=SimpleNamespace(arch=None))
    keep_verdict(tmp_path, [image], [], HostFacts(), "fit")
    assert last_verdict(tmp_path, MADE.image_id) == "fit"
