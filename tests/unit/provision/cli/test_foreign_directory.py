"""Commands typed in a directory to which everybody may write, with it on PATH: no program and no
module that another user left there is started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from images.registry.auth import read_login
from provision.cli.main import drop_relative_path_entries
from tests.kit.programs import run_program

PROGRAMS = (
    *(
        "apt-cache", "bwrap", "docker", "docker-credential-corp", "flock", "gcc", "kubectl",
        "ldconfig",
    ),
    *(
        "nvidia-smi", "pip", "pip3", "podman", "python3", "ray", "sh", "sinfo", "srun", "ssh",
        "sudo",
    ),
    *("tar2sqfs", "unshare", "uv"),
)  # fmt: skip
MODULES = ("images", "json", "provision", "pynvml", "sitecustomize", "uv", "verify", "yaml")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory; what is started leaves its name in the file `started` beside it."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    for name in PROGRAMS:
        (place / name).write_text(f"#!/bin/sh\necho {name} >>'{tmp_path}/started'\nexit 1\n")
        (place / name).chmod(0o755)
    for name in MODULES:
        line = f"open({str(tmp_path / 'started')!r}, 'a').write('module {name}\\n')\n"
        (place / f"{name}.py").write_text(line)
    (place / "hosts").write_text("127.0.0.1:1\n")
    home = tmp_path / "home/.docker"
    home.mkdir(parents=True)
    (home / "config.json").write_text('{"credsStore": "corp"}')
    return place


@pytest.mark.parametrize("path", [".:{}", "{}:"], ids=["first", "last, as an empty entry"])
@pytest.mark.parametrize(
    "command",
    [
        "detect --json",
        "doctor",
        "lock --offline --gpu T4 --driver 550.54.14 --base bootstrap",
        "inspect 127.0.0.1:1/no/image",
        "fleet detect --on ssh:hosts --timeout 5 --output out",
        "fleet detect --on slurm --timeout 5 --output out",
        "fleet detect --on ray:127.0.0.1:1 --timeout 5 --output out",
        "fleet detect --on kubernetes --image x:1 --timeout 5 --output out",
    ],
)
def test_nothing_of_the_working_directory_is_started(place: Path, command: str, path: str) -> None:
    done = run_program(
        [str(Path(sys.executable).parent / "provision"), *command.split()],
        cwd=place,
        env={
            **os.environ,
            "HOME": str(place.parent / "home"),
            "PATH": path.format(os.environ["PATH"]),
            "PIP_CONFIG_FILE": str(place.parent / "home/pip.conf"),
        },
    )
    assert "Traceback" not in done.stderr
    assert done.returncode != 70, done.stderr
    started = place.parent / "started"
    assert not started.exists(), started.read_text()


@pytest.mark.parametrize("path", [".:{}", "{}:", "."])
def test_a_credential_helper_of_the_working_directory_is_not_started(
    place: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Docker SDK finds and starts helpers by itself."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place.parent / "home"))
    monkeypatch.setenv("PATH", path.format(os.environ["PATH"]))
    read_login("registry.example")
    assert (place.parent / "started").exists()  # as it would be
    (place.parent / "started").unlink()
    drop_relative_path_entries()
    assert read_login("registry.example").problem
    assert not (place.parent / "started").exists()
