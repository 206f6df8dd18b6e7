"""NVIDIA's download server in small: directories and manifests of the shape that it has.

The shape follows NVIDIA's own below https://developer.download.nvidia.com/compute/: the directory
pages of nvidia-driver and cuda; redistrib_610.57.04, 615.71.09 (which has no cuda_compat)
and 620.70.06.json of the driver; redistrib_13.3.1, 13.4.2 and 13.5.0.json of CUDA.
Dates, versions and CUDAs of those are theirs; hashes and sizes are
made up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

LINUX = ("linux-x86_64", "linux-sbsa")
Pages = dict[str, tuple[str, bytes]]


def component(
    name: str,
    version: str,
    *,
    platforms: Sequence[str] = LINUX,
    cudas: Sequence[str] = (),
    **changes: Any,
) -> dict[str, Any]:
    """One component; with `cudas` each platform has an archive a CUDA."""
    entry: dict[str, Any] = {
        "name": name.replace("_", " "),
        "license": "NVIDIA Driver",
        "license_path": f"{name}/LICENSE.txt",
        "version": version,
    }
    for platform in platforms:
        archives = {
            f"cuda{cuda}" if cuda else "": {
                "relative_path": f"{name}/{platform}/{name}-{platform}-{version}"
                f"{f'_cuda{cuda}' if cuda else ''}-archive.tar.xz",
                "sha256": "0" * 64,
                "md5": "0" * 32,
                "size": "4096",
            }
            for cuda in (cudas or [""])
        }
        entry[platform] = archives if cudas else archives[""]
    if cudas:
        entry["cuda_variant"] = list(cudas)
    return {**entry, **changes}


def manifest(product: str, label: str, date: object, **components: object) -> bytes:
    """One redistrib_<label>.json; a component or a date that is None is left out."""
    raw = {"release_date": date, "release_label": label, "release_product": product, **components}
    return json.dumps({k: v for k, v in raw.items() if v is not None}, indent=4).encode()


def driver(label: str, date: object, cuda: str | None = None, **changes: object) -> bytes:
    """A driver's manifest; `cuda` is what its cuda_compat is for."""
    compat = component("cuda_compat", label, cudas=[cuda]) if cuda else None
    parts: dict[str, object] = {
        "nvidia_driver": component("nvidia_driver", label),
        "cuda_compat": compat,
        "driver_assistant": component(
            "driver_assistant", f"0.68.{label.partition('.')[2]}", platforms=["linux-all"]
        ),
        "fabricmanager": component("fabricmanager", label),
        "libnvidia_nscq": component("libnvidia_nscq", label, platforms=["linux-x86_64"]),
    }
    return manifest("nvidia-driver", label, date, **{**parts, **changes})


def cuda(label: str, date: object, shipped: str | None = None, **changes: object) -> bytes:
    """A toolkit's manifest; `shipped` is the driver in it, which it has had up to 13.3."""
    minor = ".".join(label.split(".")[:2])
    parts: dict[str, object] = {
        "cccl": component("cccl", "13.3.5.0.6"),
        "cuda_compat": component("cuda_compat", shipped, cudas=[minor]) if shipped else None,
        "cuda_compat_orin": component("cuda_compat_orin", "13.4.47145772", platforms=LINUX[1:]),
        "cuda_nvcc": component("cuda_nvcc", "13.5.37"),
        "nvidia_driver": component("nvidia_driver", shipped) if shipped else None,
    }
    return manifest("cuda", label, date, **{**parts, **changes})


def directory(
    product: str, manifests: Mapping[str, bytes | None], *, links: Sequence[str] = ()
) -> Pages:
    """A product's directory with its manifests; None is listed and not there.

    `links` stand on the page among the others.
    """
    base = f"/compute/{product}/redist/"
    names = ["..", "cuda_nvcc/", *links]
    names += [f"redistrib_{label}.json" for label in manifests]
    anchors = "\n".join(
        f"<a href='{name}'>{name}</a>  <span>4.0KB</span> <span>2026-11-04 15:25</span>"
        for name in names
    )
    title = f"<title>Index of {base}</title>"
    page = f"<!DOCTYPE html>\n<html><head>{title}</head><body>\n{anchors}\n</body></html>"
    files = {
        f"{base}redistrib_{label}.json": ("application/json", body)
        for label, body in manifests.items()
        if body is not None
    }
    return {base: ("text/html", page.encode()), **files}
