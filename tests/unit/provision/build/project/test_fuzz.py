"""Damaged declarations: each is read, or refused with its name; nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from provision.build.project.code import read_code
from provision.build.project.request import ProjectConflictError, request_of
from provision.catalog.loading import load
from provision.errors import BadInputError
from provision.model.plan import Request
from provision.sources.declaration import pythons_of
from provision.sources.errors import ProjectError
from provision.sources.find import read_project
from tests.kit.projects import project
from tests.unit.provision.sources.test_conda import ENVIRONMENT, PIXI
from tests.unit.provision.sources.test_find import STANDARD
from tests.unit.provision.sources.test_locks import PYLOCK, UV
from tests.unit.provision.sources.test_pyproject import POETRY

SAMPLES = {
    "pylock.toml": PYLOCK,
    "uv.lock": UV,
    "requirements.txt": "torch==2.5.1+cu121\n-c c.txt\n--extra-index-url https://h.example\na[b]>1;"
    " python_version<'3.9'\n",
    "pyproject.toml": STANDARD + POETRY,
    "environment.yml": ENVIRONMENT,
    "pixi.toml": PIXI,
    "setup.py": "A = ['torch']\nsetup(install_requires=A + open('c.txt').readlines(),"
    " python_requires='>=3.9')\n",
    "setup.cfg": "[options]\ninstall_requires =\n  torch==2.5.1\npython_requires = >=3.9\n",
}

KNOWN = pythons_of(load())


def take(name: str, content: bytes) -> None:
    """Read a project with one file, as a build does."""
    with tempfile.TemporaryDirectory() as made:
        refused = refusal(project(Path(made), {name: content, "c.txt": "b<2"}))
    if refused is not None:
        assert isinstance(refused, ProjectError | ProjectConflictError) or name in refused.message
        assert refused.fix


def refusal(root: Path) -> BadInputError | None:
    try:
        request_of(read_project(root), Request(), named=False, arch="x86_64", known=KNOWN)
    except BadInputError as error:
        return error
    return None


EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 12), st.binary(max_size=6)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", SAMPLES)
@given(edits=EDITS)
def test_changed_bytes_are_no_bug(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    content = bytearray(SAMPLES[name].encode())
    for place, count, new in edits:
        at = place % (len(content) + 1)
        content[at : at + count] = new
    take(name, bytes(content))


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=8), st.just("==1.0")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "name", "version", "source", "registry", "editable", "dependencies", "marker",
                    "wheels", "hash", "package", "packages", "project", "tool", "poetry", "scripts",
                    "path", "url", "extras", "requires-python", "pypi-dependencies", "python",
                    "uv", "sources", "index", "git", "a", "b",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
TABLES = st.dictionaries(
    st.sampled_from(
        [
            "package", "packages", "project", "tool", "dependencies", "pypi-dependencies",
            "dependency-groups", "build-system", "requires-python",
        ]
    ),
    VALUES,
    max_size=4,
)  # fmt: skip


@pytest.mark.parametrize("name", ["pylock.toml", "uv.lock", "pyproject.toml", "pixi.toml"])
@given(document=TABLES)
def test_values_of_other_types_are_no_bug(name: str, document: dict[str, Any]) -> None:
    head = {"version": 1, "lock-version": "1.0"}
    take(name, tomli_w.dumps({**head, **document}).encode())


@given(document=TABLES)
def test_what_is_run_is_read_from_any_document(document: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = project(Path(made), {"pyproject.toml": tomli_w.dumps(document)})
        read_code(root)
