"""Symbols that nothing defines: what the loader would search, and what cannot be judged."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from images.inspect.contents import Contents
from images.inspect.image import conclude
from images.inspect.needs import for_other_python
from images.inspect.tree import ImageTree
from images.inspect.undefined import SymbolNeeds
from tests import need
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.image_maker import Files, installed
from tests.kit.programs import run_program
from tests.unit.images.inspect.test_image_needs import MODULE, SITE, host_node, look, program
from tests.unit.images.inspect.test_symbols import SYMTAB, with_tag

Package = tuple[str, Files, Sequence[str]]
TORCH: Files = {
    "torch/lib/libc10.so": elf(
        soname="libc10.so", needed=["libmore.so"], rpath="$ORIGIN/more", defines=["c10_check"]
    ),
    "torch/lib/more/libmore.so": elf(soname="libmore.so", defines=["more"]),
    "torch/lib/libglobal.so": elf(soname="libglobal.so", defines=["for_all"]),
    f"torch/{MODULE}": elf(needed=["libc10.so"], rpath="$ORIGIN/lib"),
}


def searched(files: Files, *packages: Package) -> SymbolNeeds:
    """What is found in an image with a Python that defines "PyLong_Type", and with torch."""
    made: dict[str, bytes | str | None] = {
        "usr/bin/python3.11": program(defines=["PyLong_Type"]),
        "opt/venv/bin/python3": "/usr/bin/python3.11",
        **files,
    }
    for name, content, requires in (("torch", TORCH, ()), *packages):
        made |= installed(name, "1.0", content, site=SITE, requires=requires)
    found = look(made, {"PATH": "/opt/venv/bin:/opt/bin"})
    assert found.needs is not None
    return found.needs.symbols


def missing(found: SymbolNeeds) -> list[tuple[str, str, bool]]:
    return [(one.file.removeprefix(f"{SITE}/"), one.symbol, one.required) for one in found.missing]


def vision(*needed: str, name: str = "vision/_C.so", **more: Sequence[str]) -> Package:
    """A package that requires torch, with one file that uses torch's library."""
    made = elf(needed=["libc10.so", *needed], **more)  # type: ignore[arg-type]
    return "vision", {name: made}, ["torch (==1.0)"]


def test_what_torch_and_python_define_is_found() -> None:
    found = searched(
        {},
        vision(wants=["c10_check", "PyLong_Type"], calls=["more", "for_all"], weak_wants=["weak"]),
    )
    assert found == SymbolNeeds(found=4)


@cases(
    "package expected",
    ("what another release of torch had", vision(wants=["c10_gone"]),
     [("vision/_C.so", "c10_gone", True)]),
    ("Python resolves calls when it loads a module", vision(calls=["c10_gone"]),
     [("vision/_C.so", "c10_gone", True)]),
    ("what another Python had", vision(wants=["PyLong_Gone"]),
     [("vision/_C.so", "PyLong_Gone", True)]),
    ("the driver defines only names of its own",
     vision("libcuda.so.1", wants=["cuInit", "c10_gone"]), [("vision/_C.so", "c10_gone", True)]),
    ("the runtime's names are not the driver's", vision("libcuda.so.1", wants=["cudaMalloc"]),
     [("vision/_C.so", "cudaMalloc", True)]),
    ("a library that may never be opened", vision(name="vision/libplugin.so", wants=["c10_gone"]),
     [("vision/libplugin.so", "c10_gone", False)]),
)  # fmt: skip
def test_what_nothing_defines_is_named(
    package: Package, expected: list[tuple[str, str, bool]]
) -> None:
    found = searched({}, package)
    assert missing(found) == expected
    assert found.missing[0].searched == (f"{SITE}/torch/lib/libc10.so",)


@cases(
    "package",
    ("a weak reference", vision(weak_wants=["gone"])),
    ("an entry that no relocation uses", vision(unused=["gone"])),
)
def test_what_is_not_looked_up_does_not_count(package: Package) -> None:
    assert searched({}, package) == SymbolNeeds()


@cases(
    "package files",
    ("the driver", vision("libcuda.so.1", wants=["cuGone"]), {}),
    ("a driver of unknown names", vision("libnvoptix.so.1", wants=["gone"]), {}),
    ("a missing library", vision("libgone.so.1", wants=["gone"]), {}),
    ("an optional library", vision("libavutil.so.57", wants=["gone"]), {}),
    ("a library where the loader does not look", vision("libaway.so", wants=["gone"]),
     {"opt/libaway.so": elf(soname="libaway.so")}),
    ("a library whose symbols cannot be read", vision("libdamaged.so", wants=["gone"]),
     {"lib/libdamaged.so": with_tag(elf(defines=["gone"]), SYMTAB, 1 << 40)}),
    ("another Python", vision(wants=["gone"], name="vision/_C.cpython-312-x86_64-linux-gnu.so"),
     {}),
    ("a library of Python itself", vision(wants=["gone"]),
     {"usr/bin/python3.11": program(needed=["libpython3.11.so.1"])}),
)  # fmt: skip
def test_what_may_be_in_something_that_was_not_read_is_not_judged(
    package: Package, files: Files
) -> None:
    assert searched(files, package) == SymbolNeeds(unjudged=1)


def test_without_a_python_its_modules_are_not_judged() -> None:
    files: Files = {"usr/bin/python3.11": None, "opt/venv/bin/python3": None}
    assert searched(files, vision(wants=["gone"])) == SymbolNeeds(unjudged=1)


def test_what_an_unrelated_package_defines_is_shown_and_not_failed() -> None:
    other: Package = "other", {"other/libother.so": elf(soname="libother.so", defines=["o"])}, ()
    (one,) = searched({}, vision(wants=["o"]), other).missing
    assert (one.where, one.required) == (f"{SITE}/other/libother.so", False)


def test_one_load_in_which_a_symbol_is_found_is_enough() -> None:
    shared = elf(soname="libshared.so", wants=["of_first"])
    first = elf(needed=["libshared.so"], rpath="$ORIGIN", defines=["of_first"])
    second = elf(needed=["libshared.so"], rpath="$ORIGIN")
    files = {"a/_first.so": first, "a/_second.so": second, "a/libshared.so": shared}
    assert not searched({}, ("a", files, ())).missing


@cases(
    "made expected",
    ("a call that may never happen", program(calls=["gone"]), [False]),
    ("calls resolved at once", program(calls=["gone"], binds_now=True), [True]),
    ("data", program(wants=["gone"]), [True]),
    ("what another program has", program(wants=["PyLong_Type"]), [False]),
)
def test_a_program_has_its_own_scope(made: bytes, expected: list[bool]) -> None:
    assert [one.required for one in searched({"opt/bin/p": made}).missing] == expected


def test_what_an_unknown_program_opens_is_not_judged() -> None:
    files: Files = {"usr/lib/security/pam_x.so": elf(wants=["of_the_program"])}
    assert searched(files) == SymbolNeeds()


LIBX = elf(soname="libx.so.1", provides=["libx.so.1", "X_1", "X_2"], defines=["f@@X_1", "g@@X_2"])


@cases(
    "version expected",
    ("the version that defines it", "X_1", []),
    ("a version that does not", "X_2", [("/opt/bin/p", "f", True)]),
    ("a version that is missing is reported as such", "X_3", []),
)
def test_symbols_have_versions(version: str, expected: list[tuple[str, str, bool]]) -> None:
    made = program(needed=["libx.so.1"], versions={"libx.so.1": [version]}, wants=[f"f@{version}"])
    found = searched({"opt/bin/p": made, "lib/libx.so.1": LIBX})
    assert missing(found) == expected
    assert [one.version for one in found.missing] == [version for _ in expected]


F = 'int puts(const char *); int f(void) { return puts("") < 0; }'
OWN = f"{F} int g(void) {{ return 0; }}"
USER = "int g(void); int main(void) { return g(); }"
FIRST = "OWN_1 { global: f; g; };"


@cases(
    "library versions source",
    ("as it was linked", OWN, FIRST, USER),
    ("a symbol was removed", F, FIRST, USER),
    ("without versions", OWN, None, USER),
    ("the version is missing", OWN, "OWN_2 { global: f; g; };", USER),
    ("in another", OWN, "OWN_1 { global: f; }; OWN_2 { global: g; };", USER),
    ("only for the library", OWN, "OWN_1 { global: f; local: g; };", USER),
    ("a weak reference", F, FIRST, f"#pragma weak g\n{USER.replace('g();', 'g ? g() : 0;')}"),
)
def test_the_real_loader_agrees(
    tmp_path: Path, library: str, versions: str | None, source: str
) -> None:
    """A program is linked with one build of a library, and started with another."""
    gcc = need.program("gcc")

    def build(name: str, code: str, *words: str) -> Path:
        (tmp_path / f"{name}.c").write_text(code)
        argv = [gcc, "-o", name, f"{name}.c", *words]
        subprocess.run(argv, check=True, cwd=tmp_path, timeout=60)
        return tmp_path / name

    shared = ("-shared", "-fPIC", "-Wl,-soname,libown.so.1", "-Wl,--version-script=map")
    (tmp_path / "map").write_text(FIRST)
    build("libown.so.1", OWN, *shared)
    program_path = build("p", source, "libown.so.1", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now")
    (tmp_path / "map").write_text(versions or "")
    build("libown.so.1", library, *shared[: 4 if versions else 3])
    started = subprocess.run([program_path], capture_output=True, check=False, timeout=60)
    tree = ImageTree()
    listed = run_program(["ldd", program_path])
    for text in (str(program_path), *re.findall(r"(/\S+) \(", listed.stdout)):
        node = host_node(Path(text).resolve())
        assert node is not None
        tree.add(text, node)
    contents = Contents(
        kind="image",
        shown="this machine",
        digest=None,
        machine="x86_64" if os.uname().machine == "x86_64" else "aarch64",
        tree=tree,
        config={"config": {"Env": [f"PATH={tmp_path}", f"LD_LIBRARY_PATH={tmp_path}"]}},
    )
    needs = conclude(contents).needs
    assert needs is not None
    assert not [one for one in needs.needs if one.status != "found"]
    lacks = [*(one.required for one in needs.symbols.missing)]
    lacks += [*(one.required for one in needs.versions)]
    assert any(lacks) == (started.returncode != 0), started.stderr


@cases(
    "path expected",
    ("its tag", "/s/a.cpython-311-x86_64-linux-gnu.so", False),
    ("another tag", "/s/a.cpython-312-x86_64-linux-gnu.so", True),
    ("a build without the GIL", "/s/a.cpython-311t-x86_64-linux-gnu.so", True),
    ("another implementation", "/s/a.pypy310-pp73-x86_64-linux-gnu.so", True),
    ("for every Python", "/s/a.abi3.so", False),
    ("no version anywhere", "/usr/lib/python3/dist-packages/a.so", False),
    ("its directory", "/usr/lib/python3.11/a.abi3.so", False),
    ("another directory", "/usr/lib/python3.9/a.so", True),
)
def test_which_python_a_module_is_for(
    path: str,
    expected: bool,  # noqa: FBT001  pytest gives it by name
) -> None:
    assert for_other_python(path, "3.11") is expected
