"""./run sets up .venv: the real script, setup_venv and Python, in a checkout made for the test.

Most tests use a pip of ours, whose steps they can stop; those with `real_pip` use the pip that is
installed here, made into a wheel again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import ROOT, need
from tests.kit.package_server import Reply, Server, html_page
from tests.kit.programs import run_program

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
# Longer than any step takes on a machine under load; what hangs is told from what is slow by it.
PATIENCE_S = 120

# What pip does, as far as setup_venv asks it; PAUSE is a file that stops it while it is there.
OUR_PIP = """
import os, pathlib, shutil, sys, time
words = sys.argv[1:]
venv = pathlib.Path(sys.prefix)
root = venv.parent
with (root / "pip.log").open("a") as log:
    print(*words, file=log)
requirements = [w.partition("=")[2] for w in words if w.startswith("--requirement=")]
if requirements:
    print("Collecting tiny")
    if "unknown==" in pathlib.Path(requirements[0]).read_text():
        sys.exit("ERROR: No matching distribution found for unknown==1.0")
    print("Installing collected packages: tiny", flush=True)
    while (root / "PAUSE").exists():
        (root / "PAUSED").touch()
        time.sleep(0.01)
    place = next((venv / "lib").glob("python*")) / "site-packages/pip"
    if not place.exists():
        shutil.copytree(pathlib.Path(__file__).parent, place)
    (venv / "bin/pip").touch()
    if (root / "FAIL").exists():
        sys.exit("ERROR: it broke while installing")
else:
    (venv / "bin/tool").write_text(f"#!/bin/sh\\n# of {venv}\\necho tool\\n")
    (venv / "bin/tool").chmod(0o755)
"""
BACKEND = """
import os, zipfile
def build_editable(directory, *_):
    name, info = "gpu_provision-1-py3-none-any.whl", "gpu_provision-1.dist-info"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: gpu-provision\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\ntool = provision:tool\\n")
        wheel.writestr("gpu_provision.pth", os.getcwd() + "\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""  # noqa: E501
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "gpu-provision"
version = "1"
"""


def wheel_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def package(name: str, version: str, text: str) -> bytes:
    info = f"{name}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"{name}/__init__.py": "", f"{name}/__main__.py": text}
    files |= {f"{info}/METADATA": meta, f"{info}/WHEEL": kind, f"{info}/RECORD": ""}
    return wheel_of({path: content.encode() for path, content in files.items()})


@pytest.fixture(scope="module")
def pip_of_this_python() -> tuple[str, bytes]:
    """The version of the pip that is installed here, and a wheel of its files."""
    pip = importlib.metadata.distribution("pip")
    files = [path for path in pip.files or [] if path.parts[0].startswith("pip")]
    files = [path for path in files if path.suffix != ".pyc"]
    return pip.version, wheel_of({str(path): Path(path.locate()).read_bytes() for path in files})


class Checkout:
    """A checkout, a user with an empty home, and the server of an index."""

    def __init__(self, place: Path, server: Server, version: str, pip: bytes) -> None:
        self.root = place / "a çheckout"
        self.home = place / "home"
        self.server = server
        self.version = version
        self.wheels = {"pip": pip, "tiny": package("tiny", "1.0", "print('tiny')")}
        for directory in (self.root, self.home, place / "bin"):
            directory.mkdir()
        shutil.copy(ROOT / "run", self.root)
        shutil.copytree(
            ROOT / "setup_venv", self.root / "setup_venv", ignore=shutil.ignore_patterns("__py*")
        )
        (self.root / "backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        for room in ("provision", "images", "verify"):
            (self.root / room).mkdir()
            (self.root / room / "__init__.py").write_text("def tool():\n    print('tool')\n")
        (place / "bin/python3").symlink_to(PYTHON)
        self.path = f"{place}/bin:/usr/bin:/bin"
        self.publish()
        self.lock("requirements.txt")
        self.lock("requirements-dev.txt")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def publish(self) -> None:
        versions = {"pip": self.version, "tiny": "1.0"}
        for name, data in self.wheels.items():
            file = f"/files/{name}-{versions[name]}-py3-none-any.whl"
            self.server.replies[f"/simple/{name}/"] = [html_page(f"../..{file}")]
            self.server.replies[file] = [Reply(body=data)]

    def lock(self, name: str, *more: str, **digests: str) -> None:
        """A requirements file with pip, tiny and `more`; `digests` are wrong ones."""
        lines = []
        for project, version in (("pip", self.version), ("tiny", "1.0")):
            digest = digests.get(project, hashlib.sha256(self.wheels[project]).hexdigest())
            lines += [f"{project}=={version} \\", f"    --hash=sha256:{digest}"]
        (self.root / name).write_text("\n".join([*lines, *more, ""]))

    def env(self, **more: str) -> dict[str, str]:
        index = f"{self.server.url}/simple"
        return {"PATH": self.path, "HOME": str(self.home), "PIP_INDEX_URL": index, **more}

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run_program(
            [str(self.root / "run"), *(words or ["tool"])],
            cwd=self.home,
            env=self.env(**env),
            timeout=PATIENCE_S,
        )

    def start(self, **env: str) -> subprocess.Popen[str]:
        """./run tool, as the head of a process group."""
        return subprocess.Popen(
            [str(self.root / "run"), "tool"],
            env=self.env(**env),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def pips(self) -> list[str]:
        """How our pip was called."""
        log = self.root / "pip.log"
        return log.read_text().splitlines() if log.exists() else []

    def paused(self) -> Path:
        """Wait for our pip to reach its pause. Returns the file that keeps it there."""
        until = time.monotonic() + PATIENCE_S
        while not (self.root / "PAUSED").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return self.root / "PAUSE"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def checkout(tmp_path: Path, server: Server) -> Checkout:
    return Checkout(tmp_path, server, "99.1", package("pip", "99.1", OUR_PIP))


@pytest.fixture
def real_pip(tmp_path: Path, server: Server, pip_of_this_python: tuple[str, bytes]) -> Checkout:
    return Checkout(tmp_path, server, *pip_of_this_python)


def works(checkout: Checkout, **env: str) -> str:
    """What ./run said on stderr, and its command has run."""
    done = checkout.run(**env)
    assert (done.returncode, done.stdout) == (0, "tool\n"), done.stderr
    return done.stderr


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "error: " in done.stderr
    assert "\n  fix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [word for word in words if word not in done.stderr] == []
    assert done.stdout == ""


def left(checkout: Checkout) -> list[str]:
    return sorted(path.name for path in checkout.venv.iterdir())


# ---- with the real pip ----

HOSTILE = {
    "PYTHONHOME": "/nonexistent", "PYTHONNOUSERSITE": "1", "PIP_USER": "1", "PIP_NO_DEPS": "1",
    "PIP_TARGET": "/nonexistent", "PIP_PREFIX": "/nonexistent", "PIP_REQUIRE_VIRTUALENV": "1",
    "PIP_NO_BINARY": ":all:", "PIP_CONSTRAINT": "/nonexistent", "PIP_DRY_RUN": "1",
    "PIP_REQUIREMENT": "/nonexistent", "VIRTUAL_ENV": "/nonexistent", "PIP_PYTHON": "/nonexistent",
}  # fmt: skip


def test_a_first_run_and_a_second(real_pip: Checkout, tmp_path: Path) -> None:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow/ssl.py").write_text("raise SystemExit('shadowed')\n")
    (real_pip.root / "netrc.py").write_text("raise SystemExit('shadowed')\n")
    said = works(real_pip, **HOSTILE, PYTHONPATH=str(tmp_path / "shadow"))
    first, last = said.splitlines()
    version = ".".join(map(str, sys.version_info[:3]))
    assert first == f"setup    creating {real_pip.venv} with Python {version}"
    assert last.startswith("setup    done in ")
    assert real_pip.run("python", "-m", "tiny").stdout == "tiny\n"
    assert f"pip {real_pip.version} from {real_pip.venv}" in real_pip.run("pip", "-V").stdout
    assert not (real_pip.venv / "pip").exists()
    assert list(real_pip.venv.glob("lib/*/site-packages/tiny/__pycache__/*.pyc"))
    asked = real_pip.server.paths()
    assert works(real_pip) == ""
    assert real_pip.server.paths() == asked


def test_a_private_index_with_a_login(real_pip: Checkout) -> None:
    real_pip.server.login = "ann:canary"
    url = f"{real_pip.server.url}/simple".replace("://", "://ann:canary@")
    refused(real_pip.run(), 5, "HTTP 401")
    conf = real_pip.home / ".config/pip/pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(f"[install]\nindex-url = {url}\ntarget = /nonexistent\n")
    said = works(real_pip, PIP_INDEX_URL="")
    assert "canary" not in said
    assert "canary" not in (real_pip.venv / "stamp").read_text()


def test_a_package_with_another_hash_is_refused(real_pip: Checkout) -> None:
    real_pip.lock("requirements.txt", tiny="0" * 64)
    done = real_pip.run()
    refused(done, 5, "A package is not the one that requirements.txt pins", "tiny")
    assert left(real_pip) == ["lock"]


def test_a_package_without_a_wheel_is_not_compiled(real_pip: Checkout) -> None:
    name = "native-1.0-cp27-none-manylinux_2_28_riscv64.whl"
    source = "/files/native-1.0.tar.gz"
    real_pip.server.replies["/simple/native/"] = [html_page(f"/files/{name}", source)]
    real_pip.lock("requirements.txt", "native==1.0 \\", f"    --hash=sha256:{'0' * 64}")
    refused(real_pip.run(), 4, "native 1.0 has no wheel for this machine", "PYTHON=/path/to/")
    assert source not in real_pip.server.paths()
    assert left(real_pip) == ["lock"]


# ---- faults ----


def test_a_corrupt_pip_is_not_run(checkout: Checkout) -> None:
    checkout.lock("requirements.txt", pip="0" * 64)
    refused(checkout.run(), 5, "pip-99.1-py3-none-any.whl", "which is not the pinned one")
    assert checkout.pips() == []
    assert left(checkout) == ["lock"]


def test_no_network_leaves_nothing(checkout: Checkout) -> None:
    checkout.server.close()
    refused(checkout.run(PIP_RETRIES="0"), 5, "Connection refused", "Check the network")
    assert left(checkout) == ["lock"]


def test_no_network_leaves_what_was_there(checkout: Checkout) -> None:
    works(checkout)
    old = checkout.root
    checkout.root = old.rename(old.with_name("moved"))
    checkout.server.close()
    refused(checkout.run(PIP_RETRIES="0"), 5, "Connection refused")
    checkout.root = checkout.root.rename(old)
    assert works(checkout) == ""


def test_a_moved_checkout_is_set_up_again(checkout: Checkout) -> None:
    works(checkout)
    old = checkout.root
    checkout.root = old.rename(old.with_name("moved"))
    said = works(checkout)
    assert f"again (the checkout was moved from {old})" in said
    assert str(checkout.venv) in (checkout.venv / "bin/tool").read_text()
    assert works(checkout) == ""


def test_an_environment_whose_python_is_gone_is_made_again(checkout: Checkout) -> None:
    works(checkout)
    links = [path for path in (checkout.venv / "bin").glob("python*") if path.is_symlink()]
    target = next(path for path in links if str(path.readlink()) == PYTHON)
    target.unlink()
    target.symlink_to("/nonexistent/python3.1")
    assert "again (it was made with another Python)" in works(checkout)
    assert works(checkout) == ""


def test_an_environment_of_someone_else_is_replaced(checkout: Checkout) -> None:
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", checkout.venv], check=True)
    (checkout.venv / "theirs").mkdir()
    works(checkout)
    assert not (checkout.venv / "theirs").exists()


def test_other_requirements_are_installed_into_what_is_there(checkout: Checkout) -> None:
    works(checkout)
    (checkout.venv / "kept").touch()
    checkout.lock("requirements.txt", "# changed")
    fetched = checkout.server.paths().count("/simple/pip/")
    assert f"setup    updating {checkout.venv} to requirements.txt" in works(checkout)
    assert (checkout.venv / "kept").exists()
    assert checkout.server.paths().count("/simple/pip/") == fetched


def test_requirements_that_cannot_be_had_leave_the_old_ones(checkout: Checkout) -> None:
    works(checkout)
    before = (checkout.root / "requirements.txt").read_text()
    checkout.lock("requirements.txt", "unknown==1.0 \\", f"    --hash=sha256:{'0' * 64}")
    refused(checkout.run(), 5, "No matching distribution found for unknown==1.0")
    (checkout.root / "requirements.txt").write_text(before)
    assert works(checkout) == ""


def test_an_update_that_breaks_is_repaired(checkout: Checkout) -> None:
    works(checkout)
    checkout.lock("requirements.txt", "# changed")
    (checkout.root / "FAIL").touch()
    refused(checkout.run(), 5, "it broke while installing")
    assert not (checkout.venv / "stamp").exists()
    (checkout.root / "FAIL").unlink()
    assert "again (unfinished)" in works(checkout)
    assert works(checkout) == ""


def test_the_same_python_by_another_name_is_no_other(checkout: Checkout, tmp_path: Path) -> None:
    works(checkout)
    calls = checkout.pips()
    (tmp_path / "named").symlink_to(PYTHON)
    for env in ({"PYTHON": str(tmp_path / "named")}, {}):
        assert works(checkout, **env) == ""
    assert checkout.pips() == calls


def test_another_environment_s_python_is_not_built_on(checkout: Checkout, tmp_path: Path) -> None:
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    works(checkout, PYTHON=str(tmp_path / "other/bin/python"))
    shutil.rmtree(tmp_path / "other")
    assert works(checkout) == ""


# ---- two at once, and killed ones ----


def test_two_at_once_set_up_once(checkout: Checkout) -> None:
    (checkout.root / "PAUSE").touch()
    first = checkout.start()
    pause = checkout.paused()
    second = checkout.start()
    assert second.stderr is not None
    assert "waiting for another ./run" in second.stderr.readline()
    pause.unlink()
    for process in (first, second):
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "tool\n"), err
    assert len(checkout.pips()) == 2  # the packages, and the project


@pytest.mark.parametrize("group", [True, False], ids=["with pip", "without pip"])
def test_a_killed_set_up_is_repaired(checkout: Checkout, *, group: bool) -> None:
    """Where pip lives on, the next one waits for it, and does not write beside it."""
    (checkout.root / "PAUSE").touch()
    first = checkout.start()
    pause = checkout.paused()
    if group:
        os.killpg(first.pid, signal.SIGKILL)
    else:
        for pid in children(first.pid):
            os.kill(pid, signal.SIGKILL)
        first.kill()
    first.communicate(timeout=PATIENCE_S)
    assert not (checkout.venv / "stamp").exists()
    second = checkout.start()
    if not group:
        assert second.stderr is not None
        assert "waiting for another ./run" in second.stderr.readline()
    pause.unlink()
    out, err = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, out) == (0, "tool\n"), err
    assert "again (unfinished)" in err
    assert works(checkout) == ""


def children(pid: int) -> list[int]:
    """The children of a process: of ./run that is setup_venv."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in found.split()]


def test_an_interrupted_set_up_says_so_and_leaves_nothing(checkout: Checkout) -> None:
    (checkout.root / "PAUSE").touch()
    first = checkout.start()
    checkout.paused()
    os.killpg(first.pid, signal.SIGINT)
    _, err = first.communicate(timeout=PATIENCE_S)
    assert first.returncode in {130, -signal.SIGINT}
    assert "interrupted" in err
    assert "Traceback" not in err
    assert left(checkout) == ["lock"]


@pytest.mark.parametrize("locale", ["C", "xx_XX"])
def test_the_locale_does_not_matter(checkout: Checkout, locale: str) -> None:
    works(checkout, LC_ALL=locale)
    assert works(checkout, LC_ALL="C.UTF-8") == ""
    assert works(checkout, LC_ALL=locale) == ""


# ---- file systems ----


def inside(checkout: Checkout, mounts: str) -> subprocess.CompletedProcess[str]:
    """./run tool in a mount namespace of its own, after the shell words `mounts`."""
    checkout.venv.mkdir()
    script = f'cd "$1" && {mounts} && exec "$1/run" tool'
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    probe = subprocess.run([*argv[:4], "true"], check=False, capture_output=True)
    if shutil.which("unshare") is None or probe.returncode:
        need.lacking("no user namespaces here", "sudo sysctl -w user.max_user_namespaces=15000")
    return run_program([*argv, str(checkout.root)], env=checkout.env(), timeout=PATIENCE_S)


def test_a_read_only_checkout_is_refused(checkout: Checkout) -> None:
    done = inside(checkout, "mount --bind . . && mount -o remount,bind,ro .")
    refused(done, 5, "Read-only file system", f"git clone '{checkout.root}' DIRECTORY")


def test_a_checkout_of_someone_else_is_refused(checkout: Checkout) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    checkout.root.chmod(0o555)
    done = checkout.run()
    checkout.root.chmod(0o755)
    refused(done, 5, "Permission denied", f"git clone '{checkout.root}' DIRECTORY")


def test_a_file_system_without_programs_is_refused(checkout: Checkout) -> None:
    done = inside(checkout, "mount -t tmpfs -o noexec tmpfs .venv")
    refused(done, 5, "is on a file system mounted noexec")


def test_without_shared_memory_everything_is_compiled(checkout: Checkout) -> None:
    done = inside(checkout, "mount -t tmpfs -o ro tmpfs /dev/shm")
    assert (done.returncode, done.stdout) == (0, "tool\n"), done.stderr
    assert list((checkout.root / "provision").glob("__pycache__/*.pyc"))


@pytest.mark.parametrize("size", ["1m", "11m"], ids=["when pip is unpacked", "when pip installs"])
def test_a_full_disk_is_said(real_pip: Checkout, size: str) -> None:
    done = inside(real_pip, f"mount -t tmpfs -o size={size} tmpfs .venv")
    refused(done, 5, "No space left on the disk", "MB free in")


def test_a_terminal_shows_what_is_being_fetched(checkout: Checkout) -> None:
    (checkout.root / "PAUSE").touch()
    leader, follower = need.terminal()
    process = subprocess.Popen(
        [str(checkout.root / "run"), "tool"],
        env=checkout.env(TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    )
    os.close(follower)
    checkout.paused().unlink()
    out, _ = process.communicate(timeout=PATIENCE_S)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert out == "tool\n"
    assert "setup    collecting tiny" in shown
    assert "setup    installing" in shown
