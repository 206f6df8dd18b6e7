"""What a project's image runs, and how its Python finds the project: from its pyproject.toml.

The project is not built: like an editable install, a .pth file names its directory, and its
commands are written as pip would write them. So the layer depends on the project's files alone, and
no build backend is run or downloaded.
https://packaging.python.org/en/latest/specifications/entry-points/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from images.layers.own import PREFIX, site_of
from images.layers.scripts import Call, script
from images.layers.tar import TarEntry
from images.text.printable import printable
from provision.build.project.tree import APP, ProjectTree
from provision.sources.files import is_file, listed, read_text, read_toml, table

_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_COMPILING = ("maturin", "scikit_build_core", "mesonpy", "py_build_cmake", "setuptools_rust")
_PTH = "gpu-provision-project.pth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`name` is the project's, for the image; `calls` its commands; `roots` the directories of the
    image that Python searches for its packages ("/app/src"); `command` what the image runs in
    `directory`.
    """

    name: str
    calls: Mapping[str, Call]
    roots: tuple[str, ...] = ()
    command: tuple[str, ...] = ("python3",)
    directory: str = f"/{APP}"
    notes: tuple[str, ...] = ()

    def entries(self, python: str) -> tuple[TarEntry, ...]:
        """The files beside the project's own, for a Python ("3.11")."""
        major, minor = (int(part) for part in python.split("."))
        lines = "".join(f"{root}\n" for root in self.roots)
        entries = [TarEntry(path=APP, kind="dir")]
        if self.roots:
            entries.append(TarEntry(path=f"{site_of(python)}/{_PTH}", content=lines.encode()))
        for name, call in self.calls.items():
            entries.append(
                TarEntry(
                    path=f"{PREFIX}/bin/{name}",
                    mode=0o755,
                    content=script(call, f"/{PREFIX}/bin/python", (major, minor)),
                )
            )
        return tuple(entries)


def read_program(root: Path, tree: ProjectTree, members: Sequence[str] = ()) -> Program:
    """What runs in the image of a project. `members` are directories of packages in it.
    ProjectError: its pyproject.toml is invalid.
    """
    document: Mapping[str, Any] = {}
    if is_file(path := root / "pyproject.toml"):
        document = read_toml(read_text(path, root), path.name)
    project = table(document, "project") or table(document, "tool", "poetry")
    given = project.get("name")
    name = given if isinstance(given, str) and _NAME.fullmatch(given) else root.name
    places = _roots(tree, members)
    if not table(document, "build-system") and not members:
        places = ()
    notes = []
    calls: dict[str, Call] = {}
    for command, said in table(project, "scripts").items():
        call = _call(said)
        place = _place_of(call, tree, members) if call and _NAME.fullmatch(command) else None
        if call is None or place is None:
            shown = printable(f"{command} = {said}", limit=80)
            notes.append(
                f"The command {shown} of pyproject.toml is not in the image: its module was not "
                "found in the project or in src."
            )
            continue
        calls[command] = call
        places = tuple(dict.fromkeys((*places, place)))
    if compiled := _compiled(document, tree):
        notes.append(f"The project is not compiled ({compiled}): the image has its sources only.")
    command_line = (next(iter(calls)),) if len(calls) == 1 else ("python3",)
    others = f"; it also has {', '.join(calls)}" if len(calls) > 1 else ""
    notes.append(f"The project is in /{APP}; the image runs {command_line[0]}{others}.")
    return Program(
        name=_image_name(name),
        calls=calls,
        roots=tuple(f"/{APP}/{place}".rstrip("/") for place in places),
        command=command_line,
        notes=tuple(notes),
    )


def _call(said: object) -> Call | None:
    match = _CALL.fullmatch(said) if isinstance(said, str) else None
    return Call(module=match[1], function=match[2]) if match else None


def _roots(tree: ProjectTree, members: Sequence[str]) -> tuple[str, ...]:
    """Where the packages of a project are: in src if it has some, else beside pyproject.toml."""
    found = []
    for member in members or ("",):
        base = "" if member in {"", "."} else f"{member.strip('/')}/"
        has_src = any(one.path.startswith(f"{APP}/{base}src/") for one in tree.files)
        found.append(f"{base}src" if has_src else base.rstrip("/"))
    return tuple(found)


def _place_of(call: Call, tree: ProjectTree, members: Sequence[str]) -> str | None:
    """The directory that a command's module is in; None: it is in none."""
    path = call.module.replace(".", "/")
    for place in dict.fromkeys((*_roots(tree, members), "src", "")):
        base = f"{place}/" if place else ""
        if tree.has(f"{base}{path}.py") or tree.has(f"{base}{path}/__init__.py"):
            return place
    return None


def _compiled(document: Mapping[str, Any], tree: ProjectTree) -> str:
    """What would compile a part of it, if anything would."""
    backend = str(table(document, "build-system").get("build-backend", "")).partition(".")[0]
    required = " ".join(map(str, listed(table(document, "build-system").get("requires"))))
    if backend in _COMPILING:
        return f"its build backend is {backend}"
    for tool in ("cython", "pybind11", "nanobind"):
        if tool in required.lower() and not tree.has("setup.cfg"):
            return f"it needs {tool}"
    return ""


def _image_name(name: str) -> str:
    """A name that a registry accepts: lower case, without marks at its ends."""
    plain = re.sub(r"[^a-z0-9]+", "-", canonicalize_name(name)).strip("-")[:100]
    return plain or "project"
