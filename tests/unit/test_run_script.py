"""./run: what it says and where it stops, on machines that lack something.

Everything runs on a copy, so that this checkout's own .venv is left alone; `python` and `pip` are
scripts that say what they were asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Says which version it is, and makes a virtual environment with a python of the same kind.
PYTHON = """#!/bin/sh
echo "python $*" >>"$LOG"
case "$*" in
-V) echo "Python {version}" ;;
*version_info*) exit {too_old} ;;
*ensurepip*) exit {no_ensurepip} ;;
"-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\necho "in $(pwd): tool $*"\\n' >"$3/bin/tool"
    chmod 755 "$3/bin/tool" ;;
"-m pip install"*) exit {pip} ;;
esac
"""


class Checkout:
    """A copy of what ./run needs, and a PATH with a python of our making."""

    def __init__(self, root: Path) -> None:
        self.root = root / "a checkout"
        self.bin = root / "bin"
        self.elsewhere = root / "elsewhere"
        self.log = root / "log"
        for directory in (self.root, self.bin, self.elsewhere):
            directory.mkdir()
        for name in ("run", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)
        for name in ("requirements.txt", "requirements-dev.txt"):
            (self.root / name).write_text("# none\n")
        self.python()

    def python(self, version: str = "3.11.2", *, ensurepip: bool = True, pip: int = 0) -> None:
        """Put a python of that version on PATH."""
        text = PYTHON.format(
            version=version,
            too_old=int(tuple(int(part) for part in version.split(".")) < (3, 10)),
            no_ensurepip=int(not ensurepip),
            pip=pip,
        )
        (self.bin / "python3").write_text(text)
        (self.bin / "python3").chmod(0o755)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """./run WORDS, called from another directory."""
        return subprocess.run(
            [str(self.root / "run"), *words],
            cwd=self.elsewhere,
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "HOME": str(self.root),
                "LOG": str(self.log),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "error:" in done.stderr
    assert "fix:" in done.stderr
    assert [word for word in words if word not in done.stderr] == []
    assert done.stdout == ""


def test_it_is_plain_sh() -> None:
    assert subprocess.run(["sh", "-n", ROOT / "run"], check=False).returncode == 0


def test_it_is_clean_by_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        if os.environ.get("CI") == "true":
            pytest.fail("shellcheck is not installed: apt-get install shellcheck")
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [shellcheck, "--shell=sh", ROOT / "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="no word"),
        pytest.param(["--help"], id="--help"),
        pytest.param(["-h"], id="-h"),
    ],
)
def test_help_needs_nothing(checkout: Checkout, words: list[str]) -> None:
    done = checkout.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "./run provision build --cuda 11.7" in done.stdout
    assert "./run --install-engine" in done.stdout
    assert "PYTHON names the interpreter" in done.stdout
    assert "#" not in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 100] == []
    assert checkout.asked() == []


@pytest.mark.parametrize("option", ["--bogus", "-x", "--", "--helpp"])
def test_an_unknown_option_is_refused(checkout: Checkout, option: str) -> None:
    refused(checkout.run(option, "provision"), 2, option, "./run --help")
    assert checkout.asked() == []


@pytest.mark.parametrize("version", ["3.9.18", "3.6.9", "2.7.18"])
def test_a_python_too_old_is_the_host_s_fault(checkout: Checkout, version: str) -> None:
    checkout.python(version)
    refused(
        checkout.run("provision", "plan"), 4, "3.10 or newer", f"Python {version}", "PYTHON=/path"
    )
    assert not (checkout.root / ".venv").exists()


def test_no_python_at_all_is_the_host_s_fault(checkout: Checkout) -> None:
    done = checkout.run("provision", PYTHON="/nonexistent/python")
    refused(done, 4, "/nonexistent/python is not there", "apt-get install python3")
    assert len(done.stderr.splitlines()) == 2


def test_a_python_that_does_not_start_is_the_host_s_fault(checkout: Checkout) -> None:
    (checkout.bin / "python3").write_text("#!/bin/sh\nexit 139\n")
    refused(checkout.run("provision"), 4, "python3 is broken")


def test_the_python_that_is_named_is_taken(checkout: Checkout) -> None:
    checkout.python("3.9.18")
    good = checkout.elsewhere / "python3.12"
    shutil.copy(checkout.bin / "python3", good)
    good.write_text(good.read_text().replace("exit 1 ;;", "exit 0 ;;", 1))
    done = checkout.run("tool", PYTHON=str(good))
    assert done.returncode == 0, done.stderr


def test_a_python_without_ensurepip_is_told_the_package(checkout: Checkout) -> None:
    checkout.python(ensurepip=False)
    refused(checkout.run("provision"), 5, "ensurepip", "apt-get install -y python3-venv")
    assert not (checkout.root / ".venv").exists()


def test_packages_that_cannot_be_installed_leave_no_stamp(checkout: Checkout) -> None:
    checkout.python(pip=1)
    refused(checkout.run("tool"), 5, "requirements.txt", "pip says why")
    assert list((checkout.root / ".venv").glob("*.stamp")) == []


def test_a_half_made_environment_is_made_anew(checkout: Checkout) -> None:
    left = checkout.root / ".venv" / "bin" / "python"
    left.parent.mkdir(parents=True)
    left.write_text("#!/bin/sh\nexit 1\n")
    left.chmod(0o755)
    done = checkout.run("tool")
    assert done.returncode == 0, done.stderr
    assert f"python -m venv {checkout.root}/.venv" in checkout.asked()


def test_packages_are_installed_by_hash_and_the_project_without_the_network(
    checkout: Checkout,
) -> None:
    assert checkout.run("tool").returncode == 0
    installs = [line for line in checkout.asked() if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--no-index" in installs[1]
    assert "--no-deps" in installs[1]


def test_the_second_time_nothing_is_set_up(checkout: Checkout) -> None:
    checkout.run("tool")
    before = checkout.asked()
    done = checkout.run("tool")
    assert done.stderr == ""
    assert checkout.asked()[len(before) :] == ["python -V"]


def test_other_requirements_are_installed_anew(checkout: Checkout) -> None:
    checkout.run("tool")
    before = len(checkout.asked())
    (checkout.root / "requirements.txt").write_text("# others\n")
    assert checkout.run("tool").returncode == 0
    assert [line for line in checkout.asked()[before:] if "pip install" in line]


def test_words_reach_the_command_as_they_are_in_the_caller_s_directory(checkout: Checkout) -> None:
    checkout.run("tool")
    done = checkout.run("tool", "a b", "../x.json", "$(id)", "")
    assert done.stdout == f"in {checkout.elsewhere}: tool a b ../x.json $(id) \n"


def test_the_exit_code_is_the_command_s(checkout: Checkout) -> None:
    checkout.run("tool")
    failing = checkout.root / ".venv" / "bin" / "failing"
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o755)
    assert checkout.run("failing").returncode == 3


def test_set_up_speaks_on_stderr_only(checkout: Checkout) -> None:
    done = checkout.run("tool", "--json")
    assert done.stdout == f"in {checkout.elsewhere}: tool --json\n"
    assert "setup" in done.stderr


def test_developers_words_need_the_developers_packages(checkout: Checkout) -> None:
    for name in ("ruff", "mypy"):
        (checkout.bin / name).write_text(f'#!/bin/sh\necho "{name} $* in $(pwd)"\n')
        (checkout.bin / name).chmod(0o755)
    done = checkout.run("lint")
    assert done.returncode == 0, done.stderr
    assert (checkout.root / ".venv" / "requirements-dev.txt.stamp").exists()
    assert f"mypy  in {checkout.root}" in done.stdout


def test_install_engine_asks_for_nothing_of_its_own(checkout: Checkout) -> None:
    done = checkout.run("--install-engine", "tool")
    assert done.returncode == 0, done.stderr
    assert "python -m images.engine_setup" in checkout.asked()
    assert done.stdout.endswith("tool \n")
