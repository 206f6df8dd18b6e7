"""Where the documents of a build are kept, and what happens when they cannot be."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from images.errors import Failure
from images.oci.model import MANIFEST, Descriptor
from provision.build.base import BuildSettings
from provision.build.destination import Choice, Destination
from provision.build.documents import (
    BuildDone,
    Documenting,
    OneImage,
    keep_documents,
    refuse_documents,
    signer_for,
)
from provision.lock.lockfile import Lock
from provision.output.console import Console
from tests.kit.cases import cases
from tests.kit.fake_engine import IMAGE, PLAN

LOCK = Lock(text="the lock", plan=PLAN, wheels=())
WHOLE = Descriptor(media_type=MANIFEST, digest=f"sha256:{'b' * 64}", size=9)


def done(kind: Any, place: Path, kept: Path | None) -> BuildDone:
    return BuildDone(
        name="team/torch:1",
        choice=Choice(builder="oci", destination=Destination(kind=kind), why="-"),
        place=str(place),
        images=[OneImage(lock=LOCK, image_id=IMAGE, manifest=WHOLE, kept_lock=kept)],
        whole=WHOLE,
        started=datetime(2026, 11, 21, tzinfo=timezone.utc),
        request=None,
    )


def keep(tmp_path: Path, build: BuildDone, **more: Any) -> dict[str, object]:
    documenting = Documenting(home=tmp_path / "home", **more)
    signer = signer_for(documenting, Console())
    assert signer is not None
    settings = BuildSettings(ca=None, offline=True, state=tmp_path / "state", env={})
    return keep_documents(build, documenting, signer, settings, Console())


@cases(
    "kind place expected",
    ("beside an archive", "archive", "out/image.tar", "out/image"),
    ("beside a layout", "layout", "out/layout", "out/layout"),
    ("one's own: beside the kept lock", "local", "images", "locks/pylock.x"),
    ("an engine's: likewise", "engine", "docker 26", "locks/pylock.x"),
)
def test_they_lie_beside_what_they_speak_of(
    tmp_path: Path, kind: str, place: str, expected: str
) -> None:
    for folder in ("out", "locks"):
        (tmp_path / folder).mkdir()
    account = keep(tmp_path, done(kind, tmp_path / place, tmp_path / "locks" / "pylock.x.toml"))
    assert account == {
        "sbom": str(tmp_path / f"{expected}.cdx.json"),
        "provenance": str(tmp_path / f"{expected}.sigstore.json"),
        "attached": False,
    }
    assert json.loads(Path(str(account["sbom"])).read_text())["bomFormat"] == "CycloneDX"


def test_what_was_named_is_written_there(tmp_path: Path) -> None:
    bom, statement = tmp_path / "a.json", tmp_path / "b.json"
    account = keep(tmp_path, done("engine", tmp_path, None), bom=bom, statement=statement)
    assert (account["sbom"], account["provenance"]) == (str(bom), str(statement))
    assert bom.exists()
    assert statement.exists()


def test_without_a_place_there_is_no_file_and_no_failure(tmp_path: Path) -> None:
    account = keep(tmp_path, done("engine", tmp_path, None))
    assert (account["sbom"], account["provenance"]) == (None, None)


def test_a_usual_place_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account = keep(tmp_path, done("engine", tmp_path, tmp_path / "none" / "pylock.x.toml"))
    assert account["sbom"] is None
    assert "could not be written" in capsys.readouterr().err


def test_nothing_is_signed_where_nothing_is_wanted(tmp_path: Path) -> None:
    assert signer_for(Documenting(home=tmp_path, enabled=False), Console()) is None
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_cannot_be_kept_is_a_warning_unless_somebody_relies_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text("in the way")
    assert signer_for(Documenting(home=tmp_path), Console()) is None
    assert "--no-provenance" in capsys.readouterr().err


@cases(
    "more locks",
    ("wanted and not wanted", {"enabled": False}, 1),
    ("one file for two images", {}, 2),
    ("no such directory", {"bom": Path("/nonexistent/x.json")}, 1),
)
def test_what_cannot_be_is_refused_before_the_build(
    tmp_path: Path, more: dict[str, Any], locks: int
) -> None:
    asked = {"home": tmp_path, "bom": tmp_path / "bom.json", **more}
    with pytest.raises(Failure) as caught:
        refuse_documents(Documenting(**asked), locks)
    assert caught.value.exit_code == 2
