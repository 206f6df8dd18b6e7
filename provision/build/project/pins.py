"""Refusals that a project's pins cause name the line of the pin, and what to write there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.errors import Failure
from images.text.printable import printable
from provision.build.project.request import FrameworkPin, framework_pin, is_of_the_build
from provision.build.source.checkout import GitError
from provision.catalog.catalog import Catalog
from provision.errors import Exit, IndexUnreachableError, NothingCompatibleError
from provision.lock.lockfile import Lock
from provision.lock.solve import NoSolutionError
from provision.lock.source_builds import GitSource
from provision.model.plan import PACKAGES, HostFacts, Plan, Request
from provision.resolve import resolve
from provision.resolve.cures import RequestChange, spell_options
from provision.sources.declaration import Declaration, Declared, allowed_by, pythons_of
from provision.sources.find import Project

_MOST_NAMED, _LONGEST = 4, 80


class ProjectHashError(Failure):
    """An index has another file for a version than the one whose hash the project declares."""

    code = "project-hash-mismatch"
    exit_code = Exit.NOTHING_COMPATIBLE


@contextmanager
def naming_pins(
    project: Project | None, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Iterator[None]:
    """Add to a refusal which lines of the project it comes from, and the release to pin instead."""
    try:
        yield
    except GitError as failure:
        rows = (*project.declared.packages, *project.declared.constraints) if project else ()
        name = canonicalize_name(failure.package)
        if (line := next((one for one in rows if one.name == name), None)) is not None:
            failure.message += f" The project requires it: {_short(line, None)} ({line.where})."
            failure.fix += f"\n       Or build the image without it: --without {name}"
        raise
    except (NothingCompatibleError, NoSolutionError, IndexUnreachableError) as failure:
        if project is not None:
            pin = _pin_of(project, hosts, request, catalog)
            lines = [one for one in pin.declared if one.requirement.specifier]
            planned_fix = _fix(project, pin, hosts, request, catalog, failure.message)
            said = f"{failure.message} {failure.detail}"
            lines = list(
                {one.where: one for one in (*lines, *_mentioned(project.declared, said))}.values()
            )
            if failure.code == "no-wheel-for-python":
                limits = (project.python if request.python else None, project.declared.python)
                lines += [one for one in limits if one is not None]
            if isinstance(failure, IndexUnreachableError) and pin.cuda is not None:
                lines += [pin.cuda] if pin.cuda.where not in {one.where for one in lines} else []
            if lines:
                shown = [f"{one.where}: {_short(one, pin.cuda)}" for one in lines]
                few = "; ".join(dict.fromkeys(shown[:_MOST_NAMED]))
                more = len(lines) - _MOST_NAMED
                failure.message += f" The project requires: {few}"
                failure.message += f"; and {more} more." if more > 0 else "."
            if isinstance(failure, NothingCompatibleError):
                failure.fix = planned_fix or failure.fix
        raise


def with_lines(
    plan: Plan, project: Project, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Plan:
    """A plan whose refusal names the project's lines, too, without alternatives that contradict
    them.
    """
    pin = _pin_of(project, hosts, request, catalog)
    allowed = Requirement(f"x{pin.specifier}").specifier
    alternatives = tuple(
        one
        for one in plan.alternatives
        if allowed.contains(one.framework_version, prereleases=True)
        and (pin.cuda is None or pin.cuda.text == one.cuda)
    )
    plan = plan._replace(alternatives=alternatives)
    if plan.error is None:
        return plan
    failure = NothingCompatibleError(plan.error.message, fix=plan.error.fix)
    failure.code = plan.error.code
    with suppress(NothingCompatibleError), naming_pins(project, hosts, request, catalog):
        raise failure
    return plan._replace(error=plan.error._replace(message=failure.message, fix=failure.fix))


def _pin_of(
    project: Project, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> FrameworkPin:
    arch = next((host.arch for host in hosts if host.arch), "x86_64")
    allowed = [request.python] if request.python else request.pythons or pythons_of(catalog)
    return framework_pin(project.declared, request.framework, arch, allowed)


def _short(one: Declared, cuda: Declared | None) -> str:
    what = "CUDA " if one is cuda else "" if one.text[:1].isalpha() else "Python "
    text = one.text if len(one.text) <= _LONGEST else one.text.partition(";")[0]  # no long marker
    return printable(f"{what}{text}", limit=_LONGEST)


def _mentioned(declared: Declaration, said: str) -> Iterator[Declared]:
    """The requirements whose package a message names."""
    words = set(re.findall(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*", said.lower().replace("_", "-")))
    for one in (*declared.packages, *declared.constraints):
        if one.name in words and one.requirement.specifier:
            yield one


def _fix(
    project: Project,
    pin: FrameworkPin,
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    message: str,
) -> str | None:
    """The fix of the plan's refusal with this message, in lines of the project; None: another
    error. A base that nobody named is kept: no registry answered.
    """
    spell = PinLines(project, pin, request)
    for one in (request, request._replace(base="bootstrap")):
        error = resolve(hosts, one, catalog, spell=spell).error
        if error is not None and error.message in message:
            return error.fix
    return None


class PinLines:
    """Words the changes of a request for a project: the lines of its files with their new text, and
    the options for what no file says.
    """

    def __init__(self, project: Project, pin: FrameworkPin, request: Request) -> None:
        self._project, self._declared, self._pin = project, project.declared, pin
        self._request = request

    def __call__(self, step: RequestChange, cured: Request) -> str | None:
        """What to type for a step to the request `cured`; None: nobody can."""
        if step.field == "base" and self._request.base is None:
            return None
        if step.field == "apt" and self._project.apt:
            return "In pyproject.toml, remove apt"
        words = {
            "framework-version": self._release,
            "cuda": self._cuda,
            "python": self._python,
            "with": self._companion,
        }
        line = words[step.field](step, cured) if step.field in words else ""
        return spell_options(step, cured) if line == "" else line

    def _release(self, step: RequestChange, cured: Request) -> str | None:
        rows = [one for one in self._pin.declared if one.requirement.specifier]
        if not rows:
            return ""
        if self._pin.specifier != step.before:  # an option narrows it
            asked = Requirement(f"x{self._pin.specifier}").specifier
            return "" if asked.contains(step.after or "", prereleases=True) else None
        tag = ""
        if self._tagged and cured.cuda and cured.framework == "pytorch":
            tag = f"+cu{cured.cuda.replace('.', '')}"
        if self._declared.locked and not rows[0].file.endswith(".txt"):
            name = PACKAGES[cured.framework]
            return f"Lock the project again with {name}=={step.after} ({rows[0].where})"
        lines = dict.fromkeys(f"In {one.where}, pin {one.name}=={step.after}{tag}" for one in rows)
        return " and in ".join(line if not i else line[3:] for i, line in enumerate(lines))

    @property
    def _tagged(self) -> bool:
        """Whether the framework's own pin names the CUDA ("2.5.1+cu121")."""
        places = {one.where for one in self._pin.declared}
        return self._pin.cuda is not None and self._pin.cuda.where in places

    def _cuda(self, step: RequestChange, cured: Request) -> str | None:
        named = self._pin.cuda
        if named is None or step.after is None:
            return ""
        if self._tagged:
            exact = (cured.framework_version or "").removeprefix("==")
            return self._release(
                RequestChange("framework-version", self._pin.specifier, exact), cured
            )
        if cured.framework == "pytorch" and not named.file.endswith(("yml", "yaml")):
            return f"In {named.where}, name the index of cu{step.after.replace('.', '')}"
        return f"In {named.where}, name CUDA {step.after}"

    def _python(self, step: RequestChange, _: Request) -> str | None:
        if self._pin.pythons or step.after is None:
            return None  # its lines differ by Python
        limit, own = self._declared.python, self._project.python
        words = []
        if limit is not None and step.after not in allowed_by(limit.text, [step.after]):
            words.append(f"In {limit.where}, allow Python {step.after}")
        if own is not None and own.text == self._request.python:
            words.append(f"In {own.file}, write {step.after}")
        elif self._request.python is not None:
            words.append(f"Use --python {step.after}")
        return " and ".join(words)

    def _companion(self, step: RequestChange, _: Request) -> str | None:
        before = Requirement(step.before or "")
        name = canonicalize_name(before.name)
        rows = [one for one in self._declared.packages if one.name == name]
        if not rows:
            return ""
        if len(rows) > 1:
            return None  # its markers choose the line
        if step.after is None:
            return f"In {rows[0].where}, remove {name}"
        exact = step.after.startswith(f"{name}==")
        return f"In {rows[0].where}, {'pin' if exact else 'write'} {step.after}"


def check_hashes(project: Project | None, lock: Lock) -> None:
    """Compare the wheels of a lock with the hashes that the project declares. The framework's build
    is the plan's choice. ProjectHashError: a wheel is another one.
    """
    if project is None:
        return
    sources = {one.sha256: one.source for one in lock.builds}
    for wheel in lock.wheels:
        source = sources.get(wheel.sha256)
        if isinstance(source, GitSource):  # a commit is one
            continue
        sha256 = wheel.sha256 if source is None else source.sha256
        known = project.declared.hashes.get(wheel.name)
        free = is_of_the_build(wheel.name, lock.plan.framework)
        if known and not free and sha256 not in known:
            if source is None and wheel.url.startswith("file:"):
                raise ProjectHashError(
                    f"{wheel.name} {wheel.version} was built on this machine, and "
                    f"{project.declared.source} has hashes of other files for it.",
                    fix=f"Add its hash there: sha256:{wheel.sha256}",
                )
            raise ProjectHashError(
                f"The index has another file for {wheel.name} {wheel.version} than "
                f"{project.declared.source} declares: sha256:{sha256} is not among its "
                f"{len(known)} hashes.",
                fix="Name the index that the project was locked from with --index, or lock the "
                "project again.",
            )
