"""`provision doctor FILE`: finds problems in files, and asks the resolver whether they run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.options import read_catalog, what_if_gpu
from provision.doctor.lint import describe_findings, findings_json, lint_file, to_sarif
from provision.doctor.lint.findings import RuleHit
from provision.errors import BadInputError, Exit
from provision.model.plan import HostFacts, Request
from provision.model.request import parse_driver
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog
    from provision.doctor.lint.installed import InstalledTorch
    from provision.model.plan import Plan
    from provision.output.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchAnswer:
    """What the resolver says of a torch that a file installs. `cuda` None: a build for the CPU.
    `verdict` is that of its plan.
    """

    path: str
    line: int
    torch: str
    cuda: str | None
    verdict: str


def do_lint(paths: Sequence[str], args: argparse.Namespace, console: Console) -> int:
    """Prints the findings of files, and with --gpu or --driver which torch runs there."""
    from provision.output.files import refuse_unwritable, write_whole
    from provision.version import VERSION

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
    for path in paths:
        findings += lint_file(Path(path), catalog, judge.of(path) if judge else None)
    if args.sarif is not None:
        import json

        text = json.dumps(to_sarif(findings, VERSION), indent=2) + "\n"
        write_whole(Path(args.sarif), text.encode())
    if args.json:
        asked = {"runs": [asdict(one) for one in judge.answers]} if judge is not None else {}
        print_json(findings_json(findings) | asked)
    else:
        answers = _described(judge.answers, args) if judge is not None else []
        print_result("\n".join([describe_findings(findings, tuple(paths)), *answers]))
    return Exit.UNFIT if any(one.level == "error" for one in findings) else Exit.DONE


def _described(answers: Sequence[TorchAnswer], args: argparse.Namespace) -> list[str]:
    """A line for each answer."""
    there = ", ".join([*args.gpus, *([f"driver {args.driver}"] if args.driver else [])])
    lines = []
    for one in answers:
        build = f"CUDA {one.cuda}" if one.cuda else "the CPU"
        says = "does not run" if one.verdict == "none" else f"runs ({one.verdict})"
        lines.append(f"{one.path}:{one.line}: torch {one.torch} for {build} {says}: {there}")
    return lines or ["No torch was found that pip or uv installs in a known build."]


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
        replace(host, gpus=tuple(what_if_gpu(text, catalog) for text in args.gpus) or None),
        catalog,
    )


@dataclass
class _HostJudge:
    host: HostFacts
    catalog: Catalog
    answers: list[TorchAnswer] = field(default_factory=list)
    path: str = ""

    def of(self, path: str) -> _HostJudge:
        self.path = path
        return self

    def __call__(self, torch: InstalledTorch) -> Iterator[RuleHit]:
        """The finding that a torch does not run on the host."""
        build = torch.build
        plan = self._plan(torch, build.cuda, build.version) if build.cuda else None
        self.answers.append(
            TorchAnswer(
                path=self.path,
                line=torch.at.line,
                torch=build.version,
                cuda=build.cuda,
                verdict=plan.verdict if plan is not None else "cpu",
            )
        )
        if plan is None or plan.error is None:
            return
        yield RuleHit(
            rule="torch-not-for-host",
            at=torch.at,
            message=f"torch {build.version} for CUDA {build.cuda} "
            f"{'is installed' if torch.is_pinned else 'is what is installed today'}, and it does "
            f"not run there. {plan.error.message}",
            fix=self._fix(torch) or plan.error.fix,
        )

    def _plan(self, torch: InstalledTorch, cuda: str | None, release: str | None) -> Plan:
        from provision.resolve import resolve

        request = Request(
            cuda=cuda,
            framework_version=None if release is None else f"=={release}",
            python=torch.python,
        )
        return resolve([replace(self.host, arch=torch.build.arch)], request, self.catalog)

    def _fix(self, torch: InstalledTorch) -> str | None:
        """The build of the same release, or else of another, that the resolver plans there."""
        for release in (torch.build.version, None):
            plan = self._plan(torch, None, release)
            if plan.error is None and plan.wheel_tag and plan.framework_version:
                return (
                    f"Write torch=={plan.framework_version} and name its index: --index-url "
                    f"{self.catalog.pytorch_index(plan.wheel_tag)}"
                )
        return None
