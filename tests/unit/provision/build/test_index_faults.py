"""Locking against indexes that misbehave: a local server plays them, uv is the real one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.system import process
from provision.build.base import BuildSettings, PlanInputs
from provision.build.packages import PackageChoice
from provision.build.pipeline import lock_for
from provision.catalog.loading import load
from provision.errors import IndexUnreachableError
from provision.host.uv import uv_program
from provision.lock import solve as lock
from provision.lock import uv
from provision.lock.lockfile import Lock, parse_lock
from provision.model.plan import IndexCandidate, Request
from provision.output.console import Console
from provision.resolve import resolve
from tests.kit.cases import cases
from tests.kit.hosts import host
from tests.kit.local_index import NUMPY, LocalIndex, make_lock, pure, serving_uv, torch
from tests.unit.provision.lock.test_places import plan


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalIndex]:
    with serving_uv(monkeypatch, tmp_path) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def candidate(url: str | None, name: str = "asked", build: str = "+cu117") -> IndexCandidate:
    return IndexCandidate(name=name, url=url, requirement=f"torch==2.0.1{build}", why="a test")


def ask(row: IndexCandidate) -> lock.Attempt:
    return lock.ask_index(row, plan(row), Request(), ca_bundle=None, offline=False)


@cases(
    "behaviour build outcome words",
    ("an index that has it serves", "good", "+cu117", "locked", "has it"),
    ("the plain version may be the build", "plain", "", "locked", "has it"),
    ("a wrong hash shows at build time only", "wrong-hash", "+cu117", "locked", "has it"),
    ("an index without torch is named", "nothing", "+cu117", "absent", "no solution"),
    ("only another build is there", "cpu", "+cu117", "absent", "no version of torch"),
    ("another build under the same version", "cpu", "", "absent", "has torch 2.0.1+cpu"),
    ("a server with errors", "broken", "+cu117", "unreachable", "500"),
    ("a login is asked for", "login", "+cu117", "unreachable", "401"),
    ("a login that may not", "denied", "+cu117", "unreachable", "403"),
    ("a silent server", "hang", "+cu117", "unreachable", "unreachable"),
    ("half a page", "truncated", "+cu117", "unreachable", "unreachable"),
)
def test_an_index_is_judged_by_its_behaviour(
    index: LocalIndex, behaviour: str, build: str, outcome: str, words: str
) -> None:
    attempt = ask(candidate(index.url(behaviour), build=build))
    assert (attempt.outcome, words in attempt.reason) == (outcome, True), attempt.reason


def test_a_refused_connection_is_out_of_reach(index: LocalIndex) -> None:
    attempt = ask(candidate(f"http://127.0.0.1:{free_port()}/simple/"))
    assert (attempt.outcome, "unreachable" in attempt.reason) == ("unreachable", True)
    assert index.asked == []


def test_the_first_index_that_has_it_serves_and_the_log_says_why_the_others_did_not(
    index: LocalIndex,
) -> None:
    told: list[str] = []
    made = make_lock(
        plan(
            candidate(index.url("broken"), "first"),
            candidate(index.url("cpu"), "second"),
            candidate(index.url("good"), "third"),
            candidate(index.url("plain"), "fourth", ""),
        ),
        Request(),
        ca_bundle=None,
        offline=False,
        tell=told.append,
    )
    assert [line.split(" ")[0] for line in told] == ["first", "second"]
    assert "500" in told[0]
    assert made.plan.index_url == index.url("good")
    assert [w.name for w in made.wheels] == ["numpy", "torch"]
    because = made.plan.reasons[-1].message
    default = index.url("simple")
    shown = default.rstrip("/")
    assert because.startswith(f"The wheels come from third (torch) and {shown} (numpy): ")
    listed = {package.name: package.index for package in parse_lock(made.text).packages}
    assert listed == {"torch": index.url("good"), "numpy": default}
    assert "first unreachable" in because
    assert not [path for path in index.asked if path.startswith("/plain/")]


def test_the_sizes_that_a_page_does_not_tell_are_asked_for(index: LocalIndex) -> None:
    row = candidate(index.url("good"))
    made = make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=print)
    sizes = {w.name: w.size for w in made.wheels}
    assert sizes == {"torch": len(torch("+cu117")[1]), "numpy": len(NUMPY[1])}
    assert made.download_bytes == sum(size or 0 for size in sizes.values())


def test_a_wrong_hash_of_the_page_is_what_the_lock_will_hold_the_download_to(
    index: LocalIndex,
) -> None:
    row = candidate(index.url("wrong-hash"))
    made = make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=print)
    assert {w.sha256 for w in made.wheels if w.name == "torch"} == {"0" * 64}


def test_a_login_in_the_address_serves_and_is_written_nowhere(index: LocalIndex) -> None:
    row = candidate(index.url("login", "ci:canary@"), "--index")
    told: list[str] = []
    made = make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=told.append)
    assert "canary" not in made.text
    assert made.plan.index_url == index.url("login")
    assert told == []


@cases(
    "where",
    ("of the index that was named", "candidate"),
    ("of the default index", "default"),
)
def test_a_password_is_not_in_what_a_failure_says(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    url = index.url("broken", "ci:canary@")
    if where == "default":
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    attempt = ask(candidate(url if where == "candidate" else None))
    assert attempt.outcome == "unreachable"
    assert "canary" not in attempt.reason


def test_a_short_name_beside_a_password_does_not_garble_the_answer(index: LocalIndex) -> None:
    attempt = ask(candidate(index.url("nothing", "o:canary@")))
    assert (attempt.outcome, "no solution" in attempt.reason) == ("absent", True)


def test_when_no_index_serves_each_is_named_with_its_reason(index: LocalIndex) -> None:
    rows = (candidate(index.url("broken"), "first"), candidate(index.url("cpu"), "second"))
    with pytest.raises(IndexUnreachableError) as caught:
        make_lock(plan(*rows), Request(), ca_bundle=None, offline=False, tell=print)
    assert caught.value.exit_code == 5
    assert [line.split(" ")[0] for line in caught.value.detail.splitlines()] == ["first", "second"]
    assert "--index" in caught.value.fix


@cases(
    "wheels offline fix",
    ("the default index has another build", [pure("torch", "2.7.1"), pure("pip", "26.0")], False,
     ("PyPI answers and has PyTorch 2.7.1 for CUDA 12.6: --cuda 12.6 --framework-version "
      "2.7.1. Else check the network")),
    ("it has not what the catalog says", [pure("torch", "2.9.1")], False, "Check the network"),
    ("nothing may be asked", [pure("torch", "2.7.1"), pure("pip", "26.0")], True,
     "Run this once without"),
)  # fmt: skip
def test_out_of_reach_the_newest_within_reach_is_named(
    index: LocalIndex, wheels: list[tuple[str, bytes]], fix: str, *, offline: bool, tmp_path: Path
) -> None:
    index.more = wheels
    hosts = [host("550.54.14", "8.6")]
    request = Request(cuda="12.6", python="3.11")
    made = resolve(hosts, request, load())
    assert made.wheel_tag == "cu126"
    gone = made.indexes[0]._replace(url=index.url("broken"))
    settings = BuildSettings(ca=None, offline=offline, state=tmp_path, env={})
    packages = PackageChoice(PlanInputs(hosts, request, load(), settings, Console()))
    with pytest.raises(IndexUnreachableError) as caught:
        lock_for(made._replace(indexes=(gone,)), packages)
    assert caught.value.exit_code == 5
    assert caught.value.fix.startswith(fix)


@cases(
    "asked tag",
    ("PyPI's build of a pin is taken", {"framework_version": "==2.7.1"}, "cu126"),
    ("a CUDA is kept", {"framework_version": "==2.7.1", "cuda": "11.8"}, None),
    ("without a pin it is named", {"framework_version": "<2.7.2"}, None),
)
def test_out_of_reach_a_pinned_release_is_pypis_own_build(
    index: LocalIndex, asked: dict[str, str], tag: str | None, tmp_path: Path
) -> None:
    index.more = [pure("torch", "2.7.1"), pure("pip", "26.0")]
    hosts = [host("550.54.14", "8.6")]
    request = Request(python="3.11", **asked)  # type: ignore[arg-type]
    made = resolve(hosts, request, load())
    assert made.wheel_tag == "cu118"
    gone = made.indexes[0]._replace(url=index.url("broken"))
    settings = BuildSettings(ca=None, offline=False, state=tmp_path, env={})
    packages = PackageChoice(PlanInputs(hosts, request, load(), settings, Console()))

    def found() -> Lock:
        return lock_for(made._replace(indexes=(gone,)), packages)

    if tag is None:
        with pytest.raises(IndexUnreachableError, match=r"2\.7\.1"):
            found()
        return
    plan = found().plan
    assert (plan.framework_version, plan.wheel_tag, plan.verdict) == ("2.7.1", tag, "minor-version")
    said = next(note.message for note in plan.notes if note.code == "pypi-build")
    assert "2.7.1 for CUDA 11.8 could be reached; PyPI has it for CUDA 12.6" in said


def test_when_every_index_answered_and_none_has_it_the_packages_are_to_blame(
    index: LocalIndex,
) -> None:
    with pytest.raises(lock.NoSolutionError) as caught:
        make_lock(
            plan(candidate(index.url("nothing"))),
            Request(companions=("nosuchthing",)),
            ca_bundle=None,
            offline=False,
            tell=print,
        )
    assert caught.value.exit_code == 3
    assert "with nosuchthing" in caught.value.message


def test_an_index_that_never_ends_its_answer_costs_a_line_and_not_the_job(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "600")
    monkeypatch.setattr(lock, "_UV_TIMEOUT_S", 1.0)
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    attempt = ask(candidate(index.url("hang")))
    assert (attempt.outcome, "no complete answer" in attempt.reason) == ("unreachable", True)


def test_offline_nothing_is_asked(index: LocalIndex) -> None:
    row = candidate(index.url("good"))
    attempt = lock.ask_index(row, plan(row), Request(), ca_bundle=None, offline=True)
    assert (attempt.outcome, "--offline" in attempt.reason) == ("unreachable", True)
    assert index.asked == []


def test_the_environment_may_set_the_patience() -> None:
    patient = {"UV_HTTP_TIMEOUT": "120", "UV_HTTP_RETRIES": "7", "UV_DEFAULT_INDEX": "x"}
    found = uv.uv_environment(patient, None)
    assert (found["UV_HTTP_TIMEOUT"], found["UV_HTTP_RETRIES"]) == ("120", "7")
    usual = uv.uv_environment({"UV_DEFAULT_INDEX": "x"}, None)
    assert (usual["UV_HTTP_TIMEOUT"], usual["UV_HTTP_RETRIES"]) == ("15", "1")


@cases(
    "without",
    ("no home that can be written to", "a home that can be written to"),
    ("no Python on PATH", "Python on PATH"),
    ("a working directory that is gone", "a working directory"),
)
def test_uv_works_without(
    index: LocalIndex, without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "a home that can be written to":
        (tmp_path / "file").touch()
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        monkeypatch.delenv("XDG_CACHE_HOME")
    elif without == "Python on PATH":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
    attempt = ask(candidate(index.url("good")))
    if without == "a working directory":
        monkeypatch.chdir(tmp_path)
    assert attempt.outcome == "locked", attempt.reason


def test_a_machine_on_which_uv_cannot_work_is_no_fault_of_an_index(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = tmp_path / "uv"
    limited.write_text(f'#!/bin/sh\nulimit -n 8\nexec {uv_program()} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(uv, "uv_program", lambda: str(limited))
    row = candidate(index.url("good"))
    with pytest.raises(lock.UvBrokenError, match="Too many open files") as caught:
        make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=print)
    assert caught.value.fix == "Allow more open files: ulimit -n 4096"


def test_a_login_is_on_no_command_line(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user may read the command lines of all: a program in uv's place writes its own down."""
    said = tmp_path / "said"
    fake = tmp_path / "uv"
    fake.write_text(f'#!/bin/sh\necho "$@" >{said}\necho "$UV_INDEX" >>{said}\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(uv, "uv_program", lambda: str(fake))
    ask(candidate(index.url("good").replace("://", "://user:s3cret@")))
    words, variable = said.read_text().splitlines()
    assert "s3cret" not in words
    assert "s3cret" in variable
