"""What an image should contain: the options, and the request that they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from provision.cli.option import option
from provision.errors import BadInputError
from provision.model.plan import TITLES, HostFacts, Request
from provision.model.request import parse_request, with_apt

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog
    from provision.sources.find import Project


def request_options(verb: argparse.ArgumentParser) -> None:
    """Framework, CUDA, Python, packages, base."""
    group = verb.add_argument_group("request")
    option(
        group,
        "--cuda",
        "X.Y",
        "CUDA version of the image: 11.7 or cu117",
        decides="plan",
        complete=_cuda_versions,
    )
    option(
        group,
        "--framework",
        "NAME",
        "pytorch (default), tensorflow or jax",
        decides="plan",
        complete=lambda: TITLES,
        locked=False,
    )
    option(
        group,
        "--framework-version",
        "SPEC",
        "version: 2.0.1 or '>=2' (PEP 440)",
        decides="plan",
        rare=True,
    )
    option(group, "--python", "X.Y", "Python version of the image", decides="plan")
    option(
        group,
        "--with",
        "NAME",
        "install this package too: torchvision or any requirement (repeatable)",
        decides="packages",
        dest="companions",
        several=True,
    )
    option(
        group,
        "--base",
        "IMAGE",
        "base image, oci:DIR, or bootstrap (built from Debian packages)",
        decides="plan",
        rare=True,
    )
    option(
        group,
        "--apt",
        "NAME",
        "install this Debian package too; without --base, the base is built from such "
        "packages (repeatable)",
        decides="plan",
        several=True,
        rare=True,
    )
    option(
        group,
        "--flavour",
        "KIND",
        "runtime, or devel with compilers (default: what the packages need)",
        decides="plan",
        choices=("runtime", "devel"),
        rare=True,
        locked=False,
    )
    option(
        group,
        "--index",
        "URL",
        "package index to try first",
        decides="plan",
        rare=True,
        locked=False,
    )


def _cuda_versions() -> Iterable[str]:
    from provision.catalog.loading import current

    return current(os.environ)[0].cuda_versions()


def read_request(args: argparse.Namespace, catalog: Catalog) -> Request:
    """The request; a CUDA that never existed is invalid."""
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
