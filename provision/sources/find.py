"""Finds what declares a project's packages, and reads it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from images.text.printable import printable
from images.text.suggestions import no_such, or_nearby
from provision.model.planfile import TOOL
from provision.model.request import parse_apt
from provision.sources.conda import looks_like_environment, read_environment, read_pixi
from provision.sources.declaration import Declaration, Declared, read_python, together
from provision.sources.errors import ProjectError
from provision.sources.files import is_file, is_there, line_of, read_text, read_toml, shown, table
from provision.sources.locks import read_uv_lock
from provision.sources.pylock import read_pylock
from provision.sources.pyproject import read_pyproject
from provision.sources.requirements import read_requirements
from provision.sources.selection import select
from provision.sources.setup_script import SETUP_READERS

Reader = Callable[[Path, Path], Declaration | None]
"""Reads a file in a project's directory; None: it declares nothing."""
READERS: tuple[tuple[str, Reader], ...] = (
    ("pylock.toml", read_pylock),
    ("uv.lock", read_uv_lock),
    ("requirements.txt", read_requirements),
    ("pyproject.toml", read_pyproject),
    ("environment.yml", read_environment),
    ("environment.yaml", read_environment),
    ("conda.yml", read_environment),
    ("conda.yaml", read_environment),
    ("env.yml", read_environment),
    ("env.yaml", read_environment),
    ("pixi.toml", read_pixi),
    *SETUP_READERS,
)
"""What declares packages, the most authoritative first."""
_NAMES: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"pylock(\..+)?\.toml"), read_pylock),
    (re.compile(r".+\.(txt|in)"), read_requirements),
    (re.compile(r".+\.ya?ml"), read_environment),
    *((re.compile(re.escape(name)), read) for name, read in READERS),
)
_OF_LISTS = re.compile(r"requirements?|reqs?|conda|envs?|environments?|deps|dependencies")
"""Folders of a project that have its lists of packages, and not its code."""
_OWN = frozenset({"pyproject.toml", "setup.py", "setup.cfg"})
_MOST_SHOWN = 4
_MOST_FOLDERS = 200
MOST_PACKAGES = 5_000
"""More than any project requires; a plan for that many takes seconds."""
_OTHER_TOOLS = {
    "poetry.lock": "poetry export -o requirements.txt",
    "Pipfile.lock": "pipenv requirements > requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
}
_PYTHON = re.compile(r"(?:cpython[-@])?(3\.\d{1,3})(?:\.\d+)?(?:[-+].*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A directory and what it declares. `python` is that of .python-version ("3.11"), or None;
    `notes` say what was read and what was not; `apt` are the Debian packages that it needs.
    """

    root: Path
    declared: Declaration
    python: Declared | None = None
    apt: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def selected(
        self,
        *,
        extras: Sequence[str] = (),
        groups: Sequence[str] = (),
        without: Sequence[str] = (),
        imports: Callable[[], Collection[str]] = frozenset,
    ) -> Project:
        """The project with what is chosen of it. ProjectError: see `selection.select`."""
        declared = select(
            self.declared, extras=extras, groups=groups, without=without, imports=imports
        )
        return replace(self, declared=declared)

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


class ProjectPath(NamedTuple):
    """What the command line names: the directory of a project, and one of its files or None."""

    root: Path
    file: Path | None = None


def project_path(text: str) -> ProjectPath:
    """A directory, or a file that declares packages: its directory is the project's, or the one
    above a folder of lists (requirements/prod.txt). ProjectError: there is neither.
    """
    path = Path(text or ".")
    shown_ = printable(text, limit=100)
    try:
        if path.is_dir():
            return ProjectPath(path.resolve())
        if path.is_file():
            place = path.parent.resolve()
            lists = _OF_LISTS.fullmatch(place.name.lower()) and place.parent != Path("/")
            return ProjectPath(place.parent if lists else place, place / path.name)
        exists = path.exists()
    except (OSError, ValueError):  # too long, or a NUL
        exists = False
    fix = "Name the directory of the project, or a file that lists its packages."
    if exists:
        raise ProjectError(f"{shown_} is neither a directory nor a regular file.", fix=fix)
    raise ProjectError(no_such("file or directory", shown_), fix=or_nearby(shown_, fix))


def read_project(root: Path, file: Path | None = None) -> Project:
    """Read a file of a project; without one the first that declares packages. ProjectError: there
    is none, or it is invalid.
    """
    if file is not None:
        declared = _reader_of(file, root)(file, root)
        if declared is None or not _says(declared):
            raise ProjectError(f"{shown(file, root)} declares no packages.", fix=_KNOWN_FILES)
        return _project(root, declared, [f"The packages are those of {declared.source}."])
    there = [(name, read) for name, read in READERS if is_file(root / name)]
    for position, (name, read) in enumerate(there):
        declared = read(root / name, root)
        if declared is None:
            continue
        if not _says(declared) and there[position + 1 :]:
            continue  # a pyproject.toml beside conda's file often names only the project
        skipped = [other for other, _ in there[position + 1 :] if other not in _OWN]
        notes = [f"The packages are those of {declared.source}."]
        if skipped:
            notes.append(f"Not read: {', '.join(skipped)}; {name} comes first.")
        notes += _ours(there[:position])
        notes += _other_tools(root, declared)
        return _project(root, declared, notes)
    environments = _environments(root)
    if len(environments) == 1:
        return read_project(root, environments[0])
    raise _declares_nothing(root, environments)


_KNOWN_FILES = (
    "Name a requirements file (.txt), a pyproject.toml, uv.lock, pylock.toml, pixi.toml, setup.py, "
    "setup.cfg, or an environment file of conda (.yml)."
)


def _says(declared: Declaration) -> bool:
    return bool(
        declared.packages
        or declared.missing
        or declared.optional
        or declared.left_out
        or declared.itself
    )


def _reader_of(file: Path, root: Path) -> Reader:
    """The reader of a file that the user names."""
    for pattern, read in _NAMES:
        if pattern.fullmatch(file.name.lower()):
            return read
    raise ProjectError(
        f"{shown(file, root)} is not a file that declares packages.", fix=_KNOWN_FILES
    )


def _project(root: Path, declared: Declaration, notes: Sequence[str]) -> Project:
    if len(declared.packages) > MOST_PACKAGES:
        raise ProjectError(
            f"{declared.source} declares {len(declared.packages):,} packages; an image takes "
            f"{MOST_PACKAGES:,}.",
            fix="Declare only what the project imports.",
        )
    if declared.itself:
        declared = _with_own(declared, root)
    return Project(
        root=root,
        declared=replace(declared, python=declared.python or _requires_python(root)),
        python=_python_version(root),
        apt=_apt(root),
        notes=tuple(notes),
    )


def _environments(root: Path) -> list[Path]:
    """The environment files of conda whose names only resemble conda's: environment-gpu.yml."""
    try:
        found = sorted(one for one in root.iterdir() if one.suffix in {".yml", ".yaml"})
        return [
            one
            for one in found[:_MOST_FOLDERS]
            if is_file(one) and looks_like_environment(read_text(one, root, errors="replace"))
        ]
    except (OSError, ProjectError):
        return []


def _ours(skipped: list[tuple[str, Reader]]) -> Iterator[str]:
    if any(name == "pylock.toml" for name, _ in skipped):
        yield (
            "pylock.toml is a lock of this tool, not a declaration, and is not read. To build what "
            "it says, add --lock pylock.toml."
        )


def _other_tools(root: Path, declared: Declaration) -> Iterator[str]:
    if declared.locked:
        return
    for name, command in _OTHER_TOOLS.items():
        if name.endswith(".lock") and is_file(root / name):
            yield f"{name} is not read; to keep its versions: {command}"


def _with_own(declared: Declaration, root: Path) -> Declaration:
    """With what the project itself requires, where a file installs the project, too."""
    read = next(
        (
            own
            for name, reader in (("pyproject.toml", read_pyproject), *SETUP_READERS)
            if is_file(root / name) and (own := reader(root / name, root)) is not None
        ),
        None,
    )
    if read is None:
        return declared
    names = {one.name for one in declared.packages}
    more = tuple(one for one in read.packages if one.name not in names)
    return together(declared.source, declared, replace(read, packages=more))


def _requires_python(root: Path) -> Declared | None:
    path = root / "pyproject.toml"
    if not is_file(path):
        return None
    text = read_text(path, root)
    said = table(read_toml(text, path.name), "project").get("requires-python")
    return read_python(said, path.name, line_of(text, r"requires-python\s*="))


def _apt(root: Path) -> tuple[str, ...]:
    """The Debian packages in the table [tool.gpu-provision] of a pyproject.toml."""
    path = root / "pyproject.toml"
    said = table(read_toml(read_text(path, root), path.name), "tool", TOOL) if is_file(path) else {}
    names = said.get("apt", [])
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ProjectError(
            f"{path.name}: apt in [tool.{TOOL}] is not a list of names.",
            fix='Write it like this: apt = ["ffmpeg"]',
        )
    return parse_apt(names, f"{path.name}: [tool.{TOOL}] apt")


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


def _declares_nothing(root: Path, environments: Sequence[Path]) -> ProjectError:
    where = printable(_typed(root), limit=100)
    if not os.access(root, os.R_OK | os.X_OK):
        return ProjectError(
            f"{where} cannot be read: permission denied.",
            fix="Make the directory readable, or run the command as its owner.",
        )
    odd = [name for name, _ in READERS if is_there(root / name) and not is_file(root / name)]
    said = f"{where} declares no packages: it has no requirements.txt, pyproject.toml, uv.lock, "
    said += "pylock.toml, environment.yml, pixi.toml or setup.py with dependencies."
    if odd:
        said += f" {odd[0]} is not a regular file."
    others = [*environments, *_others(root)]
    script = _script(root)
    tool = next((name for name in _OTHER_TOOLS if is_file(root / name)), None)
    fix = "Write the packages into a requirements.txt, one on each line; or omit the directory "
    fix += "and name packages by --with."
    if tool is not None:
        fix = f"{tool} is not read; to keep its packages: {_OTHER_TOOLS[tool]}"
    elif others:
        names = [one.relative_to(root).as_posix() for one in others[:_MOST_SHOWN]]
        more = f" and {len(others) - len(names)} more" if len(others) > len(names) else ""
        said += f" There is {printable(', '.join(names), limit=300)}{more}."
        commands = [f"provision lock {shlex.quote(_typed(one))}" for one in others[:_MOST_SHOWN]]
        which = "one of them" if len(others) > 1 else "it"
        fix = f"Name {which}: {printable(' or '.join(commands), limit=600)}"
    elif script:
        said += f" {script} runs pip; scripts are not run."
        fix = f"Write what {script} installs into a requirements.txt, one on each line."
    return ProjectError(said, fix=fix)


def _script(root: Path) -> str:
    """The shell script that installs packages; "" if there is none."""
    try:
        found = sorted(one for one in root.iterdir() if one.suffix == ".sh" and is_file(one))
        for one in found[:_MOST_SHOWN]:
            if re.search(r"\bpip3? install\b", read_text(one, root, errors="replace")):
                return shown(one, root)
    except (OSError, ProjectError):
        pass
    return ""


def _typed(path: Path) -> str:
    """A path as it can be typed here: relative to this directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _others(root: Path) -> list[Path]:
    """What may be meant by a directory that declares nothing: lists of packages with other names,
    and projects one folder below.
    """
    try:
        entries = sorted(one for one in root.iterdir() if not one.name.startswith("."))
        folders = [one for one in entries if one.is_dir()][:_MOST_FOLDERS]
        lists = [
            one
            for place in (root, *(one for one in folders if _OF_LISTS.fullmatch(one.name.lower())))
            for one in sorted(place.iterdir())
            if one.suffix in {".txt", ".in"} and is_file(one)
            if place != root or re.search(r"requirements?|constraints|deps|reqs", one.name.lower())
        ]
        projects = [
            folder
            for folder in folders
            if any(is_file(folder / name) for name, _ in READERS) and not _is_environment(folder)
        ]
    except OSError:
        return []
    return [*lists, *projects]


def _is_environment(folder: Path) -> bool:
    """Whether a folder is a virtual environment, or holds another program's packages."""
    return is_file(folder / "pyvenv.cfg") or folder.name == "node_modules"
