"""Comparisons: what is worse, what is noise, and what two runs cannot say of each other."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.kit.reports import COMPARISON, DATA, REPORT, made_up, reports
from verify.commands.main import main
from verify.model import measures
from verify.model.check import Check, Context, Outcome, Status
from verify.reports import compare_text, shape
from verify.reports.compare import allowance, change, compare, quartile_distance, sigma

FEW = settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
FIT, UNFIT, CPU = made_up("fit"), made_up("unfit"), made_up("no-verdict")


def metric(value: float, spread: float = 0.0, repeats: int = 5, **more: Any) -> Any:
    row = measures.Metric("gemm", value, "TFLOP/s", repeats=repeats, spread=spread).as_dict()
    return {**row, **more}


def run(*metrics: Any, **more: Any) -> Any:
    """A report of one check, with these metrics."""
    report = copy.deepcopy(FIT)
    report["checks"] = [{**report["checks"][0], "measured": {"metrics": list(metrics)}, **more}]
    return report


@FEW
@given(reports(), reports(), st.randoms(use_true_random=False))
def test_any_comparison(one: Any, other: Any, chance: random.Random) -> None:
    is_no_worse_than_itself(one)
    is_the_mirror_the_other_way_round(one, shaken(one, chance))
    has_its_shape_and_fits_80_columns(one, other)


def is_no_worse_than_itself(report: Any) -> None:
    found: Any = compare(report, report)
    assert not found["worse"]
    assert found["verdict"] == "same"
    assert not found["unlike"]
    assert not found["environment"]
    assert not any(found["checks"].values())
    assert not any(found["metrics"][kind] for kind in ("worse", "better", "missing", "new"))


def moved(rows: list[dict[str, Any]], keys: tuple[str, ...], *, turned: bool = False) -> list[str]:
    """Which rows there are, and between what; `turned` reads them from the other side."""
    sides = ("current", "baseline") if turned else ("baseline", "current")
    return sorted(json.dumps([row[key] for key in (*keys, *sides)]) for row in rows)


def is_the_mirror_the_other_way_round(report: Any, other: Any) -> None:
    there: Any = compare(report, other)
    back: Any = compare(other, report)
    keys = ("check", "name", "labels")
    for one, two in (("worse", "better"), ("better", "worse")):
        assert moved(there["metrics"][one], keys) == moved(back["metrics"][two], keys, turned=True)
        assert moved(there["checks"][one], ("id",)) == moved(
            back["checks"][two], ("id",), turned=True
        )
    for kind in ("checks", "metrics"):
        assert there[kind]["missing"] == back[kind]["new"]
        assert there[kind]["new"] == back[kind]["missing"]
    assert moved(there["environment"], ("name",)) == moved(
        back["environment"], ("name",), turned=True
    )
    assert there["metrics"]["compared"] == back["metrics"]["compared"]
    assert len(there["unlike"]) == len(back["unlike"])


def has_its_shape_and_fits_80_columns(one: Any, other: Any) -> None:
    found = compare(one, other)
    COMPARISON.validate(json.loads(json.dumps(found)))
    assert max(map(len, compare_text.page(found).splitlines())) <= 80


def shaken(report: Any, chance: random.Random) -> Any:
    """Another run: numbers moved, statuses changed, a check gone, another driver."""
    other = copy.deepcopy(report)
    other["checks"] = [check for check in other["checks"] if chance.random() < 0.9]
    other["environment"]["driver"] = chance.choice([None, "1.2.3"])
    for check in other["checks"]:
        check["status"] = chance.choice(["pass", "fail", "skip", "error", check["status"]])
        for row in check["measured"].get("metrics", []):
            row["value"] *= chance.choice([1.0, 1.01, 0.8, -1.0, 0.0])
            row["spread"] = chance.choice([0.0, 0.05, 2.0])
            row["repeats"] = chance.choice([1, 3, 9])
    return other


@cases(
    "old new better expected",
    ("within the tolerance", 100, 96, "higher", ""),
    ("a rate that fell", 100, 94, "higher", "worse"),
    ("a rate that rose", 100, 106, "higher", "better"),
    ("a time that rose", 100, 106, "lower", "worse"),
    ("a time that fell", 100, 94, "lower", "better"),
    ("nothing both times", 0, 0, "higher", ""),
    ("nothing any more", 5, 0, "higher", "worse"),
    ("bytes where there were none", 0, 5, "lower", "worse"),
)
def test_which_way_is_worse(old: float, new: float, better: str, expected: str) -> None:
    found = compare(run(metric(old, better=better)), run(metric(new, better=better)))
    kinds = [kind for kind in ("worse", "better") if found["metrics"][kind]]
    assert kinds == ([expected] if expected else [])
    assert found["worse"] is (expected == "worse")


@cases(
    "old new worse",
    ("steady numbers", metric(100, 0.0), metric(90, 0.0), True),
    ("10 % in a scatter of 20 %", metric(100, 0.2), metric(90, 0.2), False),
    ("the same, 101 times", metric(100, 0.2, 101), metric(90, 0.2, 101), True),
    ("half, in the same scatter", metric(100, 0.2), metric(50, 0.2), True),
    ("once, beside one that scatters", metric(100, 0.2), metric(90, 0.0, 1), False),
    ("the same from the other side", metric(100, 0.0, 1), metric(90, 0.2), False),
    ("once both times: by tolerance", metric(100, 0.0, 1), metric(94, 0.0, 1), True),
)
def test_scatter_is_allowed_for(old: Any, new: Any, *, worse: bool) -> None:
    assert compare(run(old), run(new))["worse"] is worse


@pytest.mark.parametrize("repeats", [2, 3, 4, 5, 7, 9, 20, 100])
def test_sigma_is_got_back_from_the_spread_that_the_suite_measures(repeats: int) -> None:
    """By simulation: `measures.spread` of normal samples, averaged, against Blom's formula."""
    chance = random.Random(repeats)
    runs = 4000
    spreads = [
        measures.spread([100 + chance.gauss(0, 1) for _ in range(repeats)]) for _ in range(runs)
    ]
    row = metric(100, sum(spreads) / runs, repeats)
    assert sigma(row) == pytest.approx(0.01, rel=0.06)


def measured(chance: random.Random, middle: float, noise: float, repeats: int) -> Any:
    samples = [middle * (1 + chance.gauss(0, noise)) for _ in range(repeats)]
    return measures.of_samples("gemm", samples, "TFLOP/s").as_dict()


def called_worse(
    before: float, after: float, noise: float, repeats: int, tolerance: float
) -> float:
    """The share of 2000 comparisons that find the second machine worse."""
    chance = random.Random(repeats)
    count = 0
    for _ in range(2000):
        old, new = (measured(chance, middle, noise, repeats) for middle in (before, after))
        count += change(old["value"], new["value"]) < -allowance(old, new, tolerance)
    return count / 2000


@cases(
    "repeats most",
    ("three repeats", 3, 0.015),
    ("four, whose spread is one gap", 4, 0.035),
    ("five", 5, 0.015),
    ("seven", 7, 0.008),
    ("twenty", 20, 0.005),
)
def test_an_unchanged_machine_is_rarely_called_worse(repeats: int, most: float) -> None:
    assert called_worse(100, 100, 0.1, repeats, 0.0) <= most
    assert called_worse(100, 100, 0.02, repeats, 0.05) <= 0.003
    assert called_worse(100, 80, 0.02, repeats, 0.05) >= 0.95


def test_the_quartiles_of_many_samples_lie_1_35_sigmas_apart() -> None:
    assert quartile_distance(100_000) == pytest.approx(1.349, abs=1e-3)


@cases(
    "before after kind",
    ("a check that fails now", "pass", "fail", "worse"),
    ("one that does not run any more", "pass", "skip", "worse"),
    ("one that ran, and broke", "skip", "error", "worse"),
    ("one that is broken in another way", "fail", "error", "changed"),
    ("one that was mended", "error", "pass", "better"),
)
def test_statuses(before: str, after: str, kind: str) -> None:
    found = compare(run(status=before), run(status=after))
    assert [name for name, rows in found["checks"].items() if rows] == [kind]
    assert found["worse"] is (kind == "worse")


def test_a_pass_on_the_cpu_is_less_than_one_on_a_gpu() -> None:
    on_gpu, on_cpu = run(), run()
    on_cpu["checks"][0]["measured"]["device"] = "cpu"
    (row,) = compare(on_gpu, on_cpu)["checks"]["worse"]
    assert (row["baseline"], row["current"]) == ("pass", "pass-on-cpu")


def test_a_worse_verdict_is_worse() -> None:
    before, after = run(), run()
    after["verdict"] = "no-verdict"
    assert compare(before, after)["worse"]
    assert not compare(after, before)["worse"]


def test_what_is_missing_or_new_is_named_and_is_not_worse() -> None:
    before = run(metric(1), metric(2, labels={"gpu": "1"}))
    after = run(metric(1), metric(2, labels={"gpu": "2"}))
    after["checks"].append({**after["checks"][0], "id": "memory.new", "measured": {}})
    found = compare(before, after)
    assert not found["worse"]
    assert found["checks"]["new"] == ["memory.new"]
    assert [row["labels"] for row in found["metrics"]["missing"]] == [{"gpu": "1"}]
    assert [row["labels"] for row in found["metrics"]["new"]] == [{"gpu": "2"}]


def test_a_metric_of_another_unit_is_another_metric() -> None:
    found = compare(run(metric(1000)), run(metric(1, unit="PFLOP/s")))
    assert not found["worse"]
    assert found["metrics"]["compared"] == 0
    assert len(found["metrics"]["missing"]) == len(found["metrics"]["new"]) == 1


def test_what_changed_around_it_is_listed() -> None:
    rows = {row["name"]: row for row in compare(FIT, UNFIT)["environment"]}
    assert rows == {"driver": {"name": "driver", "baseline": "570.124.06", "current": "570.133.20"}}


@cases(
    "change_ word",
    ("another level", {"level": "quick"}, "level: standard against quick"),
    ("no GPU", {"gpus": []}, "none visible"),
    ("another processor", {"arch": "aarch64"}, "architecture"),
    ("jax", {"framework": {"name": "jax", "version": "1"}}, "pytorch against jax"),
)
def test_unlike_runs_are_called_unlike(change_: Any, word: str) -> None:
    other = copy.deepcopy(FIT)
    for name, value in change_.items():
        (other if name == "level" else other["environment"])[name] = value
    found = compare(FIT, other)
    assert len(found["unlike"]) == 1
    assert word in found["unlike"][0]
    assert word in " ".join(compare_text.page(found).split())


def command(*words: str) -> int:
    return main(
        ["compare", *(str(DATA / f"made-up-{w}.json") if w.isalpha() else w for w in words)]
    )


@cases(
    "words code",
    ("the same report", ["fit", "fit"], 0),
    ("a worse one", ["fit", "unfit"], 1),
    ("a better one", ["unfit", "fit"], 0),
    ("alike enough", ["fit", "unfit", "--alike"], 1),
)
def test_exit_codes(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*words) == code
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert ("Not worse than the baseline" in page) is (code == 0)


@cases(
    "words said",
    ("one report", ["fit"], "required: REPORT"),
    ("no such file", ["fit", "/nonexistent"], "No such file"),
    ("a foreign file", ["/etc/passwd", "fit"], "not JSON"),
    ("no tolerance", ["fit", "fit", "--tolerance", "nan"], "--tolerance"),
    ("all may be lost", ["fit", "fit", "--tolerance", "1"], "--tolerance"),
    ("unlike", ["fit", str(DATA / "made-up-no-verdict.json"), "--alike"], "GPUs"),
)
def test_bad_input_is_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_the_comparison_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("fit", "unfit", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    COMPARISON.validate(found)
    assert found == compare(FIT, UNFIT)
    assert {row["labels"]["gpu"] for row in found["metrics"]["worse"]} == {"1"}


def test_a_tolerance_of_half_lets_a_third_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("fit", "unfit", "--json", "--tolerance", "0.6") == 1  # for the checks
    found = json.loads(capsys.readouterr().out)
    assert not found["metrics"]["worse"]


def measuring(value: float) -> Check:
    def work(_: Context) -> Outcome:
        rows = measures.pack([measures.Metric("rate", value, "GB/s")])
        return Outcome(Status.PASS, "fine", measured={"device": "cuda", **rows})

    return Check("devices.made", "Made up", work, framework=False, gpu=True)


@pytest.mark.parametrize(
    ("value", "code"),
    [pytest.param(100.0, 0, id="as before"), pytest.param(80.0, 1, id="slower, though fit")],
)
def test_the_suite_compares_with_a_baseline(
    value: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, page = (str(tmp_path / name) for name in ("a.json", "b.json", "p.html"))
    assert main(["--report", before], {"pytorch": [measuring(100.0)]}) == 0
    words = ["--baseline", before, "--report", after, "--html", page]
    assert main(words, {"pytorch": [measuring(value)]}) == code
    report = shape.read(after)
    REPORT.validate(report)
    assert report["verdict"] == "fit"
    assert report["comparison"]["worse"] is bool(code)
    assert ("devices.made: rate: 100 -> 80 GB/s, 20 % less" in capsys.readouterr().out) is bool(
        code
    )
    assert ("Worse than the baseline" in Path(page).read_text(encoding="utf-8")) is bool(code)


def test_a_report_that_holds_a_comparison_is_a_baseline_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**FIT, "comparison": compare(UNFIT, FIT)}))
    assert main(["compare", str(path), str(path)]) == 0


def test_the_cpu_run_beside_the_gpu_run() -> None:
    found = compare(FIT, CPU)
    assert found["worse"]
    assert any("GPUs" in text for text in found["unlike"])
