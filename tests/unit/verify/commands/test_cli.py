"""The command line, with no framework there: by its function, and as users start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.programs import run_program
from tests.kit.reports import REPORT, SCHEMA
from tools.release import write_suite
from verify.checks import CHECKS
from verify.commands.main import choose, main
from verify.device import maps
from verify.model import frameworks
from verify.model.check import Check, Context, Outcome, Result, Status, UsageError
from verify.model.expectations import ExpectationsError, parse
from verify.reports.report import document, table
from verify.running import children

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line in this process."""

    def made(*arguments: str) -> Done:
        code = main(arguments)
        return Done(arguments, code, *capsys.readouterr())

    return made


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite as one file."""
    return write_suite(tmp_path_factory.mktemp("suite") / "verify.pyz")


def alone(suite: Path, python: str, *arguments: str) -> Done:
    """The suite as one file, isolated: no site-packages, so no framework."""
    return run_program(
        [python, "-S", "-B", str(suite), *arguments],
        cwd=suite.parent,
        env={name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
    )


def valid(text: str) -> Any:
    report = json.loads(text)
    REPORT.validate(report)
    assert isinstance(report, dict)
    return report


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_refuses_what_it_does_not_know() -> None:
    nothing: Any = {}
    report = document("quick", nothing, [])
    with pytest.raises(jsonschema.ValidationError):
        REPORT.validate(report)


def test_list_names_every_check() -> None:
    words = [sys.executable, "-m", "verify", "--list"]
    done = run_program(words, cwd=ROOT)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        c.id for c in CHECKS["pytorch"]
    ]
    assert max(map(len, done.stdout.splitlines())) <= 80


@cases(
    "arguments word",
    ("no such level", ["--level", "deep"], "deep"),
    ("no such option", ["--nonsense"], "--nonsense"),
    ("no such name to require", ["--require", "tpu"], "'tpu'"),
    ("no such check", ["--only", "devices.magic"], "devices.magic"),
    ("an empty list", ["--only", ","], "is empty"),
    ("a contradiction", ["--only", "training", "--require", "nccl"], "--only excludes"),
    ("no such expectations", ["--expect", "/nonexistent.json"], "No such file"),
    ("a folder that is not there", ["--report", "/nonexistent/r.json"], "No such file"),
    ("a folder in place of a file", ["--report", "/"], "not a regular file"),
    ("a folder in place of a page", ["--html", "/"], "--html /: not a regular file"),
    ("a folder for JUnit that is not there", ["--junit", "/nonexistent/j.xml"], "--junit"),
    ("one file for two formats", ["--html", "/tmp/same", "--report", "/tmp/same"],
     "name the same file"),
    ("no such baseline", ["--baseline", "/nonexistent"], "No such file"),
    ("an empty baseline", ["--baseline", "/dev/null"], "not JSON"),
    ("a tolerance that is no share", ["--tolerance", "5"], "--tolerance"),
)  # fmt: skip
def test_wrong_usage_is_one_sentence_and_exit_2(
    call: Callable[..., Done], arguments: list[str], word: str
) -> None:
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "option", ["--report", "--junit", "--html", "--markdown", "--prometheus", "--verdict"]
)
def test_an_unwritable_folder_is_found_before_the_checks_run(
    call: Callable[..., Done], option: str, tmp_path: Path
) -> None:
    target = tmp_path / "full"
    target.symlink_to("/proc")  # no file can be made there, not even by root
    done = call(option, str(target / "r.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert option in done.stderr
    assert len(done.stderr.splitlines()) == 1  # no check has run


@pytest.fixture(scope="module")
def isolated(suite: Path) -> Done:
    return alone(suite, sys.executable, "--json")


def test_isolated_without_a_framework_each_check_says_so(isolated: Done) -> None:
    done = isolated
    report = valid(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "unfit")
    needing_it = {check.id for check in CHECKS["pytorch"] if check.framework}
    framework = [row for row in report["checks"] if row["id"] in needing_it]
    assert framework
    assert {row["status"] for row in framework} == {"error"}
    assert {row["cause"] for row in framework} == {"the framework is not installed in this Python"}
    assert "Traceback" not in done.stderr
    told = [line.split()[1:3] for line in done.stderr.splitlines()]
    assert told == [
        [row["status"], row["id"]] for row in report["checks"] if row["status"] in {"fail", "error"}
    ]


def test_who_looks_on_is_told_of_each_check(
    call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PROVISION_PROGRESS", "1")  # provision shows the lines at its terminal
    done = call("--only", "loading.shm,libraries.files", "--json")
    assert len(done.stderr.splitlines()) == len(valid(done.stdout)["checks"]) == 2


def test_a_terminal_is_told_of_each_check() -> None:
    terminal, theirs = need.terminal()
    words = ["--only", "loading.shm,loading.files", "--json"]
    subprocess.run(
        [sys.executable, "-m", "verify", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        check=False,
    )
    os.close(theirs)
    assert len(os.read(terminal, 65536).splitlines()) == 2
    os.close(terminal)


def test_a_log_is_told_now_and_then_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("verify.commands.main._SILENCE_S", 0.0)
    main(["--only", "loading.shm,loading.files"])
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_page_keeps_to_80_columns_and_tells_trouble_once(suite: Path, isolated: Done) -> None:
    done = alone(suite, sys.executable)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("cause:" in line for line in lines) == 1
    assert "same as libraries.framework" in done.stdout
    assert "(unfit, exit code 1)" in done.stdout
    checks = json.loads(isolated.stdout)["checks"]
    assert [line.split()[1] for line in lines[2:] if line[:5].strip().isupper()][: len(checks)] == [
        check["id"] for check in checks
    ]


def other_python(version: str) -> str:
    """On PATH, or one of pyenv's, whose programs stand in for versions that it has not, too."""
    shims = [Path(name) for name in os.environ["PATH"].split(":") if name.endswith("/shims")]
    kept = [path for shim in shims for path in shim.parent.glob(f"versions/{version}.*/bin/python")]
    for python in (*map(str, kept), *filter(None, [shutil.which("python" + version)])):
        if not subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
            return python
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_other_pythons_run_it(version: str, suite: Path, tmp_path: Path) -> None:
    done = alone(suite, other_python(version), "--json", "--report", str(tmp_path / "r.json"))
    assert valid(done.stdout) == valid((tmp_path / "r.json").read_text())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_is_refused_in_one_sentence(version: str, suite: Path) -> None:
    done = alone(suite, other_python(version), "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"verify needs Python 3.8 or newer; this is {version}.")
    assert len(done.stderr.splitlines()) == 1


# An unknown user without a home, a root that is read-only, no variable, and no network.
_BARE = "--ro-bind / / --proc /proc --dev /dev --unshare-user --uid 45678 --unshare-net --clearenv"


@cases(
    "more code sentence",
    ("shared memory can be written", (), 1, None),
    ("nothing can be", ("--ro-bind", "/etc", "/dev/shm"), 2, "no folder for temporary"),
)
def test_nothing_need_be_writable_but_shared_memory(
    more: tuple[str, ...], code: int, sentence: str | None, suite: Path
) -> None:
    python = [sys.executable, "-S", "-B", str(suite), "--json"]
    bare = [need.program("bwrap"), *_BARE.split(), *more]
    done = run_program([*bare, *python])
    assert done.returncode == code, done.stderr
    if sentence is None:
        valid(done.stdout)
    else:
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
        assert sentence in done.stderr


def test_musl_without_a_framework_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mapped = "7f1c-7f1d r-xp 00000000 fd:00 1 /lib/ld-musl-x86_64.so.1\n"
    monkeypatch.setattr(maps, "read_maps", lambda: mapped)
    monkeypatch.setattr(frameworks, "installed", lambda: ("jax",))
    assert main(["--list"]) == 0
    monkeypatch.setattr(frameworks, "installed", lambda: ())
    capsys.readouterr()
    assert main(["--list"]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "musl" in err


def test_a_chroot_without_proc_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> str:
        raise FileNotFoundError(2, "No such file or directory", "/proc/self/maps")

    monkeypatch.setattr(maps, "read_maps", unreadable)
    monkeypatch.setattr(frameworks, "installed", lambda: ())
    assert main(["--list"]) == 0


def test_nvml_alone_needs_no_framework(suite: Path, call: Callable[..., Done]) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = alone(suite, sys.executable, "--only", "devices.nvml", "--json")
    assert valid(done.stdout)["checks"][0]["status"] == "skip"
    assert done.returncode == 7
    required = call("--only", "devices.nvml", "--json", "--require", "devices.nvml")
    assert valid(required.stdout)["checks"][0]["status"] == "fail"
    assert required.returncode == 1


def test_what_an_emulator_ran_is_not_proven(
    call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_patience", 1.0)  # it has the limits of other tests back, then
    expect = tmp_path / "e.json"
    words = ("--only", "loading.files,speed.copies", "--expect", str(expect))
    expect.write_text('{"schema": 1}')
    there = valid(call("--only", "loading.files", "--expect", str(expect), "--json").stdout)
    assert ("emulator" in there["environment"], there["verdict"]) == (False, "fit")
    expect.write_text('{"schema": 1, "emulator": "qemu-aarch64"}')
    report = valid(call(*words, "--json").stdout)
    assert report["environment"]["emulator"] == "qemu-aarch64"
    assert [check["status"] for check in report["checks"]] == ["pass", "skip"]
    page = call(*words)
    assert page.returncode == 7
    assert "emulated by qemu-aarch64" in " ".join(page.stdout.split())


def test_another_machine_than_the_images_is_not_tested(
    call: Callable[..., Done], tmp_path: Path
) -> None:
    expect = tmp_path / "expect.json"
    expect.write_text('{"schema": 1, "scope": {"checks": "image", "because": "for an H100"}}')
    words = ("--only", "speed.gemm,libraries.compat", "--expect", str(expect), "--json")
    rows = {check["id"]: check for check in valid(call(*words).stdout)["checks"]}
    assert (rows["speed.gemm"]["status"], rows["speed.gemm"]["message"]) == ("skip", "for an H100")
    assert "provision verify IMAGE" in rows["speed.gemm"]["fix"]
    assert rows["libraries.compat"]["message"] != "for an H100"
    required = valid(call(*words, "--require", "speed.gemm").stdout)
    assert "for an H100" not in {check["message"] for check in required["checks"]}


def test_gpus_are_expected(call: Callable[..., Done], tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    expect = tmp_path / "e.json"
    expect.write_text('{"schema": 1, "gpus": [{"uuid": "GPU-x"}], "image": {"digest": "sha256:1"}}')
    done = call("--only", "devices.nvml", "--expect", str(expect), "--json")
    report = valid(done.stdout)
    assert report["environment"]["image"] == "sha256:1"
    assert (done.returncode, report["checks"][0]["status"]) == (1, "fail")


@cases(
    "text word",
    ("not JSON", "{", "not JSON"),
    ("a list", "[]", "a list"),
    ("no schema", "{}", "schema"),
    ("true is not 1", '{"schema": true}', "schema"),
    ("a bare number", '{"schema": 1, "cuda": 11.7}', "cuda: expected a text"),
    ("no version", '{"schema": 1, "cuda": "new"}', "not a version"),
    ("GPUs in no list", '{"schema": 1, "gpus": {}}', "gpus: expected a list"),
    ("a GPU that is a number", '{"schema": 1, "gpus": [1]}', "gpus[0]"),
    ("a bare image", '{"schema": 1, "image": "x"}', "image: expected an object"),
    ("another framework", '{"schema": 1, "framework": {"name": "mxnet"}}', "supports pytorch"),
)
def test_bad_expectations(text: str, word: str) -> None:
    with pytest.raises(ExpectationsError) as caught:
        parse(text)
    assert word in str(caught.value)


def test_problems_of_one_file_come_together() -> None:
    with pytest.raises(ExpectationsError) as caught:
        parse('{"schema": 2, "cuda": 1, "gpus": [{"uuid": ""}]}')
    assert str(caught.value).count(";") == 2


def test_bad_expectations_are_exit_2(call: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_bytes(b"\xff\xfe")
    done = call("--expect", str(path))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_contracts_expectations_are_read() -> None:
    found = parse(
        '{"schema": 1, "framework": {"name": "pytorch", "version": "2.0.1"}, "wheel_tag": "cu117",'
        ' "cuda": "11.7", "cudnn": "8.5.0.96", "nccl": null, "python": "3.11",'
        ' "gpus": [{"uuid": null, "name": "A", "compute_capability": "8.6"}], "image": null}'
    )
    assert (found.framework, found.cudnn, found.nccl, found.gpu_count) == (
        "2.0.1",
        "8.5.0.96",
        None,
        1,
    )


def pass_on_gpu(_: Context) -> Outcome:
    return Outcome(Status.PASS, "fine", measured={"device": "cuda"})


def skip(_: Context) -> Outcome:
    return Outcome(Status.SKIP, "no GPU visible")


def breakage(_: Context) -> Outcome:
    raise ValueError("broken")


@cases(
    "work arguments code",
    ("fit is 0", pass_on_gpu, [], 0),
    ("a broken check is 1", breakage, [], 1),
    ("no verdict is 7", skip, [], 7),
    ("a required skip is 1", skip, ["--require", "gpu"], 1),
    ("required by its id", skip, ["--require", "devices.made"], 1),
)
def test_exit_codes(
    work: Any, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Check("devices.made", "Made up", work, framework=False, gpu=True)
    assert main(["--json", *arguments], {"pytorch": [check]}) == code
    captured = capsys.readouterr()
    valid(captured.out)
    assert captured.err.count("\n") == (1 if code == 1 else 0)  # what failed


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    check = Check("devices.made", "Made up", pass_on_gpu, framework=False)
    path = tmp_path / "r.json"
    assert main(["--report", str(path)], {"pytorch": [check]}) == 0
    assert valid(path.read_text())["verdict"] == "fit"
    assert os.listdir(tmp_path) == ["r.json"]  # noqa: PTH208  # nothing partial beside it


def test_a_bug_of_ours_is_70_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"], {"pytorch": [None]}) == 70  # type: ignore[list-item]
    assert "Traceback" not in capsys.readouterr().err


LEVELS = [
    Check("devices.a", "A", skip),
    Check("collectives.nccl", "N", skip, "standard"),
    Check("training.c", "C", skip, "full"),
]


@cases(
    "level only require expected",
    ("quick runs the quick ones", "quick", None, None, "a"),
    ("standard runs more", "standard", None, None, "an"),
    ("full runs all", "full", None, None, "anc"),
    ("what is required runs at every level", "quick", None, "nccl", "an"),
    ("only is above the level", "quick", "training", None, "c"),
    ("in the list's order", "quick", "training,devices.a", "devices", "ac"),
)
def test_what_runs(level: str, only: str | None, require: str | None, expected: str) -> None:
    chosen, _ = choose(LEVELS, level, only, require)
    assert "".join(check.title.lower() for check in chosen) == expected


def test_require_gpu_asks_for_nothing_that_needs_two() -> None:
    _, required = choose(CHECKS["pytorch"], "standard", None, "gpu")
    assert {"devices.nvml", "devices.kernel"} <= set(required)
    assert not {"devices.peers", "devices.peer-copies"} & set(required)


def test_required_and_left_out() -> None:
    with pytest.raises(UsageError):
        choose(LEVELS, "full", "training", "nccl")


FAMILIES = {
    *("devices", "libraries", "numerics", "training", "loading", "memory"),
    *("collectives", "parallel", "speed", "health"),
}


@pytest.mark.parametrize("framework", CHECKS)
def test_ids_are_unique_and_known_by_family(framework: str) -> None:
    ids = [check.id for check in CHECKS[framework]]
    assert len(ids) == len(set(ids))
    assert {i.split(".")[0] for i in ids} <= FAMILIES


def test_what_was_not_proven_is_named() -> None:
    check = Check("training.loss", "T", skip, gpu=True)
    result = Result(check, Outcome(Status.PASS, "fine", measured={"device": "cpu"}), 0.1)
    facts: Any = {"python": "3", "driver": None, "gpus": [], "cpus": 1}
    facts["framework"] = {"name": "pytorch", "version": None}
    page = table(document("quick", facts, [result]))
    assert "on the CPU  training.loss; not tested on a GPU" in page
    assert "proven      nothing" in page
