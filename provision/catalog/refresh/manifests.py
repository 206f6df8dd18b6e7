"""NVIDIA's redistributable manifests: the page that lists them and `redistrib_<label>.json`. Pure.

A product (nvidia-driver, cuda) has a directory with one manifest per release. Besides its own
metadata, a manifest has one object per component, and in it one object per platform, whose archives
may be split by CUDA ("cuda13.3").

Sources: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (tarballs and zip
archive deliverables); github.com/NVIDIA/build-system-archive-import-examples (what NVIDIA itself
reads them with); the manifests in github.com/NixOS/nixpkgs, pkgs/development/cuda-modules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from urllib.parse import unquote, urlsplit

from packaging.version import Version

from provision.catalog.index.pages import PageError, parse_page

_NAME = re.compile(r"redistrib_(\d{1,4}(?:\.\d{1,4}){1,3})\.json", re.ASCII)
_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,5}", re.ASCII)
_CUDA = re.compile(r"(?:cuda)?(\d{1,3}\.\d{1,3})", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LABELS_LIMIT = 1000
# "linux-aarch64" is Jetson, which has a different driver and libraries.
_PLATFORMS = ("linux-x86_64", "linux-sbsa")


class ManifestError(Exception):
    """Not a manifest of this product and label; the end of the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseManifest:
    """One release. `released` is a day, "2026-11-04"; `driver` the version of the driver in it;
    `cudas` those that its cuda-compat is for, lowest first: "13.3". None, (): missing or invalid.
    """

    label: str
    released: str | None
    driver: str | None
    cudas: tuple[str, ...]


def manifest_name(label: str) -> str:
    """The file name of one release's manifest."""
    return f"redistrib_{label}.json"


def parse_labels(body: bytes, content_type: str, url: str) -> tuple[str, ...]:
    """The releases that the page of a directory links to, oldest first, each version once.

    Ignores signatures, other schemas (`redistrib_v2_...`), sort orders and links to elsewhere.
    ManifestError: it is not such a page.
    """
    try:
        page = parse_page(body, content_type, url)
    except PageError as error:
        raise ManifestError(str(error)) from None
    directory = _directory(url)
    found: dict[Version, str] = {}
    for link in page.links[: 10 * _LABELS_LIMIT]:
        parts = urlsplit(link)
        name = _NAME.fullmatch(unquote(parts.path.rpartition("/")[2]))
        if name is not None and not parts.query and _directory(link) == directory:
            found.setdefault(Version(name[1]), name[1])
    return tuple(found[version] for version in sorted(found))[-_LABELS_LIMIT:]


def parse_manifest(body: bytes, product: str, label: str) -> ReleaseManifest:
    """A manifest as the server sent it. Unknown content is ignored.

    ManifestError: not a JSON object, or that of another product or release.
    """
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        raise ManifestError("it is not complete JSON") from None
    if not isinstance(raw, dict):
        raise ManifestError("it is JSON, and no object")
    said = raw.get("release_product", product)
    if not isinstance(said, str) or said.replace("_", "-") != product:
        raise ManifestError(f"it says that it is of {said!r:.40}")
    if (said := raw.get("release_label", label)) != label:
        raise ManifestError(f"it says that it is {said!r:.40}")
    if not any(isinstance(entry, dict) and "name" in entry for entry in raw.values()):
        raise ManifestError("it names no component")
    driver, compat = raw.get("nvidia_driver"), raw.get("cuda_compat")
    version = driver.get("version") if isinstance(driver, dict) else None
    return ReleaseManifest(
        label=label,
        released=_day(raw.get("release_date")),
        driver=version if isinstance(version, str) and _VERSION.fullmatch(version) else None,
        cudas=tuple(sorted(set(_cudas(compat)), key=Version)),
    )


def _cudas(entry: object) -> Iterator[str]:
    """From the list of variants, and from the keys of the platforms that the catalog covers."""
    if not isinstance(entry, dict):
        return
    for words in (entry.get("cuda_variant"), *(entry.get(name) for name in _PLATFORMS)):
        for word in words if isinstance(words, list | dict) else ():
            found = _CUDA.fullmatch(word) if isinstance(word, str) else None
            if found is not None:
                yield found[1]


def _day(value: object) -> str | None:
    try:
        is_day = isinstance(value, str) and _DAY.fullmatch(value) is not None
        return date.fromisoformat(str(value)).isoformat() if is_day else None
    except ValueError:
        return None


def _directory(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rpartition("/")[0]
