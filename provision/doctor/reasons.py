"""Which lines of a log state why its run ended: the program's own words, known cause or not.

What ends a log is mostly a wrapper: pip says that a build failed, make that a command did, torchrun
that a rank did. The reason stands before it: the exception that was raised first, a compiler's
first error, or the words printed just before.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from images.text.printable import printable, shortened
from provision.doctor.lines import chunks
from provision.doctor.model import Evidence
from provision.doctor.outline import IS_RAISED, Outline, is_warning
from provision.doctor.tables import table

# A kernel's line about a GPU.
_GPU = r"(?:\[drm\b|\b(?:NVRM|nvidia|nouveau|amdgpu|kfd|radeon|i915)\b)"
# What a program lacks by its build is a reason, though a daemon may only warn of it and go on.
BUILT_WITHOUT = re.compile(r"\b(?:was|were|is) not (?:built|compiled) with\b", re.ASCII)
# What Python's and IPython's prompts show of code, and the shell's of a command.
PROMPT = re.compile(r"(?:>>>|\.\.\.|In \[\d+\]:|\$)(?: |$)", re.ASCII)


def _either(kind: str) -> str:
    """The patterns of a kind of lines, as one."""
    return "|".join(table("ends.toml")[kind])


WRAPPER = re.compile(_either("wrappers"), re.ASCII)
TELLING = re.compile(_either("telling"), re.ASCII)
PREFIX = re.compile(f"^(?:{_either('prefixes')})+", re.ASCII)
FRAME = re.compile(_either("frames"), re.ASCII)
MILD = re.compile(_either("mild"), re.ASCII)
GPU_LINE = re.compile(rf"(?:^\[ *\d+\.\d+\]|\bkernel:) .*{_GPU}", re.ASCII)
SAYS = re.compile("(?i)" + _either("reasons"), re.ASCII)
_LOOKED_AT = 60  # lines before what says only that something failed
_LONGEST_END = 300  # lines that the last end may take up; earlier ones of it are not looked at
_BEHIND = 6  # lines behind the last end
_UV_CALL = "Call to `"  # uv says that a build failed, and shows the build's output behind that
_MOST = 3  # reasons
_LONGEST = 300  # characters of a line that are shown
_READ = 2 * _LONGEST
# a message that goes on behind a blank line
_HEADING = re.compile(r"(?:[:,]|\bvalidation errors? for \S+)$", re.ASCII)
# an exception without words of its own: what it says is the line of code above it
_WORDLESS = re.compile(r"^[\w.]+(?:Error|Exception)$", re.ASCII)
# a message that ends like this is whole
_WHOLE = (*".!'\")]>}", "directory", "device", "denied", "refused", "timed out", "not found")


def reasons(stream: BinaryIO, outline: Outline) -> tuple[Evidence, ...]:
    """The lines that say why the text ends badly, at most three, in their order. () where it ends
    well, or where no line says why.
    """
    if outline.done:
        return ()
    found = _reasons_found(outline)
    stream.seek(0)
    lines = lines_between(stream, *_around_the_end(outline))
    if found:
        lacks = [one for one in lines if BUILT_WITHOUT.search(one[1]) and one not in found]
        found = [*lacks[:1], *found[-_MOST + 1 :]] if lacks else found
    else:
        found = _raised_in(lines)
        if not found:
            return _evidence(_said_in(lines, mild=not outline.ends), outline)
    found = [_with_its_code(one, stream) for one in found]
    if not found[-1][1].endswith(_WHOLE) or "(Request ID" in found[-1][1]:
        number, says = found[-1]
        stream.seek(0)
        found[-1] = (number, _continued(says, lines_between(stream, number + 1, number + 5)))
    return _evidence(found, outline)


def reads_like_a_reason(line: str) -> bool:
    """Whether a line reads like the reason of a failure, and not like a warning or a reading."""
    bare = without_prefix(line.strip())
    tells = SAYS.search(bare) or WRAPPER.search(bare)
    return bool(tells) and not _goes_on(bare) and not is_warning(line)


def _goes_on(bare: str) -> bool:
    """Whether a program says in its line that it goes on."""
    return MILD.search(bare) is not None or is_warning(bare)


def _evidence(lines: Iterable[tuple[int, str]], outline: Outline) -> tuple[Evidence, ...]:
    return tuple(Evidence(says=says, where=f"{outline.source}:{number}") for number, says in lines)


def _reasons_found(outline: Outline) -> list[tuple[int, str]]:
    """The first of the last lines that something ended by, but wrappers, and the last of them, or
    the last exception.
    """
    ends = [
        (number, line)
        for number, line in outline.ends
        if not _is_wrapper(without_prefix(line))
        and not is_warning(line)
        and not FRAME.search(without_prefix(line))
    ]
    found = deque(ends[-1:])
    for one in ends[-2::-1]:
        if not outline.is_joined(one[0], found[0][0]):
            break
        found.appendleft(one)
    last = outline.last_end()
    if found and last and last[0][0] - found[-1][0] > 10 * _LOOKED_AT:
        return []  # of something else, long before
    by_text = {says: number for number, says in reversed(found)}
    ordered = sorted((number, says) for says, number in by_text.items())
    raised = [one for one in ordered if IS_RAISED.match(one[1])]
    telling = [one for one in ordered if TELLING.search(one[1])]
    return sorted({*ordered[:1], *(raised or ordered)[-1:], *telling[-1:]})


def without_prefix(line: str) -> str:
    """A line without what a service, a rank or a logger puts before it."""
    return PREFIX.sub("", line)


def _is_wrapper(line: str) -> bool:
    """Whether a line says that something failed, and not why."""
    return WRAPPER.search(line) is not None and TELLING.search(line) is None


def _around_the_end(outline: Outline) -> tuple[int, int]:
    """The lines before the last end, those of it, and the few behind it; of a text that just stops
    its last lines. The first of them, and the one behind the last.
    """
    ended = outline.last_end() or [(outline.lines + 1, "")]
    last, says = ended[-1]
    first = max(ended[0][0], last - _LONGEST_END) - _LOOKED_AT
    behind = _LONGEST_END if _UV_CALL in says else _BEHIND
    return max(first, 1), min(last + behind, outline.lines) + 1


def _raised_in(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first exception and the last, but wrappers."""
    raised = [one for one in _own_words(lines) if IS_RAISED.match(without_prefix(one[1]))]
    raised = [one for one in raised if not one[1].endswith(":")] or raised
    return sorted({*raised[:1], *raised[-1:]})


def _said_in(lines: Sequence[tuple[int, str]], *, mild: bool) -> list[tuple[int, str]]:
    """The first and the last two lines that read like a reason, of a kernel's those about a GPU;
    `mild`: or else like a warning.
    """
    said = [one for one in _own_words(lines) if SAYS.search(without_prefix(one[1]))]
    said = [one for one in said if GPU_LINE.search(one[1])] or said
    if mild and not said:
        said = [one for one in _own_words(lines, mild=True) if SAYS.search(one[1])]
    return said if len(said) < 4 else [said[0], *said[-2:]]


def _own_words(lines: Sequence[tuple[int, str]], *, mild: bool = False) -> list[tuple[int, str]]:
    """The lines that are no wrapper, no frame, and no warning, unless it is `mild`. Each once."""
    found = {}
    is_code = False  # after each place a traceback shows a line of the file
    for number, says in lines:
        bare = without_prefix(says)
        goes_on = _goes_on(bare) or is_warning(says)
        is_code = is_code and not IS_RAISED.match(bare)
        framed = is_code or FRAME.search(bare) or _is_wrapper(bare)
        if bare and not framed and (mild or not goes_on):
            found[says] = number
        is_code = bare.startswith('File "')
    return sorted((number, says) for says, number in found.items())


def _with_its_code(raised: tuple[int, str], stream: BinaryIO) -> tuple[int, str]:
    """An exception that has no words, with the line of code that the traceback shows above it."""
    number, says = raised
    if not _WORDLESS.match(without_prefix(says)):
        return raised
    stream.seek(0)
    above = [without_prefix(line) for _, line in lines_between(stream, max(number - 3, 1), number)]
    code = [line for line in above if line and not FRAME.search(line)]
    return (number, f"{code[-1]} {says}"[:_LONGEST]) if code else raised


def _continued(says: str, lines: Sequence[tuple[int, str]]) -> str:
    """A message that breaks off, with the lines of its paragraph that it goes on in."""
    for _, line in lines:
        more = without_prefix(line)
        if _goes_on(more) or FRAME.search(more) if more else not _HEADING.search(says):
            break
        if not more or _is_wrapper(more):
            continue
        says = f"{says} {more}"
        if more.endswith(_WHOLE):
            break
    return shortened(says, _LONGEST)


def lines_between(stream: BinaryIO, first: int, end: int) -> list[tuple[int, str]]:
    """The lines from `first` up to and without `end`, by their numbers."""
    wanted = islice(_each(stream), first - 1, end - 1)
    return [(number, _shown(line)) for number, line in enumerate(wanted, start=first)]


def _each(stream: BinaryIO) -> Iterator[bytes]:
    """The begin of each line: one may be as long as the text."""
    begun = b""
    for chunk in chunks(stream):
        first, *rest = chunk.split(b"\n")
        begun = (begun + first)[:_READ]
        if rest:
            yield begun
            yield from rest[:-1]
            begun = rest[-1][:_READ]
    yield begun


def _shown(line: bytes) -> str:
    text = printable(line[:_READ].decode("utf-8", "replace"), instead=" ")
    text = " ".join(text.split())
    return shortened(text if PROMPT.match(text) else text.strip("│|╰─> "), _LONGEST)
