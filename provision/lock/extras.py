"""What packages need of the framework, where only an extra of theirs says so.

`transformers` runs without PyTorch, so it requires `torch>=2.6` in its extra "torch" alone. Beside
an older PyTorch it installs, and fails when it is imported. No installer looks at an extra that
was not requested; we do, for the framework of the image.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/#extras
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from images.errors import Failure
from images.inspect.archive import WheelArchive
from images.inspect.measuring import metadata_in
from images.inspect.remote import is_url, open_url
from images.inspect.texts import WheelMetadata, parse_metadata
from images.net.errors import BrokenOff
from images.net.http import HttpClient
from images.net.retries import Retries, Tries
from provision.model.plan import TITLES, Plan, Warned

_FOR_DEVELOPERS = re.compile(
    r"(.*[-_.])?(all[-_.])?(dev|devel|develop|development|ci|lint|linting|quality|style|typing|mypy"
    r"|tests?|testing|unittests?|pytest|docs?|documentation|sphinx|examples?|tutorials?|notebooks?"
    r"|bench|benchmarks?|benchmarking|profiling|release|build|nightly)([-_.].*)?",
    re.IGNORECASE,
)
"""Extras for work on a package: their pins say what its tests ran with, not what it needs."""
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_WAIT_S = 15.0
_THREADS = 8


class ExtraNeed(NamedTuple):
    """`package` `version` needs `requirement` ("torch>=2.6"), according to its extra."""

    package: str
    version: str
    extra: str
    requirement: str


def unmet(
    metadata: WheelMetadata, framework: str, release: str, environment: Mapping[str, str]
) -> ExtraNeed | None:
    """The extra of a package that refuses this release of the framework, if all refuse it.

    `framework` is the package's name ("torch"), `environment` the values of PEP 508 markers. One
    extra that accepts the release is enough, and so is a package that needs the framework without
    an extra: then the installer decided already. Extras for developers do not count.
    """
    refusing: list[ExtraNeed] = []
    for asked in requirements_of(metadata.requires, framework):
        names = _EXTRA.findall(str(asked.marker or ""))
        if not names:
            if asked.marker is None or asked.marker.evaluate(dict(environment)):
                return None
            continue
        for extra in names:
            if _FOR_DEVELOPERS.fullmatch(extra):
                continue
            assert asked.marker is not None
            if not asked.marker.evaluate({**environment, "extra": extra}):
                continue
            if asked.specifier.contains(release, prereleases=True):
                return None
            text = f"{framework}{asked.specifier}"
            refusing.append(ExtraNeed(metadata.name, metadata.version, extra, text))
    named = [need for need in refusing if need.extra.lower() in {framework, f"py{framework}"}]
    return next(iter([*named, *refusing]), None)


def unmet_warning(need: ExtraNeed, plan: Plan) -> Warned:
    """The warning that no release of a package accepts the framework of the plan."""
    title = TITLES[plan.framework]
    return Warned(
        code="extra-unmet",
        message=f"{need.package} {need.version} needs {need.requirement} for its {title} part "
        f"(its extra {need.extra!r}), and this plan has {title} {plan.framework_version}: that "
        "part will not work.",
        fix=f"Allow another release of {title}, or request a {need.package} that supports this "
        "one.",
    )


def requirements_of(lines: Iterable[str], framework: str) -> list[Requirement]:
    """What the lines of a wheel's metadata require of a framework, with and without an extra."""
    found = []
    for line in lines:
        if framework not in line.lower():
            continue
        try:
            asked = Requirement(line)
        except InvalidRequirement:  # of a release from before the rules
            continue
        if canonicalize_name(asked.name) == framework:
            found.append(asked)
    return found


def metadata_of(fact: Mapping[str, Any]) -> WheelMetadata:
    """The metadata of a wheel that was kept as a fact."""
    lines = tuple(str(line) for line in fact.get("requires") or ())
    return WheelMetadata(
        name=str(fact.get("name")), version=str(fact.get("version")), requires=lines
    )


def read_metadata(
    addresses: Mapping[str, str], *, ca_bundle: Path | None
) -> dict[str, WheelMetadata]:
    """The METADATA of wheels, by package; what cannot be read in parts is left out.

    `addresses` maps packages to their wheels' URLs. Most indexes have METADATA as a separate file
    (PEP 658); of other wheels the part that holds it is read.
    """
    retries = Retries(connect_s=_WAIT_S, answer_s=_WAIT_S, tries=2)
    client = HttpClient(ca_bundle=ca_bundle, retries=retries)

    def read(address: str) -> WheelMetadata | None:
        if not is_url(address):
            return None
        return _beside(address, client) or _inside(address, ca_bundle)

    with ThreadPoolExecutor(_THREADS) as threads:
        found = dict(zip(addresses, threads.map(read, addresses.values()), strict=True))
    client.close()
    return {name: metadata for name, metadata in found.items() if metadata is not None}


def _beside(address: str, client: HttpClient) -> WheelMetadata | None:
    bare = address.partition("#")[0]
    try:
        answer = Tries(client.retries).run(lambda: client.send("GET", f"{bare}.metadata"))
    except BrokenOff:
        return None
    return parse_metadata(answer.body) if answer.status == 200 else None


def _inside(address: str, ca_bundle: Path | None) -> WheelMetadata | None:
    try:
        source = open_url(address, ca_bundle=ca_bundle, patience_s=_WAIT_S, parts_only=True)
    except Failure:
        return None
    try:
        return metadata_in(WheelArchive(source), source)
    except Failure:
        return None
    finally:
        source.close()
