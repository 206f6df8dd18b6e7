"""Paths of this user's files, and of files named on the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from images.text.printable import printable
from provision.errors import BadInputError
from provision.model.request import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from images.oci.reference import Reference


def image_home() -> Path:
    """The layout of this user's own images: data, which only the user may delete."""
    from pathlib import Path

    base = Path(os.environ.get("XDG_DATA_HOME") or "")
    if not base.is_absolute():
        base = Path(os.environ.get("HOME") or "/") / ".local" / "share"
    return base / "gpu-provision" / "images"


def wheel_home() -> Path:
    """The wheels that this user has built from source: data, too."""
    return image_home().parent / "wheels"


def state_directory() -> Path:
    """Where bases, locks and bug reports are kept between runs."""
    from pathlib import Path

    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/") / ".cache"
    return Path(base) / "gpu-provision"


def record_home() -> Path:
    """Where records and their signing key are kept: not in a cache, which may be emptied."""
    from pathlib import Path

    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():  # the XDG specification requires such a value to be ignored
        base = Path(os.environ.get("HOME") or "/") / ".local" / "state"
    return base / "gpu-provision"


def mended_home() -> Path:
    """Where the journals of what --fix did are kept."""
    return record_home() / "mended"


def absolute_file(option: str, text: str) -> Path:
    """The absolute path of a file, since other processes have other working directories.
    BadInputError: it has no name.
    """
    from pathlib import Path

    if not text:
        raise BadInputError(f"{option} needs a file name.", fix=f"For example: {option} DIR/FILE")
    return Path(os.path.abspath(text))  # noqa: PTH100  links are not resolved


def read_reference(what: str, text: str) -> Reference:
    """The name of an image in a registry. BadInputError: it is too long."""
    from images.oci.reference import parse_reference

    if len(text) > 400:
        raise BadInputError(
            f"{what} {quoted(text)} is too long for the name of an image.",
            fix="Write it as REGISTRY/PATH:TAG, for example team/torch:cu117",
        )
    return parse_reference(text)


def existing_file(option: str, text: str) -> Path:
    """An input file; a missing one is reported before any work begins."""
    from images.text.suggestions import no_such, or_nearby

    path = absolute_file(option, text)
    if not path.exists():
        raise BadInputError(
            no_such("file", text, option=option),
            fix=or_nearby(text, f"Name a file: {option} DIR/FILE"),
        )
    return path


def today() -> str:
    """The date, as in rows of the catalog (UTC)."""
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).date().isoformat()


def output_folder(text: str) -> Path:
    """The directory of --output, made if it is not there. BadInputError: it cannot be."""
    from pathlib import Path

    folder = Path(text)
    shown = printable(text, limit=100)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(
            f"--output {shown} cannot be made: {error.strerror}.",
            fix="Name a directory that you may write to: --output DIR",
        ) from error
    return folder
