"""GPU memory errors: ECC errors, retired pages, remapped rows."""

from __future__ import annotations

from typing import Iterator, List, Sequence

from verify.checks.health.findings import (
    RESET,
    Finding,
    judged,
    listed_numbers,
    outcome,
    table,
    unread,
)
from verify.device.telemetry import GpuState, State
from verify.model.check import Context, Outcome, Status, gpus

# NVIDIA's dynamic page retirement guide: a card with this many retired pages is to be replaced.
RETIRED_PAGES_LIMIT = 60
_MEMORY_COLUMNS = (
    "index",
    "ecc_enabled",
    "ecc_corrected",
    "ecc_uncorrected",
    "ecc_uncorrected_ever",
    "retired_pages",
    "retired_pending",
    "remapped_rows",
    "remap_pending",
    "remap_failed",
    "spare_rows",
    "sram_uncorrected",
    "sram_threshold_exceeded",
)


def check_memory(context: Context) -> Outcome:
    """Read each GPU's memory errors."""
    return judged(context.machine.seen(), judge_memory)


def judge_memory(found: State) -> Outcome:
    """Whether there is no lost data and no reason to return the card.

    Rows that are remapped or wait for it are reported and not judged, and so are banks without a
    spare row: NVIDIA replaces a card when remapping fails ("GPU Memory Error Management").
    """
    measured = table("Memory errors", _MEMORY_COLUMNS, found.gpus)
    expected = {"ecc_uncorrected": 0, "retired_pending": False, "remap_failed": False}
    findings = [finding for gpu in found.gpus for finding in _memory_findings(gpu)]
    counting = [gpu for gpu in found.gpus if _counts(gpu)]
    if not counting:
        off = [gpu for gpu in found.gpus if gpu.ecc_enabled is False]
        if not off:
            return unread(found, found.gpus, "memory errors (a GPU without ECC)")
        said = "ECC is off on GPU {}: memory errors are not detected".format(listed_numbers(off))
        fix = "turn ECC on (nvidia-smi -e 1, then reboot) where correct results matter"
        return Outcome(Status.SKIP, said, fix=fix, measured=measured)
    return outcome(findings, _memory_words(counting, found.gpus), measured, expected)


def _counts(gpu: GpuState) -> bool:
    told = gpu.ecc_uncorrected, gpu.remap_pending, gpu.retired_pending
    return any(value is not None for value in told)


def _memory_findings(gpu: GpuState) -> List[Finding]:
    replace = "take the GPU out of use and have it replaced"
    reset = RESET.format(gpu.index)
    rows = (
        (
            bool(gpu.remap_failed),
            "a damaged row of memory could not be remapped",
            "no spare row is left where one is needed",
            replace,
        ),
        (
            (gpu.retired_pages or 0) >= RETIRED_PAGES_LIMIT,
            "{} retired pages".format(gpu.retired_pages),
            "the memory is wearing out: NVIDIA's limit is {}".format(RETIRED_PAGES_LIMIT),
            replace,
        ),
        (
            bool(gpu.sram_threshold_exceeded),
            "more SRAM errors than NVIDIA allows for",
            "the GPU's caches or registers are wearing out: NVIDIA replaces such a card",
            replace,
        ),
        (
            bool(lost_data(gpu)),
            "uncorrected ECC errors since the driver was loaded: {}".format(lost_data(gpu)),
            "the GPU's memory lost data that ECC could not restore",
            reset + "; have the card replaced if they recur",
        ),
        (
            bool(gpu.retired_pending),
            "damaged pages of memory wait to be retired",
            "until the GPU is reset, programs can get these pages",
            reset,
        ),
    )
    return [Finding(gpu.index, what, cause, fix) for bad, what, cause, fix in rows if bad]


def lost_data(gpu: GpuState) -> int:
    """Uncorrected errors that nothing has repaired.

    A GPU with row remapping (A100 and later) replaces the damaged rows of its memory at the next
    reset; `remap_pending` and `remap_failed` say what is still to do. Errors in its SRAM are not
    repaired. Source: NVIDIA GPU Memory Error Management, "Row Remapping".
    """
    remaps = gpu.remap_pending is not None
    return (gpu.sram_uncorrected if remaps else gpu.ecc_uncorrected) or 0


def _memory_words(counting: Sequence[GpuState], all_of_them: Sequence[GpuState]) -> str:
    words = ["no uncorrected memory errors on {}".format(gpus(len(counting)))]
    words += [word for gpu in counting for word in _reported(gpu)]
    silent = [gpu for gpu in all_of_them if gpu not in counting]
    words += ["GPU {} counts none".format(listed_numbers(silent))] if silent else []
    return "; ".join(words)


def _reported(gpu: GpuState) -> Iterator[str]:
    """What is no fault of a GPU's memory."""
    if gpu.ecc_corrected:
        yield "{} corrected on GPU {}".format(gpu.ecc_corrected, gpu.index)
    if gpu.ecc_uncorrected:
        way = "to be repaired" if gpu.remap_pending else "repaired"
        where = "" if gpu.sram_uncorrected is not None else ", unless they were in its SRAM"
        said = "{} {} by row remapping on GPU {}{}"
        yield said.format(gpu.ecc_uncorrected, way, gpu.index, where)
    if gpu.remap_pending:
        said = "GPU {}: a damaged row of memory waits for remapping: at the next chance, {}"
        yield said.format(gpu.index, RESET.format(gpu.index))
    _, _, _, one, none = gpu.spare_rows or (0,) * 5
    if one or none:
        said = "GPU {}: memory banks with one spare row: {}, without any: {} (a damaged row there "
        said += "cannot be remapped: plan to replace the card)"
        yield said.format(gpu.index, one, none)
