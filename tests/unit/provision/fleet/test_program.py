"""What a node runs: one text, for Python 3.8 and newer, that needs nothing else."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.fleet.nodes.calls import NodeFailure
from provision.fleet.nodes.collect import facts_of
from provision.fleet.nodes.program import (
    OLDEST,
    READ_HOST,
    RUN_IN_IMAGE,
    node_program,
    read_answer,
    sent_modules,
)
from provision.model.plan import HostFacts
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.programs import run_program

# What came to the standard library after 3.8, of the names that such code would use.
NEWER = {
    *("TypeAlias", "Annotated", "ParamSpec", "NoneType", "StrEnum", "UTC", "Self"),
    *("pairwise", "batched", "cache", "removeprefix", "removesuffix", "readlink"),
    *("is_relative_to", "hardlink_to", "with_stem", "bit_count", "lcm", "to_thread"),
    *("waitstatus_to_exitcode", "randbytes", "slots", "kw_only", "strict", "cancel_futures"),
    *("process_group", "usedforsecurity"),
}
GENERIC = {
    *(name for name in dir(builtins) if hasattr(getattr(builtins, name), "__class_getitem__")),
    *collections.abc.__all__,
    *("deque", "defaultdict", "OrderedDict", "Counter", "Popen", "Path", "PathLike"),
}


def at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but annotations, and what only type checkers see."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST):
                continue
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                for other in node.orelse:
                    yield from at_run_time(ast.Module([other], []))
                continue
            yield node
            yield from at_run_time(node)


def too_new(text: str) -> list[str]:
    """What Python 3.8 lacks, as far as names and syntax show it."""
    found = []
    for node in at_run_time(ast.parse(text, feature_version=(3, 8))):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in GENERIC:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
            found += [ast.unparse(node)] if isinstance(node.value, ast.Dict) else []
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            found += [ast.unparse(node)] if any(isinstance(one, ast.Dict) for one in sides) else []
        elif isinstance(node, ast.Attribute) and node.attr in NEWER:
            # os.readlink is old; the method of Path is not
            found += [] if ast.unparse(node) == "os.readlink" else [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom):
            found += [one.name for one in node.names if one.name in NEWER]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"dataclass", "zip"}:
            found += [word.arg for word in node.keywords if word.arg in NEWER]
    return found


SENT = {**sent_modules(READ_HOST), **sent_modules(RUN_IN_IMAGE)}


@pytest.mark.parametrize("name", sorted(set(SENT) - {"pynvml"}))
def test_a_sent_module_needs_nothing_newer_than_python_3_8(name: str) -> None:
    assert too_new(SENT[name][1]) == []


@pytest.mark.parametrize(
    "text",
    [
        "from typing import TypeAlias", "x: 'A' = list[int]([1])", "Source = Callable[[int], str]",
        "body |= {1: 2}", "body = {1: 2} | other", "name.removesuffix('x')", "Path('x').readlink()",
        "dict(zip(a, b, strict=False))", "@dataclass(slots=True)\nclass A: pass",
    ],
)  # fmt: skip
def test_what_is_too_new_is_seen(text: str) -> None:
    assert too_new(text)


def test_syntax_that_is_too_new_is_seen() -> None:
    with pytest.raises(SyntaxError):
        too_new("match x:\n    case 1: pass")


def test_every_import_is_sent_or_in_the_standard_library() -> None:
    optional = {"ruamel"}  # YAML: what it would read is then unknown
    missing = {
        name.name if isinstance(node, ast.Import) else f"{node.module}"
        for module, (_, text) in SENT.items()
        if module != "pynvml"
        for node in at_run_time(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    outside = {
        name
        for name in missing
        if name not in SENT and name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert {name.partition(".")[0] for name in outside} <= optional
    assert "pynvml" in SENT
    assert len(node_program().text) < 200_000


def pythons() -> list[str]:
    """This one, and every other that is installed: also by pyenv, whose shims run only the chosen
    ones.
    """
    folders = [Path(one) for one in os.environ.get("PATH", os.defpath).split(":")]
    found = [one / f"python3.{minor}" for one in folders for minor in range(4, 20)]
    for one in folders:
        if one.name == "shims":
            found += sorted(one.parent.glob("versions/3.*/bin/python3"))
    usable = [str(one) for one in found if one.parent.name != "shims" and os.access(one, os.X_OK)]
    return list({os.path.realpath(one): one for one in [sys.executable, *usable]}.values())


@pytest.mark.parametrize("python", pythons())
def test_it_runs_without_any_package_or_says_that_python_is_too_old(
    python: str, tmp_path: Path
) -> None:
    program = node_program()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    words = [python, "-c", "import sys; print(sys.version_info >= (3, 8))"]
    new_enough = subprocess.check_output(words, env=env, timeout=60).strip() == b"True"
    done = run_program([python, "-I", "-S", "-"], given=program.text, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    answer = read_answer("n1", f"Welcome!{done.stdout}bye\n", program.mark)
    assert list(tmp_path.iterdir()) == []
    if not new_enough:
        assert isinstance(answer, NodeFailure)
        assert answer.code == "python-too-old"
        return
    facts = facts_of("n1", answer)
    assert isinstance(facts, HostFacts)
    assert facts.label == "n1"
    assert facts.arch == os.uname().machine
    assert not any("nvidia-ml-py is not installed" in row.reason for row in facts.absent)


def test_it_reads_what_detect_reads_here() -> None:
    """The same facts as those of the command, from the same modules."""
    program = node_program()
    sent = run_program([sys.executable, "-"], given=program.text, check=True)
    facts = facts_of("n", read_answer("n", sent.stdout, program.mark))
    here = run_program(
        [sys.executable, "-m", "provision", "detect", "--json"], cwd=ROOT, check=True
    )
    found = json.loads(here.stdout)
    assert isinstance(facts, HostFacts)
    assert (facts.driver, facts.arch, facts.glibc) == (
        found["driver"],
        found["arch"],
        found["glibc"],
    )
    assert [gpu.name for gpu in facts.gpus or ()] == [gpu["name"] for gpu in found["gpus"] or ()]


@cases(
    "out code",
    ("an old Python", 'MARK {"python": "3.6"}', "python-too-old"),
    ("it broke there", 'MARK {"error": "OSError: no"}', "node-failed"),
    ("cut off", "MARK {", "node-failed"),
    ("not an object", "MARK []", "node-failed"),
    ("not facts", 'MARK {"answer": {"driver": 5}}', "node-failed"),
    ("no answer", "no mark", None),
    ("the mark within a line", 'x MARK {"python": "3.6"}', None),
)
def test_an_answer_that_is_none(out: str, code: str | None) -> None:
    found = read_answer("n1", out, "MARK ")
    found = facts_of("n1", found) if isinstance(found, dict) else found
    assert (found.code if isinstance(found, NodeFailure) else found) == code
    if isinstance(found, NodeFailure):
        assert found.message.startswith("n1: ")
        assert OLDEST in found.fix or found.fix
