"""How layers are written: their compression, what is left out of them, and for which GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.hosts import gpu_names, what_if_gpu
from provision.cli.option import option
from provision.errors import BadInputError
from provision.lock.labels import TARGET, targets_of
from provision.model.plan import ComputeCapability, Gpu, HostFacts

if TYPE_CHECKING:
    from provision.build.destination import Compression, Destination, Lazy
    from provision.catalog.catalog import Catalog


def layer_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    option(
        group,
        "--bytecode",
        None,
        "compile modules to .pyc for a faster start (oci builder)",
        rare=True,
    )
    option(
        group,
        "--exclude-unneeded",
        None,
        "omit headers, static libraries and tests (oci builder)",
        rare=True,
    )
    option(
        group,
        "--compression",
        "KIND",
        "of layers: gzip (default), or zstd, which is smaller and unpacks faster, for Docker "
        "23.0, containerd 1.5, Podman and newer (with --output or --push)",
        choices=("gzip", "zstd"),
        rare=True,
    )
    option(
        group,
        "--cut",
        "GPU[,GPU...]",
        "keep only the code for these GPUs in the libraries; for your own use, see NVIDIA's "
        "licences (oci builder)",
        rare=True,
        complete=gpu_names,
    )
    option(
        group,
        "--lazy",
        "KIND",
        "write an image that nodes start before they have pulled it: zstd "
        "(default: zstd:chunked) or gzip (--lazy=gzip: eStargz); with --push or --output DIR",
        choices=("zstd", "gzip"),
        nargs="?",
        const="zstd",
        rare=True,
    )


def read_lazy(args: argparse.Namespace, destination: Destination | None) -> Lazy | None:
    """The format of --lazy; None: not given. BadInputError: it contradicts other options."""
    if args.lazy is None:
        return None
    kind: Lazy = args.lazy
    if args.compression is not None:
        raise BadInputError(
            "--lazy and --compression both decide how layers are compressed.",
            fix=f"Remove --compression {args.compression}; --lazy=gzip is for engines without "
            "zstd.",
        )
    if args.builder == "docker" or destination is None:
        raise BadInputError(
            "--lazy is for images that are written without an engine.",
            fix="Add --push REF or --output DIR, and remove --builder docker.",
        )
    if destination.kind not in {"registry", "layout"}:
        raise BadInputError(
            "Nodes start a lazy image from a registry; --output names a single file.",
            fix="Use --push REF, or --output DIR for an OCI layout to copy to a registry.",
        )
    return kind


def read_compression(args: argparse.Namespace) -> Compression:
    """The compression of layers. BadInputError: an engine would write them."""
    kind: Compression = args.compression or "gzip"
    if kind == "zstd" and (args.builder == "docker" or not (args.output or args.push)):
        raise BadInputError(
            "--compression zstd is for images that are written without an engine.",
            fix="Add --push REF or --output PATH, and remove --builder docker.",
        )
    return kind


def read_cut(text: str | None, catalog: Catalog, builder: str = "auto") -> tuple[Gpu, ...]:
    """The GPUs of --cut: names of the catalog, or "sm_86" or "8.6"; (): the option is not given.
    BadInputError: one is not known, or the builder does not cut.
    """
    if text is None:
        return ()
    if builder == "docker":
        raise BadInputError(
            "An engine installs packages as they are; --cut changes their libraries.",
            fix="Use --builder oci.",
        )
    found = tuple(_gpu(word.strip(), catalog) for word in text.split(",") if word.strip())
    if not found:
        raise BadInputError("--cut names no GPU.", fix="For example: --cut A40, or --cut sm_86")
    return found


def _gpu(word: str, catalog: Catalog) -> Gpu:
    if match := TARGET.fullmatch(word):
        return Gpu(compute_capability=(int(match[1]), int(match[2])))
    return what_if_gpu(word, catalog, "--cut")


def capabilities(gpus: Sequence[Gpu]) -> tuple[ComputeCapability, ...]:
    """Their compute capabilities, ascending, each once."""
    return tuple(sorted({gpu.compute_capability for gpu in gpus if gpu.compute_capability}))


def planned_for(hosts: Sequence[HostFacts], cut: Sequence[Gpu]) -> tuple[HostFacts, ...]:
    """The hosts that an image with code for the GPUs of --cut is for: the same, with these GPUs."""
    if not cut:
        return tuple(hosts)
    gpus = tuple(cut)
    return tuple(
        facts._replace(
            gpus=gpus, sources=tuple(pair for pair in facts.sources if pair[0] != "gpus")
        )
        for facts in hosts
    )


def refuse_contradiction(named: Sequence[Gpu], cut: Sequence[Gpu]) -> None:
    """Refuse a GPU of --gpu whose code --cut would remove. BadInputError: there is one."""
    kept = capabilities(cut)
    for gpu in named:
        if cut and gpu.compute_capability not in kept:
            (target,) = targets_of([gpu.compute_capability or (0, 0)])
            raise BadInputError(
                f"--gpu asks for an image for {gpu.name or target}, and --cut removes its code.",
                fix=f"Name it in both: --cut {','.join([*targets_of(kept), target])}",
            )
