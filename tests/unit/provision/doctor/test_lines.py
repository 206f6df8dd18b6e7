"""Logs of any size, encoding and hygiene: what is read, and that nothing can make it hang."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.doctor import diagnose, load
from provision.doctor.knowledge import patterns_of
from provision.doctor.lines import (
    CHUNK_BYTES,
    LineCounter,
    Work,
    chunks,
    clean,
    unescaped,
    unwrap_powershell,
    unwrapped,
)
from provision.doctor.literals import tells_digits_apart
from provision.doctor.matching import (
    Patterns,
    problem,
    searched,
)
from provision.doctor.model import Hit, PartlyRead
from provision.doctor.outline import Outline
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.doctor_texts import VARIATIONS
from tests.kit.programs import run_program


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r\n"])).map(b"".join), st.lists(st.integers(0, 40))
)
def test_lines_are_counted_from_any_place_to_any(text: bytes, places: list[int]) -> None:
    counter = LineCounter(text)
    assert [counter.before(place) for place in places] == [
        text.count(b"\n", 0, place) for place in places
    ]


MESSAGE = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."
PATTERN = r"GPU (?P<bus>[0-9a-f:.]+): GPU has fallen off the bus"


def hits(text: str | bytes, *patterns: str) -> dict[str, Hit]:
    data = text.encode() if isinstance(text, str) else text
    return Patterns(patterns or (PATTERN,)).in_text(io.BytesIO(data), "log")


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_message_is_found_however_it_comes(name: str) -> None:
    padding = "a line before it\n" * 3
    (hit,) = hits(VARIATIONS[name](f"{padding}{MESSAGE} {'more of it ' * 4}\nafter")).values()
    assert hit.groups == {"bus": "0000:01:00.0"}


def test_a_hit_says_where_and_what() -> None:
    text = f"one\ntwo\n{MESSAGE}\nfour\n{MESSAGE}\n"
    (hit,) = hits(text).values()
    assert (hit.line, hit.number, hit.source) == (MESSAGE, 3, "log")


ROW = r"^\s*\d+\s+\d+\s+\d+%"


@cases(
    "text line",
    ("below its headings", "Size Used Use%\n10 10 100%\n", 2),
    ("far", "Size Used Use%\n" + "x" * 99 + "\n" * CHUNK_BYTES + "10 10 100%", -1),
    ("above them, in the same piece", "10 10 100%\nSize Used Use%\n", 1),
    ("without any", "10 10 100%\n", 0),
    ("headings alone", "Size Used Use%\nmore words\n", 0),
)
def test_a_row_of_numbers_is_looked_for_below_its_headings(text: str, line: int) -> None:
    patterns = Patterns(["Used Use%", ROW], after={ROW: ["Used Use%"]})
    hit = patterns.in_text(io.BytesIO(text.encode()), "log").get(ROW)
    assert (hit.number if hit else 0) == (line if line >= 0 else text.count("\n") + 1)


def test_what_stood_before_is_not_looked_at_again_and_what_differs_is() -> None:
    text = "error 12 of a\n" * 3 + "error 13 of a\nerror 13 of b\n" + "error 12 of a\n"
    found = hits(text, r"error 13 of a", r"error \d+ of b", r"error 12 of a")
    assert {hit.line: hit.number for hit in found.values()} == {
        "error 12 of a": 1,
        "error 13 of a": 4,
        "error 13 of b": 5,
    }


def test_line_numbers_go_on_from_piece_to_piece() -> None:
    filler = b"x" * 99 + b"\n"
    lines = 3 * CHUNK_BYTES // len(filler)
    (hit,) = hits(filler * lines + MESSAGE.encode()).values()
    assert hit.number == lines + 1


@pytest.mark.parametrize(
    "before",
    [0, 1, CHUNK_BYTES - 30, CHUNK_BYTES, 5 * CHUNK_BYTES - 7],
)
def test_a_message_in_a_line_without_an_end_is_found(before: int) -> None:
    (hit,) = hits(b"\xff" * before + MESSAGE.encode() + b"z" * (2 * CHUNK_BYTES)).values()
    assert len(hit.line) <= 300
    assert "fallen off the bus" in hit.line


class Endless(io.RawIOBase):
    """So many bytes that nobody holds; `peak` is the largest piece that was asked for."""

    def __init__(self, size: int, piece: bytes) -> None:
        self._left, self._piece, self.peak = size, piece, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        self.peak = max(self.peak, len(buffer))
        count = min(len(buffer), self._left)
        source = self._piece * (count // len(self._piece) + 1)
        buffer[:count] = source[:count]
        self._left -= count
        return count


@pytest.mark.parametrize("piece", [b"x", b"\n", b"\r", b"\x1b[", b"\\", b"\x00", b"a b\n"])
def test_what_is_held_of_a_stream_stays_small(piece: bytes) -> None:
    stream = Endless(8 << 20, piece)
    largest = max((len(chunk) for chunk in chunks(_as_stream(stream))), default=0)
    assert largest <= 3 * CHUNK_BYTES
    assert stream.peak <= 2 * CHUNK_BYTES


def _as_stream(raw: io.RawIOBase) -> BinaryIO:
    return io.BufferedReader(raw, CHUNK_BYTES)


@given(st.binary(max_size=2000))
def test_no_bytes_break_it(data: bytes) -> None:
    hits(data + b"\n" + MESSAGE.encode() + b"\n" + data)


@given(st.text(max_size=300))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text.encode())
    assert clean(once) == once


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [
        (rb"a\nb", b"a\nb"),
        (rb"say \"x\"", b'say "x"'),
        (rb"\\\"deep\\\"", b'"deep"'),
        (rb"\u001b[31mred\u001b[0m", b"red"),
        (rb"C:\dir", None),
        (rb"plain", None),
    ],
)
def test_json_escapes_are_undone(escaped: bytes, plain: bytes | None) -> None:
    assert unescaped(escaped) == plain


@cases(
    "text joined",
    ("a full line and the rest of it", "a" * 60 + " end of the\nline", 2),
    ("short lines are whole", "short\nlines\nof a log", 0),
    ("an empty line ends a message", "a" * 60 + "\n\nmore", 0),
)
def test_only_lines_that_were_broken_are_put_together(text: str, joined: int) -> None:
    assert len(list(unwrapped(text.encode().split(b"\n")))) == joined


def as_powershell_wraps(line: str, width: int) -> Iterator[str]:
    """After the last space that fits, which stays; or inside a word that fills the width."""
    while len(line) > width:
        cut = line.rfind(" ", 0, width) + 1
        cut = cut if line[:cut].strip() else width
        yield line[:cut]
        line = line[cut:]
    yield line


RECORD = (
    "pip : ERROR: Exception:",
    "At line:1 char:34",
    "+ pip install -r requirements.txt > pip_install_log.txt 2>&1 ...",
    "    + CategoryInfo          : NotSpecified: (ERROR: Exception::String) [], RemoteException",
    "    + FullyQualifiedErrorId : NativeCommandError",
    "",
    "Traceback (most recent call last):",
    "distutils.errors.DistutilsPlatformError: Microsoft Visual C++ 14.0 or greater is required",
)
BEFORE = "Collecting numpy==1.25.2 (from -r requirements.txt (line 4))"


def narrow(width: int) -> list[str]:
    return [BEFORE, *(part for line in RECORD for part in as_powershell_wraps(line, width))]


@pytest.mark.parametrize("width", [24, 30, 51, 79])
def test_lines_that_powershell_wrapped_are_joined(width: int) -> None:
    lines = unwrap_powershell("\n".join(narrow(width)).encode()).decode().split("\n")
    assert [line for line in lines if line] == [BEFORE, *filter(None, RECORD)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_message_that_powershell_wrapped_is_found(encoding: str) -> None:
    lines = narrow(24)
    stream = io.BytesIO("\r\n".join(lines).encode(encoding))
    found = Patterns(["DistutilsPlatformError: Microsoft Visual C"]).in_text(stream, "log")
    begun = lines.index("distutils.errors.Distuti") + 1
    assert [hit.number for hit in found.values()] == [begun]


@pytest.mark.parametrize("line", ["a \n", "abcdefgh\n", "x" * 30 + " \n", "\n"])
def test_a_text_that_seems_to_be_wrapped_everywhere_stays_in_short_lines(line: str) -> None:
    lines = f"    + CategoryInfo \n{'y' * 20} \n" + line * ((1 << 20) // len(line) - 100)
    joined = unwrap_powershell(lines.encode())
    assert max(map(len, joined.split(b"\n"))) < 2 * CHUNK_BYTES


@given(st.text(alphabet="ab +\n", max_size=400))
def test_joined_lines_keep_their_numbers(text: str) -> None:
    wrapped = f"{text}\n    + CategoryInfo \n{text}".encode()
    joined = unwrap_powershell(wrapped)
    assert joined.count(b"\n") == wrapped.count(b"\n")
    assert joined.replace(b"\n", b"") == wrapped.replace(b"\n", b"")


@pytest.mark.parametrize(
    ("pattern", "apart"),
    [
        (r"Xid 79\b", True),
        (r"error: 80[34]", True),
        (r"cu1\d\d", True),
        (r"[1-9]\d*", True),
        (r"\d+\.\d+", False),
        (r"step [0-9]{1,8} of", False),
        (r"(?P<pid>\d{2,}) killed", False),
        (r"no digits at all", False),
    ],
)
def test_which_patterns_tell_digits_apart(pattern: str, apart: bool) -> None:  # noqa: FBT001
    assert tells_digits_apart(pattern) is apart


def test_of_lines_that_differ_in_digits_each_is_looked_at_by_what_tells_them_apart() -> None:
    text = "".join(f"GPU 0 had Xid {number} at {number}\n" for number in range(100))
    found = hits(text, r"Xid 79\b", r"Xid \d+ at (?P<at>\d+)", r"Xid 9[0-9] at 9(?P<last>[37])")
    assert {hit.number for hit in found.values()} == {80, 1, 94}


@given(
    st.lists(st.sampled_from(["Xid 13", "Xid 79", "xid 13", "a 1 b", "a 2 b", "b"]), max_size=30)
)
def test_what_is_passed_over_holds_nothing_new(lines: list[str]) -> None:
    patterns = (r"Xid \d+", r"Xid 79", r"a \d b", r"a 2 b", "xid")
    found = hits("\n".join(lines), *patterns)
    expected = {p for p in patterns if any(searched(p, line) for line in lines)}
    assert set(found) == expected
    for pattern, hit in found.items():
        first = next(n for n, line in enumerate(lines, 1) if searched(pattern, line))
        assert hit.number == first


# --- every pattern ---


def shipped() -> Iterator[str]:
    return (pattern for one in load().failures for pattern in patterns_of(one))


def test_every_pattern_can_be_read_in_linear_time() -> None:
    """RE2 takes none whose time could be more than linear in the text: that is what it is for. And
    each has a word by which most lines are passed over.
    """
    assert [p for p in shipped() if problem(p) is not None] == []


@pytest.mark.parametrize("text", ["", " ", "error", "failed", "cuda", "nvidia-smi", "GPU", "None"])
def test_a_word_is_no_failure(text: str) -> None:
    assert diagnose([("log", text)]).causes == ()


HOSTILE = {
    "one letter": b"a",
    "blanks": b" ",
    "half of a colour": b"\x1b[1;",
    "a line that almost matches": b"NVRM: Xid (PCI:0000:01:00",
    "quotes and backslashes": b'\\"\\\\"',
    "cuda over and over": b"CUDA error: ",
    "nested groups' favourite": b"(((((aaaa)))))!",
    "numbers": b"1.2.3.4:",
    "bytes of no encoding": bytes(range(128, 256)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_to_its_end(name: str) -> None:
    """Lines with and without ends; the message at the very end is still found."""
    every = Patterns([*shipped(), "the message at the very end"])
    for end in (b"", b"\n"):
        text = (HOSTILE[name] + end) * ((1 << 20) // len(HOSTILE[name]))
        found = every.in_text(io.BytesIO(text + b"\nthe message at the very end"), "x")
        assert "the message at the very end" in found


def test_escapes_are_undone_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many patterns match however many lines of a JSON log."""
    undone = 0

    def counted(piece: bytes) -> bytes | None:
        nonlocal undone
        undone += len(piece)
        return unescaped(piece)

    monkeypatch.setattr("provision.doctor.matching.unescaped", counted)
    text = "".join(f'{{"log": "{MESSAGE} {n}\\\\n"}}\n' for n in range(2_000)).encode()
    asked = [PATTERN, "fallen off", "has fallen", "the bus"]
    found = Patterns(asked).every_hit(io.BytesIO(text), "log", asked)
    assert all(len(found[pattern]) >= 1_000 for pattern in asked)
    assert undone <= 3 * len(text)


@given(
    st.sets(st.integers(1, 200)).map(sorted),
    st.integers(0, 210),
    st.integers(0, 210),
)
def test_ends_are_found_by_their_numbers(numbers: list[int], first: int, last: int) -> None:
    found = Outline("log")
    found.ends.extend((number, f"end {number % 3}") for number in numbers)
    within = [number for number in numbers if first <= number <= last]
    assert found.ends_after(first, last) == bool(within)
    others = re.compile("end 0")
    assert found.ends_after(first, last, but=others) == any(number % 3 for number in within)


LETTERS = str.maketrans("0123456789", "abcdefghij")  # lines that differ in digits cost nothing


def costly(lines: int) -> bytes:
    """Each piece is tried for the pattern, and only the last one matches."""
    names = (str(n).translate(LETTERS) for n in range(lines))
    return "".join(f"the bus {name} has fallen off now\n" for name in names).encode()


WORK_PATTERN = r"fallen off now.*the bus \d"


@cases(
    "lines is_partly",
    ("a text that costs less than it may", 900, False),
    ("a text that costs more", 20_000, True),
)
def test_a_text_is_read_as_far_as_its_cost_allows(lines: int, is_partly: bool) -> None:  # noqa: FBT001
    work = Work(100)
    text = costly(lines) + b"fallen off now, the bus 7\n"
    found = Patterns([WORK_PATTERN]).in_text(io.BytesIO(text), "log", work)
    assert found[WORK_PATTERN].number == lines + 1
    assert (work.partly is not None) == is_partly
    if work.partly:
        assert 0 < work.partly.first < lines
        assert 0 < work.partly.last < lines
        assert work.partly.first + work.partly.last < work.partly.lines == lines + 1


def test_the_same_text_is_always_read_as_far() -> None:
    text = costly(20_000)
    read = []
    for _ in range(2):
        work = Work(100)
        Patterns([WORK_PATTERN]).in_text(io.BytesIO(text), "log", work)
        read.append(work.partly)
    assert read[0] == read[1] is not None


def test_work_is_over_when_the_time_is() -> None:
    work = Work(seconds=-1.0)
    found = Patterns([WORK_PATTERN]).in_text(
        io.BytesIO(b"fallen off now, the bus 7\n"), "log", work
    )
    assert found == {}
    assert work.partly == PartlyRead(source="log", first=0, last=0, lines=1)


def test_further_hits_are_looked_for_as_far_as_the_cost_allows() -> None:
    text = b"fallen off now, the bus 7\n" * 100_000
    work = Work(1_000)
    found = Patterns([WORK_PATTERN]).every_hit(io.BytesIO(text), "log", [WORK_PATTERN], work)
    assert 1 <= len(found[WORK_PATTERN]) < 2_000


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """A process that may not take more memory reads a log that is larger than that."""
    log = tmp_path / "large.log"
    line = b"2026-02-03T04:05:06Z worker-7 INFO step 12345 of 90000, loss 0.1234\n"
    with log.open("wb") as file:
        for _ in range(64):
            file.write(line * (4 << 20 >> 6))
        file.write(MESSAGE.encode())
    program = (
        "import resource, sys; from provision.doctor import diagnose, load;"
        "from provision.doctor.matching import Patterns; load().patterns;"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "open_log = open(sys.argv[1], 'rb');"
        "print([cause.code for cause in diagnose([('log', open_log)]).causes]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used)"
    )
    done = run_program([sys.executable, "-c", program, str(log)], cwd=ROOT, check=True)
    grown_kib = int(done.stdout.splitlines()[-1])
    assert grown_kib < 150 << 10
    assert log.stat().st_size > 200 << 20
