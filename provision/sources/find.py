"""Finds what declares a project's packages, and reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from images.text.nearby import no_such, or_nearby
from images.text.printable import printable
from provision.sources.conda import read_environment, read_pixi
from provision.sources.declaration import Declaration, Declared, read_python
from provision.sources.errors import ProjectError
from provision.sources.files import is_file, is_there, line_of, read_text, read_toml, table
from provision.sources.locks import read_pylock, read_uv_lock
from provision.sources.pyproject import read_pyproject
from provision.sources.requirements import read_requirements

Reader = Callable[[Path, Path], Declaration | None]
"""Reads a file in a project's directory; None: it declares nothing."""
READERS: tuple[tuple[str, Reader], ...] = (
    ("pylock.toml", read_pylock),
    ("uv.lock", read_uv_lock),
    ("requirements.txt", read_requirements),
    ("pyproject.toml", read_pyproject),
    ("environment.yml", read_environment),
    ("environment.yaml", read_environment),
    ("pixi.toml", read_pixi),
)
"""What declares packages, the most authoritative first."""
MOST_PACKAGES = 5_000
"""More than any project requires; a plan for that many takes seconds."""
_OTHER_TOOLS = {
    "poetry.lock": "poetry export -o requirements.txt",
    "Pipfile.lock": "pipenv requirements > requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "setup.py": "uv pip compile setup.py -o requirements.txt",
    "setup.cfg": "uv pip compile setup.cfg -o requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
}
_PYTHON = re.compile(r"(?:cpython[-@])?(3\.\d{1,3})(?:\.\d+)?(?:[-+].*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A directory and what it declares. `python` is that of .python-version ("3.11"), or None;
    `notes` say what was read and what was not.
    """

    root: Path
    declared: Declaration
    python: Declared | None = None
    notes: tuple[str, ...] = ()

    def refuse_to_replace(self, output: Path) -> None:
        """ProjectError: this file is the one that declares the project's packages."""
        try:
            same = (self.root / self.declared.source).samefile(output)
        except OSError:
            same = False
        if same:
            raise ProjectError(
                f"The lock would replace {self.declared.source}, which declares the project's "
                "packages.",
                fix="Write it to another file: --output pylock.gpu.toml",
            )


def project_directory(text: str) -> Path:
    """The directory that is named on the command line. ProjectError: there is none."""
    path = Path(text or ".")
    try:
        if path.is_dir():
            return path.resolve()
        exists = path.exists()
    except (OSError, ValueError):  # too long, or a NUL
        exists = False
    shown = printable(text, limit=100)
    if exists:
        raise ProjectError(
            f"{shown} is not a directory.",
            fix="Name the directory of the project: provision build DIR",
        )
    raise ProjectError(
        no_such("directory", shown),
        fix=or_nearby(
            shown, "Name the directory of the project: provision build DIR", keep=Path.is_dir
        ),
    )


def read_project(root: Path) -> Project:
    """Read the first file that declares packages. ProjectError: there is none, or it is invalid."""
    there = [(name, read) for name, read in READERS if is_file(root / name)]
    for position, (name, read) in enumerate(there):
        declared = read(root / name, root)
        if declared is None:
            continue
        if len(declared.packages) > MOST_PACKAGES:
            raise ProjectError(
                f"{declared.source} declares {len(declared.packages):,} packages; an image takes "
                f"{MOST_PACKAGES:,}.",
                fix="Declare only what the project imports.",
            )
        says = declared.packages or declared.left_out or declared.itself
        if not says and there[position + 1 :]:
            continue  # a pyproject.toml beside conda's file often names only the project
        if declared.itself:
            declared = _with_pyproject(declared, root)
        skipped = [other for other, _ in there[position + 1 :] if other != "pyproject.toml"]
        notes = [f"The packages are those of {declared.source}."]
        if skipped:
            notes.append(f"Not read: {', '.join(skipped)}; {name} comes first.")
        notes += _ours(there[:position])
        notes += _other_tools(root, declared)
        return Project(
            root=root,
            declared=replace(declared, python=declared.python or _requires_python(root)),
            python=_python_version(root),
            notes=tuple(notes),
        )
    raise _declares_nothing(root)


def _ours(skipped: list[tuple[str, Reader]]) -> Iterator[str]:
    if any(name == "pylock.toml" for name, _ in skipped):
        yield (
            "pylock.toml was written by provision lock, and is not read again. To build what it "
            "says, add --lock pylock.toml."
        )


def _other_tools(root: Path, declared: Declaration) -> Iterator[str]:
    if declared.locked:
        return
    for name, command in _OTHER_TOOLS.items():
        if name.endswith(".lock") and is_file(root / name):
            yield f"{name} is not read; to keep its versions: {command}"


def _with_pyproject(declared: Declaration, root: Path) -> Declaration:
    """With what the project itself requires, where a file installs the project, too."""
    path = root / "pyproject.toml"
    own = read_pyproject(path, root) if is_file(path) else None
    if own is None:
        return declared
    names = {one.name for one in declared.packages}
    more = tuple(one for one in own.packages if one.name not in names)
    return replace(
        declared,
        packages=(*declared.packages, *more),
        python=declared.python or own.python,
        cuda=declared.cuda or own.cuda,
        left_out=tuple(dict.fromkeys((*declared.left_out, *own.left_out))),
    )


def _requires_python(root: Path) -> Declared | None:
    path = root / "pyproject.toml"
    if not is_file(path):
        return None
    text = read_text(path, root)
    said = table(read_toml(text, path.name), "project").get("requires-python")
    return read_python(said, path.name, line_of(text, r"requires-python\s*="))


def _python_version(root: Path) -> Declared | None:
    path = root / ".python-version"
    if not is_file(path):
        return None
    lines = read_text(path, root).splitlines()
    for number, line in enumerate(lines, start=1):
        word = line.partition("#")[0].strip()
        if word:
            match = _PYTHON.fullmatch(word)
            return Declared(match[1], path.name, number) if match else None
    return None


def _declares_nothing(root: Path) -> ProjectError:
    shown = printable(str(root), limit=100)
    if not os.access(root, os.R_OK | os.X_OK):
        return ProjectError(
            f"{shown} cannot be read: permission denied.",
            fix="Make the directory readable, or run the command as its owner.",
        )
    odd = [name for name, _ in READERS if is_there(root / name) and not is_file(root / name)]
    names = ", ".join(dict.fromkeys(name for name, _ in READERS if name != "environment.yaml"))
    other = next((name for name in _OTHER_TOOLS if is_file(root / name)), None)
    try:
        more = sorted(
            one.relative_to(root).as_posix()
            for pattern in ("*requirements*.txt", "requirements/*.txt")
            for one in root.glob(pattern)
            if is_file(one)
        )
    except OSError:
        more = []
    fix = "Write the packages into a requirements.txt, one on each line; or omit the directory "
    fix += "and name packages by --with."
    if other is not None:
        fix = f"{other} is not read; to keep its packages: {_OTHER_TOOLS[other]}"
    elif more:
        fix = f"Include it in a requirements.txt: -r {printable(more[0], limit=100)}"
    said = f"{shown} declares no packages: it has none of {names} with dependencies."
    if odd:
        said += f" {odd[0]} is not a regular file."
    return ProjectError(said, fix=fix)
