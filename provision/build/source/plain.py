"""Wheels of packages that need no compiler: built in the sandbox, on the plan's base.

name, version --find_listed--> the source archive       (or a commit, by git)
its build backend ----uv-----> pinned wheels
both --------------recipe----> `inside` runs in the base, without a network
wheel -------------repacked--> the same bytes for the same source and backend
                   kept------> with what it was built from
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement

from images.errors import Failure
from images.oci.sources import Image
from images.store.built_wheels import BuiltWheels
from images.store.store import Store
from images.store.upkeep import hash_file
from images.system.scratch import scratch_directory
from images.wheels.remote_file import RemoteFile
from provision.build.base import BuildSettings, OfflineError
from provision.build.maker import RunnableImage
from provision.build.source.checkout import Checkout, GitSourceError, check_out, read_git
from provision.build.source.python_base import base_with_python
from provision.build.source.recipe import (
    CompileOrder,
    WheelBuildError,
    build_requirements,
    compile_wheel,
)
from provision.build.source.refusal import elsewhere
from provision.build.source.repack import OtherPackageError, repacked
from provision.build.source.rules import BuiltWheelUnfitError, needs_more
from provision.build.source.sdists import (
    NoSdistError,
    declared_requirements,
    download,
    find_listed,
    members_of,
    suffix_of,
)
from provision.build.source.wheel_cache import WheelCache
from provision.errors import Exit
from provision.lock.solve import NoSolutionError
from provision.lock.source_builds import GitSource, SourceBuild
from provision.lock.sources import NotBuilt, SourceWheel
from provision.lock.uv import WheelTarget
from provision.model.environment import requirement_of
from provision.model.plan import PackageIndexes, Plan
from provision.output.console import Console
from provision.verification.subject import prepared, runner_here

EPOCH = 1_700_000_000
_FRONTEND = ("pip", "setuptools", "wheel")
_LEGACY = (
    "setuptools<81"  # the last with pkg_resources, which the setup.py of older packages import
)
_TIMEOUT_S = 900.0
# Python's and setuptools' words for a compiler that is not there, and ours for what one made
_NO_COMPILER = re.compile(
    r"(No such file or directory|command|not found|Unable to find|failed)\W.*"
    r"\b(gcc|g\+\+|cc|c\+\+|clang|nvcc|cmake|cargo|rustc)\b|it has compiled parts"
)
_ENVIRONMENT: Mapping[str, str] = {"SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONHASHSEED": "0"}


class BuiltWheelChangedError(Failure):
    """A wheel that a lock names by its digest was built again, and is another one."""

    code = "built-wheel-changed"
    exit_code = Exit.BUILD_FAILED


class PlainWheels:
    """A `provision.lock.sources.SourceMaker`, which also finds what was built before."""

    def __init__(
        self,
        plans: Callable[[str], Iterable[Plan]],
        indexes: PackageIndexes,
        settings: BuildSettings,
        console: Console,
    ) -> None:
        """`plans` are those whose bases may build for a Python ("3.11"), the best first; `indexes`
        are the user's.
        """
        self._plans = plans
        self._indexes = indexes
        self._settings = settings
        self._console = console
        self._kept = BuiltWheels(settings.wheels or settings.state / "wheels")

    def make(
        self, name: str, version: str, target: WheelTarget, plan: Plan | None
    ) -> SourceWheel | NotBuilt:
        """The wheel of a release on the index, or why there is none; for a package that needs a
        compiler the one that `provision wheel` built for `plan`.
        """
        if why := elsewhere(name):
            return NotBuilt(name=name, version=version, why="elsewhere", message=why)
        indexes, settings = self._indexes, self._settings
        try:
            line = requirement_of(f"{name}=={version}")
            file, listed_by = find_listed(line, target.python, indexes, settings)
            kept = self._compiled_before(line, plan) or self._with_source(file)
            if kept is not None:
                return kept
            with self._store() as store:
                archive = download(file, store, indexes=indexes, settings=settings)
                shown = f"{name}-{version}{suffix_of(file)}"
                lines = declared_requirements(archive, shown)
                files = members_of(archive, shown, {"PKG-INFO", "setup.py"})
                if why := needs_more(name, lines, files.get("setup.py", "")):
                    needed = _requires(files.get("PKG-INFO", ""))
                    return NotBuilt(
                        name=name, version=version, why="compiler", message=why, requires=needed
                    )
                draft = _draft(name, version, file, listed_by)
                return self._built(archive, lines, draft, target, store)
        except OfflineError as error:
            return NotBuilt(name=name, version=version, why="offline", message=error.message)
        except (NoSdistError, WheelBuildError, NoSolutionError, BuiltWheelUnfitError) as error:
            if _NO_COMPILER.search(f"{error.message}{error.detail}"):
                why = "its build starts a compiler"
                return NotBuilt(name=name, version=version, why="compiler", message=why)
            return NotBuilt(name=name, version=version, why="failed", message=error.message)

    def from_git(self, line: str, target: WheelTarget) -> SourceWheel:
        """The wheel of a requirement `NAME @ git+URL@COMMIT`. Failure: it cannot be built."""
        wanted = read_git(line)
        if self._settings.offline and wanted.commit is None:
            raise OfflineError(f"The repository of {wanted.name}")
        if wanted.commit is not None and (kept := self._with_commit(wanted)) is not None:
            return kept
        if self._settings.offline:
            raise OfflineError(f"The repository of {wanted.name}")
        with self._console.step("clone", f"{wanted.name} from {wanted.shown}", named=True):
            return self._from_checkout(wanted, target)

    def _from_checkout(self, wanted: Checkout, target: WheelTarget) -> SourceWheel:
        with self._store() as store, scratch_directory() as made:
            archive, source = check_out(wanted, made, self._settings.ca)
            shown = f"the repository of {wanted.name}"
            top = f"{wanted.subdirectory}/" if wanted.subdirectory else ""
            declared = declared_requirements(archive, shown, top)
            setup = members_of(archive, shown, {f"{top}setup.py"}).get(f"{top}setup.py", "")
            if why := needs_more(wanted.name, declared, setup):
                raise GitSourceError(
                    wanted.name,
                    f"{wanted.name} ({wanted.shown}) cannot be built while locking: {why}.",
                    fix="Build its wheel where the compilers are (pip wheel), and name it instead: "
                    f"{wanted.name} @ https://HOST/NAME.whl",
                )
            draft = _draft(wanted.name, "", source)
            try:
                return self._built(archive, declared, draft, target, store)
            except (NoSdistError, WheelBuildError, NoSolutionError, BuiltWheelUnfitError) as error:
                raise _not_built(wanted, source, error) from error

    def again(self, build: SourceBuild, plan: Plan) -> Path:
        """The wheel that a lock says was built from source: the one built before, or built again
        with the same backend. BuiltWheelChangedError: it has another digest.
        """
        if (kept := self.kept(build.sha256)) is not None:
            return kept
        if self._settings.offline:
            raise OfflineError(f"The wheel {build.wheel}, which the lock has built from source,")
        target = WheelTarget(build.python, str(plan.arch), 0)
        with self._store() as store, scratch_directory() as made:
            if isinstance(build.source, GitSource):
                archive, found = check_out(
                    Checkout.of(build.name, build.source), made, self._settings.ca
                )
                if found.tree != build.source.tree:
                    raise _changed(build, f"the files of commit {found.commit} are others")
            else:
                archive = download(
                    build.source, store, indexes=self._indexes, settings=self._settings
                )
            plan, image = self._base(target, store)
            one = self._compiled(archive, build, plan, image, store)
        if (now := hash_file(one.path) or "") != build.sha256:
            raise _changed(build, f"its sha256 is {now[:12]}...")
        return one.path

    def _compiled_before(self, line: Requirement, plan: Plan | None) -> SourceWheel | None:
        """The wheel that `provision wheel` built for a plan."""
        wheels = self._settings.wheels if plan is not None else None
        found = WheelCache(wheels).fitting(str(line), plan) if wheels and plan else None
        return None if found is None else SourceWheel(path=Path(found.path), build=None)

    def kept(self, sha256: str) -> Path | None:
        """A wheel that was built here before, if it has not changed."""
        found = (one.path for one in self._kept.all() if one.sha256 == sha256)
        return next((path for path in found if hash_file(path) == sha256), None)

    def _with_source(self, file: RemoteFile) -> SourceWheel | None:
        def same(build: SourceBuild) -> bool:
            source = build.source
            return isinstance(source, RemoteFile) and source.sha256 == file.sha256

        return next((one for one in self._all() if one.build and same(one.build)), None)

    def _with_commit(self, wanted: Checkout) -> SourceWheel | None:
        place = (wanted.shown, wanted.commit, wanted.subdirectory)

        def same(build: SourceBuild) -> bool:
            source = build.source
            return (
                isinstance(source, GitSource)
                and (source.url, source.commit, source.subdirectory) == place
            )

        return next((one for one in self._all() if one.build and same(one.build)), None)

    def _all(self) -> Iterator[SourceWheel]:
        for kept in self._kept.all():
            build = SourceBuild.from_entry(kept.about.get("package"))
            if build is not None and build.sha256 == kept.sha256 == hash_file(kept.path):
                yield SourceWheel(path=kept.path, build=build)

    def _built(
        self,
        archive: Path,
        declared: Sequence[str],
        draft: SourceBuild,
        target: WheelTarget,
        store: Store,
    ) -> SourceWheel:
        """Build with the newest backend that the source allows; a source that imports what newer
        ones no longer have, with an older one. `draft` has the source and its name.
        """
        plan, image = self._base(target, store)
        lines = tuple(dict.fromkeys((*declared, *_FRONTEND)))
        indexes, settings = self._indexes, self._settings
        backend = build_requirements(lines, plan, {}, indexes, settings)
        try:
            return self._compiled(archive, replace(draft, backend=backend), plan, image, store)
        except WheelBuildError as error:
            if "pkg_resources" not in f"{error.message}{error.detail}{error.log}":
                raise
        backend = build_requirements((*lines, _LEGACY), plan, {}, indexes, settings)
        return self._compiled(archive, replace(draft, backend=backend), plan, image, store)

    def _compiled(
        self, archive: Path, draft: SourceBuild, plan: Plan, image: Image, store: Store
    ) -> SourceWheel:
        """Build, with the backend of a draft."""
        source, settings = draft.source, self._settings
        title = f"{draft.name} {draft.version}".strip()
        suffix = ".tar.gz" if isinstance(source, GitSource) else suffix_of(source)
        order = CompileOrder(
            title=title,
            file=f"{draft.name}-{draft.version or '0'}{suffix}",
            environment=_ENVIRONMENT,
            subdirectory=source.subdirectory if isinstance(source, GitSource) else "",
            timeout_s=_TIMEOUT_S,
        )
        with (
            self._console.step("source", f"building {title} in the sandbox", named=True),
            prepared(image, runner_here(settings.state, self._console), self._console) as place,
            scratch_directory(settings.state) as to,
            scratch_directory(settings.state) as clean,
        ):
            runner, handle = place
            made = compile_wheel(
                order,
                archive,
                draft.backend,
                RunnableImage(runner=runner, handle=handle),
                store=store,
                to=to,
                log=settings.state / "logs" / f"wheel-{title.replace(' ', '-')}.log",
                indexes=self._indexes,
                settings=settings,
                console=self._console,
            )
            version, wheel = repacked(made.wheel, clean, draft.name, draft.version or None)
            build = replace(
                draft,
                version=version,
                wheel=wheel.name,
                sha256=hash_file(wheel) or "",
                size=wheel.stat().st_size,
                python=str(plan.python),
            )
            kept = self._kept.keep(wheel, {"schema": 2, "package": build.to_entry()})
            self._console.result(f"{wheel.name}, sha256:{build.sha256}")
        return SourceWheel(path=kept.path, build=build)

    def _base(self, target: WheelTarget, store: Store) -> tuple[Plan, Image]:
        plans = self._plans(target.python)
        return base_with_python(plans, target.python, self._settings, self._console, store)

    @contextmanager
    def _store(self) -> Iterator[Store]:
        with Store.open(self._settings.state, on_note=self._console.note) as store:
            yield store


def _draft(
    name: str, version: str, source: RemoteFile | GitSource, index: str | None = None
) -> SourceBuild:
    """What is known of a build before it is made."""
    return SourceBuild(
        name=name, version=version, wheel="", sha256="", size=0,
        source=source, index=index, backend=(), python="",
    )  # fmt: skip


def _not_built(wanted: Checkout, source: GitSource, error: Failure) -> GitSourceError:
    fix = f"Name a wheel of it instead: {wanted.name} @ https://HOST/NAME.whl"
    if isinstance(error, OtherPackageError):
        part = f"#subdirectory={source.subdirectory}" if source.subdirectory else ""
        line = f"{error.found} @ git+{source.url}@{source.commit}{part}"
        fix = f"Name it as it names itself: {line}"
    return GitSourceError(
        wanted.name,
        f"{wanted.name} ({wanted.shown}) cannot be built while locking. {error.message}",
        fix=fix,
        detail=error.detail,
    )


def _requires(text: str) -> tuple[str, ...]:
    """The dependencies that the PKG-INFO of a source archive names."""
    return tuple(
        line.partition(":")[2].strip()
        for line in text.partition("\n\n")[0].splitlines()
        if line.lower().startswith("requires-dist:")
    )


def _changed(build: SourceBuild, why: str) -> BuiltWheelChangedError:
    return BuiltWheelChangedError(
        f"{build.name} {build.version} was built again from its source, and is not the wheel of "
        f"the lock: {why}.",
        fix="Lock again (provision lock), or bring the wheel from where the lock was made, in an "
        "offline bundle: provision bundle --lock FILE",
    )
