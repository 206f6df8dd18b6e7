"""A text pasted into the page of `provision catalog page`: the page names a cause only where
`provision doctor FILE` finds the same one sure or likely, and shows the same texts; in a real
browser.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from provision.cli.page.causes import causes, common_codes
from provision.doctor import Cause, Diagnosis, diagnose, load
from provision.doctor.account import verdict_of
from tests import DATA
from tests.browser.chromium import Browser, browser
from tests.browser.test_catalog_page import paste, show, text_of
from tests.browser.test_page import CONTRAST
from tests.kit.pages import LIMIT_S, shared_page

pytestmark = pytest.mark.timeout(LIMIT_S + 600)

DOCTOR = DATA / "doctor"
SURE = "NVIDIA-SMI has failed because RM has detected an NVML/RM version mismatch."
KNOWN = "driver-library-mismatch"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tab: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del tab  # without a browser the page need not be made, which takes minutes
    return shared_page(tmp_path_factory)


# ---- the same answer ----


@cache
def examined() -> list[dict[str, Any]]:
    return list(json.loads((DOCTOR / "examined.json").read_text("utf-8")))


def of_users() -> list[str]:
    """Texts after users' reports, whole logs among them."""
    return [case["text"] for case in examined()]


def of_the_corpus() -> list[str]:
    files = sorted((DOCTOR / "corpus").glob("*.json"))
    return [case["text"] for path in files for case in json.loads(path.read_text("utf-8"))]


def healthy() -> list[str]:
    """What ended well, what is of other software, and what nvidia-smi prints."""
    runs = json.loads((DOCTOR / "successful.json").read_text("utf-8"))["runs"]
    others = json.loads((DOCTOR / "unrelated_tracebacks.json").read_text("utf-8"))
    lines = (DOCTOR / "unrelated.txt").read_text("utf-8").splitlines()
    files = [*(DATA / "docs").glob("*.log"), *(DATA / "nvidia_smi").glob("*.txt")]
    texts = [case["text"] for case in (*runs, *others)]
    return [*texts, *lines, "\n".join(lines), *(path.read_text("utf-8") for path in sorted(files))]


def changed() -> list[str]:
    """Users' texts as terminals, JSON logs and mails change them, and pieces of two of them."""
    chance = random.Random(7)
    texts = chance.sample(of_users(), 60)
    found = []
    for i, text in enumerate(texts):
        lines, other = text.split("\n"), texts[i - 1].split("\n")
        cut, start = chance.randrange(len(lines) + 1), chance.randrange(len(other))
        found += [
            "\x1b[31m" + text.replace("\n", "\x1b[0m\r\n"),
            json.dumps({"log": text}),
            "\n".join(line[at : at + 70] for line in lines for at in range(0, len(line) or 1, 70)),
            "\n".join([*lines[:cut], *["step 17 done"] * chance.randrange(90), *other[start:]]),
        ]
    return found


SETS = {
    "users": of_users,
    "corpus": of_the_corpus,
    "healthy": healthy,
    "changed": changed,
}


def likely_cause(said: Diagnosis) -> Cause | None:
    """The first cause of what the command prints, where it is sure or likely."""
    if verdict_of(said, asked_of_a_text=True) != "found" or said.causes[0].confidence == "low":
        return None
    return said.causes[0]


def as_shown(cause: Cause, *, whole: bool) -> dict[str, Any]:
    """What the page has of a cause: all of it, or its name and evidence."""
    texts: dict[str, Any] = {"code": cause.code, "severity": cause.severity, "title": cause.title}
    texts["confidence"] = cause.confidence
    if not whole:
        return texts
    return {
        **texts,
        "layer": cause.layer,
        "cause": cause.cause,
        "confirm": cause.confirm,
        "sources": list(cause.sources),
        "fixes": [{"on": list(one.on), "note": one.note, "run": one.run} for one in cause.fixes],
        "evidence": [
            {"says": one.says, "where": int(one.where.removeprefix("log:"))}
            for one in cause.evidence
        ],
    }


def answers(tab: Browser, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the page's scripts find, a few texts at a time."""
    for first in range(0, len(texts), 50):
        script = """JSON.stringify(TEXTS.map(text => {
          const steps = diagnosisOf(text);
          for (;;) {
            const {done, value} = steps.next();
            if (done) return value;
          }
        }))"""
        some = json.dumps(texts[first : first + 50])
        yield from json.loads(tab.run(script.replace("TEXTS", some)))


@pytest.mark.parametrize("name", SETS)
def test_the_page_knows_what_the_command_knows(tab: Browser, page: Path, name: str) -> None:
    show(tab, page)
    texts = SETS[name]()
    common, states, wrong = set(common_codes()), Counter[str](), []
    for text, found in zip(texts, answers(tab, texts), strict=True):
        cause = likely_cause(diagnose([("log", text)]))
        whole = cause is not None and cause.code in common
        states[found["state"]] += 1
        expected = cause and as_shown(cause, whole=whole)
        shown = found["cause"] and {key: found["cause"][key] for key in expected or ["code"]}
        state = "unknown" if cause is None else "known" if whole else "named"
        if (found["state"], shown) != (state, expected):
            wrong.append((text[:200], expected, found))
    assert wrong == []
    assert states["known"] + states["named"] > {"healthy": 0}.get(name, len(texts) // 4)


def test_users_texts_with_a_common_cause_get_it(tab: Browser, page: Path) -> None:
    """Most of them."""
    show(tab, page)
    common = set(common_codes())
    cases = [case for case in examined() if common & set(case["right"])]
    found = list(answers(tab, [case["text"] for case in cases]))
    right = [
        case
        for case, one in zip(cases, found, strict=True)
        if one["cause"] and one["cause"]["code"] in case["right"]
    ]
    assert len(right) / len(cases) > 0.8


# ---- the patterns ----


def test_every_pattern_can_be_read(tab: Browser, page: Path) -> None:
    show(tab, page)
    bad = tab.run(
        "knowledge().patterns.filter(one => { try { new Pattern(one); } catch { return true; } })"
    )
    assert bad == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"(?P<a>a|ab)(?P<b>c|bcd)(?P<c>d*)", "abcd"),
        (r"(?P<a>a+?)(?P<b>a*)", "aaa"),
        (r"(?P<a>(?:x|xy)*)y", "xyxyy"),
        (r"a{2,3}(?P<a>a?)", "aaaaa"),
        (r"x{,3}|(?i)HELLO|end", "say hello"),
        (r"(?i)[^A-M]\w+", "abc xyz"),
        (r"[]a]+[^]b]", "x]a]c"),
        (r"(?i:Cu)DA\b.\B", "CUDA, cuDA 1"),
        (r"\bb\W{0,3}c$", "a b - c"),
        (r"[\w.-]+@[\s\S]", "me.too-1@\t"),
        (r"(?P<a>\d+)?(?P<b>\x27)", "it's"),
        (r"(?:(?P<a>a)|b)*", "ab"),
        ("°", "85\u00b0C"),
    ],
)
def test_a_pattern_means_what_it_means_to_re2(
    tab: Browser, page: Path, pattern: str, line: str
) -> None:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    match = re2.compile(f"(?m){pattern}".encode("latin-1"), options).search(line.encode())
    groups = {k.decode(): v.decode() for k, v in match.groupdict().items() if v is not None}
    show(tab, page)
    words = f"new Pattern({json.dumps(pattern)}).exec(bytesOf({json.dumps(line)}))"
    assert tab.run(words) == {"index": match.start(), "end": match.end(), "groups": groups}


# ---- how it is used ----


def waited(tab: Browser, part: str = "", limit_s: int = 40) -> str:
    """The page's word about the pasted text, once it has read it and says `part`."""
    script = """new Promise(done => {
      const until = performance.now() + LIMIT;
      const look = () => {
        const said = at("paste-result").innerText;
        const isRead = said && said !== word("pasteReading") && said.includes(PART);
        if (isRead || performance.now() > until) done(said);
        else setTimeout(look, 20);
      };
      setTimeout(look, 20);
    })""".replace("LIMIT", str(limit_s * 1000)).replace("PART", json.dumps(part))
    found = tab.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
    return str(found["result"]["value"])


def test_an_error_gets_its_cause_its_fix_and_its_evidence(tab: Browser, page: Path) -> None:
    show(tab, page)
    paste(tab, SURE)
    known = load().by_code[KNOWN]
    assert waited(tab) == f"The cause is known: {known.title}"
    shown = text_of(tab, "#diagnosis")
    assert known.title in shown
    assert f"line 1: {SURE}" in shown
    first, *_ = diagnose([("log", SURE)]).causes[0].fixes
    assert first.note in shown
    assert first.run in shown
    assert "provision doctor FILE" in shown
    assert tab.logged() == []


def test_a_cause_without_texts_has_its_name_and_a_command(tab: Browser, page: Path) -> None:
    common = set(common_codes())
    files = sorted((DOCTOR / "corpus").glob("*.json"))
    cases = [case for path in files for case in json.loads(path.read_text("utf-8"))]
    case = next(
        one
        for one in cases
        if one["code"] not in common and likely_cause(diagnose([("log", one["text"])]))
    )
    show(tab, page)
    paste(tab, case["text"])
    waited(tab)
    assert f"provision doctor explain {case['code']}" in text_of(tab, "#diagnosis")


@pytest.mark.parametrize("text", ["hello", "Traceback\nKeyError: 'id'", "\0\1\2\x7f" * 50])
def test_what_is_not_known_is_said_to_be(tab: Browser, page: Path, text: str) -> None:
    show(tab, page)
    paste(tab, text)
    assert waited(tab).startswith("Not known here")
    assert "provision doctor FILE" in text_of(tab, "#diagnosis")
    assert tab.logged() == []


def test_one_box_takes_both(tab: Browser, page: Path) -> None:
    """What nvidia-smi prints is no error; an error below it is one."""
    show(tab, page)
    smi = "| NVIDIA-SMI 535.183.01   Driver Version: 535.183.01   CUDA Version: 12.2 |\n"
    paste(tab, smi + "GPU 0: NVIDIA L4 (UUID: GPU-5b)\n")
    assert "NVIDIA L4" in waited(tab)
    assert tab.run("at('diagnosis').hidden")
    paste(tab, smi + SURE)
    assert "The cause is known" in waited(tab, "The cause")
    assert "535.183.01" in text_of(tab, "#paste-result")
    tab.run("at('paste').value = '', at('paste').dispatchEvent(new Event('input'))")
    assert tab.run("at('diagnosis').hidden")


HOSTILE = {
    "10 MB of lines": "'CUDA error: out of memory\\n'.repeat(4e5)",
    "10 MB without a line": "'cuda nccl docker '.repeat(6e5)",
    "1 MB without a line": "'UCX WARN network devices mlx' + ',a'.repeat(5e5)",
    "1 MB of lines": "[...Array(2e4).keys()].map(i => `CUDA error ${i}: driver ${i}`).join('\\n')",
    "every word": "knowledge().words.join(' ').repeat(10)",
    "every word, in lines": "knowledge().words.join('\\n').repeat(10)",
    "backslashes": "'\\\\'.repeat(9e5)",
    "escapes": "'\\x1b['.repeat(4e5)",
    "binary": "String.fromCharCode(...[...Array(6e4).keys()].map(i => i * 7919 % 65536)).repeat(5)",
}
# The clock goes by its readings, so that what is done at once does not depend on the machine.
PASTE_AND_COUNT = """new Promise(done => {
  const data = new DataTransfer(), result = at("paste-result"), later = setTimeout;
  const exec = Pattern.prototype.exec, inner = diagnosisOf;
  let clock = 0, together = 0, most = 0, work = 0, hardest = 0;
  performance.now = () => clock += 0.1;
  window.setTimeout = (act, ...delay) => later(() => { together = 0; act(); }, ...delay);
  Pattern.prototype.exec = function (text, from = 0) {
    const found = exec.call(this, text, from);
    work += (found ? found.end : text.length) - from;
    return found;
  };
  diagnosisOf = function* (text) {
    for (const steps = inner(text);;) {
      work = 0;
      const {done, value} = steps.next();
      most = Math.max(most, ++together);
      hardest = Math.max(hardest, work);
      if (done) return value;
      yield;
    }
  };
  data.setData("text/plain", TEXT);
  at("paste-box").open = true;
  at("paste").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, cancelable: true}));
  const watch = setInterval(() => {
    if (!result.textContent || result.textContent === word("pasteReading")) return;
    clearInterval(watch);
    done([most / (SLICE_MS * 10), hardest / LONGEST_TEXT, result.textContent]);
  }, 5);
})"""


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_stops_the_page(tab: Browser, page: Path, name: str) -> None:
    """In between its slices the page can be used, and no step reads more than the text once."""
    show(tab, page)
    script = PASTE_AND_COUNT.replace("TEXT", HOSTILE[name], 1)
    found = tab.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in found, found
    slices, texts, said = found["result"]["value"]
    assert slices <= 1.01, said
    assert texts <= 1, said
    assert tab.logged() == []


def test_a_text_cannot_write_into_the_page(tab: Browser, page: Path) -> None:
    show(tab, page)
    evil = "<img src=x onerror=alert(1)><script>document.title='x'</script>"
    paste(
        tab,
        f"{evil} ImportError: libcudnn.so.8{evil}: cannot open shared object file\n{SURE}{evil}",
    )
    waited(tab)
    assert tab.run("document.querySelectorAll('#diagnosis img, #diagnosis script').length") == 0
    assert tab.logged() == []
    assert tab.requested() == [page.as_uri()]


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_fits_and_can_be_read(
    tab: Browser, page: Path, width: int, scheme: str, language: str
) -> None:
    show(tab, page, f"#lang={language}", width, **{"prefers-color-scheme": scheme})
    paste(tab, SURE)
    waited(tab)
    assert tab.run("document.documentElement.scrollWidth") == width
    seen, bad = tab.run(CONTRAST)
    assert bad == []
    assert seen > 20
    if folder := os.environ.get("BROWSER_PICTURES"):
        tab.picture(Path(folder) / f"page-error-{language}-{width}-{scheme}.png")


def test_what_it_adds_to_the_page_is_small() -> None:
    text = json.dumps(causes(load()), separators=(",", ":"), ensure_ascii=False)
    assert len(gzip.compress(text.encode())) < 400_000
