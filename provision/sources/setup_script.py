"""A setup.py or a setup.cfg, read and never run.

What a setup.py computes is refused at its line. Understood are lists of texts, names that are bound
once to such a list, sums of them, and the usual ways to read the lines of a requirements file.
https://setuptools.pypa.io/en/latest/references/keywords.html
https://setuptools.pypa.io/en/latest/userguide/declarative_config.html
"""

from __future__ import annotations

import ast
import configparser
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.sources.declaration import (
    Declaration,
    Declared,
    OptionalPackages,
    read_python,
    together,
)
from provision.sources.errors import ProjectError
from provision.sources.files import is_file, line_of, line_with, read_text, shown
from provision.sources.requirements import pip_lines, read_requirements

_PATH_NAMES = frozenset(
    {"os", "path", "Path", "pathlib", "__file__", "str", "open", "io", "codecs"}
)
_CHANGES = frozenset({"append", "extend", "insert", "remove", "pop", "clear", "update"})
_DEEPEST = 20
_Item = tuple[str, int] | Path
"""A requirement with its line, or a file of requirements."""
_FIX = "Write its result into a requirements.txt: uv pip compile {name} -o requirements.txt"


class _ComputedError(Exception):
    """What only running the file would tell. `line` counts from 1."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.line = int(getattr(node, "lineno", 0))


@dataclass
class _Values:
    """What names are bound to: by one assignment or `with`; None: by several, or changed later."""

    bound: dict[str, ast.expr | None] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    def add(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.With):
                for item in node.items:
                    if isinstance(item.optional_vars, ast.Name):
                        self.bind(item.optional_vars.id, item.context_expr)
                self.add(node.body)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.bind(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.bind(node.target.id, node.value)
            else:
                for name in _changed(node):
                    self.bound[name] = None

    def bind(self, name: str, value: ast.expr | None) -> None:
        self.bound[name] = None if name in self.bound else value

    def value(self, node: ast.expr) -> ast.expr:
        """What a name stands for. _ComputedError: that is not sure."""
        for _ in range(_DEEPEST):
            if not isinstance(node, ast.Name):
                return node
            found = self.bound.get(node.id)
            if found is None:
                raise _ComputedError(node)
            node = found
        raise _ComputedError(node)


def _changed(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement, or one in it, may bind or change."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(node.value, ast.Name):
                yield node.value.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in _CHANGES
        ):
            yield node.value.id


def read_setup_py(path: Path, root: Path) -> Declaration | None:
    """What a setup.py declares; None: it names no packages. ProjectError: it is malformed, or only
    running it would tell.
    """
    name = shown(path, root)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(read_text(path, root))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ProjectError(
            f"{Declared('', name, line).where} is not valid Python 3.",
            fix="Write the packages into a requirements.txt, one on each line.",
        ) from error
    values = _Values()
    values.add(tree.body)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_setup(node)]
    if not calls:
        return None
    try:
        given = _arguments(calls[-1], values)
        if "install_requires" not in given:
            return None
        items = list(_items(given["install_requires"], values, path.parent))
        said = _text_of(given["python_requires"], values) if "python_requires" in given else None
    except _ComputedError as error:
        raise ProjectError(
            f"{Declared('', name, error.line).where}: what setup() gets is computed here, and "
            "a project's files are read without running them.",
            fix=_FIX.format(name=name),
        ) from error
    python = given.get("python_requires")
    return replace(
        _with_extras(_declared(items, name, root), _extras(given, values, path.parent), root),
        python=read_python(said, name, python.lineno if python else 0),
    )


def _declared(items: Iterable[_Item], name: str, root: Path) -> Declaration:
    rows = list(items)
    lines = [one for one in rows if not isinstance(one, Path)]
    files = [read_requirements(one, root) for one in rows if isinstance(one, Path)]
    return together(name, pip_lines(lines, name, root), *files)


def _extras(
    given: Mapping[str, ast.expr], values: _Values, here: Path
) -> Iterator[tuple[str, list[_Item] | None]]:
    """The extras of a setup.py by name, with what they require; None: that is computed. "" stands
    for those whose names are computed.
    """
    try:
        table = values.value(given.get("extras_require", ast.Dict([], [])))
    except _ComputedError:
        table = None
    if not isinstance(table, ast.Dict):
        yield "", None
        return
    for key, value in zip(table.keys, table.values, strict=True):
        name = ""
        try:
            name = _text_of(key, values) if key is not None else ""
            yield name, list(_items(value, values, here)) if name else None
        except _ComputedError:
            yield name, None


def _with_extras(
    declared: Declaration, extras: Iterable[tuple[str, list[_Item] | None]], root: Path
) -> Declaration:
    """A declaration with its extras; those that cannot be read are a note. What follows a colon in
    an extra's name is a marker, and without a name before it the project itself requires it.
    """
    found, unread = [], []
    for key, items in extras:
        name, _, marker = key.partition(":")
        rows = None
        with suppress(ProjectError):
            rows = _declared((_marked(one, marker) for one in items or ()), declared.source, root)
        if rows is None or items is None:
            unread.append(f"extra {printable(key, limit=30)}".strip())
        elif name:
            found.append(OptionalPackages("extra", canonicalize_name(name), rows))
        else:
            declared = together(declared.source, declared, rows)
    said = [f"{one} ({declared.source}; computed, or not readable)" for one in unread]
    return replace(declared, optional=tuple(found), left_out=(*declared.left_out, *said))


def _marked(item: _Item, marker: str) -> _Item:
    if isinstance(item, Path) or not marker:
        return item
    text, _, own = item[0].partition(";")
    return f"{text} ; {f'({own}) and ({marker})' if own else marker}", item[1]


def _is_setup(call: ast.Call) -> bool:
    function = call.func
    return (isinstance(function, ast.Name) and function.id == "setup") or (
        isinstance(function, ast.Attribute) and function.attr == "setup"
    )


def _arguments(call: ast.Call, values: _Values) -> dict[str, ast.expr]:
    """The keywords of a call, with those of a table that is given by `**`."""
    found: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        if keyword.arg is not None:
            found[keyword.arg] = keyword.value
            continue
        table = values.value(keyword.value)
        if not isinstance(table, ast.Dict):
            raise _ComputedError(table)
        for key, value in zip(table.keys, table.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                raise _ComputedError(value)
            found[key.value] = value
    return found


def _items(node: ast.expr, values: _Values, here: Path, depth: int = 0) -> Iterator[_Item]:
    """The requirements with their lines, or the requirements file whose lines they are."""
    node = values.value(node)
    if depth > _DEEPEST:
        raise _ComputedError(node)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        for one in node.elts:
            if isinstance(one, ast.Starred):
                yield from _items(one.value, values, here, depth + 1)
            else:
                yield _text_of(one, values), one.lineno
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        for number, line in enumerate(node.value.splitlines()):
            yield line, node.lineno + number
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _items(node.left, values, here, depth + 1)
        yield from _items(node.right, values, here, depth + 1)
    elif function := _called(node, values):
        inner = _Values(dict(values.bound), values.functions)
        returned = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
        inner.add(function.body)
        if len(returned) != 1 or returned[0].value is None:
            raise _ComputedError(node)
        yield from _items(returned[0].value, inner, here, depth + 1)
    else:
        yield _file_of_lines(node, values, here)


def _called(node: ast.expr, values: _Values) -> ast.FunctionDef | None:
    """The function of this file that a call without arguments runs."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return None if node.args or node.keywords else values.functions.get(node.func.id)
    return None


def _text_of(node: ast.expr, values: _Values) -> str:
    value = values.value(node)
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    raise _ComputedError(node)


def _file_of_lines(node: ast.expr, values: _Values, here: Path) -> Path:
    """The file whose lines an expression reads: `open(F).read().splitlines()` and its like."""
    if isinstance(node, ast.ListComp) and len(node.generators) == 1:
        loop = node.generators[0]
        name = getattr(loop.target, "id", "")
        if _is_line(node.elt, name) and all(_keeps_requirements(one, name) for one in loop.ifs):
            source = values.value(loop.iter)
            lines = not _is_open(source)
            return _file_of_lines(source, values, here) if lines else _file(source, values, here)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        whole = values.value(node.func.value)
        if node.func.attr == "readlines" and _is_open(whole):
            return _file(whole, values, here)
        if node.func.attr in {"splitlines", "split"} and isinstance(whole, ast.Call):
            while isinstance(whole.func, ast.Attribute) and whole.func.attr == "strip":
                inner = values.value(whole.func.value)
                if not isinstance(inner, ast.Call):
                    raise _ComputedError(node)
                whole = inner
            if isinstance(whole.func, ast.Attribute):
                source = values.value(whole.func.value)
                if whole.func.attr == "read" and _is_open(source):
                    return _file(source, values, here)
                if whole.func.attr == "read_text":
                    return _file(source, values, here)
    raise _ComputedError(node)


def _keeps_requirements(node: ast.expr, name: str) -> bool:
    """Whether a part of a comprehension leaves every requirement as it is: the line, without its
    blanks, if it is not empty and not a comment.
    """
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return all(_keeps_requirements(one, name) for one in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        call = node.operand
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            return False
        return ast.unparse(call).endswith(".startswith('#')") and _is_line(call.func.value, name)
    if isinstance(node, ast.Compare):
        return ast.unparse(node).endswith(" != ''") and _is_line(node.left, name)
    return _is_line(node, name)


def _is_line(node: ast.expr, name: str) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in {"strip", "rstrip"}:
            return False
        node = node.func.value
    return isinstance(node, ast.Name) and node.id == name


def _is_open(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name == "open"


def _file(node: ast.expr, values: _Values, here: Path) -> Path:
    """The file of the project that an expression names: "requirements.txt", or a path below the
    directory of the file itself. _ComputedError: it may be another one, or it is missing.
    """
    parts: list[str] = []
    waiting: list[tuple[ast.AST, int]] = [(node, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > _DEEPEST:
            raise _ComputedError(node)
        if isinstance(one, ast.Name) and one.id not in _PATH_NAMES:
            waiting.append((values.value(one), depth + 1))
        elif isinstance(one, ast.Constant):
            parts.append(str(one.value))
        elif isinstance(one, ast.Call):
            waiting += [(arg, depth + 1) for arg in reversed(one.args[: _path_arguments(one)])]
            waiting.append((one.func, depth + 1))
        elif isinstance(one, ast.Attribute):
            waiting.append((one.value, depth + 1))
        elif isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
            waiting += [(one.right, depth + 1), (one.left, depth + 1)]
        elif not isinstance(one, ast.Name):
            raise _ComputedError(node)
    found = here.joinpath(*parts)
    if not parts or not is_file(found):
        raise _ComputedError(node)
    return found


def _path_arguments(call: ast.Call) -> int:
    """How many of a call's arguments are a path: the first of open(), all of join()."""
    return 1 if _is_open(call) else len(call.args)


def read_setup_cfg(path: Path, root: Path) -> Declaration | None:
    """What a setup.cfg declares; None: it names no packages. ProjectError: it is malformed."""
    name = shown(path, root)
    text = read_text(path, root)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        why = printable(str(error).splitlines()[0], limit=150)
        raise ProjectError(f"{name} is not valid: {why}.", fix="Correct it.") from error
    said = parser.get("options", "install_requires", fallback="").strip()
    if not said:
        return None
    items = _cfg_items(said, text, path.parent)
    section = "options.extras_require"
    extras = parser.items(section) if parser.has_section(section) else ()
    rows = [(one, _cfg_items(said, text, path.parent)) for one, said in extras]
    found = _with_extras(_declared(items, name, root), rows, root)
    python = parser.get("options", "python_requires", fallback=None)
    return replace(found, python=read_python(python, name, line_of(text, r"python_requires\s*=")))


def _cfg_items(said: str, text: str, here: Path) -> list[_Item]:
    """The lines of a value with their numbers in the file, or the files that it names."""
    said = said.strip()
    if said.startswith("file:"):
        return [here / one.strip() for one in said.removeprefix("file:").split(",")]
    return [(one, line_with(text, one)) for one in said.splitlines()]


SETUP_READERS = (("setup.py", read_setup_py), ("setup.cfg", read_setup_cfg))
"""The files of setuptools by their names, the one that counts first."""
