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
from provision.doctor.outline import IS_RAISED, Outline, is_warning
from provision.doctor.reading import chunks

# Lines that say only that a command, a build, a process or a job failed.
_WRAPPERS = (
    # pip, and the builds that it starts
    r"subprocess-exited-with-error|metadata-generation-failed|legacy-install-failure",
    r"[Ff]ail(?:ed|ure) (?:building|to build)|[Cc]ould not build wheels|status 'error'",
    r"No matching distribution found|Ignored the following|pip's dependency resolver",
    r"Preparing metadata .*error|[Ee]ncountered error while|generating package metadata",
    r"error: [Cc]ommand\b|error: `cargo|Couldn't install|Error compiling objects",
    # compilers, make, ninja, CMake, tar, rpm, TensorRT, NVIDIA's installer
    r"\bmake(?:\[\d+\])?: \*\*\*|build stopped|(?:^|\s)FAILED: |\[FAILED\]|&&&& FAILED",
    r"Error \d+\s*$",
    r"\d errors? (?:detected|generated|found)|linker command failed|compilation terminated",
    r"Configuring incomplete|errors occurred!|did NOT complete|Build failed\W*$",
    r"[Cc]hild returned|Bad exit status|Installation has failed",
    # dpkg, apt
    r"dpkg: error processing|subprocess (?:installed|new|old|returned)|E: Sub-process",
    r"post-(?:installation|removal) script|Errors were encountered|too many errors",
    r"Unmet dependencies\. Try|dependency problems - leaving|it is not (?:going to be )?installed",
    # docker, BuildKit, compose
    r"did not (?:complete|run) successfully|failed to solve|ERROR: (?:process |Service |executor )",
    r"returned (?:a )?non-zero|non-zero exit|Error response from daemon: *$",
    # what starts processes
    r"(?i:exit(?:ed)?(?: with)?(?: exit)? (?:code|status)\b)|exitcode\s*:",
    r"return code|returned status",
    r"Command failed|[Mm]ain process exited|[Ff]ailed with result|core dumped|Segmentation fault",
    r"terminate called|(?i:\babort(?:ing|ed)?\b)|[Kk]illing subprocess|Sending process \d+",
    r"sigkill_handler|: line \d+: +\d+ Killed +python|Task failed with an exc|Execution failed for",
    # Python: exceptions that report a process or another exception
    r"CalledProcessError|ChildFailed|Process(?:Raised|Exited)|RayTaskError|ActorDied|EngineDead|ProcessException",
    r"EOFError|BrokenPipe|KeyboardInterrupt|SystemExit|Exception ignored|\.Exit\b",
    r"(?:Error|Exception): ?Traceback \(most recent|\bFile \"[^\"]+\", line \d|\braise \w+\(",
    # errors that send the reader elsewhere
    r"failed without raising|run with NCCL_DEBUG|check the logs|see (?:the )?stack trace",
    r"(?i:refer to the \w+ (?:docs|documentation|instructions))|exited unexpectedly",
    r"^(?i:error|exception):?\s*$",
    # bitsandbytes, nccl-tests
    r"CUDA SETUP: Setup Failed|Test failure common\.cu",
    # servers, Slurm, MPI, Horovod
    r"root cause (?:above|below)|Failed core proc|[Ww]orker failed|Application startup failed",
    r"(?:srun|slurmstepd): error: .*(?:Exited|Terminated|Killed|CANCELLED|launch failed)",
    r"mpirun (?:noticed|detected)|[Pp]rimary job|(?i:per user-direction)|remote process exited",
    r"Horovod has been shut down",
)
# What stands around a program's words: boxes, a Dockerfile's lines, a traceback, warnings.
_FRAMES = (
    r"^[\W_]*$|^[\W\d.]*(?:>>>|\d+ \|)|\[end of output\]|lines of output\]|\[notice\]",
    r"originates from a subprocess|[Ss]ee above for output|not a problem with pip",
    r"You are attempting to use Flash Attention|module verification failed|Result = FAIL",
    r"[Nn]ote: This error",
    r"This is an issue with the package|full command:|^\s*cwd:|^\s*(?:File \"|at |in <module>)",
    r"Traceback \(most recent|During handling of the above|direct cause of the following",
    r"(?i:\[warning\]|\bwarn(?:ing)?: )|^[WI]\d{4} |Unable to register cu|please wait",
    # what torch adds to each error of CUDA
    r"CUDA kernel errors might|For debugging consider|Compile with `TORCH|^Set TORCH",
    # flags as lspci prints them
    r"\w+[-+] \w+[-+]",
    # what a report's form asks for
    r"^- \[[ xX]\]|Welcome to bitsandbytes|submit your error trace|bug report|^raise \w",
)
# Words of a sentence that gives a reason.
_REASONS = (
    r"\b(?:must|please|require[sd]?|no such|can ?not|can't|could ?n[o']t|unable|missing|invalid)\b",
    r"\bnot (?:found|supported|available|allowed|enough|installed|exist|declared|permitted)\b",
    r"\bnot (?:valid|accessible|a directory|find|open|locate|load|match|compatible|be)\b",
    r"unsupported|denied|refused|timed? ?out|incompatib|mismatch|illegal|\bunknown \w|undeclared",
    r"undefined|unrecognized|too (?:old|new|small|large|many)|out of|exceed|no space|killed",
    r"corrupt|expected|\bfail(?:ed|ure|s)?\b|\berrors?\b|(?:error|exception):",
    r"\b(?:currently used|locked by|in use by|already (?:in use|running)|busy)\b",
)
WRAPPER = re.compile("|".join(_WRAPPERS), re.ASCII)
FRAME = re.compile("|".join(_FRAMES), re.ASCII)
SAYS = re.compile("(?i)" + "|".join(_REASONS), re.ASCII)
_TOGETHER = 40  # lines: the parts of a chain of exceptions, a compiler's errors of one file
_LOOKED_AT = 60  # lines before what says only that something failed
_LONGEST = 300  # characters of a line that are shown
_READ = 2 * _LONGEST
# a message that ends like this is whole
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
    elif not found[-1][1].endswith(_WHOLE) or "(Request ID" in found[-1][1]:
        number, says = found[-1]
        found[-1] = (number, _continued(says, _lines(stream, number + 1, number + 5)))
    return tuple(Evidence(says=says, where=f"{outline.source}:{number}") for number, says in found)


def _stated(outline: Outline) -> list[tuple[int, str]]:
    """The first of the last lines that something ended by, but wrappers, and the last of them, or
    the last exception.
    """
    ends = [one for one in outline.ends if not WRAPPER.search(one[1]) and not is_warning(one[1])]
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
    raised = [one for one in ordered if IS_RAISED.match(one[1])]
    return list(dict.fromkeys([*ordered[:1], *(raised or ordered)[-1:]]))


def _said_before(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first and the last two lines that read like a reason."""
    said = {
        says: number
        for number, says in lines
        if SAYS.search(says)
        and not FRAME.search(says)
        and not WRAPPER.search(says)
        and not is_warning(says)
    }
    ordered = [(number, says) for says, number in said.items()]
    return ordered if len(ordered) < 4 else [ordered[0], *ordered[-2:]]


def _continued(says: str, lines: Sequence[tuple[int, str]]) -> str:
    """A message that breaks off, with the lines that it goes on in."""
    for _, more in lines:
        if FRAME.search(more) and more:
            break
        if not more or WRAPPER.search(more):
            continue
        says = f"{says} {more}"
        if more.endswith(_WHOLE):
            break
    return says if len(says) <= _LONGEST else f"{says[: _LONGEST - 3]}..."


def _lines(stream: BinaryIO, first: int, end: int) -> list[tuple[int, str]]:
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
    text = " ".join(text.split()).strip("│|╰─> ")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
