"""What NVIDIA's manifests say: driver branches with the CUDA that they support, what toolkits
shipped with, and releases of cuDNN before the package index has them.

A manifest is read if its release is new, or if the catalog has no date for it; so the first refresh
reads most of them and each later one a few. No manifest says which GPUs a new branch drives or a
new toolkit compiles for: both are carried over from the previous one, and marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise

from packaging.version import Version

from provision.catalog.refresh.fetch import PageFetcher
from provision.catalog.refresh.known import CurrentRows, as_version
from provision.catalog.refresh.manifests import (
    ManifestError,
    ReleaseManifest,
    manifest_name,
    parse_labels,
    parse_manifest,
)
from provision.catalog.refresh.model import Part, Row, Sighting, SourceError, SourceReading
from provision.catalog.refresh.threads import Threads, each

PRODUCTS = {
    "driver-manifests": "nvidia-driver",
    "cuda-manifests": "cuda",
    "cudnn-manifests": "cudnn",
}
"""The sources of this module, each with the product whose directory it reads."""

_PLACEHOLDER = "{product}"
_MOST = 120
"""The most manifests of one product that one refresh reads; a later one reads the rest."""
_FIX = "Check that the URL is NVIDIA's download server or a mirror of it: --nvidia URL"


def redist_template(shipped: str, override: str | None) -> str:
    """The URL of a product's directory, with {product} in it; an override is such a URL, or the
    parent of the products' directories.
    """
    if override is None:
        return shipped
    return override if _PLACEHOLDER in override else f"{override.rstrip('/')}/{{product}}/redist/"


class Redist:
    """The directories of one server. `name` may be shown to users: "NVIDIA", or its host."""

    def __init__(self, template: str, name: str, fetcher: PageFetcher, threads: Threads) -> None:
        self._template = fetcher.add_login(template)
        self.name = name
        self._fetcher = fetcher
        self._threads = threads

    def labels(self, product: str) -> tuple[str, ...]:
        """The releases of a product, oldest first. SourceError: why they could not be read."""
        url = self._directory(product)
        answer = self._fetcher.get(
            url, accept="text/html", limit_bytes=self._fetcher.limits.page_bytes
        )
        try:
            found = parse_labels(answer.body, answer.headers.get("content-type", ""), answer.url)
        except ManifestError as error:
            raise SourceError(f"{url} does not list manifests: {error}.", fix=_FIX) from None
        if not found:
            raise SourceError(f"{url} lists no redistrib_*.json.", fix=_FIX)
        return found

    def manifests(
        self, product: str, labels: Iterable[str], reading: SourceReading
    ) -> dict[str, ReleaseManifest]:
        """Some of them, oldest first, read in parallel; those that cannot be read become
        failures.
        """
        wanted = list(labels)
        if len(wanted) > _MOST:
            reading.notes.append(
                f"{self.name} has {len(wanted)} manifests of {product} to read; the newest {_MOST} "
                "were read, the rest comes with the next refresh."
            )
        work = partial(self._read, product)
        return each(self._threads, {one: one for one in wanted[-_MOST:]}, work, reading.troubles)

    def _directory(self, product: str) -> str:
        return f"{self._template.replace(_PLACEHOLDER, product).rstrip('/')}/"

    def _read(self, product: str, label: str) -> ReleaseManifest:
        url = f"{self._directory(product)}{manifest_name(label)}"
        limit = self._fetcher.limits.metadata_bytes
        answer = self._fetcher.get(url, accept="application/json", limit_bytes=limit)
        try:
            return parse_manifest(answer.body, product, label)
        except ManifestError as error:
            raise SourceError(f"{url} is not a manifest of it: {error}.", fix=_FIX) from None


Read = Callable[[Redist, CurrentRows, str], SourceReading]


def read_drivers(redist: Redist, known: CurrentRows, today: str) -> SourceReading:
    """The newest version of each branch, and new branches with their cuda-compat."""
    reading = SourceReading(source="driver-manifests")
    product = PRODUCTS[reading.source]
    rows = {_int(row["branch"]): row for row in known.rows("branches")}
    newest = {
        branch: label
        for label in redist.labels(product)
        if (branch := int(label.partition(".")[0])) >= min(rows, default=0)
    }
    wanted = [label for branch, label in newest.items() if _is_news(label, rows.get(branch))]
    for label, manifest in redist.manifests(product, wanted, reading).items():
        driver = manifest.version_of("nvidia_driver")
        if driver is not None and driver != label:
            words = f"{manifest_name(label)} of {redist.name} holds driver {driver}"
            reading.troubles.append(SourceError(f"{words}: skipped.", fix=_FIX))
            continue
        branch = int(label.partition(".")[0])
        columns: dict[str, object] = {
            "branch": branch,
            "latest_seen": label,
            "latest_date": _released(manifest, today, product, reading),
            "latest_source": f"{redist.name}: {manifest_name(label)} of {product}",
        }
        row = rows.get(branch)
        if row is None:
            _add_branch(reading, columns, manifest, rows, known)
        elif _is_earlier(columns["latest_date"], row["latest_date"]):
            words = (
                f"{label} is newer than {row['latest_seen']}, and {redist.name} dates it earlier "
                f"({columns['latest_date']}, against {row['latest_date']}); the catalog is kept"
            )
            key = {"branch": branch}
            reading.seen.append(Sighting(table="branches", key=key, kind="conflict", words=words))
        elif columns["latest_date"] is not None or label != row["latest_seen"]:
            reading.add("branches", **columns)
    return reading


def read_toolkits(redist: Redist, known: CurrentRows, today: str) -> SourceReading:
    """Release dates and drivers of the toolkits, and new toolkits."""
    reading = SourceReading(source="cuda-manifests")
    product = PRODUCTS[reading.source]
    rows = {v: row for row in known.rows("toolkits") if (v := as_version(row["full"])) is not None}
    wanted = [
        label
        for label in redist.labels(product)
        if Version(label) >= min(rows, default=Version("0"))
        and rows.get(Version(label), {}).get("released") is None
    ]
    for label, manifest in redist.manifests(product, wanted, reading).items():
        columns = {
            "driver": manifest.version_of("nvidia_driver"),
            "released": _released(manifest, today, product, reading),
        }
        row = rows.get(Version(label))
        if row is not None:
            reading.add("toolkits", full=row["full"], **columns)
        elif (carried := _toolkit_like(label, rows)) is not None:
            rows[Version(label)] = {"full": label, **carried, **columns}
            reading.add("toolkits", **rows[Version(label)])
        else:
            words = f"{redist.name} has its manifest, and the catalog nothing before it to go by"
            key = {"full": label}
            reading.seen.append(Sighting(table="toolkits", key=key, kind="new", words=words))
    return reading


def read_cudnn(redist: Redist, known: CurrentRows, today: str) -> SourceReading:
    """Releases of cuDNN that the catalog lacks. A row needs a package, so a release that no index
    has is reported and not added.
    """
    reading = SourceReading(source="cudnn-manifests")
    product = PRODUCTS[reading.source]
    rows = [v for row in known.rows("cudnn") if (v := as_version(row["version"])) is not None]
    newest = max(rows, default=Version("0")).release[:3]  # a label has no fourth number
    wanted = [label for label in redist.labels(product) if Version(label).release[:3] > newest]
    for manifest in redist.manifests(product, wanted, reading).values():
        version = manifest.version_of("cudnn")
        if version is None:
            continue
        released = _released(manifest, today, product, reading)
        when = f" on {released}" if released else ""
        majors = {int(cuda.partition(".")[0]) for cuda in manifest.components["cudnn"].cudas}
        for major in sorted(majors):
            words = f"{redist.name} released it{when}, and no package index that was asked has it"
            columns: Row = {"version": version, "cuda_major": major}
            reading.parts.append(Part(table="cudnn", columns=columns, words=words))
    return reading


READERS: Mapping[str, Read] = {
    "driver-manifests": read_drivers,
    "cuda-manifests": read_toolkits,
    "cudnn-manifests": read_cudnn,
}


def _is_news(label: str, row: Row | None) -> bool:
    """Whether the branch, its newest version or that version's date is new."""
    latest = None if row is None else as_version(row["latest_seen"])
    if row is None or latest is None or Version(label) > latest:
        return True
    return Version(label) == latest and row["latest_date"] is None


def _released(
    manifest: ReleaseManifest, today: str, product: str, reading: SourceReading
) -> str | None:
    """The date; None, with a note, if it cannot be read or is in the future."""
    if manifest.released is None or manifest.released > today:
        said = f"is dated {manifest.released}" if manifest.released else "has no date to be read"
        reading.notes.append(f"{manifest_name(manifest.label)} of {product} {said}.")
        return None
    return manifest.released


def _add_branch(
    reading: SourceReading,
    columns: dict[str, object],
    manifest: ReleaseManifest,
    rows: Mapping[int, Row],
    known: CurrentRows,
) -> None:
    """Add a branch that the catalog lacks, if its manifest names the CUDA that it is for."""
    branch = _int(columns["branch"])
    compat = manifest.components.get("cuda_compat")
    cudas = [cuda for cuda in (compat.cudas if compat else ()) if "." in cuda]
    before = max((number for number in rows if number < branch), default=None)
    if not cudas or before is None:
        words = f"{manifest.label} is out, and its manifest does not name the CUDA that it is for"
        key = {"branch": branch}
        reading.seen.append(Sighting(table="branches", key=key, kind="new", words=words))
        return
    cuda, last = cudas[-1], rows[before]
    after = [row for number, row in rows.items() if number > branch]
    if not _rise(str(last["max_cuda"]), cuda, *(str(row["max_cuda"]) for row in after)):
        words = f"{manifest.label} would be for CUDA {cuda}, out of the order of the branches"
        key = {"branch": branch}
        reading.seen.append(Sighting(table="branches", key=key, kind="conflict", words=words))
        return
    # dropped proprietary modules do not come back; whether others stay is not known
    modules = ("open_modules", "modules_source") if last["open_modules"] == "only" else ()
    carried = f"carried over from branch {before}"
    reading.add(
        "branches",
        **columns,
        max_cuda=cuda,
        first_version=None,
        type=None,
        end_of_life=None,
        dropped_below=last["dropped_below"],
        adds=[],
        dropped_source=f"{carried}: {last['dropped_source']}",
        adds_confidence="assumed",
        note=f"Which GPUs it drives is {carried}.",
        **{column: last[column] for column in modules},
    )
    package = f"cuda-compat-{cuda.replace('.', '-')}"
    if known.row("forward_compat", {"package": package}) is None:
        reading.add(
            "forward_compat",
            package=package,
            provides_cuda=cuda,
            built_from_branch=branch,
            official_base_branches=None,
            note="The branches that it may be laid upon were not read.",
        )


def _toolkit_like(full: str, rows: Mapping[Version, Row]) -> dict[str, object] | None:
    """What a toolkit has in common with the one before it of the same major; None: there is none,
    or an update of the same toolkit is already known.
    """
    version = Version(full)
    cuda = ".".join(full.split(".")[:2])
    before = [v for v in rows if v < version and v.major == version.major]
    same = [row for row in rows.values() if row["cuda"] == cuda]
    if not before or any(Version(str(row["full"])) > version for row in same):
        return None
    last = rows[max(before)]
    return {
        "cuda": cuda,
        "update": max((_int(row["update"]) + 1 for row in same), default=0),
        "minor_version_compatibility": last["minor_version_compatibility"],
        "sm_targets": last["sm_targets"],
        "on_pypi": False,
        "sm_source": f"carried over from {last['full']}: {last['sm_source']}",
        "confidence": "assumed",
    }


def _is_earlier(day: object, known: object) -> bool:
    return isinstance(day, str) and isinstance(known, str) and day < known


def _rise(*versions: str) -> bool:
    return all(Version(one) <= Version(other) for one, other in pairwise(versions))


def _int(value: object) -> int:
    return value if isinstance(value, int) else -1
