"""The layers of our own files: what Dockerfile.cuda makes, without running anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from images.layers.base_facts import BaseFacts
from images.layers.own import (
    LIBRARY,
    PREFIX,
    SUITE,
    image_environment,
    lock_layer,
    site_of,
    skeleton_layer,
    suite_layer,
)
from images.layers.own_errors import OwnFilesError
from images.oci.sources import Unpacked
from tests import ROOT
from tests.kit.layer_maker import Read, collect, files_of, unpack
from tests.kit.programs import run_program

DOCKERFILE = (ROOT / "Dockerfile.cuda").read_text(encoding="utf-8")
FACTS = BaseFacts(
    python="/usr/bin/python3.11", python_full="3.11.2", glibc="2.36", bash=True, cuda=False
)


def write_to(root: Path, layer: bytes) -> None:
    """Unpack a layer, with the few kinds that ours have."""
    for path, read in unpack(layer).items():
        target = root / path
        if read.kind == "dir":
            target.mkdir(parents=True, exist_ok=True)
        elif read.kind == "symlink":
            target.symlink_to(read.content.decode())
        else:
            target.write_bytes(read.content)
            target.chmod(read.mode)


def test_the_skeleton_is_an_environment_for_the_base_s_python() -> None:
    found = unpack(collect(skeleton_layer(FACTS, python="3.11").stream(None))[0])
    assert found[f"{PREFIX}/bin/python"] == Read("symlink", 0o777, b"/usr/bin/python3.11")
    assert found[f"{PREFIX}/bin/python3"] == Read("symlink", 0o777, b"python")
    assert found[f"{PREFIX}/bin/python3.11"] == Read("symlink", 0o777, b"python")
    assert found[f"{PREFIX}/lib64"] == Read("symlink", 0o777, b"lib")
    assert found["workspace"] == Read("dir", 0o755)
    assert found["usr/local/bin/verify"].mode == 0o755
    assert b"home = /usr/bin\n" in found[f"{PREFIX}/pyvenv.cfg"].content
    assert b"version_info = 3.11.2\n" in found[f"{PREFIX}/pyvenv.cfg"].content


def test_its_texts_are_those_of_the_dockerfile() -> None:
    files = files_of(collect(skeleton_layer(FACTS, python="3.11").stream(None))[0])
    script = re.search(r"printf '(#!/bin/sh.*?)' > /usr/local/bin/verify", DOCKERFILE)
    assert script is not None
    assert files["usr/local/bin/verify"].decode() == script[1].replace("\\n", "\n")
    assert f"COPY verify {SUITE}\n" in DOCKERFILE


def test_a_version_that_is_not_known_is_not_told() -> None:
    facts = replace(FACTS, python_full=None)
    files = files_of(collect(skeleton_layer(facts, python="3.11").stream(None))[0])
    assert b"version_info" not in files[f"{PREFIX}/pyvenv.cfg"]


def test_a_real_python_takes_it_for_its_environment(tmp_path: Path) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    facts = replace(FACTS, python=str(base))
    write_to(tmp_path, collect(skeleton_layer(facts, python=version).stream(None))[0])
    show = "import sys, site, sysconfig; print([sys.prefix, sys.base_prefix, "
    show += "site.getsitepackages(), site.ENABLE_USER_SITE, sysconfig.get_paths(), "
    show += "sys.executable, sys.path])"
    python = tmp_path / PREFIX / "bin/python"
    ours = run_program([python, "-c", show], check=True)
    reference = tmp_path / "reference"
    command = [str(base), "-m", "venv", "--without-pip", str(reference)]
    subprocess.run(command, check=True)
    command = [str(reference / "bin/python"), "-c", show]
    theirs = run_program(command, check=True)
    assert ours.stdout == theirs.stdout.replace(str(reference), str(tmp_path / PREFIX))


def test_activate_puts_its_programs_first_and_undoes_it(tmp_path: Path) -> None:
    write_to(tmp_path, collect(skeleton_layer(FACTS, python="3.11").stream(None))[0])
    script = tmp_path / PREFIX / "bin/activate"
    command = f'. {script}; echo "$PATH $VIRTUAL_ENV"; deactivate; echo "$PATH ${{VIRTUAL_ENV-}}"'
    done = run_program(["sh", "-euc", command], env={"PATH": "/bin"}, check=True)
    assert done.stdout == f"/{PREFIX}/bin:/bin /{PREFIX}\n/bin \n"
    assert done.stderr == ""


def test_the_suite_is_there_without_byte_code(tmp_path: Path) -> None:
    package = tmp_path / "verify"
    (package / "checks/__pycache__").mkdir(parents=True)
    (package / "__main__.py").write_text("main")
    (package / "checks/one.py").write_text("one")
    (package / "checks/__pycache__/one.cpython-311.pyc").write_text("x")
    (package / ".swp").write_text("x")
    assert files_of(collect(suite_layer(package).stream(None))[0]) == {
        "opt/gpu-provision/lib/verify/__main__.py": b"main",
        "opt/gpu-provision/lib/verify/checks/one.py": b"one",
    }


def test_what_a_checkout_does_to_files_is_not_in_the_layer(tmp_path: Path) -> None:
    made = []
    for name, mode, when in (("a", 0o600, 5), ("b", 0o775, 1_900_000_000)):
        package = tmp_path / name / "verify"
        package.mkdir(parents=True)
        for file in ("__main__.py", "z.py", "Z.py"):
            (package / file).write_text(file)
            (package / file).chmod(mode)
            os.utime(package / file, (when, when))
        layer = suite_layer(package)
        made.append((layer.key, *collect(layer.stream(None))))
    assert made[0] == made[1]


def test_the_real_suite_makes_a_layer() -> None:
    layer = suite_layer(ROOT / "verify")
    files = files_of(collect(layer.stream(None))[0])
    assert "opt/gpu-provision/lib/verify/report.schema.json" in files
    assert not any("__pycache__" in path for path in files)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The root of an image of ours: environment and suite, with this machine's Python."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for layer in (
        skeleton_layer(replace(FACTS, python=str(base)), python=version),
        suite_layer(ROOT / "verify"),
    ):
        write_to(tmp_path, collect(layer.stream(None))[0])
    return tmp_path


def start(image: Path, *words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A command of the image's Python; `verify` is what its launcher starts."""
    python = str(image / PREFIX / "bin/python3")
    launcher = (image / "usr/local/bin/verify").read_text().splitlines()[1]
    suite = f"{image}{launcher.removeprefix('exec python3 ').partition(' ')[0]}"
    argv = [python, suite, *words[1:]] if words[0] == "verify" else [python, *words]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **env}
    return run_program(argv, cwd=cwd, env=environment)


def test_the_suite_starts_by_its_path(image: Path, tmp_path: Path) -> None:
    """Whatever the working directory holds: modules of the suite's own names, and the suite's."""
    for name in ("verify.py", "report.py", "batch.py", "json.py", "core.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')\n")
    done = start(image, "verify", "--list", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "libraries.cuda" in done.stdout


def test_another_package_called_verify_changes_nothing(image: Path, tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    theirs = image / site_of(version) / "verify"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("WHOSE = 'theirs'\n")
    assert start(image, "verify", "--list", cwd=tmp_path).returncode == 0
    seen = start(image, "-c", "import verify; print(verify.WHOSE)", cwd=tmp_path)
    assert seen.stdout == "theirs\n"


def test_no_program_of_the_image_sees_the_suite(image: Path, tmp_path: Path) -> None:
    done = start(image, "-c", "import verify", cwd=tmp_path)
    assert "No module named 'verify'" in done.stderr
    shown = start(image, "-c", "import sys; print(sys.path)", cwd=tmp_path)
    assert "gpu-provision" not in shown.stdout.replace(str(image), "")


def test_a_program_under_the_monitor_does_not_see_the_suite(image: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import importlib.util, sys\n"
        "print(importlib.util.find_spec('verify'), *sys.path, sep='|')\n"
    )
    python = str(image / PREFIX / "bin/python3")
    done = start(image, "verify", "monitor", "--", python, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("None|")
    assert "opt/gpu-provision" not in done.stdout


def test_a_report_of_the_image_is_rendered_and_compared(image: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--only", "loading.shm,libraries.files", "--report", str(report)]
    run = start(image, "verify", *words, cwd=tmp_path)
    assert report.exists(), run.stderr
    assert start(image, "verify", "render", str(report), cwd=tmp_path).returncode == 0
    done = start(image, "verify", "compare", str(report), str(report), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


SPAWN = """
if __name__ == "__main__":
    import multiprocessing
    from verify.model.check import gpus
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(gpus, (2,)), flush=True)
"""


def test_a_spawned_child_of_the_suite_finds_it(image: Path, tmp_path: Path) -> None:
    """As the workers of a loader do: multiprocessing gives them the parent's path."""
    main = image / LIBRARY / "verify/__main__.py"
    main.write_text(main.read_text().replace("\nif __name__ ==", f"\n{SPAWN}\nif __name__ =="))
    done = start(image, "verify", "--list", cwd=tmp_path)
    assert done.stdout.startswith("spawn 2 GPUs\nforkserver 2 GPUs\n"), done.stderr


@pytest.mark.parametrize("kind", ["absent", "empty", "link"])
def test_a_suite_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    package = tmp_path / "verify"
    if kind != "absent":
        package.mkdir()
    if kind == "link":
        (package / "__main__.py").symlink_to("/etc/passwd")
    with pytest.raises(OwnFilesError) as caught:
        suite_layer(package)
    assert str(package) in caught.value.message


def test_the_lock_is_there_byte_for_byte() -> None:
    text = "lock-version = '1.0'\r\n# ü\n".encode()
    found = files_of(collect(lock_layer(text, "pylock.gpu.toml").stream(None))[0])
    assert found == {"opt/gpu-provision/pylock.gpu.toml": text}


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b"])
def test_a_lock_s_name_is_a_file_s(name: str) -> None:
    with pytest.raises(OwnFilesError):
        lock_layer(b"", name)


def test_keys_tell_contents_apart_and_what_is_known_changes_nothing() -> None:
    one, other = lock_layer(b"1"), lock_layer(b"2")
    assert one.key != other.key
    assert one.key == lock_layer(b"1").key
    assert lock_layer(b"1", "a.toml").key != one.key
    content, unpacked = collect(one.stream(None))
    assert collect(one.stream(Unpacked(diff_id=unpacked.diff_id, size=unpacked.size))) == (
        content,
        unpacked,
    )


def test_keys_are_for_ever() -> None:
    """A change here means that layers which people have are made anew: raise FORMAT knowingly."""
    assert lock_layer(b"1").key.startswith("002496dc22b5c5b8")


def test_a_container_starts_with_the_dockerfile_s_environment() -> None:
    settings = image_environment(
        {"config": {"Env": ["PATH=/base/bin"]}}, nvcc_flags="--cudart=shared", labels={"a": "b"}
    )
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
    assert block is not None
    words = block[1].replace("\\\n", " ").split()
    expected = dict(word.partition("=")[::2] for word in words)
    expected["PATH"] = expected["PATH"].replace("$PATH", "/base/bin")
    expected["NVCC_APPEND_FLAGS"] = "--cudart=shared"
    assert dict(settings.env) == expected
    assert f"WORKDIR {settings.working_dir}\n" in DOCKERFILE
    assert f'CMD ["{settings.command[0]}"]' in DOCKERFILE
    assert settings.labels == {"a": "b"}
