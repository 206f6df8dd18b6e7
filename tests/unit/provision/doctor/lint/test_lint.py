"""The files themselves, and the three ways in which findings are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provision.catalog.loading import load
from provision.doctor.lint import (
    describe_findings,
    findings_json,
    is_of_a_kind,
    kind_of,
    kind_of_text,
    lint,
    lint_file,
    to_sarif,
)
from provision.doctor.lint.findings import LEVELS, rules, table
from provision.errors import BadInputError
from tests import DATA
from tests.kit.cases import cases

CATALOG = load()
SHAPE = DATA / "doctor" / "lint" / "sarif-subset.schema.json"
DOCKERFILE = "FROM nvidia/cuda:12.1.1-devel-ubuntu24.04\nRUN nvidia-smi\n"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Dockerfile", "dockerfile"),
        ("Dockerfile.gpu", "dockerfile"),
        ("gpu.Dockerfile", "dockerfile"),
        ("Containerfile", "dockerfile"),
        ("compose.yaml", "compose"),
        ("docker-compose.yml", "compose"),
        ("docker-compose.gpu.yml", "compose"),
        ("requirements.txt", "requirements"),
        ("requirements-gpu.txt", "requirements"),
        ("dev_requirements.txt", "requirements"),
        ("constraints.txt", "requirements"),
        ("pixi.toml", "pixi"),
        ("Dockerfile.dockerignore", None),
        ("compose.json", None),
        ("notes.txt", None),
        ("ubuntu", None),
        ("", None),
    ],
)
def test_a_name_tells_the_kind(name: str, kind: str | None) -> None:
    assert kind_of(Path("some/where") / name) == kind


@cases(
    "text rule",
    ("Dockerfile", f"ARG A\n{DOCKERFILE}", "gpu-at-build"),
    ("compose", "services:\n  a:\n    image: nvidia/cuda\n", "cuda-tag-none"),
    ("requirements", "# ours\ntorch==2.1.0\nnumpy==2.0.0\n", "torch-numpy"),
)
def test_where_the_name_says_nothing_the_text_does(text: str, rule: str) -> None:
    assert rule in {one.rule for one in lint("build.in.ci", text, CATALOG)}


TRACEBACK = """Traceback (most recent call last):
  File "fit.py", line 3, in <module>
    from torch import nn
ModuleNotFoundError: No module named 'torch'
"""


@cases(
    "text kind",
    ("a traceback shows a line with from", TRACEBACK, None),
    ("a from stands before output", "    from torch\nprinted\n", None),
    ("a from imports", "from torch import nn\n", None),
    ("a build's output comes first", "Step 1/2\nFROM busybox\nRUN x\n", None),
    ("a third is no instruction", "FROM busybox\nRUN x\nerror: x\n", None),
    ("a traceback follows a Dockerfile", f"{DOCKERFILE}{TRACEBACK}", None),
    ("a fifth is misspelt", "FROM busybox\nRUN a\nRUN b\nRUM c\nCMD d\n", "dockerfile"),
    ("a FROM has a flag and a name",
     "# syntax=docker/dockerfile:1\nARG A=busybox\nFROM --platform=$P $A AS b\n", "dockerfile"),
    ("keywords are in lower case", "from busybox\nrun true\n", "dockerfile"),
    ("a script is inside", "FROM busybox\nRUN <<EOF\nerror: a\nb\nEOF\n", "dockerfile"),
    ("keys of compose", "services:\n  web:\n    image: busybox\nx-gpu: &gpu\n", "compose"),
    ("an error follows keys", "services:\n  web:\nERROR: the file is invalid\n", None),
    ("a shell shows a compose file", "+ cat stack\nservices:\n  web:\n", None),
    ("keys of conda", "channels:\n- a\ndependencies:\n- b\n", "environment"),
    ("conda's output follows its file",
     "channels:\n- a\ndependencies:\n- b\nSolving environment: failed\n", None),
    ("a shell's one word", "Killed\n", None),
    ("one name of an error", "CUDNN_STATUS_INTERNAL_ERROR\n", None),
    ("a sentence with a number sign", "Note #2: it is slow\n", None),
    ("one package with a release", "Flask==3.1\n", "requirements"),
    ("one package", "torch\n", "requirements"),
    ("several packages", "Flask\ntorch==2.8.0\n", "requirements"),
)  # fmt: skip
def test_what_could_be_a_log_is_one(text: str, kind: str | None) -> None:
    assert kind_of_text(text) == kind


def test_no_log_is_taken_for_a_file() -> None:
    runs = [
        run
        for name in ("failed", "successful")
        for run in json.loads((DATA / "doctor" / f"{name}.json").read_text("utf-8"))["runs"]
    ]
    kinds = [kind_of_text(run["text"]) for run in runs]
    assert kinds == [None] * len(runs)


@pytest.mark.parametrize("name", ["error.txt", "stderr", "train.e123", "requirements.err.txt"])
def test_a_traceback_is_a_log_in_a_file_of_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(TRACEBACK)
    assert not is_of_a_kind(path)


@pytest.mark.parametrize("text", ["", "Some words. More of them!\n", "{}", "int main() {}\n"])
def test_a_file_of_no_kind_is_a_sentence(text: str) -> None:
    with pytest.raises(BadInputError, match="is not a supported file"):
        lint("notes", text, CATALOG)


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    large, binary, link = (tmp_path / f"Dockerfile.{n}" for n in ("large", "binary", "link"))
    large.write_bytes(b"# a comment\n" * 30_000)
    binary.write_bytes(b"FROM a\0b")
    link.symlink_to("/dev/zero")
    wrong = {
        tmp_path / "Dockerfile": "There is no file",
        tmp_path: "a directory",
        large: "larger than",
        binary: "not text",
        link: "not a regular file",
        Path("Dockerfile\0"): "cannot be read|There is no file",
    }
    for path, why in wrong.items():
        with pytest.raises(BadInputError, match=why) as caught:
            lint_file(path, CATALOG)
        assert caught.value.message.endswith(".")
        assert caught.value.fix


def test_a_file_in_another_encoding_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_bytes(b"\xef\xbb\xbf# caf\xe9\r\nFROM nvidia/cuda\r\n")
    (found,) = lint_file(path, CATALOG)
    assert (found.rule, found.line, found.path) == ("cuda-tag-none", 2, str(path))


@cases(
    "text",
    ("a value that doubles", "FROM a\nENV A=aaaa\n" + "ENV A=$A$A\n" * 64 + "RUN echo $A\n"),
    ("a value many times", "FROM a\nENV A=" + "a" * 4000 + "\nRUN echo " + "$A" * 60_000),
    ("many commands",
     "FROM nvidia/cuda:12.1.1-devel-ubuntu22.04\n" + "RUN pip install torch\n" * 5_000),
    ("open brackets", "FROM a\nRUN " + "$(" * 60_000),
)  # fmt: skip
def test_a_hostile_dockerfile_ends(text: str) -> None:
    assert isinstance(lint("Dockerfile", text, CATALOG), list)


def test_more_stages_than_anybody_writes_are_a_sentence() -> None:
    with pytest.raises(BadInputError, match="stages"):
        lint("Dockerfile", "FROM a\n" * 500, CATALOG)


# --- how it is told -----------------------------------------------------------------------------


def test_a_person_reads_place_and_fix_in_eighty_columns() -> None:
    findings = lint("docker/Dockerfile", DOCKERFILE, CATALOG)
    lines = describe_findings(findings, ("docker/Dockerfile",)).splitlines()
    assert lines[0] == "docker/Dockerfile:1:6: error [cuda-tag-unknown]"
    assert lines[-2] == "2 errors."
    assert any(line.startswith("  fix: ") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_person_reads_that_nothing_was_found() -> None:
    assert describe_findings([], ("a", "b")) == "No problems found in a, b."


def test_json_has_every_field_and_the_counts() -> None:
    findings = lint("Dockerfile", DOCKERFILE, CATALOG)
    said = json.loads(json.dumps(findings_json(findings)))
    assert said["counts"] == {"error": 2, "warning": 0, "note": 0}
    assert [one["rule"] for one in said["findings"]] == ["cuda-tag-unknown", "gpu-at-build"]
    assert said["findings"][0]["replacement"].endswith("ubuntu22.04")


def test_sarif_is_of_the_documented_shape() -> None:
    findings = lint("some where/Dockerfile", DOCKERFILE, CATALOG)
    said = json.loads(json.dumps(to_sarif(findings, "1.2.3")))
    Draft202012Validator(json.loads(SHAPE.read_text(encoding="utf-8"))).validate(said)
    (run,) = said["runs"]
    table_ = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [table_[one["ruleIndex"]] for one in run["results"]] == [one.rule for one in findings]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "some%20where/Dockerfile"


def test_a_fix_of_sarif_makes_the_file_that_has_no_such_finding() -> None:
    findings = lint("Dockerfile", DOCKERFILE, CATALOG)
    result = to_sarif(findings, "1")["runs"][0]["results"][0]
    change = result["fixes"][0]["artifactChanges"][0]["replacements"][0]
    mended = _applied(DOCKERFILE, change)
    assert {one.rule for one in lint("Dockerfile", mended, CATALOG)} == {"gpu-at-build"}


def _applied(text: str, change: dict[str, Any]) -> str:
    region = change["deletedRegion"]
    assert (region["startColumn"], region["endColumn"]) == (1, 1)
    lines = text.splitlines(keepends=True)
    begin, end = region["startLine"] - 1, region["endLine"] - 1
    return "".join([*lines[:begin], change["insertedContent"]["text"], *lines[end:]])


def test_paths_below_the_working_directory_are_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    findings = lint(str(tmp_path / "a" / "Dockerfile"), DOCKERFILE, CATALOG)
    location = to_sarif(findings, "1")["runs"][0]["results"][0]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "a/Dockerfile"


# --- the table ----------------------------------------------------------------------------------


def test_every_rule_has_what_is_told_of_it() -> None:
    for rule in rules().values():
        assert rule.level in LEVELS, rule.code
        assert rule.title
        assert rule.help.endswith("."), rule.code
        assert rule.links, rule.code
        assert all(link.startswith("https://") for link in rule.links), rule.code


def test_every_rule_has_a_seeded_fault() -> None:
    from tests.unit.provision.doctor.lint import (
        test_build_rules,
        test_compose,
        test_dockerfile,
        test_pair_rules,
        test_projects,
        test_requirements,
    )

    tables = [test_build_rules, test_compose, test_dockerfile, test_pair_rules, test_requirements]
    rows = [*test_projects.TWINS.values(), *test_projects.ENVIRONMENTS.values()]
    seeded = {rule for rule, _ in [*rows, *(row for one in tables for row in one.TWINS.values())]}
    assert seeded | {"framework-not-for-host"} == set(rules())  # that one is in test_for_host.py


def test_ended_systems_are_none_that_the_newest_images_stand_on() -> None:
    newest = max(CATALOG.images, key=lambda row: tuple(map(int, row.full.split("."))))
    assert newest.os not in table("known.toml")["ended"]
