"""Draining and returning nodes, with stand-ins for sinfo and scontrol; tests/clusters has Slurm."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.fleet.commands import drains
from provision.fleet.commands.drains import drain_nodes
from provision.output.console import Console
from tests.kit.cases import cases
from tests.unit.provision.cli.test_cli import main
from tests.unit.provision.fleet.verify.test_verify import row

OURS = "gpu-provision: health.memory: uncorrected ECC errors"
PROGRAM = f"""#!{sys.executable}
import json, sys
from pathlib import Path
place = Path(__file__).parent
nodes = json.loads((place / "nodes").read_text())
if Path(__file__).name == "sinfo":
    for name, (state, reason) in nodes.items():
        print(f"{{name}}|{{state}}|gpu|up|500000|gpu:8|infinite|{{reason}}")
    changes = place / "meanwhile"
    if changes.exists():
        nodes.update(json.loads(changes.read_text()))
else:
    given = dict(word.split("=", 1) for word in sys.argv[2:])
    if (place / "refuses").exists() and given["NodeName"] in (place / "refuses").read_text():
        sys.exit("slurm_update error: Access/permission denied")
    drained = ["drained", given.get("Reason")]
    nodes[given["NodeName"]] = drained if given["State"] == "DRAIN" else ["idle", "none"]
(place / "nodes").write_text(json.dumps(nodes))
"""


class Slurm:
    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("sinfo", "scontrol"):
            (place / name).write_text(PROGRAM)
            (place / name).chmod(0o755)

    def has(self, **nodes: tuple[str, str]) -> None:
        (self.place / "nodes").write_text(json.dumps(nodes))

    def states(self) -> dict[str, str]:
        found = json.loads((self.place / "nodes").read_text())
        return {name: state for name, (state, _) in found.items()}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Slurm(tmp_path)


def drained(*sick: str, nodes: int, at_most: str | None = None, yes: bool = True) -> Any:
    """What comes of a result in which some nodes are at fault."""
    rows = [row(f"n{number}", None) for number in range(nodes)]
    rows = [row(one["name"], "node", "node") if one["name"] in sick else one for one in rows]
    args = argparse.Namespace(on="slurm", yes=yes, json=False, drain_at_most=at_most)
    planned, refused = drain_nodes(args, Console(), rows)
    return [(one.node, one.done) for one in planned], refused and refused["code"]


def fleet(count: int, **other: tuple[str, str]) -> dict[str, tuple[str, str]]:
    return {**{f"n{number}": ("idle", "none") for number in range(count)}, **other}


def test_one_sick_node_is_drained(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.has(**fleet(4))
    assert drained("n2", nodes=4) == ([("n2", True)], None)
    assert slurm.states() == {"n0": "idle", "n1": "idle", "n2": "drained", "n3": "idle"}
    assert "drain n2: gpu-provision: node.a: bad line" in capsys.readouterr().err


@cases(
    "sick at_most before code",
    ("two of twenty by default", 2, None, 0, None),
    ("three of twenty are too many", 3, None, 0, "too-many-drains"),
    ("unless a person allows three", 3, "3", 0, None),
    ("or a share", 3, "15%", 0, None),
    ("one more after an earlier one", 1, None, 1, None),
    ("one more after two earlier ones", 1, None, 2, "too-many-drains"),
)
def test_a_drain_takes_at_most_so_many(
    slurm: Slurm, sick: int, at_most: str | None, before: int, code: str | None
) -> None:
    earlier = {f"n{19 - number}": ("drained", OURS) for number in range(before)}
    slurm.has(**fleet(20, **earlier, other=("drained", OURS)))
    names = [f"n{number}" for number in range(sick)]
    planned, refused = drained(*names, nodes=20, at_most=at_most)
    assert refused == code
    assert planned == [(name, None if code else True) for name in names]
    assert sum(state == "drained" for state in slurm.states().values()) == (
        before + 1 + (0 if code else sick)
    )


def test_nothing_is_drained_where_slurm_does_not_say_what_it_has(slurm: Slurm) -> None:
    (slurm.place / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert drained("n0", nodes=3) == ([("n0", None)], "slurm-unreachable")


@pytest.mark.parametrize("answer", [True, False])
def test_a_person_is_asked_after_the_list(
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    answer: bool,
) -> None:
    slurm.has(**fleet(3))

    def ask(question: str) -> bool:
        assert "drain n1: gpu-provision" in capsys.readouterr().err
        assert question == "Drain 1 node?"
        return answer

    monkeypatch.setattr(drains, "ask_at_terminal", ask)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert drained("n1", nodes=3, yes=False) == ([("n1", answer or None)], None)
    assert slurm.states()["n1"] == ("drained" if answer else "idle")


def test_without_yes_and_a_terminal_nothing_is_drained(slurm: Slurm) -> None:
    slurm.has(**fleet(3))
    assert drained("n1", nodes=3, yes=False) == ([("n1", None)], None)
    assert slurm.states()["n1"] == "idle"


def undrain(*words: str) -> tuple[int, dict[str, Any]]:
    said = main("fleet", "undrain", "--json", *words)
    return said.code, json.loads(said.out)


def mixed(slurm: Slurm) -> None:
    slurm.has(
        n0=("drained", OURS),
        n1=("drained", "bad DIMM"),
        n2=("idle", "none"),
        n3=("draining", OURS),
        n4=("down", OURS),
    )


def test_undrain_lists_first_and_resumes_only_ours(slurm: Slurm) -> None:
    mixed(slurm)
    before = slurm.states()
    code, found = undrain()
    assert [(one["node"], one["done"]) for one in found["nodes"]] == [("n0", None), ("n3", None)]
    assert (code, slurm.states()) == (0, before)
    said = main("fleet", "undrain", "--on", "slurm:gpu")
    assert "to resume" in said.out
    assert "scontrol update NodeName=n0 State=RESUME" in said.out
    code, found = undrain("--yes")
    assert (code, [one["done"] for one in found["nodes"]]) == (0, [True, True])
    assert slurm.states() == {**before, "n0": "idle", "n3": "idle"}
    assert undrain("--yes") == (0, {"schema": 1, "nodes": [], "error": None})
    assert main("fleet", "undrain").out == "no node is drained by gpu-provision\n"


def test_undrain_takes_the_named_nodes(slurm: Slurm) -> None:
    mixed(slurm)
    assert [one["node"] for one in undrain("--yes", "--nodes", "n[1,3]")[1]["nodes"]] == ["n3"]
    assert slurm.states()["n0"] == "drained"
    code, found = undrain("--nodes", "n9")
    assert (code, found["error"]["code"]) == (2, "bad-input")
    assert undrain("--on", "ssh:hosts")[0] == 2


def changed(slurm: Slurm) -> None:
    (slurm.place / "meanwhile").write_text(json.dumps({"n0": ["drained", "RMA 12"]}))


def refused(slurm: Slurm) -> None:
    (slurm.place / "refuses").write_text("n0")


@cases(
    "spoil message",
    ("somebody gave another reason", changed, "changed in Slurm meanwhile"),
    ("Slurm refuses one", refused, "permission denied"),
)
def test_a_node_that_is_not_resumed_is_named(
    slurm: Slurm, spoil: Callable[[Slurm], None], message: str
) -> None:
    mixed(slurm)
    spoil(slurm)
    code, found = undrain("--yes")
    first, second = found["nodes"]
    assert (code, first["done"], second["done"]) == (5, False, True)
    assert message in first["message"]
    assert (slurm.states()["n0"], slurm.states()["n3"]) == ("drained", "idle")
