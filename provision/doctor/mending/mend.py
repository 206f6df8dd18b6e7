"""Mends causes: looks whether they are here, shows, asks, keeps files, runs command by command, and
proves the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from images.process import describe_exit
from provision.doctor.knowledge import Knowledge
from provision.doctor.mending import backup, words
from provision.doctor.mending.backup import Kept
from provision.doctor.mending.choice import (
    Refusal,
    automatic_fixes,
    confirmed_by,
    lacks_sudo,
    other_cause,
)
from provision.doctor.mending.doors import Doors
from provision.doctor.mending.effects import effects
from provision.doctor.mending.journal import Journal, Result, write_journal
from provision.doctor.mending.shell import commands, needs_sudo, without_sudo, written
from provision.doctor.model import Cause, Fix
from provision.errors import BadInputError, Exit

COMMAND_LIMIT_S = 1800.0  # a driver's packages over a slow line
CONFIRM_LIMIT_S = 300.0
_LOOK_LIMIT_S = 60.0
_PAUSE_S = 1.0
_TRIES_AFTER_START = 15
_LINES_SHOWN = 20
_RESTARTS_DOCKER = re.compile(r"\b(?:systemctl|service|rc-service|snap)\b.*\brestart\b.*\bdocker\b"
                              r"|\b(?:service|rc-service)\s+docker\s+restart\b")  # fmt: skip

_STARTS_SERVICE = re.compile(r"\b(?:re)?start\b|enable --now")


def mend(
    causes: Sequence[Cause],
    *,
    knowledge: Knowledge,
    doors: Doors,
    journals: Path,
    assume_yes: bool = False,
) -> Exit:
    """Mend each root cause in order. DONE: all are mended, or this machine did not have them.
    HOST_UNFIT: one is not. NO_VERDICT: nothing can show the effect of the commands, or nothing here
    agrees with a text. USAGE: nobody could be asked, or sudo is missing. INTERRUPTED: by Ctrl-C.
    `journals` is a directory of the user's own.
    """
    roots = [cause for cause in causes if cause.follows_from is None]
    if not roots:
        doors.say("Nothing to mend: no cause was found.")
        return Exit.DONE
    if doors.ask is None and not assume_yes:
        doors.say(
            words.wrapped(
                "error: --fix asks before it runs anything, and there is no terminal to ask at."
            )
        )
        doors.say("  fix: Run it at a terminal, or add --yes.")
        return Exit.USAGE
    ends: list[Exit] = []
    for cause in roots:
        doors.say("")
        doors.say(words.cause_text(cause))
        try:
            end = _mend_cause(
                _Job(cause, knowledge, doors, journals, assume_yes), again=Exit.DONE in ends
            )
        except KeyboardInterrupt:  # while nothing of ours ran
            doors.say("Interrupted. Nothing more was changed.")
            return Exit.INTERRUPTED
        if end is None:
            continue
        ends.append(end)
        if end in {Exit.USAGE, Exit.INTERRUPTED}:
            return end
    for bad in (Exit.HOST_UNFIT, Exit.NO_VERDICT):
        if bad in ends:
            return bad
    return Exit.DONE


# --- one cause ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    cause: Cause
    knowledge: Knowledge
    doors: Doors
    journals: Path
    assume_yes: bool

    @property
    def confirm(self) -> str:
        return self.plain(confirmed_by(self.cause, self.knowledge))

    def plain(self, command: str) -> str:
        """A command as this user types it: root needs no sudo."""
        return without_sudo(command) if self.doors.is_root else command


def _mend_cause(job: _Job, *, again: bool) -> Exit | None:
    """None where this machine does not have it. `again`: another cause was mended before."""
    doors = job.doors
    fixes = automatic_fixes(job.cause, job.knowledge, is_root=doors.is_root)
    if isinstance(fixes, Refusal):
        doors.say(words.by_hand_text(job.cause, fixes))
        return Exit.HOST_UNFIT
    if job.cause.confidence == "low" and job.assume_yes:
        doors.say("  not run: It is one cause of several, and --yes only does what is likely.")
        doors.say("  Look at each: the same command without --yes asks.")
        return Exit.HOST_UNFIT
    look = _look(job)
    if look.state == "healthy" and (again or job.cause.machine != "proves"):
        doors.say(
            "  It is gone too." if again else "  Nothing to mend: this machine does not have it."
        )
        return None
    doubt = _doubt(job, look) if job.assume_yes else ""
    if doubt:
        doors.say(words.wrapped(f"not run: {doubt}", "  "))
        doors.say(words.wrapped(_BY_HAND, "  "))
        return Exit.NO_VERDICT
    end = Exit.HOST_UNFIT
    for fix in fixes:
        end = _try_fix(job, fix)
        if end is not Exit.HOST_UNFIT:
            break
    return end


# --- whether it is here -------------------------------------------------------------------------

_State: TypeAlias = Literal["healthy", "faulty", "unknown"]
_BY_HAND = (
    "If the text is of this machine, run the same command without --yes: it shows the commands and"
    " asks."
)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the confirming command says of this machine, before anything is changed. `unknown`: no
    command decides, or it could not be run to its end.
    """

    state: _State
    output: str = ""


def _look(job: _Job) -> _Look:
    doors, confirm = job.doors, job.confirm
    if not confirm or (needs_sudo(confirm) and not doors.has_sudo):
        return _Look("unknown")
    doors.say(f"? {confirm}")
    code, lines = _asked(job)
    state: _State = "unknown" if code is None else "faulty" if code else "healthy"
    return _Look(state, "\n".join(lines))


def _doubt(job: _Job, look: _Look) -> str:
    """Why nothing may be changed unasked: what a text says may be of another machine, and of
    another time. "" where a fact of this machine agrees with it.
    """
    cause = job.cause
    if cause.machine != "silent" or not cause.in_text:
        return ""
    if look.state == "unknown":
        return "The text says so, and nothing on this machine could confirm it."
    other = other_cause(cause, look.output, job.knowledge)
    if other is not None:
        return (
            "The command above fails on this machine for another reason:"
            f" {other.title} ({other.code})."
        )
    return ""


def _try_fix(job: _Job, fix: Fix) -> Exit:
    """HOST_UNFIT leaves the next fix its turn."""
    doors = job.doors
    if lacks_sudo(fix, is_root=doors.is_root, has_sudo=doors.has_sudo):
        doors.say(words.wrapped("error: The commands need root, and there is no sudo here."))
        doors.say("  fix: Become root (su -) and run the same command again.")
        return Exit.USAGE
    steps = tuple(job.plain(command) for command in commands(fix.run))
    files = backup.kept_files(fix.backup, doors.home)
    doors.say(words.fix_text(fix, steps, files))
    lost = list(backup.not_kept(steps, fix.backup))
    if lost:
        named = ", ".join(path or "files that the commands do not name" for path in lost)
        doors.say(words.wrapped(f"not kept, and not restored by --undo: {named}", "  "))
        if job.assume_yes:
            doors.say("  not run: --yes changes only files that are kept. Run this without --yes.")
            return Exit.HOST_UNFIT
    taken = {"removes", "deletes"} & set(effects(fix.run)) and not written(fix.run)
    if taken and job.assume_yes:  # of files, the check above knows more
        doors.say("  not run: --yes takes no packages or images away. Run this without --yes.")
        return Exit.HOST_UNFIT
    stopped = _containers_stopped_by(steps, doors)
    if stopped:
        doors.say(
            words.wrapped(f"The restart of Docker stops {stopped} running container(s).", "  ")
        )
        if job.assume_yes:
            doors.say("  not run: Stop them first (docker ps), or run this without --yes.")
            return Exit.HOST_UNFIT
    if not job.assume_yes and not (doors.ask and doors.ask(_question(steps))):
        doors.say("  Left as it is.")
        return Exit.HOST_UNFIT
    return _Run(job, fix, files, steps).to_the_end()


def _question(steps: Sequence[str]) -> str:
    return "Run this command?" if len(steps) == 1 else f"Run these {len(steps)} commands?"


def _containers_stopped_by(steps: Sequence[str], doors: Doors) -> int:
    if not any(_RESTARTS_DOCKER.search(step) for step in steps):
        return 0
    ids: list[str] = []
    code = doors.run("docker ps -q", _LOOK_LIMIT_S, ids.append)
    return len(ids) if code == 0 else 0


def _asked(job: _Job, *, tries: int = 1) -> tuple[int | None, list[str]]:
    """What the confirming command ends with, and says. What it says is shown once, of the last try:
    a service that was just started may need a moment.
    """
    lines: list[str] = []
    code: int | None = None
    for number in range(tries):
        if number:
            job.doors.sleep(_PAUSE_S)
        lines.clear()
        code = job.doors.run(job.confirm, CONFIRM_LIMIT_S, lines.append)
        if code == 0:
            break
    for line in lines[-_LINES_SHOWN:]:
        job.doors.say(words.output_line(line))
    return code, lines


# --- one fix ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """A fix under way. Its journal is on disk before each step that it tells of."""

    job: _Job
    fix: Fix
    files: tuple[str, ...]
    steps: tuple[str, ...]
    path: Path = field(init=False)
    stamp: str = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        now = self.job.doors.now()
        self.path, self.stamp = _place(self.job, now.strftime("%Y%m%dT%H%M%SZ"))
        self.journal = Journal(code=self.job.cause.code, started=now.isoformat())

    def to_the_end(self) -> Exit:
        say = self.job.doors.say
        self._write()
        under_way = "keeping files"
        try:
            problem = self._keep_files()
            if problem:
                say(words.wrapped(f"error: {problem} No command was run."))
                self._end("failed")
                return Exit.HOST_UNFIT
            self._say_undo()
            for step in self.steps:
                under_way = step
                say(f"+ {step}")
                code = self._run(step, COMMAND_LIMIT_S)
                self.journal = self.journal.with_command(step, code)
                self._write()
                if code != 0:
                    return self._failed(code)
            under_way = "confirming"
            return self._prove()
        except KeyboardInterrupt:
            if under_way in self.steps:
                self.journal = self.journal.with_command(under_way, None)
            say("Interrupted.")
            self._say_undo()
            self._end("interrupted")
            return Exit.INTERRUPTED

    def _keep_files(self) -> str:
        """Why a file could not be kept; "" where all are."""
        doors = self.job.doors
        for name in self.files:
            found = [name]
            if backup.is_pattern(name):
                found = []
                code = doors.run(backup.list_command(name), _LOOK_LIMIT_S, found.append)
                if code != 0:
                    return f"{name} could not be listed ({_how(code)})."
            for file in found:
                problem = self._keep(file)
                if problem:
                    return problem
        return ""

    def _keep(self, file: str) -> str:
        doors = self.job.doors
        sudo = backup.sudo_for(file, is_root=doors.is_root, home=doors.home)
        lines: list[str] = []
        code = doors.run(backup.look_command(file, sudo), _LOOK_LIMIT_S, lines.append)
        seen = lines[-1].strip() if lines else ""
        if code != 0 or seen not in {backup.THERE, backup.ABSENT}:
            return f"{file} could not be looked at ({seen or _how(code)})."
        copy = backup.copy_name(file, self.stamp) if seen == backup.THERE else None
        if copy is not None:
            code = self._run(backup.copy_command(file, copy, sudo), _LOOK_LIMIT_S)
            if code != 0:
                return f"{file} could not be kept as {copy} ({_how(code)})."
        real = lines[-2] if copy is not None and len(lines) > 1 and lines[-2] != file else None
        kept = Kept(path=file, copy=copy, real=real)
        self.journal = replace(self.journal, kept=(*self.journal.kept, kept))
        self._write()
        return ""

    def _failed(self, code: int | None) -> Exit:
        say = self.job.doors.say
        say(words.wrapped(f"error: The last command {_how(code)}; no other was run."))
        self._say_undo()
        self._end("failed")
        return Exit.HOST_UNFIT

    def _prove(self) -> Exit:
        say = self.job.doors.say
        if not self.job.confirm:
            say("The commands ran. No command is known that shows the effect: look yourself.")
            if self.job.cause.confirm:
                say(words.listed([self.job.cause.confirm]))
            self._end("unconfirmed")
            return Exit.NO_VERDICT
        say(f"? {self.job.confirm}")
        started = any(_STARTS_SERVICE.search(step) for step in self.steps)
        if _asked(self.job, tries=_TRIES_AFTER_START if started else 1)[0] == 0:
            say("Mended.")
            self._end("mended")
            return Exit.DONE
        say("Not mended: the commands ran, and the command above still fails.")
        self._say_undo()
        self._end("not-mended")
        return Exit.HOST_UNFIT

    def _run(self, command: str, limit_s: float) -> int | None:
        say = self.job.doors.say
        return self.job.doors.run(command, limit_s, lambda line: say(words.output_line(line)))

    def _say_undo(self) -> None:
        doors, kept = self.job.doors, self.journal.kept
        restores = [
            backup.restore_command(
                one, backup.sudo_for(one.path, is_root=doors.is_root, home=doors.home)
            )
            for one in kept
        ]
        done = [one.command for one in self.journal.done if one.code == 0]
        if kept or done:
            doors.say(words.undo_text(kept, restores, done))

    def _end(self, result: Result) -> None:
        self.journal = replace(self.journal, result=result)
        self._write()
        self.job.doors.say(f"  What was done: {self.path}")

    def _write(self) -> None:
        try:
            write_journal(self.path, self.journal)
        except OSError as error:
            raise BadInputError(
                f"The journal {self.path} cannot be written: {error.strerror}.",
                fix="Name a directory that you may write to: XDG_STATE_HOME=DIR provision ...",
            ) from error


def _place(job: _Job, stamp: str) -> tuple[Path, str]:
    """A journal's path and a stamp that no other journal has: copies are named by it."""
    number, own = 1, stamp
    while any(job.journals.glob(f"{own}-*")):
        number += 1
        own = f"{stamp}.{number}"
    return job.journals / f"{own}-{job.cause.code}.json", own


def _how(code: int | None) -> str:
    return "was still running when its time was up" if code is None else describe_exit(code)
