"""A name that is nowhere: it is said first that there is no such thing, where it was looked for,
and what is like it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from images.text.suggestions import alike, did_you_mean, no_such, or_nearby
from tests.kit.cases import cases
from tests.kit.oci_images import a_tar, write_image
from tests.unit.provision.cli.test_cli import RTX, Said, main

# --- what is alike ------------------------------------------------------------------------------


@cases(
    "wanted known found",
    ("letters changed places", "run.lgo", ["run.log", "train.log"], ["run.log"]),
    ("a letter is missing", "ru.log", ["run.log", "train.log"], ["run.log"]),
    ("the same ending is no likeness", "nosuch.json", ["host.json"], []),
    ("in capitals", "RUN.LOG", ["run.log"], ["run.log"]),
    ("the beginning of a name", "run", ["run.log", "other"], ["run.log"]),
    ("without its tag", "torch", ["torch:1", "torch:2"], ["torch:1", "torch:2"]),
    ("an image's name", "team/torhc:1", ["team/torch:1", "x"], ["team/torch:1"]),
    ("nothing alike", "a", ["b", "c"], []),
    ("no name", "", ["run.log"], []),
    ("too many", "x", [f"x{i}" for i in range(9)], ["x0", "x1", "x2"]),
)
def test_names_that_are_alike_are_found(wanted: str, known: list[str], found: list[str]) -> None:
    assert alike(wanted, known) == found


def test_a_question_names_them() -> None:
    assert did_you_mean(["a"]) == "Did you mean a?"
    assert did_you_mean(["a", "b"]) == "Did you mean a or b?"
    assert did_you_mean([]) == ""


def test_files_are_named_as_they_would_be_typed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").touch()
    (tmp_path / "logs" / ".run.log.swp").touch()
    typed = f"{tmp_path}/logs/rnu.log"
    assert or_nearby(typed, "otherwise") == f"Did you mean {tmp_path}/logs/run.log?"
    assert or_nearby(typed, "otherwise", keep=Path.is_dir) == "otherwise"
    assert no_such("log", typed) == f"There is no log {typed}."


def test_a_directory_that_is_missing_is_said(tmp_path: Path) -> None:
    said = no_such("lock", f"{tmp_path}/nowhere/pylock.toml")
    assert said.endswith(f"the directory {tmp_path}/nowhere does not exist.")
    assert or_nearby(f"{tmp_path}/nowhere/pylock.toml", "otherwise") == "otherwise"


# --- every command ------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a few files, an image of one's own, and no engine."""
    work = tmp_path / "work"
    work.mkdir()
    for name in ("run.log", "requirements.txt", "report.json", "key.pem"):
        (work / name).write_text("x\n")
    (work / "host.json").write_text(RTX)
    (work / "pylock.toml").write_text("x\n")
    (work / "image.tar").write_bytes(a_tar({"a": b"a"}))
    (work / "torch-2.0.1-py3-none-any.whl").write_bytes(b"PK")
    (work / "machine.tar.gz").write_bytes(b"x")
    (work / "empty").mkdir()
    own = tmp_path / "data" / "gpu-provision" / "images"
    with closing(LayoutTarget.open(own)) as target:
        target.publish(write_image(target), MANIFEST, name="team/torch:cu117")
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    return tmp_path


FILES = [
    (["plan", "--host", "hots.json"], "There is no host file hots.json.", "host.json"),
    (["plan", "--ca-bundle", "kye.pem"], "--ca-bundle kye.pem: there is no such file.", "key.pem"),
    (["lock", "--base", "oci-archive:imgae.tar"], "There is no file ", "image.tar"),
    (["lock", "--base", "oci:emtpy"], "There is no directory ", "empty"),
    (["build", "--lock", "pylok.toml"], "There is no lock pylok.toml.", "pylock.toml"),
    (["build", "--dry-run", "--lock", "pylok.toml"], "There is no lock", "pylock.toml"),
    (["build", "--dry-run", "--base", "oci:emtpy"], "There is no directory ", "empty"),
    (["build", "--dry-run", "--cache-from", "oci:emtpy"], "There is no directory emtpy.", "empty"),
    (["inspect", "imgae.tar"], "There is no file imgae.tar.", "image.tar"),
    (["inspect", "./imgae.tar"], "There is no file imgae.tar.", "image.tar"),
    (["inspect", "oci-archive:imgae.tar"], "There is no file imgae.tar.", "image.tar"),
    (["inspect", "torch-2.0.1-py3.whl"], "There is no wheel ", "torch-2.0.1-py3-none-any.whl"),
    (["verify", "imgae.tar"], "There is no file imgae.tar.", "image.tar"),
    (["verify", "oci:emtpy"], "There is no directory emtpy.", "empty"),
    (
        ["verify", "x", "--baseline", "reprot.json"],
        "reprot.json: there is no such file.",
        "report.json",
    ),
    (["verify", "x", "--key", "kye.pem"], "There is no key", "key.pem"),
    (
        ["verify", "x", "--check-record", "reprot.json"],
        "--check-record reprot.json: there is no such file.",
        "report.json",
    ),
    (
        ["verify", "x", "--trust", "kye.pem", "--check-record"],
        "--trust kye.pem: there is no such file.",
        "key.pem",
    ),
    (
        ["verify", "x", "--check-provenance", "reprot.json"],
        "--check-provenance reprot.json: there is no such file.",
        "report.json",
    ),
    (["verify", "x", "--check-provenance", "--lock", "pylok.toml"], "no lock", "pylock.toml"),
    (["doctor", "rnu.log"], "There is no file rnu.log.", "run.log"),
    (["doctor", "run.lgo"], "There is no file run.lgo.", "run.log"),
    (["doctor", "./rnu.log"], "There is no file ./rnu.log.", "run.log"),
    (["doctor", "requirement.txt"], "There is no file requirement.txt.", "requirements.txt"),
    (["doctor", "--log", "rnu.log"], "There is no file rnu.log.", "run.log"),
    (["doctor", "--bundle", "machin.tar.gz"], "There is no bundle", "machine.tar.gz"),
    (["doctor", "--undo", "reprot.json"], "There is no journal", "report.json"),
    (["catalog", "measure", "torch-2.0.1-py3.whl"], "There is no wheel", "torch-2.0.1-py3-none"),
]


@pytest.mark.parametrize(
    ("words", "message", "near"), FILES, ids=[" ".join(words) for words, _, _ in FILES]
)
@pytest.mark.usefixtures("here")
def test_a_file_that_is_not_there_is_said_first(words: list[str], message: str, near: str) -> None:
    said = main(*words)
    assert said.code == 2, said.err
    assert message in said.err
    assert "Did you mean " in said.err
    assert near in said.err
    assert "dockerd" not in said.err
    assert "detect " not in said.err


def is_about_an_image(said: Said, name: str) -> None:
    assert said.code == 5, said.err
    assert f" {name}: it is not among the images built here, and no container engine" in said.err
    assert "dockerd" not in said.err


@pytest.mark.parametrize(
    "words", [["verify"], ["doctor"], ["verify", "--json"]], ids=["verify", "doctor", "as JSON"]
)
@pytest.mark.usefixtures("here")
def test_an_image_that_is_nowhere_is_said_first(words: list[str]) -> None:
    is_about_an_image(main(*words, "nosuchimage"), "nosuchimage")


@pytest.mark.usefixtures("here")
def test_an_image_of_ones_own_is_meant() -> None:
    for words in (["verify"], ["verify", "--check-record"], ["doctor"]):
        said = main(words[0], "team/torhc:cu117", *words[1:])
        is_about_an_image(said, "team/torhc:cu117")
        assert "Did you mean team/torch:cu117?" in said.err


@pytest.mark.parametrize("name", ["docker-daemon:nosuch", "sha256:abcdefabcdef"])
@pytest.mark.usefixtures("here")
def test_an_image_that_only_an_engine_may_have(name: str) -> None:
    said = main("verify", name)
    assert said.code == 5
    assert f"There is no image {name.removeprefix('docker-daemon:')}: no container" in said.err


@pytest.mark.parametrize(
    ("name", "kind"), [("run.log", "file"), ("empty", "directory")], ids=["a file", "a directory"]
)
@pytest.mark.usefixtures("here")
def test_what_is_there_and_is_no_image(name: str, kind: str) -> None:
    said = main("verify", name)
    assert said.code == 2
    assert f"The {kind} {name} does not hold an image." in said.err


@pytest.mark.usefixtures("here")
def test_a_log_that_is_inspected_is_neither_image_nor_wheel() -> None:
    said = main("inspect", "run.log")
    assert said.code == 2
    assert "run.log is neither an image nor a wheel." in said.err


@pytest.mark.usefixtures("here")
def test_a_bare_name_is_not_here_whatever_the_registry_says() -> None:
    said = main("inspect", "team/torhc:cu117", "--offline")
    assert said.code == 5
    assert "error: There is no image team/torhc:cu117 on this machine." in said.err
    assert "Did you mean team/torch:cu117?" in said.err
    assert "--base" not in said.err
