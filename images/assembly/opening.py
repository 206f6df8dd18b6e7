"""Opens an image by the name that a user gives: a path on this disk, an engine's or a registry's.

    oci:DIR[:NAME]                a layout; also a directory that is one
    oci-archive:FILE[:NAME]       a tar of a layout; also a .tar file
    docker-archive:FILE[:NAME]    written by `docker save`; also a .tar file
    docker-daemon:IMAGE           an image of the engine
    docker://IMAGE                an image of a registry
    IMAGE                         the engine's, if it has it, else the registry's

The prefixes are skopeo's. A path ends at the first colon, unless the whole text is a path that
exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from images.assembly.base import BlobStore, OfflineRepository, registry_image
from images.net.retries import Retries
from images.oci.archive_reader import open_archive
from images.oci.errors import ImagePlaceError
from images.oci.layout_reader import MARK_FILE, open_layout
from images.oci.model import Platform
from images.oci.sources import Image
from images.text.suggestions import no_such, or_nearby

if TYPE_CHECKING:
    from images.registry.mirrors import Mirrors

_PREFIXES: dict[str, Literal["layout", "archive"]] = {
    "oci": "layout",
    "oci-archive": "archive",
    "docker-archive": "archive",
}
_KINDS = {"layout": "directory", "archive": "file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLocation:
    """Where an image is: `path` and `name` of a layout or an archive, else only `name`."""

    kind: Literal["layout", "archive", "engine", "registry", "any"]
    path: Path | None = None
    name: str | None = None


def parse_place(text: str) -> ImageLocation:
    """Parse the name that a user gives an image. ImagePlaceError: it is malformed."""
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _PREFIXES:
        if not rest:
            raise ImagePlaceError(f"{text!r} names no path.", fix=f"Write it as {prefix}:PATH")
        path, name = _split(rest)
        return ImageLocation(kind=_PREFIXES[prefix], path=path, name=name)
    if colon and prefix == "docker-daemon" and rest:
        return ImageLocation(kind="engine", name=rest)
    if text.startswith("docker://") and len(text) > len("docker://"):
        return ImageLocation(kind="registry", name=text.removeprefix("docker://"))
    if text.startswith(("/", "./", "../", "~/")) or _is_image_path(text):
        path, name = _split(text)
        is_layout = os.path.isdir(path)  # noqa: PTH112
        return ImageLocation(kind="layout" if is_layout else "archive", path=path, name=name)
    if re.fullmatch(r"sha256:[0-9a-f]{12,64}", text):
        return ImageLocation(kind="engine", name=text)
    if not text or text != text.strip():
        raise ImagePlaceError(f"{text!r} names no image.", fix="Name one: debian:12-slim, oci:DIR")
    return ImageLocation(kind="any", name=text)


def _split(text: str) -> tuple[Path, str | None]:
    """Split PATH[:NAME] at the first colon, unless the whole text is a path that exists."""
    # Path.exists raises if the name is too long
    if not os.path.exists(Path(text).expanduser()):  # noqa: PTH110
        path, colon, name = text.partition(":")
        if colon:
            return Path(path).expanduser(), name or None
    return Path(text).expanduser(), None


def _is_image_path(text: str) -> bool:
    try:
        path, _ = _split(text)
        return (path / MARK_FILE).is_file() or (path.suffix == ".tar" and path.is_file())
    except (OSError, ValueError):  # too long, or with a zero byte: not a path
        return False


def open_image(
    text: str,
    *,
    platform: Platform | None = None,
    store: BlobStore | None = None,
    ca_bundle: Path | None = None,
    mirrors: Mirrors | None = None,
    engine_save: Callable[[str], Path | None] | None = None,
    offline: bool = False,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Image:
    """Open an image wherever it is.

    `platform`: the wanted one; None: the only one that the image has. `engine_save` returns the
    file that `docker save` writes for an engine's image, or None if the engine has no such image.
    `on_wait` gets the reason for each retry of a registry. ImagePlaceError: no image there; each
    kind of place raises its own errors, too.
    """
    place = parse_place(text)
    if place.path is not None:
        return open_path(place, platform)
    name = place.name or ""
    if place.kind in {"any", "engine"} and engine_save is not None:
        saved = engine_save(name)
        if saved is not None:
            return replace(open_archive(saved, None, platform), shown=text)
    if place.kind == "engine":
        why = "has no such image" if engine_save is not None else "is not there to be asked"
        raise ImagePlaceError(
            f"{text} is an engine's image, but the engine {why}.",
            fix="See what it has: docker image ls; or name another place, such as oci:DIR",
        )
    return open_registry(
        name,
        platform=platform,
        store=store,
        ca_bundle=ca_bundle,
        mirrors=mirrors,
        offline=offline,
        on_wait=on_wait,
    )


def open_path(place: ImageLocation, platform: Platform | None) -> Image:
    """Open a layout or an archive."""
    path = check_path(place)
    return (open_layout if path.is_dir() else open_archive)(path, place.name, platform)


def check_path(place: ImageLocation) -> Path:
    """The path of a layout or an archive. ImagePlaceError: it is missing, or of the other kind."""
    path = place.path
    assert path is not None
    if not os.path.exists(path):  # noqa: PTH110
        raise ImagePlaceError(
            no_such(_KINDS[place.kind], path),
            fix=or_nearby(path, "Name a directory (OCI layout) or a .tar archive with an image."),
        )
    is_directory = path.is_dir()
    if is_directory is (place.kind == "archive"):
        right = "oci:" if is_directory else "oci-archive:"
        raise ImagePlaceError(
            f"{path} is {'a directory' if is_directory else 'a file'}.", fix=f"Write: {right}{path}"
        )
    return path


def open_registry(
    name: str,
    *,
    platform: Platform | None,
    store: BlobStore | None,
    ca_bundle: Path | None = None,
    mirrors: Mirrors | None = None,
    offline: bool = False,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Image:
    """Open an image of a registry; a store keeps the parts that are read."""
    from images.oci.reference import parse_reference
    from images.registry.reader import RepositoryReader

    reference = parse_reference(name)
    if offline:
        return registry_image(OfflineRepository(reference), platform, store)
    # closed only when garbage-collected: the image's layers may be read at any later time
    reader = RepositoryReader.open(
        reference, ca_bundle=ca_bundle, mirrors=mirrors, retries=Retries(on_wait=on_wait)
    )
    return registry_image(reader, platform, store)
