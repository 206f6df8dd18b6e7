"""Rules that a file silences: `# provision: ignore=RULE` on the line, or on the line before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from provision.doctor.lint.findings import RuleHit

_DIRECTIVE = re.compile(r"#\s*provision:\s*ignore=([\w,-]+)")


def silenced_rules(lines: Sequence[str]) -> Mapping[int, frozenset[str]]:
    """The rules that each line's comment names, by line number."""
    said = {number: _DIRECTIVE.search(line) for number, line in enumerate(lines, start=1)}
    return {number: frozenset(one[1].split(",")) for number, one in said.items() if one}


def without_silenced(found: Iterable[RuleHit], lines: Sequence[str]) -> Iterator[RuleHit]:
    """The findings that no comment silences. A comment before a long instruction applies to all of
    it.
    """
    silenced = silenced_rules(lines)
    for one in found:
        start = one.start or one.at.line
        near = {one.at.line, one.at.line - 1, start, start - 1}
        if not any(one.rule in silenced.get(number, ()) for number in near):
            yield one
