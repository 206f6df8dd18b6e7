"""`provision clean`: removes all that provision has put on this machine, except itself."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from images.store.errors import in_units
from images.system.disk_use import disk_bytes
from images.system.ownership import another_owner
from provision.cli.commands.ls import image_json, image_table, images_here, skipped_json
from provision.cli.paths import image_home, record_home, state_directory
from provision.errors import Exit
from provision.output.console import Console
from provision.output.prompt import confirm
from provision.output.stdout import print_either
from provision.output.text import listed, row, table

if TYPE_CHECKING:
    from images.engines.listing import EngineImages
    from provision.verification.own_images import OwnImages

_CACHE = {
    "store-*": "wheels, blobs, memos",
    "roots": "unpacked images",
    "bases": "bases",
    "locks": "locks of builds and their documents",
    "logs": "logs of builds",
    "wheels": "built wheels",
    "gpu-provision-run-*": "leftovers",
}
_DATA = {
    "images": "images",
    ".images-*": "leftovers",
    "wheels": "built wheels",
    "catalog.json": "catalog",
    ".catalog-*": "leftovers",
}
_STATE = {
    "records": "records of tests",
    "gate": "records of the gate",
    "builds": "verdicts of builds",
    "keys": "your signing key",
    "mended": "journals of doctor --fix, which --undo needs",
}
_UNKNOWN = "gpu-provision did not make it"
_BUSY = "a build or a test is running"
_BASES = "gpu-provision/base"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPart:
    """A file or a directory that provision keeps; `size`: bytes on disk."""

    kind: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRest:
    """What is in an engine beside images: a base that a build loaded, a container of a test whose
    process was killed.
    """

    where: str
    kind: str
    name: str
    remove: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class Cleaning:
    """What was removed, and what was kept and why."""

    images: list[dict[str, Any]] = field(default_factory=list)
    parts: list[DiskPart] = field(default_factory=list)
    rest: list[EngineRest] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    freed: int = 0


EXAMPLES = ("provision clean",)


def options(verb: argparse.ArgumentParser) -> None:
    """Whether it asks."""
    verb.add_argument("--yes", action="store_true", help="remove everything without asking")


def run(args: argparse.Namespace, console: Console) -> int:
    """Show what would be removed, ask, remove it."""
    from provision.lock.uv import uv_cache

    found = images_here(console)
    parts, rest = parts_here(), list(_rest(found.engines))
    done = Cleaning()
    if found.images or parts or rest:
        _show(found, parts, rest, console)
        if confirm("Remove all of this?", yes=args.yes, command="provision clean --yes"):
            done = clean(found, parts, rest)
    else:
        _remove_empty_homes()
    if (cache := uv_cache(os.environ)).is_dir():
        console.note(f"{cache} is uv's own cache, which other programs may use: uv cache clean")
    print_either(args.json, _to_json(done, found), lambda: describe_cleaning(done))
    return Exit.DONE


def parts_here() -> list[DiskPart]:
    """All that provision keeps on this disk, by the names that it uses."""
    return [
        DiskPart(kind=kind, path=path, size=disk_bytes(path))
        for home, kinds in _homes()
        for name, kind in kinds.items()
        for path in sorted(home.glob(name))
    ]


def _homes() -> tuple[tuple[Path, dict[str, str]], ...]:
    return (
        (image_home().parent, _DATA),
        (state_directory(), _CACHE),
        (record_home(), _STATE),
    )


def _rest(engines: Sequence[EngineImages]) -> Iterator[EngineRest]:
    from provision.verification.own_images import is_base

    for engine in engines:
        with contextlib.suppress(Failure):
            for box in engine.leftovers():
                remove = partial(engine.remove_container, box.name)
                yield EngineRest(where=engine.name, kind="container", name=box.name, remove=remove)
            for base in engine.loaded(_BASES):
                for name in base.names if is_base(base.history) and not base.containers else ():
                    remove = partial(engine.remove, name)
                    yield EngineRest(where=engine.name, kind="base", name=name, remove=remove)


def _show(
    found: OwnImages, parts: Sequence[DiskPart], rest: Sequence[EngineRest], console: Console
) -> None:
    lines = image_table(found.images, time.time())
    lines += table([(one.where, one.kind, one.name) for one in rest]) if rest else []
    lines += (
        table([(one.kind, in_units(one.size), str(one.path)) for one in parts]) if parts else []
    )
    lines += [f"  on this disk: {in_units(sum(one.size for one in parts))}"]
    for line in lines:
        console.say(line)


def clean(found: OwnImages, parts: Sequence[DiskPart], rest: Sequence[EngineRest]) -> Cleaning:
    """Remove all that nothing uses."""
    from images.store.locks import PRESENCE, alone
    from images.system.scratch import remove_leftovers
    from provision.verification.own_images import remove_images

    done = Cleaning()
    before = sum(disk_bytes(home) for home, _ in _homes())
    with alone(state_directory()) as is_alone:
        # without builds, the tags of runs belong to processes that were killed
        chosen = [(one, (*one.names, *(one.run_tags if is_alone else ()))) for one in found.images]
        chosen = [pair for pair in chosen if pair[1] or is_alone]
        paths = {"images": image_home(), "roots": state_directory() / "roots"}
        removal = remove_images(chosen, found, **paths, home=record_home())
        done.images = [image_json(one) for one in removal.removed]
        done.kept = [(f"{one.title} ({one.where})", why) for one, why in removal.kept]
        for one in rest if is_alone else ():
            if why := _refused(one):
                done.kept.append((f"{one.name} ({one.where})", why))
            else:
                done.rest.append(one)
        for part in parts:
            if why := _remove_part(part, is_alone=is_alone):
                done.kept.append((str(part.path), why))
            else:
                done.parts.append(part)
        if is_alone:
            (state_directory() / PRESENCE).unlink(missing_ok=True)
    for home, _ in _homes():
        done.kept += [(str(path), _UNKNOWN) for path in _unknown_files(home, done)]
    _remove_empty_homes()
    done.freed = max(0, before - sum(disk_bytes(home) for home, _ in _homes()))
    import tempfile

    remove_leftovers(Path(tempfile.gettempdir()))
    return done


def _refused(one: EngineRest) -> str:
    """Remove it; returns why the engine does not, or ""."""
    try:
        one.remove()
    except Failure as failure:
        return failure.message
    return ""


def _remove_part(part: DiskPart, *, is_alone: bool) -> str:
    """Remove a part; returns why it is kept, or "" if it is gone."""
    if not os.path.lexists(part.path):
        return ""
    if part.path.is_symlink():
        return f"it is a link, to {part.path.readlink()}"
    if another := another_owner(part.path, part.path.lstat()):
        return another
    try:
        if part.path == image_home():
            return _remove_layout(part.path)
        if part.path == state_directory() / "roots":
            return _remove_roots(part.path)
        if not is_alone:
            return _BUSY
        if part.kind == _CACHE["store-*"] and (why := _empty_store(part.path)):
            return why
        shutil.rmtree(part.path) if part.path.is_dir() else part.path.unlink()
    except Failure as failure:
        return failure.message
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    return ""


def _remove_layout(path: Path) -> str:
    """Remove a layout without images; those that are left are in use, or another tool's."""
    from images.oci.layout import LayoutTarget
    from images.oci.layout_reader import names_in

    if names := names_in(path):
        return f"it has {', '.join(names[:3])}"
    layout = LayoutTarget.open(path)
    busy = layout.prune().busy
    layout.close_and_remove_if_empty()
    return _BUSY if busy else "it has files of another program" if path.exists() else ""


def _remove_roots(path: Path) -> str:
    from images.engines.sandbox.roots import Roots

    roots = Roots(path)
    roots.clear()
    if roots.entries():
        return "a process uses an unpacked image"
    shutil.rmtree(path)
    return ""


def _empty_store(path: Path) -> str:
    """Remove from a store what nothing uses; returns why its directory cannot go, too."""
    from images.store.entries import store_directory, unknown_files
    from images.store.store import Store

    if path != store_directory(path.parent):  # of another version
        return ""
    with Store.open(path.parent) as store:
        left = store.gc(everything=True)
    if left.in_use:
        return _BUSY
    foreign = unknown_files(path)
    return f"{foreign[0]} was not made by gpu-provision" if foreign else ""


def _unknown_files(home: Path, done: Cleaning) -> list[Path]:
    """What is left in a directory of ours and was not kept for a reason."""
    named = {name for name, _ in done.kept}
    left = sorted(home.iterdir()) if home.is_dir() else []
    return [path for path in left if str(path) not in named and path.name != ".in-use"]


def _remove_empty_homes() -> None:
    """Remove our directories, and those of the user's home that may have been made for them."""
    own = Path(os.environ.get("HOME") or "/")
    for home, _ in _homes():
        for place in (home, *home.parents):
            if place == own or (place != home and own not in place.parents):
                break
            if place.is_dir():
                try:
                    place.rmdir()
                except OSError:  # it is not empty
                    break


def describe_cleaning(done: Cleaning) -> str:
    """What was removed and what was kept, for people."""
    if not (done.images or done.parts or done.rest or done.kept):
        return "nothing was removed"
    removed = [f"{', '.join(one['names']) or one['id']} ({one['where']})" for one in done.images]
    removed += [f"{one.name} ({one.where})" for one in done.rest]
    removed += list(dict.fromkeys(one.kind for one in done.parts))
    lines = listed("removed", removed) + row("freed", f"{in_units(done.freed)} on this disk")
    return "\n".join(lines + listed("kept", [f"{what}: {why}" for what, why in done.kept]))


def _to_json(done: Cleaning, found: OwnImages) -> dict[str, Any]:
    return {
        "schema": 1,
        "images": done.images,
        "engines": [{"where": o.where, "kind": o.kind, "name": o.name} for o in done.rest],
        "parts": [
            {"kind": one.kind, "path": str(one.path), "bytes": one.size} for one in done.parts
        ],
        "kept": [{"what": what, "why": why} for what, why in done.kept],
        "freed_bytes": done.freed,
        "skipped": skipped_json(found),
        "error": None,
    }
