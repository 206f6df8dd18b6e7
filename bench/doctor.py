"""How often the doctor's first answer is the cause, by layer, and how fast it reads.

    python bench/doctor.py            # the tables
    python bench/doctor.py --wrong    # each case that it got wrong, too
    python bench/doctor.py --size 100 # and how long so many MB of log take, beside grep

The corpus was written together with the knowledge, and holds it to what it promises. The examined
texts were written after reports of people who had not seen the patterns, and those were asked once
before anything was learned from them; what they say now is no guess any more. The same holds for
the failures that were really produced.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from provision.doctor import Fact, diagnose, load  # noqa: E402  the checkout's, wherever it is run
from provision.doctor.probes import read_facts  # noqa: E402
from tests.kit.doctor_hosts import build, load_host  # noqa: E402
from tests.kit.doctor_texts import VARIATIONS  # noqa: E402

DATA = ROOT / "tests" / "data" / "doctor"


@dataclass(frozen=True)
class Answer:
    """One case asked. `plausible`: causes that nobody could tell from the right one by the text."""

    case: Mapping[str, Any]
    expected: frozenset[str | None]  # None: no cause
    plausible: frozenset[str]
    code: str | None
    confidence: str | None

    @property
    def right(self) -> bool:
        return self.code in self.expected

    @property
    def sure_and_wrong(self) -> bool:
        return self.confidence == "high" and self.code not in self.expected | self.plausible


def ask(
    case: Mapping[str, Any],
    expected: Iterable[str | None],
    text: str | bytes,
    plausible: Iterable[str] = (),
) -> Answer:
    facts = {
        name: Fact(value=tuple(value) if isinstance(value, list) else value, where="the case")
        for name, value in case.get("facts", {}).items()
    }
    diagnosis = diagnose([("log", text)], facts)
    first = None if diagnosis.unexplained else next(iter(diagnosis.causes), None)
    return Answer(
        case=case,
        expected=frozenset(expected),
        plausible=frozenset(plausible),
        code=first and first.code,
        confidence=first and first.confidence,
    )


def corpus() -> list[tuple[Mapping[str, Any], frozenset[str]]]:
    return [
        (case, frozenset([case["code"]]))
        for path in sorted((DATA / "corpus").glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))
    ]


def examined() -> list[Answer]:
    """The cases in the order of the file. `right` is empty where no cause is known."""
    cases = json.loads((DATA / "examined.json").read_text(encoding="utf-8"))
    return [ask(case, case["right"], case["text"], case["plausible"]) for case in cases]


def produced() -> list[Answer]:
    """Whole logs of failures that somebody had set up who had not seen the patterns."""
    runs = json.loads((DATA / "failed.json").read_text(encoding="utf-8"))["runs"]
    return [ask(run, run["right"], run["text"], run["plausible"]) for run in runs]


def without_their_causes() -> list[str]:
    """The examined texts asked as if nobody knew their cause: the failures that are right are taken
    out. What is left is what the doctor does with a failure that it does not know: it should quote
    the line that shows it, and be sure of nothing, unless of a neighbour that nobody could tell
    from it.
    """
    known = load()
    found: Counter[str] = Counter()
    for case in json.loads((DATA / "examined.json").read_text(encoding="utf-8")):
        text, right = case["text"], set(case["right"])
        seen = [one for one in diagnose([("log", text)]).causes if one.code in right]
        if not seen:
            continue
        left = tuple(one for one in known.failures if one.code not in right)
        diagnosis = diagnose([("log", text)], knowledge=replace(known, failures=left))
        first = None if diagnosis.unexplained else next(iter(diagnosis.causes), None)
        evidence = [one.says for cause in seen for one in cause.evidence]
        sure = first is not None and first.confidence == "high"
        found += Counter(
            texts=1,
            quoted=any(_same(one, other.says) for one in evidence for other in diagnosis.reasons),
            nobody=first is None,
            neighbour=sure and first is not None and first.code in case["plausible"],
            wrong=sure and first is not None and first.code not in case["plausible"],
        )
    counts = (
        f"  {found['texts']} texts, what shows it quoted in {found['quoted']}, nobody accused"
        f" in {found['nobody']}, sure of a neighbour in {found['neighbour']}, sure and wrong in"
        f" {found['wrong']}"
    )
    return ["the examined texts, their right causes taken out of the knowledge", counts]


def _same(evidence: str, quoted: str) -> bool:
    """Whether two lines print the same message, by its begin: another worker may print it, too."""
    words, others = (one.split("Error: ")[-1][:45] for one in (evidence, quoted))
    return words in quoted or others in evidence


def table(title: str, answers: Iterable[tuple[str, Answer]]) -> list[str]:
    rows: dict[str, list[Answer]] = defaultdict(list)
    for layer, answer in answers:
        rows[layer].append(answer)
        rows["all"].append(answer)
    lines = [
        title,
        f"  {'layer':<20}{'cases':>6}{'first':>7}{'':>8}{'sure, wrong':>13}{'unknown':>9}",
    ]
    for layer in sorted(rows, key=lambda name: (name == "all", name)):
        found = rows[layer]
        right = sum(one.right for one in found)
        lines.append(
            f"  {layer:<20}{len(found):>6}{right:>7}{right / len(found):>8.1%}"
            f"{sum(one.sure_and_wrong for one in found):>13}"
            f"{sum(one.code is None for one in found):>9}"
        )
    return lines


def variations() -> list[str]:
    lines = ["the corpus as it comes from elsewhere: first answer right"]
    cases = corpus()
    for name, vary in VARIATIONS.items():
        answers = [ask(case, codes, vary(case["text"])) for case, codes in cases]
        right = sum(one.right for one in answers)
        wrong = sum(one.sure_and_wrong for one in answers)
        lines.append(f"  {name:<24}{right / len(answers):>8.1%}   sure and wrong {wrong}")
    return lines


def unrelated() -> str:
    lines = (DATA / "unrelated.txt").read_text(encoding="utf-8").splitlines()
    accused = [line for line in lines if diagnose([("log", line)]).causes]
    return f"{len(lines)} lines of other software: {len(accused)} of them accused"


def successful() -> str:
    """Logs of runs that ended well: how many are accused of something, and how many surely."""
    text = (DATA / "successful.json").read_text(encoding="utf-8")
    answers = [diagnose([("log", run["text"])]) for run in json.loads(text)["runs"]]
    sure = sum(any(c.confidence == "high" for c in one.causes) for one in answers)
    named = sum(any(c.severity != "warns" for c in one.causes) for one in answers)
    said = f"{len(answers)} logs of runs that ended well: {sure} surely accused"
    return f"{said}, {named} with a cause that is more than a warning"


def read_elsewhere() -> list[str]:
    """The same logs as they are typed on machines that they are not from."""
    logs = [
        run["text"]
        for name in ("failed", "successful")
        for run in json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    ]
    lines = []
    for host in ("ubuntu-workstation", "dgx"):
        with tempfile.TemporaryDirectory() as folder:
            facts = read_facts(build(load_host(host), Path(folder)))
        changed = sum(
            diagnose([("log", text)], facts, facts_of="reader").causes
            != diagnose([("log", text)]).causes
            for text in logs
        )
        lines.append(f"{len(logs)} logs read on {host}: {changed} answers other than without it")
    return lines


def speed(megabytes: int) -> list[str]:
    """A log of that size, with a failure in the middle, by a process of its own; and by grep."""
    ordinary = (DATA / "unrelated.txt").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "large.log"
        with log.open("wb") as file:
            for half in range(2):
                for _ in range((megabytes << 19) // len(ordinary) + 1):
                    file.write(ordinary)
                if not half:
                    file.write(b"NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n")
        size = log.stat().st_size / 1e6
        argv = [sys.executable, "-m", "provision", "doctor", "--no-host", "--json", "--log"]
        began = time.perf_counter()
        said = subprocess.run([*argv, str(log)], cwd=ROOT, capture_output=True, check=False)
        ours = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        found = [cause["code"] for cause in json.loads(said.stdout)["causes"]]
        grep = shutil.which("grep") or "grep"
        began = time.perf_counter()
        subprocess.run(
            [grep, "-c", "-E", "Xid|fallen off", str(log)], capture_output=True, check=False
        )
        theirs = time.perf_counter() - began
    return [
        f"{size:.0f} MB of log: {ours:.1f} s ({size / ours:.0f} MB/s), peak memory {peak:.0f} MiB",
        f"  found: {', '.join(found[:3])}; grep -E of two words: {theirs:.1f} s",
    ]


def _layer(answer: Answer, layer_of: Mapping[str, str]) -> str:
    codes = [code for code in answer.case["right"] if code]
    return layer_of[codes[0]] if codes else "no known cause"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--size", type=int, default=0, metavar="MB")
    args = parser.parse_args()
    own = [ask(case, codes, case["text"]) for case, codes in corpus()]
    sets = {"examined": examined(), "really produced": produced()}
    layer_of = {one.code: one.layer for one in load().failures}
    print("\n".join(table("corpus", [(layer_of[a.case["code"]], a) for a in own])))
    for name, answers in sets.items():
        print("\n".join(table(name, [(_layer(a, layer_of), a) for a in answers])))
    print("\n".join(variations()))
    print("\n".join(without_their_causes()))
    print(unrelated())
    print(successful())
    print("\n".join(read_elsewhere()))
    if args.size:
        print("\n".join(speed(args.size)))
    if args.wrong:
        for one in [*own, *(answer for answers in sets.values() for answer in answers)]:
            if not one.right:
                sure = f"{one.code} ({one.confidence})"
                print(f"- {one.case['id']}: {sorted(map(str, one.expected))}, but: {sure}")
    right = sum(one.right for one in own)
    return int(right < 0.95 * len(own) or any(one.sure_and_wrong for one in own))


if __name__ == "__main__":
    sys.exit(main())
