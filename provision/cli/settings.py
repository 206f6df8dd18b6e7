"""What commands share beside their request: the catalog, the network, where images are."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from provision.cli.option import option, retyped
from provision.cli.paths import image_home, read_reference, state_directory, wheel_home
from provision.errors import BadInputError
from provision.model.request import parse_snapshot, quoted
from provision.output.console import Console

if TYPE_CHECKING:
    from provision.build.base import BuildSettings
    from provision.catalog.catalog import Catalog
    from provision.verification.subject import ImagePlaces


def network_options(verb: argparse.ArgumentParser) -> None:
    """Network access."""
    group = verb.add_argument_group("network")
    ca_option(group)
    option(group, "--offline", None, "do not use the network", rare=True)


def ca_option(to: argparse._ActionsContainer) -> None:
    """--ca-bundle."""
    option(
        to,
        "--ca-bundle",
        "FILE",
        "CA certificates to trust (PEM)",
        decides="plan",
        rare=True,
        locked=False,
    )


def base_options(verb: argparse.ArgumentParser) -> None:
    """Which Debian packages a bootstrapped base gets."""
    option(
        verb,
        "--snapshot",
        "DATE",
        "date of the Debian packages in a bootstrapped base (2026-03-01 or today)",
        decides="plan",
        rare=True,
        locked=False,
    )


def builder_option(to: argparse._ActionsContainer, says: str) -> None:
    """--builder."""
    option(
        to, "--builder", "KIND", says, choices=("docker", "oci", "auto"), default="auto", rare=True
    )


def image_argument(verb: argparse.ArgumentParser, says: str, name: str = "IMAGE") -> None:
    """The image that a command is about."""
    option(verb, "image", name, says, complete=image_names)


def image_names() -> Iterable[str]:
    """The images of this machine, for a shell to complete."""
    from provision.cli.commands.ls import images_here

    return [name for one in images_here().images for name in one.names]


def read_catalog(console: Console) -> Catalog:
    """The shipped catalog with everything that this machine has learned since."""
    from provision.catalog.loading import current

    catalog, problem = current(os.environ)
    if problem is not None:
        console.note(problem)
    return catalog


def read_settings(args: argparse.Namespace) -> BuildSettings:
    """What a build is given of this machine and of the network."""
    from provision.build.base import BuildSettings
    from provision.lock.network import ca_bundle

    return BuildSettings(
        ca=ca_bundle(args.ca_bundle, os.environ),
        offline=args.offline,
        state=state_directory(),
        env=os.environ,
        snapshot=_read_snapshot(args),
        wheels=wheel_home(),
        typed=retyped(args, "plan"),
    )


def _read_snapshot(args: argparse.Namespace) -> str | None:
    text = getattr(args, "snapshot", None)
    return None if text is None else parse_snapshot(text, time.time())


def read_places(args: argparse.Namespace, console: Console | None = None) -> ImagePlaces:
    """Where a named image may be; the console, if there is one, shows what takes long."""
    from images.engines.runner import DockerRunner
    from provision.lock.network import ca_bundle
    from provision.verification.subject import ImagePlaces

    return ImagePlaces(
        connect=lambda: DockerRunner.connect(fix=engine_fix()),
        images=image_home(),
        state=state_directory(),
        ca=ca_bundle(getattr(args, "ca_bundle", None), os.environ),
        offline=getattr(args, "offline", False),
        tell=(lambda _: None) if console is None else console.note,
    )


def engine_fix() -> str:
    """How to get a container engine on this machine."""
    from images.engines.setup import fix_text

    return fix_text()


def read_tag(text: str | None) -> str | None:
    """The value of --tag with its tag ("latest" if it has none). BadInputError: it is a digest."""
    if text is None:
        return None
    reference = read_reference("--tag", text)
    if reference.digest is not None:
        raise BadInputError(
            "--tag takes a name and a tag, not a digest.", fix="For example: --tag team/torch:cu117"
        )
    return (
        text if reference.tag is not None and ":" in text.rpartition("/")[2] else f"{text}:latest"
    )


def read_whole(option: str, text: str, most: int, *, least: int = 1) -> int:
    """The value of an option that takes a whole number. BadInputError: it is none, or out of
    range.
    """
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise BadInputError(
            f"{option} {quoted(text)} is not a whole number from {least} to {most}.",
            fix=f"For example: {option} {max(least, 1)}",
        )
    return int(text)


def read_image(text: str) -> str:
    """The name of an image, or its path. BadInputError: it is too long."""
    from images.assembly.opening import parse_place

    if len(text) > 4096 or "\0" in text:
        raise BadInputError(
            f"The image {quoted(text)} is too long for a name or a path.",
            fix="Write it as REGISTRY/PATH:TAG, for example team/torch:cu117",
        )
    place = parse_place(text)
    if place.path is None and not text.startswith("sha256:"):
        read_reference("The image", place.name or text)
    return text
