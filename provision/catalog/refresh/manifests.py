"""NVIDIA's redistributable manifests: the page that lists them and `redistrib_<label>.json`. Pure.

A product (nvidia-driver, cuda, cudnn) has a directory with one manifest per release. Besides its
own metadata, a manifest has one object per component, and in it one object per platform, whose
archives may be split by CUDA ("cuda13.3"). NCCL has no such directory.

Sources: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (tarballs and zip
archive deliverables); github.com/NVIDIA/build-system-archive-import-examples (what NVIDIA itself
reads them with); the manifests in github.com/NixOS/nixpkgs, pkgs/development/cuda-modules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from urllib.parse import unquote, urlsplit

from packaging.version import Version

from provision.catalog.refresh.pages import PageError, parse_page

_NAME = re.compile(r"redistrib_(\d{1,4}(?:\.\d{1,4}){1,3})\.json", re.ASCII)
_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,5}", re.ASCII)
_CUDA = re.compile(r"(?:cuda)?(\d{1,3}(?:\.\d{1,3})?)", re.ASCII)
_DAY = re.compile(r"(\d{4})([-/]?)(\d\d)\2(\d\d)(?:[T ]\d\d:\d\d\S{0,20})?", re.ASCII)
_LABELS_LIMIT = 1000
# "linux-aarch64" is Jetson, which has a different driver and libraries.
_ARCHS = {"linux-x86_64": "x86_64", "linux-sbsa": "aarch64"}


class ManifestError(Exception):
    """Not a manifest of this product and label; the end of the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component of a release. `cudas`: the CUDAs with separate archives: "13.3", "12".

    `version` None: missing or invalid.
    """

    version: str | None
    archs: tuple[str, ...]
    cudas: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseManifest:
    """One release. `released` is a day, "2026-11-04"; None: missing, or in another format."""

    label: str
    released: str | None
    components: Mapping[str, Component]

    def version_of(self, component: str) -> str | None:
        """The version of one component; None if the component or its version is missing."""
        found = self.components.get(component)
        return found.version if found else None


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
        raise ManifestError(f"it says that it is of {_shown(said)}")
    said = raw.get("release_label", label)
    if said != label:
        raise ManifestError(f"it says that it is {_shown(said)}")
    components = {
        name: _component(entry)
        for name, entry in raw.items()
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    if not components:
        raise ManifestError("it names no component")
    return ReleaseManifest(
        label=label, released=_day(raw.get("release_date")), components=components
    )


def _component(entry: Mapping[str, object]) -> Component:
    version = entry.get("version")
    return Component(
        version=version if isinstance(version, str) and _VERSION.fullmatch(version) else None,
        archs=tuple(arch for key, arch in _ARCHS.items() if isinstance(entry.get(key), dict)),
        cudas=tuple(sorted(set(_cudas(entry)), key=Version)),
    )


def _cudas(entry: Mapping[str, object]) -> Iterator[str]:
    """From the list of variants, and from the keys of the platforms that the catalog covers."""
    variants = entry.get("cuda_variant")
    platforms = [entry.get(key) for key in _ARCHS]
    words = [
        *(variants if isinstance(variants, list) else []),
        *(key for platform in platforms if isinstance(platform, dict) for key in platform),
    ]
    for word in words:
        found = _CUDA.fullmatch(word) if isinstance(word, str) else None
        if found is not None:
            yield found[1]


def _day(value: object) -> str | None:
    """Year, month and day in this order; any other order would be ambiguous."""
    found = _DAY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    try:
        return date(int(found[1]), int(found[3]), int(found[4])).isoformat()
    except ValueError:
        return None


def _directory(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rpartition("/")[0]


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text[:40])
