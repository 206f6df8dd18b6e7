"""Running commands: what is kept, what is hidden, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from images.system import process
from images.system.process import (
    CommandFailed,
    CommandTimedOut,
    ToolMissing,
    environment,
    run,
    which,
    without_relative_entries,
)
from tests import ROOT
from tests.kit.cases import cases


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while process.is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_both_streams_come_line_by_line() -> None:
    seen: list[str] = []
    done = run(
        ["sh", "-c", "echo one; echo two >&2; printf three"], timeout_s=30, on_line=seen.append
    )
    assert (done.code, seen, done.output) == (0, ["one", "two", "three"], "one\ntwo\nthree")
    assert done.stdout == ""


def test_standard_output_apart_is_kept_whole_and_exact() -> None:
    seen: list[str] = []
    done = run(
        ["sh", "-c", "seq 1 50000; echo word >&2"],
        timeout_s=30,
        on_line=seen.append,
        apart=True,
        keep_bytes=100,
    )
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 50001))
    assert (seen, done.output) == (["word"], "word")


def test_only_the_end_of_a_long_output_is_kept() -> None:
    done = run(["seq", "1", "100000"], timeout_s=30, keep_bytes=1000)
    assert len(done.output) <= 1000
    assert done.output.endswith("99999\n100000")
    assert done.last_lines(2) == "99999\n100000"


@cases(
    "written expected",
    ("a carriage return before a newline is part of it", b"a\r\nb\r\n", ["a", "b"]),
    ("a progress bar gives lines", b"10%\r20%\rdone\n", ["10%", "20%", "done"]),
    ("a carriage return at the end ends the line", b"last\r", ["last"]),
    ("undecodable bytes are replaced", b"caf\xc3\xa9 \xff\n", ["caf\u00e9 \ufffd"]),
    ("empty lines are lines", b"\n\n", ["", ""]),
    ("nothing is no line", b"", []),
)
def test_lines_are_cut_where_a_person_sees_them_end(written: bytes, expected: list[str]) -> None:
    seen: list[str] = []
    run(python(f"import os; os.write(1, {written!r})"), timeout_s=30, on_line=seen.append)
    assert seen == expected


def test_a_character_may_arrive_in_two_parts() -> None:
    code = r"import os,time; os.write(1, b'\xc3'); time.sleep(.2); os.write(1, b'\xa9\n')"
    assert run(python(code), timeout_s=30).output == "\u00e9"


def test_secrets_are_struck_out_everywhere() -> None:
    seen: list[str] = []
    secret = "hunter2-long"
    done = run(
        ["sh", "-c", f"echo to {secret}; echo err {secret} >&2; exit 3"],
        timeout_s=30,
        on_line=seen.append,
        apart=True,
        redact=[secret, "hunter2", ""],
    )
    kept = (*done.argv, done.output, done.stdout, done.command, *seen)
    assert not [text for text in kept if "hunter" in text]
    assert (done.stdout, done.output) == ("to ***\n", "err ***")


def test_a_secret_is_found_across_the_parts_of_an_endless_line() -> None:
    code = "import sys; [sys.stdout.write('x' * 7 + 'SECRET') for _ in range(2000)]"
    done = run(python(code), timeout_s=30, redact=["SECRET"], keep_bytes=64)
    assert "SEC" not in done.output.replace("***", "")


def test_each_line_of_a_secret_counts() -> None:
    done = run(["printf", "a\nKEY1\nKEY2\nb\n"], timeout_s=30, redact=["KEY1\nKEY2\n"])
    assert done.output == "a\n***\n***\nb"


def test_a_missing_program_is_named_with_the_callers_fix() -> None:
    with pytest.raises(ToolMissing) as caught:
        run(["no-such-program-here"], timeout_s=5, missing_fix="apt-get install it")
    assert "no-such-program-here" in caught.value.message
    assert (caught.value.fix, caught.value.exit_code) == ("apt-get install it", 5)


def test_a_program_that_may_not_be_started_is_missing_too(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("not a program")
    with pytest.raises(ToolMissing, match="could not be started"):
        run([str(tmp_path / "tool")], timeout_s=5)


def test_a_failing_command_is_an_answer() -> None:
    assert run(["sh", "-c", "exit 7"], timeout_s=30).code == 7


def test_a_failing_command_is_a_failure_where_the_caller_says_so() -> None:
    with pytest.raises(CommandFailed, match="exit code 7") as caught:
        run(["sh", "-c", "echo why; exit 7"], timeout_s=30, check=True, fix="do this")
    assert (caught.value.detail, caught.value.fix, caught.value.completed.code) == (
        "why",
        "do this",
        7,
    )


@cases(
    "code words",
    ("a good end has a code", 0, "exit code 0"),
    ("SIGKILL has a guess", -9, "SIGKILL (often: the machine ran out of memory)"),
    ("a signal has its name", -15, "was killed by SIGTERM"),
    ("an unknown signal has its number", -250, "signal 250"),
)
def test_an_exit_is_said_in_words(code: int, words: str) -> None:
    assert words in process.describe_exit(code)


def test_input_is_given_and_otherwise_there_is_none() -> None:
    big = "line\n" * 200_000
    assert run(["wc", "-c"], timeout_s=30, input=big).output.strip() == str(len(big))
    assert run(["cat"], timeout_s=30).output == ""


def test_input_may_be_left_unread() -> None:
    assert run(["true"], timeout_s=30, input="x" * 1_000_000).ok


def test_the_environment_is_laid_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("KEPT", "2")
    done = run(
        ["sh", "-c", 'echo "${GONE-no} $KEPT $NEW"; pwd'],
        timeout_s=30,
        env={"GONE": None, "NEW": "3"},
        cwd=tmp_path,
    )
    assert done.output == f"no 2 3\n{tmp_path}"


def test_time_is_up_for_the_whole_group(tmp_path: Path) -> None:
    # the child ignores the polite signal, and so does its own child
    script = f"trap '' TERM; (trap '' TERM; echo $BASHPID >{tmp_path}/pid; sleep 600) & sleep 600"
    with pytest.raises(CommandTimedOut) as caught:
        run(["bash", "-c", f"{script}"], timeout_s=1, grace_s=0.2)
    assert caught.value.exit_code == 5
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_command_has_time_to_clean_up(tmp_path: Path) -> None:
    script = (
        f"trap 'echo cleaned >{tmp_path}/done; exit' TERM; echo ready; while :; do sleep 0.05; done"
    )
    with pytest.raises(CommandTimedOut):
        run(["bash", "-c", script], timeout_s=1, grace_s=20)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError], ids=["Ctrl-C", "a caller's bug"])
def test_nothing_is_left_when_the_caller_ends(error: type[BaseException]) -> None:
    seen: list[int] = []

    def on_line(line: str) -> None:
        seen.append(int(line))
        raise error

    with pytest.raises(error):
        run(["bash", "-c", "sleep 600 & echo $!; wait"], timeout_s=60, on_line=on_line)
    assert gone(seen[0])


def test_a_real_interrupt_ends_the_group(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from images.system.process import run\n"
        f"run(['bash', '-c', 'sleep 600 & echo $! >{tmp_path}/pid; wait'], timeout_s=60)"
    )
    caller = subprocess.Popen(python(code), stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert caller.poll() is None
        time.sleep(0.01)
    caller.send_signal(signal.SIGINT)
    caller.wait(timeout=30)
    assert gone(int((tmp_path / "pid").read_text()))


def test_an_interrupt_while_it_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "600"], timeout_s=60)
    assert gone(started[0])


def test_a_child_that_holds_the_pipe_does_not_hold_us() -> None:
    done = run(["sh", "-c", "sleep 600 & echo $!"], timeout_s=60)
    assert done.ok
    os.kill(int(done.output), signal.SIGKILL)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/usr/bin:/bin", "/usr/bin:/bin"),
        (".:/usr/bin", "/usr/bin"),
        (":/usr/bin", "/usr/bin"),
        ("/usr/bin:", "/usr/bin"),
        ("/usr/bin::/bin", "/usr/bin:/bin"),
        ("bin:../bin:~/bin:/bin", "/bin"),
        ("", None),
        (".", None),
    ],
)
@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"])
def test_search_paths_without_the_working_directory(name: str, path: str, kept: str | None) -> None:
    assert without_relative_entries({name: path, "X": ".:"}) == {
        "X": ".:",
        **({name: kept} if kept else {}),
    }


def test_library_paths_have_two_separators_and_a_word_of_their_own() -> None:
    found = without_relative_entries(
        {"LD_LIBRARY_PATH": "/a;.:$ORIGIN/lib:${ORIGIN}/../lib:$LIB/x"}
    )
    assert found == {"LD_LIBRARY_PATH": "/a:$ORIGIN/lib:${ORIGIN}/../lib"}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a program that another user left there."""
    place = tmp_path / "shared"
    (place / "bin").mkdir(parents=True)
    for folder in (place, place / "bin"):
        for name in ("tool", "true"):
            (folder / name).write_text("#!/bin/sh\necho theirs\n")
            (folder / name).chmod(0o755)
    monkeypatch.chdir(place)
    return place


PATHS = [".:/usr/bin:/bin", ":/usr/bin:/bin", "/usr/bin:/bin:", "bin:/usr/bin:/bin", "", "."]


@pytest.mark.parametrize("path", PATHS)
def test_programs_of_the_working_directory_are_not_found(
    hostile: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    assert which("tool") is None
    assert which("true", path) in {"/usr/bin/true", "/bin/true", None}
    for cwd in (None, hostile):
        with pytest.raises(ToolMissing):
            run(["tool"], timeout_s=30, cwd=cwd)
        with pytest.raises(ToolMissing):
            run(["tool"], timeout_s=30, cwd=cwd, env={"PATH": path}, inherit_env=False)
        done = run(["sh", "-c", "true; tool"], timeout_s=30, cwd=cwd)
        assert (done.code, "theirs" in done.output) == (127, False)


def test_a_program_that_is_named_by_its_path_is_run(hostile: Path) -> None:
    assert run(["./tool"], timeout_s=30, apart=True).stdout == "theirs\n"
    assert run([str(hostile / "tool")], timeout_s=30, apart=True).stdout == "theirs\n"


@pytest.mark.parametrize("path", [":", ".", "", "/nonexistent:"])
def test_modules_of_the_working_directory_are_not_imported(
    hostile: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hostile / "secrets.py").write_text("print('theirs')\n")
    (hostile / "main.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", path)
    script = hostile.parent / "script.py"
    script.write_text("import secrets; print(secrets.token_hex)\n")
    done = run([sys.executable, str(script)], timeout_s=30)
    assert "theirs" not in done.output
    assert "function" in done.output


def test_an_environment_of_its_own_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    assert environment({"A": "1", "B": None}, inherit=False) == {"A": "1"}
    assert environment({"OURS": None}).get("OURS") is None
    assert environment()["OURS"] == "1"


# Which start programs that inherit what `environment` has cleaned, or run in a container or node.
CHILDREN = {
    "images/engines/sandbox/hold.py",
    "images/layers/interpreter.py",  # the same variables by another way
    "provision/build/source/inside.py",
    "provision/fleet/nodes/kubernetes_call.py",
    "provision/fleet/nodes/ray_driver.py",
}


def test_every_program_is_searched_and_started_in_the_same_way() -> None:
    searching, starting = set(), set()
    for room in ("images", "provision"):
        for file in (ROOT / room).rglob("*.py"):
            name, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
            if re.search(r"\bshutil\.which\(", text):
                searching.add(name)
            for call in re.finditer(r"\bsubprocess\.(run|Popen|check_output)\((?s:.{,600})", text):
                if not re.search(r"\benv=(env|environment\()", call[0]):
                    starting.add(name)
    seam = {"images/system/process.py"}
    by_folder = {"images/engines/buildkit.py"}  # each absolute directory of PATH
    assert searching - CHILDREN == seam | by_folder
    assert starting - CHILDREN == set()
