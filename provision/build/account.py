"""The account of a build: the JSON of the command, and the output of a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.build.destination import Choice
from provision.build.maker import MadeImage
from provision.build.next_commands import CARRIED, elsewhere_words, run_words, verify_words
from provision.build.pipeline import dry_run_argv
from provision.build.project.code import ProjectCode
from provision.build.work import BuildJob, FinishedImage
from provision.model.plan import Plan
from provision.model.planfile import plan_to_json
from provision.output.console import Console
from provision.verification.scope import SuiteScope
from provision.verification.suite import proven


def dry_run(plan: Plan, tag: str, choice: Choice, job: BuildJob) -> dict[str, Any]:
    """What would be done, and the command that would be run, if any."""
    where = choice.destination.where or (
        str(job.images) if choice.destination.kind == "local" else choice.destination.kind
    )
    told = (
        shlex.join(dry_run_argv(plan, job.settings.env))
        if choice.builder == "docker"
        else f"would build {tag} from wheels and write it to {where} ({choice.why})"
    )
    return {
        **account(plan, tag=tag, choice=choice, place=where, code=job.code),
        "command": told,
    }


def account(
    plan: Plan,
    built: Sequence[FinishedImage] = (),
    *,
    tag: str | None,
    choice: Choice,
    place: str,
    image: MadeImage | None = None,
    withheld: Mapping[str, str | None] | None = None,
    kept: Sequence[Path | None] = (),
    documents: Mapping[str, object] | None = None,
    console: Console | None = None,
    reports: Sequence[dict[str, Any]] = (),
    notes: Sequence[str] = (),
    not_verified: str | None = None,
    scope: SuiteScope | None = None,
    code: ProjectCode | None = None,
    elsewhere: bool = False,
) -> dict[str, Any]:
    """What `build --json` prints; `plan` is the first image's. `elsewhere`: no image is for this
    machine's processor. `reports` are the suite's: for the plan's framework, then for others.
    `withheld`: the name that an unfit image did not get, and why; `tag` is the one that it has, if
    it could be kept.
    """
    shown = [proven(report) for report in reports]
    prove = verify_words(choice.destination, place, tag) if tag and not withheld else None
    name = tag or (image.image_id if image else "IMAGE")
    place = choice.destination.where if withheld and choice.destination.where else place
    by_others = None
    if choice.destination.kind in CARRIED and not withheld:
        by_others = elsewhere_words(choice.destination, place, name)
    lock = built[0].lock if built else None
    digest = image.manifest.digest if image and image.manifest else image and image.image_id
    return {
        "schema": 1,
        "builder": {"name": choice.builder, "why": choice.why},
        "image": {
            "tag": tag,
            "digest": digest,
            "image_id": image.image_id if image else None,
            "size_bytes": image.size_bytes if image else None,
            "destination": choice.destination.kind,
            "place": place,
            "withheld": dict(withheld) if withheld else None,
            "layers": list(image.layers) if image else [],
            **({"cut": cut.to_json()} if (cut := image and image.cut) else {}),
            "libraries": image.loading.to_json() if image and image.loading else None,
            "platforms": [
                {"platform": str(manifest.platform), "digest": manifest.digest}
                for one in built
                if (manifest := one.produced.manifest)
            ],
        },
        "plan": plan_to_json(plan),
        **({"project": code.to_json()} if code else {}),
        "lock": {
            "path": str(kept[0]) if kept and kept[0] else None,
            "sha256": lock.sha256,
            "packages": len(lock.wheels),
            "download_bytes": lock.download_bytes,
        }
        if lock
        else None,
        "documents": {"sbom": None, "provenance": None, "attached": False, **(documents or {})},
        "steps": [
            {"name": step.name, "seconds": round(step.seconds, 1)}
            for step in (console.steps if console else ())
        ],
        "verify": next(iter(reports), None),
        "verify_beside": list(reports[1:]),
        "not_verified": not_verified,
        "scope": {**scope.to_json(), "tested": scope.words, "prove": prove} if scope else None,
        "proven": [line for passed, _ in shown for line in passed],
        "not_proven": [line for _, missing in shown for line in missing],
        "notes": list(notes),
        "next": None
        if withheld and tag is None
        else (elsewhere and by_others) or run_words(choice.destination, place, name),
        "next_on_gpu_host": None if elsewhere else by_others,
        "next_on_arch": plan.arch if elsewhere else None,
        "command": None,
        "error": None,
    }
