"""`provision` alone: this machine in a line, what works on it, and the command to type next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from packaging.utils import canonicalize_name

from images.errors import Failure
from provision.cli.hosts import this_host
from provision.cli.settings import read_catalog
from provision.errors import Exit
from provision.host import in_short
from provision.model.plan import HostFacts, Plan, Request
from provision.output.console import Console
from provision.output.stdout import print_result
from provision.output.text import LABEL, row
from provision.resolve import resolve
from provision.resolve.packages import FRAMEWORKS
from provision.sources.find import read_project

ELSEWHERE = "provision plan --gpu 'RTX 4090' --driver 580.95.05"


def do_start(console: Console) -> int:
    """Read this machine, plan for it, and print what to type."""
    facts = this_host()
    print_result(
        start_text(
            facts,
            lambda: resolve((facts,), Request(), read_catalog(console)),
            has_project=has_project(Path.cwd()),
        )
    )
    return Exit.DONE


def start_text(facts: HostFacts, planned: Callable[[], Plan], *, has_project: bool) -> str:
    """The text; `planned` is called only where a plan for this machine makes sense."""
    system = " ".join(filter(None, (facts.os_id, facts.os_version)))
    rows = [("machine", ", ".join(filter(None, (in_short(facts), system, facts.arch))))]
    if facts.gpus == ():
        rows += [
            ("next", ELSEWHERE),
            ("", "shows what works on a machine with that GPU and driver"),
        ]
    elif facts.driver is None or facts.gpus is None:
        rows += [("next", "provision doctor"), ("", "says why no GPU can be used, and the fix")]
    elif (plan := planned()).error is not None:
        rows += [
            ("problem", plan.error.message),
            ("next", "provision plan"),
            ("", "explains it, and lists what would work"),
        ]
    else:
        rows += [("works", plan.title)]
        if has_project:
            rows += [
                ("next", "provision build ."),
                ("", "builds an image with the packages of this project, and tests it here"),
            ]
        else:
            rows += [("next", "provision build"), ("", "builds this image, and tests it here")]
    rows += [("help", "provision --help")]
    return "\n".join(
        line
        for name, text in rows
        # a command is copied whole
        for line in ([f"{name:<{LABEL}}{text}"] if name == "next" else row(name, text))
    )


def has_project(directory: Path) -> bool:
    """Whether a project here requires a framework, so that `provision build .` serves it."""
    try:
        declared = read_project(directory).declared
    except Failure:  # no project, or one that `build` would refuse with its reason
        return False
    return any(canonicalize_name(one.requirement.name) in FRAMEWORKS for one in declared.packages)
