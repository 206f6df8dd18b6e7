"""The doctor after a failed step, where it is installed: what the output means on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from images.errors import Failure
from provision.cli.registry import part_of
from provision.errors import Exit
from provision.output.console import Console

# Usage errors have been explained already; nothing that ran has failed.
_NOT_ASKED = frozenset({Exit.USAGE, Exit.NOTHING_COMPATIBLE, Exit.BUG})


class Explanation(NamedTuple):
    """Root causes, the most likely first: as JSON, and the first one in words."""

    json: Sequence[Mapping[str, Any]] = ()
    text: str = ""


def causes_of_failure(failure: Failure) -> Explanation:
    """What the output of a failed step shows; often nothing."""
    if failure.exit_code in _NOT_ASKED or not (failure.log or failure.detail):
        return Explanation()
    return _explained([(failure.code, failure.log or failure.detail)])


def causes_of_report(report: Mapping[str, Any]) -> Explanation:
    """What is behind the checks of a suite that failed."""
    return _explained(
        [
            (check["id"], "\n".join(_words(check)))
            for check in report.get("checks", ())
            if check["status"] in {"fail", "error"}
        ]
    )


def tell(found: Explanation, console: Console) -> None:
    """Print the first one."""
    if found.text:
        console.say(found.text)


def _explained(texts: Sequence[tuple[str, str]]) -> Explanation:
    if not texts:  # such as where there is no memory to load more
        return Explanation()
    doctor = part_of("doctor", "commands.step")
    return Explanation() if doctor is None else Explanation(*doctor.explained(texts))


def _words(check: Mapping[str, Any]) -> list[str]:
    output = (check.get("measured") or {}).get("output")
    return [str(word) for word in (check["message"], check.get("cause"), output) if word]
