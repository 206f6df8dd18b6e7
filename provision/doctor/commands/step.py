"""What the output of a step that failed means on this machine, for the command that ran it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.doctor import diagnose
from provision.doctor.account import causes_json
from provision.doctor.commands.text import describe_step
from provision.doctor.model import Cause

_SHOWN = 3


def explained(texts: Sequence[tuple[str, str]]) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Root causes that texts (each with its source) show, the most likely first: as JSON, and the
    first one in words; (), "" if they show none.
    """
    causes = _causes(texts)
    return (causes_json(causes), describe_step(causes[0])) if causes else ((), "")


def _causes(texts: Sequence[tuple[str, str]]) -> tuple[Cause, ...]:
    """The machine is probed only if the text shows something: that takes a second or more."""
    if not diagnose(texts).causes:
        return ()
    from provision.doctor.probes import read_facts
    from provision.doctor.this_machine import this_machine

    diagnosis = diagnose(texts, read_facts(this_machine()), facts_of="texts")
    if diagnosis.unexplained:
        return ()  # what is known does not say why the step failed
    sure = [cause for cause in diagnosis.causes if cause.confidence != "low"]
    return tuple(sure[:_SHOWN])
