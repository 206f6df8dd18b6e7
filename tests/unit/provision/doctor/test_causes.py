"""From hits and facts to ranked causes: made-up knowledge, so that each rule stands alone."""

from __future__ import annotations

from typing import Any

import pytest

from provision.doctor import Diagnosis, Fact, diagnose, load
from provision.doctor.conditions import holds
from provision.doctor.fixes import pick_fixes
from provision.doctor.knowledge import Knowledge, check, parse
from provision.doctor.model import Condition, Evidence, Fix, Operator, Value
from provision.errors import CatalogError
from tests.kit.cases import cases

FACTS = {
    "docker.snap": {"kind": "bool", "means": "x"},
    "driver.version": {"kind": "str", "means": "x"},
    "cdi.missing": {"kind": "list", "means": "x"},
    "shm.mib": {"kind": "int", "means": "x"},
}


def row(code: str, **more: Any) -> dict[str, Any]:
    """A failure. Its title states the symptom where a text proves it."""
    symptoms = [one for one in more.get("symptoms", ()) if "is" not in one]
    return {
        "code": code,
        "layer": "docker",
        "title": f"title of {code}",
        "states": "symptom" if symptoms else "reason",
        "cause": "why",
        "sources": ["https://example.org"],
        "fix": [{"note": "do"}],
        **more,
    }


def knowing(*rows: dict[str, Any]) -> Knowledge:
    return parse({"x.toml": {"failure": list(rows), "fact": FACTS}})


def facts(**values: Value) -> dict[str, Fact]:
    return {
        name.replace("__", "."): Fact(value=value, where="/there") for name, value in values.items()
    }


def ranked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(cause.code, cause.confidence) for cause in diagnosis.causes]


SNAP = {"fact": "docker.snap", "is": True, "says": "Docker is a snap"}
TWINS = (
    row("usual", symptoms=[{"text": "no gpu here", "is": "typical"}], often=7),
    row("snap", symptoms=[{"text": "no gpu here", "is": "typical"}], often=2, clues=[SNAP]),
    row(
        "not-with-snap",
        symptoms=[{"text": "no gpu here", "is": "typical"}],
        often=1,
        clues=[{**SNAP, "against": True}],
    ),
)


# The title of "why" names a reason that its message does not state.
WHY = {"symptoms": ["boom"], "states": "reason"}


@cases(
    "failure known expected",
    ("a symptom is sure", row("what", symptoms=["boom"]), {}, "high"),
    ("a reason is likely", row("why", **WHY), {}, "medium"),
    ("a reason is sure where the machine agrees", row("why", **WHY, clues=[SNAP]),
     {"docker__snap": True}, "high"),
    ("what the machine does not agree with is not", row("why", **WHY, clues=[SNAP]),
     {"docker__snap": False}, "medium"),
)  # fmt: skip
def test_sure_is_what_failed_and_why_only_by_the_machine(
    failure: dict[str, Any], known: dict[str, Value], expected: str
) -> None:
    text = "Traceback (most recent call last):\nRuntimeError: boom\n"
    said = diagnose([("log", text)], facts(**known), knowledge=knowing(failure))
    assert ranked(said) == [(failure["code"], expected)]
    assert said.causes[0].states == failure["states"]
    assert said.failed == Evidence(says="RuntimeError: boom", where="log:2")


@cases(
    "text expected",
    ("the line of the cause, where no line says why", "x\nboom\n", "boom"),
    ("of a reason the line that says why the text ended",
     "ValueError: bad\n" + "x\n" * 200 + "boom\nKeyError: 'y'\n", "KeyError: 'y'"),
    ("nothing failed in a text that ends well", "boom\n1 passed\n", None),
    ("not what was typed, but what came of it", ">>> go\nIllegal instruction\n",
     "Illegal instruction"),
    ("nor a bare value", ">>> go\nFalse\n", None),
    ("no text", "", None),
)  # fmt: skip
def test_which_line_says_what_failed(text: str, expected: str | None) -> None:
    typed = row("typed", symptoms=[{"all": ["^>>> go", "False|Illegal"], "is": "typical"}])
    said = diagnose([("log", text)], knowledge=knowing(row("why", **WHY), typed)).failed
    assert (said and said.says) == expected


@cases(
    "rows text known expected",
    ("a proof is sure", [row("a", symptoms=["boom"])], "x boom y", {}, [("a", "high")]),
    ("nothing is unknown", [row("a", symptoms=["boom"])], "calm", {}, []),
    ("a typical text alone is likely", [row("a", symptoms=[{"text": "boom", "is": "typical"}])],
     "boom", {}, [("a", "medium")]),
    ("a hint is possible", [row("a", symptoms=[{"text": "boom", "is": "hint"}])], "boom", {},
     [("a", "low")]),
    ("a hint with evidence is likely",
     [row("a", symptoms=[{"text": "boom", "is": "hint"}], clues=[SNAP])], "boom",
     {"docker__snap": True}, [("a", "medium")]),
    ("of twins the frequent one stands first, and nobody is sure", TWINS, "no gpu here", {},
     [("usual", "medium"), ("snap", "low"), ("not-with-snap", "low")]),
    ("the machine decides between twins, and rules one out", TWINS, "no gpu here",
     {"docker__snap": True}, [("snap", "high"), ("usual", "medium")]),
    ("a clue that does not hold supports nothing", TWINS[:2], "no gpu here",
     {"docker__snap": False}, [("usual", "medium"), ("snap", "medium")]),
    ("two proofs on one line are not sure",
     [row("a", symptoms=["boom"]), row("b", symptoms=["bo+m"])], "boom", {},
     [("a", "medium"), ("b", "medium")]),
    ("the one that beats the other is sure",
     [row("a", symptoms=["boom"], beats=["b"]), row("b", symptoms=["bo+m"])], "boom", {},
     [("a", "high"), ("b", "medium")]),
    ("of two failures the first in the text stands first",
     [row("late", symptoms=["second"]), row("root", symptoms=["first"])], "first\nsecond", {},
     [("root", "high"), ("late", "high")]),
    ("what explains another goes before it, wherever it stands",
     [row("late", symptoms=["second"], beats=["early"]), row("early", symptoms=["first"])],
     "first\nsecond", {}, [("late", "high"), ("early", "medium")]),
    ("an outcome comes after its cause, wherever that stands",
     [row("end", symptoms=["first"], outcome=True, often=9),
      row("root", symptoms=[{"text": "second", "is": "typical"}])], "first\nsecond", {},
     [("root", "medium"), ("end", "medium")]),
    ("another reading of the outcome's line is no cause of it",
     [row("end", symptoms=["boom"], outcome=True),
      row("rival", symptoms=[{"text": "bo+m", "is": "typical"}])], "boom", {},
     [("end", "high"), ("rival", "medium")]),
    ("what does no harm, or is a hint, is no cause of an outcome",
     [row("end", symptoms=["first"], outcome=True),
      row("noise", symptoms=["second"], severity="warns"),
      row("guess", symptoms=[{"text": "third", "is": "hint"}])], "first\nsecond\nthird", {},
     [("end", "high"), ("noise", "high"), ("guess", "low")]),
    ("of two outcomes the one that beats the other stands first",
     [row("end", symptoms=["first"], outcome=True, beats=["last"]),
      row("last", symptoms=["second"], outcome=True, often=9)], "second\nfirst", {},
     [("end", "high"), ("last", "medium")]),
    ("a line rules it out", [row("a", symptoms=["boom"], unless=["all is well"])],
     "boom\nall is well", {}, []),
    ("all lines must be there, in any order", [row("a", symptoms=[{"all": ["one", "two"]}])],
     "two\nthree\none", {}, [("a", "high")]),
    ("one of two lines is not enough", [row("a", symptoms=[{"all": ["one", "two"]}])], "one", {},
     []),
    ("the machine alone shows it", [row("a", host=[{"fact": "docker.snap", "is": True}])], "",
     {"docker__snap": True}, [("a", "high")]),
    ("an unknown fact shows nothing", [row("a", host=[{"fact": "docker.snap", "is": True}])], "",
     {}, []),
    ("all conditions must hold",
     [row("a", host=[{"fact": "docker.snap", "is": True}, {"fact": "shm.mib", "under": 100}])], "",
     {"docker__snap": True, "shm__mib": 512}, []),
    ("what the text shows goes before what the machine shows besides",
     [row("seen", symptoms=[{"text": "boom", "is": "typical"}], often=0),
      row("besides", host=[{"fact": "docker.snap", "is": True}], often=9)], "boom",
     {"docker__snap": True}, [("seen", "medium"), ("besides", "high")]),
    ("but not a mere hint",
     [row("seen", symptoms=[{"text": "boom", "is": "hint"}], often=9),
      row("besides", host=[{"fact": "docker.snap", "is": True}], often=0)], "boom",
     {"docker__snap": True}, [("besides", "high"), ("seen", "low")]),
    ("what does no harm does not stand before what does",
     [row("noise", symptoms=["first"], severity="warns"),
      row("harm", symptoms=[{"text": "second", "is": "typical"}])], "first\nsecond", {},
     [("harm", "medium"), ("noise", "high")]),
    ("a decisive clue outweighs another",
     [row("a", symptoms=[{"text": "boom", "is": "typical"}], clues=[SNAP], often=9),
      row("b", symptoms=[{"text": "boom", "is": "typical"}], often=0,
          clues=[{"fact": "shm.mib", "is": 64, "decisive": True}])], "boom",
     {"docker__snap": True, "shm__mib": 64}, [("b", "high"), ("a", "medium")]),
    ("what the text proves the machine cannot rule out",
     [row("a", symptoms=["boom"], clues=[{**SNAP, "against": True}])], "boom",
     {"docker__snap": True}, [("a", "high")]),
)  # fmt: skip
def test_ranking(
    rows: list[dict[str, Any]],
    text: str,
    known: dict[str, Value],
    expected: list[tuple[str, str]],
) -> None:
    found = diagnose([("log", text)], facts(**known), knowledge=knowing(*rows))
    assert ranked(found) == expected


def test_what_is_ruled_out_is_told_with_its_reason() -> None:
    found = diagnose([("log", "no gpu here")], facts(docker__snap=True), knowledge=knowing(*TWINS))
    (out,) = found.ruled_out
    assert (out.code, out.evidence.says, out.evidence.where) == (
        "not-with-snap",
        "Docker is a snap",
        "/there",
    )


def test_evidence_is_the_line_and_the_fact() -> None:
    found = diagnose(
        [("run.log", "a\nb\nno gpu here: \033[31mred\033[0m\n")],
        facts(docker__snap=True),
        knowledge=knowing(*TWINS),
    )
    evidence = [(e.says, e.where) for e in found.causes[0].evidence]
    assert evidence == [("no gpu here: red", "run.log:3"), ("Docker is a snap", "/there")]


def test_a_group_of_the_text_fills_the_words_and_is_quoted_in_commands() -> None:
    known = knowing(
        row(
            "a",
            title="{library} is missing",
            symptoms=["cannot load (?P<library>.+)$"],
            defaults={"library": "a library"},
            fix=[{"note": "find {library}", "run": "ldconfig -p | grep {library}"}],
            confirm="ls {library} ${HOME}",
        )
    )
    (cause,) = diagnose([("log", "cannot load x; rm -rf /")], knowledge=known).causes
    assert cause.title == "x; rm -rf / is missing"
    assert cause.fixes[0].run == "ldconfig -p | grep 'x; rm -rf /'"
    assert cause.confirm == "ls 'x; rm -rf /' ${HOME}"


def test_lines_that_were_put_together_prove_nothing() -> None:
    known = knowing(row("a", symptoms=["the driver that is loaded is not the one"]))
    text = "2026-02-03 04:05:06 something: the driver that is loaded\nis not the one that was found"
    (cause,) = diagnose([("log", text)], knowledge=known).causes
    assert cause.confidence == "medium"


@pytest.mark.parametrize(
    ("operator", "value", "have", "expected"),
    [
        ("is", True, True, True),
        ("is", True, False, False),
        ("is", ("snap", "deb"), "deb", True),
        ("not", "deb", "snap", True),
        ("under", "525.60.13", "515.65.01", True),
        ("under", "12.10", "12.9", True),
        ("atleast", "12.9", "12.10", True),
        ("under", 64, 64, False),
        ("under", "12", "no version", False),
        ("atleast", "12", "no version", False),
        ("has", "nvidia", ("runc", "nvidia"), True),
        ("has", "nvidia", "libnvidia", True),
        ("matches", "^nv", ("runc", "nvidia"), True),
        ("matches", "^nv", "runc", False),
    ],
)
def test_conditions(operator: Operator, value: Value, have: Value, expected: bool) -> None:  # noqa: FBT001
    condition = Condition(fact="x", operator=operator, value=value)
    assert holds(condition, {"x": Fact(value=have, where="")}) is expected
    assert not holds(condition, {})


DEBIAN, RHEL, ANY = Fix(on=("debian",)), Fix(on=("rhel",)), Fix()
SNAP_DOCKER = Fix(on=("snap-docker",))


@cases(
    "fixes where expected",
    ("its own", (DEBIAN, RHEL), {"debian", "docker"}, (DEBIAN,)),
    ("its own first", (ANY, DEBIAN, RHEL), {"rhel"}, (RHEL, ANY)),
    ("that of everybody", (ANY, DEBIAN), {"suse"}, (ANY,)),
    ("all, where none is its own", (DEBIAN, RHEL), {"suse"}, (DEBIAN, RHEL)),
    ("only its own, where others do harm", (SNAP_DOCKER, DEBIAN, ANY), {"debian", "snap-docker"},
     (SNAP_DOCKER,)),
    ("all, where nothing is known of the machine", (DEBIAN, RHEL), set(), (DEBIAN, RHEL)),
)  # fmt: skip
def test_fixes_are_those_of_this_machine(
    fixes: tuple[Fix, ...], where: set[str], expected: tuple[Fix, ...]
) -> None:
    assert pick_fixes(fixes, frozenset(where)) == expected


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([row("a", symptoms=["lost"]), row("a", symptoms=["gone"])], "a comes twice"),
        ([row("a", symptoms=["x(?=y)"])], "a: 'x(?=y)': invalid perl operator: (?="),
        ([row("a", symptoms=[r"(x)\1"])], "a: '(x)\\\\1': invalid escape sequence: \\1"),
        ([row("a", host=[{"fact": "docker.snob", "is": 1}])], "a: there is no fact 'docker.snob'"),
        ([row("a", symptoms=["lost"], beats=["b"])], "a: it beats 'b', which is not there"),
        ([row("a", symptoms=[r"^\s*\d+ C"])],
         ("a: '^\\\\s*\\\\d+ C': every match holds a mark, one letter or a short number, and "
          "nothing else")),
        ([row("a")], "a: nothing shows it"),
        ([row("a", symptoms=["lost"], fix=[])], "a: no fix"),
        ([row("a", symptoms=[{"text": "lost", "is": "typical"}], states="symptom")],
         "a: a symptom that nothing proves"),
        ([row("a", symptoms=["lost"], sources=[])], "a: no source"),
        ([row("a", symptoms=["lost"], layer="moon")], "a: unknown layer 'moon'"),
    ],
)  # fmt: skip
def test_knowledge_that_breaks_a_rule_is_named(rows: list[dict[str, Any]], problem: str) -> None:
    assert check(knowing(*rows)) == [problem]


def test_what_is_shipped_breaks_no_rule() -> None:
    assert check(load()) == []


@cases(
    "broken",
    ("a key that is not known", {"symptom": ["x"]}),
    ("a strength of its own", {"symptoms": [{"text": "x", "is": "certain"}]}),
    ("a shared text that is no proof", {"symptoms": [{"text": "x", "is": "hint", "shared": True}]}),
    ("a condition that compares nothing", {"clues": [{"fact": "docker.snap"}]}),
    ("a severity of its own", {"severity": "bad"}),
    ("a fix with a key that is not known", {"fix": [{"command": "x"}]}),
    ("a recipe that is not there", {"fix": [{"recipe": "soup"}]}),
)
def test_a_row_of_another_shape_is_named(broken: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match=r"x\.toml: a"):
        knowing({**row("a", symptoms=["x"]), **broken})


# ---- where in a log a text stands ----

TYPICAL = {"text": "boom", "is": "typical"}
LOST = {"text": "lost", "is": "typical"}
HINT = {"text": "lost", "is": "hint"}
STEPS = "step 17 loss 2.0\n"
END = "Traceback (most recent call last):\n  File 'a.py', line 1\n"
OTHER = END + "ValueError: the shape is not that one\n"


@cases(
    "rows text expected unexplained",
    ("a proof in the line that says why is sure", [row("a", symptoms=["boom"])],
     f"{STEPS * 40}{END}RuntimeError: boom\n", [("a", "high")], False),
    ("one beside it is likely", [row("a", symptoms=["boom"])],
     f"{STEPS * 40}boom\n{STEPS * 9}{OTHER}", [("a", "medium")], False),
    ("in a text of one message it is sure", [row("a", symptoms=["boom"])],
     f"boom\n{STEPS * 2}{OTHER}", [("a", "high")], False),
    ("the last words are sure, too", [row("a", symptoms=["boom"])], f"{STEPS * 40}boom\n",
     [("a", "high")], False),
    ("hardware that failed is sure", [row("a", symptoms=["boom"], layer="hardware")],
     f"{STEPS * 40}boom\n{STEPS * 9}{OTHER}", [("a", "high")], False),
    ("a text that other causes print is likely",
     [row("a", symptoms=[{"text": "boom", "is": "proof", "shared": True}])], "boom",
     [("a", "medium")], False),
    ("and ranks as a proof",
     [row("a", symptoms=[{"text": "boom", "is": "proof", "shared": True}]),
      row("b", symptoms=[TYPICAL], often=9)], "boom", [("a", "medium"), ("b", "medium")], False),
    ("a likely cause apart from why it ended is no answer", [row("a", symptoms=[TYPICAL])],
     f"RuntimeError: boom\n{STEPS * 70}{OTHER}", [("a", "medium")], True),
    ("a line that repeats the reason is an answer", [row("a", symptoms=[TYPICAL])],
     f"RuntimeError: boom\n{STEPS * 70}" * 3 + STEPS, [("a", "medium")], False),
    ("what says why stands before what is apart",
     [row("a", symptoms=[TYPICAL], often=9), row("b", symptoms=[LOST])],
     f"RuntimeError: boom\n{STEPS * 70}{END}OSError: lost\n", [("b", "medium"), ("a", "medium")],
     False),
    ("but not before what it follows from, which is no answer there",
     [row("a", symptoms=[TYPICAL], beats=["b"]), row("b", symptoms=[LOST])],
     f"RuntimeError: boom\n{STEPS * 70}{END}OSError: lost\n", [("a", "medium"), ("b", "medium")],
     True),
    ("a harmless line explains no end", [row("a", symptoms=[TYPICAL], severity="warns")],
     f"{STEPS * 40}boom\n{OTHER}", [("a", "medium")], True),
    ("nor with a hint beside it",
     [row("a", symptoms=[TYPICAL], severity="warns"), row("b", symptoms=[HINT])],
     f"{STEPS * 40}boom\nlost\n{OTHER}", [("a", "medium"), ("b", "low")], True),
    ("a hint says less than the lines that say why", [row("a", symptoms=[HINT])],
     f"{STEPS * 40}{END}OSError: lost\n", [("a", "low")], True),
    ("of one message it is all there is", [row("a", symptoms=[HINT])], f"{END}OSError: lost\n",
     [("a", "low")], False),
    ("so does that something failed, elsewhere", [row("a", symptoms=[LOST], outcome=True)],
     f"{STEPS * 40}{OTHER}ERROR: worker is lost, exit status 1\n", [("a", "medium")], True),
    ("in the line that says why it is an answer", [row("a", symptoms=[LOST], outcome=True)],
     f"{STEPS * 40}{END}OSError: lost\n", [("a", "medium")], False),
    ("the code around a place, as IPython shows it, is no evidence", [row("a", symptoms=["boom"])],
     f"{STEPS * 40}   1166     if said == 'boom':\n{OTHER}", [], True),
    ("the last words stand before a shared text far above",
     [row("a", symptoms=[{"text": "boom", "is": "proof", "shared": True}]),
      row("b", symptoms=[LOST])], f"RuntimeError: boom\n{STEPS * 70}{END}OSError: lost\n",
     [("b", "medium"), ("a", "medium")], False),
    ("a line that tells of no failure explains none", [row("a", symptoms=[TYPICAL])],
     f"{STEPS * 40}boom 2.13+cpu\n{OTHER}", [("a", "medium")], True),
    ("one that does, near the reason, is an answer", [row("a", symptoms=[TYPICAL])],
     f"{STEPS * 40}boom failed\n{OTHER}", [("a", "medium")], False),
)  # fmt: skip
def test_where_a_text_stands_decides(
    rows: list[dict[str, Any]], text: str, expected: list[tuple[str, str]], *, unexplained: bool
) -> None:
    said = diagnose([("log", text)], knowledge=knowing(*rows))
    assert ranked(said) == expected
    assert said.unexplained == unexplained
