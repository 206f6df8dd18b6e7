"""What nodes are asked, which reports are kept, and what is drained."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog.loading import load
from provision.cli import main as cli
from provision.errors import BadInputError
from provision.fleet.commands.verify_text import describe_verified, report_line
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.slurm import SlurmNode
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.verify.drain import (
    drain_of,
    drained_by_us,
    drains,
    over_limit,
    read_limit,
    unchanged,
)
from provision.fleet.verify.order import FleetOrder, name_on_nodes, read_order
from provision.fleet.verify.reports import NodeReport, has_report, verify_nodes
from provision.fleet.verify.result import judge_fleet
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from provision.verification.subject import Subject
from tests.kit import schemas
from tests.kit.cases import cases
from tests.kit.fake_engine import IMAGE, PLAN, TAG, Engine, interrupted, report
from tests.kit.together import together

LABELS = labels_for(Lock(text="the lock", plan=PLAN, wheels=()), "1")
DIGEST = f"sha256:{'b' * 64}"


def subject(name: str = TAG, **more: Any) -> Subject:
    return Subject(name=name, image_id=IMAGE, labels=LABELS, **more)


def order(**more: Any) -> FleetOrder:
    asked: dict[str, Any] = {"level": "standard", "timeout_s": 60, "way": None, "provision": None}
    return read_order(subject(engine=Engine()), load(), **{**asked, **more})


@cases(
    "found expected",
    ("a tag of a registry may move: its digest",
     subject("r.example/a/b:1", registry="r.example/a/b:1", digest=DIGEST),
     f"r.example/a/b@{DIGEST}"),
    ("a registry with a port", subject(registry="localhost:5000/b:1", digest=DIGEST),
     f"localhost:5000/b@{DIGEST}"),
    ("an engine's image by its ID", subject(engine=Engine()), IMAGE),
)  # fmt: skip
def test_every_node_gets_the_same_image(found: Subject, expected: str) -> None:
    assert name_on_nodes(found) == expected


def test_a_layout_is_named_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    assert name_on_nodes(subject("oci:images:a")) == f"oci:{tmp_path}/images:a"
    found = read_order(
        subject("oci:images:a"), load(), level="quick", timeout_s=60, way=None, provision="p"
    )
    assert found.ways == ("provision", "podman", "apptainer"), "docker reads no layout"


@pytest.mark.parametrize(
    ("name", "ways"),
    [("a.sqsh", ("provision", "apptainer", "enroot")), ("a.sif", ("provision", "apptainer"))],
)
def test_a_squashfs_is_named_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ways: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"hsqs" + bytes(92))
    assert name_on_nodes(subject(name)) == f"{tmp_path}/{name}"

    def order_by(way: str | None) -> FleetOrder:
        return read_order(
            subject(name), load(), level="quick", timeout_s=60, way=way, provision="p"
        )

    assert order_by(None).ways == ways
    with pytest.raises(BadInputError, match=rf"docker cannot run a {name[1:]} file"):
        order_by("docker")


@pytest.mark.parametrize("name", ["image.tar", TAG])
def test_an_image_that_only_this_machine_has_is_refused(name: str) -> None:
    with pytest.raises(BadInputError):
        name_on_nodes(subject(name))


IN_REGISTRY: dict[str, Any] = {"registry": "r.example/a/b:1", "digest": DIGEST}


def test_kubernetes_runs_the_image_itself() -> None:
    asked: dict[str, Any] = {"level": "quick", "timeout_s": 60, "inside": True}
    none: dict[str, Any] = {"way": None, "provision": None}
    found = read_order(subject(**IN_REGISTRY), load(), **asked, **none)
    assert (found.image, found.ways) == (f"r.example/a/b@{DIGEST}", ("inside",))
    refused: tuple[tuple[Subject, dict[str, Any]], ...] = (
        (subject(**IN_REGISTRY), {"way": "docker"}),
        (subject(**IN_REGISTRY), {"provision": "x"}),
        (subject(engine=Engine()), {}),
        (subject("oci:images:a"), {}),
    )
    for one, more in refused:
        with pytest.raises(BadInputError):
            read_order(one, load(), **asked, **{**none, **more})


def test_the_order_says_what_a_node_runs() -> None:
    work = order(provision="p", way="docker").work()
    assert work.ways == ("docker",)
    assert work.command[-2:] == ("--expect", "-")
    assert work.verify == ("--json", "--level", "standard", "--timeout", "60")
    assert work.expect is not None
    assert work.expect["image"] == {"digest": IMAGE}
    assert work.specs["NVIDIA H100 80GB HBM3"]["memory_bandwidth_gbs"]
    assert "provision" not in order().ways
    assert order(provision="p").ways[0] == "provision"


@cases(
    "words",
    ("an unknown way", ["--way", "lxc"]),
    ("no command", ["--way", "provision"]),
)
def test_a_way_that_is_none_is_refused(words: list[str]) -> None:
    with pytest.raises(BadInputError):
        order(way=words[1])


@cases(
    "words",
    ("yes to nothing", ["--yes"]),
    ("ssh has no state of nodes", ["--drain"]),
    ("a limit for nothing", ["--drain-at-most", "3"]),
    ("a level that is none", ["--level", "x"]),
    ("no time", ["--timeout", "0"]),
    ("no minutes", ["--burn", "0"]),
    ("not a number", ["--at-once", "x"]),
    ("a file that cannot be written", ["--html", "/nowhere/x.html"]),
    ("pods do not meet", ["--on", "kubernetes", "--across"]),
)
def test_bad_input_is_refused_before_anything_is_asked(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["fleet", "verify", "--on", f"ssh:{tmp_path}/hosts", "--image", TAG, "--json"]
    code = cli.main([*argv, "--output", str(tmp_path / "out"), *words])
    assert (code, json.loads(capsys.readouterr().out)["error"]["code"]) == (2, "bad-input")
    assert not (tmp_path / "out").exists()


class Nodes:
    """Nodes that are processes here; a script stands for the checkout that they share."""

    def __init__(self, place: Path) -> None:
        self.place, self.out = place, place / "out"
        self.out.mkdir()
        self.spare = place / "spare"
        self.spare.mkdir()
        self.script = place / "provision"
        self.script.write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            f"open({str(place / 'asked')!r}, 'a').write(os.environ['NODE'] + ' ')\n"
            f"text = open({str(place)!r} + '/' + os.environ['NODE']).read()\n"
            "print(text)\nsys.exit('\"unfit\"' in text)\n"
        )
        self.script.chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.place / name).write_text(text)

    def run(self, *names: str, again: bool = False) -> dict[str, NodeReport]:
        calls = [
            NodeCall(name, ("env", f"NODE={name}", sys.executable, "-"), _failing) for name in names
        ]
        told: list[NodeReport] = []
        asked = order(provision=shlex.quote(str(self.script)))
        found = verify_nodes(
            calls,
            asked,
            self.out,
            NodeLimits(2, 60),
            spare=self.spare,
            again=again,
            tell=told.append,
        )
        assert [one.name for one in found] == list(names)
        assert sorted(told) == sorted(found)
        return {one.name: one for one in found}

    def asked(self) -> list[str]:
        path = self.place / "asked"
        found = sorted(path.read_text().split()) if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def files(self) -> list[str]:
        return sorted(path.name for path in self.out.glob("*.json"))


def _failing(_: object) -> NodeFailure:
    return NodeFailure("node-failed", "n: x", "x")


def test_a_report_is_kept_until_it_is_asked_for_again(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report(), indent=1))
    nodes.says("n2", "no report")
    found = nodes.run("n1", "n2")
    assert found["n1"].status == "tested"
    assert found["n2"].failure is not None
    assert found["n2"].failure.code == "node-no-report"
    assert nodes.files() == ["n1.json"]
    assert nodes.asked() == ["n1", "n2"]
    assert nodes.run("n1", "n2")["n1"].status == "kept"
    assert nodes.asked() == ["n2"]
    nodes.run("n1", again=True)
    assert nodes.asked() == ["n1"]
    (nodes.out / "n1.json").write_text("{")  # cut off by something else: tested again
    assert nodes.run("n1")["n1"].status == "tested"
    other = report()
    other["environment"]["image"] = DIGEST
    (nodes.out / "n1.json").write_text(json.dumps(other))
    nodes.asked()
    nodes.run("n1")
    assert nodes.asked() == ["n1"], "a report of another image does not count"
    nodes.says("n1", "it broke")
    nodes.run("n1", again=True)
    assert nodes.files() == [], "an old report says nothing about today"


def test_a_node_is_loaded_for_minutes_beyond_its_time_limit() -> None:
    work = order(burn_min=30.0, provision="p").work()
    assert work.timeout_s == 60 + 30 * 60
    assert work.verify is not None
    for words in (work.command, work.verify):
        assert words[words.index("--burn") + 1] == "30"
    assert work.verify[-2:] == ("--timeout", "60"), "there --burn is added to it"
    assert "--burn" not in order().work().command


def burned(minutes: float | None) -> dict[str, Any]:
    """A report with a row of health.burn, unless there was none."""
    found = report()
    row = {**found["checks"][0], "id": "health.burn", "measured": {"minutes": minutes}}
    return {**found, "checks": [*found["checks"], *([] if minutes is None else [row])]}


@cases(
    "burn_min minutes expected",
    ("no load is asked for", None, None, "kept"),
    ("no load is asked for, and there was one", None, 1.0, "kept"),
    ("as long as asked for", 30.0, 30.0, "kept"),
    ("a minute, as at full", 30.0, 1.0, "tested again"),
    ("without a load", 30.0, None, "tested again"),
)
def test_an_earlier_report_counts_for_its_minutes_of_load(
    tmp_path: Path, burn_min: float | None, minutes: float | None, expected: str
) -> None:
    path = tmp_path / "n1.json"
    path.write_text(json.dumps(burned(minutes)))
    assert has_report(path, order(burn_min=burn_min)) == (expected == "kept")


def test_a_node_that_was_interrupted_is_tested_again(tmp_path: Path) -> None:
    path = tmp_path / "n1.json"
    path.write_text(json.dumps(interrupted(report())))
    assert not has_report(path, order())


@cases(
    "changes",
    ("a verdict with an escape sequence", {"verdict": "fit\x1b[2J"}),
    ("a verdict of a megabyte", {"verdict": "V" * (1 << 20)}),
    ("a verdict in a list", {"verdict": ["fit"]}),
    ("an endless report", {"more": "x" * (3 << 20), "again": "y" * (1 << 20)}),
)
def test_what_is_no_report_is_not_kept(tmp_path: Path, changes: dict[str, Any]) -> None:
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps({**report(), **changes}, indent=1))
    found = nodes.run("n1")["n1"]
    assert found.status == "failed"
    assert found.failure is not None
    assert found.failure.code == "node-no-report"
    assert len(found.failure.message) < 1000
    assert nodes.files() == []


def test_an_earlier_report_with_another_verdict_does_not_count(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report(), indent=1))
    nodes.run("n1")
    kept = json.loads((nodes.out / "n1.json").read_text())
    (nodes.out / "n1.json").write_text(json.dumps({**kept, "verdict": "\x1b[2Jfit"}))
    assert nodes.run("n1")["n1"].status == "tested"


@pytest.mark.parametrize("verdict", ["fit", "unfit", "no-verdict"])
def test_a_line_says_that_a_report_came_and_not_what_it_claims(
    tmp_path: Path, verdict: str
) -> None:
    """Reports are judged at the end: this one may be refused then."""
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report(verdict), indent=1))
    assert re.fullmatch(
        r"n1: reported, by provision \([\d.]+ s\)", report_line(nodes.run("n1")["n1"])
    )
    assert report_line(nodes.run("n1")["n1"]) == "n1: reported, in an earlier run"


def test_a_report_that_cannot_be_written_is_judged_and_its_node_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report("unfit"), indent=1))
    nodes.says("n2", json.dumps(report("no-verdict"), indent=1))
    (nodes.out / "n1.json").mkdir()
    (nodes.out / "n2.json").mkdir()
    found = nodes.run("n1", "n2")
    assert found["n1"].failure is None
    assert "n1.json cannot be written" in found["n1"].unsaved
    assert found["n1"].place == nodes.spare
    assert not list(nodes.out.glob("*partial*"))
    judged = judge_fleet(tuple(found.values()), order(), nodes.out, {})
    rows = {one["name"]: one for one in judged["nodes"]}
    assert (rows["n1"]["standing"], rows["n1"]["code"]) == ("unfit", "report-not-kept")
    assert (rows["n1"]["report"], judged["exit_code"]) == (None, 1)
    text = describe_verified(judged, ())
    assert "n1: it was tested, and its report is not kept" in text
    # nothing else can hold it either
    (nodes.spare / "n1.json").unlink()
    (nodes.spare / "n1.json").mkdir()
    lost = nodes.run("n1", again=True)["n1"]
    assert lost.failure is not None
    assert lost.failure.code == "report-not-kept"


def test_a_full_disk_costs_no_report_its_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.parent == nodes.out:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(data)

    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report("unfit"), indent=1))
    monkeypatch.setattr("provision.fleet.nodes.collect.write_whole", full)
    found = nodes.run("n1")["n1"]
    assert (found.failure, found.place) == (None, nodes.spare)
    assert "No space left on device" in found.unsaved


def test_the_result_is_judged_and_shown(tmp_path: Path) -> None:
    """The nodes have no GPU, so reports that claim one are refused."""
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report("unfit"), indent=1))
    nodes.says("n2", "nothing")
    reports = tuple(nodes.run("n1", "n2").values())
    page = tmp_path / "page.html"
    found = judge_fleet(reports, order(), nodes.out, {"html": page})
    printed = {**found, "across": None, "drain": [], "drain_error": None, "error": None}
    assert schemas.problems("fleet-verify", printed) == []
    assert found["exit_code"] == 1
    rows = {node["name"]: node for node in found["nodes"]}
    assert rows["n1"]["failed"][0]["check"] == "devices.kernel"
    assert (rows["n1"]["report"], rows["n1"]["way"]) == (str(nodes.out / "n1.json"), "provision")
    assert rows["n2"]["report"] is None
    assert page.read_text().startswith("<!doctype html>")
    assert "All nodes together" not in page.read_text()
    judge_fleet(reports, order(), nodes.out, {"html": page}, together("n1", "n2"))
    assert "All nodes together" in page.read_text()
    planned = drains(found["nodes"])
    text = describe_verified(found, planned)
    assert "n1: devices.kernel (node): of devices.kernel" in text
    assert rows["n2"]["standing"] == "not-tested"
    assert text.count("scontrol update NodeName=n1 State=DRAIN") == 1
    assert text.count("scontrol") == 1
    shown = [line for line in text.splitlines() if "scontrol" not in line]
    assert max(map(len, shown)) <= 80 or str(tmp_path) in text


def test_a_relative_directory_is_this_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge runs in another directory: a report that it does not find would drain the node."""
    nodes = Nodes(tmp_path)
    nodes.says("n1", json.dumps(report("unfit"), indent=1))
    reports = tuple(nodes.run("n1").values())
    monkeypatch.chdir(tmp_path)
    found = judge_fleet(reports, order(), nodes.out.relative_to(tmp_path), {})
    assert found["nodes"][0]["failed"][0]["check"] == "devices.kernel"


@given(st.text(max_size=400))
def test_a_reason_is_one_plain_line(text: str) -> None:
    planned = drain_of("n1", text)
    command, reason = planned.argv, planned.argv[-1]
    assert reason == f"Reason={planned.reason}"
    assert reason.startswith("Reason=gpu-provision: ")
    assert reason.isascii()
    assert reason.isprintable()
    assert not set(reason) & set("\"'`\\$\n|&;*?!~{}") - {";"}
    assert len(reason) <= 190
    assert shlex.split(shlex.join(command)) == list(command)


def row(name: str, at_fault: str | None, *failed: str) -> dict[str, Any]:
    """A node of the result."""
    return {
        "name": name,
        "at_fault": at_fault,
        "failed": [
            {"check": f"{one}.a", "message": "bad\nline", "at_fault": one} for one in failed
        ],
    }


def test_only_nodes_at_fault_are_drained() -> None:
    rows = [
        row("n0", "node", "unknown", "node"),
        row("n1", "image", "image", "node"),
        row("n2", "configuration", "configuration"),
        row("n3", "unknown", "unknown"),
        row("n4", None),
    ]
    assert [one.argv for one in drains(rows)] == [
        ("scontrol", "update", "NodeName=n0", "State=DRAIN",
         "Reason=gpu-provision: node.a: bad line"),
    ]  # fmt: skip


@cases(
    "given nodes most",
    ("a tenth of a hundred", "10%", 100, 10),
    ("a share is rounded down", "10%", 19, 1),
    ("but one node is always allowed", "10%", 3, 1),
    ("also if there is only one", "1%", 1, 1),
    ("all", "100%", 7, 7),
    ("a number", "3", 100, 3),
    ("a number above that of the nodes", "3", 2, 3),
)
def test_a_limit_is_a_number_or_a_share(given: str, nodes: int, most: int) -> None:
    limit = read_limit(given)
    assert limit.of(nodes) == most
    planned = [drain_of(f"n{number}", "x") for number in range(most + 1)]
    assert over_limit(planned[:most], limit, nodes, 0) is None
    refused = over_limit(planned, limit, nodes, 0)
    assert refused is not None
    assert f"at most {most} may be drained ({given})" in refused.message
    assert over_limit(planned[:most], limit, nodes, 1), "those of an earlier run count"
    assert over_limit((), limit, nodes, most + 1) is None, "nothing more is drained"


@pytest.mark.parametrize("given", ["", "0", "-1", "0%", "101%", "5.5%", "all", "1_0", "\u0663"])
def test_a_limit_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(BadInputError):
        read_limit(given)


NODE = SlurmNode("n0", "drained", "", "gpu", 1, None, 8, "gpu-provision: health.memory: bad")


@cases(
    "node ours",
    ("drained by us", NODE, True),
    ("draining: a job runs there still", NODE._replace(state="draining"), True),
    ("another reason", NODE._replace(reason="bad DIMM"), False),
    ("no reason", NODE._replace(reason=""), False),
    ("somebody's, who quotes ours", NODE._replace(reason="see gpu-provision: x"), False),
    ("it is down", NODE._replace(state="down"), False),
    ("in service, with an old reason", NODE._replace(state="idle"), False),
)
def test_only_what_we_drained_is_resumed(node: SlurmNode, *, ours: bool) -> None:
    found = drained_by_us([node])
    assert [one.argv for one in found] == [
        ("scontrol", "update", "NodeName=n0", "State=RESUME")
    ] * ours
    (planned,) = drained_by_us([NODE])
    (now,) = unchanged([planned], [node])
    still = ours and node.reason == NODE.reason
    assert now.done is (None if still else False)
