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
from tests.kit.cases import cases

NO_ENGINE = "No container engine answers at the default socket."
NO_BUILDKIT = "No docker command here can drive BuildKit."
NEEDS = "the base has no Python, which apt-get has to bring"
REGISTRY = Destination(kind="registry", where="r.example/t:1")
LAYOUT = Destination(kind="layout", where="out")
FILE = Destination(kind="squashfs", where="out.sqfs")
ARCHIVE = Destination(kind="archive", where="out.tar")


@cases(
    "asked destination problem needs expected",
    ("an engine that is here builds for itself", "auto", None, None, None, ("docker", "engine")),
    ("without an engine the image lands in a layout", "auto", None, NO_ENGINE, None,
     ("oci", "local")),
    ("a registry needs no engine even where one is", "auto", REGISTRY, None, None,
     ("oci", "registry")),
    ("nor does a directory", "auto", LAYOUT, None, None, ("oci", "layout")),
    ("nor does a squashfs", "auto", FILE, None, None, ("oci", "squashfs")),
    ("nor does a file", "auto", ARCHIVE, NO_ENGINE, None, ("oci", "archive")),
    ("what must be run needs the engine", "auto", None, None, NEEDS, ("docker", "engine")),
    ("what must be run is pushed by the engine", "auto", REGISTRY, None, NEEDS,
     ("docker", "registry")),
    ("an engine can save what it built", "docker", ARCHIVE, None, None, ("docker", "archive")),
    ("who asks for docker hears from docker that it is not there", "docker", None, NO_ENGINE, None,
     ("docker", "engine")),
    ("an engine that cannot build is given the image", "auto", None, NO_BUILDKIT, None,
     ("oci", "engine")),
    ("without a place, the image goes to the engine that is here", "oci", None, None, None,
     ("oci", "engine")),
    ("without a place and an engine, into the layout", "oci", None, NO_ENGINE, None,
     ("oci", "local")),
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


@cases(
    "asked destination needs code",
    ("nothing is run without an engine", "oci", None, NEEDS, 5),
    ("an engine writes no layout", "docker", LAYOUT, None, 2),
    ("nor when the base needs it", "auto", LAYOUT, NEEDS, 2),
    ("an engine writes no squashfs", "docker", FILE, None, 2),
)
def test_what_cannot_be_is_said_with_a_way_out(
    asked: str, destination: Any, needs: str | None, code: int
) -> None:
    with pytest.raises(Failure) as caught:
        choose(asked, destination, engine=EngineState(answers=True), needs_engine=needs)
    assert caught.value.exit_code == code
    assert caught.value.fix


@cases(
    "output push expected",
    ("nothing asked", None, None, None),
    ("a directory is a layout", "dir", None, ("layout", "dir")),
    ("a tar is an archive", "a/b.tar", None, ("archive", "a/b.tar")),
    ("skopeo's word wins over the name", "oci:x.tar", None, ("layout", "x.tar")),
    ("skopeo's word for a layout", "oci:x", None, ("layout", "x")),
    ("one file that is the image", "x.sqfs", None, ("squashfs", "x.sqfs")),
    ("as enroot calls it", "x.sqsh", None, ("squashfs", "x.sqsh")),
    ("a squashfs of any name", "squashfs:x", None, ("squashfs", "x")),
    ("skopeo's word for an archive", "oci-archive:x", None, ("archive", "x")),
    ("a registry's tag has docker's default", None, "localhost:5000/t",
     ("registry", "localhost:5000/t:latest")),
)  # fmt: skip
def test_options_name_a_place(output: str | None, push: str | None, expected: Any) -> None:
    found = read_destination(output, push)
    assert (found and (found.kind, found.where)) == expected


@cases(
    "output push",
    ("both", "x", "r.example/t"),
    ("an empty path", "", None),
    ("a prefix alone", "oci:", None),
    ("no reference", None, "UPPER CASE"),
    ("a digest", None, f"r.example/t@sha256:{'0' * 64}"),
)
def test_what_names_no_place_is_bad_input(output: str | None, push: str | None) -> None:
    with pytest.raises(Failure) as caught:
        read_destination(output, push)
    assert caught.value.exit_code == 2


@cases(
    "kind place name",
    ("an engine's", "engine", "engine", "t:1"),
    ("an own image", "local", "/p", "t:1"),
    ("a layout's", "layout", "a b", "'oci:a b:t:1'"),
    ("an archive", "archive", "x.tar", "x.tar"),
    ("an archive of another name", "archive", "x", "oci-archive:x"),
    ("a squashfs", "squashfs", "x.sqfs", "x.sqfs"),
    ("a registry's", "registry", "r", "r/t:1"),
)
def test_what_is_typed_next_is_one_command_for_all(kind: Any, place: str, name: str) -> None:
    assert run_words(Destination(kind=kind, where="r/t:1"), place, "t:1") == f"provision run {name}"


@cases(
    "kind place says",
    ("an archive", "archive", "x", "docker load --input x && docker run "),
    ("a squashfs", "squashfs", "x.sqfs", "enroot start /"),
    ("a SIF file", "squashfs", "x.sif", "apptainer run --nv /"),
    ("a registry's", "registry", "r", "docker run --rm -it --gpus all "),
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


@cases(
    "kind reference apt expected",
    ("in an image", "registry", "python:3.11-slim", ("git",), ("git",)),
    ("beside Python", "registry", "nvidia/cuda:12", ("git",),
     ("python3", "python3-venv", "python3-dev", "git")),
    ("none", "registry", "python:3.11-slim", (), ()),
    ("in the base that is built here", "bootstrap", "bootstrap", ("git",), ()),
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
