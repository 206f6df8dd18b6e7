"""Compares a measured wheel with the catalog's row of it, and returns the row worth keeping.

A measured row takes precedence over a quoted one; a disagreement between the two is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from provision.catalog.catalog import Catalog
from provision.catalog.overlay import Overlay, extended
from provision.model.plan import ComputeCapability
from provision.output.text import row, table

if TYPE_CHECKING:
    from images.inspect.model import WheelCode

_SOURCE = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`table` and `key` name the catalog's row, None if it has none of this wheel.

    `agrees` None: there is nothing to compare with. `sentence` describes the result.
    """

    table: str | None
    key: dict[str, str] | None
    agrees: bool | None
    sentence: str


def compare(code: WheelCode, catalog: Catalog) -> Comparison:
    """Compare what was read from a wheel with the catalog's row of it."""
    version, _, local = code.version.partition("+")
    arch = code.arch or ""
    known: tuple[tuple[ComputeCapability, ...], ComputeCapability | None] | None = None
    key: dict[str, str] = {}
    where = ""
    if code.name == "torch":
        tag = local or ("cu" + code.cuda.replace(".", "") if code.cuda else "cpu")
        key, where = {"version": version, "tag": tag, "arch": arch}, "builds"
        for build in catalog.torch_builds(version=version, arch=arch):
            if build.tag == tag:
                known = (build.sm, build.ptx)
    elif code.name == "tensorflow":
        key, where = {"version": version}, "tensorflow_releases"
        for release in catalog.tensorflow_releases:
            if release.version == version:
                known = (_without(release.sm, release.ptx), release.ptx)
    if known is None:
        sentence = f"The catalog has no row of {code.name} {code.version} for {arch}."
        return Comparison(table=None, key=None, agrees=None, sentence=sentence)
    if not known[0]:
        sentence = "The catalog did not know what it was compiled for."
        return Comparison(table=where, key=key, agrees=None, sentence=sentence)
    agrees = known == (code.sm, code.ptx)
    said = _words(*known)
    sentence = f"The catalog says {'the same' if agrees else said}."
    return Comparison(table=where, key=key, agrees=agrees, sentence=sentence)


def _without(
    sm: tuple[ComputeCapability, ...], ptx: ComputeCapability | None
) -> tuple[ComputeCapability, ...]:
    """TensorFlow lists a target that it builds as binary code and as PTX only once, as PTX."""
    return tuple(capability for capability in sm if capability != ptx)


def kept(code: WheelCode, found: Comparison, previous: Overlay | None, today: str) -> Overlay:
    """The user's copy with this measurement in it; `found.table` is not None."""
    assert found.table is not None
    assert found.key is not None
    file = f"{code.name}-{code.version}-{code.python_tag}"
    named = f"{_SOURCE}:{file}:{today}"
    both = {*code.sm, code.ptx} if found.table == "tensorflow_releases" and code.ptx else code.sm
    new: dict[str, object] = {
        **found.key,
        "sm": [_sm(capability) for capability in sorted(both)] or None,
        "ptx": _sm(code.ptx, "compute_") if code.ptx else None,
        "sm_confidence": "confirmed",
        "sm_source": [named],
        "source": [named],
        "as_of": today,
        "measured": True,
    }
    if found.table == "builds":
        new["existence"] = "confirmed"  # it was read
    text = f"measured {today} in the wheel {file} itself ({code.how})"
    return extended(previous, today, {found.table: [new]}, {named: text})


def to_json(code: WheelCode, found: Comparison, written: str | None) -> dict[str, Any]:
    """The result of `provision catalog measure --json`."""
    return {
        "schema": 1,
        "source": code.source,
        "name": code.name,
        "version": code.version,
        "arch": code.arch,
        "cuda": code.cuda,
        "cudnn": code.cudnn,
        "sm": [_sm(capability) for capability in code.sm],
        "ptx": _sm(code.ptx, "compute_") if code.ptx else None,
        "how": code.how,
        "flags": list(code.flags),
        "libraries": [
            {
                "name": library.name,
                "fatbins": library.fatbins,
                "sass": dict(library.sass),
                "ptx": dict(library.ptx),
                "other": dict(library.other),
                "outside": library.outside,
            }
            for library in code.libraries
        ],
        "bytes_read": code.bytes_read,
        "bytes_total": code.bytes_total,
        "notes": list(code.notes),
        "catalog": {"agrees": found.agrees, "sentence": found.sentence, "row": found.key},
        "written": written,
        "error": None,
    }


def describe(code: WheelCode, found: Comparison, written: str | None) -> str:
    """What the wheel holds, how that was found out, and whether the catalog agrees."""
    share = code.bytes_read / code.bytes_total * 100 if code.bytes_total else 100.0
    lines = [
        *row("wheel", f"{code.name} {code.version} ({code.arch or 'any machine'})"),
        *row("cuda", (code.cuda or "not said") + (f", cuDNN {code.cudnn}" if code.cudnn else "")),
        *row("code", _words(code.sm, code.ptx)),
        *row("read from", {"flags": "the architecture flags that its build left",
                           "build-info": "its build information",
                           "fatbins": "the device code itself"}[code.how]),
        *row("read", f"{code.bytes_read / 1e6:.1f} MB of {code.bytes_total / 1e6:.1f} MB "
             f"({share:.1f} %)"),
    ]  # fmt: skip
    if code.libraries:
        lines += table(
            [
                ("library", "fatbins", "binary code", "PTX"),
                *(
                    (
                        library.name.rpartition("/")[2][:28],
                        str(library.fatbins),
                        _counts(library.sass)[:28],
                        _counts(library.ptx)[:16],
                    )
                    for library in code.libraries
                ),
            ]
        )
    for note in code.notes:
        lines += row("note", note)
    lines += row("catalog" if found.agrees is not False else "finding", found.sentence)
    if written:
        lines += row("written", written)
    return "\n".join(lines)


def _counts(found: Any) -> str:  # noqa: ANN401  a mapping of targets
    return " ".join(f"{target.removeprefix('sm_').removeprefix('compute_')}:{count}"
                    for target, count in found.items()) or "-"  # fmt: skip


def _words(sm: tuple[ComputeCapability, ...], ptx: ComputeCapability | None) -> str:
    code = " ".join(_sm(capability) for capability in sm) or "no binary code"
    return f"{code}, {'PTX ' + _sm(ptx, 'compute_') if ptx else 'no PTX'}"


def _sm(capability: ComputeCapability, prefix: str = "sm_") -> str:
    return f"{prefix}{capability[0]}{capability[1]}"
