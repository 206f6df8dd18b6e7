"""Where an image goes, and who makes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import Failure
from images.system.process import ToolMissing
from provision.build.builder import BuildEngine, choose_builder, find_engine, needs_engine
from provision.build.destination import Destination, EngineState, choose, read_destination
from provision.build.job import build
from provision.build.next_commands import elsewhere_words, run_words
from provision.build.packing import Making
from provision.build.pipeline import apt_packages
from provision.errors import BadInputError
from provision.model.plan import Base, Plan

NO_ENGINE = "No container engine answers at the default socket."
NO_BUILDKIT = "No docker command here can drive BuildKit."
NEEDS = "the base has no Python, which apt-get has to bring"
REGISTRY = Destination(kind="registry", where="r.example/t:1")
LAYOUT = Destination(kind="layout", where="out")
FILE = Destination(kind="squashfs", where="out.sqfs")
ARCHIVE = Destination(kind="archive", where="out.tar")


@pytest.mark.parametrize(
    ("asked", "destination", "problem", "needs", "expected"),
    [
        pytest.param("auto", None, None, None, ("docker", "engine"),
                     id="an engine that is here builds for itself"),
        pytest.param("auto", None, NO_ENGINE, None, ("oci", "local"),
                     id="without an engine the image lands in a layout"),
        pytest.param("auto", REGISTRY, None, None, ("oci", "registry"),
                     id="a registry needs no engine even where one is"),
        pytest.param("auto", LAYOUT, None, None, ("oci", "layout"), id="nor does a directory"),
        pytest.param("auto", FILE, None, None, ("oci", "squashfs"), id="nor does a squashfs"),
        pytest.param("auto", ARCHIVE, NO_ENGINE, None, ("oci", "archive"), id="nor does a file"),
        pytest.param("auto", None, None, NEEDS, ("docker", "engine"),
                     id="what must be run needs the engine"),
        pytest.param("auto", REGISTRY, None, NEEDS, ("docker", "registry"),
                     id="what must be run is pushed by the engine"),
        pytest.param("docker", ARCHIVE, None, None, ("docker", "archive"),
                     id="an engine can save what it built"),
        pytest.param("docker", None, NO_ENGINE, None, ("docker", "engine"),
                     id="who asks for docker hears from docker that it is not there"),
        pytest.param("auto", None, NO_BUILDKIT, None, ("oci", "engine"),
                     id="an engine that cannot build is given the image"),
        pytest.param("oci", None, None, None, ("oci", "engine"),
                     id="without a place, the image goes to the engine that is here"),
        pytest.param("oci", None, NO_ENGINE, None, ("oci", "local"),
                     id="without a place and an engine, into the layout"),
    ],
)  # fmt: skip
def test_who_makes_it_and_where_it_goes(
    asked: str, destination: Any, problem: str | None, needs: str | None, expected: Any
) -> None:
    answers = problem in {None, NO_BUILDKIT}
    choice = choose(
        asked, destination, engine=EngineState(answers=answers, problem=problem), needs_engine=needs
    )
    assert (choice.builder, choice.destination.kind) == expected
    assert choice.why


@pytest.mark.parametrize(
    ("asked", "destination", "needs", "code"),
    [
        pytest.param("oci", None, NEEDS, 5, id="nothing is run without an engine"),
        pytest.param("docker", LAYOUT, None, 2, id="an engine writes no layout"),
        pytest.param("auto", LAYOUT, NEEDS, 2, id="nor when the base needs it"),
        pytest.param("docker", FILE, None, 2, id="an engine writes no squashfs"),
    ],
)
def test_what_cannot_be_is_said_with_a_way_out(
    asked: str, destination: Any, needs: str | None, code: int
) -> None:
    with pytest.raises(Failure) as caught:
        choose(asked, destination, engine=EngineState(answers=True), needs_engine=needs)
    assert caught.value.exit_code == code
    assert caught.value.fix


@pytest.mark.parametrize(
    ("output", "push", "expected"),
    [
        pytest.param(None, None, None, id="nothing asked"),
        pytest.param("dir", None, ("layout", "dir"), id="a directory is a layout"),
        pytest.param("a/b.tar", None, ("archive", "a/b.tar"), id="a tar is an archive"),
        pytest.param("oci:x.tar", None, ("layout", "x.tar"), id="skopeo's word wins over the name"),
        pytest.param("oci:x", None, ("layout", "x"), id="skopeo's word for a layout"),
        pytest.param("x.sqfs", None, ("squashfs", "x.sqfs"), id="one file that is the image"),
        pytest.param("x.sqsh", None, ("squashfs", "x.sqsh"), id="as enroot calls it"),
        pytest.param("squashfs:x", None, ("squashfs", "x"), id="a squashfs of any name"),
        pytest.param("oci-archive:x", None, ("archive", "x"), id="skopeo's word for an archive"),
        pytest.param(None, "localhost:5000/t", ("registry", "localhost:5000/t:latest"),
                     id="a registry's tag has docker's default"),
    ],
)  # fmt: skip
def test_options_name_a_place(output: str | None, push: str | None, expected: Any) -> None:
    found = read_destination(output, push)
    assert (found and (found.kind, found.where)) == expected


@pytest.mark.parametrize(
    ("output", "push"),
    [
        pytest.param("x", "r.example/t", id="both"),
        pytest.param("", None, id="an empty path"),
        pytest.param("oci:", None, id="a prefix alone"),
        pytest.param(None, "UPPER CASE", id="no reference"),
        pytest.param(None, f"r.example/t@sha256:{'0' * 64}", id="a digest"),
    ],
)
def test_what_names_no_place_is_bad_input(output: str | None, push: str | None) -> None:
    with pytest.raises(Failure) as caught:
        read_destination(output, push)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        pytest.param("engine", "engine", "t:1", id="an engine's"),
        pytest.param("local", "/p", "t:1", id="an own image"),
        pytest.param("layout", "a b", "'oci:a b:t:1'", id="a layout's"),
        pytest.param("archive", "x.tar", "x.tar", id="an archive"),
        pytest.param("archive", "x", "oci-archive:x", id="an archive of another name"),
        pytest.param("squashfs", "x.sqfs", "x.sqfs", id="a squashfs"),
        pytest.param("registry", "r", "r/t:1", id="a registry's"),
    ],
)
def test_what_is_typed_next_is_one_command_for_all(kind: Any, place: str, name: str) -> None:
    assert run_words(Destination(kind=kind, where="r/t:1"), place, "t:1") == f"provision run {name}"


@pytest.mark.parametrize(
    ("kind", "place", "says"),
    [
        pytest.param("archive", "x", "docker load --input x && docker run ", id="an archive"),
        pytest.param("squashfs", "x.sqfs", "enroot start /", id="a squashfs"),
        pytest.param("squashfs", "x.sif", "apptainer run --nv /", id="a SIF file"),
        pytest.param("registry", "r", "docker run --rm -it --gpus all ", id="a registry's"),
    ],
)
def test_other_machines_need_no_gpu_provision(kind: Any, place: str, says: str) -> None:
    words = elsewhere_words(Destination(kind=kind, where="r/t:1"), place, "t:1")
    assert words.startswith(says)


def test_an_engine_without_buildkit_is_refused_where_it_has_to_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("images.engines.runner.DockerRunner.connect", lambda fix: fix)
    monkeypatch.setattr("provision.build.builder.needs_engine", lambda plan: plan.why)
    job: Any = SimpleNamespace(
        builder="auto",
        destination=None,
        dry_run=False,
        making=Making(),
        settings=SimpleNamespace(env={"PATH": "/nonexistent"}, unpacked=None),
    )
    found = find_engine(job)
    assert found.engine is not None
    assert choose_builder(job, found, [plan(None)])[0].destination.kind == "engine"
    with pytest.raises(Failure) as caught:
        choose_builder(job, found, [plan(NEEDS)])
    assert caught.value.code == "no-buildkit"


@pytest.mark.parametrize(
    ("kind", "reference", "apt", "expected"),
    [
        pytest.param("registry", "python:3.11-slim", ("git",), ("git",), id="in an image"),
        pytest.param("registry", "nvidia/cuda:12", ("git",),
                     ("python3", "python3-venv", "python3-dev", "git"), id="beside Python"),
        pytest.param("registry", "python:3.11-slim", (), (), id="none"),
        pytest.param("bootstrap", "bootstrap", ("git",), (), id="in the base that is built here"),
    ],
)  # fmt: skip
def test_an_engine_installs_debian_packages_in_an_image(
    kind: Any, reference: str, apt: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    base = Base(kind=kind, reference=reference, python="3.11", glibc=None, apt=apt)
    made = Plan(verdict="direct", framework="pytorch", base=base)
    assert apt_packages(made) == expected
    assert (needs_engine(made) is not None) == bool(expected)


def test_debian_packages_in_an_image_without_an_engine_name_what_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("images.engines.runner.DockerRunner.connect", lambda fix: fix)
    job: Any = SimpleNamespace(
        builder="auto", destination=None, dry_run=False, making=Making(),
        settings=SimpleNamespace(env={"PATH": "/nonexistent"}, unpacked=None),
    )  # fmt: skip
    base = Base(kind="registry", reference="python:3", python="3.11", glibc=None, apt=("git",))
    with pytest.raises(Failure) as caught:
        choose_builder(
            job, find_engine(job), [Plan(verdict="direct", framework="pytorch", base=base)]
        )
    assert caught.value.message.startswith("python:3 needs git from apt-get, which an engine runs.")
    assert caught.value.fix.startswith("Use --base bootstrap, which needs none. ")


def plan(why: str | None) -> Any:
    return SimpleNamespace(base=None, why=why)


def test_a_missing_writer_is_said_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def touched(*_: object) -> Any:
        raise AssertionError("something was done before")

    monkeypatch.setenv("PATH", str(tmp_path))
    job: Any = SimpleNamespace(
        making=Making(), dry_run=False, destination=FILE, locks=[tmp_path / "none"]
    )
    with pytest.raises(ToolMissing, match="tar2sqfs"):
        build(job, hosts=touched, facts=touched, console=touched)  # type: ignore[arg-type]


def test_several_locks_are_no_squashfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.build.builder.needs_engine", lambda plan: plan.why)
    job: Any = SimpleNamespace(
        making=Making(),
        builder="auto",
        destination=FILE,
        dry_run=True,
        settings=SimpleNamespace(unpacked=None),
    )
    with pytest.raises(BadInputError, match="a squashfs is one image"):
        choose_builder(job, BuildEngine(), [plan(None), plan(None)])
