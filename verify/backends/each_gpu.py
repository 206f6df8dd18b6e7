"""A check's work on every GPU, one after another: all of it on the first one, and as much as the
quick level has on the others. What an image does wrong one GPU shows; what a GPU does wrong shows
in little work.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Sequence

from verify.backends.base import of
from verify.model.check import NODE, Context, Outcome, Status, gpus

GPU_FIX = "look at devices.kernel and at nvidia-smi -q -d ECC; take the GPU out of use"


class OfGpu(NamedTuple):
    """What a check found on one of several GPUs."""

    gpu: int
    card: str
    outcome: Outcome


def on_each(context: Context, work: Callable[[Context, Any], Outcome]) -> Outcome:
    """The outcome of the work on all GPUs, or on the CPU if nothing hints at one."""
    broken, places = of(context).every(context)
    if broken or len(places) == 1:
        return broken or work(context, places[0])
    short = replace(context, level="quick")
    given = [context, *[short] * (len(places) - 1)]
    return judge_each(
        [OfGpu(one.index, one.card, _named(work, own, one)) for own, one in zip(given, places)]
    )


def _named(work: Callable[[Context, Any], Outcome], context: Context, place: Any) -> Outcome:
    """The outcome. An error names the GPU, and so does the output if the process is lost."""
    sys.stderr.write("GPU {}\n".format(place.index))
    try:
        return work(context, place)
    except Exception as error:
        said = "GPU {}: {}: {}".format(place.index, type(error).__name__, error)
        raise RuntimeError(said) from error


def judge_each(found: Sequence[OfGpu]) -> Outcome:
    """The outcome of several GPUs: the first one's, or that of the first GPU that fails."""
    failed = [one for one in found if one.outcome.status is Status.FAIL]
    passed = [one for one in found if one.outcome.status is Status.PASS]
    first = (failed or passed or found)[0]
    outcome = first.outcome
    statuses = {str(one.gpu): one.outcome.status.value for one in found}
    outcome = replace(outcome, measured={**outcome.measured, "gpus": statuses})
    parts = [_on(first) if failed else outcome.message]
    parts += ["GPU {} fails, too".format(one.gpu) for one in failed[1:]]
    others = [one for one in passed if one != first]
    parts += ["passed on " + gpus(len(others)).replace(" ", " other ")] if others else []
    skipped = [one for one in found if one.outcome.status is Status.SKIP]
    parts += [_on(one) for one in skipped if passed and not failed]
    outcome = replace(outcome, message="; ".join(parts))
    twin = found[0]  # it passed with more work
    if not failed or outcome.at_fault or twin not in passed or twin.card != first.card:
        return outcome
    cause = "{}; GPU {} of the same model passed".format(outcome.cause, twin.gpu)
    return replace(outcome, cause=cause, fix=GPU_FIX, at_fault=NODE)


def _on(one: OfGpu) -> str:
    """The message with the GPU's number, which a judge may have put into it."""
    name, message = "GPU {}".format(one.gpu), one.outcome.message
    return message if name in message else "{}: {}".format(name, message)
