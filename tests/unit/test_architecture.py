"""One direction of imports: the table below is the design, and this test holds it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from provision.cli.registry import HOUSES
from tests import ROOT
from tests.kit.programs import run_program

ROOMS = ("provision", "images", "verify")
NOT_SHIPPED = {"tools", "tests", "setup_venv", "bench"}
MAY_IMPORT = {"provision": {"provision", "images"}, "images": {"images"}, "verify": {"verify"}}

# The packages of each room, the highest first: a package imports those of lower lines alone.
# CONTRIBUTING.md draws the same, and the test reads it there.
LAYERS = {
    "provision": """
        page
        fleet  doctor
        cli
        build
        verification
        attestation
        resolve  lock
        sources
        catalog
        output  host
        model
        errors  version
    """,
    "images": """
        engines  bootstrap
        assembly  layers
        inspect
        store
        registry
        oci
        net  system  wheels
        errors
        text
    """,
    "verify": """
        commands
        across  fleet
        monitoring  reports
        checks
        backends
        running  workloads
        model
        device
    """,
}
MOST_PACKAGES = 14
MOST_LINES = 400  # of one module

# Who may import what from outside, where that is worth holding.
ONLY_IN = {
    "cryptography": {"provision/attestation/signing/keys.py"},
    "cyclonedx": {"provision/attestation/provenance/bom.py"},
    "deflate": {"images/bootstrap/unpack.py", "images/layers/cut.py", "images/layers/project.py"},
    "docker": {
        "images/engines/docker_attach.py",
        "images/engines/container.py",
        "images/engines/docker.py",
        "images/engines/start.py",
        "images/registry/auth.py",
        "images/engines/runner.py",  # a type's name
    },
    "ahocorasick_rs": {"provision/doctor/matching.py"},
    "packageurl": {"images/bootstrap/host.py", "provision/attestation/provenance/bom.py"},
    "pynvml": {"provision/host/nvml.py"},
    "pysequoia": {"images/bootstrap/signature.py"},
    "re2": {"provision/doctor/matching.py", "images/text/tokens.py"},
    "rich": {"provision/output/console.py"},
    "ruamel": {"images/system/cdi.py", "provision/sources/yaml.py"},
    "torch": {"verify"},
    "tensorflow": {"verify"},
}


@cache
def python_files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


class Source(NamedTuple):
    """What the tests want to know of a module; its public functions with their docstrings and what
    they raise themselves, its public classes, and the dotted names that it imports.
    """

    functions: Mapping[str, tuple[str, frozenset[str]]]
    classes: tuple[str, ...]
    imports: frozenset[str]
    imports_at_top: frozenset[str]


@cache
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    return Source(
        functions={
            node.name: (ast.get_docstring(node) or "", raised_in(node))
            for node in public
            if isinstance(node, ast.FunctionDef)
        },
        classes=tuple(node.name for node in public if isinstance(node, ast.ClassDef)),
        imports=imported_by(ast.walk(tree)),
        imports_at_top=imported_by(tree.body),
    )


def raised_in(function: ast.FunctionDef) -> frozenset[str]:
    return frozenset(
        node.exc.func.id
        for node in ast.walk(function)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id[0].isupper()
    )


def imported_by(nodes: Iterable[ast.AST]) -> frozenset[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def test_rooms_import_in_one_direction() -> None:
    wrong = []
    for path in python_files():
        name = path.relative_to(ROOT)
        reached = {name.split(".")[0] for name in source(path).imports} & {*ROOMS, *NOT_SHIPPED}
        wrong += [f"{name} imports {room}" for room in reached - MAY_IMPORT[name.parts[0]]]
    assert wrong == []


def lines_of(drawing: str) -> list[set[str]]:
    return [set(line.split()) for line in reversed(drawing.strip().splitlines())]


@pytest.mark.parametrize("room", ROOMS)
def test_contributing_draws_the_layers(room: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawing = text.partition(f"\n`{room}/`:\n\n")[2].partition("\n\n")[0]
    assert lines_of(drawing) == lines_of(LAYERS[room])


PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "developing").glob("*.md"))]
WRITTEN_BY_A_RUN = {
    "1-machine.json",
    "1-machine.txt",
    "1-nccl.txt",
    "1-quick.json",
    "2-numerics.json",
}
WRITTEN_BY_A_RUN |= {"2-speed.json"}
A_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|js|json|toml|md|sh|txt)))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_for_developers_names_is_there(page: Path) -> None:
    """A path is from the top, or from a folder that the same line has named."""
    missing = []
    for line in page.read_text(encoding="utf-8").splitlines():
        folders = [ROOT]
        for name in A_PATH.findall(line):
            found = next((f / name for f in reversed(folders) if (f / name).exists()), None)
            if found is None:
                missing.append(name)
            elif "/" in name:
                folders.append(found if found.is_dir() else found.parent)
    assert [name for name in missing if name not in WRITTEN_BY_A_RUN] == []


def test_each_house_has_a_page_for_its_developers() -> None:
    houses = {"core", "images", "verify", *HOUSES}
    assert {page.stem for page in PAGES[1:]} == houses
    links = set(re.findall(r"\]\(docs/developing/(\w+)\.md\)", PAGES[0].read_text("utf-8")))
    assert links == houses


@pytest.mark.parametrize("room", ROOMS)
def test_packages_import_downwards(room: str) -> None:
    rank = {name: i for i, layer in enumerate(lines_of(LAYERS[room])) for name in layer}
    wrong = []
    for path in (ROOT / room).rglob("*.py"):
        parts = path.relative_to(ROOT / room).with_suffix("").parts
        if parts[0] in {"__init__", "__main__"}:
            continue
        for name in source(path).imports:
            target_room, _, rest = name.partition(".")
            target = rest.split(".")[0]
            inside = target_room == room and target in rank and target != parts[0]
            if inside and rank[target] >= rank[parts[0]]:
                wrong.append(f"{'/'.join(parts)} imports {target}")
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_is_in_a_package_that_says_what_it_is_for(room: str) -> None:
    here = [p for p in (ROOT / room).iterdir() if p.name not in {"__pycache__", "__init__.py"}]
    packages = {p.name for p in here if (p / "__init__.py").is_file()}
    modules = {p.stem for p in here if p.suffix == ".py"} - {"__main__"}
    assert modules <= {"errors", "version"}
    assert packages | modules == set().union(*lines_of(LAYERS[room]))
    assert len(packages) <= MOST_PACKAGES
    for name in packages:
        text = (ROOT / room / name / "__init__.py").read_text(encoding="utf-8")
        assert len(ast.get_docstring(ast.parse(text)) or "") > 40, name
        assert len(list((ROOT / room / name).rglob("*.py"))) > 2, f"{name} is one module"


def test_no_module_imports_a_private_name_of_another() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        for name in source(path).imports
        if name.split(".")[0] in ROOMS and name.rpartition(".")[2].startswith("_")
    ]
    assert [one for one in wrong if not one.endswith("__")] == []


def test_what_other_packages_call_says_what_it_does_and_what_it_raises() -> None:
    """By its own `raise` statements; an error that a helper makes is left to the reader."""
    functions = {
        f"{module}.{name}": found
        for path in python_files()
        for module in [".".join(path.relative_to(ROOT).with_suffix("").parts)]
        for name, found in source(path).functions.items()
    }
    functions = {name.replace(".__init__.", "."): found for name, found in functions.items()}
    seams = {
        name
        for path in python_files()
        for name in source(path).imports & functions.keys()
        if name.split(".")[:-1][:2] != list(path.relative_to(ROOT).parts[:2])
    }
    silent = []
    for name in sorted(seams):
        doc, raised = functions[name]
        silent += [f"{name} {error}" for error in sorted(raised) if error not in doc]
        silent += [name] if not doc else []
    assert silent == []
    assert len(seams) > 200  # that names are followed at all


# One concept each: where a framework computes, what is not there without a network, a command.
IN_SEVERAL_MODULES = {"Place", "OfflineError", "Runs"}


def test_a_class_name_stands_for_one_thing() -> None:
    found: dict[str, set[str]] = {}
    for path in python_files():
        for name in source(path).classes:
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    several = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: several[name] for name in set(several) - IN_SEVERAL_MODULES} == {}


def test_tests_mirror_the_packages() -> None:
    """A folder of tests has the name of its package; builders and fakes are in tests/kit."""
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path()}
    assert [str(one) for one in sorted(folders) if not (ROOT / one / "__init__.py").is_file()] == []
    helpers = {"__init__", "conftest"}
    others = [p.name for p in unit.rglob("*.py") if p.stem not in helpers and p.stem[:5] != "test_"]
    assert others == []


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in python_files()}
    assert [str(path) for path, count in lines.items() if count > MOST_LINES] == []


@pytest.mark.parametrize("package", ONLY_IN)
def test_outside_packages_stay_behind_their_seam(package: str) -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in python_files()
        if package in {name.split(".")[0] for name in source(path).imports}
    }
    allowed = ONLY_IN[package]
    assert all(user in allowed or user.split("/")[0] in allowed for user in users)


def test_what_is_imported_at_start_is_declared() -> None:
    """A package that only another one brings is absent where that one does without it."""
    text = (ROOT / "pyproject.toml").read_text()
    declared = text.partition("\ndependencies = [\n")[2].partition("\n]\n")[0]
    names = {
        name.replace("-", "_").lower()
        for name in re.findall(r'^ +"([\w.-]+)', declared, re.MULTILINE)
    }
    ours = {"provision", "images", "verify", "tools", *sys.stdlib_module_names}
    outside = {
        (str(path.relative_to(ROOT)), name.split(".")[0])
        for path in python_files()
        for name in source(path).imports_at_top
        if name.split(".")[0] not in ours
    }
    assert {one for one in outside if one[1] not in names} == set()


def test_verify_needs_nothing_at_import_but_the_standard_library() -> None:
    outside = {
        name.split(".")[0]
        for path in (ROOT / "verify").rglob("*.py")
        for name in source(path).imports_at_top
    }
    assert outside - {"verify", "__future__"} <= sys.stdlib_module_names


def test_verify_is_written_in_the_oldest_python_of_any_image() -> None:
    for path in sorted((ROOT / "verify").rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def test_plan_starts_without_the_heavy_packages(tmp_path: Path) -> None:
    import json

    host = tmp_path / "host.json"
    host.write_text("{}")
    code = (
        "import sys, json\n"
        "from provision.cli import main as cli\n"
        f"code = cli.main(['plan', '--host', {str(host)!r}, '--cuda', '11.7', '--json'])\n"
        "print(json.dumps([code, *sys.modules]), file=sys.stderr)\n"
    )
    done = run_program([sys.executable, "-c", code], cwd=ROOT, check=True)
    code_, *loaded_ = json.loads(done.stderr)
    assert code_ == 0
    loaded = set(loaded_)
    assert not loaded & {"docker", "rich", "urllib3", "requests", "pynvml", "uv", "tomli_w"}
