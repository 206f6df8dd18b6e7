"""Which source archive of an index is taken, and what is read in it."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from provision.build.base import BuildSettings, OfflineError
from provision.build.source.sdists import (
    NoSdistError,
    declared_requirements,
    find_listed,
    find_sdist,
    newest_sdist,
    read_requirement,
    suffix_of,
)
from provision.catalog.index.pages import PageFile
from provision.errors import BadInputError
from provision.model.plan import DeclaredIndex, PackageIndexes
from tests.kit.cases import cases
from tests.kit.local_index import LocalIndex, serving_uv

SHA = "a" * 64


def file(name: str, **more: Any) -> PageFile:
    return PageFile(name=name, url=f"https://h/{name}", **{"sha256": SHA, **more})


PAGE = [
    file("torch_scatter-2.0.9.tar.gz"),
    file("torch_scatter-2.1.2.tar.gz", requires_python=">=3.8"),
    file("torch_scatter-2.1.10.tar.gz", requires_python=">=3.12"),
    file("torch_scatter-2.1.3.tar.gz", yanked=True),
    file("torch_scatter-2.1.4.tar.gz", sha256=None),
    file("torch_scatter-2.2.0rc1.tar.gz"),
    file("torch_scatter-9-py3-none-any.whl"),
    file("torch_scatter-2.0.9.zip"),
    file("torch_scatter-1.3.zip"),
    file("torch-scatter-extra-8.tar.gz"),
    file("nonsense.tar.gz"),
    file("torch_scatter-2.1.5.tar.gz", requires_python="nonsense"),
]


@cases(
    "requirement python expected",
    ("the newest for the image's Python", "torch-scatter", "3.11", "2.1.2"),
    ("another Python allows a newer one", "torch-scatter", "3.12", "2.1.10"),
    ("the requirement holds", "torch-scatter<2.1", "3.12", "2.0.9"),
    ("a yanked one if it is named", "torch-scatter==2.1.3", "3.12", "2.1.3"),
    ("a pre-release, too", "torch-scatter==2.2.0rc1", "3.12", "2.2.0rc1"),
    ("a zip, if there is nothing else", "torch-scatter<2", "3.12", "1.3"),
    ("none that is allowed", "torch-scatter>3", "3.12", None),
    ("none without a digest", "torch-scatter==2.1.4", "3.12", None),
)
def test_the_newest_source_archive(requirement: str, python: str, expected: str | None) -> None:
    found = newest_sdist(PAGE, read_requirement(requirement), python)
    assert (found.version if found else None) == expected
    assert found is None or suffix_of(found) == (".zip" if expected == "1.3" else ".tar.gz")


@cases(
    "text",
    ("empty", ""),
    ("two words", "a b"),
    ("an address", "x @ https://h/x.tar.gz"),
    ("a marker", "x; python_version > '3'"),
    ("a version with many digits", f"x=={'9' * 5000}"),
    ("brackets by the thousand", f"x; {'(' * 3000}"),
)
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="is not the name of a package"):
        read_requirement(text)


def archive(place: Path, files: dict[str, bytes]) -> Path:
    path = place / "a-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


@cases(
    "files expected",
    ("as declared",
     {"a-1/pyproject.toml": b'[build-system]\nrequires = ["setuptools>=61", "torch"]\n'},
     ("setuptools>=61", "torch")),
    ("no build system", {"a-1/pyproject.toml": b"[project]\n"}, ()),
    ("only a setup.py", {"a-1/setup.py": b""}, ()),
    ("another one further inside", {"a-1/b/pyproject.toml": b"nonsense"}, ()),
)  # fmt: skip
def test_the_declared_build_requirements(
    files: dict[str, bytes], expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert declared_requirements(archive(tmp_path, files), "a-1.tar.gz") == expected
    with zipfile.ZipFile(tmp_path / "a-1.zip", "w") as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    assert declared_requirements(tmp_path / "a-1.zip", "a-1.zip") == expected


@cases(
    "content",
    ("no archive", b"no archive"),
    ("no TOML", {"a-1/pyproject.toml": b"= nonsense"}),
    ("no text", {"a-1/pyproject.toml": b"\xff"}),
    ("no requirement", {"a-1/pyproject.toml": b'[build-system]\nrequires = ["a b"]'}),
    ("no list", {"a-1/pyproject.toml": b"[build-system]\nrequires = 7"}),
)
def test_a_source_that_cannot_be_read_is_refused(
    content: bytes | dict[str, bytes], tmp_path: Path
) -> None:
    if isinstance(content, bytes):
        path = tmp_path / "a-1.tar.gz"
        path.write_bytes(content)
    else:
        path = archive(tmp_path, content)
    with pytest.raises(NoSdistError, match=r"a-1\.tar\.gz cannot be read"):
        declared_requirements(path, "a-1.tar.gz")


def settings(tmp_path: Path, *, offline: bool = False) -> BuildSettings:
    return BuildSettings(ca=None, offline=offline, state=tmp_path, env={})


def test_the_source_is_found_on_the_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving_uv(monkeypatch, tmp_path) as server:
        server.more = [("flash-2.8.3.tar.gz", b"source"), ("flash-2.8.0.tar.gz", b"older")]
        found = find_sdist(
            read_requirement("flash"),
            "3.11",
            PackageIndexes(server.url("simple")),
            settings(tmp_path),
        )
        assert (found.name, found.version) == ("flash", "2.8.3")
        declared = (DeclaredIndex(server.url("simple"), "index"),)
        here = BuildSettings(
            ca=None, offline=False, state=tmp_path, env={"UV_DEFAULT_INDEX": server.url("good")}
        )
        line = read_requirement("flash<2.8.3")
        indexes = PackageIndexes(None, declared)
        found, listed_by = find_listed(line, "3.11", indexes, here)
        assert (found.version, listed_by) == ("2.8.0", server.url("simple"))
        with pytest.raises(NoSdistError, match="no index has a package of that name"):
            _nothing(server, tmp_path)


def _nothing(server: LocalIndex, tmp_path: Path) -> None:
    index = server.url("simple")
    here = BuildSettings(ca=None, offline=False, state=tmp_path, env={"UV_DEFAULT_INDEX": index})
    find_sdist(read_requirement("absent"), "3.11", PackageIndexes(index), here)


def test_nothing_is_looked_up_offline(tmp_path: Path) -> None:
    with pytest.raises(OfflineError):
        find_sdist(
            read_requirement("x"), "3.11", PackageIndexes(), settings(tmp_path, offline=True)
        )
