"""Whether the libraries of a lock will load, from its wheels and its base, before the image has a
name.

The judges are those of `provision inspect`, over the same files at the same paths; nothing is run.
What a wheel's libraries need and define depends on the wheel alone, so the store keeps it under the
wheel's digest, and each wheel is read once.

The framework's own packages come from one index and fit together, so what they need of each other
is not judged, nor is an image without other packages. Of their wheels, which are large, those are
read that have a library which another package names; and all of them if that does not show where
everything comes from.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from posixpath import basename, dirname
from typing import Any

from images.errors import Failure
from images.inspect.contents import Contents
from images.inspect.facts import CACHE, FORMAT, ElfFacts, LoadFacts, without_wanted
from images.inspect.image import Inspection, conclude
from images.inspect.tree import ImageFile, ImageTree, SymbolicLink
from images.layers.install import InstalledFile, canonicalized
from images.layers.transcode import WheelLayer
from images.oci.sources import Image
from images.store.local import local_path
from images.store.store import Store
from images.wheels.directory import Member
from images.wheels.remote_file import Wheel
from provision.build.load_reader import LoadReader, Stopped, names_needed
from provision.errors import NothingCompatibleError
from provision.model.plan import PACKAGES, Base, Plan
from provision.resolve.packages import asked_for
from provision.verification.inspection.needs import APT_GET, judge_needs
from provision.verification.inspection.outcome import InspectionOutcome, named
from provision.verification.inspection.symbols import judge_symbols
from provision.verification.inspection.versions import judge_versions
from provision.version import VERSION

_VERDICTS = "load-verdicts"
_FORMAT = 2
"""Part of the key of kept verdicts: raise it when the same image is judged otherwise."""

_JUDGES: Mapping[str, Callable[[Inspection], InspectionOutcome]] = {
    "needs": judge_needs,
    "versions": judge_versions,
    "symbols": judge_symbols,
}


class WillNotLoadError(NothingCompatibleError):
    """A library of a package needs something that nothing in the image has."""

    code = "will-not-load"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSubject:
    """What is judged: the layers of wheels, lowest first, on a base.

    `python` is the path of the base's interpreter; `environment` overrides the base's.
    """

    plan: Plan
    layers: Sequence[WheelLayer]
    base: Image
    python: str
    environment: Mapping[str, str]

    @property
    def requested(self) -> frozenset[str]:
        """The packages that were asked for, by their canonical names."""
        return frozenset(map(canonicalized, asked_for(self.plan)))

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """The wheels of all layers."""
        return tuple(wheel for layer in self.layers for wheel in layer.wheels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadVerdict:
    """The result in words, and what is wrong with packages that others brought: message and fix."""

    words: str
    warning: tuple[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """As in the result of `build`."""
        warning = None
        if self.warning is not None:
            warning = dict(zip(("message", "fix"), self.warning, strict=True))
        return {"message": self.words, "warning": warning}


def check_loading(
    subject: LoadSubject,
    store: Store,
    *,
    tell: Callable[[str], None],
    fetching: Collection[str] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> LoadVerdict | None:
    """Judge an image while its wheels arrive; None: there is nothing to judge, or `stopped` became
    true.

    WillNotLoadError: a file that must load will not, of a package that was asked for. What other
    packages bring may never be imported, so there it is a warning. `tell` hears what is read.
    `fetching` has the digests of wheels that are being downloaded; others are here or are not
    needed for a layer.
    """
    requested, wheels = subject.requested, subject.wheels
    if not requested:
        return None
    key = _key(subject)
    if (kept := _verdict_from_json(store.facts(_VERDICTS, key))) is not None:
        return kept
    arrivals = _arrivals(subject.layers, store, fetching)
    if absent := [wheel.name for wheel in wheels if wheel.sha256 not in arrivals]:
        are = "is" if len(absent) == 1 else "are"
        return _unchecked(f"{named(absent)} {are} not downloaded, as the layers are known")
    reader = LoadReader(store, arrivals, tell=tell, stopped=stopped)
    try:
        reader.read_small(wheels, requested)
        try:
            base = reader.base(subject.base)
        except Failure as failure:
            return _unchecked(f"the base cannot be read: {failure}")
        reader.read_large(wheels, requested)
        verdict = _judge(subject, reader, base)
    except Stopped:
        return None
    store.remember_facts(_VERDICTS, key, {"words": verdict.words, "warning": verdict.warning})
    return verdict


def _key(subject: LoadSubject) -> str:
    """All that a verdict depends on: a build that is repeated is not judged again."""
    decides = {
        "format": [_FORMAT, FORMAT, VERSION],
        "framework": subject.plan.framework,
        "arch": subject.plan.arch,
        "asked": sorted(subject.requested),
        "layers": [layer.key for layer in subject.layers],
        "base": f"{subject.base.digest} {subject.base.platform}",
        "python": subject.python,
        "environment": dict(subject.environment),
    }
    return json.dumps(decides, sort_keys=True)


def _verdict_from_json(document: Mapping[str, Any] | None) -> LoadVerdict | None:
    if document is None:
        return None
    try:
        warning = document["warning"]
        return LoadVerdict(
            words=str(document["words"]),
            warning=None if warning is None else (str(warning[0]), str(warning[1])),
        )
    except (KeyError, TypeError, IndexError):
        return None


def _judge(subject: LoadSubject, reader: LoadReader, base: LoadFacts) -> LoadVerdict:
    requested, wheels = subject.requested, subject.wheels
    with ExitStack() as opened:
        placed = _Placed.of(subject, reader, opened)
        closure = placed.closure(PACKAGES[subject.plan.framework]) - requested
        framework = [wheel for wheel in wheels if canonicalized(wheel.name) in closure]
        others = reader.wheels(wheel for wheel in wheels if wheel not in framework)
        named_by_others = placed.having(names_needed(others.values()))
        beside = reader.wheels(wheel for wheel in framework if wheel.sha256 in named_by_others)
        found = placed.inspected(base, others | _defining(beside))
        if not _is_settled(_of_packages(found, lambda name: name not in closure)):
            beside |= reader.wheels(w for w in framework if w.sha256 not in named_by_others)
            found = placed.inspected(base, others | _defining(beside))
    ours = _of_packages(found, requested.__contains__)
    if failures := _failures(ours):
        raise _refusal(ours, failures, subject.plan.base)
    brought = _of_packages(found, lambda name: name not in closure | requested)
    failures = _failures(brought)
    refusal = _refusal(brought, failures, subject.plan.base) if failures else None
    return LoadVerdict(
        words=f"libraries: {judge_symbols(ours).message}",
        warning=(refusal.message, refusal.fix) if refusal else None,
    )


def _arrivals(
    layers: Iterable[WheelLayer], store: Store, fetching: Collection[str]
) -> dict[str, Callable[[], Path]]:
    """Waits for each wheel that is here, or will be, by its digest."""
    found: dict[str, Callable[[], Path]] = {}
    for layer in layers:
        for wheel in layer.wheels:
            if wheel.sha256 in fetching or local_path(wheel.url) is not None:
                found[wheel.sha256] = partial(layer.fetch, wheel)
            elif (path := store.wheel(wheel.sha256)) is not None:
                found[wheel.sha256] = partial(Path, path)
    return found


def _defining(wheels: Mapping[str, LoadFacts]) -> dict[str, LoadFacts]:
    """The same without what the files need of others: only what they define is asked for."""
    return {sha256: without_wanted(facts) for sha256, facts in wheels.items()}


def _is_settled(found: Inspection) -> bool:
    """Whether nothing is missing, and it is known where everything comes from."""
    unjudged = found.needs.symbols.unjudged if found.needs is not None else 0
    return not unjudged and not _failures(found)


def _unchecked(why: str) -> LoadVerdict:
    return LoadVerdict(words=f"libraries: not checked, {why}; provision inspect IMAGE checks them")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """The files of all wheels by their paths in the image, each with the digest of its wheel."""

    subject: LoadSubject
    files: Mapping[str, tuple[str, InstalledFile]]

    @classmethod
    def of(cls, subject: LoadSubject, reader: LoadReader, opened: ExitStack) -> _Placed:
        files: dict[str, tuple[str, InstalledFile]] = {}
        for layer in subject.layers:
            local = replace(layer, fetch=lambda wheel: reader.path(wheel.sha256))
            for wheel in layer.wheels:
                installed = local.installed(wheel, opened)
                files |= {path: (wheel.sha256, file) for path, file in installed.items()}
        return cls(subject=subject, files=files)

    def closure(self, framework: str) -> frozenset[str]:
        """The packages that the framework requires, and itself."""
        nothing = LoadFacts(files={})
        return self.inspected(nothing, {}).packages.reach(framework)

    def having(self, names: Collection[str]) -> frozenset[str]:
        """The digests of the wheels with a file of one of these names."""
        return frozenset(
            sha256 for path, (sha256, _) in self.files.items() if basename(path) in names
        )

    def _nodes(self, wheels: Mapping[str, LoadFacts]) -> Iterator[tuple[str, ImageFile]]:
        """The programs and libraries of these wheels, and what all wheels say of themselves: a
        RECORD lists here what is in the tree.
        """
        recorded: dict[str, list[str]] = {}
        infos: dict[str, str] = {}
        for path, (sha256, file) in self.files.items():
            part = file.parts[0] if len(file.parts) == 1 else None
            if not isinstance(part, Member):
                continue
            if path.endswith(".dist-info/METADATA"):
                text = b"".join(file.wheel.contents(part))
                infos[sha256] = dirname(path)
                yield f"/{path}", ImageFile(size=len(text), layer=0, text=text)
            elif sha256 in wheels and (facts := wheels[sha256].files.get(part.name)):
                recorded.setdefault(sha256, []).append(f"/{path}")
                yield f"/{path}", _node(replace(facts, executable=bool(file.mode & 0o111)))
        for sha256, info in infos.items():
            rows = io.StringIO()
            csv.writer(rows).writerows([path, "", ""] for path in recorded.get(sha256, ()))
            text = rows.getvalue().encode("utf-8", "surrogateescape")
            yield f"/{info}/RECORD", ImageFile(size=len(text), layer=0, text=text)

    def inspected(self, base: LoadFacts, wheels: Mapping[str, LoadFacts]) -> Inspection:
        """The image as `inspect` would find it, with what was read of these wheels."""
        tree = ImageTree()
        for path, target in base.links.items():
            tree.add(path, SymbolicLink(target=target, layer=0))
        for path, one in base.files.items():
            tree.add(path, _node(one))
        if base.cache is not None:
            tree.add(CACHE, ImageFile(size=len(base.cache), layer=0, text=base.cache))
        for path, node in self._nodes(wheels):
            tree.add(path, node)
        subject = self.subject
        venv = subject.environment.get("VIRTUAL_ENV", "")
        tree.add(f"{venv}/bin/python3", SymbolicLink(target=subject.python, layer=0))
        own = subject.base.config.get("config")
        before = own.get("Env") if isinstance(own, dict) else None
        environment = [*(before if isinstance(before, list) else [])]
        environment += [f"{name}={value}" for name, value in subject.environment.items()]
        return conclude(
            Contents(
                kind="image",
                shown="the image",
                digest=None,
                machine="aarch64" if subject.plan.arch == "aarch64" else "x86_64",
                tree=tree,
                config={"config": {"Env": environment}},
            )
        )


def _node(one: ElfFacts) -> ImageFile:
    return ImageFile(
        size=one.size, layer=0, elf=one.elf, problem=one.problem, executable=one.executable
    )


def _failures(found: Inspection) -> dict[str, InspectionOutcome]:
    """What fails, by the judge."""
    outcomes = {kind: judge(found) for kind, judge in _JUDGES.items()}
    return {kind: outcome for kind, outcome in outcomes.items() if outcome.status == "fail"}


def _of_packages(found: Inspection, chosen: Callable[[str], bool]) -> Inspection:
    """Only what files of the chosen packages need; the base is as it is."""
    needs = found.needs
    if needs is None:
        return found

    def counts(path: str) -> bool:
        owner = found.owner(path)
        return owner is not None and chosen(owner.name)

    symbols = needs.symbols
    return replace(
        found,
        needs=replace(
            needs,
            needs=tuple(one for one in needs.needs if counts(one.file)),
            versions=tuple(one for one in needs.versions if counts(one.file)),
            symbols=replace(
                symbols, missing=tuple(one for one in symbols.missing if counts(one.file))
            ),
            unreadable=tuple(one for one in needs.unreadable if counts(one.file)),
        ),
    )


def _refusal(
    found: Inspection, failures: Mapping[str, InspectionOutcome], base: Base | None
) -> WillNotLoadError:
    kind, first = next(iter(failures.items()))
    file, library = _first_file(found, kind)
    own = found.owner(file)
    message, fix = first.message, first.fix or ""
    if own is not None and kind != "symbols":
        message = f"{own.title}: {message}"
    if packages := first.measured.get("debian") if _takes_apt(found, base) else None:
        fix = f"Add {' '.join(f'--apt {name}' for name in packages)}"
    elif own is not None and library is not None:
        fix = (
            f"Name a release of {own.name} that was built for this image "
            f"(--with {own.name}==VERSION), or a base that has {library}: --base IMAGE"
        )
    elif own is not None and fix.startswith("Reinstall"):
        fix = f"Name another release: --with {own.name}==VERSION"
    elif own is not None and "--base" not in fix:
        fix = f"{fix} Name the release: --with {own.name}==VERSION"
    return WillNotLoadError(
        ". ".join(filter(None, (message, first.cause))).removesuffix(".") + ".",
        fix=fix,
        detail="\n".join(outcome.message for other, outcome in failures.items() if other != kind),
    )


def _takes_apt(found: Inspection, base: Base | None) -> bool:
    """Whether --apt adds Debian packages to this base."""
    kind = base.kind if base is not None else "local"
    return kind == "bootstrap" or (kind == "registry" and bool(found.contents.tree.file(APT_GET)))


def _first_file(found: Inspection, kind: str) -> tuple[str, str | None]:
    """The file that a judge names first, and the library that it lacks, if that is the fault."""
    needs = found.needs
    assert needs is not None
    if kind == "symbols":
        return next(one.file for one in needs.symbols.missing if one.required), None
    if kind == "versions":
        return next(one.file for one in needs.versions if one.required), None
    for broken in needs.unreadable:
        if broken.required:
            return broken.file, None
    absent = (n for n in needs.needs if n.required and n.status in {"missing", "elsewhere"})
    return next((n.file, n.name) for n in absent)
