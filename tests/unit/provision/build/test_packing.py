"""What becomes a lazy layer, and which files are fetched before a start."""

from __future__ import annotations

import json
import py_compile
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from images.assembly.build import Recipe
from images.layers.errors import WheelRefusedError
from images.layers.lazy.layer import LazyLayer
from images.oci.assemble import ContainerSettings
from images.system.errors import NoRunnerError
from provision.build import opened_files, packing
from provision.build.packing import ImportRecording, compressed, lazy
from tests.kit.cases import cases
from tests.kit.memory_target import DictMemory, TextLayer
from tests.kit.programs import run_program
from tests.kit.sandbox_images import entry, image, layer

NO_RUNNER = NoRunnerError("No sandbox.", fix="Get one.")
FILES = ("opt/a", "opt/b")


@dataclass
class Facts:
    """A store of facts only."""

    found: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def facts(self, kind: str, key: str) -> dict[str, Any] | None:
        return self.found.get((kind, key))

    def remember_facts(self, kind: str, key: str, facts: dict[str, Any]) -> None:
        self.found[kind, key] = facts


@dataclass
class Said:
    """Stands for a console and a fetcher: it keeps warnings, and downloads nothing."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str, fix: str = "") -> None:
        self.warnings.append(f"{text} {fix}")

    def progress(self, text: str) -> None:
        pass

    def prefetch(self, wheels: object) -> None:
        pass


def recording(store: Facts, said: Said) -> ImportRecording:
    parts = ("torch", DictMemory(), store, said, Path("/nowhere"), said)
    return ImportRecording(*cast("Any", parts))


def recipe(*titles: str) -> Recipe:
    settings = ContainerSettings(env={}, working_dir="/", command=("python3",))
    base = image((layer(entry("bin/sh", b"sh")),), {})
    return Recipe(base=base, sources=tuple(map(TextLayer, titles)), settings=settings)


def recorded(monkeypatch: pytest.MonkeyPatch, answer: object) -> list[str]:
    """Replace the run in a sandbox; returns what it was asked for."""
    asked = []

    def record(_: Recipe, key: str, __: ImportRecording) -> object:
        asked.append(key)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(packing, "_record", record)
    return asked


def test_what_is_added_is_one_layer_and_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recorded(monkeypatch, FILES)
    store, said = Facts(), Said()
    for _ in range(2):
        made = lazy(recipe("a", "b"), "zstd", recording(store, said), own_base=True)
        below, above = made.sources
        assert isinstance(below, LazyLayer)
        assert isinstance(above, LazyLayer)
        assert (below.title, above.first) == ("base, lazy", FILES)
        assert [source.title for source in above.sources] == ["a", "b"]
        assert made.base.layers == ()
    assert len(asked) == 1
    lazy(recipe("a", "c"), "zstd", recording(store, said), own_base=True)
    assert len(asked) == 2
    assert said.warnings == []


def test_another_base_stays_as_it_is_and_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, FILES)
    said, before = Said(), recipe("a")
    made = lazy(before, "gzip", recording(Facts(), said), own_base=False)
    assert made.base.layers == before.base.layers
    assert len(made.sources) == 1
    assert "--base bootstrap" in said.warnings[0]


def test_without_a_sandbox_there_is_no_landmark_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded(monkeypatch, NO_RUNNER)
    said, store = Said(), Facts()
    made = lazy(recipe("a"), "zstd", recording(store, said), own_base=True)
    assert [cast("LazyLayer", one).first for one in made.sources] == [None, None]
    assert "No sandbox." in said.warnings[0]
    assert store.found == {}


def test_a_wheel_that_is_refused_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, WheelRefusedError("a.whl", "is damaged"))
    with pytest.raises(WheelRefusedError):
        lazy(recipe("a"), "zstd", recording(Facts(), Said()), own_base=True)


def test_a_damaged_memory_is_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recorded(monkeypatch, FILES)
    store = Facts()
    lazy(recipe("a"), "zstd", recording(store, Said()), own_base=True)
    for key in store.found:
        store.found[key] = {"files": ["x", 1]}
    lazy(recipe("a"), "zstd", recording(store, Said()), own_base=True)
    assert len(asked) == 2


def test_ordinary_compressions_keep_the_layers() -> None:
    plain = recipe("a", "b")
    assert compressed(plain, "gzip") is plain
    assert len(compressed(plain, "zstd").sources) == 2


@cases(
    "text expected",
    ("two", 'noise\n["/opt/b", "/opt/a"]\n', FILES),
    ("nothing", "", None),
    ("none", "[]", None),
    ("an object", "{}", None),
    ("a number", "[1]", None),
    ("too deep", "[" * 100_000, None),
)
def test_what_the_program_says_is_read_strictly(text: str, expected: object) -> None:
    assert packing._read(text) == expected


def test_the_program_names_the_small_files_that_an_import_opens(tmp_path: Path) -> None:
    package = tmp_path / "thing"
    package.mkdir()
    code = "from pathlib import Path\nPath(__file__).with_name('data').read_bytes()\n"
    code += "Path(__file__).with_name('large').read_bytes()\n"
    (package / "__init__.py").write_text(code)
    (package / "source.py").write_text("")
    (package / "unused").write_text("")
    (package / "data").write_text("1")
    (package / "large").write_bytes(bytes(2000))
    kind = py_compile.PycInvalidationMode.UNCHECKED_HASH
    cached = py_compile.compile(str(package / "__init__.py"), invalidation_mode=kind)
    program = Path(opened_files.__file__).read_text(encoding="utf-8")
    argv = [sys.executable, "-c", program, "thing", str(tmp_path), "2000"]
    done = run_program(argv, env={"PYTHONPATH": str(tmp_path)}, check=True)
    found = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    assert found == sorted([str(cached), str(package / "data")])
