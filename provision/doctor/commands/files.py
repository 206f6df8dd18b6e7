"""`provision doctor FILE`: finds problems in files, and asks the resolver whether they run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.cli.hosts import what_if_gpu
from provision.cli.settings import read_catalog
from provision.doctor.commands import stdin
from provision.doctor.lint import describe_findings, findings_json, lint, lint_file, to_sarif
from provision.doctor.lint.findings import RuleHit
from provision.errors import BadInputError, Exit
from provision.model.plan import PACKAGES, RUNS, Framework, HostFacts, Plan, PlanError, Request
from provision.model.request import parse_driver
from provision.output.console import Console
from provision.output.files import refuse_unwritable, write_whole
from provision.output.stdout import print_json, print_result
from provision.version import VERSION

if TYPE_CHECKING:
    from provision.doctor.lint.installed import InstalledFramework

_FOR_CPUS: dict[Framework, str] = {
    "pytorch": "torch-cpu-wheel",
    "tensorflow": "torch-cpu-wheel",
    "jax": "jax-cpu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """What the resolver says of a framework that a file installs. `cuda` None: a build for the CPU,
    or none that runs. `verdict` is that of its plan, or "cpu".
    """

    path: str
    line: int
    framework: Framework
    release: str
    cuda: str | None
    verdict: str


def do_lint(paths: Sequence[str], args: argparse.Namespace, console: Console) -> int:
    """Prints the findings of files, and with --gpu or --driver which framework runs there."""
    if args.logs or args.bundle or args.fix:
        raise BadInputError(
            f"--log, --bundle and --fix cannot be used with a file to check ({paths[0]}).",
            fix=f"Remove them: provision doctor {paths[0]}",
        )
    if args.sarif is not None:
        refuse_unwritable("--sarif", Path(args.sarif))
    catalog = read_catalog(console)
    judge = _judge(args, catalog)
    findings = []
    names = tuple(stdin.NAME if path == "-" else path for path in paths)
    for path, name in zip(paths, names, strict=True):
        of_host = judge.of(name) if judge else None
        if path == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
            findings += lint(name, text, catalog, of_host)
        else:
            findings += lint_file(Path(path), catalog, of_host)
    if args.sarif is not None:
        text = json.dumps(to_sarif(findings, VERSION), indent=2) + "\n"
        write_whole(Path(args.sarif), text.encode())
    if args.json:
        asked = {"runs": [asdict(one) for one in judge.answers]} if judge is not None else {}
        print_json(findings_json(findings) | asked)
    else:
        answers = _described(judge.answers, args) if judge is not None else []
        print_result("\n".join([describe_findings(findings, names), *answers]))
    return Exit.UNFIT if any(one.level == "error" for one in findings) else Exit.DONE


def _described(answers: Sequence[HostAnswer], args: argparse.Namespace) -> list[str]:
    """A line for each answer."""
    there = ", ".join([*args.gpus, *([f"driver {args.driver}"] if args.driver else [])])
    lines = []
    for one in answers:
        build = f" for CUDA {one.cuda}" if one.cuda else ""
        says = RUNS.get(one.verdict, "is a build for the CPU and uses no GPU")
        name = PACKAGES[one.framework]
        lines.append(f"{one.path}:{one.line}: {name} {one.release}{build} {says}: {there}")
    return lines or ["No framework was found that pip or uv installs in a known build."]


def _judge(args: argparse.Namespace, catalog: Catalog) -> _HostJudge | None:
    """The judge for the given GPUs and driver; None: neither is given. The machine that reads a
    file is not the one that the file is for.
    """
    if not args.gpus and args.driver is None:
        return None
    host = HostFacts()
    if args.driver is not None:
        host = host.with_driver(parse_driver(args.driver))
    return _HostJudge(
        host._replace(gpus=tuple(what_if_gpu(text, catalog) for text in args.gpus) or None),
        catalog,
    )


@dataclass
class _HostJudge:
    host: HostFacts
    catalog: Catalog
    answers: list[HostAnswer] = field(default_factory=list)
    path: str = ""

    def of(self, path: str) -> _HostJudge:
        self.path = path
        return self

    def __call__(self, one: InstalledFramework) -> Iterator[RuleHit]:
        """The finding that a framework does not run on the host."""
        plans = [self._plan(one, cuda, one.release) for cuda in one.cudas]
        plan = next((plan for plan in plans if plan.error is None), plans[0] if plans else None)
        cuda = plan.cuda or one.cudas[0] if plan is not None else None
        refusal = _refusal(plan, one) if plan is not None else None
        self.answers.append(
            HostAnswer(
                path=self.path,
                line=one.at.line,
                framework=one.framework,
                release=one.release,
                cuda=cuda,
                verdict="cpu" if plan is None else "none" if refusal else plan.verdict,
            )
        )
        name = f"{PACKAGES[one.framework]} {one.release}"
        if plan is None and not one.for_cpus:
            yield RuleHit(
                rule=_FOR_CPUS[one.framework],
                at=one.at,
                message=f"{name} is a build for the CPU, and does not use the GPU there.",
                fix=self._fix(one) or "Leave --gpu and --driver out if the file is for the CPU.",
            )
        elif refusal is not None:
            of_cuda = f" for CUDA {cuda}" if cuda else ""
            yield RuleHit(
                rule="framework-not-for-host",
                at=one.at,
                message=f"{name}{of_cuda} "
                f"{'is installed' if one.is_pinned else 'is what is installed today'}, and it "
                f"does not run there. {refusal.message}",
                fix=self._fix(one) or refusal.fix,
            )

    def _plan(self, one: InstalledFramework, cuda: str | None, release: str | None) -> Plan:
        from provision.resolve import resolve

        request = Request(
            framework=one.framework,
            cuda=cuda,
            framework_version=None if release is None else f"=={release}",
            python=one.python,
        )
        return resolve([self.host._replace(arch=one.arch)], request, self.catalog)

    def _fix(self, one: InstalledFramework) -> str | None:
        """The build of the same release, or else of another, that the resolver plans there."""
        for release in (one.release, None):
            plan = self._plan(one, None, release)
            needs_compat = plan.verdict == "forward" and not one.compat
            if needs_compat or _refusal(plan, one) is not None or not plan.framework_version:
                continue
            line = f"{PACKAGES[one.framework]}{{}}=={plan.framework_version}"
            if one.framework == "pytorch" and plan.wheel_tag:
                index = self.catalog.pytorch_index(plan.wheel_tag)
                return f"Write {line.format('')} and name its index: --index-url {index}"
            major = (plan.cuda or "").partition(".")[0]
            extra = "and-cuda" if one.framework == "tensorflow" else f"cuda{major}"
            return f"Write {line.format(f'[{extra}]')}"
        return None


def _refusal(plan: Plan, one: InstalledFramework) -> PlanError | None:
    """Why a plan does not run in what the file builds, to which nothing is added."""
    if plan.verdict != "forward" or one.compat is None or not plan.cuda:
        return plan.error
    if one.compat and Version(one.compat) >= Version(plan.cuda):
        return None
    return PlanError(
        code="no-compat-base",
        message=f"CUDA {plan.cuda} needs driver {plan.driver_need} or newer; found "
        f"{plan.driver_have}, which runs it only with {plan.compat_package}, and this image does "
        "not have that.",
        fix=f"Install {plan.compat_package} in the image, or driver {plan.driver_need} or newer on "
        "the host.",
    )
