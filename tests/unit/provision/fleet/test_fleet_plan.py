"""`provision fleet plan`, as it is typed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.fleet import fleet
from provision.cli import main as cli
from provision.model.facts import host_to_json
from provision.model.plan import HostFacts
from tests import ROOT
from tests.kit.cases import cases
from tests.unit.provision.fleet.test_images import A100, B200, DARK, GRACE, K80, NONE, OLD_B200

CUT = """\
| NVIDIA-SMI 570.172.08     Driver Version: 570.172.08     CUDA Version: 12.8     |
|   0  NVIDIA A100-SXM...  On  |   00000000:06:00.0 Off |                    0 |
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for host files."""
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "hosts").mkdir()
    return tmp_path / "hosts"


def write(folder: Path, **hosts: HostFacts) -> None:
    for name, facts in hosts.items():
        (folder / f"{name}.json").write_text(json.dumps(host_to_json(facts)))


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["fleet", "plan", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_each_node_gets_an_image_and_each_image_its_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, a1=A100, a2=A100, b10=B200, b9=B200, k=K80, g=GRACE, login=NONE)
    code, found = as_json(capsys, str(folder), "--framework", "pytorch", "--flavour", "devel")
    assert code == 0
    assert found["nodes"] == 7
    assert [one["nodes"] for one in found["classes"]][:2] == [["a1", "a2"], ["b9", "b10"]]
    assert sorted(tuple(one["nodes"]) for one in found["images"]) == [
        ("a1", "a2", "b9", "b10"),
        ("g",),
        ("k",),
    ]
    assert found["fewest"] | {"apart": len(found["fewest"]["apart"])} == {
        "images": 3,
        "at_least": 3,
        "proven": True,
        "apart": 3,
    }
    assert found["without_gpu"] == ["login"]
    assert found["unserved"] == []
    assert [one["error"]["code"] for one in found["against_one_image"]] == [
        "mixed-cpu-architectures",
        "no-common-build",
    ]
    for image in found["images"]:
        program, verb, *rest = shlex.split(image["command"])
        assert (program, verb) == ("provision", "build")
        assert cli.main(["plan", *rest, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        for key in ("framework", "cuda", "wheel_tag", "python", "base", "verdict", "flavour"):
            assert plan[key] == image["plan"][key]


@cases(
    "hosts code",
    ("all served", {"a": A100}, 0),
    ("a driver that does not know the GPU", {"a": A100, "b": OLD_B200}, 4),
    ("nothing is known of a node", {"a": A100, "b": DARK}, 3),
    ("no GPU anywhere", {"a": NONE}, 4),
)
def test_the_exit_code_is_plans(
    folder: Path, capsys: pytest.CaptureFixture[str], hosts: dict[str, HostFacts], code: int
) -> None:
    write(folder, **hosts)
    assert as_json(capsys, str(folder))[0] == code


def test_the_page_says_who_blocks_and_what_another_driver_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, a=A100, b=B200, k=K80, old=OLD_B200)
    assert cli.main(["fleet", "plan", str(folder), "--if-driver", "580.95.05"]) == 4
    page = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    for words in (
        "images 2 for 3 nodes; fewer cannot do: no two of b, k can share one",
        "not one No single build of PyTorch supports all of these GPUs.",
        "limited by k: ",
        "no image old (NVIDIA B200, driver 535.104.05)",
        "if driver 580.95.05: 2 images instead of 2 and 1 node more served, if 1 node get it",
        "not with it k (Tesla K80, driver 470.82.01)",
        f"--host {folder}/k.json",
    ):
        assert words in page


def test_the_page_says_that_packages_decide(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, a=A100, b=B200)
    assert cli.main(["fleet", "plan", str(folder), "--with", "vllm"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert page.count("note vllm may need another PyTorch. Locking asks the index") == 1


def test_files_and_folders_are_read_once_and_keep_their_names_apart(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    write(folder, a=A100, b=B200)
    write(tmp_path / "more", a=A100)
    (folder / ".partial-x.json").write_text("{")
    (folder / "notes.txt").write_text("not a host file")
    _, found = as_json(capsys, str(folder), str(folder / "a.json"), str(tmp_path / "more"))
    nodes = [node for one in found["classes"] for node in one["nodes"]]
    assert nodes == [str(folder / "a.json"), str(tmp_path / "more" / "a.json"), "b"]


def test_a_folder_may_hold_what_nvidia_smi_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, a=A100)
    printed = {"a.txt": CUT, "b.log": "GPU 0: NVIDIA B200\n", "c.txt": CUT, "notes.txt": "Monday"}
    for name, text in printed.items():
        (folder / name).write_text(text)
    _, found = as_json(capsys, str(folder))
    nodes = sorted(node for one in found["classes"] for node in one["nodes"])
    assert nodes == ["a", "b", "c"]  # JSON before the text of the same node
    _, alone = as_json(capsys, str(folder / "c.txt"))
    assert alone["images"][0]["plan"]["gpus"][0]["compute_capability"] == "8.0"  # its name is cut
    (folder / "d.log").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    code, found = as_json(capsys, str(folder))
    assert (code, "d.log" in found["error"]["message"]) == (2, True)


@cases(
    "words message",
    ("no such file", ["nowhere"], "no host file"),
    ("an empty folder", ["."], "has no host file"),
    ("a file that is no JSON", ["broken.json"], "broken.json"),
    ("a CUDA version", ["x.json", "--if-driver", "12.4"], "--if-driver '12.4'"),
)
def test_bad_input_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    if words != ["."]:
        Path("broken.json").write_text("{")
    code, found = as_json(capsys, *words)
    assert code == 2
    assert message in found["error"]["message"].lower() or message in found["error"]["message"]
    assert found["error"]["fix"]


@pytest.mark.timeout(120)
def test_ten_thousand_nodes_of_forty_kinds(folder: Path) -> None:
    """5 s is the budget; measured in CPU time of the process, so that no other load counts."""
    for one in fleet(alike=True):
        (folder / f"{one.label}.json").write_text(json.dumps(host_to_json(one)))
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "provision", "fleet", "plan", str(folder), "--json"],
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    after = os.times()
    spent = sum(after[2:4]) - sum(before[2:4])
    found = json.loads(done.stdout)
    assert found["nodes"] == 10_000
    assert found["fewest"]["proven"]
    assert spent < 5
