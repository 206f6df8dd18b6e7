"""`provision inspect`: what is in an image or a wheel, read but never run."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from images.oci.errors import ImagePlaceError
from images.system.scratch import scratch_directory
from images.text.suggestions import alike, did_you_mean, no_such, or_nearby
from provision.cli.hosts import gpu_option, what_if_gpu
from provision.cli.option import option
from provision.cli.paths import absolute_file, image_home, state_directory
from provision.cli.settings import network_options, read_catalog
from provision.errors import BadInputError, Exit
from provision.model.plan import Gpu
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from images.inspect.image import Inspection
    from images.oci.model import Platform
    from images.oci.sources import Image

EXAMPLES = (
    "provision inspect registry.example/team/app:1 --gpu H100",
    "provision inspect torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl",
)
_FILES = {
    "report": "write the report as JSON",
    "junit": "write JUnit XML, even if reading breaks off",
    "html": "write an HTML page",
    "markdown": "write Markdown, for a CI job summary",
}
_NAME_ONE = "Name a .whl file, a directory (OCI layout), a .tar archive, a .sqfs file, or an image."
_EXIT = {"fit": Exit.DONE, "unfit": Exit.UNFIT, "no-verdict": Exit.NO_VERDICT}


def options(verb: argparse.ArgumentParser) -> None:
    """What is read, for which GPUs, and what is written."""
    verb.add_argument(
        "what",
        metavar="IMAGE|WHEEL",
        help="name of an image, oci:DIR[:NAME], docker-archive:FILE, oci-archive:FILE, or path or "
        "URL of a .whl file",
    )
    gpu_option(verb, "check whether it runs on this GPU: a name or compute capability (repeatable)")
    option(
        verb,
        "--arch",
        "ARCH",
        "platform of a multi-platform image: x86_64 or aarch64",
        choices=("x86_64", "aarch64"),
    )
    files = verb.add_argument_group("report files, written even if problems are found")
    for name, says in _FILES.items():
        option(files, f"--{name}", "FILE", says)
    network_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Read it, judge it, print it; the exit code is the verdict's."""
    from provision.verification.report_files import refuse_unusable, write_failure, write_files

    files = {
        name: absolute_file(f"--{name}", text)
        for name in _FILES
        if (text := getattr(args, name)) is not None
    }
    refuse_unusable(files, None)
    catalog = read_catalog(console)
    gpus = [what_if_gpu(text, catalog) for text in args.gpus]
    platform = _platform(args.arch)
    try:
        report, found = _inspect(args, gpus, platform, console)
    except Exception as error:
        with contextlib.suppress(OSError):  # why there is no report is more useful
            write_failure(files, args.what, error)
        raise
    if args.json:
        print_json(report)
    else:
        from provision.cli.render.inspection import describe_inspection

        print_result(describe_inspection(report, found, gpus))
    write_files(report, files)
    return _EXIT[report["verdict"]]


def is_wheel(text: str) -> bool:
    """Whether this is a wheel's path or URL; everything else is an image."""
    return re.fullmatch(r"https?://.*", text) is not None or (
        text.endswith(".whl") and not text.startswith(("oci:", "oci-archive:", "docker-archive:"))
    )


def _inspect(
    args: argparse.Namespace, gpus: Sequence[Gpu], platform: Platform | None, console: Console
) -> tuple[dict[str, Any], Inspection]:
    from images.inspect.image import inspect_image, inspect_wheel
    from images.layers.lazy.checking import checked_image
    from provision.lock.network import ca_bundle
    from provision.verification.inspection.report import make_report

    ca = ca_bundle(args.ca_bundle, os.environ)
    began = time.monotonic()
    with console.step("read", f"{args.what}, without running it"):
        if is_wheel(args.what):
            if args.offline and "://" in args.what:
                raise BadInputError(
                    "--offline does not fetch a wheel.", fix="Download it, then name the file."
                )
            found = inspect_wheel(args.what, ca_bundle=ca)
        else:
            with _opened(args.what, platform, ca, offline=args.offline, console=console) as image:
                found = inspect_image(checked_image(image))
    report = make_report(found, gpus, seconds=time.monotonic() - began)
    return report, found


@contextlib.contextmanager
def _opened(
    text: str, platform: Platform | None, ca: Path | None, *, offline: bool, console: Console
) -> Iterator[Image]:
    """Open the image. An engine's is saved to a file first, which is removed afterwards."""
    from images.assembly.opening import open_image, parse_place
    from images.engines.squashfs.reader import mounted_image
    from images.oci.image_reader import check_platform
    from images.oci.model import host_platform
    from images.store.store import Store
    from provision.verification.subject import names_a_registry, nearest, own_image, squashfs_of

    if (file := squashfs_of(text)) is not None:
        with mounted_image(file, state_directory(), console.note) as image:
            check_platform(image.config, platform, text)
            yield image
        return
    place = parse_place(text)
    wanted = platform
    if wanted is None and place.path is None:  # a registry's are for several platforms, mostly
        wanted = host_platform()
    with contextlib.ExitStack() as stack:
        store = None
        if offline and place.path is None:
            store = stack.enter_context(Store.open(state_directory(), on_note=console.note))

        saved = None
        if place.kind in {"any", "engine"}:
            directory = stack.enter_context(scratch_directory())
            saved = _saved(place.name or text, directory, console)
        own = None
        if place.kind == "any" and saved is None:
            found = partial(own_image, place.name or text, image_home())
            own = found(platform) if platform is not None else nearest(found)
        if own is not None:
            yield own
            return
        is_asked_for = place.kind == "any" and saved is None
        if is_asked_for:
            _refuse_missing_file(text)
        try:
            image = open_image(
                text,
                platform=wanted,
                store=store,
                ca_bundle=ca,
                engine_save=lambda _: saved,
                offline=offline,
            )
        except Failure as failure:
            if is_asked_for and not names_a_registry(text):
                _say_where_it_is_not(text, failure)
            raise
        yield image


def _refuse_missing_file(text: str) -> None:
    """A name that looks like a file is not looked up in a registry."""
    from provision.verification.subject import is_image_file, looks_like_file

    if not looks_like_file(text):
        return
    if Path(text).exists():
        raise ImagePlaceError(
            f"{text} is neither an image nor a wheel.",
            fix=_NAME_ONE,
        )
    raise ImagePlaceError(
        no_such("file", text),
        fix=or_nearby(
            text,
            _NAME_ONE,
            keep=lambda path: path.suffix == ".whl" or is_image_file(path),
        ),
    )


def _say_where_it_is_not(text: str, failure: Failure) -> None:
    """A bare name is looked up in a registry last; its answer alone would mislead."""
    from images.oci.layout_reader import names_in

    failure.message = f"There is no image {text} on this machine. {failure.message}"
    near = did_you_mean(alike(text, names_in(image_home())))
    failure.fix = f"{near} {failure.fix}".strip()


def _saved(name: str, directory: Path, console: Console) -> Path | None:
    """The engine's image of this name, as a file; None if there is no engine, or no such image on
    it.
    """
    from images.engines.docker import Docker

    try:
        engine = Docker.connect(fix="")
        if not engine.has(name):
            return None
    except Failure:
        return None
    console.note(f"The engine exports {name} to a file.")
    archive = directory / "image.tar"
    engine.save(name, archive)
    return archive


def _platform(arch: str | None) -> Platform | None:
    if arch is None:
        return None
    from images.oci.model import platform_of

    return platform_of(arch)
