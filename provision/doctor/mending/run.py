"""Runs one fix: keeps files, runs steps, writes a journal of both, checks the effect."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from images.system.process import describe_exit
from provision.doctor.knowledge import Knowledge
from provision.doctor.mending import backup, messages
from provision.doctor.mending.backup import KeptFile
from provision.doctor.mending.choice import confirmed_by
from provision.doctor.mending.fix_io import FixIO
from provision.doctor.mending.journal import Journal, Result, write_journal
from provision.doctor.mending.shell import without_sudo
from provision.doctor.model import Cause, Fix
from provision.errors import BadInputError, Exit

COMMAND_LIMIT_S = 1800.0  # a driver's packages over a slow line
_STARTS_SERVICE = re.compile(r"\b(?:re)?start\b|enable --now")
_TRIES_AFTER_START = 15
LOOK_LIMIT_S = 60.0
CONFIRM_LIMIT_S = 300.0
_LINES_SHOWN = 20
_PAUSE_S = 1.0


@dataclass(slots=True)
class FixRun:
    """A running fix. Its journal is on disk before each step that it records."""

    job: FixJob
    fix: Fix
    files: tuple[str, ...]
    steps: tuple[str, ...]
    path: Path = field(init=False)
    stamp: str = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        now = self.job.io.now()
        self.path, self.stamp = _place(self.job, now.strftime("%Y%m%dT%H%M%SZ"))
        self.journal = Journal(code=self.job.cause.code, started=now.isoformat())

    def to_the_end(self) -> Exit:
        say = self.job.io.say
        self._write()
        under_way = "keeping files"
        try:
            problem = self._keep_files()
            if problem:
                say(messages.wrapped(f"error: {problem} No command was run."))
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
        """Why a file could not be kept; "" if all are."""
        io = self.job.io
        for name in self.files:
            found = [name]
            if backup.is_pattern(name):
                found = []
                code = io.run(backup.list_command(name), LOOK_LIMIT_S, found.append)
                if code != 0:
                    return f"{name} could not be listed ({_how(code)})."
            for file in found:
                problem = self._keep(file)
                if problem:
                    return problem
        return ""

    def _keep(self, file: str) -> str:
        io = self.job.io
        sudo = backup.sudo_for(file, is_root=io.is_root, home=io.home)
        lines: list[str] = []
        code = io.run(backup.look_command(file, sudo), LOOK_LIMIT_S, lines.append)
        seen = lines[-1].strip() if lines else ""
        if code != 0 or seen not in {backup.THERE, backup.ABSENT}:
            return f"{file} could not be looked at ({seen or _how(code)})."
        copy = backup.copy_name(file, self.stamp) if seen == backup.THERE else None
        if copy is not None:
            code = self._run(backup.copy_command(file, copy, sudo), LOOK_LIMIT_S)
            if code != 0:
                return f"{file} could not be kept as {copy} ({_how(code)})."
        real = lines[-2] if copy is not None and len(lines) > 1 and lines[-2] != file else None
        kept = KeptFile(path=file, copy=copy, real=real)
        self.journal = replace(self.journal, kept=(*self.journal.kept, kept))
        self._write()
        return ""

    def _failed(self, code: int | None) -> Exit:
        say = self.job.io.say
        say(messages.wrapped(f"error: The last command {_how(code)}; no other was run."))
        self._say_undo()
        self._end("failed")
        return Exit.HOST_UNFIT

    def _prove(self) -> Exit:
        say = self.job.io.say
        if not self.job.confirm:
            say("The commands ran. No command is known that shows the effect: look yourself.")
            if self.job.cause.confirm:
                say(messages.listed([self.job.cause.confirm]))
            self._end("unconfirmed")
            return Exit.NO_VERDICT
        say(f"? {self.job.confirm}")
        started = any(_STARTS_SERVICE.search(step) for step in self.steps)
        if asked(self.job, tries=_TRIES_AFTER_START if started else 1)[0] == 0:
            say("Mended.")
            self._end("mended")
            return Exit.DONE
        say("Not fixed: the commands ran, and the command above still fails.")
        self._say_undo()
        self._end("not-mended")
        return Exit.HOST_UNFIT

    def _run(self, command: str, limit_s: float) -> int | None:
        say = self.job.io.say
        return self.job.io.run(command, limit_s, lambda line: say(messages.output_line(line)))

    def _say_undo(self) -> None:
        io, kept = self.job.io, self.journal.kept
        restores = [
            backup.restore_command(one, backup.sudo_for(one.path, is_root=io.is_root, home=io.home))
            for one in kept
        ]
        done = [one.command for one in self.journal.done if one.code == 0]
        if kept or done:
            io.say(messages.undo_text(kept, restores, done))

    def _end(self, result: Result) -> None:
        self.journal = replace(self.journal, result=result)
        self._write()
        self.job.io.say(f"  What was done: {self.path}")

    def _write(self) -> None:
        try:
            write_journal(self.path, self.journal)
        except OSError as error:
            raise BadInputError(
                f"The journal {self.path} cannot be written: {error.strerror}.",
                fix="Name a directory that you may write to: XDG_STATE_HOME=DIR provision ...",
            ) from error


def _place(job: FixJob, stamp: str) -> tuple[Path, str]:
    """A journal's path and a unique stamp, which names the copies."""
    number, own = 1, stamp
    while any(job.journals.glob(f"{own}-*")):
        number += 1
        own = f"{stamp}.{number}"
    return job.journals / f"{own}-{job.cause.code}.json", own


def _how(code: int | None) -> str:
    return "was still running when its time was up" if code is None else describe_exit(code)


@dataclass(frozen=True, slots=True)
class FixJob:
    cause: Cause
    knowledge: Knowledge
    io: FixIO
    journals: Path
    assume_yes: bool

    @property
    def confirm(self) -> str:
        return self.plain(confirmed_by(self.cause, self.knowledge))

    def plain(self, command: str) -> str:
        """A command as this user types it: root needs no sudo."""
        return without_sudo(command) if self.io.is_root else command


def asked(job: FixJob, *, tries: int = 1) -> tuple[int | None, list[str]]:
    """The exit code and output of the confirming command. The output is shown once, for the last
    try: a service that was just started may need a moment.
    """
    lines: list[str] = []
    code: int | None = None
    for number in range(tries):
        if number:
            job.io.sleep(_PAUSE_S)
        lines.clear()
        code = job.io.run(job.confirm, CONFIRM_LIMIT_S, lines.append)
        if code == 0:
            break
    for line in lines[-_LINES_SHOWN:]:
        job.io.say(messages.output_line(line))
    return code, lines
