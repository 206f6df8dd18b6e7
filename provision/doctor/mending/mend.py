"""Fixes causes: checks whether they are present, shows the fix, asks, keeps files, runs the
commands one by one, and checks the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from provision.doctor.knowledge import Knowledge
from provision.doctor.mending import backup, messages
from provision.doctor.mending.choice import (
    Refusal,
    automatic_fixes,
    lacks_sudo,
    other_cause,
)
from provision.doctor.mending.effects import effects, stops
from provision.doctor.mending.fix_io import FixIO
from provision.doctor.mending.run import LOOK_LIMIT_S, FixJob, FixRun, asked
from provision.doctor.mending.shell import commands, needs_sudo
from provision.doctor.mending.written_files import written
from provision.doctor.model import Cause, Fix
from provision.errors import Exit


def mend(
    causes: Sequence[Cause],
    *,
    knowledge: Knowledge,
    io: FixIO,
    journals: Path,
    assume_yes: bool = False,
) -> Exit:
    """Fix each root cause in order. DONE: all are fixed, or this machine did not have them.
    HOST_UNFIT: one is not. NO_VERDICT: nothing can show the effect of the commands, or no fact of
    this machine confirms a text. USAGE: nobody could be asked, or sudo is missing. INTERRUPTED: by
    Ctrl-C. `journals` is a directory of the user's own.
    """
    roots = [cause for cause in causes if cause.follows_from is None]
    if not roots:
        io.say("Nothing to fix: no cause was found.")
        return Exit.DONE
    if io.ask is None and not assume_yes:
        io.say(
            messages.wrapped(
                "error: --fix asks before it runs anything, and there is no terminal to ask at."
            )
        )
        io.say("  fix: Run it at a terminal, or add --yes.")
        return Exit.USAGE
    ends: list[Exit] = []
    for cause in roots:
        io.say("")
        io.say(messages.cause_text(cause))
        try:
            end = _mend_cause(
                FixJob(cause, knowledge, io, journals, assume_yes), again=Exit.DONE in ends
            )
        except KeyboardInterrupt:  # while none of our commands ran
            io.say("Interrupted. Nothing more was changed.")
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


def _mend_cause(job: FixJob, *, again: bool) -> Exit | None:
    """None if this machine does not have the cause. `again`: another cause was fixed before."""
    io = job.io
    fixes = automatic_fixes(job.cause, job.knowledge, is_root=io.is_root)
    if isinstance(fixes, Refusal):
        io.say(messages.by_hand_text(job.cause, fixes))
        return Exit.HOST_UNFIT
    if job.cause.confidence == "low" and job.assume_yes:
        io.say("  not run: It is one cause of several, and --yes only does what is likely.")
        io.say("  Look at each: the same command without --yes asks.")
        return Exit.HOST_UNFIT
    look = _look(job)
    if look.state == "healthy" and (again or job.cause.machine != "proves"):
        io.say("  It is gone too." if again else "  Nothing to fix: this machine does not have it.")
        return None
    doubt = _doubt(job, look) if job.assume_yes else ""
    if doubt:
        io.say(messages.wrapped(f"not run: {doubt}", "  "))
        io.say(messages.wrapped(_BY_HAND, "  "))
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
    """The result of the confirming command, before anything is changed. `unknown`: no command
    decides, or it could not be run to its end.
    """

    state: _State
    output: str = ""


def _look(job: FixJob) -> _Look:
    io, confirm = job.io, job.confirm
    if not confirm or (needs_sudo(confirm) and not io.has_sudo):
        return _Look("unknown")
    io.say(f"? {confirm}")
    code, lines = asked(job)
    state: _State = "unknown" if code is None else "faulty" if code else "healthy"
    return _Look(state, "\n".join(lines))


def _doubt(job: FixJob, look: _Look) -> str:
    """Why nothing may be changed without asking: a text may be from another machine, and from
    another time. "" if a fact of this machine confirms it.
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


def _try_fix(job: FixJob, fix: Fix) -> Exit:
    """After HOST_UNFIT the next fix is tried."""
    io = job.io
    if lacks_sudo(fix, is_root=io.is_root, has_sudo=io.has_sudo):
        io.say(messages.wrapped("error: The commands need root, and there is no sudo here."))
        io.say("  fix: Become root (su -) and run the same command again.")
        return Exit.USAGE
    steps = tuple(job.plain(command) for command in commands(fix.run))
    files = backup.kept_files(fix.backup, io.home)
    io.say(messages.fix_text(fix, steps, files))
    lost = list(backup.not_kept(steps, fix.backup))
    if lost:
        named = ", ".join(path or "files that the commands do not name" for path in lost)
        io.say(messages.wrapped(f"not kept, and not restored by --undo: {named}", "  "))
        if job.assume_yes:
            io.say("  not run: --yes changes only files that are kept. Run this without --yes.")
            return Exit.HOST_UNFIT
    taken = {"removes", "deletes"} & set(effects(fix.run)) and not written(fix.run)
    if taken and job.assume_yes:  # for files, the check above is more precise
        io.say("  not run: --yes takes no packages or images away. Run this without --yes.")
        return Exit.HOST_UNFIT
    stopped = _containers_stopped_by(steps, io)
    if stopped:
        io.say(
            messages.wrapped(f"The restart of Docker stops {stopped} running container(s).", "  ")
        )
        if job.assume_yes:
            io.say("  not run: Stop them first (docker ps), or run this without --yes.")
            return Exit.HOST_UNFIT
    question = "Run this command?" if len(steps) == 1 else f"Run these {len(steps)} commands?"
    if not job.assume_yes and not (io.ask and io.ask(question)):
        io.say("  Left as it is.")
        return Exit.HOST_UNFIT
    return FixRun(job, fix, files, steps).to_the_end()


def _containers_stopped_by(steps: Sequence[str], io: FixIO) -> int:
    if not any("running containers" in stops(step) for step in steps):
        return 0
    ids: list[str] = []
    code = io.run("docker ps -q", LOOK_LIMIT_S, ids.append)
    return len(ids) if code == 0 else 0


# --- one fix ------------------------------------------------------------------------------------
