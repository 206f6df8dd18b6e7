"""Of several hosts, which one holds the others back, and what would be possible without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.base import require_plan
from provision.catalog.loading import load
from provision.cli import main as cli
from provision.cli.render.plan import describe_matrix, describe_plan
from provision.errors import NothingCompatibleError
from provision.model.plan import HostFacts, Plan, Request
from provision.model.planfile import plan_from_json, plan_to_json
from provision.resolve import matrix, resolve
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()


def named(label: str, driver: str | None, *gpus: str) -> HostFacts:
    return host(driver, *gpus, label=label)


OLD = named("old", "470.82.01", "NVIDIA GeForce RTX 3090")
NEW = named("new", "580.95.05", "NVIDIA A100-SXM4-80GB")
NEWEST = named("newest", "595.84", "NVIDIA GeForce RTX 5090")
PASCAL = named("pascal", "580.95.05", "NVIDIA GeForce GTX 1080 Ti")
BLANK = named("blank", None)


def plan(*hosts: HostFacts, request: Request | None = None) -> Plan:
    return resolve(hosts, request or Request(), CATALOG)


@cases(
    "hosts limiting because",
    ("an old driver", [OLD, NEW], ["old"], "CUDA 13.0 needs driver 580 or newer; found 470.82.01"),
    ("an old GPU", [PASCAL, NEW], ["pascal"],
     "PyTorch 2.14.1+cu130 has no code for NVIDIA GeForce GTX 1080 Ti (compute"),
    ("a driver that runs it, and not natively", [NEW, NEWEST], ["new"],
     "CUDA 13.2 runs on it by minor-version compatibility"),
    ("a host of which nothing is known", [BLANK, NEW], ["blank"],
     "The driver or a GPU there is unknown."),
    ("two together, since neither alone makes a difference",
     [OLD, named("older", "460.32.03", "8.6"), NEW], ["old", "older"], "needs driver 580 or newer"),
    ("two equal hosts", [named("a", "470.82.01", "8.6"), named("b", "470.82.01", "8.6"), NEW],
     ["a", "b"], "needs driver 580"),
    ("the worst of three steps", [OLD, named("mid", "550.54.14", "8.6"), NEWEST, NEW], ["old"],
     "needs driver"),
)  # fmt: skip
def test_the_hosts_that_hold_the_others_back_are_named(
    hosts: list[HostFacts], limiting: list[str], because: str
) -> None:
    limit = plan(*hosts).limited_by
    assert limit is not None
    assert list(limit.hosts) == limiting
    assert because in limit.because
    rest = plan(*(one for one in hosts if one.label not in limiting))
    assert (limit.framework_version, limit.wheel_tag) == (rest.framework_version, rest.wheel_tag)


@cases(
    "hosts",
    ("one host", [NEW]),
    ("equal hosts", [NEW, named("twin", "580.95.05", "NVIDIA A100-SXM4-80GB")]),
    ("hosts that want the same", [NEW, named("other", "580.95.05", "8.6")]),
)
def test_where_no_host_holds_the_others_back_none_is_named(hosts: list[HostFacts]) -> None:
    assert plan(*hosts).limited_by is None


def test_two_gpus_of_one_host_are_no_two_hosts() -> None:
    made = plan(host("580.95.05", "NVIDIA GeForce GTX 1080 Ti", "NVIDIA GeForce RTX 4090"))
    assert made.limited_by is None


def test_where_nothing_fits_all_it_is_named_without_whom_something_would() -> None:
    made = plan(NEW, named("bad", "535.104.05", "NVIDIA GeForce RTX 5090"))
    assert made.verdict == "none"
    assert made.limited_by is not None
    assert made.limited_by.hosts == ("bad",)
    assert (made.limited_by.framework_version, made.limited_by.verdict) == ("2.14.1", "direct")
    with pytest.raises(NothingCompatibleError, match=r"Limited by bad\. Without it: PyTorch"):
        require_plan(made)


HOSTS = st.sampled_from([OLD, NEW, NEWEST, PASCAL, named("t4", "525.60.13", "Tesla T4")])


@given(st.lists(HOSTS, min_size=2, max_size=4, unique=True))
def test_what_is_promised_without_them_is_what_the_others_get(hosts: list[HostFacts]) -> None:
    made = plan(*hosts)
    if made.limited_by is None:
        return
    rest = plan(*(one for one in hosts if one.label not in made.limited_by.hosts))
    promised = (made.limited_by.framework_version, made.limited_by.cuda, made.limited_by.verdict)
    assert promised == (rest.framework_version, rest.cuda, rest.verdict)


def test_a_thousand_nodes_are_answered_as_two() -> None:
    nodes = [named(f"n{i}", "580.95.05", "NVIDIA A100-SXM4-80GB") for i in range(1000)]
    nodes += [named(f"old{i}", "470.82.01", "NVIDIA A100-SXM4-80GB") for i in range(5)]
    limit = plan(*nodes).limited_by
    assert limit is not None
    assert limit.hosts == ("old0", "old1", "old2", "old3", "old4")
    assert limit.words("pytorch").startswith("old0, old1, old2 and 2 more: ")


def test_it_is_shown_and_goes_through_json() -> None:
    made = plan(OLD, NEW)
    shown = " ".join(describe_plan(made).split())
    assert "limited by old: CUDA 13.0 needs driver 580 or newer" in shown
    assert "Without it: PyTorch 2.14.1 (cu130), runs." in shown
    text = json.dumps(plan_to_json(made))
    assert json.loads(text)["limited_by"]["hosts"] == ["old"]
    assert plan_from_json(json.loads(text)) == made


def test_the_matrix_says_it_too() -> None:
    hosts = [OLD, NEW]
    shown = describe_matrix(matrix(hosts, Request(), CATALOG), plan(*hosts))
    assert "limited by old: CUDA 13.0 needs driver" in " ".join(shown.split())


@pytest.mark.parametrize(
    "folder",
    [pytest.param("", id="a short path"), pytest.param("far/" * 30, id="a path that is cut")],
)
def test_the_command_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    files = []
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, driver in (("old.json", "470.82.01"), ("new.json", "580.95.05")):
        file = tmp_path / folder / name
        gpu = {"name": "NVIDIA A100-SXM4-80GB"}
        file.write_text(json.dumps({"driver": driver, "arch": "x86_64", "gpus": [gpu]}))
        files += ["--host", str(file)]
    assert cli.main(["plan", *files]) == 0
    assert "old.json: CUDA 13.0 needs driver" in " ".join(capsys.readouterr().out.split())
