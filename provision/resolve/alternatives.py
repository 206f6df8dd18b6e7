"""Find alternatives: plan again with one requirement dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from provision.model.plan import TITLES, Alternative, Request
from provision.resolve.builds import Build
from provision.resolve.candidates import RANK, Asked, Candidate, Examiner, preference
from provision.resolve.specifiers import version


def alternatives(
    builds: Sequence[Build],
    request: Request,
    examiner: Examiner,
    is_asked_for: Asked,
    chosen: Candidate | None,
) -> tuple[Alternative, ...]:
    """For a plan: newer builds, builds that fit the driver better, builds that surely exist. For a
    refusal: the closest that work, dropping one requirement at a time. Each is checked like a plan.
    """
    rows: dict[tuple[str, str], Alternative] = {}
    for why, candidate in _picks(builds, request, examiner, is_asked_for, chosen):
        build = candidate.build
        if chosen is not None and build == chosen.build:
            continue
        rows.setdefault(
            (build.version, build.cuda),
            Alternative(
                cuda=build.cuda,
                wheel_tag=build.tag,
                framework_version=build.version,
                why=f"{why} ({candidate.verdict})",
            ),
        )
    return tuple(rows.values())


def _picks(
    builds: Sequence[Build],
    request: Request,
    examiner: Examiner,
    is_asked_for: Asked,
    chosen: Candidate | None,
) -> Iterator[tuple[str, Candidate]]:
    def fitting(relaxed: Request) -> Sequence[Candidate]:
        return examiner.fitting(builds, relaxed, is_asked_for)

    title = TITLES[request.framework]
    free = request._replace(cuda=None, framework_version=None)
    if chosen is None:
        for why, relaxed in _relaxations(request, free):
            found = fitting(relaxed)
            if request.cuda is not None and relaxed.cuda is None:
                for words, near in _around(request.cuda, found, relaxed, examiner, _cuda):
                    yield f"{why}the nearest {words} CUDA that works", near
            elif (picked := examiner.pick(found, relaxed)) is not None:
                yield why, picked
        exact = (request.framework_version or "").removeprefix("==")
        if exact and exact[0].isdigit() and not {"*", ","} & set(exact):
            relaxed = request._replace(framework_version=None)
            for words, near in _around(exact, fitting(relaxed), relaxed, examiner, _release):
                yield f"the nearest {words} release that works", near
    found = fitting(free)
    newest = examiner.pick(found, free)
    if newest is None:
        return
    if chosen is None:
        yield f"the newest {title} that works", newest
        return
    if preference(newest) > preference(chosen):
        served = " and whose cuDNN supports the GPU" if newest.has_cudnn > chosen.has_cudnn else ""
        yield f"the newest {title} that works{served}", newest
    if chosen.driver.verdict != "forward":
        found = [c for c in found if c.driver.verdict != "forward"]
    found = [c for c in found if c.has_cudnn >= chosen.has_cudnn]
    later = [c for c in found if version(c.build.version) > version(chosen.build.version)]
    likely = examiner.pick(later, free, _preferred)
    if likely is not None and likely.build.existence != "confirmed":
        yield f"newer, but only {likely.build.existence} to exist", likely
    latest = examiner.pick([c for c in later if _is_sure(c)], free, _latest)
    if latest is not None:
        yield f"the newest {title} that works", latest
    has = RANK[chosen.driver.verdict]
    fitter = [c for c in found if _is_sure(c) and RANK[c.driver.verdict] < has]
    better = examiner.pick(fitter, free, _preferred)
    if better is not None:
        yield "the newest that this driver supports natively", better


def _is_sure(candidate: Candidate) -> bool:
    return candidate.build.existence == "confirmed"


def _preferred(ordered: Sequence[Candidate]) -> Candidate:
    return ordered[0]


def _latest(ordered: Sequence[Candidate]) -> Candidate:
    return max(ordered, key=lambda c: version(c.build.version))


def _relaxations(request: Request, free: Request) -> Iterator[tuple[str, Request]]:
    if request.python is not None:
        yield "without --python", request._replace(python=None)
    if request.base is not None:
        yield "without --base", request._replace(base=None)
    if request.apt:
        yield "without --apt", request._replace(apt=())
    if request.companions:
        yield "without --with", request._replace(companions=())
    if request.flavour == "devel":
        yield "with --flavour runtime", request._replace(flavour="runtime")
    if request.framework_version is not None and request.cuda is not None:
        yield "the same release on ", request._replace(cuda=None)
        yield "the same CUDA", request._replace(framework_version=None)
    if request.cuda is not None:
        yield "", free


def _around(
    wanted: str,
    found: Sequence[Candidate],
    request: Request,
    examiner: Examiner,
    value: Callable[[Candidate], str],
) -> Iterator[tuple[str, Candidate]]:
    """The closest above and below, by CUDA or by release; the best build of each."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in found:
        groups.setdefault(value(candidate), []).append(candidate)
    above = sorted((v for v in groups if version(v) > version(wanted)), key=version)
    below = sorted((v for v in groups if version(v) < version(wanted)), key=version, reverse=True)
    for words, nearest in (("newer", above), ("older", below)):
        for one in nearest:
            picked = examiner.pick(groups[one], request)
            if picked is not None:
                yield words, picked
                break


def _cuda(candidate: Candidate) -> str:
    return candidate.build.cuda


def _release(candidate: Candidate) -> str:
    return candidate.build.version
