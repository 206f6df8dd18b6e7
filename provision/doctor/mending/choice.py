"""Which fixes may be run here, and why the others may not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.doctor.diagnose import diagnose
from provision.doctor.knowledge import Knowledge
from provision.doctor.mending.shell import commands, needs_sudo
from provision.doctor.model import Cause, Fix


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a cause is not fixed here, and what to do instead."""

    why: str
    fix: str


def automatic_fixes(
    cause: Cause, knowledge: Knowledge, *, is_root: bool
) -> tuple[Fix, ...] | Refusal:
    """The fixes of a cause that may be run, in order, or why there are none.

    A fix is run only if its text is in the shipped knowledge word for word: text from a log is
    filled in only where a pattern has named groups, and never reaches a shell.
    """
    fixes = cause.fixes
    by_hand = [fix for fix in fixes if fix.run]
    ready = tuple(fix for fix in fixes if fix.automatic and not fix.reboot and fix.run)
    if not ready:
        return Refusal(_why_by_hand(fixes), "Do what stands above." if by_hand else _notes(fixes))
    shipped = knowledge.by_code.get(cause.code)
    texts = {(fix.run, fix.backup) for fix in shipped.fixes} if shipped else set()
    trusted = tuple(fix for fix in ready if (fix.run, fix.backup) in texts)
    if not trusted:
        return Refusal(
            "Its commands hold words that were read from the text, and such words are not run.",
            "Read the commands above, and type them yourself.",
        )
    if is_root and all(set(fix.on) == {"rootless"} for fix in trusted):
        return Refusal(
            "The engine is a user's own (rootless), and you are root.",
            "Run the same command without sudo, as the user whose engine it is.",
        )
    return trusted


def confirmed_by(cause: Cause, knowledge: Knowledge) -> str:
    """The command that succeeds if a cause is absent or has been fixed; "" if there is none, or it
    may not be run.
    """
    shipped = knowledge.by_code.get(cause.code)
    if shipped is None or shipped.confirm != cause.confirm:
        return ""
    return cause.confirm if shipped.check is None else shipped.check


def other_cause(cause: Cause, output: str, knowledge: Knowledge) -> Cause | None:
    """What the output of a failed confirming command shows instead of the cause, if anything: not
    the cause itself, and not what follows from it.
    """
    found = diagnose([("", output)], knowledge=knowledge).causes
    shipped = knowledge.by_code[cause.code]
    if not found or {cause.code, *shipped.beats} & {one.code for one in found}:
        return None
    return found[0] if found[0].confidence != "low" else None


def lacks_sudo(fix: Fix, *, is_root: bool, has_sudo: bool) -> bool:
    return not is_root and not has_sudo and any(needs_sudo(one) for one in commands(fix.run))


def _why_by_hand(fixes: Sequence[Fix]) -> str:
    if not fixes:
        return "No fix is known for this machine."
    if any(fix.reboot for fix in fixes):
        return "The machine must be restarted for it, which is for you to do."
    if any(fix.run for fix in fixes):
        return "The commands need your choice, or an answer that only you can give."
    return "It is work by hand."


def _notes(fixes: Sequence[Fix]) -> str:
    return next((fix.note for fix in fixes if fix.note), "Read the sources of this cause.")
