"""Which packages are built while locking, and the reason for the others, without a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from images.wheels.remote_file import RemoteFile
from provision.build.base import BuildSettings
from provision.build.source import plain
from provision.build.source.plain import PlainWheels
from provision.build.source.recipe import WheelBuildError
from provision.lock.sources import NotBuilt, SourceWheel
from provision.lock.uv import WheelTarget
from provision.model.plan import PackageIndexes
from provision.output.console import Console
from tests.kit.cases import cases
from tests.kit.local_index import sdist

TARGET = WheelTarget("3.11", "x86_64", 36)


class Maker(PlainWheels):
    """One whose sandbox says what `said` is, and whose archives are in a directory."""

    said = ""

    def _built(self, *words: Any) -> SourceWheel:
        if self.said:
            raise WheelBuildError(f"slow 1 could not be built: {self.said}", fix="x")
        return SourceWheel(path=words[0], build=None)


@cases(
    "setup files said why",
    ("nothing but Python", "", {}, "", None),
    ("the framework", "import torch", {}, "", "compiler"),
    ("CMake", "", {"pyproject": "[build-system]\nrequires = ['cmake']"}, "", "compiler"),
    ("a compiler that nothing declares", "", {},
     "error: command 'gcc' failed: No such file or directory", "compiler"),
    ("nvcc", "", {}, "[Errno 2] No such file or directory: 'nvcc'", "compiler"),
    ("a compiler that the base has", "", {}, "The build made x.whl: it has compiled parts.",
     "compiler"),
    ("a module that it did not declare", "", {}, "ModuleNotFoundError: No module named 'numpy'",
     "failed"),
    ("a file that is not a compiler", "", {},
     "FileNotFoundError: [Errno 2] No such file or directory: 'README'", "failed"),
)  # fmt: skip
def test_a_release_is_built_or_its_reason_is_known(
    setup: str,
    files: dict[str, str],
    said: str,
    why: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, data = sdist("slow", "1", setup, **files)
    (tmp_path / name).write_bytes(data)
    file = RemoteFile(name="slow", version="1", url=f"https://h/{name}", size=1, sha256="a" * 64)
    monkeypatch.setattr(plain, "find_listed", lambda *_: (file, "https://h/simple"))
    monkeypatch.setattr(plain, "download", lambda *_, **__: tmp_path / name)
    settings = BuildSettings(ca=None, offline=False, state=tmp_path, env={})
    maker = Maker(lambda _: (), PackageIndexes(), settings, Console())
    maker.said = said
    found = maker.make("slow", "1", TARGET, None)
    assert (found.why if isinstance(found, NotBuilt) else None) == why


@cases(
    "name why",
    ("wheels on its maker's index", "tensorrt-llm", "elsewhere"),
    ("no network", "slow", "offline"),
)
def test_what_is_not_tried(name: str, why: str, tmp_path: Path) -> None:
    settings = BuildSettings(ca=None, offline=True, state=tmp_path, env={})
    found = PlainWheels(lambda _: (), PackageIndexes(), settings, Console()).make(
        name, "1", TARGET, None
    )
    assert isinstance(found, NotBuilt)
    assert found.why == why
