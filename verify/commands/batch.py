"""`verify batch`: find the largest batch size that fits, and the fastest.

Exit codes: 0 found, 1 no batch fits or nothing can run, 2 wrong usage or the model fails. A trial
is a few full training steps: forward, backward and optimiser (AdamW).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence

from verify.backends.base import Place
from verify.checks.memory.batches import Mode, look, measured, run
from verify.checks.memory.bench import Job, Refused
from verify.commands.usage import CALLED, Parser
from verify.model.check import Context, UsageError
from verify.model.frameworks import FRAMEWORKS
from verify.running.symptoms import explain
from verify.workloads import models
from verify.workloads.batching import BatchTrial, Search

CPU_MAXIMUM = 64
GPU_MAXIMUM = 1 << 16
SECONDS = 300.0
GB = 1e9
_HEAD = "{:>7}  {:>11}  {:>6}  {:>11}  {:>7}".format(
    "batch", "samples/s", "+-", "peak memory", "GPU use"
)

HELP = """\
MODULE:CALLABLE names your own function without arguments, in a module that
can be imported from the current directory. It returns (module, make_batch) or
(module, make_batch, loss), or an object with these attributes:

  module                 a torch.nn.Module on the CPU
  make_batch(n, device)  returns (inputs, target) for n samples on that device;
                         inputs is a tensor, a tuple (positional arguments) or
                         a dictionary (keyword arguments)
  loss(module, batch)    returns the scalar to call backward on; batch is what
                         make_batch returned. Default: the output of the module
                         if it is a scalar or has a .loss, else cross entropy
                         for integer targets, else the mean squared error

example: verify batch --model train:model --amp
"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command and return the exit code."""
    options = parse(list(sys.argv[2:] if argv is None else argv))
    job = Job(options.model, memory_share=options.memory_share)
    try:
        _load()
        broken, place = look(Context())
        if broken is not None:
            return _say("{}; cause: {}; fix: {}".format(broken.message, broken.cause, broken.fix))
        modes = _search_all(job, place, options)
    except Refused as error:
        if job.is_users and str(error).startswith(job.model):
            raise UsageError("--model {}".format(error)) from error
        return _say(str(error))
    if options.json:
        sys.stdout.write(
            json.dumps(document(modes, options, place), indent=2, allow_nan=False) + "\n"
        )
    else:
        sys.stdout.write(page(modes, options, place))
    sys.stdout.flush()
    return 0 if all(mode.search.largest for mode in modes) else 1


def _load() -> None:
    """Import torch once for all children."""
    try:
        FRAMEWORKS["pytorch"].load()
    except Exception as error:
        text = "{}: {}".format(type(error).__name__, error)
        cause, fix = explain(text)
        raise Refused(
            "torch cannot be imported: {}; {}".format(text, fix or cause or "")
        ) from error


def _search_all(job: Job, place: Place, options: argparse.Namespace) -> List[Mode]:
    jobs = [job] + ([replace(job, amp=True)] if options.amp else [])
    maximum = options.max or (GPU_MAXIMUM if place.is_gpu else CPU_MAXIMUM)
    each = options.seconds / len(jobs)
    return [
        run(one, place, maximum=maximum, minimum=options.min, seconds=each, tell=_tell)
        for one in jobs
    ]


def document(modes: Sequence[Mode], options: argparse.Namespace, place: Place) -> Dict[str, Any]:
    """The result as JSON."""
    rows = [{"precision": mode.precision, **mode.search.as_dict()} for mode in modes]
    return {
        "schema": 1,
        "model": options.model,
        "device": place.kind,
        "gpu": next((mode.gpu for mode in modes if mode.gpu), None),
        "memory_share": options.memory_share,
        "modes": rows,
        **measured(modes, options.model),
    }


def page(modes: Sequence[Mode], options: argparse.Namespace, place: Place) -> str:
    """The result as text."""
    gpu = next((mode.gpu for mode in modes if mode.gpu), None)
    head = "{}, {}{}".format(options.model, place.words, " ({})".format(gpu) if gpu else "")
    lines = [head]
    for mode in modes:
        lines += ["", mode.precision or "not measured", _HEAD]
        ordered = sorted(mode.search.trials, key=lambda trial: trial.batch)
        lines += [_row(trial) for trial in ordered]
        lines += _answers(mode.search)
    return "\n".join(lines) + "\n"


def _row(trial: BatchTrial) -> str:
    if not trial.fits:
        return "{:>7}  does not fit: {:.55}".format(trial.batch, trial.reason or "")
    use, peak = trial.utilization_percent, trial.peak_bytes
    return "{:>7}  {:>11.5g}  {:>4.0f} %  {:>11}  {:>7}".format(
        trial.batch,
        trial.samples_per_s or 0.0,
        100 * trial.spread,
        "-" if peak is None else "{:.2f} GB".format(peak / GB),
        "-" if use is None else "{:.0f} %".format(use),
    )


def _answers(search: Search) -> List[str]:
    largest, fastest = search.largest, search.fastest
    if largest is None or fastest is None:
        return ["none fits: " + search.ended]
    pace = "fastest: {}, {:.4g} samples/s".format(fastest.batch, fastest.samples_per_s or 0.0)
    return ["largest that fits: {} ({})".format(largest.batch, search.ended), pace]


def _tell(precision: str, trial: BatchTrial) -> None:
    sys.stderr.write("{:<8} {}\n".format(precision, _row(trial).strip()))
    sys.stderr.flush()


def _say(message: str) -> int:
    sys.stderr.write("verify: {}\n".format(message))
    return 1


def parse(argv: List[str]) -> argparse.Namespace:
    """The options. Raises UsageError."""
    by_provision = bool(os.environ.get(CALLED))
    parser = Parser(
        prog="verify batch",
        usage="%(prog)s {}[options]".format("[IMAGE] " if by_provision else ""),
        description="Find the largest batch size that fits in memory, and the fastest (PyTorch)."
        + ("\nWithout IMAGE it runs in this Python." if by_provision else ""),
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    named = ", ".join(models.NAMED)
    add = parser.add_argument
    add("--model", default="resnet50", help="{}, or MODULE:CALLABLE".format(named))
    add("--amp", action="store_true", help="measure with automatic mixed precision, too")
    add(
        "--max",
        type=_number(int, 1, 1 << 24),
        metavar="N",
        help="largest batch to try (default on a CPU: 64)",
    )
    add(
        "--min",
        type=_number(int, 1, 1 << 24),
        metavar="N",
        default=1,
        help="first batch to try (default: 1)",
    )
    add(
        "--memory-share",
        type=_number(float, 0.01, 1),
        metavar="X",
        default=0.9,
        help="share of the free memory to use (default: 0.9)",
    )
    add(
        "--seconds",
        type=_number(float, 1, 1 << 24),
        metavar="S",
        default=SECONDS,
        help="time limit in seconds (default: 300)",
    )
    add("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    if options.model not in models.NAMED and not _is_path(options.model):
        said = "--model: unknown model {!r}; use {} or MODULE:CALLABLE"
        raise UsageError(said.format(options.model, named))
    if options.max is not None and options.min > options.max:
        raise UsageError("--min {} is above --max {}".format(options.min, options.max))
    return options


def _is_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and attribute.isidentifier()


def _number(kind: Callable[[str], Any], low: float, high: float) -> Callable[[str], Any]:
    """A parser for an option's number between two bounds."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            number = kind(text)
            if low <= number <= high:
                return number
        raise argparse.ArgumentTypeError(
            "{!r} is not a number from {} to {}".format(text, low, high)
        )

    return read
