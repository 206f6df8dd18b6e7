"""The resolver's answers to all questions of the page, each different one once.

Every answer is a plan of `resolve`, as `provision plan --json` prints it, with holes where it names
the GPU and the driver. Machines that no rule tells apart share their answers: `alike` has what
the rules read of a machine, and the tests compare the page with the command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

from provision.build.pipeline import default_tag
from provision.catalog.catalog import Catalog
from provision.catalog.rows.gpus import GpuModel
from provision.cli.render.install import as_uv, host_install
from provision.model.plan import Plan, Request
from provision.model.planfile import matrix_to_json, plan_to_json
from provision.page.nodes import Node, Nodes
from provision.page.questions import (
    Choices,
    DriverRange,
    holes,
    host_of,
    marked,
)
from provision.resolve import describe, matrix_with, resolve_with
from provision.resolve.bases import starts_everywhere
from provision.resolve.builds import Build, build_of, builds_of
from provision.resolve.candidates import OF_A_REQUEST, Asked, Candidate, Examiner
from provision.resolve.fleet import Fleet, Site, read_fleet
from provision.resolve.host_warnings import fleet_warnings
from provision.resolve.reasons import of_all
from provision.resolve.rules.base import brands_of
from provision.resolve.rules.driven_gpus import (
    driven_blocker,
    first_branch_for,
    last_driver,
    needed_driver,
)
from provision.resolve.rules.driver import driver_blocker, native_cuda
from provision.resolve.specifiers import version
from provision.resolve.trial import BestOf, Outcomes, Trial

# Keys of a plan that change together, so that each group is kept once.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "build": ("cuda", "wheel_tag", "index", "framework", "nccl", "arch", "indexes"),
    "image": ("python", "cudnn", "base", "compat_package", "requirements"),
    "machine": ("verdict", "driver", "gpus"),
}
_BUILD_OF_CELL = ("framework_version", "cuda", "wheel_tag", "existence")


class Question(NamedTuple):
    """All that can be asked about one framework on one GPU with one of these drivers."""

    gpu: str
    drivers: DriverRange
    choices: Choices


class Answers:
    """The answers for one catalog, as nodes of one table."""

    def __init__(self, catalog: Catalog, nodes: Nodes) -> None:
        self._catalog, self._nodes = marked(catalog), nodes
        self._gpus = {row.name: row for row in self._catalog.gpus}
        self._examiner = lru_cache(maxsize=8)(self._examiner_of)
        self._refusals: dict[Plan, Node] = {}
        self._plans: dict[tuple[object, ...], Node] = {}
        self._described: dict[tuple[object, ...], dict[str, Node]] = {}
        self._memories: dict[tuple[str, str], _Memory] = {}

    def alike(self, question: Question) -> str:
        """The same text for questions that have the same answers."""
        examiner = self._examiner(question[:2], question.choices.arch)
        return str(_without(_read_by_rules(examiner, question.choices), examiner.holes))

    def block(self, question: Question) -> Node:
        """The answers: `plans` by Python and CUDA, and `matrix`, a cell for each build."""
        choices, nodes = question.choices, self._nodes
        examiner = self._examiner(question[:2], choices.arch)
        builds = builds_of(choices.framework, choices.arch, self._catalog)
        memory = self._memories.setdefault(choices[:2], _Memory(builds, {}, {}))
        trial = _Shared(examiner, memory)
        rows: list[Node] = []
        for _, requests in groupby(choices.requests(), key=lambda request: request.python):
            plans = [self._plan(examiner, request, trial) for request in requests]
            rows.append(nodes.of(0, plans))
        cells = matrix_to_json(matrix_with(examiner, Request(framework=choices.framework)))
        texts = [[cell["verdict"], cell["code"], cell["message"]] for cell in cells]
        matrix = nodes.add(_without(texts, examiner.holes))
        return nodes.of(nodes.shape(("plans", "matrix")), [nodes.of(0, rows), matrix])

    def _plan(self, examiner: _Remembering, request: Request, trial: _Shared) -> Node:
        """The answer to one request; the same one for all machines of which it reads the same."""
        choice = trial.choice(request)
        if choice.best is None:
            return self._refusal(resolve_with(examiner, request, trial=trial), examiner.holes)
        read = examiner.read_of(choice.best)
        key = (id(choice), read)  # choices live as long as the memories
        if key not in self._plans:
            best = examiner.examine(choice.best, request, whole=True)
            parts = {
                **self._parts(best, examiner, request, choice),
                "alternatives": self._nodes.add([one._asdict() for one in choice.alternatives]),
            }
            self._plans[key] = self._nodes.of(self._nodes.shape(tuple(parts)), [*parts.values()])
        return self._plans[key]

    def _parts(
        self, best: Candidate, examiner: _Remembering, request: Request, choice: BestOf
    ) -> dict[str, Node]:
        """The nodes of a plan that fits, by their names: a plan is described once for all machines
        of which it reads the same, whatever else there is.
        """
        fares = best.verdict, best.python, best.python_why, best.base, best.has_cudnn
        other = id(choice) if examiner.has_old else None  # a warning may name another build
        among = of_all(best, request, examiner)  # names a newer build
        key = (id(best.build), *fares, request.python, examiner.read_of(best.build), other, among)
        if key not in self._described:
            plan = describe(best, examiner, request)._replace(alternatives=choice.alternatives)
            shown = _without(self._shown(plan), examiner.holes)
            self._described[key] = {name: self._nodes.add(one) for name, one in shown.items()}
        return self._described[key]

    def _refusal(self, plan: Plan, found: Mapping[str, str]) -> Node:
        """The node of a refusal; the same one is rendered once."""
        assert plan.error is not None
        error = plan.error._replace(
            message=_without(plan.error.message, found),
            fix=_without(plan.error.fix, found),
        )
        plan = plan._replace(
            driver_have=_without(plan.driver_have, found),
            driver_need=_without(plan.driver_need, found),
            gpus=tuple(gpu._replace(name=_without(gpu.name, found)) for gpu in plan.gpus),
            error=error,
        )
        if plan not in self._refusals:
            self._refusals[plan] = self._nodes.add(_without(self._shown(plan), found))
        return self._refusals[plan]

    def _examiner_of(self, machine: tuple[str, DriverRange], arch: str) -> _Remembering:
        gpu, drivers = machine
        host = host_of(self._gpus[gpu], drivers.sample, arch)
        found = holes(self._gpus[gpu], drivers, self._catalog)
        return _Remembering(read_fleet([host], self._catalog), self._catalog, found)

    def builds(self, gpu: GpuModel, choices: Choices) -> list[dict[str, Any]]:
        """The builds that the cells of a matrix are for, in their order; the same for any GPU."""
        fleet = read_fleet([host_of(gpu, None, choices.arch)], self._catalog)
        examiner = Examiner(fleet, self._catalog)
        cells = matrix_to_json(matrix_with(examiner, Request(framework=choices.framework)))
        return [{key: cell[key] for key in _BUILD_OF_CELL} for cell in cells]

    def _shown(self, plan: Plan) -> dict[str, Any]:
        """A plan in groups, and the commands for it."""
        values = plan_to_json(plan)
        for name in ("schema", "flavour", "blocked", "limited_by"):  # the same for all questions
            del values[name]
        groups = {name: {k: values.pop(k) for k in keys} for name, keys in _GROUPS.items()}
        commands = None if plan.error else _commands(plan, build_of(plan, self._catalog))
        return {**groups, **values, "commands": commands}


class _Remembering(Examiner):
    """Answers of one machine to many requests: what one has found out, the next one needs, too."""

    def __init__(
        self, fleet: Fleet, catalog: Catalog, found: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(fleet, catalog)
        self.holes = found or {}
        self._read: dict[tuple[str, str], str] = {}
        self._rank: dict[int, int] = {}
        self._blocked: dict[int, Candidate] = {}  # by a GPU or a driver, whatever is asked
        self._candidates: dict[tuple[int, str | None, bool], Candidate] = {}
        self._fitting: dict[Request, Sequence[Candidate]] = {}

    def examine(self, build: Build, request: Request, *, whole: bool = False) -> Candidate:
        """Requests of the page differ in framework, CUDA and Python only; CUDA and framework are
        the build's.
        """
        if (blocked := self._blocked.get(id(build))) is not None:
            return blocked
        key = id(build), request.python, whole  # builds live as long as the catalog
        if key in self._candidates:
            return self._candidates[key]
        found = self.examine(build, request) if whole else super().examine(build, request)
        if whole and found.fits and found.base is None:
            found = super().examine(build, request, whole=True)
        self._candidates[key] = found
        if found.stage < OF_A_REQUEST:
            self._blocked[id(build)] = found
        return found

    def in_order(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """No request of the page names a release, so that there is one order for all."""
        found = [*candidates]
        if found and id(one := found[0].build) not in self._rank:
            builds = builds_of(one.framework, one.arch, self.catalog)
            request = Request(framework=one.framework)
            ordered = super().in_order(self.examine(build, request) for build in builds)
            self._rank |= {id(c.build): rank for rank, c in enumerate(ordered)}
        return sorted(found, key=lambda candidate: self._rank[id(candidate.build)])

    def fitting(
        self, builds: Sequence[Build], request: Request, is_asked_for: Asked
    ) -> Sequence[Candidate]:
        """The page always asks about all builds of a framework."""
        if request not in self._fitting:
            possible = [build for build in builds if id(build) not in self._blocked]
            self._fitting[request] = super().fitting(possible, request, is_asked_for)
        return self._fitting[request]

    def standing(self, builds: Sequence[Build]) -> tuple[object, ...]:
        """How each build fares on the machine, apart from what texts say of the machine."""
        return tuple([self._standing(build) for build in builds])

    def _standing(self, build: Build) -> tuple[object, ...]:
        request = Request(framework=build.framework)
        one = self.examine(build, request)
        fit = one.driver
        compat, offered = fit.verdict == "forward", None
        if one.stage >= OF_A_REQUEST and (compat or build.libraries == "system"):
            offered = self._offer(build, request, compat=compat)
        of_hosts = one.stage, one.against, one.verdict, one.has_cudnn, fit.verdict, fit.need
        return *of_hosts, offered

    def read_of(self, build: Build) -> str:
        """What a plan for a build reads of the machine, beside how the build fares on it, with
        holes.
        """
        key = build.cuda, build.libraries
        if key not in self._read:
            ((site, _),) = self.fleet.gpus
            fit, of_image = self.worst_driver(build.cuda), list[object]()
            if fit.verdict == "forward":
                of_image = [site.branch, *_starting(site, "base", [build.cuda], self.catalog)]
            if build.libraries == "system":
                of_image += _starting(site, "runtime", [build.cuda], self.catalog)
            self._read[key] = _without(repr([self._of_machine, fit, of_image]), self.holes)
        return self._read[key]

    @property
    def has_old(self) -> bool:
        """Whether a GPU is so old that other libraries than the driver may have dropped it."""
        return bool(self._old)

    @cached_property
    def _of_machine(self) -> list[object]:
        ((site, device),) = self.fleet.gpus
        first = first_branch_for(device, self.catalog)
        return [
            *(site.driver, len(site.driver or "")),  # which decides where lines are wrapped
            device.capability,
            *(first and first.branch, first and first.adds_confidence),
            *fleet_warnings(self.fleet, self.catalog),
        ]


class _Memory(NamedTuple):
    """What machines share that ask for the builds of one framework: the outcomes, by how the
    builds fare; the trials with another driver, by what the rules read; the nodes of refusals.
    """

    builds: Sequence[Build]
    outcomes: dict[tuple[object, ...], Outcomes]
    driven: dict[tuple[object, ...], Trial]


class _Shared(Trial):
    """A trial that has the outcomes of all machines on which the builds fare the same."""

    def __init__(self, examiner: _Remembering, memory: _Memory) -> None:
        self._memory = memory
        standing = examiner.standing(memory.builds)
        outcomes = memory.outcomes.setdefault(standing, Outcomes({}, {}, {}))
        super().__init__(examiner, memory.builds, outcomes)

    def _of(self, fleet: Fleet) -> Trial:
        ((site, device),) = fleet.gpus
        first = first_branch_for(device, self.catalog)
        key = (
            *(site.driver, device.capability, device.takes_compat, brands_of(device)),
            *(first and first.branch, first and first.adds_confidence),
        )
        if key not in self._memory.driven:
            self._memory.driven[key] = _Shared(_Remembering(fleet, self.catalog), self._memory)
        return self._memory.driven[key]


def _read_by_rules(examiner: Examiner, choices: Choices) -> str:
    """What the rules read of a machine with one kind of GPU, for the builds of a framework."""
    fleet, catalog = examiner.fleet, examiner.catalog
    ((site, device),) = fleet.gpus
    fits = [examiner.worst_driver(cuda) for cuda in choices.cudas if cuda]
    verdicts = {fit.verdict for fit in fits}
    read: list[object] = [
        choices,
        device.capability,
        fits,
        [driver_blocker(site, fit, catalog) for fit in fits],
        blocked := driven_blocker(site, device, catalog),
        needed := needed_driver(fleet.gpus, catalog),
        last_driver(fleet.gpus, catalog),
        list(fleet_warnings(fleet, catalog)),
    ]
    if blocked or verdicts & {"none", "forward"}:  # with another driver, too, which a fix may name
        read.append(device.takes_compat)
    builds = builds_of(choices.framework, choices.arch, catalog)
    native, _ = native_cuda(site)
    if native is not None:
        ptx = dict.fromkeys(build.ptx_only_cuda for build in builds if build.ptx_only_cuda)
        read.append([version(native) < version(cuda) for cuda in ptx])
    system = dict.fromkeys(build.cuda for build in builds if build.libraries == "system")
    read += _starting(site, "runtime", system, catalog)
    if (
        blocked and needed
    ):  # machines are alike whose numbers of it differ, and a fix is tried there
        driven = Examiner(fleet.driven_by(needed, [site], catalog), catalog)
        ((there, _),) = driven.fleet.gpus
        if driven_blocker(there, device, catalog) is None:
            read.append(_read_by_rules(driven, choices))
    if system and (blocked or verdicts != {"direct"}):
        read.append(sorted(brands_of(device)))
    if forward := [fit.cuda for fit in fits if fit.verdict == "forward"]:
        read += [site.branch and site.branch.branch, *_starting(site, "base", forward, catalog)]
    return repr(read)


def _starting(
    site: Site, flavour: Literal["base", "runtime"], cudas: Iterable[str], catalog: Catalog
) -> list[bool | None]:
    """Which of NVIDIA's images start on a machine: they have a rule for that."""
    return [
        starts_everywhere(image, [site], catalog)
        for cuda in cudas
        for image in catalog.cuda_images(
            cuda, flavour, cudnn=True if flavour == "runtime" else None
        )
    ]


def _without(value: Any, found: Mapping[str, str]) -> Any:  # noqa: ANN401  a value of JSON
    """The value with holes instead of what its texts repeat of the question."""
    if isinstance(value, str):
        for text, hole in found.items():
            value = value.replace(text, hole)
        return value
    if isinstance(value, dict):
        return {key: _without(one, found) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(one, found) for one in value]
    return value


def _commands(plan: Plan, build: Build) -> dict[str, Any]:
    """What to type for a plan: to build and run its image, and to install it without one."""
    words = ["provision", "build", "--framework-version", str(plan.framework_version)]
    if plan.framework != "pytorch":
        words += ["--framework", plan.framework]
    words += ["--cuda", str(plan.cuda), "--python", str(plan.python)]
    return {
        "build": shlex.join(words),
        "run": shlex.join(["docker", "run", "--rm", "-it", "--gpus", "all", default_tag(plan)]),
        "uv": as_uv(host_install(plan, build)).splitlines(),
    }
