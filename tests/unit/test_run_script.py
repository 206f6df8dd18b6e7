"""./run: what it says and where it stops, on machines that lack something.

Everything runs on a copy, so that this checkout's own .venv is left alone. `python3` is a script
that answers what ./run asks of it, and takes the place of setup_venv (see test_setup_venv.py for
the real one).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.programs import run_program

# What ./run and the script below call.
TOOLS = ("sh", "env", "cat", "cksum", "cp", "mv", "mkdir", "dirname", "chmod", "id", "sed")
# Says which version it is, or what it lacks; writes the stamp that setup_venv writes.
PYTHON = """#!/bin/sh
case "$*" in
-V) echo "Python {version}"; exit ;;
*sys.version_info*)
    [ -z "{lacks}" ] || {{ echo "Python {minor} without its module {lacks}" >&2; exit 1; }}
    [ -z "{too_old}" ] || {{ echo "Python {minor}" >&2; exit 1; }}
    echo "{minor}"; exit ;;
esac
echo "$0 $1 $2 $3 $4" >>"$LOG"
case "$2" in
*/setup_venv)
    [ {code} = 0 ] || exit {code}
    venv=$(dirname "$2")/.venv
    mkdir -p "$venv/bin"
    cp "$0" "$venv/new"
    mv -f "$venv/new" "$venv/bin/python"
    printf '#!/bin/sh\\necho "in $(pwd): tool $*"\\n' >"$venv/bin/tool"
    chmod 755 "$venv/bin/tool"
    echo "setup    done" >&2
    printf '%s\\n' "$3" "$4" "$5" >"$venv/stamp" ;;
esac
"""


class Checkout:
    """A copy of what ./run needs, and a PATH whose only Pythons are those of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root / "a checkout"
        self.bin = root / "bin"
        self.elsewhere = root / "elsewhere"
        self.log = root / "log"
        self.os_release = root / "os-release"
        for directory in (self.root, self.bin, self.elsewhere):
            directory.mkdir()
        self.os_release.write_text("ID=debian\nVERSION_ID=12\n")
        text = (ROOT / "run").read_text(encoding="utf-8")
        assert text.count("/etc/os-release") == 3
        (self.root / "run").write_text(text.replace("/etc/os-release", f"'{self.os_release}'"))
        (self.root / "run").chmod(0o755)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        for name in ("requirements.txt", "requirements-dev.txt"):
            (self.root / name).write_text("# none\n")
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name) or "/nonexistent")
        self.python()

    def python(
        self, version: str = "3.11.2", *, name: str = "python3", lacks: str = "", code: int = 0
    ) -> Path:
        """Put a Python of that version on PATH; `code` is what setting up with it ends with."""
        minor = tuple(int(part) for part in version.split(".")[:2])
        text = PYTHON.format(
            version=version,
            minor=".".join(map(str, minor)),
            too_old="yes" if minor < (3, 10) else "",
            lacks=lacks,
            code=code,
        )
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)
        return self.bin / name

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """./run WORDS, called from another directory."""
        return run_program(
            [str(self.root / "run"), *words],
            cwd=self.elsewhere,
            env={"PATH": str(self.bin), "HOME": str(self.root), "LOG": str(self.log), **env},
        )

    def asked(self) -> list[str]:
        """The calls of Pythons, but for questions of their version."""
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


def test_it_is_clean_by_shellcheck() -> None:
    shellcheck = need.program("shellcheck")
    done = run_program([shellcheck, "--shell=sh", ROOT / "run"])
    assert done.returncode == 0, done.stdout


@cases("words", ("no word", []), ("--help", ["--help"]), ("-h", ["-h"]))
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
def test_a_python_too_old_is_refused(checkout: Checkout, version: str) -> None:
    checkout.python(version)
    minor = version.rpartition(".")[0]
    done = checkout.run("provision", "plan")
    refused(done, 4, "Python 3.10 or newer is needed", f"python3 is Python {minor}")
    assert not (checkout.root / ".venv").exists()


def test_no_python_at_all_is_refused(checkout: Checkout) -> None:
    (checkout.bin / "python3").unlink()
    done = checkout.run("provision")
    refused(done, 4, "there is no python3", "apt-get install -y python3")
    assert len(done.stderr.splitlines()) == 2


def test_a_python_that_does_not_start_is_refused(checkout: Checkout) -> None:
    (checkout.bin / "python3").write_text("#!/bin/sh\nexit 139\n")
    refused(checkout.run("provision"), 4, "python3 is broken")


def test_a_python_without_a_part_of_its_library_is_refused(checkout: Checkout) -> None:
    checkout.python(lacks="ssl")
    refused(checkout.run("provision"), 4, "python3 is Python 3.11 without its module ssl")


@cases(
    "on_path chosen",
    ("python3 is new enough", ["3", "3.13"], "python3"),
    ("python3 is too old", ["3=3.9", "3.10", "3.12"], "python3.12"),
    ("there is no python3", ["3.11"], "python3.11"),
    ("python3 is newer than the wheels", ["3=3.99", "3.12"], "python3.12"),
    ("there is only a Python newer than the wheels", ["3=3.99"], "python3"),
)
def test_a_python_is_found_on_path(checkout: Checkout, on_path: list[str], chosen: str) -> None:
    (checkout.bin / "python3").unlink()
    for word in on_path:
        name, _, version = word.partition("=")
        version = version or ("3.11" if name == "3" else name)
        checkout.python(f"{version}.1", name=f"python{name}")
    done = checkout.run("tool")
    assert done.returncode == 0, done.stderr
    assert checkout.asked()[0].startswith(f"{checkout.bin}/{chosen} -I {checkout.root}/setup_venv ")


def test_the_python_that_is_named_is_taken(checkout: Checkout) -> None:
    checkout.python("3.9.18")
    good = checkout.python("3.12.1", name="mine")
    done = checkout.run("tool", PYTHON=str(good))
    assert done.returncode == 0, done.stderr
    assert checkout.asked()[0].startswith(f"{good} ")


@cases(
    "name said",
    ("it is not there", "/nonexistent/python", "there is no such program"),
    ("it is too old", "old", "old is Python 3.8"),
)
def test_a_named_python_is_not_replaced(checkout: Checkout, name: str, said: str) -> None:
    checkout.python("3.8.18", name="old")
    refused(checkout.run("provision", PYTHON=name), 4, said, "PYTHON=/path/to/python3")
    assert checkout.asked() == []


# What the distributions have: packages.debian.org, packages.ubuntu.com; "Python in AL2023" of the
# Amazon Linux guide; "Introduction to Python" of RHEL 8 and 9; SLE-Module-Python3 of SLE 15.
UV = "uv python install"
FIXES = [
    ("ID=debian VERSION_ID=12", "", "sudo apt-get update && sudo apt-get install -y python3"),
    ("ID=debian VERSION_ID=11", "", UV),
    ("ID=debian VERSION_ID=11", "3.9", UV),
    ("ID=ubuntu ID_LIKE=debian VERSION_ID=24.04", "", "apt-get install -y python3"),
    ("ID=ubuntu ID_LIKE=debian VERSION_ID=20.04", "3.8", UV),
    ("ID=ubuntu ID_LIKE=debian VERSION_ID=18.04", "3.6", "docker run"),
    ("ID=linuxmint ID_LIKE='ubuntu debian' VERSION_ID=22", "", "apt-get install -y python3"),
    ("ID=linuxmint ID_LIKE='ubuntu debian' VERSION_ID=20", "3.8", UV),
    ("ID=rhel ID_LIKE=fedora VERSION_ID=9.4", "3.9", "sudo dnf install -y python3.12"),
    ("ID=rocky ID_LIKE='rhel centos fedora' VERSION_ID=8.10", "3.6", "dnf install -y python3.12"),
    ("ID=almalinux ID_LIKE='rhel fedora' VERSION_ID=9.5", "3.9", "dnf install -y python3.12"),
    ("ID=rhel ID_LIKE=fedora VERSION_ID=10.0", "", "sudo dnf install -y python3"),
    ("ID=fedora VERSION_ID=43", "", "dnf install -y python3"),
    ("ID=centos ID_LIKE='rhel fedora' VERSION_ID=7", "3.6", "docker run"),
    ("ID=amzn ID_LIKE=fedora VERSION_ID=2023", "3.9", "dnf install -y python3.12"),
    ("ID=amzn ID_LIKE='centos rhel fedora' VERSION_ID=2", "3.7", "docker run"),
    ("ID=opensuse-leap ID_LIKE=suse VERSION_ID=15.6", "3.6", "zypper install -y python311"),
    ("ID=sles ID_LIKE=suse VERSION_ID=15.6", "3.6", "zypper install -y python311"),
    ("ID=opensuse-tumbleweed ID_LIKE='opensuse suse'", "", "zypper install -y python3"),
    ("ID=arch", "", "pacman -S --noconfirm python"),
    ("ID=alpine VERSION_ID=3.22", "", "docker run"),
    ("ID=nixos VERSION_ID=25.05", "", "nix-shell -p python3"),
    ("", "", "package manager"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("release", "has", "fix"),
    [pytest.param(*row, id=f"{row[0]} with Python {row[1] or 'none'}") for row in FIXES],
)
def test_the_fix_is_a_line_for_this_distribution(
    checkout: Checkout, release: str, has: str, fix: str
) -> None:
    (checkout.bin / "id").unlink()
    (checkout.bin / "id").write_text("#!/bin/sh\necho 1000\n")
    (checkout.bin / "id").chmod(0o755)
    checkout.os_release.write_text("\n".join(f"{word}\n" for word in _assignments(release)))
    (checkout.bin / "python3").unlink()
    if has:
        checkout.python(f"{has}.1")
    done = checkout.run("provision")
    refused(done, 4)
    said = done.stderr.splitlines()
    assert len(said) == 2
    assert fix in said[1]


def _assignments(release: str) -> list[str]:
    return re.findall(r"\w+=(?:'[^']*'|\S+)", release)


def test_a_system_without_os_release_gets_a_fix(checkout: Checkout) -> None:
    checkout.os_release.unlink()
    (checkout.bin / "python3").unlink()
    refused(checkout.run("provision"), 4, "there is no python3", "package manager")


def test_the_oldest_python_is_the_one_that_the_project_declares() -> None:
    found = re.search(r"^pythons='(.*)'$", (ROOT / "run").read_text(), re.MULTILINE)
    assert found is not None
    oldest = found[1].split()[-1]
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()


def test_root_needs_no_sudo(checkout: Checkout) -> None:
    (checkout.bin / "id").unlink()
    (checkout.bin / "id").write_text("#!/bin/sh\necho 0\n")
    (checkout.bin / "id").chmod(0o755)
    (checkout.bin / "python3").unlink()
    assert "fix: apt-get update && apt-get install" in checkout.run("provision").stderr


@pytest.mark.parametrize("code", [4, 5, 130])
def test_a_set_up_that_fails_ends_the_run(checkout: Checkout, code: int) -> None:
    checkout.python(code=code)
    done = checkout.run("tool")
    assert (done.returncode, done.stdout) == (code, "")


@cases(
    "words requirements",
    ("a command", ["tool"], "requirements.txt"),
    ("lint", ["lint"], "requirements-dev.txt"),
    ("test", ["test", "x"], "requirements-dev.txt"),
)
def test_setup_venv_is_asked_for_what_the_words_need(
    checkout: Checkout, words: list[str], requirements: str
) -> None:
    checkout.run(*words)
    assert checkout.asked()[0] == (
        f"{checkout.bin}/python3 -I {checkout.root}/setup_venv {requirements} "
    )
    stamp = (checkout.root / ".venv/stamp").read_text().splitlines()
    assert stamp[:3] == [requirements, "", str(checkout.root)]
    assert [line.split()[2] for line in stamp[3:]] == ["pyproject.toml", requirements]


def test_the_second_time_no_python_is_asked(checkout: Checkout) -> None:
    checkout.run("tool")
    before = checkout.asked()
    (checkout.bin / "python3").unlink()
    done = checkout.run("tool")
    assert (done.returncode, done.stderr) == (0, "")
    assert checkout.asked() == before


def _other_requirements(checkout: Checkout) -> None:
    (checkout.root / "requirements.txt").write_text("# others\n")


def _other_project(checkout: Checkout) -> None:
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")


def _no_stamp(checkout: Checkout) -> None:
    (checkout.root / ".venv/stamp").unlink()


def _half_a_stamp(checkout: Checkout) -> None:
    (checkout.root / ".venv/stamp").write_text("requirements.txt\n")


def _moved(checkout: Checkout) -> None:
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))


def _no_python(checkout: Checkout) -> None:
    (checkout.root / ".venv/bin/python").unlink()
    (checkout.root / ".venv/bin/python").symlink_to("/nonexistent/python3.11")


@cases(
    "change",
    ("the requirements changed", _other_requirements),
    ("pyproject.toml changed", _other_project),
    ("it was interrupted", _no_stamp),
    ("the stamp is cut short", _half_a_stamp),
    ("the checkout was moved", _moved),
    ("its Python was uninstalled", _no_python),
)
def test_what_changed_is_set_up_again(
    checkout: Checkout, change: Callable[[Checkout], None]
) -> None:
    checkout.run("tool")
    before = len(checkout.asked())
    change(checkout)
    assert checkout.run("tool").returncode == 0
    assert [line for line in checkout.asked()[before:] if "/setup_venv " in line]
    before = len(checkout.asked())
    assert checkout.run("tool").returncode == 0
    assert checkout.asked()[before:] == []


def test_only_the_project_s_command_gets_to_know_how_it_was_called(checkout: Checkout) -> None:
    checkout.run("tool")
    program = checkout.root / ".venv/bin/provision"
    program.write_text('#!/bin/sh\necho "$PROVISION_RUN_SCRIPT"\n')
    program.chmod(0o755)
    stale = {"PROVISION_RUN_SCRIPT": "/elsewhere/run"}
    assert checkout.run("provision", **stale).stdout == f"{checkout.root}/run\n"
    assert "PROVISION_RUN_SCRIPT" not in checkout.run("env", **stale).stdout


def test_another_name_of_the_checkout_is_no_move(checkout: Checkout) -> None:
    checkout.run("tool")
    before = checkout.asked()
    link = checkout.root.with_name("link")
    link.symlink_to(checkout.root)
    done = subprocess.run(
        [link / "run", "tool"], env={"PATH": str(checkout.bin)}, check=False, capture_output=True
    )
    assert done.returncode == 0
    assert checkout.asked() == before


@pytest.mark.parametrize("name", ["a:b", "a\nb"], ids=["a colon", "a line break"])
def test_a_path_that_no_environment_can_have_is_refused(checkout: Checkout, name: str) -> None:
    checkout.root = checkout.root.rename(checkout.root.with_name(name))
    refused(checkout.run("tool"), 5, "its path has a colon or a line break", "Move the checkout")
    assert checkout.asked() == []


def test_a_python_named_later_is_asked_once(checkout: Checkout) -> None:
    checkout.run("tool")
    before = len(checkout.asked())
    other = str(checkout.python("3.12.1", name="other"))
    for env in ({"PYTHON": other}, {"PYTHON": other}, {}):
        assert checkout.run("tool", **env).returncode == 0
    assert [line.split()[0] for line in checkout.asked()[before:]] == [other]


def test_the_developers_packages_are_kept_for_other_words(checkout: Checkout) -> None:
    checkout.run("lint")
    before = len(checkout.asked())
    assert checkout.run("tool").returncode == 0
    assert checkout.asked()[before:] == []


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


def test_variables_about_other_pythons_do_not_reach_the_command(checkout: Checkout) -> None:
    shutil.copy(shutil.which("env") or "", checkout.bin / "env2")
    done = checkout.run(
        "env2", PYTHONPATH="/x", PYTHONHOME="/x", PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1"
    )
    kept = [line for line in done.stdout.splitlines() if line.startswith("PYTHON")]
    assert kept == ["PYTHONUTF8=1"]


def test_developers_words_need_the_developers_packages(checkout: Checkout) -> None:
    for name in ("ruff", "mypy"):
        (checkout.bin / name).write_text(f'#!/bin/sh\necho "{name} $* in $(pwd)"\n')
        (checkout.bin / name).chmod(0o755)
    done = checkout.run("lint")
    assert done.returncode == 0, done.stderr
    assert f"mypy  in {checkout.root}" in done.stdout


@pytest.mark.parametrize("path", [".:{}", "{}:.", ":{}", "{}:", "{}::", "here:{}"])
def test_programs_of_the_working_directory_are_never_run(checkout: Checkout, path: str) -> None:
    mark = checkout.root / "mark"
    for folder in (checkout.elsewhere, checkout.elsewhere / "here"):
        folder.mkdir(exist_ok=True)
        for name in (*TOOLS, "python3", "python3.14", "anybody"):
            (folder / name).write_text(f"#!/bin/sh\n: >'{mark}'\n")
            (folder / name).chmod(0o755)
    done = checkout.run("tool", PATH=path.format(checkout.bin))
    assert done.returncode == 0, done.stderr
    assert checkout.run("anybody", PATH=path.format(checkout.bin)).returncode == 127
    assert not mark.exists()


def test_install_engine_asks_for_nothing_of_its_own(checkout: Checkout) -> None:
    (checkout.bin / "id").unlink()
    (checkout.bin / "id").write_text("#!/bin/sh\necho 0\n")
    (checkout.bin / "id").chmod(0o755)
    done = checkout.run("--install-engine", "tool")
    assert done.returncode == 0, done.stderr
    assert f"{checkout.root}/.venv/bin/python -I -m images.engines.setup " in checkout.asked()
    assert done.stdout.endswith("tool \n")


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_other_shells_agree(checkout: Checkout, shell: str) -> None:
    program = need.program(shell)
    sh = checkout.bin / "sh"
    sh.unlink()
    sh.write_text(f'#!/bin/bash\nexec {program} {"sh" if shell == "busybox" else ""} "$@"\n')
    sh.chmod(0o755)
    for words in (["tool", "a b"], ["tool", "c"]):
        done = run_program(
            [sh, str(checkout.root / "run"), *words],
            cwd=checkout.elsewhere,
            env={"PATH": str(checkout.bin), "LOG": str(checkout.log)},
        )
        assert done.stdout == f"in {checkout.elsewhere}: tool {words[1]}\n", done.stderr
    assert len(checkout.asked()) == 1
