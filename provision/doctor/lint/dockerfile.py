"""A Dockerfile as stages: what each is built from, its commands, its environment.

Supports what the builder supports: continuation lines, comments between them, the escape directive,
here documents, ARG before FROM, variables of ARG and ENV. An ARG has its default; one without a
default is unknown, and so is everything derived from it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from provision.doctor.lint.findings import table
from provision.doctor.lint.shell import VALUE_LIMIT, ShellCommand, Text, commands, expand
from provision.errors import BadInputError
from provision.sources.packages import Position

_ESCAPE = re.compile(r"#\s*escape\s*=\s*([\\`])\s*$", re.IGNORECASE)
_DIRECTIVE = re.compile(r"#\s*\w+\s*=")
_HEREDOC = re.compile(r"<<(-?)(['\"]?)([A-Za-z_]\w*)\2", re.ASCII)
_PAIR = re.compile(r"""([A-Za-z_]\w*)=((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*)""", re.DOTALL)
_FLAG = re.compile(r"--(\w[\w-]*)(?:=(\S+))?\s*")
_INTERPRETER = re.compile(r"#!\s*\S*/(?:env\s+)?(\w+)")
# `from torch import nn` in a traceback is none.
_FROM = re.compile(r"\s*(?:--\w+=\S+\s+)*[^\s-]\S*(?:\s+as\s+\S+)?\s*", re.IGNORECASE)
_INSTRUCTIONS_FOR_OTHERS = 5  # so many lines make up for one that is no instruction
_STAGES = 100
_SHELL_NAMES = frozenset(["sh", "bash", "ash", "dash", "zsh"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. `text` is what follows the keyword, on one line; `scripts` its heredocs."""

    keyword: str
    text: Text
    line: int
    scripts: tuple[Text, ...] = ()

    @property
    def flags(self) -> Mapping[str, str]:
        """{"from": "builder"} of `--from=builder`."""
        found: dict[str, str] = {}
        rest = self.text.text
        while (match := _FLAG.match(rest)) is not None:
            found[match[1]] = match[2] or ""
            rest = rest[match.end() :]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStep:
    """An instruction of a stage, the commands of a RUN, the settings of an ENV or ARG."""

    instruction: Instruction
    commands: tuple[ShellCommand, ...] = ()
    settings: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The stage that a FROM begins. `image` None: unknown, or `parent` is another stage of the
    file.
    """

    name: str
    image: str | None
    parent: Stage | None
    platform: str | None
    instruction: Instruction
    steps: tuple[StageStep, ...]
    variables: Mapping[str, str | None]

    @property
    def line(self) -> int:
        return self.instruction.line

    @property
    def lineage(self) -> tuple[Stage, ...]:
        """The stages that it is built on, the lowest first, and itself."""
        return (*(self.parent.lineage if self.parent else ()), self)

    @property
    def root_image(self) -> str | None:
        """The image below all of them; None: not known."""
        return self.lineage[0].image

    def all_steps(self) -> Iterator[StageStep]:
        for stage in self.lineage:
            yield from stage.steps

    def all_commands(self) -> Iterator[ShellCommand]:
        for step in self.all_steps():
            yield from step.commands

    def environment(self) -> Mapping[str, tuple[str | None, Instruction]]:
        """The variables that ENV sets in the image: the value (None: unknown) and the
        instruction.
        """
        return {
            name: (value, step.instruction)
            for step in self.all_steps()
            if step.instruction.keyword == "ENV"
            for name, value in step.settings.items()
        }


@dataclass(frozen=True, kw_only=True)
class Dockerfile:
    path: str
    stages: tuple[Stage, ...]

    def start_of(self, line: int) -> int:
        """The line on which the instruction of a line begins."""
        number = bisect_right(self._begins, line)
        return self._begins[number - 1] if number else line

    @cached_property
    def _begins(self) -> list[int]:
        steps = (step.instruction.line for stage in self.stages for step in stage.steps)
        return sorted([*(stage.line for stage in self.stages), *steps])

    def shipped(self) -> tuple[Stage, ...]:
        """The last stage, and those that no other stage or COPY --from uses."""
        used = {stage.parent.line for stage in self.stages if stage.parent}
        taken = {name for stage in self.stages for name in _sources(stage)}
        return tuple(
            stage
            for number, stage in enumerate(self.stages)
            if number == len(self.stages) - 1
            or (
                stage.line not in used
                and stage.name not in taken
                and str(number) not in taken
                and stage.image != "scratch"
            )
        )


def read_dockerfile(path: str, text: str) -> Dockerfile:
    """The stages of the text; skips everything that is not an instruction.

    BadInputError: it has implausibly many stages.
    """
    globals_: dict[str, str | None] = {}
    stages: list[Stage] = []
    groups: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction.keyword == "FROM":
            groups.append([instruction])
        elif groups:
            groups[-1].append(instruction)
        elif instruction.keyword == "ARG":
            globals_ |= _arg(instruction, globals_, {})
    if len(groups) > _STAGES:
        raise BadInputError(
            f"{path} has {len(groups)} stages; more than {_STAGES} are not followed.",
            fix="Name a Dockerfile that is written by hand.",
        )
    for group in groups:
        stages.append(_stage(group, globals_, stages))
    return Dockerfile(path=path, stages=tuple(stages))


def looks_like_dockerfile(text: str) -> bool:
    """Whether it begins with a FROM, or with ARGs and a FROM, and nearly all that follows are
    instructions. What shows a Dockerfile among other lines is the log of a build.
    """
    statements = list(_statements(text))
    first = next((one for one in statements if one.keyword != "ARG"), None)
    if first is None or first.keyword != "FROM" or not _FROM.fullmatch(first.text.text):
        return False
    known = _keywords()
    others = sum(one.keyword not in known for one in statements)
    return others * _INSTRUCTIONS_FOR_OTHERS <= len(statements)


def instructions(text: str) -> Iterator[Instruction]:
    """Every instruction, its continuation lines joined, comments between them left out."""
    known = _keywords()
    return (one for one in _statements(text) if one.keyword in known)


def _keywords() -> frozenset[str]:
    return frozenset(table("known.toml")["dockerfile"]["keywords"])


def _statements(text: str) -> Iterator[Instruction]:
    """Every line with what it is joined with; the keyword of one that is no instruction is its
    first word.
    """
    lines = text.splitlines()
    escape = _escape(lines)
    number = 0
    while number < len(lines):
        line = lines[number]
        stripped = line.lstrip()
        if not stripped or stripped.startswith("#"):
            number += 1
            continue
        keyword, _, rest = stripped.partition(" ")
        if "\t" in keyword:
            keyword, _, rest = stripped.partition("\t")
        first = number
        column = len(line) - len(rest) + 1 if rest else len(line) + 1
        joined, number = _joined(lines, number, rest, column, escape)
        scripts, number = _heredocs(lines, number, joined.text, keyword.upper())
        yield Instruction(
            keyword=keyword.upper(), text=joined, line=first + 1, scripts=tuple(scripts)
        )


def _escape(lines: list[str]) -> str:
    for line in lines:
        match = _ESCAPE.match(line.strip())
        if match:
            return match[1]
        if not _DIRECTIVE.match(line.strip()):
            break
    return "\\"


def _joined(lines: list[str], number: int, rest: str, column: int, escape: str) -> tuple[Text, int]:
    """The text of an instruction that begins on line `number` (from 0), and the next line's
    number.
    """
    text, marks = "", [(0, number + 1, column)]
    piece = rest.rstrip()
    while piece.endswith(escape):
        text += piece[:-1] + " "
        number += 1
        while number < len(lines) and (
            not lines[number].strip() or lines[number].lstrip().startswith("#")
        ):
            number += 1
        if number >= len(lines):
            return Text(text, tuple(marks)), number
        marks.append((len(text), number + 1, 1))
        piece = lines[number].rstrip()
    return Text(text + piece, tuple(marks)), number + 1


def _heredocs(lines: list[str], number: int, text: str, keyword: str) -> tuple[list[Text], int]:
    scripts: list[Text] = []
    if keyword not in {"RUN", "COPY", "ADD"}:
        return scripts, number
    for match in _HEREDOC.finditer(text):
        begin = number
        while number < len(lines):
            line = lines[number].lstrip("\t") if match[1] else lines[number]
            if line.rstrip() == match[3]:
                break
            number += 1
        scripts.append(_script(lines[begin:number], begin + 1))
        number += 1
    return scripts, number


def _script(lines: list[str], first: int) -> Text:
    """A script of several lines; a backslash at the end of one joins it with the next."""
    text, marks = "", []
    for number, line in enumerate(lines, start=first):
        marks.append((len(text), number, 1))
        text += line[:-1] + " " if line.endswith("\\") else line + "\n"
    return Text(text, tuple(marks) or ((0, first, 1),))


def _sources(stage: Stage) -> Iterator[str]:
    for step in stage.steps:
        source = step.instruction.flags.get("from")
        if source:
            yield source
        mounted = re.search(r"--mount=\S*from=([\w.-]+)", step.instruction.text.text)
        if mounted:
            yield mounted[1]


def _arg(
    instruction: Instruction,
    variables: Mapping[str, str | None],
    globals_: Mapping[str, str | None],
) -> dict[str, str | None]:
    """The names of an ARG with their defaults; without a default, a global ARG gives it."""
    text = instruction.text.text
    bare = _PAIR.sub("", text).split()
    found: dict[str, str | None] = {name: globals_.get(name) for name in bare}
    for match in _PAIR.finditer(text):
        found[match[1]] = _value(_unquoted(match[2]), variables)
    return found


def _env(instruction: Instruction, variables: Mapping[str, str | None]) -> dict[str, str | None]:
    text = instruction.text.text.strip()
    if "=" not in text.split(None, 1)[0] if text else True:  # ENV NAME the rest is the value
        name, _, value = text.partition(" ")
        return {name: _value(value.strip().strip('"'), variables)} if name else {}
    return {match[1]: _value(_unquoted(match[2]), variables) for match in _PAIR.finditer(text)}


def _unquoted(text: str) -> str:
    return re.sub(r'\\(.)|["\']', lambda match: match[1] or "", text)


def _value(text: str, variables: Mapping[str, str | None]) -> str | None:
    """A value with its variables filled in; None: one of them is unknown.

    A variable that was never set is empty in a Dockerfile; PATH comes from the base image, and is
    left as it is written.
    """
    filled = expand(text, variables)
    names = re.findall(r"\$\{?(\w+)", filled)
    if any(name in variables for name in names) or len(filled) > VALUE_LIMIT:
        return None
    return filled


def _stage(
    group: list[Instruction], globals_: Mapping[str, str | None], before: list[Stage]
) -> Stage:
    first = group[0]
    words = _FLAG.sub("", first.text.text).split()
    reference = expand(words[0], globals_) if words else ""
    name = words[2] if len(words) >= 3 and words[1].lower() == "as" else ""
    parent = next((s for s in reversed(before) if s.name and s.name == reference), None)
    variables: dict[str, str | None] = dict(parent.variables) if parent else {}
    steps: list[StageStep] = []
    for instruction in group[1:]:
        step = _step(instruction, variables, globals_)
        variables |= step.settings
        steps.append(step)
    platform = first.flags.get("platform")
    return Stage(
        name=name,
        image=None if parent or "$" in reference or not reference else reference,
        parent=parent,
        platform=expand(platform, globals_) if platform else None,
        instruction=first,
        steps=tuple(steps),
        variables=variables,
    )


def _step(
    instruction: Instruction,
    variables: Mapping[str, str | None],
    globals_: Mapping[str, str | None],
) -> StageStep:
    if instruction.keyword == "ARG":
        return StageStep(instruction=instruction, settings=_arg(instruction, variables, globals_))
    if instruction.keyword == "ENV":
        return StageStep(instruction=instruction, settings=_env(instruction, variables))
    if instruction.keyword == "RUN":
        return StageStep(instruction=instruction, commands=tuple(_run(instruction, variables)))
    return StageStep(instruction=instruction)


def _run(instruction: Instruction, variables: Mapping[str, str | None]) -> Iterator[ShellCommand]:
    text = instruction.text
    begin = 0
    while (flag := _FLAG.match(text.text, begin)) is not None:
        begin = flag.end()
    blank = Text(" " * begin + text.text[begin:], text.marks)
    argv = _exec_form(text.text[begin:])
    if argv is not None:
        place: Position = text.at(begin)
        quoted = " ".join("'" + word.replace("'", "") + "'" for word in argv)
        yield from commands(Text(quoted, ((0, place.line, place.column),)), variables)
        return
    yield from commands(blank, variables)
    program = _HEREDOC.sub("", text.text[begin:]).strip()
    for script in instruction.scripts:
        shebang = _INTERPRETER.match(script.text)
        runs_in = shebang[1] if shebang else (program.split() or ["sh"])[0]
        if runs_in.rpartition("/")[2] in _SHELL_NAMES:
            yield from commands(script, variables)


def _exec_form(text: str) -> list[str] | None:
    if not text.lstrip().startswith("["):
        return None
    with suppress(ValueError):
        words = json.loads(text)
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return words
    return None
