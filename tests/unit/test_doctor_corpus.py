"""The doctor's own corpus: real error texts, each with the cause that it must name first.

The texts are programs' output as people met it; each case says where it comes from. A case with
facts shows that they decide; one without shows what is said when nothing else is known.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from provision.doctor import Diagnosis, Fact, diagnose, load

CORPUS = Path(__file__).parents[1] / "data" / "doctor" / "corpus"


@cache
def cases() -> tuple[Any, ...]:
    return tuple(
        pytest.param(case, id=f"{path.stem}: {case['id']}")
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


@pytest.mark.parametrize("case", cases())
def test_the_cause_stands_first(case: dict[str, Any]) -> None:
    causes = answer(case).causes
    assert causes, "unknown"
    ranking = [(cause.code, cause.confidence) for cause in causes]
    assert causes[0].code == case["code"], ranking
    if "confidence" in case:
        assert causes[0].confidence == case["confidence"], ranking
    assert causes[0].evidence
    assert causes[0].fixes


def test_a_case_names_a_failure_and_facts_that_exist_and_says_where_it_is_from() -> None:
    knowledge = load()
    for case in (param.values[0] for param in cases()):
        assert case["code"] in knowledge.by_code, case["id"]
        assert set(case.get("facts", {})) <= set(knowledge.facts), case["id"]
        assert case["source"], case["id"]
    ids = [param.id for param in cases()]
    assert len(ids) == len(set(ids))


def test_every_failure_that_a_text_shows_has_a_case() -> None:
    told = {param.values[0]["code"] for param in cases()}
    assert [one.code for one in load().failures if one.symptoms and one.code not in told] == []
