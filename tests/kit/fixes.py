"""The fixes of plans, read from their texts: each way with the hosts and the request that it leads
to. A text that is not understood is an error, so that no fix goes untried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from provision.catalog.catalog import Catalog
from provision.model.plan import Alternative, Gpu, HostFacts, LimitedBy, PlanError, Request
from provision.model.request import parse_specifier

_STEP = re.compile(
    r"(?:(?:use )?--(?P<name>cuda|python|framework-version|flavour|with)"
    r" (?P<value>'[^']*'|[^\s,']+)"
    r"|remove --(?P<gone>base|with)"
    r"(?: (?!and )(?P<which>'[^']*'|[^\s,']+))?"
    r"|(?:upgrade the nvidia driver to|install nvidia driver) (?P<driver>[\d.]+)"
    r" or newer(?: \(branch (?P<most>\d+) at most\))?(?: on (?P<on>[\w.-]+(?:, (?!and )[\w.-]+)*))?"
    r"|install driver branch (?P<branch>\d+)(?: on (?P<at>.+?))?, the last that does)"
    r"(?:,? and | |$)",
    re.IGNORECASE,
)
_KIND = re.compile(r"--gpu '([^']+)'(?: --driver ([\d.]+))?")
_EACH_ARCH = "Make one plan for each architecture."
_NO_CHANGE = (
    r"No other release, CUDA, Python, base or driver makes it plan on these hosts\."
    r"|Update the catalog: provision catalog refresh"
    r"|Use NVIDIA's own (?:container|builds of \w+ for [^:]+): https://\S+"
    r"|Use a machine with an NVIDIA GPU, .*"
    r"|No driver branch supports both: .*Use them in different machines\."
    r"|The catalog has no build of \w+ with code for [^.]+(?:\.\d+)?\."
)
"""The fixes that change neither the request nor the hosts."""


class Way(NamedTuple):
    """One way of a fix, and what there is to plan once it is followed."""

    text: str
    hosts: Sequence[HostFacts]
    request: Request


def ways(
    error: PlanError, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Iterator[Way]:
    """What each way of a fix leads to. A driver "or newer" is tried as it is, and as the newest."""
    if error.fix.startswith(_EACH_ARCH):
        yield from _of_each_arch(error, hosts, request, catalog)
        return
    for part in error.fix.split(" Else: "):
        if re.fullmatch(f"({_NO_CHANGE})( ({_NO_CHANGE}))*", part):
            continue
        if part.startswith("Build one image for each kind, with "):
            for gpu, driver in _KIND.findall(part):
                facts = hosts[0]._replace(gpus=(_gpu(gpu),), driver=driver or None)
                yield Way(part, [facts], request)
            continue
        for way in re.split(r", or (?=use |remove |upgrade |install )", part):
            for newest in (False, True) if "or newer" in way else (False,):
                yield _followed(way.rstrip("."), hosts, request, catalog, newest=newest)


def _of_each_arch(
    error: PlanError, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Iterator[Way]:
    """The plan for each architecture; where one is refused, the ways of its own fix."""
    _, *refused = re.split(r" For (aarch64|x86_64): ", error.fix)
    fixes = dict(zip(refused[::2], refused[1::2], strict=True))
    for arch in {host.arch or "x86_64" for host in hosts}:
        some = [host for host in hosts if (host.arch or "x86_64") == arch]
        if arch in fixes:
            yield from ways(error._replace(fix=fixes[arch]), some, request, catalog)
        else:
            yield Way(error.fix, some, request)


def _gpu(text: str) -> Gpu:
    major, dot, minor = text.partition(".")
    if dot and major.isdigit() and minor.isdigit():
        return Gpu(compute_capability=(int(major), int(minor)))
    return Gpu(name=text)


def _followed(
    way: str, hosts: Sequence[HostFacts], request: Request, catalog: Catalog, *, newest: bool
) -> Way:
    position = 0
    while position < len(way):
        step = _STEP.match(way, position)
        assert step is not None, f"cannot be followed: {way[position:]!r} of {way!r}"
        position = step.end()
        if step["name"]:
            request = _set(request, step["name"], step["value"].strip("'"))
        elif step["gone"]:
            request = _removed(request, step["gone"], (step["which"] or "").strip("'"))
        else:
            driver = step["driver"] or step["branch"]
            if newest and step["driver"]:
                driver = step["most"] or str(catalog.branches[-1].branch)
            of = step["on"] or step["at"]
            there = [host for host in hosts if of is None or host.label in of]
            assert there, f"no such host: {way}"
            full = driver if "." in driver else f"{driver}.999"  # any of that branch
            hosts = [host.with_driver(full) if host in there else host for host in hosts]
    return Way(way, hosts, request)


def _set(request: Request, name: str, value: str) -> Request:
    if name == "framework-version":
        return request._replace(framework_version=parse_specifier(value))
    if name != "with":
        change: dict[str, Any] = {name: value}
        return request._replace(**change)
    others = tuple(one for one in request.companions if _package(one) != _package(value))
    assert others != request.companions, f"{value} was not requested"
    return request._replace(companions=(*others, value))


def _removed(request: Request, name: str, value: str) -> Request:
    if name == "with":
        kept = tuple(one for one in request.companions if one != value)
        assert kept != request.companions, f"{value} was not requested"
        return request._replace(companions=kept)
    field = name.replace("-", "_")
    assert getattr(request, field) is not None, f"--{name} was not used"
    nothing: dict[str, Any] = {field: None}
    return request._replace(**nothing)


def _package(requirement: str) -> str:
    return re.split(r"[=<>!~\[ ]", requirement)[0]


def with_alternative(request: Request, one: Alternative) -> Request:
    """The request with the options of an alternative, and without those that it leaves out."""
    release = f"=={one.framework_version}"
    request = request._replace(cuda=one.cuda, framework_version=release)
    if "without --python" in one.why:
        request = request._replace(python=None)
    if "without --base" in one.why:
        request = request._replace(base=None)
    if "without --with" in one.why:
        request = request._replace(companions=())
    return request._replace(flavour="runtime") if "--flavour runtime" in one.why else request


def without_limit(hosts: Sequence[HostFacts], limit: LimitedBy) -> list[HostFacts]:
    """The hosts but those that limit the plan."""
    return [host for host in hosts if host.label not in limit.hosts]
