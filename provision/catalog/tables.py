"""The tables, and the keys of the rows of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from provision.catalog.values import (
    Reader,
    brands,
    capability,
    flag,
    many,
    maybe,
    number,
    one_of,
    pattern,
    ptx,
    quantity,
    rates,
    sms,
    text,
)

FILES = (
    "cuda.json",
    "drivers.json",
    "gpus.json",
    "torch.json",
    "bases.json",
    "tensorflow.json",
    "jax.json",
    "nvidia.json",
    "images.json",
)
"""The files of tables; every command reads the first five."""


class TableKeys(NamedTuple):
    """The keys of one table's rows. An optional key has its default in the row's class."""

    needed: Mapping[str, Reader]
    optional: Mapping[str, Reader]


_MAYBE_TEXT = maybe(text)
_MAYBE_NUMBER = maybe(number)
_NUMBERS = many(number, "whole numbers", empty=True)
_CAPABILITIES = many(capability, "compute capabilities", empty=True)
_MAYBE_QUANTITY = maybe(quantity)
_PYTHON_TAGS = many(text, "Python tags")
_CHIPS = many(text, "chips", empty=True)
_ARCH = one_of("x86_64", "aarch64")
_ARCHS = many(_ARCH, "x86_64, aarch64", empty=True)
_CONFIDENCE = one_of("confirmed", "likely", "doubtful", "assumed")

SOURCES = frozenset(
    {
        "source",
        "sm_source",
        "type_source",
        "dropped_source",
        "adds_source",
        "numpy_source",
        "driver_source",
        "latest_source",
        "modules_source",
        "toolkits_source",
        "extra_source",
        "ptx_only_source",
    }
)
"""The keys whose values are keys of the file's own `sources`."""

MAY_BE_ABSENT = frozenset({"conflicts", "exceptions"})
"""The tables that a file may omit."""

TABLES: dict[str, TableKeys] = {
    "families": TableKeys(
        {"major": number, "min_driver": text, "min_driver_windows": text, "source": text}, {}
    ),
    "toolkits": TableKeys(
        {
            "cuda": text,
            "full": text,
            "update": number,
            "driver": _MAYBE_TEXT,
            "minor_version_compatibility": flag,
            "sm_targets": sms,
            "on_pypi": flag,
            "source": text,
            "sm_source": text,
        },
        {"confidence": _CONFIDENCE, "gcc_max": text, "released": text},
    ),
    "dropped": TableKeys({"in": text, "sm": sms, "generation": text, "source": text}, {}),
    "branches": TableKeys(
        {
            "branch": number,
            "max_cuda": text,
            "first_version": _MAYBE_TEXT,
            "type": maybe(one_of("LTS", "production", "new feature", "developer")),
            "end_of_life": _MAYBE_TEXT,
            "dropped_below": capability,
            "adds": _CHIPS,
            "source": text,
            "dropped_source": text,
        },
        {
            "type_source": text,
            "adds_source": text,
            "adds_confidence": _CONFIDENCE,
            "confidence": _CONFIDENCE,
            "note": text,
            "open_modules": one_of("optional", "required-from-blackwell", "only"),
            "modules_source": text,
            "latest_seen": text,
            "latest_date": text,
            "latest_source": text,
        },
    ),
    "forward_compat": TableKeys(
        {
            "package": text,
            "provides_cuda": text,
            "built_from_branch": number,
            "official_base_branches": maybe(_NUMBERS),
            "source": text,
        },
        {"accepted_base_branches": _NUMBERS, "confidence": _CONFIDENCE, "note": text},
    ),
    "highest_majors": TableKeys({"branch": number, "cuda_major": number, "source": text}, {}),
    "kernel_modules": TableKeys(
        {
            "from": capability,
            "open_modules": one_of("unsupported", "optional", "required"),
            "gpus": many(text, "names", empty=True),
            "source": text,
        },
        {},
    ),
    "gpus": TableKeys(
        {
            "name": text,
            "compute_capability": capability,
            "architecture": text,
            "kind": one_of("data-centre", "workstation", "geforce", "titan", "jetson", "dgx-spark"),
            "data_centre": flag,
            "forward_compat_eligible": maybe(flag),
            "memory_gb": _MAYBE_NUMBER,
            "memory_bandwidth_gbs": _MAYBE_QUANTITY,
            "tflops": rates,
            "nvlink": maybe(flag),
            "source": text,
        },
        {
            "confidence": _CONFIDENCE,
            "note": text,
            "figures_confidence": _CONFIDENCE,
            "aliases": many(text, "names"),
            "chip": text,
            "driver_from": text,
            "driver_source": text,
            "host_arch": _ARCH,
        },
    ),
    "binary_notes": TableKeys(
        {"compute_capability": capability, "proven": flag, "source": text}, {}
    ),
    "other_vendors": TableKeys({"vendor": text, "pattern": pattern, "source": text}, {}),
    "releases": TableKeys(
        {
            "version": text,
            "requires_python": _MAYBE_TEXT,
            "torchvision": _MAYBE_TEXT,
            "torchaudio": _MAYBE_TEXT,
            "upload_time": _MAYBE_TEXT,
            "yanked": flag,
            "numpy": _MAYBE_TEXT,
            "source": text,
        },
        {"numpy_source": text, "pairing_note": text},
    ),
    "builds": TableKeys(
        {
            "version": text,
            "tag": text,
            "cuda": _MAYBE_TEXT,
            "arch": _ARCH,
            "python_tags": _PYTHON_TAGS,
            "sm": maybe(sms, ()),
            "ptx": maybe(ptx),
            "cudnn": _MAYBE_TEXT,
            "nccl": _MAYBE_TEXT,
            "glibc": _MAYBE_TEXT,
            "existence": one_of("confirmed", "likely", "doubtful"),
            "at": many(one_of("pytorch", "pypi"), "pytorch, pypi"),
            "source": text,
        },
        {
            "sm_source": text,
            "sm_confidence": _CONFIDENCE,
            "python_confidence": _CONFIDENCE,
            "glibc_confidence": _CONFIDENCE,
            "pins": many(text, "requirements"),
            "size_min_bytes": number,
            "size_max_bytes": number,
            "note": text,
        },
    ),
    "debian_suites": TableKeys(
        {"suite": text, "release": text, "python": text, "glibc": text, "source": text}, {}
    ),
    "ubuntu_releases": TableKeys(
        {"release": text, "python": text, "glibc": text, "source": text}, {}
    ),
    "pythons": TableKeys({"python": text, "released": text, "source": text}, {}),
    "python_images": TableKeys(
        {"python": text, "suite": text, "source": text},
        {"confidence": _CONFIDENCE, "note": text},
    ),
    "compiler_wheels": TableKeys({"cuda": text, "requirement": text, "source": text}, {}),
    "tensorflow_releases": TableKeys(
        {
            "version": text,
            "cuda": _MAYBE_TEXT,
            "cudnn": _MAYBE_TEXT,
            "libraries": one_of("system", "extra"),
            "requires_python": _MAYBE_TEXT,
            "upload_time": _MAYBE_TEXT,
            "yanked": flag,
            "prerelease": flag,
            "sm": maybe(sms, ()),
            "ptx": maybe(ptx),
            "source": text,
        },
        {
            "sm_source": text,
            "sm_confidence": _CONFIDENCE,
            "ptx_only": text,
            "ptx_only_cuda": text,
            "ptx_only_source": text,
            "note": text,
        },
    ),
    "tensorflow_wheels": TableKeys(
        {
            "version": text,
            "arch": _ARCH,
            "gpu": flag,
            "python_tags": _PYTHON_TAGS,
            "glibc": text,
            "source": text,
        },
        {
            "size_max_bytes": number,
            "pins": many(text, "requirements"),
            "stands_for": many(text, "packages"),
            "extra_python_tags": many(text, "Python tags", empty=True),
            "extra_source": text,
            "confidence": _CONFIDENCE,
        },
    ),
    "tensorflow_gpu": TableKeys(
        {
            "version": text,
            "content": one_of("wheel", "stub"),
            "python_tags": many(text, "Python tags", empty=True),
            "source": text,
        },
        {},
    ),
    "jax_releases": TableKeys(
        {
            "version": text,
            "python_tags": _PYTHON_TAGS,
            "archs": _ARCHS,
            "glibc": text,
            "source": text,
        },
        {"upload_time": _MAYBE_TEXT, "note": text},
    ),
    "jax_plugins": TableKeys(
        {
            "version": text,
            "cuda_major": number,
            "package": text,
            "extra": text,
            "cuda_runtime": _MAYBE_TEXT,
            "cudnn": _MAYBE_TEXT,
            "nccl": _MAYBE_TEXT,
            "min_driver": text,
            "sm_min": capability,
            "source": text,
            "driver_source": text,
        },
        {
            "plugin_extra": text,
            "toolkits": text,
            "toolkits_source": text,
            "broken": text,
        },
    ),
    "cudnn": TableKeys(
        {
            "version": text,
            "cuda_major": number,
            "capabilities": _CAPABILITIES,
            "min_driver": text,
            "archs": _ARCHS,
            "upload_date": _MAYBE_TEXT,
            "yanked": flag,
            "source": text,
            "sm_source": text,
        },
        {"sm_confidence": _CONFIDENCE},
    ),
    "nccl": TableKeys(
        {
            "version": text,
            "cuda_major": number,
            "sm_min": capability,
            "archs": _ARCHS,
            "upload_date": _MAYBE_TEXT,
            "source": text,
        },
        {"sm_confidence": _CONFIDENCE},
    ),
    "images": TableKeys(
        {
            "tag": text,
            "archs": maybe(_ARCHS),
            "status": one_of("supported", "end-of-life", "seen", "inferred"),
            "source": text,
        },
        {"cudnn": text, "confidence": _CONFIDENCE},
    ),
    "start_rules": TableKeys(
        {
            "cuda": text,
            "os": many(text, "systems"),
            "min_cuda": text,
            "brands": brands,
            "eol": maybe(flag),
            "source": text,
        },
        {"confidence": _CONFIDENCE, "note": text},
    ),
    "conflicts": TableKeys({"what": text, "a": text, "b": text, "use": text, "source": text}, {}),
    "exceptions": TableKeys({"rule": text, "row": text, "reason": text, "source": text}, {}),
}
