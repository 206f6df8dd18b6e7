"""What podman is asked, and what is made of its answers; a script stands in its place."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from images.engines.docker_errors import EngineError, NoEngineError, NoGpuRuntimeError
from images.engines.podman import Podman
from images.engines.spec import RunJob
from images.errors import DiskFullError
from images.oci.sources import Image
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer

REFUSED = "Error: runc: error setting rlimit type {}: operation not permitted"
CRUN = "Error: crun: setrlimit `RLIMIT_{}`: Operation not permitted: OCI permission denied"
SCRIPT = r"""
import json, pathlib, sys
place = pathlib.Path(__file__).parent
words = sys.argv[1:]
asked = place / "asked"
with asked.open("a") as file:
    file.write(json.dumps(words) + "\n")
answers = json.loads((place / "answers").read_text())
if words[0] == "cp":
    (place / "copied.tar").write_bytes(sys.stdin.buffer.read())
if words[0] == "load":
    (place / "loaded.tar").write_bytes(pathlib.Path(words[-1]).read_bytes())
if words[:2] == ["image", "exists"]:
    sys.exit(0 if (place / "has").exists() else 1)
if words[:2] == ["image", "inspect"]:
    has = place / "has"
    print(has.read_text() if has.exists() else "")
    sys.exit(0 if has.exists() else 125)
if words[0] in ("load", "pull") and answers.get("gives", True):
    (place / "has").touch()
told = answers.get(words[0], [])
if told and isinstance(told[0], list):
    told, rest = told[0], told[1:]
    (place / "answers").write_text(json.dumps({**answers, words[0]: rest}))
code, out, err = told or (0, "", "")
print(out, end="")
print(err, end="", file=sys.stderr)
sys.exit(code)
"""


class Fake:
    """A podman that answers as configured, and records its calls."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.program = place / "podman"
        self.script(SCRIPT)
        self.program.chmod(0o755)
        self.answer()

    def script(self, text: str) -> None:
        self.program.write_text(f"#!{sys.executable} -IS\n{text}")

    def answer(self, **answers: Any) -> None:
        (self.place / "answers").write_text(json.dumps(answers))

    def asked(self, verb: str) -> list[list[str]]:
        lines = (self.place / "asked").read_text().splitlines()
        return [words for line in lines if (words := json.loads(line))[0] == verb]

    @property
    def podman(self) -> Podman:
        return Podman(str(self.program), "4.3.1", self.place)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def made() -> Image:
    return image([layer(entry("a", b"x")), layer(entry("b", b"y"), packed=True)])


def job(**fields: Any) -> RunJob:
    return RunJob(**{"image": f"sha256:{'a' * 64}", "command": ("python3", "-V"), **fields})


def run(fake: Fake, lines: list[str] | None = None, **fields: Any) -> Any:
    return fake.podman.run(job(**fields), (lines if lines is not None else []).append)


def test_a_run_is_made_started_and_removed(fake: Fake) -> None:
    fake.answer(start=[3, "out\n", "one\ntwo\n"])
    lines: list[str] = []
    result = run(
        fake, lines, gpus="runtime", files={"/run/x/e.json": b"{}"}, environment={"A": "1"}
    )
    assert (result.exit_code, result.stdout, result.stderr_tail) == (3, "out\n", "one\ntwo")
    assert lines == ["one", "two"]
    ((_, *create),) = fake.asked("create")
    name = create[create.index("--name") + 1]
    text = " ".join(create)
    assert "--network none --shm-size 1073741824" in text
    assert "--pull never" in text
    assert "--device nvidia.com/gpu=all --env A=1" in text
    assert text.endswith(f"{'a' * 64} python3 -V")
    assert "--gpus" not in create
    assert fake.asked("start") == [["start", "--attach", name]]
    assert [words[-1] for words in fake.asked("rm")] == [name]
    with tarfile.open(fake.place / "copied.tar") as tar:
        assert tar.getnames() == ["run/x/e.json"]


def test_no_gpu_is_asked_for_where_there_is_none(fake: Fake) -> None:
    run(fake)
    assert "--device" not in fake.asked("create")[0]


@cases(
    "refusals left notes",
    ("everything is granted", [], {"stack", "memlock"}, ()),
    ("runc refuses memlock", [REFUSED.format(8)], {"stack"}, ("memlock",)),
    ("crun refuses memlock", [CRUN.format("MEMLOCK")], {"stack"}, ("memlock",)),
    ("both are refused", [REFUSED.format(3), REFUSED.format(8)], set(), ("stack", "memlock")),
    ("podman's own number of files is refused", [REFUSED.format(7)],
     {"stack", "memlock", "nofile", "nproc"}, ()),
    ("nothing at all may be set", [REFUSED.format(7), REFUSED.format(6)], set(),
     ("stack", "memlock")),
)  # fmt: skip
def test_limits_that_are_refused_are_left_out(
    fake: Fake, refusals: list[str], left: set[str], notes: tuple[str, ...]
) -> None:
    fake.answer(start=[*([126, "", text] for text in refusals), [0, "done", ""]])
    lines: list[str] = []
    result = run(fake, lines)
    assert result.stdout == "done"
    last = fake.asked("create")[-1]
    asked = {last[i + 1].partition("=")[0] for i, word in enumerate(last) if word == "--ulimit"}
    assert asked == left
    assert [note.split(":")[0] for note in result.notes] == [f"ulimit {name}" for name in notes]
    assert lines == []  # a person need not read what was tried
    assert len(fake.asked("rm")) == len(refusals) + 1


@cases(
    "answers error fix",
    ("no CDI specification",
     {"create": [125, "", "Error: setting up CDI devices: unresolvable CDI devices nvidia"]},
     NoGpuRuntimeError, "nvidia-ctk cdi generate"),
    ("no such program", {"start": [127, "", "Error: exec: nosuch: not found"]}, EngineError,
     "podman info"),
    ("a limit that we do not know, refused for ever", {"start": [126, "", REFUSED.format(9)] },
     EngineError, "podman info"),
    ("files cannot be put in", {"cp": [1, "", "Error: no space"]}, EngineError, "podman info"),
)  # fmt: skip
def test_what_does_not_start_is_said_and_removed(
    fake: Fake, answers: dict[str, Any], error: type[Exception], fix: str
) -> None:
    fake.answer(**answers)
    with pytest.raises(error) as caught:
        run(fake, files={"/x": b""})
    assert fix in caught.value.fix  # type: ignore[attr-defined]
    assert fake.asked("rm")


def test_a_command_that_fails_as_podman_does_is_a_result(fake: Fake) -> None:
    fake.answer(start=[125, "a report", ""])
    assert run(fake).exit_code == 125


def test_a_run_beyond_its_time_is_removed(fake: Fake) -> None:
    script = SCRIPT.replace(
        "told = answers", "import time\nwords[0] == 'start' and time.sleep(30)\ntold = answers"
    )
    fake.script(script)
    with pytest.raises(EngineError, match="timed out"):
        run(fake, timeout_s=0.5)
    assert fake.asked("rm")


def test_an_image_is_loaded_once_named_and_removed(fake: Fake) -> None:
    one = made()
    podman, told = fake.podman, []  # type: ignore[var-annotated]
    handle = podman.prepare(one, told.append, name="team/x:1")
    assert handle == one.image_id
    assert sum(told) == sum(layer.blob.size for layer in one.layers)
    with tarfile.open(fake.place / "loaded.tar") as tar:
        about = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
    (holder,) = about[0]["RepoTags"]
    podman.prepare(one, told.append)
    assert len(fake.asked("load")) == 1
    assert fake.asked("tag") == [["tag", handle.removeprefix("sha256:"), "team/x:1"]]
    podman.remove(handle)
    podman.remove(handle)
    assert fake.asked("rmi") == [["rmi", holder]]
    assert sorted(path.name for path in fake.place.iterdir() if path.is_dir()) == []


def test_an_image_that_was_there_before_is_not_removed(fake: Fake) -> None:
    (fake.place / "has").write_text("docker.io/team/x:1")
    podman = fake.podman
    podman.remove(podman.prepare(made(), lambda _: None))
    assert not any(fake.asked(verb) for verb in ("rmi", "tag", "load"))


def test_an_image_of_another_run_is_held_too(fake: Fake) -> None:
    (fake.place / "has").write_text("localhost/gpu-provision-in-use:0011")
    podman = fake.podman
    handle = podman.prepare(made(), lambda _: None)
    ((_, tagged, holder),) = fake.asked("tag")
    assert tagged == handle.removeprefix("sha256:")
    podman.remove(handle)
    assert fake.asked("rmi") == [["rmi", holder]]
    assert fake.asked("load") == []


def test_an_image_that_podman_can_read_itself_is_not_written_again(fake: Fake) -> None:
    fake.podman.prepare(made(), lambda _: None, source="oci:/d:x")
    assert fake.asked("pull") == [["pull", "--quiet", "oci:/d:x"]]
    assert "load" not in (fake.place / "asked").read_text().split('"')


def test_another_image_than_the_one_meant_is_refused(fake: Fake) -> None:
    fake.answer(gives=False)
    with pytest.raises(EngineError, match="does not list the image"):
        fake.podman.prepare(made(), lambda _: None, source="oci:/d:x")


def test_a_full_disk_is_said(fake: Fake) -> None:
    fake.answer(load=[125, "", "Error: write: no space left on device"])
    with pytest.raises(DiskFullError):
        fake.podman.prepare(made(), lambda _: None)


@pytest.mark.parametrize(
    ("answer", "version"),
    [([0, "4.3.1\n", ""], "podman 4.3.1"), ([0, "5.0.0-rc1\n", ""], "podman 5.0.0-rc1")],
)
def test_podman_is_found(
    fake: Fake, answer: list[Any], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake.place), prepend=":")
    fake.answer(info=answer, run=[127, "", "not found"])
    assert Podman.connect().name == version


@cases(
    "answers serves",
    ("it gets as far as the program", [[127, "", "not found"]], True),
    ("with the limits that we have", [[126, "", CRUN.format("NPROC")], [127, "", ""]], True),
    ("no limits are granted", [[126, "", CRUN.format("NPROC")]] * 2, False),
    ("podman itself refuses", [[125, "", "Error: no network"]] * 2, False),
)
def test_a_podman_that_starts_nothing_is_told_before_an_image_is_loaded(
    fake: Fake,
    answers: list[Any],
    serves: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(fake.place), prepend=":")
    fake.answer(info=[0, "4.3.1", ""], run=answers)
    if serves:
        Podman.connect()
    else:
        with pytest.raises(NoEngineError, match="cannot start a container: Error"):
            Podman.connect()
    assert len(fake.asked("run")) == len(answers)


@pytest.mark.parametrize("answer", [[125, "", "cannot find newuidmap"], [0, "", ""]])
def test_a_podman_that_cannot_work_is_said(
    fake: Fake, answer: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake.place), prepend=":")
    fake.answer(info=answer)
    with pytest.raises(NoEngineError, match="not usable on this host"):
        Podman.connect()


def test_no_podman_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoEngineError, match="not installed") as caught:
        Podman.connect()
    assert "apt-get install" in caught.value.fix
