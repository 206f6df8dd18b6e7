"""Makes the image of gpu-provision itself: one name for two architectures, without an engine.

    ./run python -m tools.image --push registry.example/team/gpu-provision:0.1.0
    ./run python -m tools.image --output FOLDER        an OCI layout

It has Debian's Python, the wheels that requirements.txt locks and this checkout's own, in the
layers of every image that is built from wheels; it has no framework, and so no plan. The same
checkout and packages of Debian (`--snapshot`) give the same digest. Nothing is emulated: of the
image only Python is run, in a sandbox, to make byte code, and only where this machine has no such
Python.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, cast

from packaging.pylock import PackageWheel

from images.assembly.build import Built, Recipe, build
from images.bootstrap.make import bootstrap
from images.engines.sandbox.run import confine
from images.errors import Failure
from images.layers.base_facts import read_base_facts, search_path
from images.layers.bytecode import bytecode_groups, bytecode_layer
from images.layers.interpreter import Compiler
from images.layers.order import wheel_sources
from images.layers.own import PREFIX, ordered, site_of, skeleton_layer
from images.layers.tar import TarEntry
from images.net.address import shown_url
from images.net.secrets import Secrets
from images.oci.archive_reader import open_archive
from images.oci.assemble import ContainerSettings, image_index
from images.oci.model import INDEX, MANIFEST, host_platform, platform_of
from images.oci.sources import Image
from images.store.fetch import Fetcher
from images.store.store import Store
from images.wheels.remote_file import Wheel
from provision.build.base import BuildSettings
from provision.build.destination import Destination, read_destination
from provision.build.targets import open_target
from provision.catalog.loading import load
from provision.catalog.rows.bases import DebianSuite
from provision.cli.paths import state_directory
from provision.errors import Exit
from provision.lock.lockfile import parse_lock
from provision.lock.network import ca_bundle
from provision.lock.solve import run_uv
from provision.lock.uv import WheelTarget
from provision.lock.wheels import wheel_tags
from provision.model.environment import environment_of
from provision.model.request import parse_snapshot
from provision.output.console import Console
from provision.version import VERSION
from tools.release import ROOT, build_wheel

if TYPE_CHECKING:
    from packaging.markers import Environment

NAME = "gpu-provision"
ARCHITECTURES = ("x86_64", "aarch64")
_DEBIAN = ("ca-certificates", "python3")
_EPOCH = 1_700_000_000  # the time of every file of the base


class LockedWheelsError(Failure):
    """An index has not what is locked, or does not answer."""

    exit_code = Exit.UNREACHABLE


def wheels_in(lock: str, suite: DebianSuite, arch: str, locked: str) -> list[Wheel]:
    """The wheels of uv's lock for a release of Debian; `locked` is the text of requirements.txt.
    LockedWheelsError: one of them is not among the files there.
    """
    environment = cast("Environment", environment_of(suite.python, arch))
    tags = wheel_tags(suite.python, arch, _glibc(suite))
    wheels = []
    for package, file in parse_lock(lock).select(environment=environment, tags=tags):
        assert isinstance(file, PackageWheel)  # uv is asked for wheels alone
        assert file.url is not None
        digest = file.hashes["sha256"]
        if f"--hash=sha256:{digest}" not in locked:
            raise LockedWheelsError(
                f"{shown_url(file.url)} is not among the files that requirements.txt locks.",
                fix="Use another package index (PIP_INDEX_URL), or lock again: ./run relock",
            )
        wheels.append(
            Wheel(
                name=package.name,
                version=str(package.version),
                url=file.url,
                size=None,
                sha256=digest,
            )
        )
    return wheels


def locked_wheels(suite: DebianSuite, arch: str, ca: Path | None) -> list[Wheel]:
    """What gpu-provision needs to run on a release of Debian, at the versions and with the digests
    of requirements.txt. LockedWheelsError: the index does not have it.
    """
    locked = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    outcome, reason, text = run_uv(
        [line for line in requires(NAME) or () if "extra ==" not in line],
        WheelTarget(suite.python, arch, _glibc(suite)),
        index=None,
        ca_bundle=ca,
        offline=False,
        constraints=[line.removesuffix(" \\") for line in locked.splitlines() if "==" in line],
    )
    if outcome != "locked":
        raise LockedWheelsError(
            f"uv cannot resolve the requirements for {arch}: {reason}",
            fix="Check the package index (PIP_INDEX_URL), then run this again.",
            detail=text,
        )
    return wheels_in(text, suite, arch, locked)


def _glibc(suite: DebianSuite) -> int:
    return int(suite.glibc.partition(".")[2])


def own_wheel(folder: Path) -> Wheel:
    """The wheel of this checkout, built in an empty folder."""
    build_wheel(folder)
    (path,) = folder.glob("*.whl")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(name=NAME, version=VERSION, url=path.as_uri(), size=None, sha256=digest)


def recipe_of(
    base: Image,
    here: Image,
    wheels: Sequence[Wheel],
    python: str,
    fetch: Callable[[Wheel], Path],
) -> Recipe:
    """The image of one architecture; `here` is the base that this machine can run."""
    facts = read_base_facts(base, python)
    # An index may not state sizes, which decide the layers.
    sized = [replace(wheel, size=fetch(wheel).stat().st_size) for wheel in wheels]
    layers = wheel_sources(
        sized, python=python, framework=(), own={NAME}, exclude_unneeded=False, fetch=fetch
    )
    compiler = Compiler(read_base_facts(here, python), python=python, base=here, confine=confine)
    compiled = [
        bytecode_layer(
            group,
            compiler=compiler,
            site=site_of(python),
            exclude_unneeded=False,
            fetch=fetch,
        )
        for group in bytecode_groups([layer.wheels for layer in layers])
    ]
    skeleton = skeleton_layer(facts, python=python)
    # /usr/local/bin/verify starts the suite of an image that was built for a plan
    entries = [one for one in skeleton.entries if not one.path.startswith("usr/")]
    entries.append(TarEntry(path="cache", kind="dir", mode=0o1777))  # a volume gets this mode
    return Recipe(
        base=base,
        sources=(replace(skeleton, entries=ordered(entries)), *layers, *compiled),
        settings=ContainerSettings(
            env={
                "PATH": f"/{PREFIX}/bin:{search_path(base.config)}",
                "XDG_CACHE_HOME": "/cache",
            },
            working_dir="/workspace",
            entrypoint=("provision",),
            command=("--help",),
            labels={
                "org.opencontainers.image.title": NAME,
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        ),
    )


def make(settings: BuildSettings, destination: Destination) -> str:
    """Build and publish the index; return its digest."""
    console, suite = Console(), load().debian_suites[0]
    certificates = settings.ca.read_text(encoding="utf-8") if settings.ca else ""
    built: list[Built] = []
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(settings.state, on_note=console.note))
        target, mount = stack.enter_context(
            open_target(destination, settings, images=settings.state, on_wait=console.note)
        )
        own = own_wheel(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        bases = {}
        for arch in ARCHITECTURES:
            with console.step("base", f"Debian {suite.release} for {arch}", named=True):
                made = bootstrap(
                    suite.suite,
                    python=suite.python,
                    arch=arch,
                    store=settings.state,
                    packages=_DEBIAN,
                    epoch=_EPOCH,
                    on_line=console.detail,
                    snapshot=settings.snapshot,
                    ca_bundle=certificates,
                )
            bases[arch] = open_archive(made.archive, None, platform_of(arch))
        here = next(base for base in bases.values() if base.platform == host_platform())
        for arch, base in bases.items():
            with console.step("image", arch, named=True), console.transfer() as progress:
                wheels = [*locked_wheels(suite, arch, settings.ca), own]
                secrets = Secrets(ca_bundle=certificates)
                fetcher = stack.enter_context(
                    Fetcher(store, secrets=secrets, on_bytes=progress.fetched)
                )
                fetcher.prefetch(wheels)
                recipe = recipe_of(base, here, wheels, suite.python, fetcher.fetch)
                built.append(build(recipe, target, store, progress, workers=2, mount=mount))
                target.publish(built[-1].content, MANIFEST, name=None)
                console.result(f"{built[-1].size / 1e6:.0f} MB, {built[-1].manifest.digest}")
        index = image_index([image.manifest for image in built], {})
        is_pushed = destination.kind == "registry"
        name = destination.where if is_pushed else f"{NAME}:{VERSION}"
        return target.publish(index, INDEX, name=name).digest


def main() -> int:
    """Make the image, and print its digest."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--push", metavar="REF", help="to a registry")
    place.add_argument("--output", metavar="DIR", help="to an OCI layout, or FILE.tar")
    parser.add_argument("--snapshot", metavar="DATE", help="Debian's packages of this date")
    args = parser.parse_args()
    try:
        settings = BuildSettings(
            ca=ca_bundle(None, os.environ),
            offline=False,
            state=state_directory(),
            env=os.environ,
            snapshot=args.snapshot and parse_snapshot(args.snapshot, time.time()),
        )
        destination = read_destination(args.output, args.push)
        assert destination is not None  # the parser demands one of the two
        digest = make(settings, destination)
    except Failure as failure:
        Console().fail(failure.message, failure.fix, failure.detail)
        return failure.exit_code
    sys.stdout.write(f"{digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
