"""The doctor after a failed step: what its output means on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from provision.errors import Exit

if TYPE_CHECKING:
    from provision.doctor.model import Cause
    from provision.output.console import Console

_SHOWN = 3
# Usage errors have been explained already; nothing that ran has failed.
_NOT_ASKED = frozenset({Exit.USAGE, Exit.NOTHING_COMPATIBLE, Exit.BUG})


def causes_of_failure(failure: Failure) -> tuple[Cause, ...]:
    """Root causes that the output of a failed step shows, the most likely first; often none."""
    if failure.exit_code in _NOT_ASKED or not (failure.log or failure.detail):
        return ()
    return _causes([(failure.code, failure.log or failure.detail)])


def causes_of_report(report: Mapping[str, Any]) -> tuple[Cause, ...]:
    """Root causes behind the checks of a suite that failed."""
    return _causes(
        [
            (check["id"], "\n".join(_words(check)))
            for check in report.get("checks", ())
            if check["status"] in {"fail", "error"}
        ]
    )


def tell(causes: Sequence[Cause], console: Console) -> None:
    """Print the first one."""
    if causes:
        from provision.cli.render.doctor import describe_step

        console.say(describe_step(causes[0]))


def _causes(texts: Sequence[tuple[str, str]]) -> tuple[Cause, ...]:
    """The machine is probed only if the text shows something: that takes a second or more."""
    if not texts:  # such as where there is no memory to load more
        return ()
    from provision.doctor import diagnose

    if not diagnose(texts).causes:
        return ()
    from provision.doctor.here import this_machine
    from provision.doctor.probes import read_facts

    diagnosis = diagnose(texts, read_facts(this_machine()), facts_of="texts")
    if diagnosis.unexplained:
        return ()  # what is known does not say why the step failed
    sure = [cause for cause in diagnosis.causes if cause.confidence != "low"]
    return tuple(sure[:_SHOWN])


def _words(check: Mapping[str, Any]) -> list[str]:
    output = (check.get("measured") or {}).get("output")
    return [str(word) for word in (check["message"], check.get("cause"), output) if word]
