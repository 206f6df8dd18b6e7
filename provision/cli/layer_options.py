"""The options that say how layers are written."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from provision.errors import BadInputError
from provision.model.request import quoted

if TYPE_CHECKING:
    from provision.build.destination import Compression, Destination, Lazy

COMPRESSIONS: tuple[Compression, ...] = ("gzip", "zstd")
LAZY: tuple[Lazy, ...] = ("zstd", "gzip")


def layer_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    group.add_argument(
        "--bytecode",
        action="store_true",
        help="compile modules to .pyc for a faster start (oci builder)",
    )
    group.add_argument(
        "--exclude-unneeded",
        action="store_true",
        help="omit headers, static libraries and tests (oci builder)",
    )
    group.add_argument(
        "--compression",
        metavar="KIND",
        help="of layers: gzip (default), or zstd, which is smaller and unpacks faster, for Docker "
        "23.0, containerd 1.5, Podman and newer (with --output or --push)",
    )
    group.add_argument(
        "--cut",
        metavar="GPU[,GPU...]",
        help="keep only the code for these GPUs in the libraries; for your own use, see NVIDIA's "
        "licences (oci builder)",
    )
    group.add_argument(
        "--lazy",
        metavar="KIND",
        nargs="?",
        const="zstd",
        help="write an image that nodes start before they have pulled it: zstd "
        "(default: zstd:chunked) or gzip (--lazy=gzip: eStargz); with --push or --output DIR",
    )


def read_lazy(args: argparse.Namespace, destination: Destination | None) -> Lazy | None:
    """The format of --lazy; None: not given. BadInputError: it is unknown, or contradicts other
    options.
    """
    if args.lazy is None:
        return None
    kind: Lazy | None = next((one for one in LAZY if one == args.lazy), None)
    if kind is None:
        raise BadInputError(
            f"Unknown --lazy {quoted(args.lazy)}.",
            fix=f"Use {' or '.join(f'--lazy={one}' for one in LAZY)}.",
        )
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
    """The compression of layers. BadInputError: it is unknown, or an engine would write them."""
    asked = args.compression or "gzip"
    kind: Compression | None = next((one for one in COMPRESSIONS if one == asked), None)
    if kind is None:
        raise BadInputError(
            f"Unknown --compression {quoted(args.compression)}.",
            fix=f"Use {' or '.join(COMPRESSIONS)}.",
        )
    if kind == "zstd" and (args.builder == "docker" or not (args.output or args.push)):
        raise BadInputError(
            "--compression zstd is for images that are written without an engine.",
            fix="Add --push REF or --output PATH, and remove --builder docker.",
        )
    return kind
