"""The program that a node runs: a task and all that it imports, as one text for `python3 -I -`.

The node needs Python 3.8 or newer and nothing else: NVML's Python module is sent, too.
"""

from __future__ import annotations

import ast
import base64
import functools
import importlib.util
import json
import re
import secrets
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from images.text.printable import printable
from provision.fleet.nodes.calls import NodeFailure

ROOMS = ("provision", "images")
FOREIGN = "pynvml"
OLDEST = "3.8"

PYTHON_FIX = f"Install Python {OLDEST} or newer as python3 on the node."
_TOP = Path(__file__).parents[3]


class NodeTask(NamedTuple):
    """A function of `provision.fleet.on_node`: takes one JSON value, returns another."""

    module: str
    function: str


READ_HOST = NodeTask("provision.fleet.on_node.detect", "read_host")
RUN_IN_IMAGE = NodeTask("provision.fleet.on_node.image", "run_in_image")


class NodeProgram(NamedTuple):
    """The text, and the mark before its answer."""

    text: str
    mark: str


def node_program(task: NodeTask = READ_HOST, argument: object = None) -> NodeProgram:
    """The program for a task, with a mark of its own."""
    mark = f"gpu-provision-{secrets.token_hex(8)} "
    call = base64.b64encode(json.dumps([*task, argument]).encode()).decode()
    with _PACKING:
        template = _template(task)
    text = template.replace("@MARK@", mark).replace("@TASK@", call)
    return NodeProgram(text, mark)


# Calls are started by several threads, and CPython 3.11 may fail if two of them parse at once
# ("AST constructor recursion depth mismatch", https://github.com/python/cpython/issues/106905).
_PACKING = threading.Lock()


@functools.lru_cache(maxsize=4)
def _template(task: NodeTask) -> str:
    """The same for all nodes: about 130 kB."""
    sources = json.dumps(sent_modules(task)).encode()
    packed = base64.b64encode(zlib.compress(sources, 9)).decode()
    template = (Path(__file__).parent / "node_start.py").read_text(encoding="utf-8")
    return template.replace("@PAYLOAD@", packed)


def sent_modules(task: NodeTask = READ_HOST) -> dict[str, tuple[bool, str]]:
    """Each module's name, whether it is a package, and its source."""
    found: dict[str, tuple[bool, str]] = {}
    todo = [task.module]
    while todo:
        name = todo.pop()
        path = _path(name)
        if name in found or path is None:
            continue
        text = path.read_text(encoding="utf-8")
        found[name] = (path.name == "__init__.py", text)
        todo += [name.rpartition(".")[0], *_imports(ast.parse(text))]
    spec = importlib.util.find_spec(FOREIGN)
    if spec is not None and spec.origin is not None:
        found[FOREIGN] = (False, Path(spec.origin).read_text(encoding="utf-8"))
    return found


def _path(name: str) -> Path | None:
    if name.partition(".")[0] not in ROOMS:
        return None
    place = _TOP.joinpath(*name.split("."))
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _imports(tree: ast.AST) -> Iterator[str]:
    """What a module imports, now or in a function; not what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for other in node.orelse:
                yield from _imports(ast.Module([other], []))
        else:
            yield from _imports(node)


def read_answer(name: str, out: str, mark: str) -> Any:  # noqa: ANN401  the task's JSON
    """What the task returned, or the NodeFailure that says why it did not; None: the program did
    not answer.
    """
    found = re.search(rf"^{re.escape(mark)}(.*)$", out, re.MULTILINE)
    if found is None:
        return None
    try:
        answer = json.loads(found[1])
        if "python" in answer:
            return NodeFailure(
                code="python-too-old",
                message=f"{name}: python3 is Python {printable(str(answer['python']), limit=20)}, "
                f"older than {OLDEST}.",
                fix=PYTHON_FIX,
            )
        if "error" in answer:
            return NodeFailure(
                code="node-failed",
                message=f"{name}: {printable(str(answer['error']), limit=300)}",
                fix="Run provision detect on the node itself.",
            )
        return answer["answer"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return NodeFailure(
            code="node-failed",
            message=f"{name}: the answer is damaged: {printable(str(error), limit=200)}",
            fix="Ask the node again.",
        )
