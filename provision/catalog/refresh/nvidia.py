"""NVIDIA: new driver branches with the CUDA that they support, and new CUDA toolkits.

They are read from NVIDIA's manifests; the package index says which toolkits are packages. No
manifest says which GPUs a new branch drives or a new toolkit compiles for: both are carried over
from the previous one, and marked so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from packaging.version import Version

from images.net.address import host_of
from provision.catalog.index.client import each
from provision.catalog.index.fetch import SourceError
from provision.catalog.refresh.current_rows import CurrentRows, Row, as_version
from provision.catalog.refresh.manifests import (
    ManifestError,
    ReleaseManifest,
    manifest_name,
    parse_labels,
    parse_manifest,
)
from provision.catalog.refresh.model import Asking, SourceReading, template_of

TOOLKIT = "cuda-toolkit"
_FIX = "Check that the URL is NVIDIA's download server or a mirror of it: --nvidia URL"


def read_packages(asking: Asking) -> SourceReading:
    """`on_pypi` of the toolkits; the rest of a new one's row is in its manifest."""
    reading = asking.of_index(f"page of {TOOLKIT}")
    for version in sorted({wheel.version for wheel in asking.index.wheels(TOOLKIT)}):
        if not version.is_prerelease:
            reading.add("toolkits", full=full_version(version), on_pypi=True)
    return reading


def read_drivers(asking: Asking) -> SourceReading:
    """The branches that the catalog lacks, each by its newest version, with their cuda-compat."""
    redist, known = Redist(asking, "nvidia-driver"), asking.known
    rows = {
        row.branch: known.row("branches", row._asdict()) or {} for row in known.catalog.branches
    }
    newest = {branch_of(label): label for label in redist.labels()}
    wanted = [
        label for number, label in newest.items() if number > min(rows) and number not in rows
    ]
    for label, manifest in redist.manifests(wanted).items():
        number = branch_of(label)
        cudas = manifest.cudas
        order = [
            *(str(row["max_cuda"]) for one, row in rows.items() if one < number),
            *cudas[-1:],
            *(str(row["max_cuda"]) for one, row in rows.items() if one > number),
        ]
        if manifest.driver not in {None, label}:
            words = f"{manifest_name(label)} holds driver {manifest.driver}: skipped."
            redist.reading.troubles.append(SourceError(words, fix=_FIX))
        elif not cudas:
            redist.note(f"Driver branch {number}: {label} is out; for which CUDA is not known.")
        elif any(Version(one) > Version(other) for one, other in pairwise(order)):
            redist.note(
                f"Driver branch {number}: {label} would be for CUDA {cudas[-1]}, out of the order "
                "of the branches; it is not kept."
            )
        else:
            last = rows[max(one for one in rows if one < number)]
            _add_branch(redist, manifest, cudas[-1], last, known)
    return redist.reading


def read_toolkits(asking: Asking) -> SourceReading:
    """The toolkits that the catalog lacks."""
    redist = Redist(asking, "cuda")
    toolkits = asking.known.rows("toolkits")
    rows = {v: row for row in toolkits if (v := as_version(row["full"])) is not None}
    labels = [label for label in redist.labels() if Version(label) > min(rows)]
    wanted = [label for label in labels if Version(label) not in rows]
    for label, manifest in redist.manifests(wanted).items():
        columns: dict[str, object] = {
            "full": label,
            **_toolkit_like(label, rows),
            "driver": manifest.driver,
            "released": redist.released(manifest),
        }
        if "cuda" in columns:
            rows[Version(label)] = columns
        redist.reading.add("toolkits", **columns)
    return redist.reading


def full_version(version: Version) -> str:
    """The toolkit version of a release of its package: 13.0.3.0 is 13.0.3."""
    release = version.release
    if len(release) == 4 and release[3] == 0:
        return ".".join(str(part) for part in release[:3])
    return str(version)


def branch_of(label: str) -> int:
    """The branch of a driver."""
    return int(label.partition(".")[0])


class Redist:
    """A product's directory of manifests, and the reading of it."""

    def __init__(self, asking: Asking, product: str) -> None:
        override = asking.nvidia
        template = template_of(asking.known.catalog.redist_template, override, "{product}/redist/")
        name = "NVIDIA" if override is None else host_of(template)
        place = "NVIDIA's download server" if override is None else f"the copy of it at {name}"
        self.reading = asking.reading(name, place, f"redistrib_*.json of {product}")
        self._asking, self._product, self._fetcher = asking, product, asking.fetcher
        directory = template.replace("{product}", product).rstrip("/")
        self._url = f"{asking.fetcher.add_login(directory)}/"

    def note(self, text: str) -> None:
        """Report a finding that makes no row."""
        self.reading.notes.append(text)

    def labels(self) -> tuple[str, ...]:
        """The releases, oldest first. SourceError: why they could not be read."""
        limit = self._fetcher.limits.page_bytes
        answer = self._fetcher.get(self._url, accept="text/html", limit_bytes=limit)
        try:
            found = parse_labels(answer.body, answer.headers.get("content-type", ""), answer.url)
        except ManifestError as error:
            what = f"{self._url} does not list manifests: {error}."
            raise SourceError(what, fix=_FIX) from None
        if not found:
            raise SourceError(f"{self._url} lists no redistrib_*.json.", fix=_FIX)
        return found

    def manifests(self, labels: Iterable[str]) -> dict[str, ReleaseManifest]:
        """Some of them, in this order; those that cannot be read become failures."""
        return each({label: label for label in labels}, self._read, self.reading.troubles)

    def released(self, manifest: ReleaseManifest) -> str | None:
        """The date; None, with a note, if it cannot be read or is in the future."""
        day = manifest.released
        if day is not None and day <= self._asking.today:
            return day
        said = f"is dated {day}" if day else "has no date to be read"
        self.note(f"{manifest_name(manifest.label)} of {self._product} {said}.")
        return None

    def _read(self, label: str) -> ReleaseManifest:
        url = f"{self._url}{manifest_name(label)}"
        limit = self._fetcher.limits.metadata_bytes
        answer = self._fetcher.get(url, accept="application/json", limit_bytes=limit)
        try:
            return parse_manifest(answer.body, self._product, label)
        except ManifestError as error:
            raise SourceError(f"{url} is not a manifest of it: {error}.", fix=_FIX) from None


def _add_branch(
    redist: Redist, manifest: ReleaseManifest, cuda: str, last: Row, known: CurrentRows
) -> None:
    label, carried = manifest.label, f"carried over from branch {last['branch']}"
    # dropped proprietary modules do not come back; whether others stay is not known
    modules = ("open_modules", "modules_source") if last["open_modules"] == "only" else ()
    redist.reading.add(
        "branches",
        branch=branch_of(label),
        max_cuda=cuda,
        latest_seen=label,
        latest_date=redist.released(manifest),
        latest_source=f"{redist.reading.name}: {manifest_name(label)} of nvidia-driver",
        **dict.fromkeys(("first_version", "type", "end_of_life")),
        dropped_below=last["dropped_below"],
        adds=[],
        dropped_source=f"{carried}: {last['dropped_source']}",
        adds_confidence="assumed",
        note=f"Which GPUs it drives is {carried}.",
        **{column: last[column] for column in modules},
    )
    package = f"cuda-compat-{cuda.replace('.', '-')}"
    if known.row("forward_compat", {"package": package}) is None:
        redist.reading.add(
            "forward_compat",
            package=package,
            provides_cuda=cuda,
            built_from_branch=branch_of(label),
            official_base_branches=None,
            note="The branches that it may be laid upon were not read.",
        )


def _toolkit_like(full: str, rows: Mapping[Version, Row]) -> dict[str, object]:
    """What a toolkit has in common with the one before it of the same major; {}: there is none, or
    an update of the same toolkit is already known.
    """
    version = Version(full)
    cuda = ".".join(full.split(".")[:2])
    before = [v for v in rows if v < version and v.major == version.major]
    same = {v: row for v, row in rows.items() if row["cuda"] == cuda}
    if not before or any(v > version for v in same):
        return {}
    last = rows[max(before)]
    updates = [row["update"] for row in same.values() if isinstance(row["update"], int)]
    return {
        "cuda": cuda,
        "update": max(updates, default=-1) + 1,
        "minor_version_compatibility": last["minor_version_compatibility"],
        "sm_targets": last["sm_targets"],
        "on_pypi": False,
        "sm_source": f"carried over from {last['full']}: {last['sm_source']}",
        "confidence": "assumed",
    }
