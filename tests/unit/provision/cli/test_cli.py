"""The command line: bad input is refused with a way out, whatever it is, and nothing is left."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.system.interruption import ENDING
from provision.cli import main as cli
from provision.cli.commands import lock
from provision.cli.parser import build_parser
from provision.output.console import Console
from provision.version import VERSION
from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.local_index import LocalIndex
from tests.kit.programs import run_program

IMPORTS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
H100 = '{"driver": "535.104.05", "arch": "x86_64", "gpus": [{"name": "NVIDIA H100 80GB HBM3"}]}'
RTX = '{"driver": "515.65.01", "arch": "x86_64", "gpus": [{"name": "NVIDIA GeForce RTX 3090"}]}'
COMMANDS = ("plan", "lock", "build")
LONG = "9" * 10_000


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory on a machine without engine; files for the tests beside it."""
    (tmp_path / "files").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "files" / "h100.json").write_text(H100)
    (tmp_path / "files" / "rtx.json").write_text(RTX)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@contextlib.contextmanager
def streams(stdin: str) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield out, err
    finally:
        sys.stdin = before


def main(*words: str, stdin: str = RTX) -> Said:
    """The command, in this process."""
    with streams(stdin) as (out, err):
        try:
            code = int(cli.main(words))
        except SystemExit as end:  # --help and --version
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def command(*words: str | bytes, **changes: Any) -> subprocess.CompletedProcess[bytes]:
    """The real command, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": IMPORTS, **changes.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "provision", *words],
        env=environment,
        check=False,
        timeout=120,
        **{"capture_output": "stdout" not in changes, **changes},
    )


def python(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """This Python, which imports our packages."""
    env = {**os.environ, "PYTHONPATH": IMPORTS, **env}
    return run_program([sys.executable, *words], cwd=cwd, env=env)


def is_a_refusal(said: Said, code: int, here: Path) -> None:
    """What holds for every failing command."""
    assert said.code == code, said
    assert "Traceback" not in said.out + said.err
    assert "fix:" in said.err
    assert len(said.err) < 1500
    assert all(c.isprintable() or c == "\n" for c in said.err)
    assert list((here / "work").iterdir()) == []
    assert list((here / "tmp").iterdir()) == []


# --- words that cannot be understood ----------------------------------------------------------

BAD_WORDS = [
    pytest.param(["--cuda", "11.77x"], "--cuda '11.77x' is not a CUDA version",
                 id="a letter too many"),
    pytest.param(["--cuda", "11.77"], "There is no CUDA 11.77", id="a CUDA that never was"),
    pytest.param(["--cuda=-11.7"], "is not a CUDA version", id="a negative CUDA"),
    pytest.param(["--cuda", "-11.7"], "is not a CUDA version",
                 id="a negative CUDA as its own word"),
    pytest.param(["--cuda", "\x1b[2J"], "'?[2J' is not a CUDA version", id="a terminal's command"),
    pytest.param(["--cuda"], "argument --cuda: expected one argument", id="a value left out"),
    pytest.param(["--framework", "caffe"], "--framework 'caffe'", id="an unknown framework"),
    pytest.param(["--framework", "PyTroch"], "Did you mean pytorch?", id="a framework mistyped"),
    pytest.param(["--flavour", "vanilla"], "--flavour 'vanilla'", id="an unknown flavour"),
    pytest.param(["--framework-version", ">=2,,<"], "is not a version specifier",
                 id="half a range"),
    pytest.param(["--python", "3.11.4"], "--python '3.11.4'", id="a patch release of Python"),
    pytest.param(["--with", "a b"], "--with 'a b' is not a valid requirement",
                 id="two words for a package"),
    pytest.param(["--with", "x @ https://me:word@e.example/x-1.tar.gz"],
                 "'x @ https://e.example/x-1.tar.gz' names a URL that is not a wheel's",
                 id="a URL of a source, with a login"),
    pytest.param(["--with", 'x; os_name == "a\n--index-url http://e.example"'],
                 "is not a valid requirement", id="a second line for the installer"),
    pytest.param(["--gpu", "RTX 4099"], "Did you mean NVIDIA GeForce RTX 4090",
                 id="a GPU misspelt"),
    pytest.param(["--gpu", ""], "--gpu '' is not in the catalog", id="an empty GPU"),
    pytest.param(["--gpu", "K80\x1b[31m" * 9], "is not in the catalog", id="a GPU in colour"),
    pytest.param(["--driver", "515.65.01 "], "--driver '515.65.01 '", id="a driver and a blank"),
    pytest.param(["--base", "Python:3.11"], "is not a valid image reference",
                 id="capitals in a base"),
    pytest.param(["--base", "x@sha256:12"], "is not a valid image reference", id="half a digest"),
    pytest.param(["--index", "ftp://e.example"], "--index is not an http", id="another scheme"),
    pytest.param(["--ca-bundle", "missing.pem"], "no such file", id="certificates not there"),
    pytest.param(["--ca-bundle", "."], "Is a directory", id="certificates in a directory"),
    pytest.param(["--ca-bundle", "../files/rtx.json"], "holds no PEM", id="certificates in JSON"),
    pytest.param(["--ca-bundle", "/dev/zero"], "holds no PEM", id="an endless file"),
    pytest.param(["--host", "-", "--host", "-"], "stdin can be used only once", id="stdin twice"),
    pytest.param(["--bogus"], "unrecognized arguments: --bogus", id="an unknown option"),
    pytest.param(["--cud", "11.7"], "unrecognized arguments", id="an option cut short"),
    pytest.param(["one", "word"], "unrecognized arguments", id="words of their own"),
    pytest.param(["x", "x" * 10_000], "unrecognized arguments", id="an endless word"),
    pytest.param(["x", "\x1b[2J"], "?[2J", id="a word in colour"),
]  # fmt: skip
BAD_LOCK_WORDS = [
    pytest.param(["--output", "x.txt"], "'x.txt': a lock must be named", id="another name"),
    pytest.param(["--output", "../files/pylock.toml"], "it is a directory", id="a directory"),
    pytest.param(
        ["--output", f"{LONG}/pylock.toml"], "there is no directory", id="an endless path"
    ),
]
BAD_BUILD_WORDS = [
    pytest.param(["--tag", "Team/Torch"], "upper-case letters", id="capitals in a tag"),
    pytest.param(["--tag", "a b"], "does not name an image", id="a blank in a tag"),
    pytest.param(["--tag", ""], "does not name an image", id="an empty tag"),
    pytest.param(["--tag", "a:b:c"], "does not name an image", id="a colon too many in a tag"),
    pytest.param(["--tag", "x" * 10_000], "is too long", id="an endless tag"),
    pytest.param(["--tag", f"a@sha256:{'0' * 64}"], "not a digest", id="a digest for a tag"),
    pytest.param(["--builder", "kaniko"], "--builder 'kaniko'", id="an unknown builder"),
    pytest.param(["--lazy=xz", "--push", "r.example/t"], "--lazy 'xz'", id="an unknown lazy"),
    pytest.param(["--lazy"], "Add --push REF or --output DIR", id="lazy for an engine"),
    pytest.param(["--lazy", "--output", "x", "--builder", "docker"], "remove --builder docker",
                 id="lazy by an engine"),
    pytest.param(["--lazy", "--output", "x.sqfs"], "a single file", id="a lazy squashfs"),
    pytest.param(["--lazy", "--output", "x.tar"], "a single file", id="a lazy archive"),
    pytest.param(["--lazy", "--push", "r.example/t", "--compression", "gzip"],
                 "Remove --compression gzip", id="lazy, and compressed otherwise"),
    pytest.param(["--lazy", "--push", "r.example/t", "--base",
                  "nvidia/cuda:11.7.1-base-ubuntu22.04"], "--base bootstrap",
                 id="lazy on a base that needs an engine"),
    pytest.param(
        ["--compression=zstd", "--push=r.example/t", "--base=nvidia/cuda:11.7.1-base-ubuntu22.04"],
        "does not write layers compressed by zstd", id="zstd on a base that needs an engine"),
    pytest.param(["--level", "extreme"], "--level 'extreme'", id="an unknown level"),
    pytest.param(["--level", ""], "--level ''", id="an empty level"),
    pytest.param(["--require", "gpu,$(id)"], "no check '$(id)'", id="a shell for a check"),
    pytest.param(["--require", "x" * 100], "there is no check", id="an endless check"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), BAD_LOCK_WORDS)
def test_bad_words_for_lock_are_refused(here: Path, words: list[str], message: str) -> None:
    (here / "files" / "pylock.toml").mkdir()
    said = main("lock", "--cuda", "11.7", *words)
    is_a_refusal(said, 2, here)
    assert message in said.err


@pytest.mark.parametrize(("words", "message"), BAD_BUILD_WORDS)
def test_bad_words_for_build_are_refused(here: Path, words: list[str], message: str) -> None:
    said = main("build", "--cuda", "11.7", "--dry-run", *words)
    is_a_refusal(said, 2, here)
    assert message in said.err


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize(("words", "message"), BAD_WORDS)
def test_bad_words_are_refused(here: Path, verb: str, words: list[str], message: str) -> None:
    """Invalid values of each kind are in tests/unit/provision/model/test_request.py."""
    said = main(verb, "--json", *words)
    is_a_refusal(said, 2, here)
    assert message in said.err
    data = json.loads(said.out)
    assert set(data) == {"schema", "error"} | ({"verdict"} if verb == "plan" else set())
    assert set(data["error"]) == {"code", "message", "fix"}
    assert all(data["error"].values())
    assert message.replace("?", "") in data["error"]["message"].replace("?", "")


@cases(
    "words message",
    ("an unknown format", ["poetry"], "--format 'poetry'"),
    ("an empty format", [""], "--format ''"),
    ("JSON, too", ["uv", "--json"], "--format and --json both"),
    ("a matrix, too", ["pip", "--matrix"], "--format and --matrix both"),
    ("reasons, too", ["conda", "--explain"], "--format and --explain both"),
)
def test_a_format_is_the_only_output(here: Path, words: list[str], message: str) -> None:
    said = main("plan", "--format", *words)
    is_a_refusal(said, 2, here)
    assert message in said.err


@cases(
    "words",
    ("an empty word", [""]),
    ("a command misspelt", ["bild"]),
    ("an option before the command", ["--json"]),
    ("an endless command", ["x" * 10_000]),
    ("an image left out", ["verify"]),
    ("an image that is none", ["verify", "A b"]),
    ("a level that is none", ["verify", "a:1", "--level", "x"]),
    ("an option of another command", ["detect", "--cuda", "11.7"]),
)
def test_what_is_no_command_is_refused(here: Path, words: list[str]) -> None:
    is_a_refusal(main(*words), 2, here)


def test_an_ambiguous_gpu_is_never_guessed(here: Path) -> None:
    from provision.catalog.loading import load

    names = {row.name for row in load().gpus}
    words = {word for name in names for word in name.split()}
    ambiguous = sorted(w for w in words if load().find_gpu(w).status == "ambiguous")
    assert ambiguous
    said = main("plan", "--gpu", ambiguous[0])
    is_a_refusal(said, 2, here)
    assert "is ambiguous" in said.err
    found = {row.compute_capability for row in load().find_gpu(ambiguous[0]).rows}
    assert all(f"--gpu {major}.{minor}" in said.err for major, minor in found)


# --- host files -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", COMMANDS)
@cases(
    "content message",
    ("not there", None, "no host file"),
    ("empty", b"", "is empty"),
    ("half of it", b"{", "is not valid JSON"),
    ("a program", b"\x7fELF\x00\xff\xfe", "is not UTF-8"),
)
def test_bad_host_files_are_refused(
    here: Path, verb: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (here / "files" / "host.json").write_bytes(content)
    said = main(verb, "--cuda", "11.7", "--json", "--host", "../files/host.json")
    is_a_refusal(said, 2, here)
    assert message in said.err
    assert json.loads(said.out)["error"]["code"] == "bad-host-file"


def test_a_directory_without_host_files_is_no_host(here: Path) -> None:
    (here / "work" / "none").mkdir()
    said = main("plan", "--host", "none")
    (here / "work" / "none").rmdir()
    is_a_refusal(said, 2, here)
    assert "has no host file" in said.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_host_file_that_may_not_be_read_is_refused(here: Path) -> None:
    (here / "files" / "rtx.json").chmod(0)
    said = main("plan", "--host", "../files/rtx.json")
    is_a_refusal(said, 2, here)
    assert "cannot be read" in said.err


def test_one_bad_host_file_among_good_ones_is_named(here: Path) -> None:
    said = main("plan", "--host", "../files/rtx.json", "--host", "../files/none.json")
    is_a_refusal(said, 2, here)
    assert "There is no host file ../files/none.json" in said.err


# --- locks ------------------------------------------------------------------------------------


@cases(
    "content message",
    ("not there", None, "There is no lock"),
    ("no TOML", b"not = [toml", "is not a valid pylock.toml"),
    ("no text", b"\xff\xfe\x00", "is not a text file"),
    ("empty", b"", "is not a valid pylock.toml"),
    ("another tool's", b'lock-version = "1.0"\ncreated-by = "uv"\npackages = []',
     "another tool made it"),
)  # fmt: skip
def test_bad_locks_are_refused(here: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (here / "files" / "pylock.toml").write_bytes(content)
    said = main("build", "--json", "--lock", "../files/pylock.toml")
    is_a_refusal(said, 2, here)
    assert message in said.err
    assert "provision lock" in said.err or "pylock.toml" in said.err
    assert json.loads(said.out)["error"]["code"] == "bad-lock-file"


@cases(
    "words",
    ("a CUDA", ["--cuda", "11.7"]),
    ("a version", ["--framework-version", "2"]),
    ("a Python", ["--python", "3.11"]),
    ("a companion", ["--with", "torchvision"]),
    ("a base", ["--base", "bootstrap"]),
    ("a host", ["--host", "-"]),
    ("a driver", ["--driver", "515.65.01"]),
    ("a GPU", ["--gpu", "8.6"]),
)
def test_what_a_lock_has_decided_is_not_silently_ignored(here: Path, words: list[str]) -> None:
    said = main("build", "--lock", "pylock.toml", *words)
    is_a_refusal(said, 2, here)
    assert words[0] in said.err


# --- nothing fits, nothing answers ------------------------------------------------------------


@pytest.mark.parametrize("verb", COMMANDS)
def test_nothing_compatible_is_its_own_exit_code(here: Path, verb: str) -> None:
    said = main(verb, "--cuda", "11.7", "--json", "--host", "../files/h100.json")
    assert said.code == 3
    data = json.loads(said.out)
    assert data["error"]["code"] == "no-gpu-code"
    assert "sm_86" in data["error"]["message"]
    assert data["error"]["fix"]
    assert list((here / "work").iterdir()) == []


@pytest.mark.parametrize("verb", COMMANDS)
def test_nothing_compatible_is_said_with_what_works(here: Path, verb: str) -> None:
    said = main(verb, "--cuda", "11.7", "--host", "../files/h100.json")
    assert said.code == 3
    assert "--cuda 11.8" in said.out + said.err
    assert re_fix(said.out + said.err)
    assert list((here / "work").iterdir()) == []


def test_a_format_prints_nothing_to_run_if_nothing_fits(here: Path) -> None:
    said = main("plan", "--cuda", "11.7", "--host", "../files/h100.json", "--format", "pip")
    is_a_refusal(said, 3, here)
    assert said.out == ""


def test_a_format_s_warnings_are_not_in_what_is_run(here: Path) -> None:
    said = main("plan", "--host", "../files/rtx.json", "--format", "uv")
    assert (said.code, "warning: Minor-version" in said.err) == (0, True)
    assert "Minor-version" not in said.out
    assert "uv venv --python" in said.out
    assert list((here / "work").iterdir()) == []


def re_fix(text: str) -> bool:
    return any(line.split()[:1] in (["fix"], ["fix:"]) for line in text.splitlines())


@cases(
    "words",
    ("build", ["build", "--cuda", "11.7", "--host", "../files/rtx.json", "--builder", "docker"]),
    ("verify", ["verify", "team/torch:1"]),
)
def test_without_an_engine_it_is_said_how_to_get_one(here: Path, words: list[str]) -> None:
    done = command(*words, "--json")
    assert done.returncode == 5, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "no-engine"
    assert "unix:///nonexistent" in error["message"]
    assert "docker" in error["fix"]
    assert b"Traceback" not in done.stderr
    assert error["fix"].splitlines()[0].encode() in done.stderr
    assert list((here / "work").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every directory")
def test_directories_of_another_user_are_passed_over(here: Path) -> None:
    locked = here / "files" / "root"
    locked.mkdir(mode=0)
    env = {"PATH": f"{locked}:{locked}/bin:{os.environ['PATH']}", "HOME": str(locked)}
    try:
        assert command("detect", "--json", env=env).returncode == 0
        words = ["build", "--cuda", "11.7", "--host", "../files/rtx.json", "--builder", "docker"]
        built = command(*words, env={**env, "DOCKER_HOST": "unix:///nonexistent"})
        assert built.returncode == 5, built.stderr
    finally:
        locked.chmod(0o700)


# --- any words --------------------------------------------------------------------------------

OPTIONS = sorted(
    {
        option
        for verb in build_parser()._subparsers._group_actions[0].choices.values()  # type: ignore[union-attr]
        for option in verb._option_string_actions
    }
    - {"--host"}
)
GOOD = ["11.7", "cu117", "8.6", "3.11", "2.0.1", "pytorch", "devel", "torchvision", "bootstrap"]
WORD = st.one_of(
    st.sampled_from(OPTIONS),
    st.sampled_from(GOOD),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
    st.builds("{}={}".format, st.sampled_from(OPTIONS), st.sampled_from(GOOD)),
)


@settings(max_examples=150)
@given(st.lists(WORD, max_size=6))
def test_no_words_are_a_bug(words: list[str]) -> None:
    said = main("plan", *words, "--host", "-")
    assert said.code in {0, 2, 3}, said
    assert "Traceback" not in said.out + said.err


@settings(max_examples=50)
@given(st.lists(WORD, min_size=1, max_size=6))
def test_no_first_word_is_a_bug(words: list[str]) -> None:
    said = main("--bogus", *words)
    assert said.code in {0, 2}, said


# --- the real command -------------------------------------------------------------------------


def test_the_real_command_refuses_and_leaves_nothing(here: Path) -> None:
    for words in (["plan", "--cuda", "latest"], ["build", "--tag", "A"], ["lock", "--output", "x"]):
        done = command(*words)
        is_a_refusal(Said(done.returncode, "", done.stderr.decode()), 2, here)
        assert done.stdout == b""


def test_a_name_that_is_no_utf_8_is_told_as_it_can_be(here: Path) -> None:
    done = command(b"plan", b"--json", b"--host", b"a\xff\x1b[31m.json")
    assert done.returncode == 2
    assert b"\x1b" not in done.stdout + done.stderr
    assert "no host file" in json.loads(done.stdout)["error"]["message"]
    assert b"Traceback" not in done.stderr
    assert list((here / "work").iterdir()) == []


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@cases(
    "words code",
    ("a plan", "plan --cuda 11.7 --host ../files/rtx.json --json", 0),
    ("a refusal", "plan --cuda 11.7 --host ../files/h100.json", 3),
)
def test_a_reader_that_has_gone_changes_no_exit_code(
    here: Path, words: str, code: int, *, buffered: bool
) -> None:
    del here
    read, write = os.pipe()
    os.close(read)
    try:
        env = {} if buffered else {"PYTHONUNBUFFERED": "1"}
        done = command(*words.split(), stdout=write, stderr=subprocess.PIPE, env=env)
    finally:
        os.close(write)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
    assert b"bug" not in done.stderr


def test_nobody_reading_along_changes_no_result(here: Path) -> None:
    del here
    read, write = os.pipe()
    os.close(read)
    try:
        words = ["lock", "--json", "--cuda", "11.7", "--host", "../files/h100.json"]
        done = command(*words, stdout=subprocess.PIPE, stderr=write)
    finally:
        os.close(write)
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "no-gpu-code"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@cases(
    "words code",
    ("a plan", "plan --cuda 11.7 --host ../files/rtx.json", 4),
    ("the help", "plan --help", 4),
    ("a refusal in JSON", "plan --cuda latest --json", 2),
)
def test_a_full_disk_under_stdout_is_said(
    here: Path, words: str, code: int, *, buffered: bool
) -> None:
    env = {} if buffered else {"PYTHONUNBUFFERED": "1"}
    with Path("/dev/full").open("wb") as full:
        done = command(*words.split(), stdout=full, stderr=subprocess.PIPE, env=env)
    text = done.stderr.decode()
    is_a_refusal(Said(done.returncode, "", text), code, here)
    assert "No space left on device" in text


@cases(
    "closed code",
    ("no stdout", ">&-", 0),
    ("no stderr", "2>&-", 0),
    ("no stream at all", "<&- >&- 2>&-", 2),
)
def test_closed_streams_are_no_bug(here: Path, closed: str, code: int) -> None:
    host = "-" if "<" in closed else "../files/rtx.json"
    line = f"{shlex.quote(sys.executable)} -m provision plan --cuda 11.7 --host {host} {closed}"
    env = {**os.environ, "PYTHONPATH": IMPORTS}
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, check=False)
    assert done.returncode == code
    assert done.stderr == b""
    assert list((here / "tmp").iterdir()) == []


def test_no_place_for_temporary_files_is_the_host_s_fault(here: Path) -> None:
    # TMPDIR alone does not do: Python goes on to /tmp, /var/tmp and the working directory
    code = (
        "import sys, tempfile; from provision.cli import main as cli\n"
        "tempfile._candidate_tempdir_list = lambda: ['/nonexistent']\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    with LocalIndex().serving() as server:
        words = ["lock", "--cuda", "11.7", "--host", "../files/rtx.json"]
        words += ["--base", f"127.0.0.1:{server.port}/python:3.11"]
        done = python("-c", code, *words, NO_PROXY="127.0.0.1")
    assert done.returncode == 4, done.stderr
    assert "TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((here / "work").iterdir()) == []


# --- help -------------------------------------------------------------------------------------


def test_every_option_has_its_help() -> None:
    verbs: Any = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    verbs = {**verbs, **verbs["catalog"]._subparsers._group_actions[0].choices}
    bare = [
        f"{name} {action.option_strings or action.dest}"
        for name, verb in verbs.items()
        for action in verb._actions
        if not action.help and action.metavar != "ACTION"
    ]
    assert bare == []


def test_the_version_is_said() -> None:
    said = main("--version")
    assert (said.code, said.out.split()[-1]) == (0, VERSION)


# --- a dry run, an interrupt ------------------------------------------------------------------


def dry_run(*prefix: str, builder: str = "docker") -> subprocess.CompletedProcess[str]:
    words = f"build --dry-run --json --cuda 11.7 --host ../files/rtx.json --builder {builder}"
    argv = [*prefix, sys.executable, "-m", "provision", *words.split()]
    return run_program(argv, env={**os.environ, "PYTHONPATH": IMPORTS})


def test_a_dry_run_prints_the_builder_s_command(here: Path) -> None:
    done = dry_run()
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    argv = shlex.split(account["command"])
    assert "build" in argv
    assert argv[argv.index("--file") + 1].endswith("Dockerfile.cuda")
    assert f"BASE={account['plan']['base']['reference']}" in argv
    assert account["image"]["tag"] == "gpu-provision:pytorch2.0.1-cu117"
    assert (account["verify"], account["error"]) == (None, None)
    assert list((here / "work").iterdir()) == []


def test_a_dry_run_without_an_engine_runs_nothing_and_says_so(here: Path) -> None:
    done = dry_run(builder="auto")
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["builder"]["name"] == "oci"
    assert account["command"].startswith("would build gpu-provision:pytorch2.0.1-cu117")
    assert list((here / "work").iterdir()) == []


def test_a_dry_run_needs_no_network(here: Path) -> None:
    del here
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-n", "true"], check=False).returncode:
        need.lacking("no network can be taken away here", "sudo -E ./run test")
    assert dry_run(unshare, "-n").stdout == dry_run().stdout


@cases(
    "number",
    ("Ctrl-C", signal.SIGINT),
    ("a terminal that is closed", signal.SIGHUP),
    ("a batch system's warning", signal.SIGUSR1),
)
def test_an_interrupted_lock_leaves_nothing(here: Path, number: signal.Signals) -> None:
    with LocalIndex().serving() as server:
        words = ["lock", "--cuda", "11.7", "--host", "../files/rtx.json"]
        words += ["--base", f"127.0.0.1:{server.port}/python:3.11", "--index", server.url("hang")]
        running = subprocess.Popen(
            [sys.executable, "-m", "provision", *words],
            env={
                **os.environ,
                "PYTHONPATH": IMPORTS,
                "UV_CACHE_DIR": str(here / "cache"),
                "UV_HTTP_TIMEOUT": "60",
                "NO_PROXY": "127.0.0.1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with running:
            try:
                while not server.hanging.wait(timeout=0.05):
                    assert running.poll() is None, running.communicate()
                running.send_signal(number)
                out, err = running.communicate(timeout=60)
            finally:
                running.kill()
    assert running.returncode == 128 + number, err
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert out == b""
    assert list((here / "work").iterdir()) == []
    assert list((here / "tmp").iterdir()) == []


SIGNALLED = """
import os, signal, sys
from provision.cli import main as cli
from provision.model import facts
from images.system.interruption import ENDING, uninterrupted
from images.system.scratch import scratch_directory

def signalled(*_):
    with scratch_directory():
        with uninterrupted():
            signal.raise_signal(number)
            sys.stdout.write("whole ")
            sys.stdout.flush()

facts.read_host_file = signalled
sys.argv = ["provision", "plan", "--host", "x"]
for ignored in (False, True):
    for number in ENDING:
        child = os.fork()
        if child == 0:
            if ignored:
                signal.signal(number, signal.SIG_IGN)
            cli.run()
        print(number.name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_every_signal_that_would_end_us_lets_us_clean_up_first(here: Path) -> None:
    done = python("-c", SIGNALLED)
    lines = done.stdout.splitlines()
    assert lines[: len(ENDING)] == [f"whole {one.name} {128 + one}" for one in ENDING]
    for one, line in zip(ENDING, lines[len(ENDING) :], strict=True):
        # like nohup; the stand-in then returns no host file, which is a bug
        assert line == f"whole {one.name} 70"
    assert done.stderr.count("interrupted\n") == len(ENDING)
    assert "Traceback" not in done.stderr
    assert not list((here / "tmp").glob("gpu-provision-run-*"))


def test_no_signal_that_ends_a_program_by_default_is_forgotten() -> None:
    """https://man7.org/linux/man-pages/man7/signal.7.html: all with "Term" or "Core" but those that
    cannot be handled, that a fault of the program itself raises, or that Python ignores.
    """
    own = {"SIGABRT", "SIGIOT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
    harmless = {"SIGCHLD", "SIGCLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTKFLT"}
    stops = {"SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"}
    ignored = {"SIGPIPE", "SIGXFSZ"}
    known = {one.name for one in signal.Signals if not one.name.startswith("SIGRT")}
    assert {one.name for one in ENDING} == known - own - harmless - stops - ignored - {"SIGKILL"}


def test_what_a_killed_lock_left_goes_with_the_next(here: Path) -> None:
    left = here / "tmp/gpu-provision-run-left"
    others = [here / "tmp/gpu-provision-run-young", here / "tmp/somebody-elses"]
    for folder in (left, *others):
        folder.mkdir()
        (folder / "netrc").write_text("a secret")
    in_use = here / "tmp/gpu-provision-run-used"
    in_use.mkdir()
    descriptor = os.open(in_use, os.O_RDONLY)
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from images.system import scratch\n"
        "late = time.time() + 3600\n"
        "if sys.argv[1] == 'later': scratch.time.time = lambda: late\n"
        "with scratch.scratch_directory() as made:\n"
        "    print(sorted(p.name for p in made.parent.iterdir() if p != made))\n"
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        seen = [
            python("-c", code, when, TMPDIR=str(here / "tmp")).stdout
            for when in ("at once", "later")
        ]
    finally:
        os.close(descriptor)
    assert seen[0].count("gpu-provision-run-") == 3
    assert seen[1] == "['gpu-provision-run-used', 'somebody-elses']\n"


@cases(
    "error",
    ("Python's own", "MemoryError()"),
    ("no memory for a process", "OSError(errno.ENOMEM, 'x')"),
    ("too many processes", "OSError(errno.EAGAIN, 'x')"),
    ("too many threads", 'RuntimeError("can\'t start new thread")'),
    ("none for a library", "ImportError('x.so: failed to map segment')"),
    ("none to begin with a library", "ImportError('x.so: cannot create shared object descriptor')"),
)
def test_a_machine_without_memory_is_no_bug(here: Path, error: str) -> None:
    code = (
        "import errno, resource, sys\n"
        "from provision.catalog import loading\nfrom provision.cli import main as cli\n"
        f"def load(*_, **__): raise {error}\n"
        "loading.load = load\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))\n"
        "sys.exit(cli.main(['plan', '--host', '../files/rtx.json']))\n"
    )
    done = python("-c", code)
    assert done.returncode == 4, done.stderr
    assert "no more memory" in done.stderr
    assert "ulimit -v is 8388608" in done.stderr
    assert list((here / "tmp").iterdir()) == []


def test_little_memory_is_a_sentence_at_every_point(here: Path) -> None:
    """From where Python itself hardly starts to where the command works."""
    ends = set()
    for megabytes in range(16, 80, 6):
        done = subprocess.run(
            [sys.executable, "-m", "provision", "plan", "--host", "../files/rtx.json"],
            env={**os.environ, "PYTHONPATH": IMPORTS},
            preexec_fn=partial(limit_memory, megabytes << 20),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode < 0 or ("provision" not in done.stderr and done.returncode == 1):
            continue  # Python itself did not start
        ends.add(done.returncode)
        assert "Traceback" not in done.stderr, (megabytes, done.stderr)
        assert done.returncode == 0 or "fix: " in done.stderr, (megabytes, done)
    assert 4 in ends
    assert ends <= {0, 4}
    assert list((here / "tmp").iterdir()) == []


def limit_memory(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def test_too_many_open_files_are_no_bug(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del here

    def crowded(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "some.file")

    monkeypatch.setattr("provision.model.facts.read_host_file", crowded)
    said = main("plan", "--host", "x")
    assert said.code == 4
    assert "Too many open files (ulimit -n is " in said.err
    assert "fix: Allow more: ulimit -n 4096" in said.err


@cases(
    "umask mode",
    ("where everybody may write", 0o000, 0o644),
    ("a group of one's own is left alone", 0o002, 0o664),
    ("a stricter one is left alone", 0o077, 0o600),
)
def test_nobody_else_may_write_to_what_is_made(tmp_path: Path, umask: int, mode: int) -> None:
    code = (
        "import os, sys\n"
        "from provision.cli import main as cli\n"
        "cli._keep_others_out()\n"
        "open(sys.argv[1], 'w').close()\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "made")]
    subprocess.run(argv, check=True, umask=umask, env={**os.environ, "PYTHONPATH": IMPORTS})
    assert (tmp_path / "made").stat().st_mode & 0o777 == mode


INTERRUPTED_WITH_A_LOCK_HELD = """
import sys, threading
from provision.cli import main as cli
from provision.model import facts

cli.LEAVE_WITHIN_S = 0.2
lock = threading.Lock()

class Pool:
    def __del__(self):
        lock.acquire()

def interrupted(*_):
    pool = Pool()
    lock.acquire()
    raise KeyboardInterrupt

facts.read_host_file = interrupted
sys.argv = ["provision", "plan", "--host", "x"]
cli.run()
"""


@pytest.mark.usefixtures("here")
def test_an_interrupted_library_that_holds_a_lock_cannot_keep_us() -> None:
    done = python("-c", INTERRUPTED_WITH_A_LOCK_HELD)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines() == ["interrupted"]


def test_a_bug_of_ours_is_a_report_and_no_wall(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*_: object) -> None:
        raise ZeroDivisionError("secret thing")

    monkeypatch.setattr("provision.model.facts.read_host_file", burst)
    said = main("plan", "--host", "x")
    assert said.code == 70
    assert "Traceback" not in said.err
    (report,) = (here / "tmp").iterdir()
    assert str(report) in said.err
    assert "ZeroDivisionError" in report.read_text()
    assert list((here / "work").iterdir()) == []


# --- what is told of a job, and where ------------------------------------------------------------

JOB = ["build", "--cuda", "11.7", "--dry-run", "--host", "../files/rtx.json"]


@pytest.mark.usefixtures("here")
def test_in_a_log_a_stage_is_one_line() -> None:
    done = command(*JOB)
    lines = re.sub(rb" +\d+\.\d s  ", b" T ", done.stderr).decode().splitlines()
    assert done.returncode == 0
    assert lines[:2] == [
        "detect T NVIDIA GeForce RTX 3090, driver 515.65.01",
        "plan T PyTorch 2.0.1 for CUDA 11.7, Python 3.10: runs",
    ]


@pytest.mark.usefixtures("here")
def test_a_terminal_shows_a_stage_as_it_begins() -> None:
    terminal, theirs = need.terminal()
    env = {"TERM": "xterm", "NO_COLOR": "1"}
    done = command(*JOB, stderr=theirs, stdout=subprocess.DEVNULL, env=env)
    os.close(theirs)
    seen = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    assert done.returncode == 0
    assert seen[0] == "detect   reading the host"
    assert "plan     finding a compatible combination" in seen


# --- in a project that has folders of our names -------------------------------------------------


INTERRUPTED_WHILE_LOADING = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "provision.cli.parser":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from provision.__main__ import run
run()
"""


@pytest.mark.parametrize("name", ["images", "verify"])
def test_a_foreign_package_of_our_names_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('run')")
    words = ("-c", "from provision.__main__ import run; run()", "doctor", "--json")
    done = python(*words, cwd=ROOT.parent, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout) == (4, "")
    hidden = f"error: {tmp_path}/{name} hides the package {name} of gpu-provision."
    assert done.stderr.splitlines()[0] == hidden


def test_an_interrupt_while_the_modules_load_has_no_traceback() -> None:
    done = python("-c", INTERRUPTED_WHILE_LOADING, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@cases(
    "words",
    ("plan", ("plan", "--driver", "580.95.05", "--gpu", "H100")),
    ("catalog", ("catalog", "show", "cuda", "11.7")),
    ("doctor", ("doctor", "explain", "gsp-boot-failed")),
    ("detect", ("detect", "--json")),
    ("store", ("store", "du")),
    ("build, which asks the suite for its names",
     ("build", "--gpu", "H100", "--driver", "580.95.05", "--require", "no.such.check")),
    ("a file that is checked", ("doctor", "Dockerfile")),
)  # fmt: skip
def test_a_project_s_own_folders_are_not_imported(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The command as an installer writes it: a script elsewhere, the packages in site-packages."""
    script = tmp_path / "bin" / "provision"
    script.parent.mkdir()
    script.write_text("from provision.__main__ import run\nrun()\n")
    project = tmp_path / "project"
    for name in ("provision", "images", "verify"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise SystemExit('a folder of the project')")
    (project / "Dockerfile").write_text("FROM python:3.11\n")
    done = python(str(script), *words, cwd=project, PYTHONPATH=str(ROOT))
    assert "a folder of the project" not in done.stdout + done.stderr
    assert done.returncode in {0, 2}, done.stderr
    assert done.stdout or "no.such.check" in done.stderr


@pytest.mark.parametrize(
    ("name", "warned"), [("pylock.gpu.toml", False), ("gpu.toml", True), ("pylock.a.b.toml", True)]
)
def test_a_lock_may_have_a_name_that_installers_do_not_take(
    name: str, *, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Console, "warn", lambda _, message, fix: said.append(message + fix))
    lock._check_lock_name(name, Console())
    assert [name in text and "build --lock" in text for text in said] == [True] * warned
