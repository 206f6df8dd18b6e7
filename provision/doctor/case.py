"""A case to show to others: what a log says by its end, in some forty lines; and a search phrase.

Names, addresses and secrets are replaced as in a bundle (redact.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from provision.doctor.conditions import in_words
from provision.doctor.model import Diagnosis, Evidence
from provision.doctor.reasons import without_prefix
from provision.doctor.redact import Redactor

_LINES = 24  # of the logs
_AROUND = 4  # lines before and behind each line that says why
_FACTS = 12
_CAUSES = 3
_WORDS = 12
_LONGEST = 300
_SHOWN_FIRST = (
    *("os.id", "os.version", "kernel.release", "kernel.arch", "wsl", "machine.container"),
    *("gpu.names", "driver.version", "driver.flavour", "driver.cuda", "toolkits.nvcc"),
    *("torch.version", "torch.cuda", "toolkit.version", "docker.version", "shm.mib"),
)
# What differs from one run of the same failure to the next.
_VOLATILE = re.compile(
    r"\b\d{4}-\d\d-\d\d(?:[T ][\d:.,]+Z?)?|\b[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d"
    r"|\b\d\d:\d\d:\d\d[.,\d]*|\b0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{18,}|\b(?=\w*\d)[0-9a-f]{12,}\b"
    r"|\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?"
    r"|\b\w+://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?"
    r"|\b(?i:pid|tid|process|rank|thread|job|port|line|localhost)[ =:#]*\[?\d+\]?"
    r"|\[\d+\]|\b\d+(?:\.\d+)? ?(?:[KMGT]i?B|bytes|ms|s|seconds)\b|\b\d{5,}\b"
)
_FOLDERS = re.compile(r"(?<![\w.])~?/(?:[^\s/:,;'\"()\[\]]+/)*(?=[^\s/:,;'\"()\[\]]*)")
_IN_A_LOG = re.compile(r":(\d+)$")
_EMPTY = re.compile(r"[(\[{<]\W*[)\]}>]|['\"`]{2}")


def search_phrase(diagnosis: Diagnosis) -> str:
    """The words of the line that says why, for a tracker: without what only this run has. "" where
    no line says why.
    """
    said = [*diagnosis.reasons, *diagnosis.telling[-1:]]
    seen = [one for cause in diagnosis.causes[:1] for one in cause.evidence]
    line = next((one.says for one in (*said, *seen)), "")
    text = _VOLATILE.sub(" ", _FOLDERS.sub("", without_prefix(line)))
    words = [word.strip("()[]{}<>,;'\"`") for word in _EMPTY.sub(" ", text).split()]
    return " ".join([word for word in words if re.search(r"\w", word)][:_WORDS]).rstrip(".:")


def case_text(
    diagnosis: Diagnosis,
    verdict: str,
    redactor: Redactor,
    lines_of: Callable[[str, int, int], Sequence[tuple[int, str]]],
) -> str:
    """The case as a file. `lines_of` gives the lines of a text, from one up to and without another,
    by their numbers.
    """
    facts = [name for name in _SHOWN_FIRST if name in diagnosis.facts][:_FACTS]
    shown = [f"{name}: {in_words(diagnosis.facts[name])}" for name in facts]
    checked = [
        *(f"{one.code}: {_words(e)}" for one in diagnosis.causes for e in _answers(one.evidence)),
        *(f"not {one.code}: {_words(one.evidence)}" for one in diagnosis.ruled_out),
    ]
    parts = {
        "verdict": [verdict],
        "search": [search_phrase(diagnosis)],
        "facts": shown,
        "causes": [
            f"{one.code} ({one.confidence}): {one.title}" for one in diagnosis.causes[:_CAUSES]
        ],
        "checks": checked[:_CAUSES],
        "log says": [_words(one) for one in diagnosis.reasons],
        "lines": _around(diagnosis, lines_of),
    }
    text = "\n".join(
        line for name, lines in parts.items() if any(lines) for line in (f"{name}:", *lines)
    )
    redactor.learn_homes(text)
    return redactor.text(text) + "\n"


def _answers(evidence: Iterable[Evidence]) -> list[Evidence]:
    """What the machine said, and no line of a log."""
    return [one for one in evidence if not _IN_A_LOG.search(one.where)]


def _words(one: Evidence) -> str:
    where = _IN_A_LOG.search(one.where)
    return f"{where[1]}: {one.says}" if where else f"{one.says} [{one.where}]"


def _around(
    diagnosis: Diagnosis, lines_of: Callable[[str, int, int], Sequence[tuple[int, str]]]
) -> list[str]:
    """The lines around those that say why, and the last lines by which something ended."""
    seen = [one for cause in diagnosis.causes[:1] for one in cause.evidence]
    wanted: dict[tuple[str, int], str] = {}
    for one in (*diagnosis.reasons, *reversed(diagnosis.telling), *seen):
        source, _, number = one.where.rpartition(":")
        if source and number.isdecimal() and len(wanted) < _LINES:
            first = max(int(number) - _AROUND, 1)
            near = lines_of(source, first, int(number) + _AROUND + 1)
            wanted |= {(source, at): line[:_LONGEST] for at, line in near}
    shown = [f"{number}: {line}" for (_, number), line in sorted(wanted.items()) if line]
    return shown[:_LINES]
