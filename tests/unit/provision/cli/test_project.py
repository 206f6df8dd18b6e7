"""`provision lock DIR` and `build DIR`, as typed: uv is real, the index and the base are local."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provision.build.project import import_check
from provision.cli import main as cli
from provision.errors import Exit
from provision.lock.lockfile import read_lock_file
from tests.kit.cases import cases
from tests.kit.local_index import NUMPY, LocalIndex, pure, serving_uv, torch
from tests.kit.projects import base_layout, project

HOST = '{"driver": "535.104.05", "arch": "x86_64", "gpus": [{"name": "NVIDIA A100-SXM4-80GB"}]}'
APP = """\
[project]
name = "Chat"
requires-python = "==3.11.*"
dependencies = ["torch==2.0.1", "peft", "numpy<2"]
[project.scripts]
chat = "chat.main:run"
[build-system]
requires = ["hatchling"]
"""
PEFT = [pure("peft", "0.1"), pure("peft", "0.2", "tool"), pure("tool", "1.0"), pure("tool", "2.0")]


@dataclass
class Machine:
    """A machine with the index, a project and a base; `said` is stderr of the last command."""

    root: Path
    index: LocalIndex
    capsys: pytest.CaptureFixture[str]
    said: str = field(default="")

    def run(self, verb: str, *words: str, code: int = Exit.DONE) -> dict[str, Any]:
        """A command with --json; the directory of the project is "app"."""
        ended = cli.main([verb, *words, "--json"])
        captured = self.capsys.readouterr()
        self.said = " ".join(captured.err.split())
        assert ended == code, self.said
        found: dict[str, Any] = json.loads(captured.out)
        return found

    def lock(self, *words: str, code: int = Exit.DONE) -> dict[str, Any]:
        return self.run("lock", *self._common, *words, code=code)

    def build(self, *words: str, code: int = Exit.DONE) -> dict[str, Any]:
        return self.run("build", *self._common, "--no-verify", *words, code=code)

    @property
    def _common(self) -> tuple[str, ...]:
        return ("--host", str(self.root / "host.json"), *self.base, "--index", self.url)

    @property
    def base(self) -> tuple[str, ...]:
        return ("--base", f"oci:{self.root / 'base'}:base")

    @property
    def url(self) -> str:
        return self.index.url("simple")


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Machine]:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    project(tmp_path, {"host.json": HOST})
    project(tmp_path / "app", {"pyproject.toml": APP, "src/chat/main.py": "def run(): pass\n"})
    base_layout(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    with serving_uv(monkeypatch, tmp_path) as server:
        server.more = [pure("pip", "26.0"), torch("+cu117"), torch("+cu118"), NUMPY, *PEFT]
        yield Machine(tmp_path, server, capsys)


def versions(machine: Machine, name: str = "pylock.toml") -> dict[str, str]:
    lock = read_lock_file(machine.root / name)
    return {one.name: one.version for one in lock.wheels}


def test_a_pyproject_is_locked_with_its_pins(machine: Machine) -> None:
    account = machine.lock("app")
    assert {k: v for k, v in versions(machine).items() if k in {"torch", "peft", "numpy"}} == {
        "torch": "2.0.1+cu117",
        "peft": "0.2",
        "numpy": "1.26.4",
    }
    assert account["plan"]["python"] == "3.11"
    assert "The packages are those of pyproject.toml." in machine.said
    assert {"code": "project-read", "message": "The packages are those of pyproject.toml."} in (
        account["plan"]["notes"]
    )


def test_a_plan_is_that_of_the_lock(machine: Machine) -> None:
    """The same release, CUDA and Python as `lock` takes; a refusal names the line."""
    host = ("--host", str(machine.root / "host.json"))
    locked = machine.lock("app")["plan"]
    planned = machine.run("plan", "app", *host, "--index", machine.url, *machine.base)
    same = ("framework", "cuda", "wheel_tag", "python", "verdict")
    assert {key: planned[key] for key in same} == {key: locked[key] for key in same}
    project(machine.root / "app", {"gpu.txt": "# for the cluster\ntorch==1.0.1\n"})
    refused = machine.run("plan", "app/gpu.txt", *host, code=Exit.NOTHING_COMPATIBLE)
    assert "The project requires: gpu.txt, line 2: torch==1.0.1." in refused["error"]["message"]


def test_constraints_hold_for_what_packages_need(machine: Machine) -> None:
    files = {"requirements.txt": "torch==2.0.1\npeft\n-c limits.txt\n", "limits.txt": "tool<2\n"}
    project(machine.root / "app", files)
    machine.lock("app")
    assert versions(machine)["tool"] == "1.0"


def test_a_uv_lock_holds_as_a_whole(machine: Machine) -> None:
    registry = f'{{ registry = "{machine.url}" }}'
    rows = "".join(
        f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {registry}\n'
        for name, version in {
            "torch": "2.0.1", "peft": "0.2", "tool": "1.0", "numpy": "1.26.4",
            "nvidia-cudnn-cu12": "9.9",
        }.items()
    )  # fmt: skip
    own = '[[package]]\nname = "chat"\nsource = { editable = "." }\n'
    own += 'dependencies = [{ name = "torch" }, { name = "peft" }]\n'
    project(
        machine.root / "app", {"uv.lock": f'version = 1\nrequires-python = "==3.11.*"\n{own}{rows}'}
    )
    account = machine.lock("app")
    found = versions(machine)
    assert (found["peft"], found["tool"]) == ("0.2", "1.0")
    assert account["plan"]["requirements"][-1] == "peft==0.2"
    assert "choosing the releases" not in machine.said


def test_the_code_is_the_last_layer_and_the_only_one_that_a_change_sends(machine: Machine) -> None:
    (machine.root / "app/.env").write_text("KEY=1")
    first = machine.build("app", "--builder", "oci", "--output", "app/image")
    assert "likely secrets: .env" in machine.said
    assert first["project"]["command"] == ["chat"]
    assert first["project"]["declared_in"] == "pyproject.toml"
    assert first["project"]["files"] == 2
    assert first["image"]["tag"].startswith("chat:pytorch2.0.1-cu117")
    again = machine.build("app", "--builder", "oci", "--output", "app/image")
    assert again["image"]["digest"] == first["image"]["digest"]
    (machine.root / "app/src/chat/main.py").write_text("def run(): print(1)\n")
    second = machine.build("app", "--builder", "oci", "--output", "app/image")
    before, after = first["image"]["layers"], second["image"]["layers"]
    assert [one["digest"] for one in after[:-1]] == [one["digest"] for one in before[:-1]]
    assert after[-1]["title"] == "project chat"
    assert [one["how"] for one in after] == ["there"] * (len(after) - 1) + ["written"]
    config = config_of(machine.root / "app/image", second["image"]["image_id"])
    assert (config["WorkingDir"], config["Cmd"]) == ("/app", ["chat"])


def test_no_code_of_the_project_runs(machine: Machine) -> None:
    """Neither its modules nor what other tools would run: build backends, hooks, settings."""
    canary = machine.root / "canary"
    evil = f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n"
    names = ("setup.py", "conftest.py", "sitecustomize.py", "usercustomize.py", "backend.py")
    code = dict.fromkeys((*names, "torch.py", "src/chat/__init__.py"), evil)
    project(
        machine.root / "app",
        {
            **code,
            "src/chat/main.py": f"{evil}def run(): pass\n",
            "evil.pth": evil,
            "pyproject.toml": APP.replace('["hatchling"]', "[]")
            + 'build-backend = "backend"\nbackend-path = ["."]\n',
            "setup.cfg": "[metadata]\nversion = attr: chat.version\n",
            ".envrc": f"touch {canary}\n",
            "Makefile": f"all := $(shell touch {canary})\n",
            ".git/config": f"[core]\nfsmonitor = touch {canary}\n",
            ".git/HEAD": "ref: refs/heads/main\n",
        },
    )
    machine.lock("app")
    found = machine.build("app", "--builder", "oci", "--output", "image")
    assert found["project"]["files"] >= len(code)
    assert not canary.exists()


def config_of(layout: Path, image_id: str) -> dict[str, Any]:
    blob = layout / "blobs/sha256" / image_id.removeprefix("sha256:")
    found: dict[str, Any] = json.loads(blob.read_bytes())["config"]
    return found


def test_a_lock_decides_the_packages_and_the_directory_gives_the_code(machine: Machine) -> None:
    machine.lock("app")
    (machine.root / "app/pyproject.toml").write_text(APP.replace('"peft"', '"other"'))
    words = ("app", "--lock", "pylock.toml", "--builder", "oci", "--output", "image")
    machine.run("build", *words, "--dry-run")
    assert re.search(r"PyTorch \S+ for CUDA 11.7, Python .* packages, [0-9.]+ [GM]B", machine.said)
    built = machine.run("build", *words, "--no-verify", "--no-provenance")
    assert built["project"]["command"] == ["chat"]
    assert built["project"]["declared_in"] is None
    assert [one["title"] for one in built["image"]["layers"]][-1] == "project chat"


def test_without_a_directory_nothing_of_it_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine.root / "app")
    words = ("--cuda", "11.7", "--python", "3.11", "--builder", "oci")
    built = machine.build(*words, "--output", str(machine.root / "image"))
    assert "project" not in built
    config = config_of(machine.root / "image", built["image"]["image_id"])
    assert (config["WorkingDir"], config["Cmd"]) == ("/workspace", ["python3"])


@cases(
    "files words code said",
    ("another release", {}, ["--framework-version", "2.1.0"], 2,
     ["--framework-version 2.1.0 contradicts pyproject.toml, line 4", "torch==2.0.1"]),
    ("another Python", {}, ["--python", "3.12"], 2,
     ["--python 3.12 contradicts pyproject.toml, line 3"]),
    ("a pin without code for the GPU", {"requirements.txt": "torch==1.13.1\n"}, ["--gpu", "H100"],
     3, ["compute capability 9.0", "requirements.txt, line 1: torch==1.13.1", "pin torch=="]),
    ("a release that is not there", {"requirements.txt": "torch==2.0.1\npeft==0.7\n"}, [], 3,
     ["requirements.txt, line 2: peft==0.7"]),
    ("another hash", {"requirements.txt": f"torch==2.0.1\npeft==0.2 --hash=sha256:{'0' * 64}\n"},
     [], 3, ["The index has another file for peft 0.2"]),
    ("a malformed line", {"requirements.txt": "torch==\n"}, [], 2, ["requirements.txt, line 1"]),
    ("no declaration", {"pyproject.toml": "[tool.x]"}, [], 2, ["declares no packages", "--with"]),
    ("the declaration as the output",
     {"pylock.toml": 'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.0.1"\n'},
     ["--output", "app/pylock.toml"], 2, ["The lock would replace pylock.toml"]),
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_line(
    files: dict[str, str], words: list[str], code: int, said: list[str], machine: Machine
) -> None:
    project(machine.root / "app", files)
    before = {path: path.read_bytes() for path in (machine.root / "app").glob("*.*")}
    machine.lock("app", *words, code=code)
    assert [one for one in said if one not in machine.said] == []
    assert {path: path.read_bytes() for path in (machine.root / "app").glob("*.*")} == before
    assert not (machine.root / "pylock.toml").exists()


@pytest.mark.parametrize("verb", ["lock", "build"])
@cases(
    "name",
    ("what is not there", "none"),
    ("a file", "host.json"),
    ("nothing, which is a directory without a declaration", ""),
    ("an endless word", "x" * 10_000),
    ("a word in colour", "\x1b[2J"),
)
def test_a_directory_that_is_not_one_is_refused(verb: str, name: str, machine: Machine) -> None:
    ended = cli.main([verb, name])
    captured = machine.capsys.readouterr()
    assert ended == Exit.USAGE
    assert "fix:" in captured.err
    assert "Traceback" not in captured.err
    assert "\x1b" not in captured.err
    assert len(captured.err) < 1500


IMPORTING = """\
import os, numpy, peft
import helper
import whisper
try:
    import av
except ImportError:
    av = None
def run(): pass
"""


def test_what_the_code_imports_is_in_the_wheels_or_stops_the_build(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(
        machine.root / "app",
        {"src/chat/main.py": IMPORTING, "src/helper.py": "", "examples/first.py": "import pytest"},
    )
    machine.build("app", "--output", "new")
    assert "Not found among the wheels: whisper (src/chat/main.py, line 3)" in machine.said
    assert "The base may have them." in machine.said
    assert "helper" not in machine.said
    monkeypatch.setattr(import_check, "_OWN_BASES", ("oci:",))
    refused = machine.build("app", "--output", "newer", code=Exit.USAGE)
    assert refused["error"]["code"] == "project-incomplete"
    assert "no wheel of the image has: whisper (src/chat/main.py, line 3)." in machine.said
    assert "openai-whisper?" in refused["error"]["fix"]
    assert not (machine.root / "newer").exists()
    machine.lock("app", "--output", "pylock.toml")
    monkeypatch.chdir(machine.root)
    again = ("build", "app", "--lock", "pylock.toml", "--no-verify", "--output", "newer")
    machine.run(*again, code=Exit.USAGE)
    refused = machine.run(*again, "--without", "wisper", code=Exit.USAGE)
    assert "imports no 'wisper'" in refused["error"]["message"]
    machine.run(*again, "--without", "whisper")
    assert "pytest (examples/first.py, line 1)" in machine.said
