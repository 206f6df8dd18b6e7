"""The oldest driver with which a chosen build runs on its hosts."""

from __future__ import annotations

from provision.model.plan import Request
from provision.resolve.candidates import BuildAnswers, Candidate, Examiner
from provision.resolve.specifiers import version


def least_driver(
    best: Candidate, answers: BuildAnswers, examiner: Examiner, request: Request
) -> str | None:
    """The oldest driver for the build's CUDA that supports every GPU and compiles the PTX that the
    build has for one. With cuda-compat: the oldest without it. None: the catalog does not have the
    CUDA's.
    """
    build, fleet, catalog = best.build, examiner.fleet, examiner.catalog
    needs = [fit.need for fit in answers.drivers if fit.need]
    need = max(needs, key=version, default=None)
    has_ptx = build.ptx_only is not None or any(code == "PTX" for _, code in answers.codes)
    if need is None or not has_ptx or best.driver.verdict == "forward":
        return need
    toolkits = [catalog.toolkit(cuda) for cuda in (build.cuda, build.ptx_only_cuda) if cuda]
    drivers = {one.driver for one in toolkits if one and one.driver}
    newer = sorted((one for one in drivers if version(one) > version(need)), key=version)
    for driver in (need, *newer):
        driven = type(examiner)(fleet.driven_by(driver, fleet.sites, catalog), catalog)
        found = driven.examine(build, request)
        if found.fits and found.driver.verdict != "forward":
            return driver
    return need
