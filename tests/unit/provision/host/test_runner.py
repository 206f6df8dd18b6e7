"""Running programs that hang, flood, refuse or are not there."""

from __future__ import annotations

import time
from pathlib import Path

from provision.host.runner import local_runner
from tests.kit.cases import cases

RUN = local_runner({"PATH": "/usr/bin:/bin"})


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_output_and_exit_code_come_back(tmp_path: Path) -> None:
    done = RUN([script(tmp_path / "tool", "echo out; echo err >&2; exit 3")], 5)
    assert (done.code, done.out, done.err, done.problem) == (3, "out\n", "err", None)
    assert not done.ok
    assert done.message == "err"


@cases(
    "body problem",
    ("it sleeps", "sleep 60", "tool did not answer within 0.2 s"),
    ("its child sleeps", "sleep 60 & wait", "did not answer within 0.2 s"),
    ("its child keeps the pipe", "sleep 60 & exit 0", "did not answer"),
    ("it closes its output", "exec >&- 2>&-; sleep 60", "did not answer"),
    ("it ignores signals", "trap '' TERM INT; sleep 60", "did not answer"),
    ("it prints for ever", "exec yes", "tool printed more than 4 MiB"),
)
def test_a_program_that_does_not_end_is_left_in_time(
    tmp_path: Path, body: str, problem: str
) -> None:
    limit_s = 50 if "yes" in body else 0.2
    started = time.monotonic()
    done = RUN([script(tmp_path / "tool", body)], limit_s)
    assert problem in (done.problem or "")
    assert not done.ok
    assert time.monotonic() - started < 40


def test_what_was_printed_before_the_limit_is_kept(tmp_path: Path) -> None:
    done = RUN([script(tmp_path / "tool", "echo half; sleep 60")], 0.5)
    assert done.out == "half\n"


def test_a_missing_program_is_a_problem() -> None:
    assert RUN(["no-such-tool"], 5).problem == "no-such-tool was not found"


def test_a_file_that_may_not_run_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("text")
    problem = RUN([str(tmp_path / "tool")], 5).problem
    assert problem == "tool may not be executed (permission denied)"


def test_a_file_that_is_no_program_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_bytes(b"\x00\x01\x02")
    path.chmod(0o755)
    assert "could not be started" in (RUN([str(path)], 5).problem or "")


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    done = RUN([script(tmp_path / "tool", r"printf '\377\376 ok'")], 5)
    assert done.out == "\ufffd\ufffd ok"


def test_the_program_reads_nothing_and_speaks_english(tmp_path: Path) -> None:
    done = RUN([script(tmp_path / "tool", 'cat; echo "$LC_ALL"')], 5)
    assert done.out == "C\n"


@cases(
    "body said",
    ("its first words", "echo; echo why >&2; exit 1", "why"),
    ("on either stream", "echo only here; exit 1", "only here"),
    ("else its exit code", "exit 9", "exit code 9, no output"),
    ("without terminal codes", r"printf '\033[31mred\033[0m'", "[31mred [0m"),
)
def test_a_failure_is_said_in_one_line(tmp_path: Path, body: str, said: str) -> None:
    assert RUN([script(tmp_path / "tool", body)], 5).message == said
