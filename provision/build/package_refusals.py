"""The error for a requested release that the framework does not suit."""

from __future__ import annotations

from collections.abc import Sequence

from provision.build.package_search import PackageSearch, limits_of
from provision.lock.extras import ExtraNeed
from provision.lock.lead import releases_in
from provision.lock.solve import NoSolutionError
from provision.lock.uv import WheelTarget
from provision.model.plan import TITLES, Request


def extra_refused(
    need: ExtraNeed,
    request: Request,
    search: PackageSearch,
    target: WheelTarget,
    fitting: Sequence[str],
    release: str,
) -> NoSolutionError:
    """The error for a requested release whose extra refuses every framework that fits:
    it would get `release`.
    """
    line = search.framework_line(fitting)
    outcome, _, text = search.run([f"{need.package}[{need.extra}]", line], target)
    other = releases_in(text).get(need.package) if outcome == "locked" else None
    ways = [f"use --with {need.package}=={other.version}"] if other else []
    ways += [f"remove {limits_of(request)}"] if limits_of(request) else []
    fix = ", or ".join(ways) or f"request another release of {need.package}"
    return NoSolutionError(
        f"{need.package} {need.version} needs {need.requirement} (its extra {need.extra!r}); "
        f"here it would get {TITLES[request.framework]} {release}.",
        fix=f"{fix[:1].upper()}{fix[1:]}.",
    )
