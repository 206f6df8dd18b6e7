"""The rows of the catalog: one upstream fact each, immutable, versions in the upstream spelling.

`source` is the full text of where the fact was read; several are joined by "; ". Where part of a
row is less sure than the rest, a `*_confidence` beside it says so. Here is what rows of every file
share; the rows themselves are in a module for each subject.

They are named tuples because every plan imports them: a dataclass takes seven times as long to
create.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Confidence: TypeAlias = Literal["confirmed", "likely", "doubtful", "assumed"]
"""confirmed: read at the source. likely, doubtful: how credible it is. assumed: not read here, but
carried over from a neighbouring row by the rule that the file's `about` states.
"""

Arch: TypeAlias = Literal["x86_64", "aarch64"]


class Conflict(NamedTuple):
    """Two sources that disagree, and which one the rows use."""

    what: str
    a: str
    b: str
    use: str
    source: str


class Excused(NamedTuple):
    """A row that is known to break an invariant of `tools.checks`, and why."""

    rule: str
    row: str
    reason: str
    source: str
