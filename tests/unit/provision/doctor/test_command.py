"""`provision doctor` as it is typed: what it prints, and its exit code."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from images.errors import Failure
from provision.cli import main as cli
from provision.cli.consult import causes_of_failure, causes_of_report
from provision.doctor import Fact, diagnose, load
from provision.doctor.bundle import FORMAT
from provision.doctor.model import Value
from provision.doctor.probes import read_facts
from tests import DATA, ROOT
from tests.kit.cases import cases
from tests.kit.doctor_hosts import build, load_host
from tests.kit.programs import run_program

SCHEMA = json.loads((ROOT / "provision/doctor/doctor.schema.json").read_text(encoding="utf-8"))
NO_GPU = (
    "docker: Error response from daemon: could not select device driver "
    '"" with capabilities: [[gpu]].\n'
)
FALLEN = "NVRM: GPU at PCI:0000:01:00: GPU-1\nNVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n"
OWN_ERROR = "  File 'a.py', line 3\nValueError: the shape (3, 4) does not fit\n"
UNRELATED = "2026-02-03 INFO the kettle is on\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fact]:
    """A machine whose facts the test gives; its kernel log is empty. (A bundle reads for itself,
    by the names that it imported at first.)
    """
    facts: dict[str, Fact] = {"os.family": Fact(value="debian", where="/etc/os-release")}
    monkeypatch.setattr("provision.doctor.probes.read_facts", lambda _: facts)
    monkeypatch.setattr("provision.doctor.probes.kernel_log", lambda _: None)
    return facts


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(FALLEN)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def known(**values: Value) -> dict[str, Fact]:
    return {k.replace("__", "."): Fact(value=v, where="/there") for k, v in values.items()}


CHANGES = """
import os, sys
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
names = ("remove", "rename", "mkdir", "rmdir", "link", "symlink", "chmod", "chown", "truncate")
changing = {*(f"os.{name}" for name in names), "shutil.rmtree", "shutil.move", "shutil.copyfile"}
seen = []

def heard(event, words):
    if event == "open" and isinstance(words[0], (str, bytes)) and words[2] & writing:
        seen.append(words[0])
    elif event in changing:
        seen.append((event, words[0]))

from provision.cli import main as cli
sys.addaudithook(heard)
code = cli.main(sys.argv[1:])
print([one for one in seen if one != os.devnull], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [[], ["run.log"], ["--json"]], ids=["machine", "log", "JSON"])
def test_nothing_is_changed_without_fix(words: list[str], tmp_path: Path) -> None:
    """Python says which files the doctor itself changes; the directories, what its programs do."""
    for name in ("home", "work", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "run.log").write_text(FALLEN)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = run_program(
        [sys.executable, "-B", "-c", CHANGES, "doctor", *words],
        cwd=tmp_path / "work",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path / "tmp"),
        },
    )
    assert done.stdout, done.stderr
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


NOUVEAU = known(
    gpu__count=1, gpu__bound_to=("nouveau",), driver__installed=True, machine__container=False
)

LAPTOP = known(
    gpu__count=0, driver__installed=False, docker__installed=False, podman__installed=False
)


def test_a_healthy_machine_is_fit(
    machine: dict[str, Fact], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.update(LAPTOP)
    code, out, _ = run(capsys)
    assert code == 0
    assert out.splitlines() == [
        "No GPU can be used on this machine: no NVIDIA GPU is on the PCI bus.",
        "gpu         no NVIDIA GPU on the PCI bus",
        "driver      not installed",
        "engine      none (not needed to build images)",
        "here        images can be built, not GPU-tested",
    ]


STOPPED = known(
    docker__installed=True,
    docker__engine=True,
    docker__running=False,
    docker__error="Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
    machine__container=False,
)


def test_an_engine_that_is_down_is_found_and_makes_no_machine_unfit(
    machine: dict[str, Fact], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.update({**LAPTOP, **STOPPED})
    code, out, _ = run(capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "degraded    Docker is installed, but its engine is not running"
    assert "    sudo systemctl start docker || sudo service docker start" in lines
    assert "engine      Docker is installed, but not running" in lines
    assert lines[-1] == "here        images can be built, not GPU-tested"
    found = json.loads(run(capsys, "--json")[1])
    Draft202012Validator(SCHEMA).validate(found)
    assert [one["what"] for one in found["overview"]] == ["gpu", "driver", "engine", "here"]
    assert found["overview"][0]["where"] == "/there"


def test_an_engine_that_is_down_does_not_answer_for_an_unknown_text(
    machine: dict[str, Fact], capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    machine.update(STOPPED)
    log.write_text(UNRELATED)
    code, out, _ = run(capsys, str(log), "--here")
    assert code == 7
    assert out.startswith("unknown ")
    assert "Docker is installed" not in out
    found = json.loads(run(capsys, str(log), "--json")[1])
    assert (found["verdict"], found["overview"]) == ("unknown", [])
    assert found["collect"]


@pytest.mark.parametrize("words", [[], ["--here"]], ids=["as typed", "a log from here"])
@pytest.mark.parametrize(("text", "code"), [(UNRELATED, 7), (FALLEN, 0)], ids=["unknown", "known"])
def test_what_the_machine_alone_shows_is_the_last_line(
    machine: dict[str, Fact],
    capsys: pytest.CaptureFixture[str],
    log: Path,
    text: str,
    code: int,
    words: list[str],
) -> None:
    machine.update(NOUVEAU)
    log.write_text(text)
    ended, out, _ = run(capsys, str(log), "--all", *words)
    assert ended == code
    assert out.count("nouveau") == 2
    assert out.splitlines()[-2:] == [
        "also        on this machine: The nouveau driver holds the GPU",
        "            (nouveau-owns-gpu). In full: provision doctor",
    ]
    found = json.loads(run(capsys, str(log), "--json", *words)[1])
    assert "nouveau-owns-gpu" not in {cause["code"] for cause in found["causes"]}
    assert [one["code"] for one in found["besides"]] == ["nouveau-owns-gpu"]


def test_a_machine_that_cannot_run_a_gpu_is_unfit(
    machine: dict[str, Fact], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.update(NOUVEAU)
    code, out, _ = run(capsys)
    assert code == 4
    assert "nouveau" in out.splitlines()[0]


@pytest.mark.usefixtures("machine")
@cases(
    "text code first",
    ("what is known is said", FALLEN, 0, "xid-79-fallen-off-bus"),
    ("what is unknown is no verdict", UNRELATED, 7, None),
    ("an empty text is unknown", "", 7, None),
)
def test_a_log_is_read(
    capsys: pytest.CaptureFixture[str], log: Path, text: str, code: int, first: str | None
) -> None:
    log.write_text(text)
    ended, out, _ = run(capsys, "--log", str(log), "--json")
    found = json.loads(out)
    Draft202012Validator(SCHEMA).validate(found)
    assert ended == code
    assert (found["causes"][0]["code"] if found["causes"] else None) == first
    assert bool(found["collect"]) == (first is None)


@pytest.mark.usefixtures("machine")
def test_a_file_that_is_no_recipe_is_a_log(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert run(capsys, str(log))[1] == run(capsys, "--log", str(log))[1]


@pytest.mark.usefixtures("machine")
def test_a_log_of_one_word_is_no_requirements_file(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    log.write_text("torch\n")
    assert run(capsys, str(log))[0] == 7


def test_what_a_log_shows_makes_no_machine_unfit(
    machine: dict[str, Fact], capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    """The log may be of yesterday."""
    machine.update(NOUVEAU)
    code, out, _ = run(capsys, "--log", str(log), "--here", "--json")
    found = [cause["code"] for cause in json.loads(out)["causes"]]
    assert (code, found[0]) == (0, "xid-79-fallen-off-bus")


@pytest.mark.usefixtures("machine")
def test_stdin_is_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FALLEN.encode())))
    code, out, _ = run(capsys, "--log", "-")
    assert (code, "[stdin:2]" in out) == (0, True)


@pytest.mark.usefixtures("machine")
@cases(
    "text code",
    ("an exception with its message",
     "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu-out-of-memory"),
    ("words that give a reason", "CUDA out of memory", "gpu-out-of-memory"),
    ("several lines", f"one\n{FALLEN}", "xid-79-fallen-off-bus"),
    ("the name of an error", "CUDA_ERROR_OUT_OF_MEMORY", "gpu-out-of-memory"),
)  # fmt: skip
def test_an_error_text_is_diagnosed_as_an_argument(
    capsys: pytest.CaptureFixture[str], text: str, code: str
) -> None:
    for words in ([text, "--no-host"], ["--log", text]):
        exit_code, out, _ = run(capsys, *words, "--json")
        said = json.loads(out)
        assert (exit_code, said["names"]) == (0, ["the text"])
        assert said["causes"][0]["code"] == code


def test_a_file_is_checked_without_the_host(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM busybox\n")
    code, out, err = run(capsys, str(path), "--no-host")
    assert (code, out, err) == (0, f"No problems found in {path}.\n", "")


@pytest.mark.usefixtures("machine")
@cases(
    "words said",
    ("a log that is not there", "no such.log", "There is no file no such.log"),
    ("a text that is not there", "error.txt", "There is no file error.txt"),
)
def test_a_log_that_is_missing_is_no_image(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    code, out, err = run(capsys, words)
    assert (code, out) == (2, "")
    assert said in err


NAMED = "Linux box-1 6.8.0-1-x #1 SMP\n"
BOX = known(docker__snap=True, gpu__count=1, machine__name="box-1", kernel__release="6.8.0-1-x")


@cases(
    "text words judged says",
    ("a log that says it is from here", NAMED, [], "here", "agrees"),
    ("a log of which the user says so", "", ["--here"], "here", "silent"),
    ("the user knows better than an old log", NAMED.replace("6.8", "6.5"), ["--here"], "here",
     "differs"),
)  # fmt: skip
def test_the_machine_decides_for_a_log_from_there(
    machine: dict[str, Fact],
    capsys: pytest.CaptureFixture[str],
    log: Path,
    text: str,
    words: list[str],
    judged: str,
    says: str,
) -> None:
    log.write_text(text + NO_GPU)
    machine.update(BOX)
    found = json.loads(run(capsys, str(log), "--json", *words)[1])
    Draft202012Validator(SCHEMA).validate(found)
    assert "snap" in found["causes"][0]["code"]
    assert found["causes"][0]["confidence"] == "high"
    assert (found["machine"]["judged"], found["machine"]["log"]) == (judged, says)
    assert found["facts"]["docker.snap"]["value"] is True
    assert "box-1" not in json.dumps(found["facts"])


@cases(
    "text says line",
    ("a log that does not say where it is from", "", "silent",
     "machine     Only the log was judged. If it was written here, add --here."),
    ("a log of another kernel", NAMED.replace("6.8", "6.5"), "differs",
     "machine     The log is from another one: kernel 6.5.0-1-x (6.8.0-1-x here)"),
)  # fmt: skip
def test_the_machine_that_reads_a_log_from_elsewhere_decides_nothing(
    machine: dict[str, Fact],
    capsys: pytest.CaptureFixture[str],
    log: Path,
    text: str,
    says: str,
    line: str,
) -> None:
    log.write_text(text + NO_GPU)
    machine.update(BOX)
    out = run(capsys, str(log))[1]
    assert line in out.splitlines()
    typed = json.loads(run(capsys, str(log), "--json")[1])
    alone = json.loads(run(capsys, str(log), "--no-host", "--json")[1])
    Draft202012Validator(SCHEMA).validate(alone)
    assert (typed["causes"], typed["facts"]) == (alone["causes"], alone["facts"])
    assert typed["causes"][0]["confidence"] != "high"
    assert (typed["machine"]["judged"], typed["machine"]["log"]) == ("log", says)
    assert alone["machine"] == {"judged": "log", "log": None, "evidence": []}


def test_a_log_from_elsewhere_changes_nothing_here(
    machine: dict[str, Fact], capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    log.write_text(NAMED.replace("6.8", "6.5") + NO_GPU)
    machine.update(BOX)
    code, out, err = run(capsys, str(log), "--fix", "--yes")
    assert code == 2
    assert "from another: kernel 6.5.0-1-x (6.8.0-1-x here)" in " ".join(err.split())
    assert "--here" in err
    assert out == ""


@pytest.mark.parametrize("host", ["ubuntu-workstation", "dgx"])
def test_no_machine_decides_for_a_run_elsewhere(host: str, tmp_path: Path) -> None:
    """Whoever reads them, runs that ended well accuse nobody surely, and failures have the causes
    that they have without a machine.
    """
    facts = read_facts(build(load_host(host), tmp_path))
    data = DATA / "doctor"
    well = json.loads((data / "successful.json").read_text(encoding="utf-8"))["runs"]
    failed = json.loads((data / "failed.json").read_text(encoding="utf-8"))["runs"]
    for one in [*well[::8], *failed[::8]]:
        text = [("log", one["text"])]
        found = diagnose(text, facts, facts_of="reader")
        assert found.causes == diagnose(text).causes, one["id"]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--log", "/nowhere/at.all"], "There is no file /nowhere/at.all"),
        (["--log", "/"], "directory"),
        (["--log", "a\0b"], "cannot be read"),
        (["./no/such/Dockerfile"], "There is no file"),
        (["no/such/compose.yaml"], "There is no file"),
        (["--no-host"], "--no-host requires --log"),
        (["--here"], "--here requires --log"),
        (["--here", "--no-host", "--log", "-"], "--no-host and --here cannot be used together"),
        (["some/image:1", "--here", "--log", "-"], "cannot be used together"),
        (["--yes"], "--yes requires --fix or --undo"),
        (["--fix", "--undo", "x"], "--fix and --undo cannot be used together"),
        (["--bundle", "x", "--no-host", "--log", "-"], "cannot be used together"),
        (["some/image:1", "--no-host", "--log", "-"], "cannot be used together"),
        (["--bundle", "x", "--fix"], "--fix changes this machine"),
        (["--log", "-", "--log", "-"], "stdin can be used only once"),
        (["collect"], "collect takes one argument"),
        (["collect", "/nowhere/at/all.tar.gz"], "cannot be written"),
        (["explain", "no-such-cause"], "Unknown cause 'no-such-cause'"),
        (["--bundle", "/nowhere/at.all"], "/nowhere/at.all"),
        (["--undo", "/nowhere/at.all"], "/nowhere/at.all"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_way_out(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert "fix:" in err


def test_a_bundle_is_diagnosed_on_another_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "machine.tar.gz"
    assert run(capsys, "collect", str(path))[0] == 0
    with tarfile.open(path) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        assert json.load(manifest)["format"] == FORMAT
    code, out, _ = run(capsys, "--bundle", str(path), "--json")
    found = json.loads(out)
    Draft202012Validator(SCHEMA).validate(found)
    assert (found["kind"], code in {0, 4}) == ("bundle", True)
    assert found["facts"]["kernel.arch"]["value"]


@pytest.mark.usefixtures("machine")
def test_a_fix_asks_and_nobody_is_there(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    code, _, err = run(capsys, "--log", str(log), "--fix")
    assert code == 2
    assert "there is no terminal to ask at" in err


def test_a_file_is_checked_and_told_to_code_scanning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, sarif = tmp_path / "Dockerfile", tmp_path / "found.sarif"
    file.write_text("FROM nvidia/cuda:latest\n")
    code, out, _ = run(capsys, str(file), "--sarif", str(sarif))
    assert code == 1
    assert "Dockerfile:1" in out
    assert json.loads(sarif.read_text())["runs"][0]["results"]
    file.write_text("FROM debian:12\n")
    assert run(capsys, str(file))[0] == 0


# --- what is shown -----------------------------------------------------------------------------


def test_every_cause_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands and links are printed as they are: they must be fit to be copied."""
    out = run(capsys, "explain", *load().by_code)[1]
    wide = [
        line
        for line in out.splitlines()
        if len(line) > 80 and not line.startswith("    ") and "http" not in line
    ]
    assert wide == []


def test_all_causes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "explain")[1]
    assert all(f"  {code}\n" in out for code in load().by_code)


@pytest.mark.usefixtures("machine")
def test_the_fix_stands_before_the_reasons(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    labels = [line[:11].strip() for line in run(capsys, "--log", str(log))[1].splitlines()]
    order = [labels.index(label) for label in ("error", "fix", "seen", "why", "more")]
    assert order == sorted(order)


# --- at a step that failed -----------------------------------------------------------------------


class Refused(Failure):
    code = "engine-failed"
    exit_code = 5


def test_a_failed_step_is_diagnosed(
    machine: dict[str, Fact],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
) -> None:
    machine.update(known(docker__snap=True, gpu__count=1))

    def refuse(*_: object) -> Any:
        raise Refused("The container did not start.", fix="See its log.", detail=NO_GPU)

    monkeypatch.setattr("provision.model.facts.read_host_file", refuse)
    code = cli.main(["plan", "--host", str(log), "--json"])
    said = capsys.readouterr()
    assert code == 5
    assert "snap" in json.loads(said.out)["doctor"][0]["code"]
    assert "snap" in said.err


@pytest.mark.usefixtures("machine")
@cases(
    "failure codes",
    ("an unknown text", Refused("x", fix="y", detail=UNRELATED), []),
    ("no text", Refused("x", fix="y"), []),
    ("all that was kept is read, not its end alone",
     Refused("x", fix="y", detail="last line", log=FALLEN), ["xid-79-fallen-off-bus"]),
    ("what is known does not say why it failed",
     Refused("x", fix="y", log="torch 2.13.0+cpu\n" + UNRELATED * 30 + OWN_ERROR), []),
)  # fmt: skip
def test_causes_of_a_failure(failure: Failure, codes: list[str]) -> None:
    assert [cause["code"] for cause in causes_of_failure(failure).json][:1] == codes


@pytest.mark.usefixtures("machine")
def test_checks_that_failed_are_diagnosed() -> None:
    failed = {
        "id": "devices.kernel",
        "status": "fail",
        "message": "the kernel did not run",
        "cause": None,
        "measured": {
            "output": "RuntimeError: CUDA error: no kernel image is available for execution"
        },
    }
    passed = {**failed, "id": "x.y", "status": "pass", "measured": {"output": FALLEN}}
    (first, *_) = causes_of_report({"checks": [passed, failed]}).json
    assert "xid" not in first["code"]
    assert first["evidence"][0]["where"].startswith("devices.kernel:")
    assert causes_of_report({"checks": [passed]}).json == ()
