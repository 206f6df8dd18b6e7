"""What the doctor knows, what it sees, and what it says.

A `Failure` of the knowledge is one root cause. Its `symptoms` are the texts by which it shows, its
`clues` are facts of the machine that speak for it or against it, and its `host` conditions are
facts that prove it without any text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Layer: TypeAlias = Literal[
    "driver",
    "nvml",
    "hardware",
    "permissions",
    "mig",
    "container-runtime",
    "docker",
    "podman",
    "hpc",
    "kubernetes",
    "image",
    "wsl",
    "cuda-runtime",
    "cudnn",
    "nccl",
    "network",
    "shm-ipc",
    "framework-torch",
    "framework-tf",
    "framework-jax",
    "build",
    "disk",
    "program",
]
# proof: no other cause prints this. typical: this cause mostly. hint: this cause among many.
Strength: TypeAlias = Literal["proof", "typical", "hint"]
# What the title of a cause says. symptom: what failed, and no more than a proof says. reason: why.
States: TypeAlias = Literal["symptom", "reason"]
Severity: TypeAlias = Literal["blocks", "degrades", "warns"]
Confidence: TypeAlias = Literal["high", "medium", "low"]
# What the machine's facts say of a cause. proves: its `host` conditions hold. agrees: a clue does.
Machine: TypeAlias = Literal["silent", "agrees", "proves"]
Value: TypeAlias = bool | int | str | tuple[str, ...]
# Whose the facts are that a diagnosis is given. subject: of the machine that is asked about, as are
# its texts. texts: of the machine that wrote the texts, and only these are asked about. reader: of
# the machine that reads the texts; they count only where the texts say that they are from there.
FactsOf: TypeAlias = Literal["subject", "texts", "reader"]
Operator: TypeAlias = Literal["is", "not", "under", "atleast", "has", "matches"]


# --- knowledge ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A pattern in RE2's syntax, searched for in each line. Several `parts` must all be there, on
    lines of one text that are at most `within` lines apart: a message with what belongs to it.
    Farther apart they are a hint. A line of `without` beside them says that they speak of something
    else. Of a text that is `survived` the program goes on by itself: it tries again, does without.
    A proof that is `shared` is printed for other causes, too, now and then: it ranks as one, and
    nobody is sure.
    """

    parts: tuple[str, ...]
    strength: Strength = "proof"
    within: int = 0
    without: str = ""
    survived: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A fact compared: {"fact": "docker.snap", "is": true}. An unknown fact meets no condition."""

    fact: str
    operator: Operator
    value: Value
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """A condition that speaks for a cause (or against it) where a symptom has been seen. A decisive
    one outweighs what speaks for the others.
    """

    condition: Condition
    supports: bool = True
    decisive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to type, for whom. `on`: families of distributions, or engines; () is everybody.

    `when`: facts that must all hold for it to be offered; `unless`: facts of which none may. `run`
    is shell text; `automatic` says that --fix may run it here; `backup` are the files that it
    changes. `seen`: the releases with which somebody produced the failure, and it went away.
    """

    on: tuple[str, ...] = ()
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()
    note: str = ""
    run: str = ""
    automatic: bool = False
    backup: tuple[str, ...] = ()
    reboot: bool = False
    seen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """One root cause. `often` (0 to 9) orders the causes that one text can have. `confirm` is a
    command by which a person checks the fix; `check` does it by its exit code, 0 where all is well
    (None: `confirm` does that, too. "": nothing does). An `outcome` says only that something
    failed: it follows from the cause that the text names beside it. A `generic` one is what any
    program has: it counts only where a text ends with it. `beats`: what follows from it.
    """

    code: str
    layer: Layer
    title: str
    states: States = "reason"
    cause: str
    severity: Severity = "blocks"
    often: int = 5
    outcome: bool = False
    generic: bool = False
    symptoms: tuple[Symptom, ...] = ()
    unless: tuple[str, ...] = ()
    clues: tuple[Clue, ...] = ()
    host: tuple[Condition, ...] = ()
    beats: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    confirm: str = ""
    check: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def is_hardware_failure(self) -> bool:
        """Whether hardware failed, which no program that runs later repairs."""
        return self.layer == "hardware" and self.severity == "blocks"


# --- what was seen ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A value and where it was read: a path, or a command."""

    value: Value
    where: str


Facts: TypeAlias = Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactPattern:
    """A pattern of lines that state a fact. Its value is `value`, or else the pattern's group of
    that name. `differs`: true where lines with one `of` have different values. A text that holds
    `unless`, too, contradicts itself, and states nothing.
    """

    pattern: str
    value: Value | None = None
    differs: bool = False
    unless: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A pattern's first line: its text without colours, where it stands, the named groups."""

    line: str
    source: str
    number: int
    groups: Mapping[str, str] = field(default_factory=dict)
    joined: bool = False  # found only after wrapped lines were put together

    @property
    def where(self) -> str:
        return f"{self.source}:{self.number}"


# --- what is said -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen, and where: "run.log:17", "/proc/modules"."""

    says: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A root cause with what speaks for it; texts are filled in, fixes are those for this host."""

    code: str
    layer: Layer
    title: str
    states: States
    cause: str
    severity: Severity
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    fixes: tuple[Fix, ...]
    confirm: str
    sources: tuple[str, ...]
    follows_from: str | None = None  # the code of the cause that explains this one
    in_text: bool = False  # a text shows it; else the machine alone does
    machine: Machine = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two things that a text says of its machine and that do not go together, and why."""

    says: str
    evidence: tuple[Evidence, Evidence]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A cause that the text allows and the machine does not."""

    code: str
    title: str
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrigin:
    """Whether the texts are from the machine of which the facts are, by what they say of theirs:
    `says` has what is the same, or what differs. silent: they say too little. `counts`: whether the
    facts were used.
    """

    agreement: Literal["agrees", "differs", "silent"]
    says: tuple[Evidence, ...] = ()
    counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRead:
    """How many lines of a text were read where that cost all that it may: the first ones, and the
    last ones, of all.
    """

    source: str
    first: int
    last: int
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Ranked causes, the most likely first; none: unknown (or healthy, where no text was given).
    `facts` are those that the causes were judged by, `besides` what a machine shows alone, where
    the texts were asked about.
    """

    causes: tuple[Cause, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    reasons: tuple[Evidence, ...] = ()  # the lines of the texts that say why a run ended badly
    telling: tuple[Evidence, ...] = ()  # the lines of the texts by which a run ends, the last ones
    failed: Evidence | None = None  # the line that says what failed; a cause says why
    ended_well: bool = False  # every text ends with the word that all is done
    partly: tuple[PartlyRead, ...] = ()  # the texts that cost too much to be read whole
    unexplained: bool = False  # a text ends badly, and what is known was survived
    origin: LogOrigin | None = None
    facts: Facts = field(default_factory=dict)
    besides: tuple[Cause, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
