"""Releases with a source only: uv is asked again with what was built, and runs no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from images.wheels.remote_file import RemoteFile, Wheel
from provision.errors import LockFileError
from provision.lock.lockfile import for_installer, lock_table, parse_lock, read_lock
from provision.lock.solve import run_uv
from provision.lock.source_builds import GitSource, SourceBuild
from provision.lock.sources import (
    NotBuilt,
    SourceView,
    SourceWheel,
    SourceWheels,
    passed_over,
    without_wheel,
)
from provision.lock.uv import Outcome, WheelTarget, guarded_python, not_built
from provision.lock.wheels import built_here, finished
from provision.model.plan import Plan
from tests.kit.cases import cases
from tests.kit.company import make_repository
from tests.kit.local_index import pure, serving_uv
from tests.kit.programs import run_program
from tests.unit.provision.lock.test_lock import PLAN

TARGET = WheelTarget("3.11", "x86_64", 36)
HOOK = "import sys\nsys.path = [] + sys.path\nfrom setuptools.build_meta import __legacy__"
QUERY = (
    'import sys; sys.path = [__import__("os").fsdecode(b"/c")] + sys.path; '
    "from python.get_interpreter_info import main; main()"
)
SDIST = RemoteFile(
    name="quiet", version="1.2", url="https://i.example/quiet-1.2.tar.gz", size=9, sha256="a" * 64
)
COMMIT = GitSource(url="https://git.example/quiet.git", commit="b" * 40, tree="c" * 40)
BACKEND = Wheel(
    name="setuptools",
    version="90.1",
    url="https://i.example/setuptools-90.1-py3-none-any.whl",
    size=5,
    sha256="d" * 64,
)


def build(source: RemoteFile | GitSource = SDIST) -> SourceBuild:
    return SourceBuild(
        name="quiet",
        version="1.2",
        wheel="quiet-1.2-py3-none-any.whl",
        sha256="e" * 64,
        size=7,
        source=source,
        index="https://i.example/simple" if source is SDIST else None,
        backend=(BACKEND,),
        python="3.11",
    )


# ---- uv starts no code of a package ----


@cases(
    "words runs",
    ("what uv asks an interpreter", ["-I", "-B", "-c", QUERY], True),
    ("a hook of a build backend", ["-c", HOOK], False),
    ("a hook with the same options", ["-I", "-B", "-c", HOOK], False),
    ("a hook that has the words", ["-I", "-B", "-c", f"{HOOK}; {QUERY}"], False),
    ("a module", ["-m", "pip"], False),
    ("a script", ["setup.py"], False),
    ("nothing", [], False),
)
def test_the_python_that_uv_gets_runs_only_its_question(
    words: list[str], tmp_path: Path, *, runs: bool
) -> None:
    python = guarded_python(tmp_path)
    assert python is not None
    done = run_program([python, *words])
    # uv's module is not here: that Python started is seen in its error
    assert ("get_interpreter_info" in done.stderr or "No module named" in done.stderr) is runs
    assert ("runs in a sandbox only" in done.stderr) is not runs
    assert done.returncode != 0


@cases(
    "text expected",
    ("with what requires it",
     ("error: Failed to build `quiet==1.2`\n  cause: The build backend returned an error\n\n"
      "hint: `quiet` (v1.2) was included because `loud` (v3) depends on `quiet>=1`\n"),
     ("quiet", "1.2", "`quiet` (v1.2) was included because `loud` (v3) depends on `quiet>=1`")),
    ("requested", "error: Failed to download and build `quiet==1.2`\n  cause: x\n",
     ("quiet", "1.2", "")),
    ("no solution", "error: No solution found when resolving dependencies", None),
)  # fmt: skip
def test_what_uv_could_not_build_is_read(text: str, expected: tuple[str, ...] | None) -> None:
    assert not_built(text) == expected


# ---- the rounds ----


class Scripted:
    """An index with the source of packages, which uv and a maker see: `needs` of each release."""

    def __init__(self, place: Path, *plain: str, dynamic: tuple[str, ...] = ()) -> None:
        self.plain = plain
        self.dynamic = dynamic
        self.place = place
        self.made: list[str] = []
        self.views: list[SourceView] = []

    def make(
        self, name: str, version: str, target: WheelTarget, plan: Plan | None
    ) -> SourceWheel | NotBuilt:
        del target, plan
        self.made.append(name)
        if name not in self.plain:
            why = "its setup.py imports torch"
            return NotBuilt(name=name, version=version, why="compiler", message=why)
        path = self.place / f"{name}-{version}-py3-none-any.whl"
        path.write_bytes(b"wheel")
        source = replace(SDIST, url=f"https://i.example/{name}-{version}.tar.gz")
        made = replace(build(), name=name, version=version, wheel=path.name, source=source)
        return SourceWheel(path=path, build=made)

    def from_git(self, line: str, target: WheelTarget) -> SourceWheel:
        found = self.make(line.partition(" ")[0], "9", target, None)
        assert isinstance(found, SourceWheel)
        return found

    def run(self, view: SourceView) -> tuple[Outcome, str, str]:
        """uv: the newest releases are of 2.0 and sources; those of 1.0 have wheels."""
        self.views.append(view)
        built = {one.build.name: one for one in view.built if one.build}
        stubs = {one.name for one in view.stubs} - view.wheels_only
        rows = []
        for name in (*self.plain, "kernels", "old"):
            if name in built:
                rows.append(entry(name, "2.0", wheel=built[name].path.as_uri()))
            elif name == "kernels" and name in view.wheels_only:
                return "unsolvable", "no", "error: all versions of kernels have no usable wheels"
            elif name in view.wheels_only:
                rows.append(
                    entry(name, "1.0", wheel=f"https://i.example/{name}-1.0-py3-none-any.whl")
                )
            elif name in self.dynamic and name not in stubs:
                return "broken", "", f"error: Failed to build `{name}==2.0`\n"
            elif name in self.plain or name in self.dynamic or name == "old":
                rows.append(entry(name, "2.0"))
        return "locked", "has it", 'lock-version = "1.0"\ncreated-by = "uv"\n' + "".join(rows)


def entry(name: str, version: str, wheel: str = "") -> str:
    sdist = f'url = "https://i.example/{name}-{version}.tar.gz", hashes = {{sha256 = "{"0" * 64}"}}'
    row = f'[[packages]]\nname = "{name}"\nversion = "{version}"\nsdist = {{{sdist}}}\n'
    if wheel:
        row += f'wheels = [{{url = "{wheel}", hashes = {{sha256 = "{"1" * 64}"}}}}]\n'
    return row


def versions(text: str) -> Mapping[str, str]:
    return {str(one.name): str(one.version) for one in parse_lock(text).packages}


def test_what_is_plain_is_built_and_the_rest_is_passed_over(tmp_path: Path) -> None:
    index = Scripted(tmp_path, "alpha", "beta", dynamic=("beta",))
    outcome, _, text = SourceWheels(index).resolve(index.run, TARGET)
    assert outcome == "locked"
    assert versions(text) == {"alpha": "2.0", "beta": "2.0", "old": "1.0"}
    passed = passed_over(text)
    assert passed is not None
    assert [(one.name, one.version) for one in passed.packages] == [("old", "2.0")]
    assert passed.releases["old"] == "2.0"
    assert sorted(index.made) == ["alpha", "beta", "old"]  # each once


def test_all_that_blocks_is_named_at_once(tmp_path: Path) -> None:
    index = Scripted(tmp_path, dynamic=("kernels",))
    wheels = SourceWheels(index)
    outcome, _, _ = wheels.resolve(index.run, TARGET)
    assert outcome == "unsolvable"
    assert {one.name for one in wheels.blocked} == {"kernels", "old"}
    assert index.views[-1].wheels_only == {"kernels", "old"}


def test_a_commit_is_built_before_uv_is_asked(tmp_path: Path) -> None:
    index = Scripted(tmp_path, "quiet")
    wheels = SourceWheels(index)
    for _ in range(2):
        lines = wheels.lines(["quiet @ git+https://h.example/quiet@main", "x==1"], (), TARGET)
        assert lines == [f"quiet @ {(tmp_path / 'quiet-9-py3-none-any.whl').as_uri()}", "x==1"]
    assert index.made == ["quiet"]


@cases(
    "files",
    ("whose metadata only its build knows",
     {"setup.py": "from setuptools import setup; setup(name='inner')"}),
    ("whose metadata is static", {"pyproject.toml": "[project]\nname = 'inner'\nversion = '9'\n"}),
)  # fmt: skip
def test_a_repository_that_a_built_package_requires_is_built_too(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = make_repository(tmp_path / "inner.git", files)
    inner = f"inner @ git+file://{tmp_path}/inner.git@{commit}"
    own = dict([pure("outer", "9", inner), pure("inner", "9")])
    for name, data in own.items():
        (tmp_path / name).write_bytes(data)

    class Maker(Scripted):
        def from_git(self, line: str, target: WheelTarget) -> SourceWheel:
            del target
            self.made.append(line)
            path = tmp_path / f"{line.partition(' ')[0]}-9-py3-none-any.whl"
            source = replace(COMMIT, commit=commit)
            made = replace(build(source), name=line.partition(" ")[0], version="9", wheel=path.name)
            return SourceWheel(path=path, build=made)

    maker = Maker(tmp_path)
    with serving_uv(monkeypatch, tmp_path):
        outcome, reason, text = run_uv(
            ["outer @ git+https://h.example/outer@v1"],
            TARGET,
            index=None,
            ca_bundle=None,
            offline=False,
            sources=SourceWheels(maker),
        )
    assert outcome == "locked", f"{reason} {text}"
    assert maker.made == ["outer @ git+https://h.example/outer@v1", inner]
    assert {one.name: bool(one.wheels) for one in parse_lock(text).packages} == {
        "inner": True, "outer": True
    }  # fmt: skip
    assert [row["name"] for row in lock_table(text)["packages"] if built_here(row)] == [
        "inner", "outer"
    ]  # fmt: skip


@cases(
    "wheel found",
    ("a source alone", "", True),
    ("a wheel of another system", "https://h/x-1-cp39-cp39-win_amd64.whl", True),
    ("a wheel that fits", "https://h/x-1-py3-none-any.whl", False),
)
def test_packages_without_a_wheel_that_fits(wheel: str, *, found: bool) -> None:
    text = 'lock-version = "1.0"\ncreated-by = "uv"\n' + entry("x", "1", wheel=wheel)
    assert list(without_wheel(text, TARGET)) == ([("x", "1")] if found else [])


# ---- the lock ----


@pytest.mark.parametrize("source", [SDIST, COMMIT, replace(COMMIT, subdirectory="a/b")])
def test_a_lock_says_how_a_wheel_was_built(source: RemoteFile | GitSource, tmp_path: Path) -> None:
    path = tmp_path / "quiet-1.2-py3-none-any.whl"
    path.write_bytes(b"wheel")
    made = build(source)
    wheels = SourceWheels(Scripted(tmp_path))
    wheels._known["quiet", "1.2"] = SourceWheel(path=path, build=made)
    text = 'lock-version = "1.0"\ncreated-by = "uv"\n' + entry("quiet", "1.2", wheel=path.as_uri())
    _, _, found = wheels.resolve(lambda _: ("locked", "", text), TARGET)
    lock = read_lock(finished(found, PLAN, None, offline=True))
    assert lock.builds == (made,)
    [wheel] = lock.wheels
    assert (wheel.sha256, wheel.size) == (made.sha256, made.size)
    assert wheel.url == made.unknown_place
    assert str(tmp_path) not in lock.text  # it can be built on another machine
    # as other installers read it
    [package] = parse_lock(lock.text).packages
    assert (package.sdist is None) is (source is not SDIST)
    assert package.wheels is None
    # as an engine gets it
    [given] = parse_lock(for_installer(lock)).packages
    assert (given.sdist, given.vcs) == (None, None)
    [one] = given.wheels or ()
    assert (one.url, one.hashes) == (made.unknown_place, {"sha256": made.sha256})


@cases(
    "old new",
    ("the digest", f'sha256 = "{"e" * 64}"', 'sha256 = "e"'),
    ("a path for a name", "quiet-1.2-py3-none-any.whl", "../../x.whl"),
    ("the Python", 'python = "3.11"', 'python = "3.11; x"'),
    ("a program as address", "https://git.example/quiet.git", "ext::sh -c x"),
    ("an option as commit", "b" * 40, "--upload-pack=x"),
    ("a way out", 'subdirectory = "a/b"', 'subdirectory = "a/../.."'),
    ("the digest of the backend", "d" * 64, "d"),
    ("the size", "size = 7", "size = -7"),
)
def test_a_malformed_build_is_refused(old: str, new: str) -> None:
    import tomli_w

    data = {"lock-version": "1.0", "created-by": "x"}
    text = tomli_w.dumps(
        {**data, "packages": [build(replace(COMMIT, subdirectory="a/b")).to_entry()]}
    )
    whole = read_plan(text)
    assert read_lock(whole).builds
    assert old in whole
    with pytest.raises(LockFileError):
        read_lock(whole.replace(old, new))


def read_plan(text: str) -> str:
    table = finished(
        'lock-version = "1.0"\ncreated-by = "uv"\npackages = []\n', PLAN, None, offline=True
    )
    return text + table[table.index("[tool.") :]
