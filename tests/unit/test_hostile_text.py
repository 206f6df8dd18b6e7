"""Hostile text in every leaf of every document from outside, given to everything that reads it.

The documents: an image's labels and its own, the record in a squashfs, the table of a lazy layer;
locks, host files, project files, catalog copies; answers and reports of nodes, lists of a fleet,
records, provenance, bundles of a machine, the fields of a deployment.

Each document is a good one, written by this project's own code, with one value replaced
(`tests/kit/hostile.py`). What reads it runs in this process. It may refuse the document in its own
words, or take the text as data; it never ends as a bug, prints no control character, and writes no
file that its own parser reads as more than the good one. Each test asserts how often a hostile
document was read: some 14,500 times in all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import shlex
import tarfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import tomli_w
import yaml

from images.engines.squashfs.files import (
    RECORD,
    add_files,
    apptainer_files,
    enroot_files,
    read_record,
)
from images.errors import Failure
from images.inspect.tree import ImageTree
from images.layers.lazy.checking import checked
from images.layers.lazy.formats import FormatName
from images.oci.tarstream import layer_members
from images.system import process
from images.system.hashed_file import hash_file
from provision.attestation.provenance.check import judge as judge_origin
from provision.attestation.provenance.statement import BuildRun
from provision.attestation.provenance.statement import make_statement as make_provenance
from provision.attestation.provenance.statement import parse_statement as parse_provenance
from provision.attestation.record.host import recorded_host
from provision.attestation.record.statement import make_statement, parse_statement
from provision.attestation.record.verdict import judge
from provision.catalog.overlay import SCHEMA, _checksum
from provision.cli import main as cli
from provision.cli.parser import build_parser
from provision.cli.registry import of_group
from provision.cli.render.build import describe_check
from provision.doctor.bundle import collect, open_bundle
from provision.doctor.probes import ProbedMachine
from provision.errors import BadInputError
from provision.fleet.nodes import work
from provision.lock.labels import CUT, PLAN, expectations, labels_for, plan_of
from provision.lock.lockfile import read_lock
from provision.lock.wheels import finished
from provision.model import facts
from provision.model.plan import (
    Absent,
    Alternative,
    Base,
    Engine,
    Gpu,
    GpuVerdict,
    HostFacts,
    IndexCandidate,
    LimitedBy,
    Note,
    Plan,
    Reason,
    Warned,
)
from provision.output.export import apptainer, compose, devcontainer, enroot, kubernetes, ray, slurm
from provision.output.export.deployment import Deployment, ImageSource
from provision.sources.find import read_project
from provision.verification.record_check import Checked, check_to_json
from provision.verification.subject import Subject
from tests.kit import schemas
from tests.kit.exports import deployment
from tests.kit.fake_engine import report as suite_report
from tests.kit.hostile import CONTROL, LONG, QUOTES, Case, Ran, cases, problem, run, shape, to_json
from tests.kit.lazy_maker import lazy_tar
from tests.kit.reports import made_up
from tests.kit.sandbox_images import entry
from tests.kit.together import together
from verify.commands.main import main as verify_main
from verify.model.expectations import ExpectationsError
from verify.model.expectations import parse as parse_expectations

EXPORTS = [one.name for one in of_group("export")]

PLAN_OF_ALL = Plan(
    verdict="minor-version",
    framework="pytorch",
    framework_version="2.0.1",
    cuda="11.7",
    wheel_tag="cu117",
    index_url="https://wheels.example/cu117",
    python="3.11",
    cudnn="8.5.0.96",
    nccl="2.14.3",
    arch="x86_64",
    driver_have="515.65.01",
    driver_need="450.80.02",
    gpus=(GpuVerdict(name="NVIDIA A100", compute_capability="8.0", runs="sm_80", ok=True),),
    base=Base(
        kind="registry",
        reference="docker.io/library/python:3.11-slim",
        python="3.11",
        glibc="2.36",
        suite="bookworm",
        digest=f"sha256:{'5' * 64}",
        snapshot="20260301T000000Z",
    ),
    compat_package="cuda-compat-11-7",
    requirements=("numpy<2",),
    indexes=(
        IndexCandidate(
            name="an index", url="https://wheels.example", requirement="torch==2.0.1", why="first"
        ),
    ),
    reasons=(Reason(code="build-chosen", message="the newest", source="https://e.example"),),
    warnings=(Warned(code="ptx-jit", message="it compiles", fix="keep the cache"),),
    notes=(Note(code="older-binary-code", message="older code"),),
    alternatives=(Alternative(cuda="11.8", wheel_tag="cu118", framework_version="2.1", why="x"),),
    limited_by=LimitedBy(
        hosts=("n1",),
        because="old",
        cuda="12.1",
        wheel_tag="cu121",
        framework_version="2.1",
        verdict="direct",
    ),
)
WHEELS = f"""lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.11"
[[packages]]
name = "torch"
version = "2.0.1"
index = "https://e.example/simple"
[[packages.wheels]]
name = "torch-2.0.1-cp311-cp311-linux_x86_64.whl"
url = "https://e.example/torch-2.0.1-cp311-cp311-linux_x86_64.whl"
size = 7
hashes = {{ sha256 = "{"1" * 64}" }}
"""
HOST = HostFacts(
    driver="580.95.05",
    user_mode_driver="580.95.05",
    driver_cuda="13.0",
    arch="x86_64",
    glibc="2.36",
    os_id="debian",
    os_version="12",
    python="3.11",
    wsl=False,
    gpus=(Gpu(name="NVIDIA A100", compute_capability=(8, 0), memory_mib=81920, uuid="GPU-1"),),
    engines=(
        Engine(name="docker", client="28.1", server="28.1", cdi_devices=("nvidia.com/gpu=0",)),
    ),
    sources=(("driver", "nvml"), ("gpus", "nvml")),
    absent=(Absent(fact="glibc", source="ldd", reason="not found"),),
)
OCI = "application/vnd.oci.image."
WRONG: list[str] = []
NOW = datetime(2026, 11, 21, 9, 30, tzinfo=timezone.utc)
RAN: Counter[str] = Counter()
"""How many times a consumer read a document with a hostile value, by the document."""


def _loads(text: str) -> Any:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


class Layout:
    """An OCI layout of one empty layer, whose configuration can be written again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "blobs" / "sha256").mkdir(parents=True)
        (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.layer = {"mediaType": f"{OCI}layer.v1.tar", **self.blob(bytes(1024))}
        self.diff_id = self.layer["digest"]
        self.name = f"oci:{place}:n"
        self.documents: dict[str, Any] = {}

    def blob(self, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.place / "blobs" / "sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def write(self, labels: Mapping[str, str], other: Mapping[str, Any] | None = None) -> None:
        """All documents; `other` has some of them as they are to be."""
        other = other or {}
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": dict(labels), "Env": ["A=b"], "Cmd": ["sh"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [self.diff_id]},
            "history": [{"created_by": "x", "created": "2026-11-21T09:30:00Z"}],
        }
        self.documents = {"config": config}
        made = self.blob(to_json(other.get("config", config)))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}manifest.v1+json",
            "config": {"mediaType": f"{OCI}config.v1+json", **made},
            "layers": [self.layer],
        }
        self.documents["manifest"] = manifest
        found = self.blob(to_json(other.get("manifest", manifest)))
        named = {**found, "annotations": {"org.opencontainers.image.ref.name": "n"}}
        index = {"schemaVersion": 2, "manifests": [{"mediaType": manifest["mediaType"], **named}]}
        self.documents["index"] = index
        (self.place / "index.json").write_bytes(to_json(other.get("index", index)))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is read in no time, for what asks for it."""
    WRONG.clear()
    parsers = functools.cache(build_parser)
    monkeypatch.setattr("provision.cli.parser.build_parser", lambda words: parsers(tuple(words)))
    monkeypatch.setattr("provision.verification.record_check.engine_name", lambda *_: "docker 26")
    monkeypatch.setattr("provision.host.detect", lambda: HOST)


def check(document: str, case: Case, ran: Ran, words: Sequence[object]) -> None:
    RAN[document] += 1
    if wrong := problem(ran):
        WRONG.append(f"{document}, {case.place}: {' '.join(map(str, words))}: {wrong}")


def all_is_well(document: str, least: int) -> None:
    """Fails with what was found, or if fewer consumers read a hostile document than today, about:
    then something is not tested any more.
    """
    assert not WRONG, "\n".join([f"{len(WRONG)} problems", *WRONG[:20]])
    assert RAN[document] >= least, RAN


def exports(*more: str) -> list[list[str]]:
    tools = [["slurm", "--with", tool] for tool in ("pyxis", "apptainer", "enroot", "docker")]
    return [
        ["export", *one, *more]
        for one in [*tools, *([name] for name in EXPORTS if name != "slurm")]
    ]


def structure(consumer: str, text: str) -> Any:
    """What the format's own parser reads, without the values."""
    if consumer in ("kubernetes", "compose", "ray"):
        return [shape(one) for one in yaml.safe_load_all(text)]
    if consumer == "devcontainer":
        return shape(json.loads(re.sub(r"(?m)^\s*//.*$", "", text)))
    if consumer == "apptainer":
        header, *sections = re.split(r"(?m)^(?=%)", text)
        heads = [line.partition(":")[0] for line in header.splitlines() if line[:1] != "#"]
        assert "{{" not in text
        return heads, [[line.split()[:1] for line in one.splitlines()] for one in sections]
    lines = len(text.splitlines())
    return lines, list(shlex.shlex(text, posix=True, punctuation_chars=True))


def read_back(
    document: str, case: Case, words: Sequence[str], ran: Ran, good: Sequence[str]
) -> None:
    if ran.code != 0 or ran.out in good:
        return
    try:
        found = structure(words[1], ran.out)
        same = any(found == structure(words[1], text) for text in good)
    except (yaml.YAMLError, ValueError):
        same = False
    if not same:
        WRONG.append(f"{document}, {case.place}: {' '.join(words)} has more: {ran.out[:2000]}")


def less(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The plan, and the same without what changes the structure of an export."""
    # a family stands for its products, a name that the catalog does not have for itself
    one = [{**gpu, "name": "NVIDIA Unlisted"} for gpu in plan["gpus"]]
    for variant in (plan, {**plan, "gpus": one}):
        yield variant
        for names in (("gpus",), ("compat_package",), ("gpus", "compat_package")):
            yield {key: value for key, value in variant.items() if key not in names}


@pytest.fixture(scope="module")
def lock_text() -> str:
    return finished(WHEELS, PLAN_OF_ALL, None, offline=True)


def test_labels(
    layout: Layout, lock_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_lock(lock_text)
    host = tmp_path / "host.json"
    host.write_text(json.dumps(facts.host_to_json(HOST)))
    labels = labels_for(lock, "1", [(8, 0)])
    # an attacker's label may have more than ours: all that the reader takes
    good = {**json.loads(labels[PLAN]), **_loads(lock_text)["tool"]["gpu-provision"]["plan"]}
    current = dict(labels)
    pulled = "registry.example/team/x:1"
    monkeypatch.setattr(
        "provision.verification.subject.find_subject",
        lambda name, _: Subject(name=name, image_id=f"sha256:{'1' * 64}", labels=current),
    )
    consumers: list[list[str]] = [
        *exports(pulled),
        ["fleet", "check", "--image", pulled, str(host)],
        ["inspect", layout.name],
        ["gate", "--no-test", layout.name],
    ]
    before: dict[tuple[str, ...], list[str]] = {}
    for valid in less(good):
        current.update({PLAN: json.dumps(valid)})
        for words in consumers:
            before.setdefault(tuple(words), []).append(run(cli.main, words).out)
    for case in cases(good, long=("reasons", 0, "message")):
        text = to_json(case.document).decode()
        current.update({PLAN: text})
        layout.write(current)
        for words in consumers:
            ran = run(cli.main, words)
            check("label", case, ran, words)
            if words[0] == "export":
                read_back("label", case, words, ran, before[tuple(words)])
        try:
            plan = plan_of({PLAN: text}, "an image")
            parse_expectations(json.dumps(expectations(plan, HOST, None)))
        except (Failure, ExpectationsError):
            pass
        RAN["label"] += 1
    for other in (CONTROL, QUOTES, LONG, "sm_80,", "sm_99999"):
        current.update({**labels, CUT: other})
        ran = run(cli.main, ["fleet", "check", "--image", pulled, str(host)])
        check("label", Case(CUT, None), ran, [])
    all_is_well("label", 3000)


def test_locks(lock_text: str, tmp_path: Path) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(lock_text)
    consumers = [
        *exports("registry.example/team/x:1", "--lock", str(path)),
        ["build", "--lock", str(path), "--output", str(tmp_path / "o"), "--dry-run"],
    ]
    document = _loads(lock_text)
    before: dict[tuple[str, ...], list[str]] = {}
    for valid in less(document["tool"]["gpu-provision"]["plan"]):
        path.write_text(tomli_w.dumps({**document, "tool": {"gpu-provision": {"plan": valid}}}))
        for words in consumers:
            ran = run(cli.main, words)
            assert ran.code == 0, ran
            before.setdefault(tuple(words), []).append(ran.out)
    long = ("tool", "gpu-provision", "plan", "reasons", 0, "message")
    for case in cases(document, long=long):
        try:
            text = tomli_w.dumps(_in_toml(case.document))
        except (TypeError, UnicodeEncodeError):
            continue
        path.write_bytes(text.encode("utf-8", "replace"))
        for words in consumers[:2] if case.place.endswith("10 MB") else consumers:
            ran = run(cli.main, words)
            check("lock", case, ran, words)
            if words[0] == "export":
                read_back("lock", case, words, ran, before[tuple(words)])
    all_is_well("lock", 3000)


def _in_toml(value: Any) -> Any:
    """The value as TOML can have it: without null and lone surrogates."""
    if isinstance(value, dict):
        return {key: _in_toml(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_in_toml(item) for item in value if item is not None]
    return value.replace("\ud800", "") if isinstance(value, str) else value


def test_host_files(layout: Layout, lock_text: str, tmp_path: Path) -> None:
    layout.write(labels_for(read_lock(lock_text), "1"))
    path = tmp_path / "host.json"
    consumers: list[list[str]] = [
        ["plan", "--host", str(path)],
        ["plan", "--host", str(path), "--json", "--matrix"],
        ["plan", "--host", str(path), "--explain"],
        ["fleet", "plan", str(path)],
        ["fleet", "check", "--image", layout.name, "--if-driver", "999.1", str(path)],
    ]
    good = facts.host_to_json(HOST)
    for case in cases(good, long=("gpus", 0, "name")):
        path.write_bytes(to_json(case.document))
        for words in consumers:
            check("host file", case, run(cli.main, words), words)
    all_is_well("host file", 600)


class Nodes:
    """Nodes that answer without a network: each with its own document."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: Sequence[bytes]
    ) -> None:
        self.answers = answers
        self.hosts = tmp_path / "hosts"
        self.hosts.write_text("".join(f"n{number}\n" for number in range(len(answers))))
        here = SimpleNamespace(run=self.run, CommandTimedOut=process.CommandTimedOut)
        monkeypatch.setattr(work, "process", here)

    def run(self, argv: Sequence[str], **given: Any) -> process.Completed:
        mark = re.search(r'MARK = "([^"]*)"', given["input"])
        assert mark is not None
        (name,) = (word for word in argv if re.fullmatch(r"n\d+", word))
        out = f"\n{mark[1]}{self.answers[int(name[1:])].decode()}\n"
        return process.Completed(tuple(argv), 0, "", out, 0.1)


def test_the_host_files_of_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = {"answer": facts.host_to_json(HOST)}
    found = list(cases(good, long=("answer", "gpus", 0, "name")))
    nodes = Nodes(monkeypatch, tmp_path, [to_json(case.document) for case in found])
    words = ["fleet", "detect", "--on", f"ssh:{nodes.hosts}", "--output", str(tmp_path / "out")]
    check("answer of fleet detect", Case("every leaf", None), run(cli.main, words), words)
    RAN["answer of fleet detect"] += len(found) - 1
    for path in sorted((tmp_path / "out").glob("*.json")):
        facts.parse_host(path.read_text(), label="x")
    ran = run(cli.main, ["fleet", "plan", str(tmp_path / "out")])
    check("answer of fleet detect", Case("every leaf", None), ran, ["fleet", "plan"])
    all_is_well("answer of fleet detect", 120)


def test_the_reports_of_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: Layout, lock_text: str
) -> None:
    layout.write(labels_for(read_lock(lock_text), "1"))
    report = whole_report()
    good = {"host": facts.host_to_json(HOST), "way": "docker", "code": 0, "stderr": "x"}
    answers = [
        to_json({"answer": {**good, "stdout": f"{{\n{to_json(case.document).decode()[1:-1]}\n}}"}})
        for case in cases(report, long=("checks", 0, "message"))
    ]
    said = json.dumps(report, indent=1)
    row = {"code": "node-run-failed", "message": "it broke", "fix": "see it"}
    whole = {"answer": {**good, "stdout": said}}
    answers += [to_json(case.document) for case in cases(whole, long=("answer", "way"))]
    failed = {"answer": {"host": None, "failure": row}}
    answers += [to_json(case.document) for case in cases(failed, long=("answer", "failure", "fix"))]
    answers += [to_json(case.document) for case in cases({"error": "x"}, long=("error",))]
    nodes = Nodes(monkeypatch, tmp_path, answers)
    files = {name: tmp_path / f"x.{name}" for name in ("junit", "html", "prometheus")}
    words: list[str] = ["fleet", "verify", "--on", f"ssh:{nodes.hosts}", "--image", layout.name]
    words += ["--output", str(tmp_path / "out"), "--way", "podman"]
    words += [word for name, path in files.items() for word in (f"--{name}", str(path))]
    ran = run(cli.main, words)
    check("answer of fleet verify", Case("every leaf", None), ran, words)
    RAN["answer of fleet verify"] += len(answers) * (len(files) + 1) - 1
    assert "INJECTED" not in [line.strip() for line in ran.out.splitlines()]
    assert len(ET.parse(files["junit"]).findall(".//testcase")) >= len(answers)
    no_other_element(files["html"].read_text())
    in_prometheus(files["prometheus"].read_text())
    all_is_well("answer of fleet verify", 1500)


def whole_report() -> dict[str, Any]:
    """A report that the suite accepts, with metrics, tables and plots."""
    report = suite_report("unfit")
    rows = [row for one in ("fit", "unfit") for row in made_up(one)["checks"]]
    measured = next(row["measured"] for row in rows if row["measured"].get("metrics"))
    for kind in ("tables", "plots"):
        measured = {
            **measured,
            kind: next(row["measured"][kind] for row in rows if row["measured"].get(kind)),
        }
    report["checks"][0] = {**report["checks"][0], "measured": measured}
    failed = [row for row in report["checks"] if row["status"] == "fail"]
    report["checks"] = [*failed, *(row for row in report["checks"] if row not in failed)]
    return report


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.found.add(tag)


def no_other_element(text: str) -> None:
    """No element of a page comes from a text."""
    reader = _Tags()
    reader.feed(text)
    assert not reader.found & {"injected", "img", "iframe", "object", "embed", "form"}
    assert text.count("<script") == text.count("</script")


_SERIES = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\\n]|\\.)*",?)*\})? -?[0-9.e+-]+')


def in_prometheus(text: str) -> None:
    for line in text.rstrip("\n").split("\n"):
        assert line.startswith(("# HELP gpu_provision_", "# TYPE gpu_provision_")) or (
            _SERIES.fullmatch(line)
        ), line


def test_reports(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    names = ("junit", "html", "markdown", "prometheus", "verdict")
    files = {name: tmp_path / f"x.{name}" for name in names}
    words = [word for name, to in files.items() for word in (f"--{name}", str(to))]
    report = whole_report()
    report["checks"] = report["checks"][:2]  # a failed one, and one with measurements
    for case in cases(report, long=("checks", 0, "message")):
        path.write_bytes(to_json(case.document))
        for to in files.values():
            to.unlink(missing_ok=True)
        for argv in (
            ["render", str(path)],
            ["render", str(path), *words],
            ["judge", str(path), "--json"],
        ):
            ran = run(verify_main, argv)
            check("report", case, ran, argv)
        if files["junit"].exists():
            RAN["report"] += len(files)
            ET.parse(files["junit"])
            no_other_element(files["html"].read_text())
            in_prometheus(files["prometheus"].read_text())
            assert "\x1b" not in files["markdown"].read_text()
            assert schemas.problems("verdict", json.loads(files["verdict"].read_text())) == []
    all_is_well("report", 900)


def test_lists_of_a_fleet(tmp_path: Path) -> None:
    path, report = tmp_path / "list", tmp_path / "report.json"
    report.write_text(json.dumps(suite_report()))
    host = {"schema": 1, "gpus": [{"uuid": "GPU-1", "name": "x", "compute_capability": "8.0"}]}
    expect = {**host, "framework": {"name": "pytorch", "version": "2.0.1"}, "packages": ["x"]}
    failure = {"code": "node-silent", "message": "it does not answer", "fix": "see it"}
    rows = [
        {"node": "n", "failure": None, "report": str(report), "expect": expect, "code": 0},
        {"node": "n", "failure": failure},
    ]
    files = {name: tmp_path / f"x.{name}" for name in ("junit", "html", "prometheus")}
    words = [word for name, to in files.items() for word in (f"--{name}", str(to))]
    for good in rows:
        for case in cases(good, long=("node",)):
            path.write_bytes(to_json(case.document))
            argv = ["fleet", str(path), "--level", "standard", *words]
            check("list", case, run(verify_main, argv), argv)
            RAN["list"] += len(files)
    all_is_well("list", 280)


def test_records() -> None:
    host = recorded_host(HOST, kernel="6.1.0", engine="docker 26.1")
    image, lock = f"sha256:{'a' * 64}", "b" * 64
    given: dict[str, Any] = {"image": image, "name": "team/torch:1", "lock": lock, "host": host}
    good = make_statement(
        suite_report(), report_sha256="c" * 64, plan=PLAN_OF_ALL, level="standard", now=NOW, **given
    )
    for case in cases(good, long=("predicate", "host", "kernel")):
        try:
            statement = parse_statement(to_json(case.document))
        except Failure as failure:
            said = failure.message
        else:
            outcome = judge(statement, level=None, now=NOW, contradiction=lambda _: None, **given)
            checked = Checked(image=image, path=Path("x"), outcome=outcome)
            said = f"{describe_check(check_to_json(checked))}{statement}"
        check("record", case, Ran(0, said, ""), ["--check-record"])
    all_is_well("record", 200)


def test_catalog_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "gpu-provision" / "catalog.json"
    path.parent.mkdir()
    tables = {name: rows_of(name) for name in ("gpus", "toolkits", "branches", "builds")}
    good = {"schema": SCHEMA, "date": "2026-11-21", "sources": {"s": "somewhere"}, "tables": tables}
    consumers = [["plan", "--gpu", "A100", "--driver", "580.95.05"], ["catalog", "show", "gpu"]]
    for case in cases(good, long=("sources", "s")):
        document = json.loads(to_json(case.document))
        path.write_bytes(to_json({**document, "sha256": _checksum(document)}))
        for words in consumers:
            check("catalog copy", case, run(cli.main, words), words)
    all_is_well("catalog copy", 500)


def rows_of(table: str) -> list[dict[str, Any]]:
    """The first row of a shipped table, as a catalog copy has it."""
    from tests import ROOT

    for path in sorted((ROOT / "provision" / "catalog" / "data").glob("*.json")):
        data = json.loads(path.read_text())
        rows = (
            data.get(table, data.get("tables", {}).get(table)) if isinstance(data, dict) else None
        )
        if rows:
            named = {key: "s" for key in rows[0] if key.endswith("_source")}
            return [{**rows[0], **named, "as_of": "2026-11-21", "source": "s"}]
    raise AssertionError(table)


def test_origins(lock_text: str) -> None:
    images, lock = (f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"), read_lock(lock_text)
    made = BuildRun(builder="layers", started=NOW, finished=NOW)
    good = make_provenance(lock, made, name="team/torch:1", images=images, bom=b"{}")
    for case in cases(good, long=("predicate", "runDetails", "builder", "id")):
        try:
            found = parse_provenance(to_json(case.document))
        except Failure as failure:
            said = failure.message
        else:
            outcome = judge_origin(found, name="x", images=images, lock=lock.sha256)
            said = f"{outcome.message} {found.name} {found.version} {found.builder}"
        check("provenance", case, Ran(0, said, ""), ["--check-provenance"])
    all_is_well("provenance", 100)


def test_bundles_of_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine.tar.gz"
    collect(ProbedMachine(env={"CUDA_HOME": "/usr/local/cuda", "PATH": "/usr/bin"}), path)
    with tarfile.open(path) as tar:
        members = {one.name: _content(tar, one) for one in tar if one.isfile()}
    answers = json.loads(members["answers.json"])
    heads = {name: data for name, data in members.items() if "/" not in name}
    words = ["doctor", "--bundle", str(path)]
    for value in (CONTROL, QUOTES):
        rows = [[asked, _said(answer, value)] for asked, answer in answers]
        texts = {name: value.encode("utf-8", "replace") for name in members}
        _pack(path, {**texts, **heads, "answers.json": to_json(rows)})
        check("bundle", Case("every answer", None), run(cli.main, words), words)
        RAN["bundle"] += len(answers) - 1
    for name, head in heads.items():
        for case in cases({"": json.loads(head)}):
            _pack(path, {**heads, name: to_json(case.document[""])})
            RAN["bundle"] += 1
            with contextlib.suppress(BadInputError), open_bundle(path) as machine:
                machine.word("/proc/sys/kernel/hostname")
    all_is_well("bundle", 400)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _said(answer: Any, value: str) -> Any:
    """The answer with the value for each of its texts; where its contents are stays."""
    if isinstance(answer, dict):
        kept = {"member": answer["member"]} if "member" in answer else {}
        return {**{key: _said(inner, value) for key, inner in answer.items()}, **kept}
    if isinstance(answer, list):
        return [_said(inner, value) for inner in answer]
    return value if isinstance(answer, str) else answer


def _pack(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


_FIELDS: dict[str, Callable[[str], Any]] = {
    "name": str,
    "framework_version": str,
    "cuda": str,
    "arch": str,
    "driver": str,
    "image": lambda text: ImageSource(kind="reference", name=text),
    "products": lambda text: (text,),
    "command": lambda text: ("python3", text),
    "environment": lambda text: (("A", text),),
}
_WRITERS: dict[str, Callable[[Deployment], str]] = {
    "slurm": lambda one: slurm.to_sbatch(one, "enroot", mount=True),
    "enroot": enroot.to_script,
    "apptainer": apptainer.to_definition,
    "kubernetes": lambda one: kubernetes.to_manifest(one, "job"),
    "ray": ray.to_runtime_env,
    "compose": lambda one: compose.to_compose(one, cdi=False, mount=True),
    "devcontainer": devcontainer.to_devcontainer,
}


@pytest.mark.parametrize("consumer", _WRITERS)
@pytest.mark.parametrize("field", _FIELDS)
def test_no_text_of_a_deployment_adds_to_a_file(field: str, consumer: str) -> None:
    """Each text by itself, past every check of the command line: the value refuses it, or the file
    has it as data.
    """
    given: dict[str, Any] = {"products": ("NVIDIA A100",), "driver": "450.80.02"}
    given |= {"environment": (("A", "b"),), "command": ("python3", "x")}
    write = _WRITERS[consumer]
    good = structure(consumer, write(deployment(**given)))
    with pytest.raises(BadInputError):
        deployment(**{**given, field: _FIELDS[field](CONTROL)})
    for text in ("a\nINJECTED", QUOTES, "{{ x }}", "# x", "%post", "a: b", "\tx"):
        try:
            found = write(deployment(**{**given, field: _FIELDS[field](text)}))
        except Failure:
            continue
        if field in ("command", "environment", "name", "image") and consumer in ("slurm", "enroot"):
            # these words are quoted: run by a shell in test_formats.py
            shlex.split(found, comments=True)
            assert "INJECTED" not in [line.split("=")[0] for line in found.splitlines()[:7]]
            continue
        assert structure(consumer, found) == good, text


PROJECT_FILES: dict[str, Any] = {
    "requirements.txt": {
        "package": {
            "name": "torch",
            "is": "==",
            "version": "2.0.1",
            "more": " ; python_version>'3'",
        },
        "hash": {"name": "numpy==1.26.0 --hash=sha256:", "value": "1" * 64},
        "index": {"option": "--extra-index-url ", "value": "https://wheels.example/cu117"},
        "links": {"option": "-f ", "value": "https://wheels.example"},
        "file": {"option": "-r ", "value": "requirements.txt"},
        "limits": {"option": "-c", "value": "requirements.txt"},
        "editable": {"option": "-e ", "value": "."},
        "address": {
            "name": "x @ ",
            "value": "https://e.example/x-1-py3-none-any.whl",
            "at": "#a=b",
        },
        "source": {"name": "git+https://", "value": "e.example/x"},
        "variable": {"name": "y==", "value": "${VERSION}"},
        "other": {"option": "--pre", "value": "", "comment": " # a comment"},
    },
    "uv.lock": {
        "version": 1,
        "requires-python": ">=3.10",
        "package": [
            {
                "name": "torch",
                "version": "2.0.1+cu117",
                "source": {"registry": "https://wheels.example/cu117"},
                "dependencies": [{"name": "numpy", "marker": "sys_platform == 'linux'"}],
                "wheels": [
                    {
                        "url": "https://e.example/torch-2.0.1-cp311-cp311-linux_x86_64.whl",
                        "hash": f"sha256:{'1' * 64}",
                    }
                ],
            },
            {"name": "p", "source": {"virtual": "."}, "dependencies": [{"name": "torch"}]},
        ],
    },
    "pyproject.toml": {
        "project": {"name": "p", "requires-python": ">=3.10", "dependencies": ["torch==2.0.1"]},
        "tool": {
            "uv": {
                "sources": {"torch": {"index": "cu117"}},
                "index": [{"name": "cu117", "url": "https://wheels.example/cu117"}],
            }
        },
    },
    "pixi.toml": {
        "workspace": {"name": "p", "channels": ["conda-forge"], "platforms": ["linux-64"]},
        "dependencies": {"python": "3.11.*", "pytorch": {"version": "2.0.1", "build": "cuda*"}},
        "pypi-dependencies": {"torch": "==2.0.1", "x": {"version": "*", "extras": ["a"]}},
    },
    "environment.yml": {
        "name": "p",
        "dependencies": ["python=3.11", "pytorch-cuda=12.1", {"pip": ["torch==2.0.1"]}],
    },
}


PROJECT_LEAST = {
    "requirements.txt": 350,
    "pyproject.toml": 105,
    "pixi.toml": 48,
    "uv.lock": 45,
    "environment.yml": 45,
}


@pytest.mark.parametrize("name", PROJECT_FILES)
def test_project_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    consumers = [["doctor", str(path)], ["build", str(tmp_path), "--dry-run", "--offline"]]
    if name in ("uv.lock", "pixi.toml"):  # most of these are valid, and planned in 0.2 s
        consumers = []
    path.write_text(in_format(name, PROJECT_FILES[name]))
    assert read_project(tmp_path).declared.packages
    for case in cases(PROJECT_FILES[name]):
        try:
            text = in_format(name, _in_toml(case.document))
        except (TypeError, UnicodeEncodeError):
            continue
        path.write_text(text, encoding="utf-8", errors="replace")
        for words in consumers:
            check(f"project: {name}", case, run(cli.main, words), words)
        try:
            found = read_project(tmp_path)
        except Failure as failure:
            said = [failure.message]
        else:
            one = found.declared
            rows = [*one.packages, *one.constraints, *filter(None, (one.python, one.cuda))]
            said = [*(row.text for row in rows), *one.left_out, *found.notes]
            said += [word for row in one.missing for word in (row.name, row.message)]
            for row in one.packages:
                assert len(row.text.splitlines()) == 1, "a line of what uv reads"
        check(f"project: {name}", case, Ran(0, "\n".join(said), ""), ["build"])
    all_is_well(f"project: {name}", PROJECT_LEAST[name])


def in_format(name: str, document: Any) -> str:
    """The document in a file of that name; the lines of requirements are joined texts."""
    if name.endswith(".yml"):
        return json.dumps(document)
    if name.endswith(".txt"):
        lines = [one.values() if isinstance(one, dict) else [one] for one in document.values()]
        return "\n".join("".join(map(str, parts)) for parts in lines)
    return tomli_w.dumps(document)


def test_images(layout: Layout, lock_text: str) -> None:
    """The documents of an image itself: its configuration, its manifest, the layout's index."""
    labels = labels_for(read_lock(lock_text), "1")
    consumers = [
        ["inspect", layout.name],
        ["gate", "--no-test", layout.name],
        ["export", "slurm", "--with", "apptainer", layout.name],
    ]
    for name in ("config", "manifest", "index"):
        layout.write(labels)
        for case in cases({"": layout.documents[name]}):
            layout.write(labels, {name: case.document[""]})
            for words in consumers:
                check("image", case, run(cli.main, words), words)
    all_is_well("image", 300)


def test_records_in_a_squashfs(
    lock_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, tree = tmp_path / "x.sqfs", tmp_path / "tree"
    host = tmp_path / "host.json"
    host.write_text(json.dumps(facts.host_to_json(HOST)))
    file.write_bytes(b"hsqs" + bytes(92))
    monkeypatch.setattr(
        "images.engines.squashfs.reader.mounted", lambda *_: contextlib.nullcontext(tree)
    )
    path = tree / RECORD[1:]
    path.parent.mkdir(parents=True)
    own = {
        "Labels": labels_for(read_lock(lock_text), "1"),
        "Env": ["A=b", "PATH=/bin"],
        "Entrypoint": ["/bin/x"],
        "Cmd": ["sh"],
        "WorkingDir": "/work",
        "Volumes": {"/data": {}},
    }
    config = {"architecture": "amd64", "os": "linux", "config": own}
    good = {"schema": 1, "digest": f"sha256:{'1' * 64}", "config": config}
    consumers = [
        ["inspect", str(file)],
        ["inspect", str(file), "--json"],
        ["gate", "--no-test", str(file)],
        ["fleet", "check", "--image", str(file), str(host)],
        ["export", "slurm", "--with", "apptainer", str(file)],
    ]
    texts = (CONTROL, QUOTES, "/a b", "/../../etc", "/${A}", "a", "/a\\056", "/a\nINJECTED")
    keyed = [
        Case(f"{name}: {text!r:.20}", {**good, "config": {**config, "config": {**own, **more}}})
        for text in texts
        for name, more in (
            ("Volumes", {"Volumes": {text: {}}}),
            ("Labels", {"Labels": {text: text}}),
            ("Env", {"Env": [f"{text}=b", f"A={text}"]}),
        )
    ]
    path.write_bytes(to_json(good))
    before = [run(cli.main, words) for words in consumers]
    assert [ran.code for ran in before] == [1, 1, 7, 0, 0], before
    for case in [*cases(good, long=("config", "config", "Labels", PLAN)), *keyed]:
        path.write_bytes(to_json(case.document))
        for words in consumers:
            ran = run(cli.main, words)
            check("squashfs", case, ran, words)
            if words[0] == "export":
                read_back("squashfs", case, words, ran, [before[-1].out])
        with contextlib.suppress(Failure):
            image = read_record(path.read_bytes(), hash_file(file))
            no_other_line(image.config)
            merged = ImageTree()
            add_files(merged, image)
            assert not any(set(name) & {"\0", "\ud800"} for name, _ in merged.walk())
            RAN["squashfs"] += 3
    all_is_well("squashfs", 700)


def no_other_line(config: Mapping[str, Any]) -> None:
    """No line of the files for enroot and Apptainer comes from a text."""
    own = config.get("config")
    own = own if isinstance(own, dict) else {}
    rows = own.get("Env")
    settings = [one for one in rows if isinstance(one, str)] if isinstance(rows, list) else []
    files = {**enroot_files(config), **apptainer_files(config)}
    lines = {path: content.decode().split("\n") for path, content in files.items()}
    assert {*lines["/etc/environment"]} <= {*settings, ""}
    for line in lines["/etc/fstab"][:-1]:
        mount = r"\$\{ENROOT_ROOTFS\}(/[^\s$\\]*) \1 none x-create=dir,bind,rw,nosuid,nodev"
        found = re.fullmatch(mount, line)
        assert found is not None, line
        assert ".." not in found[1].split("/"), line
    for path, scripts in (
        ("/etc/rc", enroot_files),
        ("/.singularity.d/runscript", apptainer_files),
    ):
        assert in_shell(files[path]) == in_shell(scripts({})[path]), files[path]
    path = "/.singularity.d/env/10-docker2singularity.sh"
    one = apptainer_files({"config": {"Env": ["A=b", "PATH=b"]}})[path]
    found_lines = in_shell(files[path])
    assert all(line in in_shell(one) for line in found_lines), files[path]
    assert len(found_lines) <= len(settings) + 2


def in_shell(script: bytes) -> list[tuple[list[str], list[str]]]:
    """Of each line of a script its first word, and what a shell interprets: without the comments at
    its begin, and without words in quotes.
    """
    text = re.sub(r"\A(# [^\n]*\n)*", "", script.decode()).lstrip("\n")
    text = re.sub(r"'[^']*'|\"'\"", "", text)
    return [(line.split()[:1], re.findall(r"[^\w@%+=:,./ -]", line)) for line in text.split("\n")]


@pytest.mark.parametrize(("form", "step", "least"), [("zstd", 1, 450), ("gzip", 5, 100)])
def test_tables_of_contents(
    form: FormatName,
    step: int,
    least: int,
    layout: Layout,
    lock_text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("images.layers.lazy.formats.write_table", to_json)
    document, junit = f"table: {form}", tmp_path / "x.junit"
    labels = labels_for(read_lock(lock_text), "1")
    made = lazy_tar(tar_of_all(), form, chunk=64, podman=form == "zstd")
    good: Any = {"version": 1, "entries": made.rows}
    words = ["inspect", layout.name, "--junit", str(junit)]

    def read(document: Any, changed: Mapping[str, Any] | None = None) -> Ran:
        layer = made.layer(document)
        with contextlib.closing(layer.stream()) as stream:
            blob = layout.blob(b"".join(stream))
        annotations = {**layer.blob.annotations, **(changed or {})}
        layout.layer = {
            "mediaType": f"{OCI}layer.v1.tar+{form}",
            **blob,
            "annotations": annotations,
        }
        layout.diff_id = layer.diff_id
        layout.write(labels)
        try:
            deque(layer_members(checked(layer)), maxlen=0)
        except Failure as failure:
            said = failure.message
        else:
            said = ""
        assert "\n" not in said, said
        ran = run(cli.main, words)
        ET.parse(junit)
        return Ran(ran.code, ran.out, f"{ran.err}{said}")

    ran = read(good)
    assert (ran.code, "error" in ran.err) == (1, False), ran
    for name, case in islice(tables(good), 0, None, step):  # both formats have the same rows
        check(document, case, read(case.document), [name, *words])
        RAN[document] += 1
    annotations = dict(made.layer(good).blob.annotations)
    for case in cases(annotations):
        check(document, case, read(good, case.document), words)
    all_is_well(document, least)


def tar_of_all() -> bytes:
    """Members of each kind, one of two chunks, and one with a hostile name."""
    odd = CONTROL.translate({0: None, 0xD800: 0xDCE9})
    attributes = {"SCHILY.xattr.user.a": "1"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in (
            entry("d", type=tarfile.DIRTYPE),
            entry("d/f", b"1" * 100, pax_headers=attributes),
            entry("d/s", type=tarfile.SYMTYPE, linkname="f"),
            entry("d/h", type=tarfile.LNKTYPE, mode=0o644, linkname="d/f"),
            entry("d/c", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
            entry(odd, b"2"),
        ):
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tables(good: Mapping[str, Any]) -> Iterator[tuple[str, Case]]:
    """The table with other values, and each row with each of its own."""
    for case in cases({"": good}):
        yield "table", case._replace(document=case.document[""])
    rows = good["entries"]
    for at, row in enumerate(rows):
        more = [Case("xattrs", {**row, "xattrs": {CONTROL: "MQ=="}})]
        more += [Case("a key", {**row, CONTROL: 1}), Case("mode", {**row, "mode": 0o4777})]
        for case in [*cases(row), *more]:
            changed = [*rows[:at], case.document, *rows[at + 1 :]]
            yield str(row["name"]), case._replace(document={**good, "entries": changed})


def test_what_nodes_did_together(tmp_path: Path) -> None:
    path, rows = tmp_path / "across", tmp_path / "list"
    failure = {"code": "node-silent", "message": "it does not answer", "fix": "see it"}
    rows.write_text(json.dumps({"node": "n", "failure": failure}))
    files = {name: tmp_path / f"x.{name}" for name in ("junit", "html", "prometheus")}
    words = [word for name, to in files.items() for word in (f"--{name}", str(to))]
    argv = ["fleet", str(rows), "--level", "standard", "--across", str(path), *words]
    for case in cases(together("n1", "n2", "n3", "n4")):
        path.write_bytes(to_json(case.document))
        check("together", case, run(verify_main, argv), argv)
        if files["junit"].exists():
            RAN["together"] += len(files)
            ET.parse(files["junit"])
            no_other_element(files["html"].read_text())
            in_prometheus(files["prometheus"].read_text())
    all_is_well("together", 100)
