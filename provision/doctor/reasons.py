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

# Lines that say only that a command, a build, a process or a job failed.
_WRAPPERS = (
    # pip, and the builds that it starts
    r"subprocess-exited-with-error|metadata-generation-failed|legacy-install-failure",
    r"failed-wheel-build-for-install|Failed to build installable wheels|backend-unavailable",
    r"[Ff]ail(?:ed|ure) (?:building|to build)|[Cc]ould not build wheels|status 'error'",
    r"No matching distribution found|Ignored the following|pip's dependency resolver",
    r"(?:Preparing metadata|Getting requirements|(?:Building|Preparing) \w+) .*\berror\s*$",
    r"[Ee]ncountered error while|generating package metadata|build backend returned an error",
    r"error: [Cc]ommand\b|error: `cargo|Couldn't install|Error compiling objects",
    # compilers, make, ninja, CMake, tar, rpm, TensorRT, NVIDIA's installer
    r"\bg?make(?:\[\d+\])?: \*\*\*|build stopped|(?:^|\s)FAILED: |\[FAILED\]|&&&& FAILED",
    r"Error \d+\s*$|Error is not recoverable",
    r"\d errors? (?:detected|generated|found)|linker command failed|compilation terminated",
    r"Configuring incomplete|errors occurred!|did NOT complete|Build failed\W*$",
    r"CMake will not be able to correctly generate|CMake configuration failed",
    r"[Cc]hild returned|Bad exit status|Building rpms failed|^LINK(?: Pass \d)?: command ",
    r"Installation has failed|Install of .+ failed",
    # dpkg, apt
    r"dpkg: error processing|subprocess (?:installed|new|old|returned)|E: Sub-process",
    r"post-(?:installation|removal) script|Errors were encountered|too many errors",
    r"Unmet dependencies\. Try|dependency problems - leaving|it is not (?:going to be )?installed",
    r"Cannot create report",
    # DKMS
    r"^Error! One or more modules|^Refer to previous errors",
    # docker, BuildKit, compose
    r"^=> ERROR \[",
    r"did not (?:complete|run) successfully|failed to solve|ERROR: (?:process |Service |executor )",
    r"returned (?:a )?non-zero|non-zero exit|Error response from daemon: *$",
    # what starts processes
    r"(?i:exit(?:ed)?(?: with)?(?: exit)? (?:code\b|status\b|[1-9]\d*\s*$))|exitcode\s*:",
    r"return code|returned status",
    r"Command failed|^Failed command:|[Mm]ain process exited|[Ff]ailed with result|core dumped",
    r"Segmentation fault|ORTE was unable to",
    r"terminate called|(?i:\babort(?:ing|ed)?\b)|[Kk]illing subprocess|Sending process \d+",
    r"sigkill_handler|^Killed$|: line \d+: +\d+ Killed +python|Task failed with an exc",
    r"Execution failed for",
    # Python: exceptions that report a process or another exception
    r"CalledProcessError|ChildFailed|Process(?:Raised|Exited)|RayTaskError|ActorDied|EngineDead",
    r"ProcessException|terminated with the following error|NativeCommandError",
    r"Caught \w+ in (?:DataLoader worker|pin memory thread|replica) ",
    r"\.py FAILED|NO_OTHER_FAIL|Root Cause \(first|main process disappeared",
    r"EOFError|BrokenPipe|KeyboardInterrupt|SystemExit|Exception ignored|\.Exit\b",
    r"(?:Error|Exception): ?Traceback \(most recent|\bFile \"[^\"]+\", line \d|\braise \w+\(",
    # errors that send the reader elsewhere
    r"failed without raising|run with NCCL_DEBUG|check the logs|see (?:the )?stack trace",
    r"(?i:refer to the \w+ (?:docs|documentation|instructions))|exited unexpectedly",
    r"^(?i:(?:(?:last )?error|exception)\b[:\s]*)+$",
    # bitsandbytes, TensorFlow, NCCL, nccl-tests
    r"CUDA SETUP: Setup Failed|root error\(s\) found|Test failure common\.cu",
    r"NCCL error in: |nccl(?:Internal|System|RemoteError|InvalidUsage|UnhandledCuda)\w*: ",
    # X servers, npm, Julia's tests
    r"Server terminated with error|check the log file|complete log of this run",
    r"Fatal server error|^Please consult the|cannot be started, session disabled",
    r"Some tests did not pass",
    # pytest, Portage
    r"^=+ .*\bin \d|^!+ |^_+ |^ERROR (?:collecting )?\S+\.py\W*$|^collected \d+ items?",
    r"\S::[a-z]+ failed \(|^\* \w+ failed\W*$",
    # servers, Slurm, MPI, Horovod
    r"exiting due to model loading error|failed to load model\b",
    r"library dependencies are not installed in the worker",
    r"root cause (?:above|below)|[Ss]ee the (?:\w+ )?logs|Failed core proc|[Ww]orker failed",
    r"Application startup failed|output_handler failed|one child failed",
    r"(?:srun|slurmstepd): error: .*(?:Exited|Terminated|Killed|CANCELLED|launch failed)",
    r"pyxis: (?:container start|child \d+) failed|spank plugin stack",
    r"mpirun (?:noticed|detected)|[Pp]rimary job|(?i:per user-direction)|remote process exited",
    r"Horovod has been shut down",
)
# Where a wrapper's own line gives the reason.
_TELLING = (
    r"(?i)\bdue to (?:time|preempt|node|memory|control)|oom[-_ ]?kill|out of memory|no space left",
    r"context canceled",
    r"(?:limit|quota) exceeded|killed after reaching|permission denied|no such file|signal: [a-z]",
)
# What a service, a step of a build, a rank, a worker or a logger puts before each line.
_PREFIXES = (
    r"[\w.-]+ +\| +|#\d+ [\d.]+ |\d+\.\d+ |stderr: *|npm (?:error|ERR!) ",
    r"(?:pip|python|docker|conda|uv)[\d.]* : |\d+\.\d+s\s+\d+\s+|E +",
    r"\[?rank ?\d+\]?: ?|[\w.]+: \[rank\d+\]: ?|\[ *\d+\.\d+\] ?",
    r"\(\w{3,}(?: pid=\d+)?(?:, ip=[\d.]+)?\) ?",
    r"\[[^\]\sWI][^\]\s]* ?\d\d:\d\d:\d\d[^\]]*\] ?",
    r"(?:ERROR|CRITICAL) \S+ \S+ \[?[^\]\s]{1,80}\] ?|[\d/-]+[ T]\d\d:\d\d:\d\d[.,\d]*Z? ",
)
# What stands around a program's words: boxes, a Dockerfile's lines, a traceback, warnings.
_FRAMES = (
    r"^[\W_]*$|^[\W\d.]*(?:>>>|\d+ \|)|^In \[\d+\]:|\[end of output\]|lines of output\]|\[notice\]",
    r"originates from a subprocess|[Ss]ee above for output|not a problem with pip",
    r"You are attempting to use Flash Attention|module verification failed|Result = FAIL",
    r"[Nn]ote: This error|End of error message|^(?:All )?[Dd]one\W*$",
    # what a shell shows of its commands
    r"^(?:c?make|ninja|nvcc|gcc|cc) -|^\++ \S|^\$ \S|^[\w.-]+@[\w.-]+:[^\s$#]*[$#] ",
    r"^At line:\d+ char:",
    r"This is an issue with the package|full command:|^\s*cwd:|^\s*(?:File \"|at |in <module>)",
    r"Traceback \(most recent|During handling of the above|direct cause of the following",
    r"Unable to register cu|[Pp]lease (?:wait|see)|This IS expected",
    # what torch adds to each error of CUDA
    r"CUDA kernel errors might|For debugging consider|Compile with `TORCH|^Set TORCH",
    # rpm, nccl-tests, a Makefile's own echo, X servers
    r"\.log :?$|using root$|Out of bounds values|^echo\b|^\(EE\)$|^\((?:WW|II|--|\*\*)\)",
    r"^If no devices become available",
    # what Open MPI says of any daemon that does not start
    r"^one or more nodes\. Please|^\* (?:lack|an? inability|the inability|compilation|not finding)",
    r"^\(e\.g\., on Cray|^them\. Please check network|^Please (?:verify your|check with your)",
    # headings of a table
    r"^[A-Z][A-Z_-]{2,}(?: +[A-Z(][A-Z/()_-]{2,}){2,}$|^Type +Reason +Age\b",
    # frames of compiled code
    r"\[0x[0-9a-fA-F]{6,}\]$|^frame #\d|^#\d+ +0x|\b[0-9A-F]{16} |[Bb]acktrace:?$",
    # what is counted, and is none
    r"(?i:\b(?:errors?|failed)[:=] ?0\b|\b0 (?:errors?|failed)\b)",
    # flags as lspci prints them
    r"\w+[-+] \w+[-+]",
    # what a report's form asks for
    r"^- \[[ xX]\]|Welcome to bitsandbytes|submit your error trace|bug report|^raise \w",
)
# Where a program says that it goes on.
_MILD = (
    r"(?i:\[warning\]|\bwarn(?:ing)?: )|^[WI]\d{4} |^\[[IW]\w* .*\.cpp:|^(?:npm )?(?:warn|WARN)",
    r" requires \S+, which is not installed|have \S+ \S+ which is incompatible",
    r"NCCL INFO|^-- ",
)
# Words of a sentence that gives a reason.
_REASONS = (
    r"\b(?:must|please|require[sd]?|can ?not|could not|unable|missing|invalid)\b",
    r"\b(?:was|were|is|are|did|ca|wo|could|would)n't\b",
    r"\bno (?:such|devices?|usable|valid)\b",
    r"\bnot (?:found|supported|available|allowed|enough|installed|exist|declared|permitted)\b",
    r"\bnot (?:valid|accessible|a directory|find|open|locate|load|match|compatible|be)\b",
    r"unsupported|denied|refused|timed ?out|\btime-?out\b(?:[^:=]|$)|incompatib|mismatch|illegal",
    r"\bunknown \w|undeclared|unbound variable|\bnot a (?:terminal|tty)\b",
    r"undefined|unrecognized|too (?:old|new|small|large|many)|out of|exceed|no space|killed",
    r"package is deprecated|\binsufficient\b|^\(EE\) |\bsignal: [a-z]",
    r"\bGPU hang\b|\bHW exception\b",
    r"corrupt|\b(?:un)?expected\b.|\bfail(?:ed|ure|s)?\b|\berrors?\b|(?:error|exception):",
    r"\b(?:currently used|locked by|in use by|already (?:in use|running)|busy)\b",
)
# A kernel's line about a GPU.
_GPU = r"(?:\[drm\b|\b(?:NVRM|nvidia|nouveau|amdgpu|kfd|radeon|i915)\b)"
# What a program lacks by its build is a reason, though a daemon may only warn of it and go on.
BUILT_WITHOUT = re.compile(r"\b(?:was|were|is) not (?:built|compiled) with\b", re.ASCII)
# What Python's and IPython's prompts show of code, and the shell's of a command.
PROMPT = re.compile(r"(?:>>>|\.\.\.|In \[\d+\]:|\$)(?: |$)", re.ASCII)
WRAPPER = re.compile("|".join(_WRAPPERS), re.ASCII)
TELLING = re.compile("|".join(_TELLING), re.ASCII)
PREFIX = re.compile(f"^(?:{'|'.join(_PREFIXES)})+", re.ASCII)
FRAME = re.compile("|".join(_FRAMES), re.ASCII)
MILD = re.compile("|".join(_MILD), re.ASCII)
GPU_LINE = re.compile(rf"(?:^\[ *\d+\.\d+\]|\bkernel:) .*{_GPU}", re.ASCII)
SAYS = re.compile("(?i)" + "|".join(_REASONS), re.ASCII)
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
    found = _stated(outline)
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


def _stated(outline: Outline) -> list[tuple[int, str]]:
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
