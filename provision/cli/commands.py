"""One function per command: read the options, do it, print the result, return the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from images.errors import Failure
from provision.cli.consult import causes_of_report, tell
from provision.cli.options import (
    read_build,
    read_catalog,
    read_format,
    read_hosts,
    read_places,
    read_request_for,
    read_settings,
    this_host,
    what_if_gpu,
)
from provision.cli.paths import record_home
from provision.cli.project_options import read_project_option
from provision.cli.suite_options import read_check, read_image, read_order, read_origin_check
from provision.errors import BadInputError, Exit, exit_of_refusal
from provision.model.plan import Cell, HostFacts, Plan
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_document, print_json, print_result

if TYPE_CHECKING:
    from provision.build.maker import LockedImage
    from provision.catalog.catalog import Catalog
    from provision.cli.render.install import HostInstall
    from provision.cli.render.plan import Installing
    from provision.sources.find import Project

# Options that contradict what a lock has already decided.
_DECIDED_BY_LOCK = {
    "cuda": "--cuda",
    "framework_version": "--framework-version",
    "python": "--python",
    "companions": "--with",
    "extras": "--extra",
    "groups": "--group",
    "base": "--base",
    "apt": "--apt",
    "host": "--host",
    "driver": "--driver",
    "gpus": "--gpu",
}


def do_detect(args: argparse.Namespace, console: Console) -> int:
    """What is known of this machine."""
    del console
    from provision.cli.render.host import describe_host
    from provision.host import detect
    from provision.model.facts import host_to_json

    facts = detect()
    if args.json:
        print_json(host_to_json(facts))
    else:
        print_result(describe_host(facts))
    return Exit.DONE


def do_plan(args: argparse.Namespace, console: Console) -> int:
    """A plan, or why nothing fits, for what a project declares if one is named; with --matrix
    every build and whether it fits; with --format how to install it without a container.
    """
    from functools import cache

    from provision.model.planfile import matrix_to_json, plan_to_json
    from provision.resolve import matrix, resolve

    install = read_format(args)
    catalog = read_catalog(console)
    read = cache(lambda: read_hosts(args, catalog))
    project = read_project_option(args)
    request = read_request_for(project, args, catalog, read)
    if args.ca_bundle is not None:
        from provision.lock.network import ca_bundle

        ca_bundle(args.ca_bundle, {})
    hosts = read()
    plan = resolve(hosts, request, catalog)
    if install is None and request.companions:
        from provision.resolve.run_time import plan_for_needs, requested_needs, with_remarks

        needs = requested_needs(request)
        request, plan = plan_for_needs(hosts, request, catalog, needs)
        plan = with_remarks(plan, hosts, request, catalog, needs)
    if project is not None:
        from provision.build.project.pins import with_lines

        plan = with_lines(plan, project, hosts, request, catalog)
    if install is not None:
        _show_install(plan, install, catalog, console)
        return Exit.DONE
    cells: Sequence[Cell] = ()
    if args.matrix:
        cells = matrix(hosts, request, catalog)
    elif args.explain:
        cells = matrix(hosts, request._replace(cuda=None), catalog)
    if args.json:
        result = plan_to_json(plan)
        print_json({**result, "matrix": matrix_to_json(cells)} if args.matrix else result)
    else:
        from provision.cli.render.plan import describe_matrix, describe_plan

        if args.matrix:
            print_result(describe_matrix(cells, plan))
        else:
            installing = _installing(args, plan, catalog, hosts) if plan.error is None else None
            print_result(describe_plan(plan, installing, explain=args.explain, considered=cells))
    return Exit.DONE if plan.error is None else exit_of_refusal(plan.error.code)


def _installing(
    args: argparse.Namespace, plan: Plan, catalog: Catalog, hosts: Sequence[HostFacts]
) -> Installing:
    """What to type for a plan. Where more is needed than commands, --format says it."""
    from provision.cli.render.install import host_install, is_alone, pip_commands
    from provision.cli.render.plan import Installing
    from provision.cli.typed import request_words
    from provision.resolve.builds import build_of

    known = hosts if plan.verdict != "unverified" else ()
    words, build = request_words(args, known), build_of(plan, catalog)
    by_commands = args.project is None and not args.companions and is_alone(plan, build)
    in_full = " ".join(filter(None, ("provision plan", words, "--format pip")))
    host = pip_commands(host_install(plan, build)) if by_commands else (in_full,)
    return Installing(
        build=f"provision build {words}".rstrip(),
        host=host,
        toolkit=build.libraries == "system" or plan.flavour == "devel",
    )


def _show_install(
    plan: Plan, install: Callable[[HostInstall], str], catalog: Catalog, console: Console
) -> None:
    """Only what can be saved and run goes to stdout; the plan's remarks go to stderr."""
    from provision.build.base import require_plan
    from provision.build.pipeline import show_remarks
    from provision.cli.render.install import host_install
    from provision.resolve.builds import build_of

    plan = require_plan(plan)
    show_remarks(plan, console)
    print_document(install(host_install(plan, build_of(plan, catalog))))


def do_lock(args: argparse.Namespace, console: Console) -> int:
    """Plan, pin the base, choose the wheels, write the file."""
    import shlex
    from pathlib import Path

    from provision.lock.lockfile import write_lock
    from provision.model.planfile import plan_to_json
    from provision.output.files import refuse_unwritable

    output = Path(args.output)

    def refuse(project: Project | None) -> None:
        _check_lock_name(output.name, console)
        if project is not None:
            project.refuse_to_replace(output)
        refuse_unwritable("--output", output)

    lock = make_lock(args, console, refuse=refuse).lock
    write_lock(lock, output)
    result = {
        "schema": 1,
        "path": str(output),
        "sha256": lock.sha256,
        "packages": len(lock.wheels),
        "download_bytes": lock.download_bytes,
        "plan": plan_to_json(lock.plan),
        "error": None,
    }
    where = "" if args.project is None else f"{shlex.quote(args.project)} "
    if args.json:
        print_json(result)
    else:
        print_result(
            f"{output}: {len(lock.wheels)} wheels, sha256:{lock.sha256}\n"
            f"next: provision build {where}--lock {shlex.quote(str(output))}"
        )
    return Exit.DONE


def make_lock(
    args: argparse.Namespace, console: Console, *, refuse: Callable[[Project | None], None]
) -> LockedImage:
    """Plan, pin the base and choose the wheels. `refuse` is called before the network is used."""
    from functools import cache

    from provision.build.base import pin_base, pinned, refuse_missing_places, require_plan
    from provision.build.maker import LockedImage
    from provision.build.pipeline import choose_packages, lock_for, show_remarks
    from provision.build.project.pins import check_hashes, naming_pins
    from provision.resolve import resolve

    catalog = read_catalog(console)
    read = cache(lambda: read_hosts(args, catalog))
    project = read_project_option(args)
    request = read_request_for(project, args, catalog, read)
    refuse(project)
    refuse_missing_places(request.base)
    settings, hosts = read_settings(args), read()
    with naming_pins(project, hosts, request, catalog):
        plan = require_plan(resolve(hosts, request, catalog))
        plan, request, packages = choose_packages(
            plan, hosts, request, catalog, settings, console, lambda: None
        )
        show_remarks(plan, console)
        with console.step("base", "pinning the base image"):
            plan, archive = pin_base(
                plan,
                hosts,
                request,
                catalog,
                settings,
                console,
                None,
                with_packages=packages.choose_on_bootstrap,
            )
        with console.step("lock", "resolving the wheels"):
            lock = lock_for(plan, hosts, request, catalog, settings, console, packages)
        check_hashes(project, lock)
    return LockedImage(lock=lock, base=pinned(plan, archive))


def _check_lock_name(name: str, console: Console) -> None:
    """Warn of a name that installers do not take for a lock, before the network is used.
    BadInputError: it is not that of a TOML file.
    """
    from provision.lock.lockfile import LOCK_NAME

    if not name.endswith(".toml"):
        raise BadInputError(
            f"--output {quoted(name)}: a lock must be named pylock.toml or pylock.NAME.toml.",
            fix="Choose such a name (PEP 751: installers look for it).",
        )
    if not LOCK_NAME.fullmatch(name):
        console.warn(
            f"--output {quoted(name)}: pip and uv take a lock only if it is named pylock.toml or "
            "pylock.NAME.toml (PEP 751).",
            "provision build --lock takes it as it is; for other installers, rename it.",
        )


def do_build(args: argparse.Namespace, console: Console) -> int:
    """The main job, and its account."""
    result, code = build_image(args, console)
    reports = [result.get("verify") or {}, *result.get("verify_beside", ())]
    causes = next(filter(None, map(causes_of_report, reports)), ())
    if args.json:
        from provision.doctor.account import causes_json

        print_json({**result, "doctor": causes_json(causes)} if causes else result)
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
    import dataclasses
    from contextlib import ExitStack
    from functools import cache

    from images.store.locks import present
    from provision.build.job import build
    from provision.cli.cut import planned_for, read_cut, refuse_contradiction

    with ExitStack() as stack:
        if args.bundle is None:
            catalog, unpacked = read_catalog(console), None
        else:
            from provision.cli.bundle import taken_from

            catalog, unpacked = stack.enter_context(taken_from(args, this_host, console))
        if args.lock and unpacked is None:
            refuse_beside_lock(args, "--lock")
        cut = read_cut(args.cut, catalog, args.builder)
        refuse_contradiction([what_if_gpu(text, catalog) for text in args.gpus], cut)
        hosts = cache(lambda: planned_for(read_hosts(args, catalog), cut))
        job = read_build(args, catalog, hosts)
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
    from provision.model.request import parse_requirement

    given = [option for name, option in _DECIDED_BY_LOCK.items() if getattr(args, name, None)]
    whole = all(" @ " in parse_requirement(word)[0] for word in args.companions)
    if whole and decided_by == "--lock" and "--with" in given:
        given.remove("--with")
    if given:
        raise BadInputError(
            f"{decided_by} already determines what {' and '.join(given)} would choose.",
            fix=f"Remove {' and '.join(given)}, or write another lock: provision lock",
        )


def do_verify(args: argparse.Namespace, console: Console) -> int:
    """Run the suite inside an existing image, or judge the record of an earlier run."""
    if args.check_record is not None:
        return _check_record(args, console)
    if args.check_provenance is not None:
        return _check_provenance(args, console)
    from images.store.locks import present
    from provision.verification.command import verify
    from provision.verification.report_files import page
    from provision.verification.suite import in_numbers

    order, places = read_order(args), read_places(args, console)
    with present(places.state):
        done = verify(
            order,
            places=places,
            facts=this_host,
            catalog=read_catalog(console),
            console=console,
        )
    if args.json:
        print_json(done.report)
    else:
        print_result(page(done.report) or in_numbers(done.report))
    tell(causes_of_report(done.report), console)
    if done.trouble is not None:
        console.fail(done.trouble.message, done.trouble.fix, done.trouble.detail)
    return done.code


def _check_record(args: argparse.Namespace, console: Console) -> int:
    from provision.cli.render.build import describe_check
    from provision.verification.record_check import check_record, check_to_json, find_case

    path, trust, level = read_check(args)
    image = read_image(args.image)
    checked = check_record(
        find_case(image, places=read_places(args, console), facts=this_host()),
        home=record_home(),
        path=path,
        trust=trust,
        level=level,
    )
    result = check_to_json(checked)
    if args.json:
        print_json(result)
    else:
        print_result(describe_check(result))
    if isinstance(checked.outcome, Failure):
        console.fail(checked.outcome.message, checked.outcome.fix)
    return checked.outcome.exit_code


def _check_provenance(args: argparse.Namespace, console: Console) -> int:
    from provision.attestation.provenance.check import check_to_json
    from provision.cli.render.build import describe_origin
    from provision.verification.origin_check import check_origin

    path, trust, lock = read_origin_check(args)
    checked = check_origin(
        read_image(args.image),
        places=read_places(args, console),
        home=record_home(),
        path=path,
        trust=trust,
        lock=lock,
    )
    result = check_to_json(checked.image, checked.outcome, checked.keyid)
    if args.json:
        print_json(result)
    else:
        print_result(describe_origin(result))
    if isinstance(checked.outcome, Failure):
        console.fail(checked.outcome.message, checked.outcome.fix)
    return checked.outcome.exit_code
