"""The suite's speeds beside the same work timed another way: cuBLAS and cudaMemcpy by hand.

    python3 -m bench.gpu_agree            # in the checkout, with a Python that has torch

Both measure in turn, in one process, on one GPU, with one set of libraries; the order changes from
round to round, so that a card that grows warm slows both. They must agree within 3 %: the medians
over all rounds, and CUDA's events with the machine's clock. What was found is written to
bench/results/, with the hardware and the versions that it was found on.

Exit codes: 0 they agree, 1 they do not, 2 wrong usage, 7 nothing was compared (no GPU, say).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cuda_by_hand import FORMATS, Cuda, CudaError, Times
from verify.backends.pytorch import Place, find_gpus
from verify.backends.pytorch_numbers import operands
from verify.checks.speed import rates
from verify.device import nvml
from verify.device.maps import mapped, read_maps
from verify.model.check import Context
from verify.model.frameworks import FRAMEWORKS

TOLERANCE = 0.03
ROUNDS, REPEATS = 5, 9
TRANSFER_BYTES = 1 << 28
AGREE, DISAGREE, NOTHING = 0, 1, 7
RESULTS = Path(__file__).with_name("results")


class NothingToMeasureError(Exception):
    """No GPU, or no libraries to call."""


@dataclass
class Case:
    """One kind of work, and what each way of measuring made of it, in the same unit."""

    what: str
    unit: str
    size: int
    suite: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def difference(self) -> float:
        """Of the suite's median from the one by hand, as a share of the latter."""
        return _difference(self.suite, self.events)

    @property
    def clocks(self) -> float:
        """Of the machine's clock from the events."""
        return _difference(self.wall, self.events)

    def agrees(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the three are one."""
        return abs(self.difference) <= tolerance and abs(self.clocks) <= tolerance

    def as_dict(self) -> dict[str, Any]:
        """For the results."""
        return {**vars(self), "difference": self.difference, "clocks": self.clocks}


def _difference(found: Sequence[float], known: Sequence[float]) -> float:
    return statistics.median(found) / statistics.median(known) - 1


def add(case: Case, times: Times, amount: float) -> None:
    """Turn seconds into rates: so much (of 1e12 operations or 1e9 bytes) by each second."""
    case.events += [amount / spent for spent in times.events]
    case.wall += [amount / spent for spent in times.wall]


def in_turn(rounds: int, first: Callable[[], None], second: Callable[[], None]) -> None:
    """Both in each round, the one that begins changing."""
    for number in range(rounds):
        for one in (first, second) if number % 2 == 0 else (second, first):
            one()


# On the GPU


def measure(gpu: int, rounds: int, repeats: int) -> tuple[list[Case], dict[str, Any]]:
    """Every case, and what it was measured on."""

    absent, places = find_gpus(Context())
    if absent is not None:
        raise NothingToMeasureError(absent.message)
    if gpu >= len(places):
        raise NothingToMeasureError(f"there is no GPU {gpu}: {len(places)} visible")
    place = Place("cuda", gpu)
    rates.memory_copy(place, repeats=1)  # has torch load what it calls
    cuda = Cuda(*libraries(), gpu)
    cases = []
    try:
        for dtype in (name for name in rates.dtypes(place) if name in FORMATS):
            cases.append(products(place, cuda, dtype, rounds, repeats))
            say(cases[-1])
        cases.append(copies_within(place, cuda, rounds, repeats))
        say(cases[-1])
        for way in ("h2d_pinned", "d2h_pinned"):
            cases.append(transfers(way, place, cuda, rounds, repeats))
            say(cases[-1])
        return cases, environment(place, cuda)
    finally:
        cuda.close()


def products(place: Place, cuda: Cuda, dtype: str, rounds: int, repeats: int) -> Case:
    """Square products of random numbers, at the size that the suite takes."""

    place.backend.allow_tf32(on=dtype == "tf32")
    try:
        _, size = rates.gemm(place, dtype, repeats=1, longest_s=0.05)
        case = Case("gemm " + dtype, "TFLOP/s", size)

        def by_hand() -> None:
            left, right = operands(place, dtype, size)
            place.synchronize()
            pointers = left.data_ptr(), right.data_ptr()
            add(case, cuda.gemm(dtype, size, *pointers, repeats=repeats), 2.0 * size**3 / 1e12)

        in_turn(
            rounds,
            lambda: case.suite.extend(rates.gemm_at(place, dtype, size, repeats=repeats)),
            by_hand,
        )
    finally:
        place.backend.allow_tf32(on=False)
    return case


def copies_within(place: Place, cuda: Cuda, rounds: int, repeats: int) -> Case:
    """Copies within the GPU's memory, read and written bytes together."""

    _, size = rates.memory_copy(place, repeats=1)
    case = Case("memory_copy", "GB/s", size)
    in_turn(
        rounds,
        lambda: case.suite.extend(rates.memory_copy(place, repeats=repeats)[0]),
        lambda: add(case, cuda.copy_within(size, repeats=repeats), 2 * size / 1e9),
    )
    return case


def transfers(way: str, place: Place, cuda: Cuda, rounds: int, repeats: int) -> Case:
    """Copies between pinned memory of the host and the GPU."""
    case = Case(way, "GB/s", TRANSFER_BYTES)

    def ours() -> None:
        found = rates.transfers(place, way, [TRANSFER_BYTES], repeats=repeats)
        case.suite.extend(found[TRANSFER_BYTES])

    def by_hand() -> None:
        add(case, cuda.transfer(way, TRANSFER_BYTES, repeats=repeats), TRANSFER_BYTES / 1e9)

    in_turn(rounds, ours, by_hand)
    return case


def libraries() -> tuple[str, str]:
    """The libcudart and libcublas that torch has loaded."""

    found = dict(mapped(read_maps()))
    missing = [name for name in ("libcudart", "libcublas") if name not in found]
    if missing:
        said = f"torch has no {' and no '.join(missing)} as a file that could be called"
        raise NothingToMeasureError(said)
    return found["libcudart"], found["libcublas"]


def environment(place: Place, cuda: Cuda) -> dict[str, Any]:
    """What the numbers were found on."""

    name, capability = place.card, "{}.{}".format(*(place.capability or (0, 0)))
    return {
        "gpu": name,
        "compute_capability": capability,
        "driver": nvml.read().driver,
        "torch": FRAMEWORKS["pytorch"].version(),
        "python": sys.version.split()[0],
        **cuda.versions(),
    }


# Results


def document(cases: Sequence[Case], facts: dict[str, Any], date: str) -> dict[str, Any]:
    """What is written."""
    return {
        "schema": 1,
        "date": date,
        "environment": facts,
        "tolerance": TOLERANCE,
        "agreed": bool(cases) and all(case.agrees() for case in cases),
        "cases": [case.as_dict() for case in cases],
    }


def write(folder: Path, result: dict[str, Any]) -> Path:
    """One file for each card and day; a second run on that day takes its place."""
    card = re.sub(r"[^a-z0-9]+", "-", str(result["environment"]["gpu"]).lower()).strip("-")
    path = folder / f"{result['date'][:10]}-{card}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def say(case: Case) -> None:
    """One line for each case."""
    suite, events = statistics.median(case.suite), statistics.median(case.events)
    word = "agree" if case.agrees() else "DIFFER"
    print(
        f"{case.what:<12} {suite:10.1f} {events:10.1f} {case.unit:<8} "
        f"{100 * case.difference:+6.2f} %  clocks {100 * case.clocks:+6.2f} %  {word}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="gpu_agree", description="The suite's speeds, twice.")
    parser.add_argument("--gpu", type=_count, default=0, help="its number (default: 0)")
    parser.add_argument("--rounds", type=_positive, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--repeats", type=_positive, default=REPEATS, help=f"default: {REPEATS}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    options = parser.parse_args(argv)
    try:
        cases, facts = measure(options.gpu, options.rounds, options.repeats)
    except (ImportError, NothingToMeasureError, CudaError, OSError, RuntimeError) as problem:
        first = str(problem).partition("\n")[0]
        print(f"gpu_agree: nothing was compared: {first}", file=sys.stderr)
        return NOTHING
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = document(cases, facts, date)
    print(f"written to {write(options.out, result)}")
    return AGREE if result["agreed"] else DISAGREE


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, found {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if _count(text) == 0:
        raise argparse.ArgumentTypeError("expected a number from 1 on, found '0'")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
