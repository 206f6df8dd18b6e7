"""What nodes did together, in every output of `verify fleet`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families

from provision.fleet.across.search import AcrossDiagnosis
from tests.kit.fake_engine import report
from tests.kit.together import OPERATIONS, SIZES, together
from tests.unit.verify.reports.test_reports import JUNIT_SHAPE
from verify.commands.main import main

NAMES = ("n0", "n1", "n2", "n3")
EVIL = "<script>alert(1)</script>\x1b[31m\n"
WRONG = AcrossDiagnosis({"n3": f"n3: {EVIL}"}, sick=("n2",), links=(("n0", "n1"),), complete=False)


class Fleet:
    """Four fit nodes, and what they did together."""

    def __init__(self, place: Path) -> None:
        self.place = place
        lines = []
        for name in NAMES:
            path = place / f"{name}.json"
            path.write_text(json.dumps(report()))
            row = {"node": name, "failure": None, "report": str(path), "expect": None, "code": 0}
            lines.append(f"{json.dumps(row)}\n")
        (place / "list").write_text("".join(lines))

    def run(self, found: Any) -> int:
        (self.place / "across").write_text(json.dumps(found))
        words = ["fleet", str(self.place / "list"), "--level", "standard"]
        words += ["--across", str(self.place / "across")]
        for kind in ("html", "junit", "prometheus"):
            words += [f"--{kind}", str(self.place / f"out.{kind}")]
        return main(words)

    def text(self, kind: str) -> str:
        return (self.place / f"out.{kind}").read_text()

    def cases(self) -> dict[str, list[str]]:
        """Of JUnit, the cases of the nodes together, and how each ended."""
        suites = ET.fromstring(self.text("junit"))
        for element in suites.iter():
            attributes, children = JUNIT_SHAPE[element.tag]
            assert set(element.attrib) <= set(attributes.split())
            assert {child.tag for child in element} <= set(children.split())
        (suite,) = [one for one in suites if one.get("name") == "across"]
        for one in (suites, suite):
            cases = list(one.iter("testcase"))
            assert one.get("tests") == str(len(cases))
            assert one.get("failures") == str(sum(c.find("failure") is not None for c in cases))
        return {str(case.get("name")): [end.tag for end in case] for case in suite}

    def samples(self) -> dict[tuple[str, ...], float]:
        """Of Prometheus, each series of the nodes together."""
        found = {}
        for family in text_string_to_metric_families(self.text("prometheus")):
            for sample in family.samples:
                if "_across_" in sample.name:
                    own = {k: v for k, v in sample.labels.items() if k not in ("image", "level")}
                    name = sample.name.partition("_across_")[2]
                    series = (name, *(own[key] for key in sorted(own)))
                    found[series] = sample.value
        return found


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_nodes_that_work_together(fleet: Fleet) -> None:
    assert fleet.run(together(*NAMES)) == 0
    page = fleet.text("html")
    assert "All nodes together" in page
    assert "all work together" in page
    assert "24-31" in page, "the ranks of the last node"
    assert 'id="across-1-t"' in page
    assert "Collectives by message size" in page
    assert fleet.cases() == {"all nodes together": []}
    found = fleet.samples()
    assert found["passed", "nccl"] == 1
    sizes = {key[3]: v for key, v in found.items() if key[0].startswith("bus_bandwidth")}
    assert set(sizes) == set(OPERATIONS)
    assert len([key for key in found if key[0].startswith("bus_")]) == len(OPERATIONS) * len(SIZES)
    key = ("bus_bandwidth_bytes_per_second", "nccl", "65536", "all-reduce")
    assert found[key] == pytest.approx(40.000065536e9)
    assert found["pair_bandwidth_bytes_per_second", "nccl", "n0"] == 20e9
    assert found["pair_bandwidth_bytes_per_second", "nccl", "n3"] == 21e9


def test_what_spoils_them_is_named_in_every_output(fleet: Fleet) -> None:
    """The nodes alone are fit: the page, the exit code and both formats say that it is not well."""
    assert fleet.run(together(*NAMES, wrong=WRONG)) == 1
    page = fleet.text("html")
    assert "<script" not in page
    assert "4 nodes fit; together: 1 at fault, 1 sick, 1 bad link" in page
    assert 'class="banner unfit"' in page
    assert "n0 - n1: fail together" in page
    assert "There may be more" in page
    assert fleet.cases() == {
        "all nodes together": ["failure"],
        "at fault: n3": ["failure"],
        "sick: n2": ["failure"],
        "bad link: n0 - n1": ["failure"],
    }
    found = fleet.samples()
    assert found["passed", "nccl"] == 0
    assert {key[1:] for key in found if key[0] == "node_fault"} == {
        ("at fault", "n3"),
        ("sick", "n2"),
        ("bad link", "n0"),
        ("bad link", "n1"),
    }
    assert found["bad_link", "n0", "n1"] == 1


def test_without_gpus_there_is_no_verdict_of_nccl(fleet: Fleet) -> None:
    assert fleet.run(together(*NAMES, backend="gloo", ranks=1)) == 7
    assert fleet.cases() == {"all nodes together": ["skipped"]}
    assert "over gloo" in fleet.text("html")


def test_nodes_that_did_not_answer_were_not_tested(fleet: Fleet) -> None:
    found = together(*NAMES)
    gone = [{"node": name, "message": f"{name}: it does not answer."} for name in NAMES]
    found |= {"status": "fail", "exit_code": 5, "report": None, "named": gone, "readings": []}
    found |= {"backend": None, "rounds": []}
    assert fleet.run(found) == 5
    assert fleet.cases()["all nodes together"] == ["error"]
    assert "not tested together" in fleet.text("html")


PLACES = [
    *((key,) for key in together(*NAMES) if key != "image"),
    *(("report", key) for key in ("message", "nodes", "measured")),
    *(("report", "measured", key, 0) for key in ("metrics", "tables", "plots")),
    ("rounds", 0, "groups"),
    ("readings", 0, "gbs"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_result_with_another_value_is_refused(
    fleet: Fleet, place: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = together(*NAMES)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = 3 if place[-1] != "exit_code" and place[-1] != "gbs" else "3"
    assert fleet.run(found) == 2
    assert "not a result of --across" in capsys.readouterr().err
    assert not (fleet.place / "out.html").exists()


@pytest.mark.parametrize("text", ["", "[", "[]", '{"status": NaN}', "\udcff"])
def test_what_is_no_result_is_refused(
    fleet: Fleet, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fleet.place / "across"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    words = ["fleet", str(fleet.place / "list"), "--level", "standard", "--across", str(path)]
    assert main(words) == 2
    assert str(path) in capsys.readouterr().err
