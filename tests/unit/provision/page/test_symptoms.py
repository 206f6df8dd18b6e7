"""The table in which the page looks up an error: which phrases, and which one comes first.

How the page shows them is tested in tests/browser/test_page_symptoms.py.
"""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

from provision.doctor.knowledge import load, parse
from provision.page.symptoms import Known, known, phrases_of, table
from tests.kit.cases import cases


@cases(
    "pattern phrases",
    ("words", "CUDA error: Out of memory", [("cuda error: out of memory",)]),
    ("a gap splits", r"libcudnn\S*\.so: no", [("libcudnn", ".so: no")]),
    ("a group", r"(?i)driver\s+too (?P<how>old)\b", [("driver", "too old")]),
    ("either", "(?:cuda|nccl) fails", [("cuda fails",), ("nccl fails",)]),
    ("optional words", "cannot (?:even )?start", [("cannot ", "start")]),
    ("an optional letter", "files?  gone", [("file", " gone")]),
    ("two digits", "sm_[89]0 only", [("sm_80 only",), ("sm_90 only",)]),
    ("repeated letters", r"a+b{2}c{0,9}d", [("a", "b", "d")]),
    ("brackets", r"say[^\]]\[x\]", [("say", "[x]")]),
    ("a range of digits means something", "sm_[5-7]0 only", []),
    ("a small number means something", r"with \d{1,2} MB free", []),
    ("a byte by its number", r"\x1b broken", []),
    ("too many", "(a|b)(c|d)(e|f)(g|h)(i|j)", []),
)
def test_a_pattern_becomes_the_words_that_are_certain(
    pattern: str, phrases: list[tuple[str, ...]]
) -> None:
    assert list(phrases_of(pattern)) == phrases


def holds(phrase: tuple[str, ...], line: str) -> bool:
    return re.search(".*?".join(map(re.escape, phrase)), line.lower()) is not None


def test_a_line_of_words_holds_a_phrase_of_each_pattern_that_it_matches() -> None:
    """Each pattern without gaps is a line that it matches itself."""
    plain = [one.pattern for one in known(load()) if re.fullmatch(r"[\w :,'/=-]+", one.pattern)]
    assert len(plain) > 100
    for line in plain:
        assert any(holds(phrase, line) for phrase in phrases_of(line)), line


def codes_in_order(*rows: Known) -> list[str]:
    found = table(rows)
    return [found["meanings"][number][0] for number, *_ in found["phrases"]]


def test_the_longest_phrase_comes_first_proofs_before_what_is_usual_or_general() -> None:
    found = codes_in_order(
        Known("the process was killed by a signal", "killed", "", rank=2),
        Known("initialization error: driver", "usual", "", rank=1),
        Known("initialization error", "start", ""),
        Known("initialization error: gone", "driver", ""),
        Known("too short", "short", ""),
        Known("^no GPU at all$", "whole", "", rank=1, is_whole=True),
    )
    assert found == ["driver", "start", "usual", "whole", "killed"]


def test_of_two_meanings_of_a_phrase_the_proof_or_the_commoner_counts() -> None:
    words = "initialization error"
    usual = Known(words, "usual", "", rank=1, often=9)
    rare, common = Known(words, "rare", "", often=2), Known(words, "common", "", often=3)
    assert codes_in_order(usual, rare) == ["rare"]
    assert codes_in_order(rare, common, usual) == ["common"]


def test_a_phrase_that_is_all_of_a_line_is_marked() -> None:
    found = table([Known(r"(?i)^\W*GPU: available\W*$", "x", "", is_whole=True)])
    assert found["phrases"] == [[0, "", "gpu: available"]]


def test_what_changes_a_meaning_is_in_the_table_or_the_meaning_is_not() -> None:
    rows = [
        Known("the words of a proof", "x", "", unless=("not (here|there)",)),
        Known("the words of another", "y", "", unless=("sm_[5-7]0",)),
    ]
    found = table(rows)
    assert [meaning[0] for meaning in found["meanings"]] == ["x"]
    assert found["unless"] == {0: [("not here",), ("not there",)]}


def failure(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"code": "x", "layer": "driver", "title": "No {what}", "cause": "c"}
    row |= {"symptoms": ["the words of a proof"], "fix": [{"note": "Do it."}]}
    return {**row, "sources": ["a book", "https://example.org"], **changes}


@cases(
    "changes patterns",
    ("a proof by itself", {}, ["the words of a proof"]),
    ("a notice stops nothing", {"severity": "warns"}, []),
    ("what is usual", {"symptoms": [{"text": "usual words", "is": "typical"}]}, ["usual words"]),
    ("a hint, or several lines",
     {"symptoms": [{"text": "maybe", "is": "hint"}, {"all": ["one", "two"]}]}, []),
    ("a whole line",
     {"symptoms": [{"text": r"(?i)^\W*GPU: no\W*$", "is": "typical", "survived": True}]},
     [r"(?i)^\W*GPU: no\W*$"]),
    ("a line excludes it", {"symptoms": [{"text": "a", "without": "b"}]}, []),
)  # fmt: skip
def test_what_is_taken_from_the_doctor(changes: dict[str, Any], patterns: list[str]) -> None:
    found = list(known(parse({"x.toml": {"failure": [failure(**changes)]}})))
    assert [one.pattern for one in found] == patterns


def test_a_sentence_has_no_holes_and_a_link_is_an_address() -> None:
    rows = failure(defaults={"what": "library"}), failure(title="No {other}")
    one, other = known(parse({"x.toml": {"failure": [*rows]}}))
    assert (one.sentence, other.sentence) == ("No library", "No ...")
    assert (one.advice, one.link) == ("Do it.", "https://example.org")
    assert not any("{" in one.sentence for one in known(load()))


def test_the_table_of_all_that_is_known() -> None:
    found = table(known(load()))
    assert len(found["phrases"]) > len(found["meanings"]) > 100
    assert len(gzip.compress(json.dumps(found).encode())) < 200_000
