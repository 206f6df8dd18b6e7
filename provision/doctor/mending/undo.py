"""Undoes a fix: restores the kept files of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from images.text.printable import printable
from provision.doctor.knowledge import Knowledge
from provision.doctor.mending import backup, messages
from provision.doctor.mending.backup import KeptFile
from provision.doctor.mending.fix_io import FixIO
from provision.doctor.mending.journal import Journal, read_journal, write_journal
from provision.errors import BadInputError, Exit

_LIMIT_S = 60.0


def undo(path: Path, *, knowledge: Knowledge, io: FixIO, assume_yes: bool = False) -> Exit:
    """Show the files that a journal names, ask, and restore them in reverse order. HOST_UNFIT: one
    could not be restored, or the answer was no. USAGE: nobody could be asked, or sudo is missing.
    BadInputError: not a journal of ours, see `read_journal`; or a file that no fix of its cause
    keeps.
    """
    journal = read_journal(path)
    if journal.result == "undone":
        io.say("Nothing to do: this was taken back before.")
        return Exit.DONE
    _refuse_other_files(path, journal, knowledge, io)
    restores = [
        (kept, backup.sudo_for(kept.path, is_root=io.is_root, home=io.home))
        for kept in reversed(journal.kept)
    ]
    if restores:
        io.say(messages.restored_text([kept for kept, _ in restores]))
        stopped = _refused(restores, io, assume_yes=assume_yes)
        if stopped is not None:
            return stopped
    for kept, sudo in restores:
        command = backup.restore_command(kept, sudo)
        io.say(f"+ {messages.clean(command)}")
        if io.run(command, _LIMIT_S, lambda line: io.say(messages.output_line(line))) != 0:
            io.say(messages.wrapped(f"error: {kept.path} could not be put back."))
            if kept.copy:
                io.say(messages.clean(f"  fix: See that its copy is there: ls -l {kept.copy}"))
            return Exit.HOST_UNFIT
    io.say("All files are as they were." if journal.kept else "No file was changed.")
    done = [one.command for one in journal.done if one.code == 0]
    if done:
        io.say("What else these commands did is not taken back:")
        io.say(messages.listed(done))
    write_journal(path, replace(journal, result="undone"))
    return Exit.DONE


def _refused(
    restores: Sequence[tuple[KeptFile, str]], io: FixIO, *, assume_yes: bool
) -> Exit | None:
    """The exit code if it ends before anything is restored; None if it continues."""
    if not io.is_root and not io.has_sudo:
        for kept, sudo in restores:
            if sudo:
                io.say(
                    messages.clean(
                        f"error: Only root can put {kept.path} back, and there is no sudo here."
                    )
                )
                io.say("  fix: Become root (su -) and run the same command again.")
                return Exit.USAGE
    if assume_yes:
        return None
    if io.ask is None:
        io.say("error: --undo asks before it restores anything; there is no terminal.")
        io.say("  fix: Run it at a terminal, or add --yes.")
        return Exit.USAGE
    if not io.ask("Restore this file?" if len(restores) == 1 else "Restore these files?"):
        io.say("  Left as it is.")
        return Exit.HOST_UNFIT
    return None


def _refuse_other_files(path: Path, journal: Journal, knowledge: Knowledge, io: FixIO) -> None:
    """A journal may only name what a fix of its cause keeps."""
    failure = knowledge.by_code.get(journal.code)
    shown = printable(str(path))
    if failure is None and journal.kept:
        raise BadInputError(
            f"The journal {shown} is of a cause that this version does not know:"
            f" {printable(journal.code, limit=80)}.",
            fix="Use the version of gpu-provision that wrote it.",
        )
    fixes = failure.fixes if failure is not None else ()
    named = [name for fix in fixes for name in backup.kept_files(fix.backup, io.home)]
    for kept in journal.kept:
        if not backup.is_named(kept.path, named):
            raise BadInputError(
                f"The journal {shown} names {printable(kept.path, limit=200)}, which no fix of"
                f" {journal.code} changes.",
                fix="Restore nothing with it: --fix did not write it, or it was changed since.",
            )
