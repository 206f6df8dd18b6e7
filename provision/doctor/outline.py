"""How the run went that a log is of: the lines by which it ended, and whether it ended well.

A log says much that does not matter: what was tried again, what a program does without. What ended
the run stands at its end: the last line of a traceback, an exit status, a signal.
"""

from __future__ import annotations

import bisect
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, BinaryIO, Literal

from images.text.printable import printable, shortened
from provision.doctor.lines import LineCounter, chunks
from provision.doctor.model import Evidence
from provision.doctor.tables import table

if TYPE_CHECKING:
    from provision.doctor.matching import Lines

# The last line of a traceback, in Python and in Java: no blank before it, but what compose,
# BuildKit, pytest, Kaggle, a host, a rank, a worker of vLLM's or Ray's and a logger put there
RAISED = (
    r"^(?:[\w.-]+ +\| +|#\d+ [\d.]+ |E +|\d+\.\d+s\s+\d+\s+)?(?:[\w.-]+: )?(?:\[?rank ?\d+\]?: ?)?"
    r"(?:\(\w+(?: pid=\d+)?(?:, ip=[\d.]+)?\) ?)?(?:(?:ERROR|CRITICAL) \S+ \S+ \[[^\]]{1,80}\] ?)?"
    r"(?:(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Timeout|Exit)(?::|$)"
    r"|(?:[\w.]+\.)?[A-Z]\w*(?:Unavailable|Expired|NotFound|Exceeded|Died|Impossible|Refused): "
    r"|(?:[a-z_]\w*\.){2,}[A-Z]\w+: |socket\.[a-z]+: |Exception: )"
)
IS_RAISED = re.compile(RAISED, re.ASCII)
# "0 failed" and "failed=0" are no failure, "10 failed" is one.
GAVE_UP = re.compile(
    rb"(?i)(?<!\b0 )\b(?:failed|aborting|aborted|refused|denied|giving up)\b(?! ?[=:] ?0\b)"
)
# Words behind which a bare "Done." is none, of a program that goes on whatever happens.
NOT_DONE = re.compile(rb"(?i)\b(?:not supported|unable to|currently in use)\b")
# A task that failed; the recap counts it, unless that was to be ignored.
IS_COUNTED = re.compile(r"^fatal: \[[^\]]+\]: FAILED! ", re.ASCII)
# What wrote into a pipe says this when its reader (head) has read enough.
READ_ENOUGH = re.compile(r"^BrokenPipeError: \[Errno 32\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgramEnd:
    """What a program shows at the end of a text: its first line, the lines that follow, and those
    by which something is wrong. `over`: what of the text is settled by it: what it shows of a
    machine says nothing of what failed before.
    """

    first: str
    then: re.Pattern[str]
    unwell: re.Pattern[str] | None = None
    over: Literal["nothing", "what was before", "all"] = "nothing"


_KERNEL = re.compile(r"^\[ *\d+\.\d+\] |\bkernel: ", re.ASCII)
_BAD_KERNEL = re.compile(
    r"NVRM|(?i:\bxid\b|\bnvidia.*(?:fail|error|unable|cannot|timed? ?out|denied))"
    r"|(?i:hardware error|\bmce: |\baer: |segfault|call trace|\bbug: |\boops\b|panic"
    r"|out of memory|lockup|blocked for)",
    re.ASCII,
)
_PROGRAM_ENDS = (
    # an installation, and the packages that there are now
    _ProgramEnd(
        first=r"^Successfully (?:installed|uninstalled) |^No broken requirements found\.$",
        then=re.compile(
            r"^Package +Version|^[- ]+$|^[\w.-]+ +\d\S*(?: +\S+)?$|^\[notice\]", re.ASCII
        ),
        over="what was before",
    ),
    _ProgramEnd(
        first=r"^\d+ upgraded, \d+ newly installed, ",
        then=re.compile(
            r"^(?:Inst|Conf|Remv|Purg|Need to get|After this operation) |^\d+ not ", re.ASCII
        ),
        over="what was before",
    ),
    _ProgramEnd(
        first=r"^Would install \d+ packages?$|^(?:Installed|Audited) \d+ packages? in ",
        then=re.compile(r"^ [+~-] \S+$|^[\w.-]+==\S+$", re.ASCII),
        over="what was before",
    ),
    _ProgramEnd(
        first=r"^(?:added|changed|up to date)\b.*\bin \d+\w+$",
        then=re.compile(
            r"^\d+ packages? (?:is|are) looking|^ +run `npm |^[\w@/.-]+@\d\S* /|^[\s│├└─┬]+\S"
        ),
        over="what was before",
    ),
    _ProgramEnd(
        first=r"^verdict     (?:direct|minor-version|compat|likely)",
        then=re.compile(r"^(?:[a-z]+ {2,}| {2,})\S", re.ASCII),
        over="what was before",
    ),
    _ProgramEnd(  # a program's help
        first=r"^ +-h, --help\b",
        then=re.compile(r"^\s+\S|^[A-Za-z][\w -]*:$", re.ASCII),
    ),
    # a pod that is ready: its events tell the past
    _ProgramEnd(
        first=r"^  Ready +True\s*$",
        then=re.compile(r"^\s|^[A-Z][\w -]*:", re.ASCII),
        over="all",
    ),
    _ProgramEnd(
        first=r"^\s+Active: active \((?:running|exited)\) since ",
        then=re.compile(r"^\s|^[A-Z][a-z]{2} +\d+ [\d:]+ ", re.ASCII),
        unwell=re.compile(
            r"(?i)\b(?:error|fail|fatal|denied|refused|cannot|unable)|Active: ", re.ASCII
        ),
    ),
    _ProgramEnd(
        first=r"^\| NVIDIA-SMI \d[\d.]* +Driver Version: [\d.]+ +CUDA Version: \d",
        then=re.compile(r"^[|+]", re.ASCII),
        unwell=re.compile(r"ERR!|Unknown Error|Not Found", re.ASCII),
    ),
    _ProgramEnd(first=r"\[drm\] Initialized nvidia-drm ", then=_KERNEL, unwell=_BAD_KERNEL),
)


class _Settling:
    """Reads the lines of a text for what a program shows at its end."""

    def __init__(self) -> None:
        self._firsts = [(re.compile(one.first, re.ASCII), one) for one in _PROGRAM_ENDS]
        self._end: _ProgramEnd | None = None
        self._done = 0

    def read(self, number: int, lines: Sequence[bytes]) -> None:
        for at, line in enumerate(lines, start=number):
            if line.strip():
                self._read(at, line[:_LONGEST].decode("utf-8", "replace"))

    def _read(self, number: int, line: str) -> None:
        for first, one in self._firsts:
            if first.search(line):
                self._end = one
                self._done = 1 if one.over == "nothing" else number
                return
        end = self._end
        if end is None:
            return
        if not end.then.search(line) or (end.unwell and end.unwell.search(line)):
            self._end = None
        elif end.over == "all":
            self._done = number

    @property
    def is_open(self) -> bool:
        return self._end is not None

    @property
    def done(self) -> int:
        """Up to which line nothing counts that was printed, at least 1; 0: the text's end is no
        such thing.
        """
        return self._done if self._end is not None else 0


# The code around a place, as IPython shows it: behind the number of its line.
CODE = r"^\s*\d+ +(?:(?:el)?if|raise|return|except|assert|def)\b"
IS_CODE = re.compile(CODE, re.ASCII)
# A line of a program that goes on: of Python, of TensorFlow and XLA, of torch's C++, of llama.cpp;
# of a logger's levels, of CMake's status. Code says no more than that.
WARNING = re.compile(
    r"\b[A-Z]\w*Warning: |\bwarnings\.warn\(|[: ]W (?:tensorflow|external)/|\[W \w+\.cpp|^warning: "
    r"|\bIgnor(?:e|ing) \w+ error\b|\bSkipping import\b|-- Could (?:NOT|not) find "
    r"|^\[I\d* \S+ \w+\.cpp"
    r"|(?:^|[\s\[(|])(?:INFO|DEBUG)(?:[\s\])|]|: )"
    r"|" + CODE,
    re.ASCII,
)
# Python's words between an exception and the one that followed from it.
CHAINS = (b"another exception occurred:", b"direct cause of the following exception:")
CHAIN = re.compile(b"|".join(CHAINS))
_TAIL = 12  # lines that are not blank, at the end: where a run says that it is done
_LAST = 4  # lines of them: where a program's bare "Done." is the last word
_MOST_SHOWN = 6
_TOGETHER = 60  # lines: as far apart as the lines of one message may be (scope.py)
_CHAINED = 600  # lines: as far apart as two exceptions of a chain may be
_LONGEST = 300
_MOST_ENDS = 4000


@dataclass(slots=True)
class Outline:
    """Of one text: `ends` are the lines by which something ended badly, by their numbers; `chains`
    the numbers of the lines that join two exceptions.
    """

    source: str
    ends: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_MOST_ENDS))
    chains: list[int] = field(default_factory=list)
    done: int = 0  # the number of the last line, near the end, that says that all is done; or 0
    lines: int = 0
    last: int = 0  # the number of the last line that is not blank
    raised: tuple[int, str] | None = None  # the first exception that nothing caught
    joined: tuple[tuple[int, str], ...] | None = None  # what last_end found

    def last_end(self) -> Sequence[tuple[int, str]]:
        """The lines of the last end: those that are joined, back from the last one. Asked once the
        text is read: each cause asks.
        """
        if self.joined is None:
            ends = list(self.ends)
            first = max(len(ends) - 1, 0)
            while first and self.is_joined(ends[first - 1][0], ends[first][0]):
                first -= 1
            self.joined = tuple(ends[first:])
        return self.joined

    def is_joined(self, first: int, then: int) -> bool:
        """Whether two ends are near to one another, or exceptions of one chain."""
        if then - first <= _TOGETHER:
            return True
        link = bisect.bisect(self.chains, first)
        linked = link < len(self.chains) and self.chains[link] < then
        return linked and then - first <= _CHAINED

    def ends_after(self, first: int, last: int, *, but: re.Pattern[str] | None = None) -> bool:
        """Whether a line from `first` to `last`, `but` some, says that something ended badly."""
        place = bisect.bisect_left(self.ends, first, key=itemgetter(0))
        while place < len(self.ends) and self.ends[place][0] <= last:
            if not (but and but.search(self.ends[place][1])):
                return True
            place += 1
        return False

    def has_end(self, number: int) -> bool:
        """Whether something ended by this line."""
        return self.ends_after(number, number)


def outline(stream: BinaryIO, source: str) -> Outline:
    """Read a text for how it ends."""
    ends, done, raised, ended, rows, unfit, firsts = _patterns()
    found = Outline(source)
    number = 1
    tail: deque[tuple[int, bytes]] = deque(maxlen=_TAIL)
    settling = _Settling()
    is_unfit = False
    for chunk in chunks(stream):
        counter = LineCounter(chunk)
        for start, end in ends.in_chunk(chunk):
            at = number + counter.before(start)
            if not found.ends or found.ends[-1][0] != at:
                found.ends.append((at, _excerpt(chunk[start:end])))
                if found.raised is None and raised.match(chunk[start:end]):
                    found.raised = found.ends[-1]
        if any(words in chunk for words in CHAINS):  # which is much faster than the pattern
            counter = LineCounter(chunk)
            found.chains += [number + counter.before(one.start()) for one in CHAIN.finditer(chunk)]
            del found.chains[:-_MOST_ENDS]
        is_unfit = is_unfit or unfit.match(chunk)
        lines = chunk.split(b"\n")
        if settling.is_open or firsts.match(chunk):
            settling.read(number, lines)
        tail.extend(
            (number + i, line)
            for i, line in enumerate(lines[-3 * _TAIL :], start=max(0, len(lines) - 3 * _TAIL))
            if line.strip()
        )
        number += chunk.count(b"\n")
    found.lines = number
    found.last = tail[-1][0] if tail else 0
    read = ((at, line, line[:_LONGEST].decode("utf-8", "replace")) for at, line in tail)
    said = [(at, line) for at, line, text in read if not is_warning(text)]
    failed = any(GAVE_UP.search(line) for _, line in said) or bool(
        tail and found.ends_after(tail[0][0], number, but=READ_ENOUGH)
    )
    is_unfit = is_unfit or found.ends_after(0, number, but=IS_COUNTED)
    doubtful = failed or any(NOT_DONE.search(line) for _, line in said)
    closing = min((at for at, _ in said[-_LAST:]), default=0)
    for at, line in tail:
        if unfit.match(line):
            found.done = 0
        bare = ended.match(line)
        if not done.match(line) or (rows.match(line) and is_unfit):
            continue
        if bare and (doubtful or at < closing):
            continue
        if not (failed and GAVE_UP.search(line)):
            found.done = at
    if not found.done and not is_unfit:
        found.done = settling.done
    elif found.ends_after(found.done, number):
        found.done = 0
    return found


def is_warning(line: str) -> bool:
    """Whether a program says so of its line."""
    return WARNING.search(line) is not None and "NCCL INFO" not in line  # NCCL gives reasons there


def telling(outlines: Sequence[Outline]) -> tuple[Evidence, ...]:
    """By which lines the texts ended badly, each once: the first two of each end, and the last."""
    shown: dict[str, Evidence] = {}
    for one in outlines:
        each = {line: number for number, line in reversed(one.last_end())}
        lines = sorted(each.items(), key=lambda said: said[1])
        few = len(lines) <= _MOST_SHOWN
        for line, number in lines if few else [*lines[:2], *lines[2 - _MOST_SHOWN :]]:
            shown[line] = Evidence(says=line, where=f"{one.source}:{number}")
    return tuple(shown.values())[-_MOST_SHOWN:]


def _excerpt(line: bytes) -> str:
    text = line[: 2 * _LONGEST].decode("utf-8", "replace")
    return shortened(" ".join(printable(text, instead=" ").split()), _LONGEST)


def _patterns() -> list[Lines]:
    from provision.doctor.matching import Lines

    firsts = [one.first for one in _PROGRAM_ENDS]
    own = table("ends.toml")
    answered = [own["answered"]]  # a row, and said of a program that failed later
    ended, rows = [*own["ended"], *answered], [*own["rows"], *answered]
    done = [*own["done"], *ended, *rows]
    kinds = ([RAISED, *own["ends"]], done, [RAISED], ended, rows, own["unfit"], firsts)
    return [Lines(one) for one in kinds]
