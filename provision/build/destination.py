"""Chooses the destination and the builder of an image, from the options and the available engine.

No engine is used to make an image for a file or a registry, since that only needs copying. For an
engine of this machine BuildKit stays first: loading a whole image costs an engine more than
building it (bench/build_and_push.py measures both).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from images.engines.squashfs import ENDINGS
from images.errors import Failure
from images.oci.reference import parse_reference
from provision.errors import BadInputError, Exit
from provision.model.request import quoted

Kind = Literal["engine", "local", "layout", "archive", "squashfs", "registry"]
Builder = Literal["docker", "oci"]
Compression = Literal["gzip", "zstd"]
Lazy = Literal["zstd", "gzip"]
"""The compression of a layer that nodes start before they have pulled it."""

_PREFIXES: dict[str, Kind] = {
    "oci": "layout",
    "oci-archive": "archive",
    "squashfs": "squashfs",
}

_NOT_BY_ENGINE: dict[Kind, str] = {"layout": "an OCI layout", "squashfs": "a squashfs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """`where`: the path, or the reference in a registry; empty for the engine and for this user's
    own layout ("local").
    """

    kind: Kind
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The builder, the destination, and the reason."""

    builder: Builder
    destination: Destination
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Whether an engine answers, and why it does not build (None: it does, or was not queried)."""

    answers: bool = False
    problem: str | None = None


class NeedsEngineError(Failure):
    """The base needs something installed, which only an engine can run."""

    code = "needs-engine"
    exit_code = Exit.UNREACHABLE


def read_destination(output: str | None, push: str | None) -> Destination | None:
    """The destination from --output and --push; None: neither is given. BadInputError: both, or an
    invalid name.
    """
    if output is not None and push is not None:
        raise BadInputError(
            "--output and --push cannot be used together.",
            fix="Remove one of them; a pushed image can be copied: "
            "skopeo copy docker://REF oci:DIR",
        )
    if push is not None:
        return Destination(kind="registry", where=_pushable(push))
    if output is None:
        return None
    prefix, colon, rest = output.partition(":")
    kind = _kind_of(output)
    if colon and prefix in _PREFIXES:  # skopeo's words, and one of ours
        kind, output = _PREFIXES[prefix], rest
    if not output or "\0" in output:
        raise BadInputError(
            "--output needs a file or a directory.",
            fix="For example: --output image.tar, --output image.sqfs, or --output DIR for an OCI "
            "layout",
        )
    return Destination(kind=kind, where=output)


def _kind_of(output: str) -> Kind:
    if output.endswith(".tar"):
        return "archive"
    return "squashfs" if output.endswith(ENDINGS) else "layout"


def check_writer(destination: Destination | None) -> None:
    """Fail if this host has no program that writes this destination, before any work for it.
    ToolMissing: a squashfs needs one.
    """
    if destination is not None and destination.kind == "squashfs":
        from images.engines.squashfs.write import find_tool

        find_tool()


def _pushable(text: str) -> str:
    reference = parse_reference(text)
    if reference.digest is not None:
        raise BadInputError(
            f"--push {quoted(text)} names a digest, which only the build determines.",
            fix="Name a tag: --push registry.example/team/torch:cu117",
        )
    return str(reference)


def choose(
    asked: str,
    destination: Destination | None,
    *,
    engine: EngineState,
    needs_engine: str | None,
) -> Choice:
    """The builder. `needs_engine`: why this image cannot be made without an engine (None:
    it can).
    """
    here = Destination(kind="engine" if engine.answers else "local")
    if asked == "docker":
        return _by_engine(destination, "--builder docker")
    if asked == "oci":
        if needs_engine:
            raise NeedsEngineError(
                f"--builder oci runs nothing, and {needs_engine}.",
                fix="Use --builder docker, or a base that has it: --base bootstrap",
            )
        return Choice(builder="oci", destination=destination or here, why="--builder oci")
    if needs_engine:
        return _by_engine(destination, needs_engine)
    if destination is not None:
        places = {"registry": "a registry", "archive": "a file", "squashfs": "a file"}
        places["layout"] = "a directory"
        why = f"{places[destination.kind]} needs no engine"
        return Choice(builder="oci", destination=destination, why=why)
    if engine.problem:
        return Choice(builder="oci", destination=here, why=engine.problem.rstrip("."))
    return _by_engine(
        None, "an engine is available, and loading an image takes it longer than building"
    )


def _by_engine(destination: Destination | None, why: str) -> Choice:
    if destination is not None and destination.kind in _NOT_BY_ENGINE:
        raise BadInputError(
            f"An engine cannot write {_NOT_BY_ENGINE[destination.kind]} ({why}).",
            fix=f"Name a file instead: --output {Path(destination.where).stem or 'image'}.tar",
        )
    return Choice(builder="docker", destination=destination or Destination(kind="engine"), why=why)
