"""Which lines of a log state why its run ended: the program's own words, known cause or not.

What ends a log is mostly a wrapper: pip says that a build failed, make that a command did, torchrun
that a rank did. The reason stands before it: the exception that was raised first, a compiler's
first error, or the words printed just before.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from images.text.printable import printable
from provision.doctor.model import Evidence
from provision.doctor.outline import Outline, is_warning
from provision.doctor.reading import chunks

# A line that says only that a command, a build, a process or a job failed.
_WRAPPER = re.compile(
    r"subprocess-exited-with-error|metadata-generation-failed|legacy-install-failure"
    r"|[Ff]ail(?:ed|ure) (?:building|to build)|[Cc]ould not build wheels|Build failed\W*$"
    r"|did not (?:complete|run) successfully|failed to solve|[Ff]ailed to build"
    r"|returned (?:a )?non-zero|non-zero exit"
    r"|(?i:exit(?:ed)?(?: with)?(?: exit)? (?:code|status)\b)"
    r"|exitcode\s*:|return code|returned status|Bad exit status"
    r"|\bmake(?:\[\d+\])?: \*\*\*|build stopped|(?:^|\s)FAILED: |Error compiling objects"
    r"|linker command failed|compilation terminated|Installation has failed"
    r"|error: [Cc]ommand\b|ERROR: (?:process |Service |executor failed)|Command failed"
    r"|\d errors? (?:detected|generated|found)|Configuring incomplete|errors occurred!"
    r"|did NOT complete|status 'error'|\[FAILED\]|&&&& FAILED|error: `cargo|[Cc]hild returned"
    r"|No matching distribution found|Ignored the following|pip's dependency resolver"
    r"|\bFile \"[^\"]+\", line \d"
    r"|CalledProcessError|ChildFailed|Process(?:Raised|Exited)|RayTaskError|ActorDied|EngineDead"
    r"|root cause (?:above|below)|Failed core proc|[Ww]orker failed|NotRegistered"
    r"|EOFError|BrokenPipe|KeyboardInterrupt|SystemExit|Exception ignored|\.Exit\b"
    r"|[Mm]ain process exited|[Ff]ailed with result|Killing subprocess|Sending process \d+"
    r"|Aborted|(?i:\babort(?:ing|ed)?\b)|core dumped|terminate called|Segmentation fault"
    r"|(?:srun|slurmstepd): error: .*(?:Exited|Terminated|Killed|CANCELLED|launch failed)"
    r"|mpirun (?:noticed|detected)|[Pp]rimary job|(?i:per user-direction)"
    r"|remote process exited|Horovod has been shut down|Application startup failed"
    r"|Error \d+\s*$|(?:Error|Exception): ?Traceback \(most recent|Error response from daemon: *$"
)
# What frames the words of a program: rules of boxes, Dockerfile lines that are shown again.
_FRAME = re.compile(
    r"^[\W_]*$|^[\W\d.]*(?:>>>|\d+ \|)|\[end of output\]|lines of output\]|originates from a subpro"
    r"|[Ss]ee above for output|This is an issue with the package|[Nn]ote: This error"
    r"|^\s*(?:File \"|at |in <module>)|Traceback \(most recent|most likely not a problem with pip"
    r"|During handling of the above|direct cause of the following|full command:|^\s*cwd:|\[notice\]"
    r"|(?i:\[warning\]|\bwarn(?:ing)?: )|^[WI]\d{4} |Unable to register cu|please wait"
)
_SAYS = re.compile(
    r"(?i)\bmust\b|\bplease\b|\brequire[sd]?\b|\bnot (?:found|supported|available|allowed|enough"
    r"|installed|exist|declared|permitted|valid|accessible|a directory|find|open|locate|load|match"
    r"|compatible|be)\b|\bno such\b|\bcan ?not\b|can't|could ?n[o']t|\bunable\b|unsupported"
    r"|\bmissing\b|\binvalid\b|denied|refused|timed? ?out|incompatib|mismatch|\bfail(?:ed|ure|s)?\b"
    r"|\berrors?\b|(?:error|exception):|illegal|\bunknown \w|undeclared|undefined|unrecognized"
    r"|too (?:old|new|small|large|many)|out of|exceed|no space|killed|corrupt|expected"
)
_TOGETHER = 40  # lines: the parts of a chain of exceptions, a compiler's errors of one file
_LOOKED_AT = 60  # lines before what says only that something failed
_LONGEST = 300
_WHOLE = (".", "!", "'", '"', ")", "]", ">", "}", "...")


def reasons(stream: BinaryIO, outline: Outline) -> tuple[Evidence, ...]:
    """The lines that say why the text ends badly, at most three, in their order. () where it ends
    well, or where no line says why.
    """
    if outline.done:
        return ()
    found = _stated(outline)
    stream.seek(0)
    if not found:
        end = next((number for number, _ in outline.last_end()), outline.lines + 1)
        found = _said_before(_lines(stream, max(end - _LOOKED_AT, 1), end))
    elif not found[-1][1].endswith(_WHOLE):
        number, says = found[-1]
        found[-1] = (number, _continued(says, _lines(stream, number + 1, number + 4)))
    return tuple(Evidence(says=says, where=f"{outline.source}:{number}") for number, says in found)


def _stated(outline: Outline) -> list[tuple[int, str]]:
    """The first and the last of the last lines that something ended by, but wrappers."""
    ends = [one for one in outline.ends if not _WRAPPER.search(one[1]) and not is_warning(one[1])]
    found = deque(ends[-1:])
    for one in ends[-2::-1]:
        if found[0][0] - one[0] > _TOGETHER:
            break
        found.appendleft(one)
    last = outline.last_end()
    if found and last and last[0][0] - found[-1][0] > 10 * _LOOKED_AT:
        return []  # of something else, long before
    by_text = {says: number for number, says in reversed(found)}
    ordered = sorted((number, says) for says, number in by_text.items())
    return ordered if len(ordered) < 3 else [ordered[0], ordered[-1]]


def _said_before(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first and the last two lines that read like a reason."""
    said = {
        says: number
        for number, says in lines
        if _SAYS.search(says)
        and not _FRAME.search(says)
        and not _WRAPPER.search(says)
        and not is_warning(says)
    }
    ordered = [(number, says) for says, number in said.items()]
    return ordered if len(ordered) < 4 else [ordered[0], *ordered[-2:]]


def _continued(says: str, lines: Sequence[tuple[int, str]]) -> str:
    """A message that breaks off, with the line that it goes on in."""
    more = next((line for _, line in lines if line), "")
    apart = not more or _FRAME.search(more) or _WRAPPER.search(more)
    return says if apart else f"{says} {more}"[:_LONGEST]


def _lines(stream: BinaryIO, first: int, end: int) -> list[tuple[int, str]]:
    """The lines from `first` up to and without `end`, by their numbers."""
    wanted = islice(_each(stream), first - 1, end - 1)
    return [(number, _shown(line)) for number, line in enumerate(wanted, start=first)]


def _each(stream: BinaryIO) -> Iterator[bytes]:
    pending = b""
    for chunk in chunks(stream):
        *whole, pending = (pending + chunk).split(b"\n")
        yield from whole
    yield pending


def _shown(line: bytes) -> str:
    text = printable(line[: 2 * _LONGEST].decode("utf-8", "replace"), instead=" ")
    text = " ".join(text.split()).strip("│|╰─> ")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
