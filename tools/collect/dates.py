"""The newest driver of each known branch, and the days of toolkits, from NVIDIA's manifests.

A manifest is read if its release is newer than the catalog's, or if the catalog has no date for it.
"""

from __future__ import annotations

from packaging.version import Version

from provision.catalog.refresh.current_rows import as_version
from provision.catalog.refresh.manifests import manifest_name
from provision.catalog.refresh.model import Asking, SourceReading
from provision.catalog.refresh.nvidia import Redist, branch_of


def read_newest_drivers(asking: Asking) -> SourceReading:
    """`latest_seen`, `latest_date` and `latest_source` of branches."""
    redist = Redist(asking, "nvidia-driver")
    rows = {row.branch: row for row in asking.known.catalog.branches}
    newest = {branch_of(label): label for label in redist.labels() if branch_of(label) in rows}

    def is_news(label: str) -> bool:
        row = rows[branch_of(label)]
        latest = as_version(row.latest_seen) or Version("0")
        return Version(label) > latest or (Version(label) == latest and row.latest_date is None)

    wanted = [label for label in newest.values() if is_news(label)]
    for label, manifest in redist.manifests(wanted).items():
        row, day = rows[branch_of(label)], redist.released(manifest)
        if day and row.latest_date and day < row.latest_date:
            said = f"{row.latest_seen} of {row.latest_date}"
            redist.note(f"Driver {label} is dated {day}, before {said}, which is kept.")
            continue
        source = f"{redist.reading.name}: {manifest_name(label)} of nvidia-driver"
        redist.reading.add(
            "branches",
            branch=row.branch,
            latest_seen=label,
            latest_date=day,
            latest_source=source,
        )
    return redist.reading


def read_toolkit_days(asking: Asking) -> SourceReading:
    """`released` and `driver` of known toolkits without a date."""
    redist = Redist(asking, "cuda")
    undated = {row.full for row in asking.known.catalog.toolkits if row.released is None}
    wanted = [label for label in redist.labels() if label in undated]
    for label, manifest in redist.manifests(wanted).items():
        day = redist.released(manifest)
        redist.reading.add("toolkits", full=label, driver=manifest.driver, released=day)
    return redist.reading
