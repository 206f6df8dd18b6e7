"""Which changes of a refused request plan. A fix names only changes that were tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, Protocol, TypeAlias

from provision.catalog.catalog import Catalog
from provision.model.plan import Request
from provision.resolve.builds import Build
from provision.resolve.candidates import Candidate
from provision.resolve.packages import FRAMEWORKS, PAIRED, companions_of, partner, ties
from provision.resolve.rules.base import python_tags_of
from provision.resolve.specifiers import version

Field: TypeAlias = Literal["python", "base", "apt", "flavour", "with", "framework-version", "cuda"]
MOST = 3  # changes that a fix names
_OF_A_BUILD = (*PAIRED, *FRAMEWORKS)
NO_CURE = "No other release, CUDA, Python, base or driver makes it plan on these hosts."


class RequestChange(NamedTuple):
    """One change of a request: an option's value before and after; None: without it."""

    field: Field
    before: str | None
    after: str | None


class Cure(NamedTuple):
    """A request that plans, and how it differs from the refused one."""

    request: Request
    steps: tuple[RequestChange, ...]


class Planner(Protocol):
    """Plans requests for the same hosts (`provision.resolve.trial`)."""

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """What a request could get, the best first; () if it does not plan."""
        ...

    def refuses(self, build: Build, request: Request) -> bool:
        """Whether the companions of a request do not match a build."""
        ...


Spell: TypeAlias = "Callable[[RequestChange, Request], str | None]"
"""What to type for a step to a request ("Use --cuda 12.1"); None: nobody can change that."""


def cures(request: Request, trial: Planner, catalog: Catalog) -> Iterator[Cure]:
    """The smallest changes of a request that plan."""
    fields = [*_limits(request)]
    free = request
    for field in fields:
        free = _without(free, field)
    if not trial.candidates(free):
        return
    for size in range(1, len(fields) + 1):
        found = [
            one
            for dropped in combinations(fields, size)
            for one in _concrete(request, dropped, trial, catalog)
        ]
        if found:
            keeping = [one for one in found if not _drops_a_package(one)]
            yield from keeping or found
            return


def fix_of(found: Iterable[Cure], spell: Spell, most: int = MOST) -> str:
    """The fix that names the changes; "" if there are none that somebody can make."""
    ways: dict[str, list[str]] = {}
    for cure in found:
        words = [spell(step, cure.request) for step in cure.steps]
        if None in words:
            continue
        way = _joined(list(dict.fromkeys(word for word in words if word)))
        line, _, value = way.rpartition(" ") if way.startswith("In ") else (way, "", "")
        if value not in ways.setdefault(line, []):
            ways[line].append(value)
        if sum(map(len, ways.values())) == most:
            break
    each = (f"{line} {' or '.join(values)}".strip() for line, values in ways.items())
    text = ", or ".join(f"{way[:1].lower()}{way[1:]}" for way in each)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def spell_options(step: RequestChange, _: Request) -> str | None:
    """A change in the options of the command line."""
    name = f"--{step.field}"
    if step.field == "with":
        if step.after is None:
            return f"Remove --with {_quoted(step.before or '')}"
        return f"Use --with {_quoted(step.after)}"
    if step.after is None:
        return f"Remove {name}"
    return f"Use {name} {_quoted(step.after)}"


def spell_but_the_release(step: RequestChange, cured: Request) -> str | None:
    """The same for a request that has to keep the release of its framework."""
    return None if step.field == "framework-version" else spell_options(step, cured)


def _limits(request: Request) -> Iterator[Field]:
    """The fields of a request that limit which builds it can get."""
    if request.python is not None or request.pythons:
        yield "python"
    if request.base is not None:
        yield "base"
    if request.apt:
        yield "apt"
    if request.flavour == "devel":
        yield "flavour"
    if any(ties(wanted, request.framework) for wanted in companions_of(request)):
        yield "with"
    if request.cuda is not None:
        yield "cuda"
    if request.framework_version is not None:
        yield "framework-version"


def _concrete(
    request: Request, dropped: Sequence[Field], trial: Planner, catalog: Catalog
) -> Iterator[Cure]:
    """The requests that have other values in these fields, and plan with them."""
    if dropped == ("with",) and trial.candidates((public := _public(request)).request):
        yield public
        return
    free = request
    for field in dropped:
        free = _without(free, field)
    for candidate in _few(trial.candidates(free), request, dropped):
        one, steps = request, list[RequestChange]()
        for field in dropped:
            one, more = _with(one, field, candidate, trial, catalog)
            steps += more
        if steps and trial.candidates(one):
            yield Cure(one, tuple(steps))


def _drops_a_package(cure: Cure) -> bool:
    return any(step.field == "with" and step.after is None for step in cure.steps)


def _public(request: Request) -> Cure:
    """A request whose companions are no longer of a build: "torchvision==0.20.1+cpu"."""
    steps = [
        RequestChange("with", one.text, one.text.partition("+")[0])
        for one in companions_of(request)
        if one.local and one.name in _OF_A_BUILD and not one.more
    ]
    public = {step.before: step.after or "" for step in steps}
    texts = tuple(public.get(text, text) for text in request.companions)
    return Cure(request._replace(companions=texts), tuple(steps))


def _without(request: Request, field: Field) -> Request:
    if field == "python":
        return request._replace(python=None, pythons=())
    if field == "base":
        return request._replace(base=None)
    if field == "apt":
        return request._replace(apt=())
    if field == "flavour":
        return request._replace(flavour="runtime")
    if field == "cuda":
        return request._replace(cuda=None)
    if field == "framework-version":
        return request._replace(framework_version=None)
    free = [one.text for one in companions_of(request) if not ties(one, request.framework)]
    return request._replace(companions=tuple(free))


def _with(
    request: Request, field: Field, candidate: Candidate, trial: Planner, catalog: Catalog
) -> tuple[Request, Sequence[RequestChange]]:
    """A request with the value of a candidate in this field."""
    build = candidate.build
    if field == "python":
        before = request.python or f"{request.pythons[0]} to {request.pythons[-1]}"
        python = _near_python(request, candidate, trial)
        changed = request._replace(python=python, pythons=())
        return changed, [RequestChange("python", before, python)]
    if field == "base":
        return request._replace(base=None), [RequestChange("base", request.base, None)]
    if field == "apt":
        return request._replace(apt=()), [RequestChange("apt", " ".join(request.apt), None)]
    if field == "flavour":
        return request._replace(flavour="runtime"), [RequestChange("flavour", "devel", "runtime")]
    if field == "cuda":
        return request._replace(cuda=build.cuda), [RequestChange("cuda", request.cuda, build.cuda)]
    if field == "framework-version":
        step = RequestChange("framework-version", request.framework_version, build.version)
        return request._replace(framework_version=f"=={build.version}"), [step]
    kept, steps = list[str](), list[RequestChange]()
    for one in companions_of(request):
        after: str | None = one.text
        if trial.refuses(build, request._replace(companions=(one.text,))):
            after = partner(one, build, catalog)
            if FRAMEWORKS.get(one.name) not in {None, request.framework} and not one.more:
                free = request._replace(companions=(one.name,))
                after = None if trial.refuses(build, free) else one.name
            steps.append(RequestChange("with", one.text, after))
        kept += [after] if after is not None else []
    return request._replace(companions=tuple(kept)), steps


def _near_python(request: Request, candidate: Candidate, trial: Planner) -> str | None:
    """The Python of a candidate's wheels that is nearest to the refused one, if it plans."""
    if request.python is None:
        return candidate.python
    asked = version(request.python).minor
    tags = python_tags_of(candidate.build)
    near = min(tags, key=lambda python: abs(version(python).minor - asked))
    works = trial.candidates(request._replace(python=near, pythons=()))
    return near if works else candidate.python


def _few(
    found: Sequence[Candidate], request: Request, dropped: Sequence[Field]
) -> Iterator[Candidate]:
    """Of all candidates the nearest to the refused value and the best, one for each value."""
    by_release = "framework-version" in dropped
    if by_release or "cuda" in dropped:
        asked = (request.framework_version if by_release else request.cuda) or ""
        asked = asked.removeprefix("==")
        groups: dict[str, Candidate] = {}
        for one in found:
            groups.setdefault(one.build.version if by_release else one.build.cuda, one)
        if asked[:1].isdigit() and "," not in asked and "*" not in asked:
            ordered = sorted(groups, key=version)
            above = [one for one in ordered if version(one) > version(asked)]
            below = [one for one in ordered if version(one) < version(asked)]
            yield from (groups[one] for one in (*above[:1], *below[-1:]))
    yield from found[:1]


def _joined(words: Sequence[str]) -> str:
    """ "Use --cuda 12.1", "Use --python 3.11" -> "Use --cuda 12.1 --python 3.11"."""
    text = ""
    for word in words:
        if not text:
            text = word
        elif text.rpartition(" and ")[2][:4].lower() == word[:4].lower() == "use ":
            text += word[3:]
        else:
            text += f" and {word[:1].lower()}{word[1:]}"
    return text


def _quoted(text: str) -> str:
    return f"'{text}'" if set(text) & set("<>!~[];* ") else text
