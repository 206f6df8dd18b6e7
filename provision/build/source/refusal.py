"""The error for packages that have no wheel, and need more than the sandbox to be built."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any
from urllib.parse import urlsplit

from images.text.data import data_table
from images.text.printable import printable
from provision.build.source.rules import builds_here
from provision.catalog.catalog import Catalog
from provision.errors import Exit
from provision.lock.lead import PackageRelease, lag, releases_in
from provision.lock.solve import NoSolutionError, Solution
from provision.lock.sources import NotBuilt, SkippedReleases
from provision.model.plan import HostFacts, Plan, PlanError, Request, Warned
from provision.resolve import resolve
from provision.resolve.packages import name_of
from provision.resolve.specifiers import version as version_of

_table = data_table(__file__, "elsewhere.json")
_MOST_NAMED = 12


class SourceOnlyError(NoSolutionError):
    """Packages that are needed have no wheel, and cannot be built while locking."""

    code = "source-only"


class MakersIndexError(SourceOnlyError):
    """The index that has the wheels of a package was asked, and does not answer."""

    code = "index-unreachable"
    exit_code = Exit.UNREACHABLE


def source_only(
    blocked: Sequence[NotBuilt],
    plan: Plan,
    typed: str,
    others: Iterable[str],
    plans: Callable[[str], bool],
    named: Collection[str] = (),
    lacks: PlanError | None = None,
    answers: Callable[[str], bool] = lambda _: True,
) -> SourceOnlyError:
    """The error that names all of them. `typed` are the options of the plan, as the user typed
    them; `others` the lines of --with; `plans` says whether there is a plan for another CUDA;
    `named` are the indexes that were asked before the default one; `lacks` is why the plan has no
    devel image; `answers` whether the server of an index does.
    """
    hosts = {host: url for url in named if (host := urlsplit(url).hostname)}
    makers = {host for one in blocked if (host := _host_of(one.name)) in hosts}
    asked = {host: host not in makers or answers(url) for host, url in hosts.items()}
    silent = {host for host, answered in asked.items() if not answered}
    blocked = [_asked(one, plan, silent) if _host_of(one.name) in hosts else one for one in blocked]
    shown = blocked[:_MOST_NAMED]
    parts = [_described(one) for one in shown]
    more = len(blocked) - len(shown)
    parts += [f"And {more} more."] if more else []
    kind = MakersIndexError if silent else SourceOnlyError
    return kind(
        f"The index has only the source of {_and([one.name for one in blocked])}, and no wheel for "
        f"{plan.arch}. {' '.join(parts)}",
        fix=_fix(blocked, plan, typed, others, plans, asked, lacks),
    )


def _asked(one: NotBuilt, plan: Plan, silent: Collection[str | None]) -> NotBuilt:
    """A package whose maker's index was asked."""
    host = _host_of(one.name)
    lacks = f"has none for Python {plan.python} on {plan.arch}"
    why = "does not answer" if host in silent else lacks
    return replace(one, message=f"{host}, which has its wheels, {why}")


def _host_of(name: str) -> str | None:
    """The host of the index that has the wheels of a package; None: none is known."""
    row = next((row for row in _table()["indexes"] if name in row["packages"]), None)
    return urlsplit(row["index"]).hostname if row else None


def plans_with(
    hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Callable[[str], bool]:
    """Whether there is a plan of a request for another CUDA."""
    return lambda cuda: resolve(hosts, request._replace(cuda=cuda), catalog).error is None


def devel_request(plan: Plan, request: Request) -> Request:
    """The request for the devel image of a plan. A base that the user named has no compilers, so
    only the kind of base is kept.
    """
    bootstrap = plan.base is not None and plan.base.kind == "bootstrap"
    return request._replace(
        cuda=plan.cuda,
        framework_version=f"=={plan.framework_version}",
        python=plan.python,
        companions=(),
        flavour="devel",
        base="bootstrap" if bootstrap else None,
    )


def no_compiler(
    plan: Plan, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> PlanError | None:
    """Why there is no devel image of a plan, with what to change; None: there is one."""
    asked = devel_request(plan, request)
    error = resolve(hosts, asked, catalog).error
    if error is None or error.code != "no-devel-base":
        return None
    fixes = []
    if asked.base and resolve(hosts, asked._replace(base=None), catalog).error is None:
        drop = ": remove --base bootstrap" if request.base == "bootstrap" else ""
        fixes.append(f"where a registry can be reached, take NVIDIA's image{drop}")
    free = asked if request.framework_version else asked._replace(framework_version=None)
    cudas = sorted(set(catalog.cuda_versions()) - {plan.cuda}, key=version_of, reverse=True)
    planned = (one for one in cudas if plans_with(hosts, free, catalog)(one))
    if (cuda := next(planned, None)) is not None:
        fixes.append(f"take a CUDA that has one: --cuda {cuda}")
    fixes.append("give the address of a wheel: --with 'NAME @ https://HOST/NAME.whl'")
    said = "; or ".join(fixes)
    return error._replace(fix=f"{said[:1].upper()}{said[1:]}")


def _described(one: NotBuilt) -> str:
    by = f" ({one.chain.replace('`', '')})" if one.chain else ""
    why = one.message.rstrip(".")
    return f"{one.name} {one.version}{by}: {printable(why, limit=300)}."


def _and(found: Iterable[str]) -> str:
    names = list(found)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _fix(
    blocked: Sequence[NotBuilt],
    plan: Plan,
    typed: str,
    others: Iterable[str],
    plans: Callable[[str], bool],
    asked: Mapping[str, bool],
    lacks: PlanError | None,
) -> str:
    lines = []
    left = {one.name: one for one in blocked}
    for row in _table()["indexes"]:
        names = [name for name in left if name in row["packages"]]
        host = str(urlsplit(row["index"]).hostname)
        if names and asked.get(host) is False:
            lines.append(f"Check that {host} can be reached, as for: curl -I https://{host}/")
            left = {name: one for name, one in left.items() if name not in names}
        if host in asked:
            continue
        words = _index_words(row, plan, plans) if names else ""
        if words:
            lines.append(f"Take {_and(names)} from {row['owner']}: {words}")
            left = {name: one for name, one in left.items() if name not in names}
    compiled = [one for one in left.values() if _compiles(one)]
    known = [one.name for one in compiled]
    if compiled and lacks is not None:
        lines.append(f"{_and(known)}: {lacks.message} {lacks.fix}")
    elif compiled:
        pins = [f"{one.name}=={one.version}" for one in compiled]
        command = wheel_command(pins, plan, typed, others, known)
        lines.append(
            f"Build {'it' if len(pins) == 1 else 'them'} once, then repeat this: {command}"
        )
    if compiled:
        lines.append(
            "If its project has wheels elsewhere, name their index with --index, or the address of "
            f"one: --with '{compiled[0].name} @ https://HOST/NAME.whl'"
        )
        left = {name: one for name, one in left.items() if name not in known}
    if left:
        lines.append(
            f"Give the address of a wheel of {_and(left)}, built elsewhere or published by its "
            f"project: --with '{next(iter(left))} @ https://HOST/NAME.whl'"
        )
    return "\n       ".join(lines)


def _compiles(one: NotBuilt) -> bool:
    """Whether `provision wheel` may build it."""
    return builds_here(one.name) or (one.why == "compiler" and "Rust" not in one.message)


def wheel_command(
    pins: Sequence[str], plan: Plan, typed: str, others: Iterable[str], known: Collection[str]
) -> str:
    """What builds these packages for the same plan, as the user can type it."""
    own = {
        "--framework": plan.framework,
        "--framework-version": plan.framework_version,
        "--cuda": plan.cuda,
        "--python": plan.python,
    }
    given = shlex.split(typed)
    words = ["provision", "wheel", *pins]
    words += [w for line in others if name_of(line) not in known for w in ("--with", line)]
    words += [w for option, value in own.items() if option not in given and value
              for w in (option, value)]  # fmt: skip
    return f"{shlex.join(words)} {typed}".rstrip()


def elsewhere(name: str) -> str:
    """Whose index has the wheels of a package, in words; "" if none is known."""
    row = next((row for row in _table()["indexes"] if name in row["packages"]), None)
    return "" if row is None else f"its wheels are on {row['owner']}"


def _index_words(row: dict[str, Any], plan: Plan, plans: Callable[[str], bool]) -> str:
    """The options that name an index; "" if the hosts run no CUDA that it has wheels for."""
    if "cuda" not in row:
        return f"--index {row['index']}"
    order = [str(plan.cuda), *sorted(row["cuda"], key=version_of, reverse=True)]
    cuda = next((c for c in order if c in row["cuda"] and (c == plan.cuda or plans(c))), "")
    index = f"--index {row['index'].replace('{cu}', 'cu' + cuda.replace('.', ''))}"
    return "" if not cuda else index if cuda == plan.cuda else f"--cuda {cuda} {index}"


def with_passed_over(found: Solution, passed: SkippedReleases) -> Solution:
    """What uv found, with a warning for each release that was passed over since it has no wheel."""
    warnings = tuple(
        Warned(
            code="source-passed-over",
            message=f"{one.name} {one.version} has only its source on the index, so another "
            f"release is in the lock, or none: {one.message.rstrip('.')}.",
            fix=f"To have it, give the address of a wheel: --with '{one.name} @ "
            "https://HOST/NAME.whl'",
        )
        for one in passed.packages
    )
    plan = found.plan._replace(warnings=(*found.plan.warnings, *warnings))
    return replace(found, plan=plan)


def far_behind(found: Solution, passed: SkippedReleases) -> bool:
    """Whether a package of a lock is far older than in the resolution with what was passed over."""
    mine = releases_in(found.text)
    for name, version in passed.releases.items():
        day = passed.uploaded.get(name)
        newest = PackageRelease(version, date.fromisoformat(day) if day else None)
        if name in mine and lag(mine[name], newest) is not None:
            return True
    return False
