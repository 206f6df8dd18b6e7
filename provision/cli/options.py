"""Parsed options -> validated values; invalid ones are refused before anything slow begins."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from provision.cli.paths import (
    absolute_file,
    image_home,
    read_reference,
    record_home,
    state_directory,
    wheel_home,
)
from provision.cli.project_options import read_project_with_code
from provision.cli.suite_options import read_asked
from provision.cli.typed import plan_words
from provision.errors import BadInputError
from provision.model.plan import Gpu, HostFacts, Request
from provision.model.request import parse_compute_capability, parse_driver, parse_request, quoted

if TYPE_CHECKING:
    from provision.build.base import BuildSettings
    from provision.build.work import BuildJob
    from provision.catalog.catalog import Catalog
    from provision.cli.render.install import HostInstall
    from provision.output.console import Console
    from provision.sources.find import Project
    from provision.verification.subject import ImagePlaces

BUILDERS = ("auto", "docker", "oci")


def read_catalog(console: Console) -> Catalog:
    """The shipped catalog with everything that this machine has learned since."""
    from provision.catalog.loading import current

    catalog, problem = current(os.environ)
    if problem is not None:
        console.note(problem)
    return catalog


def read_request(args: argparse.Namespace, catalog: Catalog) -> Request:
    """The request; a CUDA that never existed is invalid."""
    if args.flavour not in {None, "runtime", "devel"}:
        raise BadInputError(
            f"Unknown --flavour {quoted(args.flavour)}.", fix="Use runtime or devel."
        )
    request = parse_request(
        cuda=args.cuda,
        framework="pytorch" if args.framework is None else args.framework,
        framework_version=args.framework_version,
        python=args.python,
        companions=args.companions,
        flavour=args.flavour,
        base=args.base,
        index=args.index,
        apt=args.apt,
    )
    if request.cuda is not None:
        _refuse_unknown_cuda(request.cuda, catalog)
    return request


def read_request_for(
    project: Project | None,
    args: argparse.Namespace,
    catalog: Catalog,
    hosts: Callable[[], Sequence[HostFacts]],
) -> Request:
    """The request, with what the project declares."""
    given = read_request(args, catalog)
    if project is None:
        return given
    from provision.build.project.request import request_of, with_locked_cuda
    from provision.model.request import with_apt
    from provision.resolve import resolve
    from provision.sources.declaration import pythons_of

    arch = next((facts.arch for facts in hosts() if facts.arch), os.uname().machine)
    given = with_apt(given, project.apt, "apt in pyproject.toml")
    named, known = args.framework is not None, pythons_of(catalog)
    request = request_of(project, given, named=named, arch=arch, known=known)
    request = with_locked_cuda(
        request,
        project.declared,
        arch=arch,
        known=known,
        cudas=catalog.cuda_versions(),
        fits=lambda asked: resolve(hosts(), asked, catalog).error is None,
    )
    if request.cuda is not None:
        _refuse_unknown_cuda(request.cuda, catalog)
    return request


def _refuse_unknown_cuda(cuda: str, catalog: Catalog) -> None:
    if catalog.toolkit(cuda) is None:
        known = ", ".join(catalog.cuda_versions())
        raise BadInputError(
            f"There is no CUDA {cuda} in the catalog.",
            fix=f"Known versions: {known}. If it is newer: provision catalog refresh",
        )


def this_host() -> HostFacts:
    """What is known of the machine that we run on."""
    from provision.host import detect

    return detect()


def read_hosts(args: argparse.Namespace, catalog: Catalog) -> tuple[HostFacts, ...]:
    """The hosts the plan is for: those of the files, else this one; what-if options
    override each.
    """
    driver = None if args.driver is None else parse_driver(args.driver)
    gpus = tuple(what_if_gpu(text, catalog) for text in args.gpus)
    if args.host.count("-") > 1:
        raise BadInputError("stdin can be used only once.", fix='Pass "--host -" only once.')
    named = tuple(one for path in args.host for one in _hosts_of(path, catalog))
    hosts = named or (this_host(),)
    hosts = tuple(_what_if(facts, driver, gpus) for facts in hosts)
    arch = _arch_of(gpus, catalog)
    return hosts if args.host or arch is None else tuple(f._replace(arch=arch) for f in hosts)


def _hosts_of(path: str, catalog: Catalog) -> tuple[HostFacts, ...]:
    """The hosts of a value of --host: one of a file, those of a directory."""
    if path != "-" and os.path.isdir(path):  # noqa: PTH112  Path's raises for a long name
        from provision.fleet.hostfiles import read_fleet_hosts

        return tuple(host.facts for host in read_fleet_hosts([path], catalog))
    from provision.model.facts import read_host_file

    return (catalog.with_capabilities(read_host_file(path, _host_of_text)),)


def _host_of_text(text: str, *, label: str) -> HostFacts:
    if text.lstrip().startswith("{"):  # the other reader takes a tenth of a plan's time to import
        from provision.model.facts import parse_host

        return parse_host(text, label=label)
    from provision.host.pasted import parse_host_text

    return parse_host_text(text, label=label)


def _arch_of(gpus: tuple[Gpu, ...], catalog: Catalog) -> str | None:
    """The CPU architecture of the machine that the requested GPUs are part of, if they are."""
    found = {catalog.find_gpu(gpu.name).host_arch for gpu in gpus if gpu.name}
    return found.pop() if len(found) == 1 else None


def _what_if(facts: HostFacts, driver: str | None, gpus: tuple[Gpu, ...]) -> HostFacts:
    if driver is not None:
        facts = facts.with_driver(driver)
    if gpus:
        read = tuple(pair for pair in facts.sources if pair[0] != "gpus")
        facts = facts._replace(gpus=gpus, sources=read)
    return facts


def what_if_gpu(text: str, catalog: Catalog, option: str = "--gpu") -> Gpu:
    """A GPU by its name or its compute capability. BadInputError: `option` names an unknown one."""
    capability = parse_compute_capability(text)
    if capability is not None:
        return Gpu(compute_capability=capability)
    match = catalog.find_gpu(text)
    if match.compute_capability is not None:
        name = match.rows[0].name if len(match.rows) == 1 else text
        return Gpu(name=name, compute_capability=match.compute_capability)
    if match.status == "ambiguous":
        names = ", ".join(f"{row.name}" for row in match.rows[:6])
        found = sorted({row.compute_capability for row in match.rows})
        each = " or ".join(f"{option} {major}.{minor}" for major, minor in found)
        raise BadInputError(
            f"{option} {quoted(text)} is ambiguous: {names}.",
            fix=f"Give the full name, or the compute capability: {each}",
        )
    if (vendor := catalog.other_vendor(text)) is not None:
        raise BadInputError(
            f"{option} {quoted(text)} is not an NVIDIA GPU ({vendor}). CUDA builds run on NVIDIA "
            "GPUs only.",
            fix=f"Name an NVIDIA GPU: {option} NAME",
        )
    near = f" Did you mean {' or '.join(match.suggestions[:3])}?" if match.suggestions else ""
    raise BadInputError(
        f"{option} {quoted(text)} is not in the catalog.{near}",
        fix="Give its compute capability, which "
        f"nvidia-smi --query-gpu=compute_cap --format=csv prints: {option} MAJOR.MINOR",
    )


def read_format(args: argparse.Namespace) -> Callable[[HostInstall], str] | None:
    """What renders the plan with --format; None without it. BadInputError: an unknown one, or an
    option that determines the output, too.
    """
    if args.format is None:
        return None
    from provision.cli.render.install import FORMATS

    if args.format not in FORMATS:
        raise BadInputError(f"Unknown --format {quoted(args.format)}.", fix="Use uv, pip or conda.")
    for name in ("json", "matrix", "explain"):
        if getattr(args, name):
            raise BadInputError(
                f"--format and --{name} both determine the output.", fix="Remove one of them."
            )
    return FORMATS[args.format]


def read_settings(args: argparse.Namespace) -> BuildSettings:
    from provision.build.base import BuildSettings
    from provision.lock.network import ca_bundle

    return BuildSettings(
        ca=ca_bundle(args.ca_bundle, os.environ),
        offline=args.offline,
        state=state_directory(),
        env=os.environ,
        snapshot=_read_snapshot(args),
        wheels=wheel_home(),
        typed=plan_words(args),
    )


def _read_snapshot(args: argparse.Namespace) -> str | None:
    from provision.model.request import parse_snapshot

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


def read_build(
    args: argparse.Namespace, catalog: Catalog, hosts: Callable[[], Sequence[HostFacts]]
) -> BuildJob:
    """One build, with all its options. `hosts` are those that it is for."""
    from pathlib import Path

    from provision.build.destination import read_destination
    from provision.build.documents import Documenting
    from provision.build.packing import Making
    from provision.build.work import BuildJob
    from provision.cli.cut import capabilities, read_cut
    from provision.cli.layer_options import read_compression, read_lazy
    from provision.cli.sizes import store_limit

    check_builder(args.builder)
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
        asked=read_asked(args),
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
            wanted=not args.no_provenance,
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
    from provision.sources.errors import ProjectError
    from provision.sources.find import project_path, read_project

    place = project_path(directory)
    try:
        return read_project(*place).declared.addresses
    except ProjectError:
        return ()


def check_builder(text: str) -> None:
    """Refuse an unknown --builder."""
    if text not in BUILDERS:
        raise BadInputError(f"Unknown --builder {quoted(text)}.", fix="Use auto, docker or oci.")


def engine_fix() -> str:
    from images.engines.setup import fix_text

    return fix_text()


def read_tag(text: str | None) -> str | None:
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
