"""Published rates as the suite's judges meet them: the check that would have measured it, its word.

A row holds {"id", "card", "count", "what", "dtype", "value", "unit", "interconnect", "size",
"conditions"}. What no check measures (a stencil, copies from ordinary memory, small messages,
several machines) is not judged, and `judge_rate` says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.rows.gpus import GpuModel
from provision.lock.labels import spec_of
from verify.checks.collectives import floors
from verify.checks.health import links, nvlinks, pcie
from verify.checks.speed.measured import link_gbs
from verify.checks.speed.pace import MeasuredRate, RatedCard, judge_rates
from verify.device.telemetry import GpuState, NvLink, Pair, State
from verify.model.check import Outcome, Status
from verify.model.expectations import Spec

Judgement = tuple[str, str]  # "pass", "fail" or "not judged", and the words for it
NOT_JUDGED = "not judged"
C2C_GBS = 450.0  # one direction of a GH200's: NVIDIA's data sheet has 900 for both
LARGE_PRODUCT = 4096  # rows: a smaller product is the launch's time
_LINKS = {"6": 4, "7": 6, "8": 12, "9": 18, "10": 18}  # NVLinks of a whole GPU, by its generation
_SEVERAL = re.compile(r"EFA|InfiniBand|nodes|RoCE|Ethernet", re.IGNORECASE)


def judge_rate(row: Mapping[str, Any]) -> Judgement:
    """The status and words of the judge that this rate falls to."""
    what = row["what"].lower()
    if "stencil" in what:
        return NOT_JUDGED, "a stencil reaches a part of what a copy does"
    if "transmit" in what:
        return _judgement(pcie.judge_pcie(State(gpus=(_gpu(row),), found=True)))
    if "all_reduce" in what:
        return _judge_all_reduce(row)
    if re.search(r"alltoall|broadcast|peer", what):
        return NOT_JUDGED, "no check has a floor for it"
    if re.search(r"matmul|compute", what):
        return _judge_product(row, what)
    if re.search(r"h2d|d2h", what):
        return _judge_host_copy(row, what)
    if re.search(r"memory|copy", what):
        return _judge_memory(row)
    return NOT_JUDGED, "no check measures it"


def _judgement(outcome: Outcome) -> Judgement:
    status = {Status.PASS: "pass", Status.FAIL: "fail"}.get(outcome.status, NOT_JUDGED)
    return status, outcome.message


@cache
def _catalog() -> Catalog:
    return load()


def _rows(row: Mapping[str, Any]) -> tuple[GpuModel, ...]:
    """What the catalog has under the card's name, without what stands in brackets."""
    name = re.sub(r"\s*\(.*?\)|/.*", "", row["card"]).removesuffix(" class")
    return _catalog().find_gpu(name).rows


def _spec(row: Mapping[str, Any]) -> Spec | None:
    """The card's figures; of several cards of the name the highest, which is the strictest."""
    specs = [spec_of(model) for model in _rows(row)]
    if not specs:
        return None
    rates = {kind: 0.0 for spec in specs for kind in spec["tflops"]}
    highest = {k: max(float(spec["tflops"].get(k) or 0) for spec in specs) for k in rates}
    memory = max(float(spec["memory_bandwidth_gbs"] or 0) for spec in specs)
    return Spec(
        memory or None,
        {kind: rate for kind, rate in highest.items() if rate},
        any(spec["nvlink"] for spec in specs),
        sure=all(spec["sure"] for spec in specs),
    )


def _gpu(row: Mapping[str, Any], index: int = 0) -> GpuState:
    """A card that works calmly, on the link that the row names."""
    way = row.get("interconnect") or ""
    pcie = re.search(r"PCIe (\d)(?: x(\d+))?", way)
    generation = int(pcie.group(1)) if pcie else None
    width = int(pcie.group(2) or 16) if pcie else None
    told = f"{way} {row.get('conditions') or ''} {row['card']}"
    virtual = re.search(r"\bVM\b|AWS|Azure", told) is not None
    models = _rows(row)
    capability = models[0].compute_capability if models else None
    return GpuState(
        index,
        name=row["card"],
        compute_capability="{}.{}".format(*capability) if capability else None,
        throttle_reasons=(),
        virtualization="passthrough" if virtual else "none",
        pcie_generation=generation,
        pcie_generation_max=generation,
        pcie_width=width,
        pcie_width_max=16 if width else None,
        c2c_links=10 if "C2C" in way else None,
        c2c_gbs=C2C_GBS if "C2C" in way else None,
    )


def _judge_one(
    row: Mapping[str, Any], metric: str, figure: float | None, label: str = ""
) -> Judgement:
    spec = _spec(row)
    sure = metric == "h2d_pinned" or spec is None or spec.sure  # a link's figure is not the card's
    samples = (float(row["value"]),) * 3
    rate = MeasuredRate(metric, 0, samples, row["unit"], label, figure=figure, sure=sure)
    card = RatedCard(0, row["card"], _gpu(row), spec)
    return _judgement(judge_rates([rate], [card], device="cuda", what="rates"))


def _judge_product(row: Mapping[str, Any], what: str) -> Judgement:
    size = row.get("size")
    if "fp64" in what or "no tensor cores" in what:
        return NOT_JUDGED, "no check measures these units"
    if "small" in f"{what} {row.get('conditions') or ''}" or _number(size, LARGE_PRODUCT) < 4096:
        return NOT_JUDGED, "a small product is the launch's time"
    tflops = (_spec(row) or Spec()).tflops
    dtype = row.get("dtype") or ("fp32" if "fp32" in what else "")
    if dtype == "bf16 or fp16":
        dtype = "bf16" if "bf16" in tflops else "fp16"
    return _judge_one(row, "gemm", tflops.get(dtype), label=dtype)


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _judge_memory(row: Mapping[str, Any]) -> Judgement:
    if "one direction" in (row.get("conditions") or ""):
        return NOT_JUDGED, "it counts what is read or what is written, and the check both"
    return _judge_one(row, "memory_copy", (_spec(row) or Spec()).memory_bandwidth_gbs)


def _judge_host_copy(row: Mapping[str, Any], what: str) -> Judgement:
    if re.search(r"while|\+|both", what):
        return NOT_JUDGED, "both directions at once are not measured"
    if not re.search(r"pinned|nvbandwidth|floor", what):
        return NOT_JUDGED, "ordinary memory is copied twice and has no figure"
    gpu = _gpu(row)
    figure = link_gbs("h2d_pinned", RatedCard(0, row["card"], gpu))
    return _judge_one(row, "h2d_pinned", figure)


def _judge_all_reduce(row: Mapping[str, Any]) -> Judgement:
    count, way = row.get("count"), row.get("interconnect") or ""
    if not count or count > 16 or _SEVERAL.search(way):
        return NOT_JUDGED, "several machines, of which the suite sees one"
    if _number(row.get("size"), floors.LARGE) < floors.LARGE:
        return NOT_JUDGED, "small messages are not judged"
    gpus = [_gpu(row, i) for i in range(count)]
    joined = "bridged" in row["card"] or "NVLink" in way or nvlinks.is_wired(gpus[0])
    if joined and "no NVLink" not in row["card"]:
        major = (gpus[0].compute_capability or "").partition(".")[0]
        wired = tuple(NvLink(i, active=True) for i in range(_LINKS.get(major, 0)))
        gpus = [GpuState(**{**vars(gpu), "nvlinks": wired}) for gpu in gpus]
        path = f"NV{len(wired)}"
    else:
        path = "SYS"
    pairs = tuple(Pair(i, j, path) for i in range(count) for j in range(i + 1, count))
    seen = State(gpus=tuple(gpus), pairs=pairs, found=True)
    size = _number(row.get("size"), floors.LARGE)
    least = floors.floor(seen, links.slowest_link(seen, count), "all-reduce", size)
    if least is None:
        return NOT_JUDGED, "what these links reach is not known"
    words = f"{row['value']} of {least.of_gbs:.4g} GB/s ({least.words})"
    return ("fail" if row["value"] < least.gbs else "pass"), words
