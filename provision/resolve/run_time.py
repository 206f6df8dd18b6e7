"""The plan for packages that need more than wheels when they run: its base and its flavour have it.

A compiler, FFmpeg, libGL or git come from Debian's packages in a base that is built from them; nvcc
from NVIDIA's wheels (flavour devel), if there are some for the plan's CUDA. The build of the
framework is never changed for it, and neither is a base or a flavour that the user named: then the
plan has a warning with what to type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from provision.catalog.catalog import Catalog
from provision.catalog.needs import Kind, RunTimeNeed, debian_packages, kind_of, needs_of
from provision.model.plan import Base, HostFacts, Note, Plan, Request, Warned
from provision.model.request import is_local
from provision.resolve import resolve
from provision.resolve.bases import full_image
from provision.resolve.packages import companions_of, in_few

NOTE, WARNING = "run-time-base", "run-time-need"


class Planned(NamedTuple):
    """A plan, and the request for it: with the base and the flavour that were chosen."""

    request: Request
    plan: Plan


def requested_needs(request: Request) -> tuple[RunTimeNeed, ...]:
    """What the requested packages need when they run, by their names alone. A project that pins
    every version names also what others brought.
    """
    names = [wanted.name for wanted in companions_of(request)]
    return needs_of(names, () if request.settled else names)


def plan_for_needs(
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    needs: Sequence[RunTimeNeed],
    chosen: Plan | None = None,
) -> Planned:
    """The plan for a request, on a base and of a flavour that have what its packages need, as far
    as there is one with the same build of the framework: that of `chosen`, if packages led to it.
    """
    first = chosen or resolve(hosts, request, catalog)
    exact: dict[str, Any] = (
        {"framework_version": f"=={chosen.framework_version}", "cuda": chosen.cuda}
        if chosen
        else {}
    )
    if first.error is None:
        for asked in _requests(request, first, needs):
            plan = resolve(hosts, asked._replace(**exact), catalog)
            if _is_same_build(first, plan) and (asked.flavour == request.flavour or _own(plan)):
                return Planned(asked, plan)
    return Planned(request, first)


def _is_same_build(first: Plan, other: Plan) -> bool:
    mine, theirs = (
        (plan.framework_version, plan.cuda, plan.wheel_tag, plan.error) for plan in (first, other)
    )
    return mine == theirs


def _own(plan: Plan) -> bool:
    """Whether the base is built here; NVIDIA's images need an engine, which may not be there."""
    return plan.base is not None and plan.base.kind == "bootstrap"


def _requests(request: Request, first: Plan, needs: Sequence[RunTimeNeed]) -> Iterator[Request]:
    """The requests that meet needs which the first plan does not: all of them, all but nvcc, and
    those that a full image of the plan's Python meets.
    """
    kinds = {need.kind: None for need in needs if not has(first, need.kind)}
    if not kinds or request.base not in {None, "bootstrap"}:
        return
    # the base of the first plan has them, the one that takes its place has not
    kinds |= {need.kind: None for need in needs if kind_of(need.kind).in_slim_image}
    if "nvcc" in kinds and request.flavour is None:
        yield _with(request._replace(flavour="devel"), [*kinds])
    kinds.pop("nvcc", None)
    if kinds:
        yield _with(request, [*kinds])
    base = first.base
    if base is None or request.base is not None or request.flavour == "devel":
        return
    image = full_image(base.reference)
    if image != base.reference and any(kind_of(kind).in_full_image for kind in kinds):
        yield request._replace(base=image, python=first.python)


def _with(request: Request, kinds: Sequence[Kind]) -> Request:
    packages = {*request.apt, *debian_packages(kinds)}
    return request._replace(apt=tuple(sorted(packages)))


def has(plan: Plan, kind: Kind) -> bool | None:
    """Whether the image of a plan has what a kind names; None: its base is not known."""
    base = plan.base
    if base is None:
        return None
    name, known = base.reference.partition("@")[0].rpartition("/")[2], kind_of(kind)
    if kind in {"nvcc", "compiler"} and plan.flavour == "devel":
        return True if base.kind == "bootstrap" or name.startswith("cuda:") else None
    if kind != "nvcc" and {*known.debian} <= {*base.apt}:
        return True
    if base.kind == "bootstrap" or name.startswith("cuda:"):
        return False
    if name.startswith("python:"):
        return known.in_slim_image if "-slim" in name else known.in_full_image
    return True if known.in_slim_image else None  # what even a slim image of Python has


def with_remarks(
    plan: Plan,
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    needs: Sequence[RunTimeNeed],
) -> Plan:
    """The plan with a note about what its base has for these needs, and a warning for each that it
    does not meet.
    """
    if plan.error is not None or not needs:
        return plan
    lacking = [need for need in needs if not has(plan, need.kind)]
    met = [need for need in needs if need not in lacking]
    notes = [note for note in plan.notes if note.code != NOTE]
    if met and plan.base:
        notes.append(Note(code=NOTE, message=_base_words(plan.base, met)))
    warnings = [one for one in plan.warnings if one.code != WARNING]
    unmet = _by_kind(lacking).values()
    warnings += [_warning(plan, some, hosts, request, catalog) for some in unmet]
    return plan._replace(notes=tuple(notes), warnings=tuple(warnings))


def _base_words(base: Base, met: Sequence[RunTimeNeed]) -> str:
    """What the base has for the needs that are met, and why, in one sentence."""
    nvcc = ["nvcc"] if any(need.kind == "nvcc" for need in met) else []
    kinds = _by_kind(met)
    what = [*nvcc, *base.apt] if base.apt else [kind_of(kind).words for kind in kinds]
    where = "The base" if base.apt else base.reference
    why = "; ".join(map(_shared, kinds.values()))
    return f"{where} has {_in_words(what)}, since {why}."


def _by_kind(needs: Sequence[RunTimeNeed]) -> dict[Kind, list[RunTimeNeed]]:
    found: dict[Kind, list[RunTimeNeed]] = {}
    for need in needs:
        found.setdefault(need.kind, []).append(need)
    return found


def _shared(needs: Sequence[RunTimeNeed]) -> str:
    """Several packages with the same need in words: the first with the reason."""
    first, others = needs[0], [need.package for need in needs[1:]]
    instead = f", which {first.instead} does not need" if first.instead else ""
    others_too = f", as {in_few(others)} {'do' if others[1:] else 'does'}" if others else ""
    return f"{_words(first)}{instead}{others_too}"


def _in_words(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _words(need: RunTimeNeed) -> str:
    return f"{need.package} needs {kind_of(need.kind).words} (it {need.because})"


def _sentence(fixes: Iterable[str]) -> str:
    text = ", or ".join(fixes)
    return f"{text[:1].upper()}{text[1:]}."


def _warning(
    plan: Plan,
    needs: Sequence[RunTimeNeed],
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
) -> Warned:
    """The warning for packages with the same need that the image does not meet."""
    kind = needs[0].kind
    known = has(plan, kind) is not None
    base = plan.base.reference if plan.base else "the base"
    lacks = "this image has none" if known else f"what {base} has is not known"
    return Warned(
        code=WARNING,
        message=f"{_shared(needs)}, and {lacks}.",
        fix=_sentence(_fixes(plan, needs, hosts, request, catalog)),
    )


def _fixes(
    plan: Plan,
    needs: Sequence[RunTimeNeed],
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
) -> Iterator[str]:
    """What to type: another package, or options with which there is a plan that has it."""
    kind = needs[0].kind
    names = dict.fromkeys((need.package, need.instead) for need in needs if need.instead)
    yield from (f"request {other} in place of {name}" for name, other in names)
    if kind != "nvcc" and request.base not in {None, "bootstrap"} and not is_local(request.base):
        added = " ".join(f"--apt {name}" for name in kind_of(kind).debian)
        yield f"use {added}, which an engine installs"
    for words, asked in _options(plan, kind, request, catalog):
        found = resolve(hosts, asked, catalog)
        if found.error is None and has(found, kind):
            yield f"use {words}"
            return
    if not names:
        yield f"name a base that has {kind_of(kind).words}: --base IMAGE"


def _options(
    plan: Plan, kind: Kind, request: Request, catalog: Catalog
) -> Iterator[tuple[str, Request]]:
    """Options that may give the image what a kind names, with the request for them; the smallest
    change first.
    """
    devel = "--flavour devel " if kind == "nvcc" else ""
    asked = request._replace(flavour="devel") if devel else request
    on_debian = _with(asked._replace(base="bootstrap"), [kind])
    if devel:
        yield devel.rstrip(), asked
    yield f"{devel}--base bootstrap", on_debian
    for row in catalog.debian_suites if request.python else ():
        if row.python != plan.python:
            words = f"{devel}--base bootstrap --python {row.python}"
            yield words, on_debian._replace(python=row.python)
    for cuda in reversed(catalog.cuda_versions()) if request.cuda else ():
        yield f"{devel}--base bootstrap --cuda {cuda}", on_debian._replace(cuda=cuda)
