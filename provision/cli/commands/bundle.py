"""`provision bundle`, and what `build --bundle` takes from such a file."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cli.commands.build import refuse_beside_lock
from provision.cli.commands.lock import make_lock, plan_options
from provision.cli.paths import absolute_file, state_directory
from provision.cli.request import read_request
from provision.cli.settings import read_catalog, read_settings
from provision.cli.sizes import store_limit
from provision.errors import BadInputError, Exit
from provision.lock.lockfile import read_lock_file, refuse_unlocked
from provision.model.plan import HostFacts, PackageIndexes
from provision.model.planfile import plan_to_json
from provision.output.console import Console
from provision.output.files import refuse_unwritable
from provision.output.stdout import print_either

if TYPE_CHECKING:
    from provision.build.base import BuildSettings, UnpackedBundle
    from provision.build.maker import LockedImage
    from provision.build.offline.bundlefile import BundledFile
    from provision.build.offline.tool import PackedTool
    from provision.catalog.catalog import Catalog


EXAMPLES = (
    "provision bundle --cuda 12.8 --gpu H100 --driver 580.95.05 --output torch.bundle",
    "provision bundle --lock pylock.toml --with-tool --output torch.bundle",
    "provision bundle --check torch.bundle",
)


def options(verb: argparse.ArgumentParser) -> None:
    """What goes into a bundle, and where it goes."""
    plan_options(verb)
    group = verb.add_argument_group("bundle")
    group.add_argument("--output", metavar="FILE", help="file to write")
    group.add_argument(
        "--lock", metavar="LOCK", help="pack what this lock needs, instead of planning"
    )
    group.add_argument(
        "--with-tool",
        action="store_true",
        help="pack gpu-provision itself, too, with its packages for each Python that it runs on",
    )
    group.add_argument("--check", metavar="FILE", help="check this bundle and list what is in it")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write a bundle, or check one."""
    from images.store.locks import present
    from provision.build.offline.pack import pack, refuse_unpackable

    if args.check is not None:
        return _check(args, console)
    if args.output is None:
        raise BadInputError(
            "provision bundle needs the name of the file to write.",
            fix="For example: provision bundle --output torch.bundle",
        )
    output = absolute_file("--output", args.output)
    settings = read_settings(args)
    with present(settings.state):
        if args.lock is not None:
            image = _locked(args, output, settings, console)
        else:
            image = make_lock(args, console, refuse=lambda _: refuse_unwritable("--output", output))
        refuse_unpackable(image.plan)
        done = pack(
            image,
            output=output,
            request=read_request(args, read_catalog(console)),
            settings=settings,
            store_limit=store_limit(os.environ),
            with_tool=args.with_tool,
            console=console,
        )
    start = _start(output.name, done.tool)
    result = {
        "schema": 1,
        "path": str(output),
        "size": done.size,
        "sha256": done.sha256,
        "lock_sha256": image.lock.sha256,
        "plan": plan_to_json(image.plan),
        "tool": done.tool and {"pythons": list(done.tool.pythons), "arch": done.tool.arch},
        "start": start,
        "files": _rows(done.files),
        "error": None,
    }
    head = f"{args.output}: {len(done.files)} files, {done.size} bytes\nsha256:{done.sha256}"
    lines = [head, "on the other machine, in its directory:", *start]
    print_either(args.json, result, lambda: "\n".join(lines))
    return Exit.DONE


def _locked(
    args: argparse.Namespace, output: Path, settings: BuildSettings, console: Console
) -> LockedImage:
    """What a given lock needs."""
    from provision.build.base import base_from_lock
    from provision.build.maker import LockedImage
    from provision.build.offline.pack import refuse_unpackable
    from provision.build.source.source_wheels import with_built_wheels

    refuse_beside_lock(args, "--lock")
    if args.project is not None:
        raise BadInputError(
            "--lock already determines which packages the project would add.",
            fix="Remove one of them.",
        )
    lock = read_lock_file(Path(args.lock))
    refuse_unlocked(read_request(args, read_catalog(console)).companions, [lock])
    refuse_unpackable(lock.plan)
    refuse_unwritable("--output", output)
    with console.step("base", "pinning the base image"):
        base = base_from_lock(lock.plan, None, settings, console)
        console.result(base.reference)
        lock = with_built_wheels(lock, PackageIndexes(args.index), settings, console)
    return LockedImage(lock=lock, base=base)


def _start(name: str, tool: PackedTool | None) -> list[str]:
    """What to type on the other machine."""
    named = shlex.quote(name)
    if tool is None:
        return [f"  provision build --bundle {named}"]
    pythons = " or ".join(tool.pythons)
    return [
        f"  tar -xf {named} gpu-provision    # for Python {pythons} on {tool.arch}",
        '  export PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/gpu-provision/wheels"',
        f"  gpu-provision/run provision build --bundle {named}",
    ]


def _check(args: argparse.Namespace, console: Console) -> int:
    from provision.build.offline.reader import open_bundle

    if args.output is not None or args.lock is not None or args.with_tool:
        raise BadInputError(
            "--check reads a bundle, and --output, --lock and --with-tool are to write one.",
            fix="Remove them, or remove --check.",
        )
    with open_bundle(Path(args.check), console) as bundle:
        plan, files = bundle.lock.plan, bundle.reader.files
        size = Path(args.check).stat().st_size
        result: dict[str, Any] = {
            "schema": 1,
            "path": args.check,
            "size": size,
            "made_by": bundle.reader.made_by,
            "lock_sha256": bundle.lock.sha256,
            "plan": plan_to_json(plan),
            "files": _rows(files),
            "error": None,
        }
    lines = [f"{args.check}: undamaged, {len(files)} files, {size} bytes"]
    lines.append(f"  {plan.title}, {plan.arch}")
    lines += [f"  {file.sha256}  {file.size:>12}  {file.path}" for file in files]
    print_either(args.json, result, lambda: "\n".join(lines))
    return Exit.DONE


def _rows(files: Sequence[BundledFile]) -> list[dict[str, object]]:
    return [{"path": one.path, "size": one.size, "sha256": one.sha256} for one in files]


@contextmanager
def taken_from(
    args: argparse.Namespace, here: Callable[[], HostFacts], console: Console
) -> Iterator[tuple[Catalog, UnpackedBundle]]:
    """Check the bundle of --bundle and make it the build's lock, catalog, suite, base and wheels.
    BadInputError: another option contradicts it; else the errors of a bundle.
    """
    from provision.build.offline.reader import in_store, open_bundle, refuse_other_machine

    refuse_beside_lock(args, "--bundle")
    for given, option, why in (
        (args.lock, "--lock", "The lock is in the bundle"),
        (args.builder == "docker", "--builder docker", "An engine would need the network"),
        (args.cache_from, "--cache-from", "Its image may be in a registry"),
    ):
        if given:
            raise BadInputError(
                f"--bundle and {option} cannot be used together. {why}.", fix=f"Remove {option}."
            )
    with open_bundle(Path(args.bundle), console) as bundle:
        if not args.no_verify:
            refuse_other_machine(bundle, here(), os.uname().machine)
        args.lock, args.offline = [str(bundle.lock_file)], True
        if args.dry_run:
            yield bundle.catalog, bundle.parts
            return
        with in_store(
            bundle, state_directory(), limit_bytes=store_limit(os.environ), console=console
        ):
            yield bundle.catalog, bundle.parts
