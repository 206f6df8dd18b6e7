"""`provision build`: plan, lock, build, and test on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cli.commands.lock import plan_options
from provision.cli.consult import Explanation, causes_of_report, tell
from provision.cli.hosts import read_hosts, this_host, what_if_gpu
from provision.cli.layers import (
    capabilities,
    layer_options,
    planned_for,
    read_compression,
    read_cut,
    read_lazy,
    refuse_contradiction,
)
from provision.cli.option import given_options, option
from provision.cli.paths import absolute_file, image_home, record_home
from provision.cli.project import read_project_with_code
from provision.cli.request import read_request_for
from provision.cli.settings import builder_option, read_catalog, read_settings, read_tag
from provision.cli.sizes import store_limit
from provision.cli.suite import key_option, read_asked, suite_options
from provision.errors import BadInputError
from provision.model.plan import HostFacts
from provision.model.request import parse_requirement
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from provision.sources.errors import ProjectError

if TYPE_CHECKING:
    from provision.build.work import BuildJob
    from provision.catalog.catalog import Catalog

EXAMPLES = (
    "provision build",
    "provision build --cuda 11.7 --with torchvision",
    "provision build . --push registry.example/team/app:1",
    "provision build --lock pylock.toml --output image/",
    "provision build --base bootstrap --lazy --push registry.example/team/torch:1",
    "provision build --bundle torch.bundle --output image/",
    "provision build --cut A40 --output image.sqfs    # for an A40 alone",
)


def options(verb: argparse.ArgumentParser) -> None:
    """The plan; where the image goes, and how it is built; the suite; the documents."""
    verb.usage = "%(prog)s [OPTION ...] [DIR]"
    plan_options(verb)
    _build_options(verb.add_argument_group("build"))
    suite_options(verb)
    group = verb.add_argument_group("advanced")
    layer_options(group)
    option(group, "--cache-from", "IMAGE", "reuse layers of this image (oci builder)", rare=True)
    option(group, "--sbom", "FILE", "where the SBOM goes (default: by the lock)", rare=True)
    option(group, "--provenance", "FILE", "where it goes, signed", rare=True)
    option(group, "--no-provenance", None, "write neither SBOM nor provenance", rare=True)
    key_option(group)


def _build_options(group: argparse._ArgumentGroup) -> None:
    option(group, "--tag", "NAME:TAG", "name and tag of the image")
    option(
        group,
        "--lock",
        "FILE",
        "build from this lock (repeatable, for other platforms)",
        several=True,
    )
    option(
        group,
        "--bundle",
        "FILE",
        "build from a file of `provision bundle`, without a network",
        rare=True,
    )
    option(
        group,
        "--output",
        "PATH",
        "write a directory (OCI layout), a .tar, or a squashfs (enroot: .sqfs or .sqsh; "
        "Apptainer: .sif)",
    )
    option(group, "--push", "REF", "push the image to a registry: HOST/PATH:TAG")
    builder_option(group, "docker (uses an engine), oci (needs no engine) or auto (default)")
    option(group, "--no-verify", None, "do not test the image")
    option(group, "--dry-run", None, "show what would be built and exit")


def run(args: argparse.Namespace, console: Console) -> int:
    """The main job, and its account."""
    result, code = build_image(args, console)
    reports = [result.get("verify") or {}, *result.get("verify_beside", ())]
    found = (causes_of_report(report) for report in reports)
    causes = next((one for one in found if one.json), Explanation())
    if args.json:
        print_json({**result, "doctor": causes.json} if causes.json else result)
    else:
        from provision.cli.render.build import describe_build

        print_result(describe_build(result))
    tell(causes, console)
    return code


def build_image(
    args: argparse.Namespace, console: Console, *, again: bool = True
) -> tuple[dict[str, Any], int]:
    """Build what the options of `build` say; returns the account and the exit code. `again`: see
    `BuildJob`.
    """
    from images.store.locks import present
    from provision.build.job import build

    with ExitStack() as stack:
        if args.bundle is None:
            catalog, unpacked = read_catalog(console), None
        else:
            from provision.cli.commands.bundle import taken_from

            catalog, unpacked = stack.enter_context(taken_from(args, this_host, console))
        if args.lock and unpacked is None:
            refuse_beside_lock(args, "--lock")
        cut = read_cut(args.cut, catalog, args.builder)
        refuse_contradiction([what_if_gpu(text, catalog) for text in args.gpus], cut)
        hosts = cache(lambda: planned_for(read_hosts(args, catalog), cut))
        job = _read_build(args, catalog, hosts)
        job = dataclasses.replace(
            job, settings=dataclasses.replace(job.settings, unpacked=unpacked), again=again
        )
        if not args.dry_run:
            stack.enter_context(present(job.settings.state))
        return build(job, hosts=hosts, facts=this_host, console=console)


def refuse_beside_lock(args: argparse.Namespace, decided_by: str) -> None:
    """Refuse the options that a lock has decided. BadInputError: one is given. --with may repeat
    the address of a wheel: a lock has it without login and query.
    """
    given = given_options(args, "locked")
    whole = all(" @ " in parse_requirement(word)[0] for word in args.companions)
    if whole and decided_by == "--lock" and "--with" in given:
        given.remove("--with")
    if given:
        raise BadInputError(
            f"{decided_by} already determines what {' and '.join(given)} would choose.",
            fix=f"Remove {' and '.join(given)}, or write another lock: provision lock",
        )


def _read_build(
    args: argparse.Namespace, catalog: Catalog, hosts: Callable[[], Sequence[HostFacts]]
) -> BuildJob:
    """One build, with all its options. `hosts` are those that it is for."""
    from provision.build.destination import read_destination
    from provision.build.documents import Documenting
    from provision.build.packing import Making
    from provision.build.work import BuildJob

    destination = read_destination(args.output, args.push)
    if args.push is not None and args.tag is not None:
        raise BadInputError(
            "--push and --tag both name the image.",
            fix="Remove --tag: --push registry.example/team/torch:cu117",
        )
    project, code = read_project_with_code(args)
    request = read_request_for(project, args, catalog, hosts)
    if args.lock and args.project is not None:
        request = request._replace(addresses=(*request.addresses, *_addresses(args.project)))
    return BuildJob(
        request=request,
        catalog=catalog,
        project=project,
        code=code,
        without=tuple(args.without),
        settings=read_settings(args),
        suite=read_asked(args),
        making=Making(
            exclude_unneeded=args.exclude_unneeded,
            bytecode=args.bytecode or args.lazy is not None,
            compression=read_compression(args),
            cut=capabilities(read_cut(args.cut, catalog)),
            lazy=read_lazy(args, destination),
            cache_from=args.cache_from,
            store_limit=store_limit(os.environ),
        ),
        images=image_home(),
        documenting=Documenting(
            home=record_home(),
            enabled=not args.no_provenance,
            bom=None if args.sbom is None else absolute_file("--sbom", args.sbom),
            statement=None
            if args.provenance is None
            else absolute_file("--provenance", args.provenance),
            key=None if args.key is None else absolute_file("--key", args.key),
        ),
        locks=tuple(Path(name) for name in args.lock),
        tag=read_tag(args.tag),
        builder=args.builder,
        destination=destination,
        verify=not args.no_verify,
        dry_run=args.dry_run,
    )


def _addresses(directory: str) -> tuple[str, ...]:
    """The whole addresses that a project names, for a lock that has them without login and query.
    The lock decides everything else, also for a project that cannot be read.
    """
    from provision.sources.find import project_path, read_project

    place = project_path(directory)
    try:
        return read_project(*place).declared.addresses
    except ProjectError:
        return ()
