"""Which machines a command is about: this one, host files, or what --driver and --gpu assume."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from provision.cli.option import option
from provision.errors import BadInputError
from provision.model.plan import Gpu, HostFacts
from provision.model.request import parse_compute_capability, parse_driver, quoted

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog


def host_options(verb: argparse.ArgumentParser) -> None:
    """The machines that a plan is for."""
    group = verb.add_argument_group("host (default: this one)")
    option(
        group,
        "--host",
        "FILE",
        "output of nvidia-smi or `provision detect --json` elsewhere, a directory of such, "
        "or - (repeatable)",
        decides="plan",
        several=True,
    )
    option(group, "--driver", "V", "assume this driver version", decides="plan")
    gpu_option(group, "assume this GPU, by name or compute capability (repeatable)")


def gpu_option(to: argparse._ActionsContainer, says: str) -> None:
    """--gpu."""
    option(
        to, "--gpu", "NAME|CC", says, decides="plan", dest="gpus", several=True, complete=gpu_names
    )


def gpu_names() -> Iterable[str]:
    """The GPUs of the catalog, for a shell to complete."""
    from provision.catalog.loading import current

    return [gpu.name for gpu in current(os.environ)[0].gpus]


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
        from provision.cli.hostfiles import read_fleet_hosts

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
