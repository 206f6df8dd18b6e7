"""Implements --fix: runs shipped commands after confirmation, keeps changed files, and can undo."""

from provision.doctor.mending.backup import kept_files, restore_command
from provision.doctor.mending.check import check_fixes
from provision.doctor.mending.choice import Refusal, automatic_fixes
from provision.doctor.mending.fix_io import FixIO, local_io
from provision.doctor.mending.journal import Journal, read_journal
from provision.doctor.mending.mend import mend
from provision.doctor.mending.undo import undo

__all__ = [
    "FixIO",
    "Journal",
    "Refusal",
    "automatic_fixes",
    "check_fixes",
    "kept_files",
    "local_io",
    "mend",
    "read_journal",
    "restore_command",
    "undo",
]
