"""Two frameworks in one image: which builds of the second go with a build of the first.

Both load the same cuDNN, NCCL and CUDA libraries, and NVIDIA's wheels of cuDNN and NCCL for two
CUDAs have the same files. So the second must be built for the same CUDA (major version), bring its
libraries as wheels, and run on the hosts, too; the versions that both accept are found by uv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from provision.catalog.catalog import Catalog
from provision.model.plan import TITLES, Framework, Note, Request
from provision.resolve.blockers import Blocker
from provision.resolve.builds import Build, builds_of
from provision.resolve.packages import FRAMEWORKS, Companion, companions_of
from provision.resolve.rules.base import python_tags_of
from provision.resolve.specifiers import version


class OtherFrameworks:
    """The frameworks that --with names beside the one that is planned. `runs` says whether all
    hosts run a build.
    """

    def __init__(self, catalog: Catalog, runs: Callable[[Build], bool]) -> None:
        self._catalog = catalog
        self._runs = runs
        self._known: dict[tuple[str, str, str | None], tuple[Build, ...]] = {}

    def blockers(self, build: Build, request: Request) -> tuple[Blocker, ...]:
        """Why no build of another framework goes with this build."""
        return tuple(
            _blocker(build, framework, wanted, others, request.python)
            for framework, wanted, others in self._wanted(build, request)
            if not _with_python(partners(build, others), request.python)
        )

    def for_both(self, build: Build, request: Request) -> Build:
        """The build, with the Pythons only that the other frameworks have, too."""
        for _, _, others in self._wanted(build, request):
            tags = {tag for other in partners(build, others) for tag in other.python_tags}
            build = build._replace(python_tags=tuple(t for t in build.python_tags if t in tags))
        return build

    def requirements(self, build: Build, request: Request, python: str | None) -> dict[str, str]:
        """The requirement for each other framework, by the name of its package."""
        return {
            wanted.name: requirement_of(wanted, _with_python(partners(build, others), python))
            for _, wanted, others in self._wanted(build, request)
        }

    def _wanted(
        self, build: Build, request: Request
    ) -> Iterator[tuple[Framework, Companion, tuple[Build, ...]]]:
        """The frameworks, and their builds that --with allows, that bring CUDA, and that the hosts
        run. Wheels come from the index that was named, or from PyPI.
        """
        for wanted in companions_of(request):
            framework = FRAMEWORKS.get(wanted.name)
            if framework is None or framework == request.framework:
                continue
            key = wanted.text, build.arch, request.index_url
            if key not in self._known:
                self._known[key] = tuple(
                    other
                    for other in builds_of(framework, build.arch, self._catalog)
                    if wanted.allows(other.version)
                    and other.libraries == "wheels"
                    and other.existence != "doubtful"
                    and not other.yanked
                    and (wanted.pin is not None or not other.prerelease)
                    and ("pypi" in other.at or request.index_url is not None)
                    and self._runs(other)
                )
            yield framework, wanted, self._known[key]


def partners(build: Build, others: Sequence[Build]) -> tuple[Build, ...]:
    """Those of the other framework's builds that go into one image with this build."""
    return tuple(
        other
        for other in others
        if _share(build, other) and not set(other.python_tags).isdisjoint(build.python_tags)
    )


def _share(build: Build, other: Build) -> bool:
    """Whether two builds can load the same CUDA libraries. PyTorch's wheels pin theirs, and JAX
    takes each toolkit within its limits; TensorFlow needs the CUDA that it was built with, or a
    later minor version.
    """
    by = {one.framework: one for one in (build, other)}
    if "jax" not in by:
        return _major(build.cuda) == _major(other.cuda)
    if "tensorflow" not in by:
        return build.cuda == other.cuda
    own, least = by["jax"].cuda, by["tensorflow"].cuda
    return _major(own) == _major(least) and version(own) >= version(least)


def _blocker(
    build: Build,
    framework: Framework,
    wanted: Companion,
    others: Sequence[Build],
    python: str | None,
) -> Blocker:
    title = TITLES[framework]
    cudas = sorted({_major(other.cuda) for other in others}, key=version)
    if not others:
        message = f"No release of {title} that {wanted.text!r} allows runs on these hosts."
    elif python is not None and (found := partners(build, others)):
        have = sorted({one for other in found for one in python_tags_of(other)}, key=version)
        message = (
            f"{title} that goes with {build.name} has no wheel for Python {python}; it has Python "
            f"{have[0]} to {have[-1]}."
        )
    elif _major(build.cuda) in cudas:
        message = (
            f"No release of {title} that runs on these hosts goes with {build.name}: none has a "
            "Python and a CUDA in common with it."
        )
    else:
        message = (
            f"{title} for these hosts is built for CUDA {' and '.join(cudas)}, but {build.name} "
            f"for CUDA {build.cuda}."
        )
    return Blocker(code="framework-beside", message=message)


def other_framework_notes(build: Build, requirements: Mapping[str, str]) -> Iterator[Note]:
    """Which other frameworks a plan has. `requirements`: by the names of their packages."""
    if not requirements:
        return
    names = [FRAMEWORKS[name] for name in requirements]
    titles = " and ".join(TITLES[name] for name in names)
    options = " or ".join(f"--framework {name}" for name in names)
    yield Note(
        code="second-framework",
        message=f"{titles} {'is' if len(names) == 1 else 'are'} installed beside {build.name}, for "
        f"the same CUDA: {', '.join(requirements.values())}. To plan for another framework: "
        f"{options}",
    )


def requirement_of(wanted: Companion, found: Sequence[Build]) -> str:
    """The requirement that allows the releases of the builds, with the extra that brings CUDA:
    "jax[cuda13]>=0.7.2,<=0.10.2". `found` is not empty.
    """
    from packaging.requirements import Requirement

    last = max(found, key=lambda one: version(one.version))
    asked, own = Requirement(wanted.text), Requirement(last.requirement)
    if asked.extras:
        return wanted.text
    alike = [one.version for one in found if Requirement(one.requirement).extras == own.extras]
    first = min(alike, key=version)
    own.specifier = asked.specifier & f">={first},<={last.version}"
    if first == last.version:
        own.specifier = own.specifier.__class__(f"=={first}")
    own.marker = asked.marker
    return str(own)


def _with_python(builds: Sequence[Build], python: str | None) -> Sequence[Build]:
    return [one for one in builds if python is None or python in python_tags_of(one)]


def _major(cuda: str) -> str:
    return cuda.partition(".")[0]
