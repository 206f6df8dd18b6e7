"""What a project's own code imports: read from its files, which are never run.

A statement at the top of a module runs whenever the module is loaded; one in a function, `try`,
`if` or `with`, or in a test or an example, may not. Only the first name counts: of `google.cloud.x`
any package with `google` may be meant.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from posixpath import dirname
from typing import NamedTuple

MOST_BYTES = 2 << 20
"""A larger source file is generated, and not read."""
MOST_FILES = 5_000
MOST_IN_ALL = 48 << 20
"""The bytes of source that are read: some ten seconds of a processor."""
# Modules that a Python from 3.10 to 3.14 has, and the running one may not.
# https://docs.python.org/3/whatsnew/
_OTHER_PYTHONS = frozenset({
    "__main__", "_typeshed", "aifc", "annotationlib", "asynchat", "asyncore", "audioop",
    "binhex", "cgi", "cgitb", "chunk", "compression", "crypt", "distutils", "imghdr", "imp",
    "lib2to3", "mailcap",
    "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd", "sunau",
    "telnetlib", "tomllib", "uu", "xdrlib",
})  # fmt: skip
# What images of Python bring beside it.
_OF_BASES = frozenset({"pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel"})
_ASIDE = re.compile(
    r"(tests?|testing|examples?|demos?|docs?|benchmarks?|scripts?|tools?|notebooks?|tutorials?"
    r"|\.[^/]*)|test_[^/]*\.py|[^/]*_test\.py|(conftest|setup|noxfile|tasks|fabfile)\.py"
    r"|(.*_)?(demo|gradio|example)(_.*)?\.py|(predict|cog_.*)\.py"
)
"""Folders and files that a program does not need to run."""
_CALLS = {"append", "insert", "extend"}
_MAY_CHANGE_PATH = re.compile(rb"addsitedir|sys\s*\.\s*path|path\s*\.\s*(append|insert|extend)")
_BODIES = ("body", "handlers", "cases", "orelse", "finalbody")
_MODULE = re.compile(r"([^./]+)(\.[^/]*)?\.(py|so|pyd|pyx)")


class Import(NamedTuple):
    """An import of a top-level name. `surely`: it runs whenever its module is loaded."""

    name: str
    path: str
    line: int
    surely: bool


class FileImports(NamedTuple):
    """The imports of one file; the modules that it loads, as paths without a suffix, relative ones
    whole ("/pkg/util"); whether it changes where Python looks for modules, and to a place that is
    not the project's; and what a setup.py has in quotes, as the names of extension modules.
    """

    imports: tuple[Import, ...]
    loads: tuple[str, ...] = ()
    changes_path: bool = False
    leaves_project: bool = False
    quoted: frozenset[str] = frozenset()
    unread: bool = False


def imports_of(path: str, data: bytes) -> FileImports:
    """The imports of a source file; none (`unread`) if this Python cannot parse it. `path` is
    relative to the project.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the project's style
            return _imports_in(path, ast.parse(data), changes=_MAY_CHANGE_PATH.search(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FileImports((), unread=True)


def _imports_in(path: str, tree: ast.Module, *, changes: object) -> FileImports:
    """`changes`: whether its text may change where Python looks for modules."""
    aside = is_aside(path)
    sure = {id(node) for node in _unconditional(tree.body)}
    found: list[Import] = []
    loads: list[str] = []
    changed = [node for node in ast.walk(tree) if _changes_path(node)] if changes else []
    for node in _statements(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        modules = list(_modules_of(node, dirname(path)))
        loads += modules if id(node) in sure else ()
        surely = id(node) in sure and not aside
        tops = dict.fromkeys(one.partition("/")[0] for one in modules if one[:1] != "/")
        found += [Import(top, path, node.lineno, surely) for top in tops]
    return FileImports(
        imports=tuple(found),
        loads=tuple(loads),
        changes_path=bool(changed),
        leaves_project=any(text[:1] == "/" for node in changed for text in _texts(node)),
        quoted=frozenset(
            text.rpartition(".")[2] for text in (_texts(tree) if path.endswith("setup.py") else ())
        ),
    )


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, in their order; not their expressions, which are most of a tree."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        inner = [one for name in _BODIES for one in getattr(node, name, ())]
        waiting += reversed(inner)


def _texts(tree: ast.AST) -> Iterator[str]:
    """The strings in quotes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _modules_of(node: ast.Import | ast.ImportFrom, folder: str) -> Iterator[str]:
    """The modules that a statement may load: of `from a import b` both `a` and `a/b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name.replace(".", "/") for alias in node.names)
        return
    above = folder.split("/") if folder and node.level else []
    above = above[: len(above) + 1 - node.level] if node.level else []
    base = "/".join([*above, *(node.module or "").split(".")]).rstrip("/")
    start = "/" if node.level else ""
    yield f"{start}{base}"
    yield from (f"{start}{base}/{alias.name}" for alias in node.names)


def is_aside(path: str) -> bool:
    """Whether a file is a test, an example or a tool, which a program does not need to run."""
    return any(_ASIDE.fullmatch(part) for part in path.split("/"))


def _unconditional(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is loaded; what follows an unconditional end of it
    does not.
    """
    for node in body:
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.ClassDef):
            yield from _unconditional(node.body)
        else:
            yield node


def _changes_path(node: ast.AST) -> bool:
    """Whether this is `sys.path.append(...)`, `sys.path = ...`, `site.addsitedir(...)`."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(ast.unparse(one).startswith("sys.path") for one in targets)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    if node.func.attr == "addsitedir":
        return True
    return isinstance(owner, ast.Attribute) and owner.attr == "path" and node.func.attr in _CALLS


def loaded_files(
    files: Mapping[str, FileImports], roots: Collection[str], calls: Iterable[str]
) -> frozenset[str]:
    """The files that are loaded when a program of the project starts: by its commands (`calls`:
    modules as paths), its packages, and the scripts at its top.
    """
    tops = {path for path in files if "/" not in path and not is_aside(path)}
    tops |= {
        path
        for path in files
        if path.endswith(("/__init__.py", "/__main__.py"))
        and dirname(dirname(path)) in roots
        and not is_aside(path)
    }
    tops |= {path for call in calls for path in _files_of(call, files, roots)}
    seen, waiting = set(tops), list(tops)
    while waiting:
        for module in files[waiting.pop()].loads:
            new = [path for path in _files_of(module, files, roots) if path not in seen]
            seen.update(new)
            waiting += new
    return frozenset(seen)


def _files_of(
    module: str, files: Mapping[str, FileImports], roots: Collection[str]
) -> Iterator[str]:
    """The files of a module and of the packages above it."""
    for root in [""] if module[:1] == "/" else roots:
        place = root
        for part in filter(None, module.split("/")):
            place = f"{place}/{part}" if place else part
            yield from (one for one in (f"{place}.py", f"{place}/__init__.py") if one in files)


def unknown_imports(
    files: Mapping[str, FileImports],
    paths: Collection[str],
    roots: Collection[str],
    calls: Iterable[str] = (),
) -> list[Import]:
    """The imports that neither Python nor the project has. `paths` are all files of the project,
    `roots` the folders where Python looks for its packages ("" for its top), `calls` as for
    `loaded_files`: no other import is sure. Where a file changes the folders, any of the project
    may be one.
    """
    loaded = loaded_files(files, roots, calls)
    anywhere = any(one.changes_path for one in files.values())
    places = _places(paths)
    packages = {dirname(path) for path in paths if path.endswith("/__init__.py")}
    known = sys.stdlib_module_names | _OTHER_PYTHONS | _OF_BASES
    compiled = _names_in_build_files(paths).union(*(one.quoted for one in files.values()))
    outside = any(one.leaves_project for one in files.values())
    found = []
    for path, one in files.items():
        for each in one.imports:
            if each.name in known or not each.name.isidentifier() or each.name in compiled:
                continue
            folders = places.get(each.name, set())
            if any(
                folder in roots or folder == dirname(path) or anywhere or folder not in packages
                for folder in folders
            ):
                continue
            found.append(each._replace(surely=each.surely and path in loaded and not outside))
    return found


def _names_in_build_files(paths: Collection[str]) -> frozenset[str]:
    """Modules that the project's build makes of sources that are here."""
    found = set()
    for path in paths:
        stem, _, suffix = path.rpartition("/")[2].partition(".")
        if suffix == "proto":
            found |= {f"{stem}_pb2", f"{stem}_pb2_grpc"}
        elif suffix in {"c", "cc", "cpp", "cu", "cxx", "pyx"}:
            found.add(stem)
    return frozenset(found)


def _places(paths: Collection[str]) -> dict[str, set[str]]:
    """The folders that have a module or a package of each name."""
    found: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if module := _MODULE.fullmatch(name):
            found.setdefault(module[1], set()).add(folder)
            while folder:  # a package, or a namespace
                folder, _, name = folder.rpartition("/")
                if folder in found.setdefault(name, set()):
                    break
                found[name].add(folder)
    return found
