"""Goes back: puts the kept files of a journal where they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provision.doctor.mending import backup, words
from provision.doctor.mending.doors import Doors
from provision.doctor.mending.journal import read_journal, write_journal
from provision.errors import Exit

_LIMIT_S = 60.0


def undo(path: Path, *, doors: Doors) -> Exit:
    """Put back the files that a journal names, the last first. HOST_UNFIT: one could not be.
    BadInputError where there is no such journal.
    """
    journal = read_journal(path)
    if journal.result == "undone":
        doors.say("Nothing to do: this was taken back before.")
        return Exit.DONE
    missing_sudo = not doors.is_root and not doors.has_sudo
    for kept in reversed(journal.kept):
        sudo = backup.sudo_for(kept.path, is_root=doors.is_root, home=doors.home)
        if sudo and missing_sudo:
            doors.say(f"error: Only root can put {kept.path} back, and there is no sudo here.")
            doors.say("  fix: Become root (su -) and run the same command again.")
            return Exit.USAGE
        command = backup.restore_command(kept, sudo)
        doors.say(f"+ {command}")
        if doors.run(command, _LIMIT_S, lambda line: doors.say(words.output_line(line))) != 0:
            doors.say(words.wrapped(f"error: {kept.path} could not be put back."))
            if kept.copy:
                doors.say(f"  fix: See that its copy is there: ls -l {kept.copy}")
            return Exit.HOST_UNFIT
    doors.say("All files are as they were." if journal.kept else "No file was changed.")
    done = [one.command for one in journal.done if one.code == 0]
    if done:
        doors.say("What else these commands did is not taken back:")
        doors.say(words.listed(done))
    write_journal(path, replace(journal, result="undone"))
    return Exit.DONE
