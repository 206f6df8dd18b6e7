"""`provision rm`: removes images of this machine that provision built."""

from __future__ import annotations

import argparse
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from images.store.errors import in_units
from provision.cli.commands.ls import image_json, image_table, images_here, skipped_json
from provision.cli.paths import image_home, record_home, state_directory
from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.prompt import confirm
from provision.output.stdout import print_either
from provision.output.text import listed, row

if TYPE_CHECKING:
    from provision.verification.own_images import OwnImage, OwnImages, Removal


EXAMPLES = ("provision rm gpu-provision:pytorch2.0.1-cu117",)


class NotOurImageError(BadInputError):
    """No image of this name on this machine was built by provision."""

    code = "not-our-image"


class ImageInUseError(Failure):
    """An image was not removed because something uses it."""

    code = "image-in-use"
    exit_code = Exit.UNREACHABLE


def options(verb: argparse.ArgumentParser) -> None:
    """Which images."""
    verb.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="name of an image that provision ls shows, or the beginning of its ID",
    )
    verb.add_argument("--yes", action="store_true", help="remove them without asking")


def run(args: argparse.Namespace, console: Console) -> int:
    """Show what would be removed, ask, remove it."""
    from provision.verification.own_images import remove_images, used_by

    found = images_here(console)
    chosen = [pair for text in args.images for pair in choose(text, found)]
    chosen = [pair for i, pair in enumerate(chosen) if pair not in chosen[:i]]
    shown = [replace(one, names=names) for one, names in chosen]
    for line in image_table(shown, time.time()):
        console.say(line)
    for one, _ in chosen:
        if one.users:
            console.say(f"  kept: {one.title}: {used_by(one)}")
    free = sum(not one.users for one, _ in chosen)
    command = shlex.join(["provision", "rm", "--yes", *args.images])
    question = f"Remove {free} image{'' if free == 1 else 's'}?"
    if free and not confirm(question, yes=args.yes, command=command):
        chosen = []
    done = remove_images(
        chosen,
        found,
        images=image_home(),
        roots=state_directory() / "roots",
        home=record_home(),
    )
    failure = in_use(done)
    print_either(args.json, removal_json(done, found, failure), lambda: describe_removal(done))
    if failure is not None:
        console.fail(failure.message, failure.fix)
    return Exit.DONE if failure is None else failure.exit_code


def choose(text: str, found: OwnImages) -> list[tuple[OwnImage, tuple[str, ...]]]:
    """The images that a user names, each with the names to remove: an image that is named by its ID
    loses all. NotOurImageError: there is none.
    """
    from images.assembly.opening import parse_place

    place = parse_place(text)
    name, known = place.name or text, found.images
    if place.path is not None:
        if place.path.absolute() != image_home().absolute() or place.name is None:
            raise NotOurImageError(
                f"{quoted(text)} is a place of your own: only you know what else needs it.",
                fix=f"Remove it yourself: rm -r {shlex.quote(str(place.path))}",
            )
        known = tuple(one for one in known if one.where == "layout")
    elif text.startswith("docker-daemon:"):
        known = tuple(one for one in known if one.where == "docker")
    elif place.kind == "registry":
        raise NotOurImageError(
            f"{quoted(text)} is in a registry; only images of this machine are removed.",
            fix="See them: provision ls",
        )
    chosen = []
    for one in known:
        if one.is_called(name):
            whole = [own for own in one.names if own in {name, f"{name}:latest"}]
            chosen.append((one, tuple(whole) or one.names))
    if not chosen:
        raise _none_of_ours(name, found)
    return chosen


def _none_of_ours(name: str, found: OwnImages) -> NotOurImageError:
    from images.text.suggestions import alike, did_you_mean

    for engine in found.engines:
        if engine.has(name):
            return NotOurImageError(
                f"The image {name} is in {engine.name}, but was not built by gpu-provision.",
                fix=f"Remove it with its own tool: {engine.name} rmi {shlex.quote(name)}",
            )
    near = did_you_mean(alike(name, [own for one in found.images for own in one.names]))
    return NotOurImageError(
        f"There is no image {name} here that was built by gpu-provision.",
        fix=near or "See them: provision ls",
    )


def in_use(done: Removal) -> ImageInUseError | None:
    """The failure to remove what was named; None: all of it was removed."""
    if not done.kept:
        return None
    one, why = done.kept[0]
    more = f", and {len(done.kept) - 1} more" if done.kept[1:] else ""
    fix = one.release or "End it, then try again."
    return ImageInUseError(f"{one.title} was not removed: {why}{more}.", fix=fix)


def describe_removal(done: Removal) -> str:
    """What was removed and what was kept, for people."""
    lines = listed(
        "removed", [f"{one.title} ({one.where}, {in_units(one.size)})" for one in done.removed]
    )
    lines += listed("kept", [f"{one.title} ({one.where}): {why}" for one, why in done.kept])
    if done.busy:
        lines += row("later", "a build is running: then provision store gc removes the files")
    return "\n".join(lines) or "nothing was removed"


def removal_json(done: Removal, found: OwnImages, failure: Failure | None) -> dict[str, Any]:
    """The result of `rm`."""
    return {
        "schema": 1,
        "removed": [image_json(one) for one in done.removed],
        "kept": [{**image_json(one), "why": why} for one, why in done.kept],
        "files_left": done.busy,
        "skipped": skipped_json(found),
        "error": failure and {"code": failure.code, "message": failure.message, "fix": failure.fix},
    }
