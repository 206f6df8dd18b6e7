"""The doctor's own corpus: error texts, each with the cause that it must name first.

The texts have programs' own messages, among invented surroundings; each case says which public
report the fact is from. A case with facts shows that they decide; one without shows what is said
when nothing else is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from provision.doctor import Diagnosis, Fact, diagnose, load
from provision.doctor.causes import PLACEHOLDER
from tests import DATA
from tests.kit.personal import personal

CORPUS = DATA / "doctor" / "corpus"


@cache
def cases() -> tuple[tuple[str, dict[str, Any]], ...]:
    """The layer of each case, and the case."""
    return tuple(
        (path.stem, case)
        for path in sorted(CORPUS.glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))
    )


def facts_of(case: dict[str, Any]) -> dict[str, Fact]:
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in case.get("facts", {}).items()
    }
    return {name: Fact(value=value, where="the case") for name, value in values.items()}


def answer(case: dict[str, Any], text: str | None = None) -> Diagnosis:
    return diagnose([("log", case["text"] if text is None else text)], facts_of(case))


@pytest.mark.parametrize("layer", sorted({layer for layer, _ in cases()}))
def test_the_cause_stands_first(layer: str) -> None:
    wrong = []
    for of, case in cases():
        if of != layer:
            continue
        causes = answer(case).causes
        ranking = [(cause.code, cause.confidence) for cause in causes]
        code, confidence = ranking[0] if ranking else ("unknown", "")
        if (code, confidence) != (case["code"], case.get("confidence", confidence)):
            wrong.append((case["id"], case["code"], ranking))
        elif not causes[0].evidence or not causes[0].fixes:
            wrong.append((case["id"], "no evidence, or no fix", ranking))
        elif PLACEHOLDER.search(causes[0].title + causes[0].cause):
            wrong.append((case["id"], "a name that is not filled in", ranking))
    assert wrong == []


def test_a_case_names_a_failure_and_facts_that_exist_and_says_where_it_is_from() -> None:
    knowledge = load()
    for _, case in cases():
        assert case["code"] in knowledge.by_code, case["id"]
        assert set(case.get("facts", {})) <= set(knowledge.facts), case["id"]
        assert case["source"], case["id"]
    ids = [(layer, case["id"]) for layer, case in cases()]
    assert len(ids) == len(set(ids))


def test_every_failure_that_a_text_shows_has_a_case() -> None:
    told = {case["code"] for _, case in cases()}
    assert [one.code for one in load().failures if one.symptoms and one.code not in told] == []


# --- texts that were examined -------------------------------------------------------------------

# Answered rightly today. What was asked once is known since: fewer would be a step back.
RIGHT = 367


# Of the 113 whole logs of failures that were really produced.
PRODUCED = 108


@cache
def examined() -> tuple[dict[str, Any], ...]:
    """Cases: the right causes (null: none), and those that the text cannot tell from them.

    Each is written after a public report, its source, and has the program's own messages.
    """
    return tuple(json.loads((CORPUS.parent / "examined.json").read_text(encoding="utf-8")))


def test_examined_texts_are_answered_as_well_as_before() -> None:
    right, sure_and_wrong = 0, []
    for case in examined():
        said = answer(case)
        first = None if said.unexplained else next(iter(said.causes), None)
        code = first and first.code
        right += code in case["right"]
        if first and first.confidence == "high" and code not in case["right"] + case["plausible"]:
            sure_and_wrong.append((case["id"], code))
    assert sure_and_wrong == []
    assert right >= RIGHT


def test_failures_that_were_really_produced_are_answered_as_well_as_before() -> None:
    runs = json.loads((CORPUS.parent / "failed.json").read_text(encoding="utf-8"))["runs"]
    right, wrong = 0, []
    for run in runs:
        said = answer(run)
        first = None if said.unexplained else next(iter(said.causes), None)
        right += first is not None and first.code in run["right"]
        if first and first.code not in [*run["right"], *run["plausible"]]:
            wrong.append((run["id"], first.code))
        assert not said.ended_well, run["id"]
    assert wrong == []
    assert right >= PRODUCED


def test_examined_cases_name_failures_and_say_where_they_are_from() -> None:
    known = {*load().by_code, None}
    for case in examined():
        assert {*case["right"], *case["plausible"]} <= known, case["id"]
        assert case["sources"], case["id"]
        assert all(one.startswith("https://") for one in case["sources"]), case["id"]


# --- nobody's texts -----------------------------------------------------------------------------


def recorded() -> Iterator[tuple[str, str]]:
    """Each text of this folder, with its name."""
    for path in [*CORPUS.glob("*.json"), *CORPUS.parent.glob("*.json")]:
        data = json.loads(path.read_text(encoding="utf-8"))
        for case in data["runs"] if isinstance(data, dict) else data:
            fields = {name: value for name, value in case.items() if "source" not in name}
            yield f"{path.name}: {case['id']}", "\n".join(map(str, fields.values()))
    lines = (CORPUS.parent / "unrelated.txt").read_text(encoding="utf-8").splitlines()
    yield from ((f"unrelated.txt:{number}", line) for number, line in enumerate(lines, 1))


def test_no_text_holds_a_persons_or_a_machines_name() -> None:
    assert {name: found for name, text in recorded() if (found := personal(text))} == {}


def test_no_text_is_said_to_be_another_persons() -> None:
    of_others = re.compile(r"\bverbatim\b|\bcopied (?:from|as|whole)\b|, copied\b", re.IGNORECASE)
    assert [name for name, text in recorded() if of_others.search(text)] == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("GPU-a137dd66-f6a3-7951-1348-c37443697050", "redacted", id="a GPU"),
        pytest.param("Serial Number : 0322518029277", "serial", id="a board"),
        pytest.param("GPU serial number is 0322518029277.", "serial", id="a board, in a sentence"),
        pytest.param("link/ether 3c:7c:3f:12:34:56 brd", "redacted", id="a network card"),
        pytest.param("connect to 10.73.133.81:29500", "address", id="a private address"),
        pytest.param("connect to 8.8.4.4", "address", id="a public address"),
        pytest.param("connect to 2a00:1450:4001:81b::200e", "address", id="an IPv6 address"),
        pytest.param("Author: Jo Doe <jo.doe@univ.edu>", "mail", id="a mailbox"),
        pytest.param('File "/home/jdoe/train.py"', "home", id="a home"),
        pytest.param("C:\\Users\\Jo Doe\\pip.log", "home", id="a home of Windows"),
        pytest.param("(torch) jdoe@lab3:~/net$ python a.py", "prompt", id="a prompt"),
        pytest.param("[jdoe@login1 net]$ sbatch a.sh", "prompt", id="a prompt in brackets"),
        pytest.param("https://jdoe:hunter2@index.example/simple", "redacted", id="a login"),
        pytest.param("HF_TOKEN=hf_" + "aBcDeFgHiJ" * 3 + "kLmN", "token", id="a token"),
    ],
)
def test_a_text_with_it_is_refused(text: str, kind: str) -> None:
    assert any(one.startswith(f"{kind}: ") for one in personal(f"a line\n{text}\nanother"))


@pytest.mark.parametrize(
    "text",
    [
        "GPU-00000000-0000-0000-0000-000000000001",
        "connect to 192.0.2.7:29500, 127.0.0.1 or 169.254.3.4",
        "libcudnn8=8.9.7.29-1 and nvidia_cublas_cu11-11.11.3.6-py3-none.whl",
        "user@node-a:~/net$ nvidia-smi",
        "uses: actions/checkout@v4, torch@2.1.0, cusparseX@libcusparse.so.12",
        "/home/user/net/train.py",
        "invalid bearer token: it has expired",
    ],
)
def test_an_invented_text_is_not_refused(text: str) -> None:
    assert personal(text) == []
