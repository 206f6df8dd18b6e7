"""uv.lock and pylock.toml: all versions hold, and what the project requires is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.sources.declaration import Declaration
from provision.sources.errors import ProjectError
from provision.sources.locks import read_uv_lock
from provision.sources.pylock import read_pylock
from tests.kit.cases import cases
from tests.kit.projects import project

UV = """\
version = 1
revision = 3
requires-python = ">=3.10"

[[package]]
name = "app"
version = "0.1.0"
source = { editable = "." }
dependencies = [
    { name = "lib" },
    { name = "numpy", version = "1.26.4", source = { registry = "https://i.example/simple" }, marker = "python_full_version < '3.12'" },
    { name = "numpy", version = "2.1.0", source = { registry = "https://i.example/simple" }, marker = "python_full_version >= '3.12'" },
    { name = "torch" },
    { name = "transformers", extra = ["torch"] },
    { name = "pywin32", marker = "sys_platform == 'win32'" },
    { name = "forked" },
    { name = "held" },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "lib"
version = "0.1.0"
source = { editable = "packages/lib" }
dependencies = [{ name = "tqdm" }]

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://i.example/simple" }
resolution-markers = ["python_full_version < '3.12'"]
wheels = [{ url = "https://i.example/n.whl", hash = "sha256:AAAA" }]

[[package]]
name = "numpy"
version = "2.1.0"
source = { registry = "https://i.example/simple" }
resolution-markers = ["python_full_version >= '3.12'"]

[[package]]
name = "pywin32"
version = "306"
source = { registry = "https://i.example/simple" }

[[package]]
name = "torch"
version = "2.5.1+cu121"
source = { registry = "https://download.pytorch.org/whl/cu121" }

[[package]]
name = "tqdm"
version = "4.66.0"
source = { registry = "https://other.example/simple" }

[[package]]
name = "transformers"
version = "4.46.0"
source = { registry = "https://i.example/simple" }

[[package]]
name = "forked"
version = "1.0"
source = { url = "https://h.example/forked.tar.gz" }

[[package]]
name = "held"
version = "1.0"
source = { git = "https://h.example/held?subdirectory=py&rev=main#1f2e3d" }
""".replace("AAAA", "a" * 64)  # noqa: E501  as uv writes it

PYLOCK = """\
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.11"

[[packages]]
name = "torch"
version = "2.5.1"
wheels = [{ url = "https://i.example/torch-2.5.1-cp311-cp311-linux_x86_64.whl", hashes = { sha256 = "AAAA" } }]

[[packages]]
name = "numpy"
version = "1.26.4"
marker = "python_version < '3.12'"

[[packages]]
name = "pytest"
version = "8.0"
marker = "'dev' in dependency_groups"

[[packages]]
name = "extra"
version = "8.0"
marker = "'gpu' in extras"

[[packages]]
name = "app"
directory = { path = "." }

[[packages]]
name = "forked"
vcs = { type = "hg", url = "hg+https://h.example/forked" }

[[packages]]
name = "held"
vcs = { type = "git", url = "https://h.example/held", commit-id = "1f2e3d", subdirectory = "py" }
""".replace("AAAA", "a" * 64)  # noqa: E501


def uv_lock(root: Path, text: str = UV) -> Declaration:
    found = read_uv_lock(project(root, {"uv.lock": text}) / "uv.lock", root)
    assert found is not None
    return found


def test_what_a_uv_lock_declares(tmp_path: Path) -> None:
    found = uv_lock(tmp_path)
    assert [one.text for one in found.packages] == [
        'numpy==1.26.4; python_full_version < "3.12"',
        'numpy==2.1.0; python_full_version >= "3.12"',
        "torch==2.5.1+cu121",
        "transformers[torch]==4.46.0",
        "held @ git+https://h.example/held@1f2e3d#subdirectory=py",
        "tqdm==4.66.0",
    ]
    assert [one.text for one in found.constraints] == [
        'numpy==1.26.4; python_full_version < "3.12"',
        'numpy==2.1.0; python_full_version >= "3.12"',
        "pywin32==306",
        "torch==2.5.1+cu121",
        "tqdm==4.66.0",
        "transformers==4.46.0",
        "held @ git+https://h.example/held@1f2e3d#subdirectory=py",
    ]
    assert found.locked
    assert found.python is not None
    assert found.python.text == ">=3.10"
    assert found.members == (".", "packages/lib")
    assert found.hashes == {"numpy": frozenset({"a" * 64})}


def test_the_line_of_a_pin_is_that_of_its_package(tmp_path: Path) -> None:
    found = uv_lock(tmp_path)
    lines = UV.splitlines()
    for one in found.constraints:
        assert lines[one.line - 1] == f'name = "{one.name}"'
    numbers = [one.line for one in found.constraints if one.name == "numpy"]
    assert len(set(numbers)) == 2


def test_the_index_of_pytorch_names_the_cuda(tmp_path: Path) -> None:
    found = uv_lock(tmp_path)
    assert found.cuda is not None
    assert found.cuda.text == "12.1"


def test_what_is_not_taken_of_a_uv_lock_is_listed(tmp_path: Path) -> None:
    found = uv_lock(tmp_path)
    said = "; ".join((*(one.message for one in found.missing), *found.left_out))
    assert "forked (uv.lock, line" in said
    assert "from url" in said
    assert [(one.kind, one.name) for one in found.optional] == [("group", "dev")]
    assert "the index https://other.example/simple, which has tqdm" in said
    assert "download.pytorch" not in said


def pylock(root: Path, **more: str) -> Declaration:
    files = {"pylock.toml": PYLOCK} | {f"{name}.toml": text for name, text in more.items()}
    found = read_pylock(project(root, files) / "pylock.toml", root)
    assert found is not None
    return found


def test_a_pylock_without_a_project_is_installed_as_a_whole(tmp_path: Path) -> None:
    found = pylock(tmp_path)
    assert [one.text for one in found.packages] == [
        "torch==2.5.1",
        'numpy==1.26.4; python_version < "3.12"',
        "held @ git+https://h.example/held@1f2e3d#subdirectory=py",
    ]
    assert (found.constraints, found.locked) == ((), True)
    assert found.hashes == {"torch": frozenset({"a" * 64})}
    (one,) = found.missing
    assert one.message.startswith("forked (pylock.toml, line")


def test_beside_a_pyproject_a_pylock_holds_the_versions(tmp_path: Path) -> None:
    found = pylock(tmp_path, pyproject="[project]\nname='a'\ndependencies=['torch']")
    assert [one.text for one in found.packages] == ["torch==2.5.1"]
    assert {one.name for one in found.constraints} == {"torch", "numpy", "held"}


def test_the_lock_that_provision_writes_is_not_a_declaration(tmp_path: Path) -> None:
    text = f"{PYLOCK}\n[tool.gpu-provision]\nschema = 1\n"
    path = project(tmp_path, {"pylock.toml": text}) / "pylock.toml"
    assert read_pylock(path, tmp_path) is None


@cases(
    "name text words",
    ("a later uv.lock", "uv.lock", "version = 2", "version 1"),
    ("a number", "uv.lock", "version = 1\n[[package]]\nname = 1", "version 1"),
    ("broken TOML", "uv.lock", "version = ", "not valid TOML"),
    ("a name that is not valid", "uv.lock",
     'version = 1\n[[package]]\nname = "a b"\nversion = "1"\nsource = { registry = "x" }',
     "line 3"),
    ("no version", "pylock.toml", "packages = []", "PEP 751"),
    ("no packages", "pylock.toml", 'lock-version = "1.0"', "PEP 751"),
    ("a number of packages", "pylock.toml", 'lock-version = "1.0"\npackages = 3', "PEP 751"),
    ("a malformed marker", "pylock.toml",
     'lock-version = "1.0"\n[[packages]]\nname = "a"\nversion = "1"\nmarker = "x in extras"',
     "marker"),
)  # fmt: skip
def test_what_cannot_be_read_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    path = project(tmp_path, {name: text}) / name
    read = read_uv_lock if name == "uv.lock" else read_pylock
    with pytest.raises(ProjectError, match=r".") as caught:
        read(path, tmp_path)
    assert words in caught.value.message
