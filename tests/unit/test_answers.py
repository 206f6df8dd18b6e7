"""No answer contradicts the plan: what the commands print as a driver, a GPU, a build or a label is
asked back, and `plan` agrees. The values are read from the results, not from sentences.
"""

from __future__ import annotations

import json
import random
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from provision.build.pipeline import dry_run_argv
from provision.catalog.loading import load
from provision.cli.hostfiles import FleetHost
from provision.cli.hosts import what_if_gpu
from provision.cli.main import main
from provision.cli.registry import of_group
from provision.cli.render.install import host_install
from provision.cli.render.plan import describe_plan
from provision.fleet.check import check_image
from provision.fleet.classes import classes_of
from provision.fleet.images import FleetResolver, plan_fleet
from provision.lock.lockfile import read_lock_file
from provision.lock.wheels import finished
from provision.model.plan import PACKAGES, ComputeCapability, Gpu, HostFacts, Plan, Request
from provision.model.planfile import plan_from_json, plan_to_json
from provision.model.request import parse_request
from provision.output.export.kubernetes import product_label
from provision.page.site import data
from provision.resolve import matrix, resolve
from provision.resolve.builds import build_of
from provision.resolve.specifiers import driver_is_at_least
from tests.kit.cases import cases
from tests.kit.exports import IMAGE
from tests.kit.local_index import pure, serving_uv
from tests.kit.pages import answered, planned, random_questions

CATALOG = load()
REQUESTS = 320
QUESTIONS = 120
FAMILIES = ("A100", "H100", "V100", "T4", "K80", "RTX 3090", "RTX 5090", "GB200", "8.0", "12.0")
DRIVERS = tuple(
    dict.fromkeys(
        driver
        for row in CATALOG.branches
        for driver in (row.first_version, row.latest_seen, str(row.branch))
        if driver
    )
)
NAMED = tuple(dict.fromkeys(row.driver_from for row in CATALOG.gpus if row.driver_from))
PRODUCTS = {product_label(row.name): row for row in CATALOG.gpus}
OF_BASES = {"no-wheel-for-python", "no-cuda-base", "base-refuses-to-start"}
"""Refusals for want of an image to build on, which another driver may start."""
_PRODUCT, _MAJOR = "nvidia.com/gpu.product", "nvidia.com/cuda.driver-version.major"
_MAJOR_CC, _MINOR = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}

EXPORTS = [one.name for one in of_group("export")]


class Case(NamedTuple):
    """A request for one machine."""

    gpu: str
    driver: str
    request: Request

    @property
    def kind(self) -> Gpu:
        return what_if_gpu(self.gpu, CATALOG)

    @property
    def host(self) -> HostFacts:
        return _host(self.kind, self.driver)


def _host(gpu: Gpu, driver: str) -> HostFacts:
    arch = CATALOG.find_gpu(gpu.name).host_arch if gpu.name else None
    return HostFacts(driver=driver, arch=arch or "x86_64", gpus=(gpu,))


def drawn(count: int, seed: int) -> Iterator[Case]:
    """Any GPU with any driver; half of the drivers are near the first one of the GPU."""
    rng = random.Random(seed)
    names = [row.name for row in CATALOG.gpus]
    for _ in range(count):
        gpu = rng.choice(FAMILIES) if rng.random() < 0.3 else rng.choice(names)
        rows = CATALOG.find_gpu(gpu).rows
        firsts = [row.driver_from for row in rows if row.driver_from]
        driver = rng.choice(firsts) if firsts and rng.random() < 0.2 else rng.choice(DRIVERS)
        if rng.random() < 0.2:
            driver = rng.choice(NAMED)
        framework = rng.choice(("pytorch", "pytorch", "tensorflow", "jax"))
        cuda = rng.choice(CATALOG.cuda_versions()) if rng.random() < 0.25 else None
        python = rng.choice((None, None, None, "3.9", "3.11", "3.13"))
        yield Case(gpu, driver, parse_request(framework=framework, cuda=cuda, python=python))


class Answers:
    """What was asked back, and where `plan` does not agree."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.capsys, self.lock = place, capsys, place / "pylock.toml"
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []

    def typed(self, *words: str) -> tuple[int, dict[str, Any]]:
        """The exit code of a command, and its result."""
        code = main([*words, "--json"])
        return code, json.loads(self.capsys.readouterr().out)

    def note(self, kind: str, said: object, *, agrees: bool) -> None:
        self.count[kind] += 1
        if not agrees:
            self.wrong.append(f"{kind}: {said}")

    def of(self, case: Case) -> None:
        plan = resolve([case.host], case.request, CATALOG)
        self._json(case, plan)
        self._matrix(case, plan)
        self._fleet(case, plan)
        if plan.error is not None:
            self._refused(case, plan)
            return
        self._driver(case, plan)
        self._warnings(case, plan)
        self._installs(case, plan)
        self._lint(case, plan)
        argv = dry_run_argv(plan, {})
        self.note("dry run", argv, agrees=f"BASE={plan.base and plan.base.reference}" in argv)
        self.lock.write_text(finished(lock_text(plan), plan, None, offline=True))
        locked = read_lock_file(self.lock).plan
        self.note("lock", case, agrees=locked == plan)
        self._exports(case, locked)

    def _json(self, case: Case, plan: Plan) -> None:
        self.note("json", case, agrees=plan_from_json(plan_to_json(plan)) == plan)

    def _matrix(self, case: Case, plan: Plan) -> None:
        cells = matrix([case.host], case.request, CATALOG)
        if plan.error is not None:
            fits = [
                cell for cell in cells if cell.verdict != "none" and cell.existence != "doubtful"
            ]
            self.note("matrix", f"{case} {fits[:1]}", agrees=not fits)
            return
        own = [
            cell.verdict
            for cell in cells
            if (cell.framework_version, cell.cuda) == (plan.framework_version, plan.cuda)
        ]
        self.note("matrix", f"{case} {own}", agrees=own == [plan.verdict])

    def _fleet(self, case: Case, plan: Plan) -> None:
        classes = classes_of([FleetHost(case.host, "node.json")])
        found = plan_fleet(classes, FleetResolver(case.request, CATALOG))
        plans = [image.plan for image in found.images]
        agrees = not plans if plan.error else plans == [plan]
        self.note("fleet plan", case, agrees=agrees)
        if plan.error is None:
            (now,) = check_image("image", plan, classes, None, CATALOG).now
            self.note("fleet check", f"{case} {now}", agrees=now.runs is True)

    def _refused(self, case: Case, plan: Plan) -> None:
        if plan.driver_need is not None and plan.error and plan.error.code == "driver-too-old":
            again = resolve(
                [case.host._replace(driver=plan.driver_need)], case.request, CATALOG
            ).error
            agrees = again is None or "driver" not in again.code
            self.note("refused driver", f"{case} {plan.driver_need}", agrees=agrees)

    def _driver(self, case: Case, plan: Plan) -> None:
        """The least driver is enough, and none below it is."""
        need = plan.driver_need
        assert need is not None
        pinned = pin(case.request, plan)
        at_least = resolve([_host(case.kind, need)], pinned, CATALOG)
        enough = at_least.error is None or at_least.error.code in OF_BASES
        self.note("driver", f"{case} needs {need}: {at_least.error}", agrees=enough)
        if plan.verdict in {"direct", "minor-version"} and "." in case.driver:
            self.note("have", f"{case} has less than {need}", agrees=not below(case.driver, need))
        older = [
            driver
            for driver in DRIVERS
            if below(driver, need) and driver.partition(".")[0] != need.partition(".")[0]
        ]
        for driver in (*older[:1], *older[-3:]):
            less = resolve([_host(case.kind, driver)], pinned, CATALOG)
            runs = less.verdict in {"direct", "minor-version"} and not any(
                one.code == "driver-older-than-gpu" for one in less.warnings
            )
            self.note("less", f"{case} runs with {driver} < {need}", agrees=not runs)

    def _warnings(self, case: Case, plan: Plan) -> None:
        codes = Counter(one.code for one in plan.warnings)
        both = {"minor-version-limits", "ptx-jit"} <= set(codes)
        self.note("warnings", f"{case} PTX works and does not", agrees=not both)
        serves = "cudnn-dropped-gpu" not in codes or not any(
            "cudnn-dropped-gpu" not in {one.code for one in other.warnings}
            for cell in matrix([case.host], case.request, CATALOG)
            if cell.verdict in {"direct", "minor-version"} and cell.existence == "confirmed"
            for other in [
                resolve(
                    [case.host],
                    case.request._replace(
                        cuda=cell.cuda, framework_version=f"=={cell.framework_version}"
                    ),
                    CATALOG,
                )
            ]
        )
        self.note("cudnn", f"{case} another build's cuDNN serves it", agrees=serves)

    def _installs(self, case: Case, plan: Plan) -> None:
        install = host_install(plan, build_of(plan, CATALOG))
        text = " ".join(install.remarks)
        named = {word.strip(".,()") for word in text.split()} & {*DRIVERS, *NAMED} - {case.driver}
        self.note("install", f"{case} {named}", agrees=named <= {plan.driver_need})
        says = f"minimum {plan.driver_need}" in " ".join(describe_plan(plan).split())
        self.note("text", case, agrees=says or plan.verdict == "forward")

    def _lint(self, case: Case, plan: Plan) -> None:
        """The framework in a requirements file."""
        if (
            case.request.framework != "pytorch"
            or plan.arch != "x86_64"
            or plan.verdict == "forward"
        ):
            return
        path = self.place / "requirements.txt"
        index = CATALOG.pytorch_index(plan.wheel_tag or "")
        path.write_text(f"--index-url {index}\ntorch=={plan.framework_version}\n")
        _, found = self.typed("doctor", str(path), "--gpu", case.gpu, "--driver", case.driver)
        (run,) = found["runs"]
        verdict = resolve([case.host], pin(Request(), plan), CATALOG).verdict
        agrees = run["verdict"] == verdict
        self.note("doctor FILE", f"{case} {plan.framework_version} {run}", agrees=agrees)

    def _exports(self, case: Case, plan: Plan) -> None:
        others = [name for name in EXPORTS if name != "kubernetes"]
        for consumer in ("kubernetes", others[self.count["lock"] % len(others)]):
            code, found = self.typed("export", consumer, IMAGE, "--lock", str(self.lock))
            if code:
                fix = found["error"]["fix"]
                self.note("refused export", f"{case} {found}", agrees="--gpu" in fix)
                continue
            text = found["text"]
            agrees = f"{plan.framework_version}, CUDA {plan.cuda}" in text
            self.note(consumer, case, agrees=agrees)
            if consumer == "kubernetes":
                self._kubernetes(case, plan, text)

    def _kubernetes(self, case: Case, plan: Plan, text: str) -> None:
        """A node with the labels of a real machine takes the pod, and the image runs there."""
        pod = list(yaml.safe_load_all(text))[-1]["spec"]["template"]["spec"]
        arch = pod.get("nodeSelector", {}).get("kubernetes.io/arch")
        terms = pod.get("affinity", {})
        required = terms.get("nodeAffinity", {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution", {}
        )
        gpus = []
        for term in required.get("nodeSelectorTerms", ()):
            rules = {rule["key"]: rule["values"] for rule in term["matchExpressions"]}
            for label in rules.get(_PRODUCT, ()):
                row = PRODUCTS.get(label)
                self.note("label", f"{case} no node has {label}", agrees=row is not None)
                if row is not None:
                    fits = row.host_arch is None or _ARCHES[row.host_arch] == arch
                    self.note("arch label", f"{case} {label} {arch}", agrees=fits)
                    gpus.append(Gpu(name=row.name))
            if _MINOR in rules:
                pair = int(rules[_MAJOR_CC][0]), int(rules[_MINOR][0])
                gpus.append(Gpu(compute_capability=pair))
            for gpu in gpus:
                for driver in (case.driver, *(str(int(one) + 1) for one in rules.get(_MAJOR, ()))):
                    there = _host(gpu, driver)._replace(arch=plan.arch)
                    found = resolve([there], pin(case.request, plan), CATALOG).error
                    agrees = found is None or found.code in OF_BASES
                    self.note("product", f"{case} {gpu} {driver} {found}", agrees=agrees)
        self.note("placed", f"{case} on any node", agrees=bool(gpus))


def below(driver: str, need: str) -> bool:
    return not driver_is_at_least(driver, need)


def pin(request: Request, plan: Plan) -> Request:
    """The request for exactly this build."""
    return request._replace(
        framework=plan.framework, cuda=plan.cuda, framework_version=f"=={plan.framework_version}"
    )


def lock_text(plan: Plan) -> str:
    """What uv would answer, with the framework alone."""
    name, number = PACKAGES[plan.framework], plan.framework_version
    wheel = f"https://e.example/{name}-{number}-py3-none-any.whl"
    return f"""lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "{name}"
version = "{number}"
wheels = [{{ url = "{wheel}", size = 7, hashes = {{ sha256 = "{"1" * 64}" }} }}]
"""


def test_no_answer_contradicts_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = Answers(tmp_path, capsys)
    for case in drawn(REQUESTS, seed=7):
        answers.of(case)
    assert answers.wrong == []
    kinds = ("have", "install", "label", "product", "placed", "fleet check", "doctor FILE")
    assert min(answers.count[kind] for kind in (*kinds, *EXPORTS)) >= 20


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_the_page_answers_as_the_plan_does(capability: ComputeCapability) -> None:
    """A page for GPUs of one capability, the branch that first drove it, and two others."""
    count: Counter[str] = Counter()
    gpus = CATALOG.gpus_of(capability)[::3]
    rows, branch = CATALOG.branches, CATALOG.first_branch(gpus[0].chip or "")
    assert branch is not None
    first = rows.index(branch)
    branches = (*rows[first - 1 : first + 1], rows[first + 4])
    catalog = CATALOG.with_tables(gpus=gpus, branches=branches)
    page = data(catalog, lambda _: None)
    for question in random_questions(catalog, QUESTIONS, 7):
        found = answered(page, question)
        commands = found.pop("commands")
        assert found == planned(question, catalog), question
        count[found["verdict"]] += 1
        count["not driven"] += "which needs driver branch" in str(found["error"])
        if commands:
            words = dict(zip(*[iter(shlex.split(commands["build"])[2:])] * 2, strict=True))
            built = {**question, "cuda": words["--cuda"], "python": words["--python"]}
            again = planned(built, catalog)["framework"]["version"]
            assert again == words["--framework-version"], question
    assert min(count["direct"] + count["minor-version"], count["not driven"]) >= 5, count


@cases(
    "gpu driver",
    ("a GPU newer than its CUDA's first driver", "RTX 3090", "515.65.01"),
    ("a family, by minor-version compatibility", "A100", "470.57.02"),
)
def test_what_is_locked_and_built_is_what_was_planned(
    gpu: str,
    driver: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = Case(gpu, driver, Request(cuda="11.7", python="3.11"))
    answers = Answers(tmp_path, capsys)
    plan = resolve([case.host], case.request, CATALOG)
    with serving_uv(monkeypatch, tmp_path) as index:
        index.more.append(pure("pip", "26.4"))
        base = f"127.0.0.1:{index.port}/python:3.11"
        words = ["--cuda", "11.7", "--python", "3.11", "--base", base, "--gpu", gpu]
        words += ["--driver", driver, "--index", index.url("good")]
        code, locked = answers.typed("lock", *words, "--output", str(answers.lock))
        assert code == 0, locked
        code, built = answers.typed("build", *words, "--dry-run", "--builder", "docker")
        assert (code, built["error"]) == (0, None)
    for found in (locked["plan"], built["plan"]):
        assert found["driver"] == {"have": driver, "need": plan.driver_need}
        assert found["framework"]["version"] == plan.framework_version
    answers._exports(case, plan)
    assert answers.wrong == []
