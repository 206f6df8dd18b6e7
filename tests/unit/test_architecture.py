"""One direction of imports: the table below is the design, and this test holds it."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("provision", "images", "verify")
MAY_IMPORT = {"provision": {"provision", "images"}, "images": {"images"}, "verify": {"verify"}}

# Inside provision: a package may import those of lower layers, the way of the data: facts
# and request -> resolve -> lock -> verification -> build.
LAYERS = (
    {"errors", "version"},
    {"model"},
    {"output", "host"},
    {"catalog"},
    {"resolve", "lock", "doctor"},
    {"attestation", "inspection"},
    {"verification"},
    {"build"},
    {"cli"},
    {"__main__"},
)
# Who may import what from outside, where that is worth holding.
ONLY_IN = {
    "cryptography": {"provision/attestation/record/keys.py"},
    "cyclonedx": {"provision/attestation/provenance/bom.py"},
    "deflate": {"images/bootstrap/unpack.py"},
    "docker": {
        "images/docker.py",
        "images/engine_setup.py",
        "images/registry/auth.py",
        "images/runner.py",  # a type's name
    },
    "ahocorasick_rs": {"provision/doctor/matching.py"},
    "packageurl": {"images/bootstrap/host.py", "provision/attestation/provenance/bom.py"},
    "pynvml": {"provision/host/nvml.py"},
    "pysequoia": {"images/bootstrap/signature.py"},
    "re2": {"provision/doctor/matching.py"},
    "rich": {"provision/output/console.py"},
    "ruamel": {"provision/doctor/lint/compose.py"},
    "torch": {"verify"},
    "tensorflow": {"verify"},
}


@cache
def python_files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@cache
def imports_of(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_rooms_import_in_one_direction() -> None:
    wrong = []
    for path in python_files():
        name = path.relative_to(ROOT)
        reached = {name.split(".")[0] for name in imports_of(path)} & set(ROOMS)
        wrong += [f"{name} imports {room}" for room in reached - MAY_IMPORT[name.parts[0]]]
    assert wrong == []


def test_contributing_shows_the_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawing = text.partition("the test reads this drawing:\n\n")[2].partition("\n\n")[0]
    shown = [set(line.split()) for line in reversed(drawing.splitlines())]
    assert shown == [layer for layer in LAYERS if layer != {"__main__"}]


def test_layers_of_provision_import_downwards() -> None:
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    wrong = []
    for path in (ROOT / "provision").rglob("*.py"):
        parts = path.relative_to(ROOT / "provision").with_suffix("").parts
        if parts[0] == "__init__":
            continue
        for name in imports_of(path):
            room, _, rest = name.partition(".")
            target = rest.split(".")[0]
            inside = room == "provision" and target in rank and target != parts[0]
            if inside and rank[target] >= rank[parts[0]]:
                wrong.append(f"{'/'.join(parts)} imports {target}")
    assert not wrong


def test_every_module_of_provision_has_its_layer() -> None:
    modules = {p.stem for p in (ROOT / "provision").iterdir() if p.suffix == ".py" or p.is_dir()}
    assert modules - {"__init__", "__pycache__"} == {n for layer in LAYERS for n in layer}


@pytest.mark.parametrize("package", ONLY_IN)
def test_outside_packages_stay_behind_their_seam(package: str) -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in python_files()
        if package in {name.split(".")[0] for name in imports_of(path)}
    }
    allowed = ONLY_IN[package]
    assert all(user in allowed or user.split("/")[0] in allowed for user in users)


def test_verify_needs_nothing_at_import_but_the_standard_library() -> None:
    outside = {
        name.split(".")[0]
        for path in (ROOT / "verify").rglob("*.py")
        for name in imports_of(path, top_level_only=True)
    }
    assert outside - {"verify", "__future__"} <= sys.stdlib_module_names


def test_verify_is_written_in_the_oldest_python_of_any_image() -> None:
    for path in sorted((ROOT / "verify").rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def test_plan_starts_without_the_heavy_packages(tmp_path: Path) -> None:
    import json
    import subprocess

    host = tmp_path / "host.json"
    host.write_text("{}")
    code = (
        "import sys, json\n"
        "from provision.cli import main as cli\n"
        f"code = cli.main(['plan', '--host', {str(host)!r}, '--cuda', '11.7', '--json'])\n"
        "print(json.dumps([code, *sys.modules]), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    code_, *loaded_ = json.loads(done.stderr)
    assert code_ == 0
    loaded = set(loaded_)
    assert not loaded & {"docker", "rich", "urllib3", "requests", "pynvml", "uv", "tomli_w"}
