"""What the page has of the doctor's knowledge: all that is matched, and the texts of the commonest.

That its answers are the command's is tested in tests/browser/test_page_causes.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.cli.page.causes import causes, common_codes
from provision.doctor.knowledge import Knowledge, load, patterns_of
from provision.doctor.model import Condition, Fix


def test_every_cause_and_every_pattern_is_there() -> None:
    found, known = causes(load()), load()
    assert [row["code"] for row in found["failures"]] == [one.code for one in known.failures]
    assert set(found["patterns"]) >= {p for one in known.failures for p in patterns_of(one)}
    assert len(found["needs"]) == len(found["patterns"])
    for row, one in zip(found["failures"], known.failures, strict=True):
        parts = [
            [found["patterns"][part] for part in symptom[0]] for symptom in row.get("symptoms", [])
        ]
        assert parts == [list(symptom.parts) for symptom in one.symptoms]


def test_each_cause_has_a_name_and_the_commonest_have_all_texts() -> None:
    found, known = causes(load()), load()
    assert list(found["texts"]) == [c for c in known.by_code if c in set(common_codes())]
    for row in found["failures"]:
        texts = found["texts"].get(row["code"], row)
        assert texts["title"] == known.by_code[row["code"]].title
    for code, texts in found["texts"].items():
        assert texts["fixes"], code
        assert texts["sources"], code


def test_codes_that_are_common_exist_once() -> None:
    assert set(common_codes()) <= set(load().by_code)
    assert len(set(common_codes())) == len(common_codes())


def test_a_fix_that_depends_on_what_a_text_states_is_a_mistake() -> None:
    """The page's script has no conditions of fixes."""
    known = load()
    code = common_codes()[0]
    fix = Fix(note="x", unless=(Condition(fact="wsl", operator="is", value=True),))
    failures = tuple(
        replace(one, fixes=(fix,)) if one.code == code else one for one in known.failures
    )
    with pytest.raises(ValueError, match="depends on a fact"):
        causes(Knowledge(failures=failures, facts=known.facts))
