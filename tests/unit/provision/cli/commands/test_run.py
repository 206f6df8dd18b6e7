"""`provision run`: its words, and what it asks of the engine that it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from images.engines.spec import Foreground, Port, RunJob
from images.system.errors import NoProgramError
from provision.cli.commands import run
from provision.cli.main import main
from provision.errors import BadInputError
from provision.model.plan import Gpu, HostFacts
from tests.kit.cases import cases


@cases(
    "text expected",
    ("the same number", "8000", Port(inside=8000, here=8000)),
    ("another number here", "8080:8000", Port(inside=8000, here=8080)),
    ("one address", "127.0.0.1:8080:8000/udp",
     Port(inside=8000, here=8080, address="127.0.0.1", protocol="udp")),
    ("of IPv6", "[::1]:80:8000", Port(inside=8000, here=80, address="::1")),
    ("no port has the number 0", "0:8000", None),
    ("nor one above 65535", "8000:70000", None),
    ("a word", "web", None),
)  # fmt: skip
def test_ports(text: str, expected: Port | None) -> None:
    if expected is None:
        with pytest.raises(BadInputError, match="--publish"):
            run.read_port(text)
    else:
        assert run.read_port(text) == expected


@cases(
    "text expected",
    ("written to", "{}:/data", "/data:rw"),
    ("only read", "{}:/data:ro", "/data:ro"),
    ("relative to this directory", "data:/x:rw", "/x:rw"),
    ("not an absolute path of the image", "{}:data", None),
    ("no path of the image", "{}", None),
    ("another mode", "{}:/data:rx", None),
    ("nothing is there", "{}/none:/data", None),
)
def test_volumes(
    text: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    if expected is None:
        with pytest.raises(BadInputError, match="--volume"):
            run.read_bind(text.format(place))
    else:
        assert str(run.read_bind(text.format(place))) == f"{place}:{expected}"


def test_variables_have_their_value_or_the_one_that_they_have_here() -> None:
    notes: list[str] = []
    found = run.read_environment(["A=b=c", "B", "C", "D="], {"B": "here"}, notes.append)
    assert found == {"A": "b=c", "B": "here", "D": ""}
    assert notes == ["--env C: it is not set here, so the command does not get it"]
    with pytest.raises(BadInputError, match="name of a variable"):
        run.read_environment(["1=2"], {}, notes.append)


class Engine:
    """An engine that has one image, and ends each command with a code."""

    name = "docker 1"

    def __init__(self, ending: int | Exception) -> None:
        self.ending = ending
        self.asked: list[tuple[RunJob, Foreground]] = []

    def has(self, name: str) -> bool:
        return name == "team/torch:1"

    def image_id(self, name: str) -> str:
        del name
        return "sha256:ab"

    def names(self) -> tuple[str, ...]:
        return ("team/torch:1",)

    def labels(self, image: str) -> dict[str, str]:
        del image
        return {}

    def emulates(self, image: str) -> bool:
        del image
        return False

    def attend(self, job: RunJob, front: Foreground, on_note: Any) -> int:
        del on_note
        self.asked.append((job, front))
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    found = Engine(3)
    monkeypatch.setattr("images.engines.runner.DockerRunner.connect", lambda **_: found)
    gpu = Gpu(name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0))
    facts = HostFacts(driver="535.104.05", arch="x86_64", gpus=(gpu, gpu))
    monkeypatch.setattr("provision.host.detect", lambda: facts)
    return found


def test_the_command_gets_gpus_and_memory_and_gives_its_exit_code(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "team/torch:1", "-e", "A=b", "-w", "/data", "--", "python", "-v", "--json"]
    assert main(words) == 3
    ((job, front),) = engine.asked
    assert (job.image, job.command) == ("sha256:ab", ("python", "-v", "--json"))
    assert (job.gpus, job.shm_bytes, dict(job.environment)) == ("runtime", 2 << 30, {"A": "b"})
    assert (front.directory, front.terminal) == ("/data", False)
    assert capfd.readouterr().out == ""


def test_without_a_command_it_is_the_images_own(engine: Engine) -> None:
    assert main(["run", "team/torch:1", "--shm", "4GiB"]) == 3
    ((job, _),) = engine.asked
    assert (job.command, job.shm_bytes) == ((), 4 << 30)


def test_a_missing_program_ends_as_in_a_shell(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.ending = NoProgramError("nosuch")
    assert main(["run", "team/torch:1", "--", "nosuch"]) == 127
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "error: The image has no program nosuch." in shown.err


@cases(
    "words said",
    ("a name that is near", ["team/torch:2"], "Did you mean team/torch:1?"),
    ("no such image", ["other"], "Build one (provision build"),
    ("a command without --", ["team/torch:1", "python"], "run team/torch:1 -- python"),
    ("an unknown engine", ["team/torch:1", "--engine", "lxc"], "docker, podman or sandbox"),
    ("a relative path", ["team/torch:1", "-w", "data"], "-w /workspace/data"),
    ("no project", ["team/torch:1", "--no-verify"], "about building a project"),
    ("a project's engine", [".", "--engine", "docker"], "where build puts it"),
)
def test_what_cannot_be_run_is_said_with_what_to_type(
    words: list[str], said: str, engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) != 0
    assert engine.asked == []
    shown = capfd.readouterr()
    assert shown.out == ""
    assert said in " ".join(shown.err.split())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, bool]]:
    """A project in this directory; what was built of it."""
    built: list[tuple[str, bool, bool]] = []

    def build(args: Any, console: Any, *, again: bool) -> tuple[dict[str, Any], int]:
        del console
        built.append((args.project, args.no_verify, again))
        return {"image": {"tag": "team/torch:1"}}, 0

    (tmp_path / "requirements.txt").write_text("torch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("provision.cli.commands.build.build_image", build)
    return built


@cases(
    "words built",
    ("tested once for its packages", ["."], (".", False, False)),
    ("or not at all", [".", "--no-verify"], (".", True, False)),
)
def test_a_project_is_built_and_its_image_runs(
    words: list[str],
    built: tuple[str, bool, bool],
    project: list[tuple[str, bool, bool]],
    engine: Engine,
) -> None:
    assert main(["run", *words, "--", "python", "train.py"]) == 3
    assert project == [built]
    ((job, _),) = engine.asked
    assert (job.image, job.command) == ("sha256:ab", ("python", "train.py"))


def test_a_project_whose_image_is_unfit_does_not_run(
    project: list[Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {"image": {"tag": "team/torch:1-unfit"}}
    monkeypatch.setattr("provision.cli.commands.build.build_image", lambda *_, **__: (account, 1))
    monkeypatch.setattr("provision.cli.render.build.describe_build", lambda _: "unfit")
    assert main(["run", "."]) == 1
    assert (project, engine.asked) == ([], [])
