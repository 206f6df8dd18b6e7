"""Judges whether there is code for a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from posixpath import basename
from typing import Any

from images.inspect.coverage import Coverage
from images.inspect.image import Inspection
from images.inspect.model import LibraryCode
from provision.lock.labels import targets_of
from provision.model.plan import Gpu
from provision.verification.inspection.outcome import (
    InspectionOutcome,
    Status,
    and_more,
    gpu_words,
    named,
    path_of,
    table,
    tables,
    yes,
)
from provision.verification.inspection.packages import cut_label

_HARDLY = 0.5


def judge_code(found: Inspection, gpus: Sequence[Gpu]) -> InspectionOutcome:
    """Whether the framework, and what builds on it, has code for each GPU that was named."""
    if not found.coded:
        return _without_code(found, gpus)
    measured: dict[str, Any] = {
        "flags": list(found.flags),
        **tables(_code_table(found), *(_gpu_table(found, gpu) for gpu in gpus)),
    }
    if not gpus:
        main = max(found.coded, key=lambda code: (code.name in found.must_run, code.fatbins))
        return InspectionOutcome(
            status="pass",
            message=f"{basename(main.name)} has code for {_held(main)}"
            f"{and_more(len(found.coded) - 1, 'library has device code', 'libraries have it')}"
            "; to check a GPU: --gpu 9.0",
            measured=measured,
        )
    asked = [(gpu, *_judge_gpu(found, gpu)) for gpu in gpus]
    expected = {"gpus": [gpu_words(gpu) for gpu in gpus]}
    worst = next((row for row in asked if row[1] == "fail"), None) or next(
        (row for row in asked if row[1] == "skip"), None
    )
    if worst is None:
        said = "; ".join(f"{gpu_words(gpu)}: {words}" for gpu, _, words in asked)
        return InspectionOutcome(status="pass", message=said, measured=measured, expected=expected)
    gpu, status, words = worst
    return InspectionOutcome(
        status=status,
        message=f"{gpu_words(gpu)}: {words}",
        cause="A kernel that has neither binary code nor PTX for a GPU cannot start there."
        if status == "fail"
        else "Kernels for a single kind of GPU are counted, too; other fatbins have none of those.",
        fix=_other_build(found, gpu),
        measured=measured,
        expected=expected,
    )


def _judge_gpu(found: Inspection, gpu: Gpu) -> tuple[Status, str]:
    """Say (whether everything that must run on a GPU does, how)."""
    assert gpu.compute_capability is not None
    cut = cut_label(found)
    if cut and gpu.compute_capability not in cut:
        kept = " and ".join(targets_of(cut))
        return "fail", f"its code was removed: the image is for {kept} alone"
    rows = [row for row in found.coverage(gpu.compute_capability) if row.library in found.must_run]
    if not rows:
        return "skip", "nothing in it needs device code of its own"
    flags = found.by_flags(gpu.compute_capability)
    lacking = [row for row in rows if _lacks(row, flags if _is_torch(row) else None)]
    unsure = [row for row in rows if not row.whole and not _is_sure(row, flags)]
    libraries = {code.name: code for code in found.coded}
    if lacking:
        first = max(lacking, key=lambda row: libraries[row.library].fatbins)
        held = _held(libraries[first.library])
        more = and_more(len(lacking) - 1, "library without", "libraries without")
        part = f" in {100 - first.share * 100:.0f} % of it" if not first.nothing else ""
        return (
            "fail",
            f"{basename(first.library)} has no code for it{part}: it has {held}{more}",
        )
    if unsure:
        first = min(unsure, key=lambda row: row.share)
        return (
            "skip",
            f"only {first.share * 100:.0f} % of {basename(first.library)} has code for it",
        )
    how = Counter(row.runs for row in rows).most_common()
    others = [
        row.library
        for row in found.coverage(gpu.compute_capability)
        if row.nothing and row.library not in found.must_run
    ]
    said = flags or (how[0][0] if len(how) == 1 else ", ".join(runs for runs, _ in how))
    later = (
        " (compiled by the driver at the first start, if it is new enough)" if "PTX" in said else ""
    )
    without = f"; without code for it: {named(map(basename, others))}" if others else ""
    return "pass", f"runs {said}{later}{without}"


def _is_torch(row: Coverage) -> bool:
    return "/torch/lib/" in row.library


def _lacks(row: Coverage, flags: str | None) -> bool:
    """Judge by what the build says about itself if it does, else by what most of it has."""
    if flags is not None:
        return flags == "none" and not row.whole
    return row.nothing or (row.share < _HARDLY and not _of_nvidia(row.library))


def _is_sure(row: Coverage, flags: str | None) -> bool:
    """NVIDIA's libraries have kernels for some GPUs each, and choose among them."""
    return (flags is not None and _is_torch(row)) or _of_nvidia(row.library)


def _of_nvidia(library: str) -> bool:
    return "/nvidia/" in library or library.startswith("/usr/local/cuda")


def _without_code(found: Inspection, gpus: Sequence[Gpu]) -> InspectionOutcome:
    package = found.framework_package
    if gpus and package is not None and found.framework in {"pytorch", "tensorflow"}:
        return InspectionOutcome(
            status="fail",
            message=f"{package.title} is installed, but no library has device code: a build "
            "without CUDA",
            cause="Without device code nothing runs on a GPU.",
            fix="Use a build for CUDA: provision plan --cuda X.Y",
        )
    return InspectionOutcome(
        status="skip",
        message="no library has device code" + (", so GPUs cannot be checked" if gpus else ""),
    )


def _other_build(found: Inspection, gpu: Gpu) -> str:
    assert gpu.compute_capability is not None
    if (cut := cut_label(found)) and gpu.compute_capability not in cut:
        both = targets_of([*cut, gpu.compute_capability])
        return f"Build one for it, too: provision build --cut {','.join(both)}"
    capability = "{}.{}".format(*gpu.compute_capability)
    framework = found.framework or "pytorch"
    return f"Use a build that has it: provision plan --framework {framework} --gpu {capability}"


def _code_table(found: Inspection) -> dict[str, Any] | None:
    return table(
        "Device code",
        ("library", "fatbins", "binary code", "PTX", "must run"),
        [
            (
                path_of(found, code.name),
                code.fatbins,
                _counts(code.sass),
                _counts(code.ptx),
                yes(code.name in found.must_run),
            )
            for code in found.coded
        ],
    )


def _gpu_table(found: Inspection, gpu: Gpu) -> dict[str, Any] | None:
    assert gpu.compute_capability is not None
    return table(
        f"On {gpu_words(gpu)}",
        ("library", "runs", "share of its fatbins", "must run"),
        [
            (
                path_of(found, row.library),
                row.runs,
                round(row.share, 3),
                yes(row.library in found.must_run),
            )
            for row in found.coverage(gpu.compute_capability)
        ],
    )


def _held(code: LibraryCode) -> str:
    """The targets that most of a library has: "sm_37 sm_50 sm_86, no PTX"."""
    sass = [word for word, count in code.sass.items() if count >= _HARDLY * code.fatbins]
    ptx = [word for word, count in code.ptx.items() if count >= _HARDLY * code.fatbins]
    words = " ".join(sass or code.sass) or "no binary code"
    return f"{words}, {'PTX ' + ' '.join(ptx) if ptx else 'no PTX'}"


def _counts(found: Mapping[str, int]) -> str:
    return " ".join(f"{target}:{count}" for target, count in found.items())
