"""Find the hosts that limit a plan for several, and what would be possible without them."""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalog.catalog import Catalog
from provision.model.plan import LimitedBy, Request
from provision.resolve.builds import Build
from provision.resolve.candidates import Candidate, Examiner, preference
from provision.resolve.fleet import Fleet, Site
from provision.resolve.reasons import driver_sentence

_MOST_TRIED = 12  # sets of hosts; each is a plan of its own
_MOST_SAID = 2


def limited_by(
    builds: Sequence[Build],
    request: Request,
    examiner: Examiner,
    catalog: Catalog,
    chosen: Candidate | None,
) -> LimitedBy | None:
    """The fewest hosts without which a better build could be chosen, or any build if there was
    none. None: there is one host, or no host limits the others.

    Tries the hosts that block a build which serves others, and each host alone.
    """
    fleet = examiner.fleet
    if len(fleet.sites) < 2:
        return None
    against = [frozenset(examiner.sites_against(build)) for build in builds]
    sets = {sites for sites in against if 0 < len(sites) < len(fleet.sites)}
    sets |= {frozenset({site}) for site in fleet.sites}
    found: list[tuple[int, Candidate, frozenset[Site]]] = []
    for sites in sorted(sets, key=_hosts)[:_MOST_TRIED]:
        if found and _hosts(sites) > found[0][0]:
            break
        rest = Examiner(fleet.without(sites), catalog)
        fitting = [c for c in (rest.examine(build, request) for build in builds) if c.fits]
        best = rest.pick(rest.in_order(fitting), request)
        if best is not None and (chosen is None or preference(best) > preference(chosen)):
            found.append((_hosts(sites), best, sites))
    if not found:
        return None
    _, best, sites = max(found, key=lambda entry: preference(entry[1]))
    return LimitedBy(
        hosts=tuple(label for site in fleet.sites if site in sites for label in site.labels),
        because=_why(best, sites, request, fleet, catalog),
        cuda=best.build.cuda,
        wheel_tag=best.build.tag,
        framework_version=best.build.version,
        verdict=best.verdict,
    )


def _hosts(sites: frozenset[Site]) -> int:
    return sum(len(site.labels) for site in sites)


def _why(
    best: Candidate, sites: frozenset[Site], request: Request, fleet: Fleet, catalog: Catalog
) -> str:
    """Why the better build does not fit these hosts; else how they would run it."""
    alone = Examiner(fleet.only(sites), catalog)
    blockers = alone.blockers(best.build, request)
    if blockers:
        return " ".join(dict.fromkeys(blocker.message for _, blocker in blockers[:_MOST_SAID]))
    if alone.examine(best.build, request).verdict == "unverified":
        return "The driver or a GPU there is unknown."
    return driver_sentence(alone.worst_driver(best.build.cuda), catalog)
