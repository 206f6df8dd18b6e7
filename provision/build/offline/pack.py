"""Packs an offline bundle: everything that a lock needs, from the store or downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from images.assembly.opening import open_image
from images.errors import refuse_full
from images.oci.model import platform_of
from images.store.fetch import Fetcher
from images.store.store import Store
from images.wheels.remote_file import Wheel
from provision.build.base import BuildSettings, PinnedBase
from provision.build.builder import needs_engine
from provision.build.maker import LockedImage
from provision.build.offline.bundlefile import BundledFile, OnBytes, PackedPart, write_bundle
from provision.build.offline.errors import NotPackableError
from provision.build.offline.tool import PackedTool, tool_files, tool_wheels
from provision.build.pipeline import gigabytes, secrets_for
from provision.catalog.data_files import DATA
from provision.catalog.overlay import OverlayError, overlay_path, read_overlay
from provision.errors import BadInputError
from provision.model.plan import Plan, Request
from provision.output.console import Console
from provision.verification.suite import suite_directory

LOCK = "pylock.toml"
IMAGE = "base/image.tar"
BLOBS = "base/blobs/sha256"
WHEELS = "wheels"
CATALOG = "catalog"
COPY = f"{CATALOG}/copy.json"
SUITE = "suite"
TOOL = "gpu-provision"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBundle:
    """A bundle that was written."""

    path: Path
    size: int
    sha256: str
    files: tuple[BundledFile, ...]
    tool: PackedTool | None


def pack(
    image: LockedImage,
    *,
    output: Path,
    request: Request,
    settings: BuildSettings,
    store_limit: int | None,
    with_tool: bool,
    console: Console,
) -> PackedBundle:
    """Collect everything and write the bundle. NotPackableError: see `refuse_unpackable`.
    DiskFullError, BadInputError: it cannot be written there.
    """
    lock, base = image.lock, image.base
    refuse_unpackable(lock.plan)
    wheels = {f"{WHEELS}/{wheel_name(wheel)}": wheel for wheel in lock.wheels}
    tool = None
    with Store.open(settings.state, limit_bytes=store_limit, on_note=console.note) as store:
        with (
            console.step("collect", f"{len(wheels)} wheels, the base, the suite and the catalog"),
            console.transfer() as progress,
            Fetcher(
                store,
                secrets=secrets_for(lock, request, settings),
                offline=settings.offline,
                on_bytes=progress.fetched,
                on_note=console.note,
            ) as fetcher,
        ):
            if with_tool:
                tool = tool_wheels(lock.plan, settings, console)
                wheels |= {f"{TOOL}/wheels/{wheel_name(wheel)}": wheel for wheel in tool.wheels}
            progress.will_fetch(sum(wheel.size or 0 for wheel in wheels.values()))
            fetcher.prefetch(wheels.values())
            parts = [_bytes(LOCK, lock.text.encode()), *_catalog(settings.env)]
            parts += _tree(suite_directory(), f"{SUITE}/{suite_directory().name}")
            parts += _base(lock.plan, base, store, settings, console)
            parts += [_at(path, fetcher.fetch(one), one.sha256) for path, one in wheels.items()]
        if tool is not None:
            parts += [
                _bytes(f"{TOOL}/{path}", content, program=path == "run")
                for path, content in tool_files().items()
            ]
        parts.sort(key=lambda part: (part.file.path != LOCK, part.file.path))
        with console.step("write", output.name), console.transfer() as progress:
            progress.will_copy(sum(part.file.size for part in parts))
            size, sha256 = _write(output, parts, progress.copied)
            console.result(f"{gigabytes(size)}, sha256:{sha256}")
    return PackedBundle(
        path=output,
        size=size,
        sha256=sha256,
        files=tuple(part.file for part in parts),
        tool=tool,
    )


def refuse_unpackable(plan: Plan) -> None:
    """Refuse what a build without a network could not use. NotPackableError: the base is a path on
    this machine, or needs something from apt-get.
    """
    base = plan.base
    if base is not None and base.kind == "local":
        raise NotPackableError(
            f"The base {base.reference} is a path on this machine, and bundles hold no such base.",
            fix="Push it to a registry and name it there: --base HOST/PATH:TAG; or use --base "
            "bootstrap",
        )
    if reason := needs_engine(plan):
        raise NotPackableError(
            f"A bundle is built without a network, and {reason}.",
            fix="Use another base: --base bootstrap",
        )


def wheel_name(wheel: Wheel) -> str:
    """The file name of a wheel, by which the store and pip know it."""
    return unquote(urlsplit(wheel.url).path.rpartition("/")[2])


def _write(output: Path, parts: list[PackedPart], on_bytes: OnBytes) -> tuple[int, str]:
    try:
        return write_bundle(output, parts, on_bytes)
    except OSError as error:
        refuse_full(error, f"--output {output}")
        raise BadInputError(
            f"--output {output} cannot be written: {error.strerror or error}.",
            fix="Name a file on another disk: --output /path/FILE",
        ) from error


def _catalog(env: Mapping[str, str]) -> Iterator[PackedPart]:
    """The tables of this installation, and what this user's `catalog refresh` learned."""
    for path in sorted(Path(DATA).glob("*.json")):
        yield _bytes(f"{CATALOG}/{path.name}", path.read_bytes())
    copy = overlay_path(env)
    with suppress(FileNotFoundError, OverlayError):  # a broken copy is left aside by `plan`, too
        content = copy.read_bytes()
        read_overlay(copy)
        yield _bytes(COPY, content)


def _tree(directory: Path, prefix: str) -> Iterator[PackedPart]:
    """A package's files, without byte code."""
    for path in sorted(directory.rglob("*.*")):
        inside = path.relative_to(directory)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if path.is_file() and path.suffix != ".pyc" and not hidden:
            yield _bytes(f"{prefix}/{inside.as_posix()}", path.read_bytes())


def _base(
    plan: Plan, base: PinnedBase, store: Store, settings: BuildSettings, console: Console
) -> Iterator[PackedPart]:
    """The archive of a base made here; of a registry's image all blobs, under their digests."""
    if base.archive is not None:
        yield _at(IMAGE, base.archive, _sha256(base.archive))
        return
    assert plan.base is not None
    image = open_image(
        base.reference,
        platform=platform_of(plan.arch or ""),
        store=store,
        ca_bundle=settings.ca,
        offline=settings.offline,
        on_wait=console.note,
    )
    for layer in image.layers:
        for _ in layer.stream():  # which brings it into the store
            pass
    digests = {image.digest, image.image_id, *(layer.blob.digest for layer in image.layers)}
    for digest in sorted(digests | {base.reference.rpartition("@")[2]}):
        path = store.blob(digest)
        if path is None:
            raise NotPackableError(
                f"{base.reference}: its part {digest} is not in the store.",
                fix="Name the base by a reference of its registry: --base HOST/PATH:TAG",
            )
        hexa = digest.removeprefix("sha256:")
        yield _at(f"{BLOBS}/{hexa}", path, hexa)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _bytes(path: str, content: bytes, *, program: bool = False) -> PackedPart:
    digest = hashlib.sha256(content).hexdigest()
    file = BundledFile(path=path, size=len(content), sha256=digest, program=program)
    return PackedPart(file=file, content=content)


def _at(path: str, place: Path, sha256: str) -> PackedPart:
    file = BundledFile(path=path, size=place.stat().st_size, sha256=sha256)
    return PackedPart(file=file, content=place)
