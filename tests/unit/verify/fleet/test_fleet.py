"""`verify fleet`: many reports judged, worst first, in every output."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.kit.fake_engine import IMAGE, report, row_of
from verify.commands.main import main
from verify.fleet.nodes import FleetNode, Trouble, fold_names, with_shared
from verify.reports import shape
from verify.running.faults import CheckFault

FAILURE = {"code": "node-silent", "message": "n9: it does not answer.", "fix": "See it."}


class Rows:
    """A list for the command."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, found: dict[str, Any] | None, **more: Any) -> None:
        row = {"node": name, "failure": None, "report": None, "expect": None, "code": None}
        if found is not None:
            path = self.place / f"{name}.json"
            path.write_text(json.dumps(found))
            row["report"] = str(path)
        self.rows.append({**row, **more})

    def run(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
        path = self.place / "list"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.rows))
        code = main(["fleet", str(path), "--level", "standard", *words])
        return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


def twins(rows: Rows, *speeds: float) -> None:
    for number, speed in enumerate(speeds):
        rows.add(f"n{number}", report(gemm=speed))


def test_a_required_check_is_in_each_report(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = report()
    row = {**loaded["checks"][0], "id": "health.burn"}
    rows.add("n1", {**loaded, "checks": [*loaded["checks"], row]})
    rows.add("n2", report())
    _, found = rows.run(capsys, "--require", "health.burn")
    codes = {node["name"]: (node["standing"], node["code"]) for node in found["nodes"]}
    assert codes == {"n1": ("fit", None), "n2": ("not-tested", "bad-report")}


def test_the_worst_comes_first(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    twins(rows, 600, 601, 599, 400)
    rows.add("n4", report("unfit"))
    rows.add("n9", None, failure=FAILURE)
    code, found = rows.run(capsys)
    assert [(node["name"], node["standing"]) for node in found["nodes"]] == [
        ("n4", "unfit"),
        ("n3", "slow"),
        ("n9", "not-tested"),
        ("n0", "fit"),
        ("n1", "fit"),
        ("n2", "fit"),
    ]
    assert code == found["exit_code"] == 1
    assert found["nodes"][0]["failed"][0]["check"] == "devices.kernel"
    slow = found["nodes"][1]["slow"][0]
    assert (slow["check"], slow["name"], slow["twins"]) == ("speed.gemm", "gemm", 5)
    assert found["nodes"][2]["code"] == "node-silent"
    assert found["classes"][0]["nodes"] == ["n0", "n1", "n2", "n3", "n4"]
    assert found["image"] == IMAGE


@pytest.mark.parametrize(
    ("standings", "code"),
    [
        pytest.param(["fit"], 0, id="all are fit"),
        pytest.param(["fit", "no-verdict"], 7, id="one has no verdict"),
        pytest.param(["no-verdict", "lost"], 5, id="one was not reached"),
        pytest.param(["lost", "unfit"], 1, id="one is unfit"),
        pytest.param(["fit", "refused"], 7, id="one has no report that counts"),
        pytest.param(["refused", "lost", "fit"], 5, id="one was not reached, one is refused"),
    ],
)
def test_the_exit_code_is_that_of_the_worst(
    rows: Rows, capsys: pytest.CaptureFixture[str], standings: list[str], code: int
) -> None:
    for number, standing in enumerate(standings):
        if standing == "lost":
            rows.add(f"n{number}", None, failure=FAILURE)
        elif standing == "refused":
            rows.add(f"n{number}", {**report(), "schema": 0})
        else:
            found = report("fit" if standing == "no-verdict" else standing)
            if standing == "no-verdict":
                row_of(found, "devices.nvml").update(status="skip")
                found["verdict"] = "no-verdict"
            rows.add(f"n{number}", found)
    assert rows.run(capsys)[0] == code


@cases(
    "found code standing",
    ("it has no verdict", "fit", 143, "no-verdict"),
    ("what had failed counts", "unfit", 1, "unfit"),
    ("as if it had ended", "fit", 7, "not-tested"),
)
def test_a_node_that_was_interrupted_is_not_fit(
    rows: Rows, capsys: pytest.CaptureFixture[str], found: str, code: int, standing: str
) -> None:
    said = report(found)
    said["verdict"] = "no-verdict" if found == "fit" else found
    said["environment"]["interrupted"] = "SIGTERM"
    rows.add("n0", said, code=code)
    assert [node["standing"] for node in rows.run(capsys)[1]["nodes"]] == [standing]


def test_a_slow_node_alone_changes_the_exit_code(
    rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    twins(rows, 600, 600, 600, 500)
    assert rows.run(capsys)[0] == 1


def test_nodes_of_other_classes_are_no_twins(
    rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    twins(rows, 600, 600, 600)
    other = report(gemm=300)
    other["environment"]["driver"] = "580.1"
    rows.add("n3", other)
    bare = report(gemm=1)
    bare["environment"]["gpus"] = []
    for number in range(4, 9):
        bare = json.loads(json.dumps(bare))
        row_of(bare, "speed.gemm")["measured"]["metrics"][0]["value"] = number * 100.0
        rows.add(f"n{number}", bare)
    code, found = rows.run(capsys)
    assert (code, found["comparisons"]) == (0, 0)
    assert len(found["classes"]) == 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({}, ["n4"], id="one of five equal machines"),
        pytest.param({"product": None}, [], id="machines whose maker left no name"),
        pytest.param({"product": "Another"}, [], id="another model"),
        pytest.param({"cpus": 16}, [], id="a smaller virtual machine of one cloud"),
        pytest.param({"on_pci": None}, [], id="a bus that is not known"),
        pytest.param({"on_pci": "7"}, [], id="a report that invents"),
    ],
)
def test_a_node_with_fewer_gpus_than_its_model_has_is_named(
    rows: Rows, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], named: list[str]
) -> None:
    for number in range(5):
        own = changes if number == 4 else {}
        found = report()
        row_of(found, "devices.nvml")["measured"] = {"on_pci": 8 - (number == 4)}
        if "on_pci" in own:
            row_of(found, "devices.nvml")["measured"] = {"on_pci": own["on_pci"]}
        found["environment"]["cpus"] = own.get("cpus", 128)
        product = own.get("product", "NVIDIA DGXH100")
        found["environment"]["machine"] = {"name": None, "product": product}
        rows.add(f"n{number}", found)
    code, fleet = rows.run(capsys)
    sick = [node for node in fleet["nodes"] if node["standing"] == "unfit"]
    assert (code, [node["name"] for node in sick]) == (int(bool(named)), named)
    for node in sick:
        (failed,) = node["failed"]
        of_all = "nearly all of the 5 nodes of this model (NVIDIA DGXH100) have 8"
        assert failed["check"] == "devices.nvml"
        assert failed["message"] == f"7 GPUs on the PCI bus; {of_all}"
        assert failed["at_fault"] == "unknown"  # the machine may have been bought so
        assert "lspci" in failed["fix"]


def test_a_report_is_a_claim(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    """Seeded faults: each report is refused, with its code."""
    lies = report("unfit")
    lies["verdict"] = "fit"
    rows.add("lies", lies)
    short = report()
    short["checks"].pop()
    rows.add("short", short)
    rows.add("exit", report(), code=1)
    rows.add("other", report(), expect={"schema": 1, "image": {"digest": f"sha256:{'0' * 64}"}})
    rows.add("no-gpu", report(), expect={"schema": 1, "gpus": []})
    rows.add("gone", None, report=str(rows.place / "nowhere"))
    rows.add("half", None, report=str(rows.place / "half"))
    (rows.place / "half").write_text('{"schema": 1')
    code, found = rows.run(capsys)
    assert code == 5, "one cannot be read here"
    assert {node["standing"] for node in found["nodes"]} == {"not-tested"}
    assert {node["name"]: node["code"] for node in found["nodes"]} == {
        "lies": "report-contradiction",
        "short": "bad-report",
        "exit": "report-contradiction",
        "other": "bad-report",
        "no-gpu": "report-contradiction",
        "gone": "report-unreadable",
        "half": "bad-report",
    }
    for node in found["nodes"]:
        assert node["message"].startswith(f"{node['name']}: ")
        assert node["fix"]


CUDNN = CheckFault("libraries.cudnn", "image", "fail")
SUM = CheckFault("devices.kernel", "node", "fail")
HANG = CheckFault("devices.kernel", "unknown", "error")
LOST = CheckFault("devices.kernel", "node", "hardware")
ECC = CheckFault("health.memory", "node", "fail")
FILES = CheckFault("loading.files", "configuration", "fail")
PASSED, SKIPPED, ON_CPU = "pass", "skip", "pass-on-cpu"


def seen(*found: CheckFault | str) -> list[FleetNode]:
    """Nodes on which one check failed so, or ended so."""
    nodes = []
    for number, one in enumerate(found):
        if isinstance(one, str):
            nodes.append(FleetNode(f"n{number}", "fit", checks=(SUM.check,), states=(one,)))
            continue
        trouble = Trouble(one.check, "fail", f"GPU {number}: bad", None, one)
        node = FleetNode(f"n{number}", "unfit", checks=(one.check,), states=("fail",))
        nodes.append(node._replace(troubles=(trouble,)))
    return nodes


@pytest.mark.parametrize(
    ("found", "whose"),
    [
        pytest.param([SUM, PASSED, PASSED], "node", id="one of three"),
        pytest.param([SUM, SUM, PASSED], "image", id="two of three"),
        pytest.param([SUM, SUM], "node", id="both of two: too few to tell"),
        pytest.param([SUM], "node", id="a single node"),
        pytest.param([SUM, SUM, PASSED, PASSED], "node", id="half of four is not more than half"),
        pytest.param([SUM] * 3 + [PASSED] * 2, "image", id="three of five"),
        pytest.param([HANG] * 3, "image", id="what is not known is the image's if all have it"),
        pytest.param([HANG, PASSED, PASSED], "unknown", id="what is not known on one node"),
        pytest.param([ECC] * 3, "node", id="ECC errors on all stay the nodes'"),
        pytest.param([LOST] * 3, "node", id="a GPU lost in a kernel on all stays the nodes'"),
        pytest.param([FILES] * 3, "configuration", id="a limit of open files on all"),
        pytest.param([CUDNN] * 3, "image", id="the image's on all"),
        pytest.param([SUM, HANG, SUM, PASSED], "node", id="two kinds of failure are not one"),
        pytest.param([SUM, SUM] + [SKIPPED] * 8, "node", id="two, and it ran nowhere else"),
        pytest.param([SUM] * 3 + [SKIPPED] * 8, "image", id="all three on which it ran"),
        pytest.param([SUM] * 3 + [ON_CPU] * 8, "image", id="all three on whose GPU it ran"),
    ],
)
def test_what_most_nodes_share_is_the_images_fault(
    found: list[CheckFault | str], whose: str
) -> None:
    judged = with_shared(seen(*found))
    fault = judged[0].fault
    assert fault is not None
    assert fault.at_fault == whose
    changed = fault != found[0]
    assert judged[0].troubles[0].shared == (found.count(found[0]) if changed else None)


def test_a_shared_fault_is_shown_and_the_sick_node_stays(
    rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        found = report("unfit")
        if number == 2:
            row_of(found, "health.memory").update(status="fail", cause="ECC", at_fault="node")
        rows.add(f"n{number}", found)
    rows.add("n3", report())
    junit = rows.place / "out.xml"
    code, result = rows.run(capsys, "--junit", str(junit))
    nodes = {node["name"]: node for node in result["nodes"]}
    assert code == 1
    assert {name: node["at_fault"] for name, node in nodes.items()} == {
        "n0": "image",
        "n1": "image",
        "n2": "node",
        "n3": None,
    }
    assert nodes["n0"]["failed"][0]["shared"] == 3
    assert "devices.kernel (image, as on 3 nodes): of devices.kernel" in junit.read_text()
    assert "health.memory (node): of health.memory" in junit.read_text()


def test_a_report_without_the_field_is_of_an_earlier_version(
    rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report("unfit")
    del row_of(found, "devices.kernel")["at_fault"]
    rows.add("n0", found)
    assert rows.run(capsys)[1]["nodes"][0]["at_fault"] == "unknown"
    row_of(found, "health.log").update(status="fail", cause="an Xid")
    rows.add("n1", found)
    assert rows.run(capsys)[1]["nodes"][0]["at_fault"] == "node"


def test_every_file_has_what_is_wrong(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    twins(rows, 600, 600, 600, 400)
    evil = report("unfit")
    row_of(evil, "devices.kernel").update(message="<script>alert(1)</script>\x1b[31m")
    rows.add('n"4', evil)
    rows.add("n9", None, failure=FAILURE)
    files = {kind: rows.place / f"out.{kind}" for kind in ("html", "junit", "prometheus")}
    rows.run(capsys, *(word for kind, path in files.items() for word in (f"--{kind}", str(path))))
    page = files["html"].read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.index("n&quot;4") < page.index("n3") < page.index("n9")
    assert "http" not in page.replace("http-equiv", ""), "the page loads nothing"
    assert 'id="twins-1-t"' in page
    root = ET.parse(files["junit"]).getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("6", "2", "1")
    prom = files["prometheus"].read_text()
    assert 'gpu_provision_fleet_nodes{image="' in prom
    assert 'node="n\\"4"' in prom
    assert 'gpu_provision_fleet_node_slower_ratio{image="' in prom
    names = [line.split(" ")[0] for line in prom.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names))


def test_the_page_says_which_image_and_when_and_folds_many_names(
    rows: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        found = report()
        found["environment"]["started"] = f"2026-11-26T04:{number:02}:10Z"
        rows.add(f"node{number * 2:03}", found)
    page = rows.place / "out.html"
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        rows.run(capsys, "--html", str(page), "--image", "registry.example/team/torch:1")
    time.tzset()
    text = page.read_text()
    assert "<dd>registry.example/team/torch:1</dd>" in text
    assert "<dd>2026-11-26 04:00 UTC to 2026-11-26 04:59 UTC</dd>" in text
    summary, folded = re.findall(r'class="id[^"]*">(node\[[^<]*)<', text)
    assert len(summary) <= 90 < len(folded)
    assert folded.endswith("118]")


def test_a_file_that_cannot_be_written_is_named(
    rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    twins(rows, 600)
    path = rows.place / "list"
    path.write_text(f"{json.dumps(rows.rows[0])}\n")
    code = main(["fleet", str(path), "--level", "standard", "--html", "/nowhere/x.html"])
    assert code == 2
    assert "/nowhere/x.html" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"node": 1}', "\n"])
def test_a_list_that_is_none_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list").write_text(text)
    assert main(["fleet", str(tmp_path / "list"), "--level", "quick"]) == 2
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n01", "n02", "n10"], "n[01-02,10]"),
        (["login", "n1"], "login, n1"),
        (["n1", "n01"], "n1, n01"),
        (["n5"], "n5"),
        ([], ""),
    ],
)
def test_names_are_folded_as_slurm_does(names: list[str], expected: str) -> None:
    assert fold_names(names) == expected


@given(st.lists(st.text("ab0129-", min_size=1, max_size=8), unique=True, max_size=20))
def test_folding_loses_no_name(names: list[str]) -> None:
    assert sorted(_unfolded(fold_names(names, 10_000))) == sorted(names)


def _unfolded(text: str) -> list[str]:
    found = []
    for part in text.split(", ") if text else []:
        head, bracket, rest = part.partition("[")
        if not bracket:
            found.append(part)
            continue
        for run in rest[:-1].split(","):
            low, dash, high = run.partition("-")
            width = len(low)
            last = int(high) if dash else int(low)
            found += [f"{head}{number:0{width}}" for number in range(int(low), last + 1)]
    return found


RECORDED = [
    *(Path(__file__).parents[3] / "data" / "verify" / "reports").glob("made-up-*.json"),
    Path(__file__).parents[3] / "data" / "verify" / "h200" / "standard.json",
]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_fast_look_at_a_shape_agrees_with_the_exact_one(path: Path) -> None:
    """Values all over a report are replaced and removed: both find a problem, or neither."""
    fits = shape.fits_rule(shape.schema())
    text = path.read_text()
    assert fits(json.loads(text))
    chance = random.Random(4)
    broken = 0
    for _ in range(120):
        found = json.loads(text)
        for _ in range(chance.randint(1, 2)):
            _spoil(found, chance)
        exact = next(shape.problems(found, shape.schema()), None) is None
        assert fits(found) == exact
        broken += not exact
    assert broken > 30


def _spoil(value: Any, chance: random.Random) -> None:
    """Go down to some place, and change it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
            value = inner
            continue
        if isinstance(value, dict) and chance.random() < 0.3:
            del value[key]
        else:
            value[key] = chance.choice([None, True, -1, 1.5, "x", "", [], {}, [1, 2, 3]])
        return


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(b"", "Expecting value", id="an empty line"),
        pytest.param(b"[]", "expected object", id="a list instead of an object"),
        pytest.param(b"null", "expected object", id="null"),
        pytest.param(b'{"node": "n"}', "failure is missing", id="no failure"),
        pytest.param(b'{"node": 1, "failure": null}', "node: expected string", id="no name"),
        pytest.param(b'{"node": "n", "failure": {}}', "code, message, fix", id="an empty failure"),
        pytest.param(b'{"node": "n", "failure": "x"}', "expected object", id="a failure as text"),
        pytest.param(b'{"node": "n", "failure": null}', "report, expect", id="no report"),
        pytest.param(b'{"node": "n", "failure": null, "report": 5, "expect": null, "code": 0}',
                     "report: expected string",
                     id="a number as the report, which would be a file descriptor"),
        pytest.param(
            b'{"node": "n", "failure": null, "report": "a\\u0000b", "expect": null, "code": 0}',
            "does not look like", id="a zero byte in a path"),
        pytest.param(b'{"node": "n", "failure": null, "report": "a", "expect": [1], "code": 0}',
                     "expect: expected object", id="expectations as a list"),
        pytest.param(b'{"node": "n", "failure": null, "report": "a", "expect": null, "code": NaN}',
                     "code: expected integer", id="a code that is no number"),
        pytest.param(b"\xff", "can't decode", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="endless nesting"),
        pytest.param(b"9" * 5000, "digits", id="a number of thousands of digits"),
        pytest.param(b'"' + b"x" * (2 << 20) + b'"', "longer than 1 MiB", id="an endless line"),
    ],
)  # fmt: skip
def test_a_malformed_list_is_refused_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, words: str
) -> None:
    path = tmp_path / "list"
    path.write_bytes(json.dumps({"node": "n0", "failure": FAILURE}).encode() + b"\n" + line + b"\n")
    assert main(["fleet", str(path), "--level", "standard"]) == 2
    said = capsys.readouterr().err
    assert f"{path}, line 2: " in said
    assert words in said
    assert len(said) < 1000
