"""`provision build`: the whole job, and the account of it."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from images.docker import Docker
from images.spec import BuiltImage
from provision.catalog import Catalog
from provision.console import Console
from provision.errors import Exit
from provision.lock import Lock, read_lock_file, write_lock
from provision.model import TITLES, HostFacts, Plan, Request
from provision.pipeline import (
    Settings,
    base_from_lock,
    build_image,
    builder_here,
    check_disk,
    default_tag,
    dry_run_argv,
    image_spec,
    lock_for,
    pin_base,
    require_plan,
    secrets_for,
    show_warnings,
)
from provision.planfile import plan_to_json
from provision.resolve import resolve
from provision.suite import (
    Asked,
    check_names,
    gpu_runtime_warning,
    gpus_to_request,
    proven,
    run_command,
    run_suite,
)


def build(
    *,
    request: Request,
    catalog: Catalog,
    hosts: Callable[[], Sequence[HostFacts]],
    facts: Callable[[], HostFacts],
    lock_file: Path | None,
    tag: str | None,
    settings: Settings,
    asked: Asked,
    verify: bool,
    dry_run: bool,
    console: Console,
) -> tuple[dict[str, Any], int]:
    """Do it. Gives the account (the JSON of the command) and the exit code.

    `hosts` are those the plan is for; `facts` are this machine's, where the suite runs. Failures
    come as `Failure`; the exit code is 0, or 1 when a check failed in the image that was built.
    """
    locked = read_lock_file(lock_file) if lock_file is not None else None
    check_names(asked, locked.plan.framework if locked else request.framework)
    if locked is None:
        with console.step("detect", "reading the host"):
            planned_for = hosts()
        with console.step("plan", "deciding"):
            plan = require_plan(resolve(planned_for, request, catalog))
            console.note(_in_words(plan))
        show_warnings(plan.warnings, console)
    else:
        planned_for, plan = (), locked.plan
    tag = tag or default_tag(plan)
    if dry_run:
        argv = dry_run_argv(plan, settings.env)
        return _account(plan=plan, tag=tag, dry_run=shlex.join(argv)), Exit.DONE
    engine, builder = _preflight(settings)
    here = facts()
    if verify and (warning := gpu_runtime_warning(here)):
        show_warnings([warning], console)
    archive: Path | None = None
    with console.step("base", "pinning the base image"):
        if locked is None:
            plan, archive = pin_base(plan, planned_for, request, catalog, settings, console, engine)
            assert plan.base is not None
            base = plan.base.reference
            if plan.base.kind == "registry":
                base = f"{base.partition('@')[0]}@{plan.base.digest}"
        else:
            base, archive = base_from_lock(plan, engine, settings, console)
        console.note(base)
    if locked is None:
        with console.step("lock", "choosing the wheels"):
            locked = lock_for(plan, request, settings, console)
    check_disk(locked, engine)
    if archive is not None and not engine.has(base):
        engine.load(archive)
    with tempfile.TemporaryDirectory(prefix="gpu-provision-") as name:
        path = Path(name) / "pylock.toml"
        write_lock(locked, path)
        with console.step("build", f"{tag} ({builder.kind} {builder.version})"):
            image = build_image(
                engine,
                builder,
                locked,
                image_spec(locked, path, base),
                secrets_for(locked, request, settings),
                console,
            )
        kept = _keep_lock(path, tag, settings)
    report: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    if verify:
        with console.step("verify", f"inside the image, at level {asked.level}"):
            report, notes = run_suite(
                engine,
                image.image_id,
                locked.plan,
                here,
                asked,
                catalog=catalog,
                console=console,
            )
    unfit = report is not None and report["verdict"] == "unfit"
    if not unfit:
        engine.tag(image.image_id, tag)
    account = _account(
        plan=locked.plan,
        tag=None if unfit else tag,
        image=image,
        lock=locked,
        lock_path=kept,
        console=console,
        report=report,
        notes=notes,
        not_verified=None if verify else "--no-verify",
        gpus=gpus_to_request(here),
    )
    return account, Exit.UNFIT if unfit else Exit.DONE


def _preflight(settings: Settings) -> tuple[Docker, Any]:
    """Engine and builder, before anything slow."""
    from images.engine_setup import fix_text

    engine = Docker.connect(fix=fix_text())
    return engine, builder_here(settings.env)


def _keep_lock(path: Path, tag: str, settings: Settings) -> Path | None:
    """A copy for `build --lock`; failing to keep it is no reason to fail the build."""
    name = "".join(c if c.isalnum() else "-" for c in tag)
    kept = settings.state / "locks" / f"pylock.{name}.toml"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    except OSError:
        return None
    return kept


def _in_words(plan: Plan) -> str:
    return (
        f"{TITLES[plan.framework]} {plan.framework_version} for CUDA {plan.cuda}, "
        f"Python {plan.python}: {plan.verdict}"
    )


def _account(
    *,
    plan: Plan,
    tag: str | None,
    image: BuiltImage | None = None,
    lock: Lock | None = None,
    lock_path: Path | None = None,
    console: Console | None = None,
    report: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
    not_verified: str | None = None,
    gpus: str = "none",
    dry_run: str | None = None,
) -> dict[str, Any]:
    passed, missing = proven(report) if report else ([], [])
    name = tag or (image.image_id if image else "IMAGE")
    elsewhere = run_command(name, gpus="runtime", notes=())
    return {
        "schema": 1,
        "image": {
            "tag": tag,
            "digest": image.image_id if image else None,
            "size_bytes": image.size_bytes if image else None,
        },
        "plan": plan_to_json(plan),
        "lock": {
            "path": str(lock_path) if lock_path else None,
            "sha256": lock.sha256,
            "packages": len(lock.wheels),
            "download_bytes": lock.download_bytes,
        }
        if lock
        else None,
        "steps": [
            {"name": step.name, "seconds": round(step.seconds, 1)}
            for step in (console.steps if console else ())
        ],
        "verify": report,
        "not_verified": not_verified,
        "proven": passed,
        "not_proven": missing,
        "notes": list(notes),
        "next": run_command(name, gpus=gpus, notes=notes),
        "next_on_gpu_host": elsewhere if gpus == "none" else None,
        "command": dry_run,
        "error": None,
    }
