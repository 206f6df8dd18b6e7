"""PyTorch on the default index: its releases, its default builds and its companions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows, as_version, key_of
from provision.catalog.refresh.model import AbsentError, Sighting, SourceError, SourceReading
from provision.catalog.refresh.shared import first_upload, is_mirror, note_absent, sizes_of
from provision.catalog.refresh.wheels import (
    IndexMetadata,
    LinuxWheel,
    best_first,
    cpython_tags,
    cuda_of,
    exact,
    glibc_of,
    gpu_pins,
    is_gpu_library,
    listed_versions,
    named,
    needed,
    python_of,
)

COMPANIONS = ("torchvision", "torchaudio")
PROJECTS = ("torch", *COMPANIONS)
_VERSION_FILE = "torch/version.py"
_CUDA = re.compile(
    rb"""^cuda(?:\s*:[^=\n]*)?\s*=\s*(?:'(\d+\.\d+)'|"(\d+\.\d+)"|(None))""", re.MULTILINE
)

Group = dict[tuple[Version, str], list[LinuxWheel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultBuild:
    """What a default build is compiled for. `cuda` None: CPUs."""

    cuda: str | None
    cudnn: str | None = None
    nccl: str | None = None
    pins: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        """The wheel tag: "cu126", "cpu"."""
        return "cpu" if self.cuda is None else f"cu{self.cuda.replace('.', '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """Which release of a companion requires which torch version; `newest` requires `newest_asks`
    ("": no particular one).
    """

    by_torch: Mapping[str, str]
    newest: str | None
    newest_asks: str


def read_torch(index: Index, known: CurrentRows, *, recheck: bool) -> SourceReading:
    """The rows of `releases` and `builds` that the default index has data for.

    Reads METADATA of builds that the catalog does not know, or of all with `recheck`: an uploaded
    file never changes.
    """
    reading = SourceReading(source="torch")
    index.prefetch(PROJECTS)
    groups = default_builds(index.wheels("torch"), known.oldest("releases"))
    if not groups:
        raise SourceError(
            f"{index.name} lists no wheel of torch for Linux.",
            fix="Name an index that has them: --index URL",
        )
    at_index = {
        (version, str(row["arch"])): row
        for row in known.rows("builds")
        if "pypi" in _list(row["at"]) and (version := as_version(row["version"])) is not None
    }
    unknown = {key: group for key, group in groups.items() if recheck or key not in at_index}
    read = index.metadata(unknown, reading.troubles)
    for key, group in groups.items():
        build = _read_build(index, read, key, reading.troubles) if key in unknown else None
        row = at_index.get(key)
        if build is not None and (row is None or build.tag == row["tag"]):
            _add_build(reading, index, key, group, build)
        elif row is not None:
            _add_seen(reading, key, group, tag=str(row["tag"]))
            if build is not None:
                words = f"the wheels of {index.name} are {build.tag}"
                key_ = key_of("builds", row)
                reading.seen.append(
                    Sighting(table="builds", key=key_, kind="conflict", words=words)
                )
    _add_releases(reading, index, known, groups, read, recheck=recheck)
    versions = listed_versions(index.page("torch").files, "torch")
    if not is_mirror(reading, {v for v, _ in at_index}, versions, index.name):
        for key in sorted(at_index.keys() - groups.keys()):
            row = at_index[key]
            others = [place for place in _list(row["at"]) if place != "pypi"]
            patch = {"at": others} if others else {"existence": "doubtful"}
            if row["existence"] != "doubtful":
                note_absent(reading, "builds", row, patch, f"{index.name} does not list it")
    return reading


def default_builds(wheels: Iterable[LinuxWheel], oldest: Version) -> Group:
    """Wheels by (release, machine), oldest release first; without local builds and candidates."""
    groups: Group = defaultdict(list)
    for wheel in wheels:
        version = wheel.version
        if version.local is None and not version.is_prerelease and version >= oldest and wheel.arch:
            groups[version, wheel.arch].append(wheel)
    return {key: groups[key] for key in sorted(groups)}


def judge_build(metadata: IndexMetadata, arch: str, python: str) -> DefaultBuild | None:
    """What METADATA says about the build; None: it does not say.

    If NVIDIA's packages are required: CUDA X.Y from the pin of the toolkit or its runtime. If they
    are required on another machine only: a CPU build. If they are not named at all: unknown, since
    PyTorch before 1.13 bundled CUDA.
    """
    requirements = needed(metadata, arch, python=python)
    if not any(is_gpu_library(row) for row in requirements):
        others = any(is_gpu_library(row) for row in metadata.requires)
        return DefaultBuild(cuda=None) if others else None
    cuda = cuda_of(requirements)
    if cuda is None:
        return None
    return DefaultBuild(
        cuda=cuda,
        cudnn=_pinned(requirements, "nvidia-cudnn"),
        nccl=_pinned(requirements, "nvidia-nccl"),
        pins=gpu_pins(requirements),
    )


def parse_version_file(data: bytes) -> DefaultBuild | None:
    """torch/version.py, which names the CUDA of the build; None if it does not."""
    found = _CUDA.search(data)
    if found is None:
        return None
    cuda = found[1] or found[2]
    return DefaultBuild(cuda=cuda.decode() if cuda else None)


def judge_companions(
    read: Mapping[Version, IndexMetadata], yanked: Iterable[Version] = ()
) -> Companions:
    """Metadata of a companion, by release -> which of them goes with which torch.

    Only an exact pin pairs; of several the newest counts, and yanked ones never do.
    """
    withdrawn = set(yanked)
    by_torch: dict[str, str] = {}
    newest, newest_asks = None, ""
    for version in sorted(read.keys() - withdrawn):
        asks = next(
            (r for r in read[version].requires if canonicalize_name(r.name) == "torch"), None
        )
        newest, newest_asks = str(version), str(asks.specifier) if asks else ""
        if asks is not None and (pinned := exact(asks)) is not None:
            by_torch[str(Version(pinned))] = str(version)
    return Companions(by_torch=by_torch, newest=newest, newest_asks=newest_asks)


def pairing_note(project: str, torch: str, companions: Companions) -> str:
    """Why a torch has no companion."""
    if companions.newest is None:
        return f"No {project} was read."
    asks = f"torch{companions.newest_asks}" if companions.newest_asks else "no torch in particular"
    return (
        f"No {project} asks for torch {torch} by number; the newest, {companions.newest}, "
        f"asks for {asks}."
    )


def _pinned(requirements: Sequence[Requirement], prefix: str) -> str | None:
    found = named(requirements, prefix)
    return exact(found) if found else None


def _read_build(
    index: Index,
    read: Mapping[tuple[Version, str], tuple[LinuxWheel, IndexMetadata]],
    key: tuple[Version, str],
    troubles: list[SourceError],
) -> DefaultBuild | None:
    if key not in read:
        return None  # already reported as a failure
    wheel, metadata = read[key]
    build = judge_build(metadata, key[1], python_of(wheel))
    if build is not None:
        return build
    try:
        build = parse_version_file(index.peek(wheel, _VERSION_FILE)[_VERSION_FILE])
    except SourceError as error:
        troubles.append(error)
        return None
    if build is None:
        troubles.append(
            SourceError(
                f"Which CUDA {wheel.file.name} is for is neither in its METADATA nor in "
                f"{_VERSION_FILE}.",
                fix="No action is needed; the build is skipped.",
            )
        )
    return build


def _add_build(
    reading: SourceReading,
    index: Index,
    key: tuple[Version, str],
    group: list[LinuxWheel],
    build: DefaultBuild,
) -> None:
    version, arch = key
    smallest, largest = sizes_of(group, index, reading.troubles, ask=True)
    columns: dict[str, object] = {
        "version": str(version),
        "tag": build.tag,
        "cuda": build.cuda,
        "arch": arch,
        "python_tags": list(cpython_tags(group)),
        "sm": None,
        "ptx": None,
        "cudnn": build.cudnn,
        "nccl": build.nccl,
        "glibc": glibc_of(group),
        "existence": "confirmed",
        "at": ["pypi"],
    }
    if build.pins:
        columns["pins"] = list(build.pins)
    if smallest is not None and largest is not None:
        columns |= {"size_min_bytes": smallest, "size_max_bytes": largest}
    reading.add("builds", **columns)


def _add_seen(
    reading: SourceReading, key: tuple[Version, str], group: list[LinuxWheel], *, tag: str
) -> None:
    """A known build: only what the page itself says of it."""
    sizes = [wheel.file.size for wheel in group if wheel.file.size is not None]
    columns: dict[str, object] = {
        "version": str(key[0]),
        "tag": tag,
        "arch": key[1],
        "python_tags": list(cpython_tags(group)),
        "glibc": glibc_of(group),
        "existence": "confirmed",
        "at": ["pypi"],
    }
    if len(sizes) == len(group):
        columns |= {"size_min_bytes": min(sizes), "size_max_bytes": max(sizes)}
    reading.add("builds", **columns)


def _add_releases(
    reading: SourceReading,
    index: Index,
    known: CurrentRows,
    groups: Group,
    read: Mapping[tuple[Version, str], tuple[LinuxWheel, IndexMetadata]],
    *,
    recheck: bool,
) -> None:
    by_version: dict[Version, list[LinuxWheel]] = defaultdict(list)
    for (version, _), group in groups.items():
        by_version[version] += group
    fresh = [v for v in by_version if known.row("releases", {"version": str(v)}) is None]
    companions = {
        project: _read_companions(
            reading, index, known, project, recheck=recheck, any_new=bool(fresh)
        )
        for project in COMPANIONS
    }
    for version, wheels in by_version.items():
        metadata = next((m for (v, _), (_, m) in read.items() if v == version), None)
        requires = next((w.file.requires_python for w in wheels if w.file.requires_python), None)
        columns: dict[str, object] = {
            "version": str(version),
            "requires_python": requires or (metadata.requires_python if metadata else None),
            "yanked": all(wheel.file.yanked for wheel in wheels),
        }
        if columns["requires_python"] is None:
            del columns["requires_python"]
        paired = {p: found.by_torch.get(str(version)) for p, found in companions.items()}
        if version not in fresh:
            columns |= {project: text for project, text in paired.items() if text is not None}
            reading.add("releases", **columns)
            continue
        if metadata is None:
            continue  # a release without a readable build
        notes = [pairing_note(p, str(version), companions[p]) for p in COMPANIONS if not paired[p]]
        columns |= {
            "requires_python": columns.get("requires_python"),
            **paired,
            "upload_time": first_upload(wheels),
            "numpy": None,
        }
        if notes:
            columns["pairing_note"] = " ".join(notes)
        reading.add("releases", **columns)


def _read_companions(
    reading: SourceReading,
    index: Index,
    known: CurrentRows,
    project: str,
    *,
    recheck: bool,
    any_new: bool,
) -> Companions:
    """Reads those newer than any that the catalog has paired; if there is a new torch (which may be
    of an older series), those not yet paired; with `recheck` all.
    """
    nothing = Companions(by_torch={}, newest=None, newest_asks="")
    try:
        wheels = index.wheels(project)
    except AbsentError:
        return nothing
    except SourceError as error:
        reading.troubles.append(error)
        return nothing
    paired = [v for row in known.rows("releases") if (v := as_version(row[project])) is not None]
    oldest = min(paired, default=Version("0"))
    groups: dict[Version, list[LinuxWheel]] = defaultdict(list)
    for wheel in wheels:
        if wheel.version.local is None and not wheel.version.is_prerelease:
            groups[wheel.version].append(wheel)
    newest = max(paired, default=oldest)
    wanted = [
        version
        for version in sorted(groups)
        if version >= oldest
        and (recheck or version > newest or (any_new and (version not in paired)))
    ]
    if any_new and groups and max(groups) not in wanted:
        wanted.append(max(groups))  # for the note of a torch without companions
    read = index.metadata({v: best_first(groups[v]) for v in wanted}, reading.troubles)
    yanked = [v for v, group in groups.items() if all(wheel.file.yanked for wheel in group)]
    return judge_companions({v: metadata for v, (_, metadata) in read.items()}, yanked)


def _list(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
