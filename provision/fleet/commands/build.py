"""`provision fleet build`: each image of a fleet once, in a registry or a shared directory."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from images.store.locks import present
from images.system.scratch import scratch_directory
from provision.build.destination import Destination
from provision.build.documents import Documenting
from provision.catalog.catalog import Catalog
from provision.cli.hostfiles import read_fleet_hosts
from provision.cli.hosts import this_host
from provision.cli.option import option
from provision.cli.paths import image_home, read_reference, record_home, state_directory
from provision.cli.request import read_request, request_options
from provision.cli.settings import (
    base_options,
    builder_option,
    network_options,
    read_catalog,
    read_settings,
)
from provision.cli.sizes import store_limit
from provision.errors import BadInputError
from provision.fleet.classes import classes_of, several
from provision.fleet.commands.plan import exit_of, hosts_argument
from provision.fleet.images import FleetImage, FleetResolver, UnservedClass, plan_fleet
from provision.lock.lockfile import write_lock
from provision.model.plan import Plan, Request
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from provision.output.text import command, row
from provision.resolve.fleet import DEFAULT_ARCH
from provision.verification.suite import SuiteRequest

if TYPE_CHECKING:
    from provision.build.work import BuildJob
_SHOWN = 8  # nodes, by name


EXAMPLES = ("provision fleet build hosts/ --push registry.example/team",)


def options(verb: argparse.ArgumentParser) -> None:
    """Which machines, and where their images go."""
    hosts_argument(verb)
    where = verb.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--push", metavar="REPOSITORY", help="push the images to a registry: HOST/PATH"
    )
    where.add_argument(
        "--output", metavar="DIR", help="write them to one directory (OCI layout), shared by nodes"
    )
    option(
        verb,
        "--squashfs",
        None,
        "with --output: write a squashfs for each image (DIR/NAME.sqsh), which nodes mount",
        requires=("--output",),
    )
    builder_option(verb, "docker (uses an engine), oci (needs no engine) or auto (default)")
    request_options(verb)
    network_options(verb)
    base_options(verb)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTarget:
    """Where all images of a fleet go: a repository of a registry, or a directory (a layout, or
    `squashfs` files).
    """

    repository: str | None = None
    directory: str | None = None
    squashfs: bool = False

    def destination(self, tag: str) -> Destination:
        """That of the image with this tag ("gpu-provision:NAME")."""
        if self.repository is not None:
            where = f"{self.repository}:{tag.partition(':')[2]}"
            return Destination(kind="registry", where=where)
        if self.squashfs:
            return Destination(kind="squashfs", where=self._file(tag))
        return Destination(kind="layout", where=str(self.directory))

    def image(self, tag: str) -> str:
        """How other commands name that image."""
        if self.repository is not None:
            return f"{self.repository}:{tag.partition(':')[2]}"
        return self._file(tag) if self.squashfs else f"oci:{self.directory}:{tag}"

    def _file(self, tag: str) -> str:
        return f"{self.directory}/{tag.partition(':')[2]}.sqsh"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltForFleet:
    """One image of the fleet. `account` is that of its build; None: `failure` says why."""

    planned: FleetImage
    image: str | None = None
    account: Mapping[str, Any] | None = None
    failure: Failure | None = None


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, then lock and build each image; one that fails does not keep the others from it."""
    target = _read_target(args)
    catalog = read_catalog(console)
    request = read_request(args, catalog)
    plan = plan_fleet(
        classes_of(read_fleet_hosts(args.hosts, catalog)), FleetResolver(request, catalog)
    )
    built: list[BuiltForFleet] = []
    tags: set[str] = set()
    for number, image in enumerate(plan.images, 1):
        console.say(f"image {number} of {len(plan.images)}, for {_nodes(image.nodes)}")
        try:
            with present(state_directory()):
                built.append(_build(image, _job(args, request, catalog), target, tags, console))
        except Failure as failure:
            console.fail(failure.message, failure.fix, failure.detail)
            built.append(BuiltForFleet(planned=image, failure=failure))
    if args.json:
        print_json(built_to_json(built, plan.without_gpu, plan.unserved))
    else:
        print_result(describe_built(built, plan.unserved, plan.without_gpu))
    codes = [one.failure.exit_code for one in built if one.failure is not None]
    return codes[0] if codes else exit_of(plan)


def _read_target(args: argparse.Namespace) -> FleetTarget:
    if args.output is not None:
        if not args.output or "\0" in args.output or args.output.endswith(".tar"):
            raise BadInputError(
                f"--output {quoted(args.output)} is not a directory for several images.",
                fix="Name a directory: --output DIR",
            )
        return FleetTarget(directory=args.output.removeprefix("oci:"), squashfs=args.squashfs)
    reference = read_reference("--push", args.push)
    if reference.digest is not None or ":" in args.push.rpartition("/")[2]:
        raise BadInputError(
            f"--push {quoted(args.push)} names one image; each image of a fleet gets its own tag.",
            fix="Name the repository: --push registry.example/team/fleet",
        )
    if "/" not in args.push:
        raise BadInputError(
            f"--push {quoted(args.push)} has no path.",
            fix="Name the registry and a path: --push registry.example/team/fleet",
        )
    return FleetTarget(repository=args.push)


def _job(args: argparse.Namespace, request: Request, catalog: Catalog) -> BuildJob:
    from provision.build.packing import Making
    from provision.build.work import BuildJob

    return BuildJob(
        request=request,
        catalog=catalog,
        settings=read_settings(args),
        suite=SuiteRequest(),
        making=Making(store_limit=store_limit(os.environ)),
        images=image_home(),
        documenting=Documenting(home=record_home()),
        builder=args.builder,
        verify=False,  # on the nodes, which have the GPUs
    )


def _build(
    image: FleetImage, job: BuildJob, target: FleetTarget, tags: set[str], console: Console
) -> BuiltForFleet:
    """Lock and build one image. Its tag follows from the lock, as packages may decide, too."""
    from provision.build.builder import find_engine
    from provision.build.job import build, lock_image, plan_image

    hosts = [one.facts for one in image.classes]
    job = replace(job, destination=target.destination("gpu-provision:planned"))
    planned = plan_image(job, lambda: hosts, console)
    locked = lock_image(planned, job, find_engine(job), console)
    tag = free_tag(locked.lock.plan, tags)
    with scratch_directory() as scratch:
        path = scratch / "pylock.toml"
        write_lock(locked.lock, path)
        account, _ = build(
            replace(job, locks=(path,), tag=tag, destination=target.destination(tag)),
            hosts=lambda: hosts,
            facts=this_host,
            console=console,
        )
    tags.add(tag)
    return BuiltForFleet(planned=image, image=target.image(tag), account=account)


def free_tag(plan: Plan, taken: set[str]) -> str:
    """The tag that `build` would give the image, with its processor unless that is x86_64. Two
    images of one fleet may differ in what a tag does not say: the second gets a number.
    """
    from provision.build.pipeline import default_tag

    tag = default_tag(plan)
    if plan.arch not in {None, DEFAULT_ARCH}:
        tag = f"{tag}-{plan.arch}"
    number = 2
    free = tag
    while free in taken:
        free = f"{tag}-{number}"
        number += 1
    return free


def built_to_json(
    built: Sequence[BuiltForFleet], without_gpu: Sequence[str], unserved: Sequence[UnservedClass]
) -> dict[str, Any]:
    """The result of the command; docs/json.md has the format."""
    return {
        "schema": 1,
        "images": [_image_json(one) for one in built],
        "unserved": [
            {"nodes": list(one.node_class.nodes), "code": one.error.code} for one in unserved
        ],
        "without_gpu": list(without_gpu),
        "error": None,
    }


def _image_json(one: BuiltForFleet) -> dict[str, Any]:
    account, failure = one.account, one.failure
    made = account["image"] if account else {}
    return {
        "nodes": list(one.planned.nodes),
        "image": one.image,
        "digest": made.get("digest"),
        "size_bytes": made.get("size_bytes"),
        "lock": account["lock"] if account else None,
        "error": None
        if failure is None
        else {"code": failure.code, "message": failure.message, "fix": failure.fix},
    }


def describe_built(
    built: Sequence[BuiltForFleet], unserved: Sequence[UnservedClass], without_gpu: Sequence[str]
) -> str:
    """Each image, the nodes that get it, and the command that tests it on all of them."""
    lines: list[str] = []
    for number, one in enumerate(built, 1):
        lines += row(f"image {number}", one.image or "not built")
        if one.account is not None:
            lines.append(f"digest   {one.account['image']['digest']}")  # 71 letters, 80 columns
        lines += row("nodes", _nodes(one.planned.nodes))
        if one.image is not None:
            lines.append("test it on all of them (WHERE: as for fleet detect):")
            lines += command(_test_command(one.image, one.planned.nodes))
        if one.failure is not None:
            lines += row("error", one.failure.message)
        lines.append("")
    for other in unserved:
        lines += row("no image", f"{_nodes(other.node_class.nodes)}: {other.error.message}")
    if without_gpu:
        lines += row("no GPU", f"{_nodes(without_gpu)}: no image is needed")
    return "\n".join(lines).rstrip("\n")


def _test_command(image: str, nodes: Sequence[str]) -> str:
    names = ",".join(nodes) if len(nodes) <= _SHOWN else "NODES"
    words = ("provision", "fleet", "verify", "--on", "WHERE", "--nodes", names, "--image", image)
    return shlex.join((*words, "--output", "reports/"))


def _nodes(names: Sequence[str]) -> str:
    return several(names, _SHOWN)
