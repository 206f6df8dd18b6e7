"""Libraries found as the loader finds them: its order, its exceptions, and `ldd` as the judge."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from images.inspect.contents import Contents, read_image
from images.inspect.dynamic import MAGIC, DynamicReader
from images.inspect.image import Inspection, conclude
from images.inspect.known_libraries import debian_packages, find_known, known_libraries
from images.inspect.loader import NeededLibrary
from images.inspect.segments import DamagedElf
from images.inspect.tree import ImageFile, ImageTree, SymbolicLink
from tests.kit.cases import cases
from tests.kit.elf_maker import AARCH64, elf
from tests.kit.image_maker import Files, image_of, installed
from tests.kit.programs import run_program

LOADER = "/lib64/ld-linux-x86-64.so.2"
SITE = "/opt/venv/lib/python3.11/site-packages"
MODULE = "m.cpython-311-x86_64-linux-gnu.so"


def program(**more: object) -> bytes:
    return elf(interpreter=LOADER, **more)  # type: ignore[arg-type]


def look(files: Files, env: Mapping[str, str] | None = None, *more: Files) -> Inspection:
    return conclude(read_image(image_of(files, *more, env=env)))


def need(found: Inspection, name: str, file: str | None = None) -> NeededLibrary:
    assert found.needs is not None
    return next(n for n in found.needs.needs if n.name == name and file in (None, n.file))


LIB = elf(soname="libx.so.1")


@cases(
    "files env where",
    ("DT_RPATH comes before LD_LIBRARY_PATH", {"usr/bin/p": program(needed=["libx.so.1"],
        rpath="/a"), "a/libx.so.1": LIB, "b/libx.so.1": LIB}, {"LD_LIBRARY_PATH": "/b"},
        "/a/libx.so.1"),
    ("DT_RUNPATH comes after it", {"usr/bin/p": program(needed=["libx.so.1"], runpath="/a"),
        "a/libx.so.1": LIB, "b/libx.so.1": LIB}, {"LD_LIBRARY_PATH": "/b"}, "/b/libx.so.1"),
    ("DT_RPATH is nothing beside a DT_RUNPATH", {"usr/bin/p": program(needed=["libx.so.1"],
        runpath="/a", rpath="/b"), "a/libx.so.1": LIB, "b/libx.so.1": LIB}, {}, "/a/libx.so.1"),
    ("a library inherits the DT_RPATH of who loaded it", {"usr/bin/p": program(needed=["liby.so.1"],
        rpath="/a"), "a/liby.so.1": elf(needed=["libx.so.1"]), "a/libx.so.1": LIB}, {},
        "/a/libx.so.1"),
    ("and not the DT_RUNPATH", {"usr/bin/p": program(needed=["liby.so.1"], runpath="/a"),
        "a/liby.so.1": elf(needed=["libx.so.1"]), "a/libx.so.1": LIB}, {}, None),
    ("nor the DT_RPATH where it has a DT_RUNPATH itself",
        {"usr/bin/p": program(needed=["liby.so.1"], rpath="/a"),
        "a/liby.so.1": elf(needed=["libx.so.1"], runpath="/c"), "a/libx.so.1": LIB}, {}, None),
    ("$ORIGIN is where the file lies", {"opt/p/bin/p": program(needed=["libx.so.1"],
        rpath="${ORIGIN}/../lib"), "opt/p/lib/libx.so.1": LIB}, {"PATH": "/opt/p/bin"},
        "/opt/p/lib/libx.so.1"),
    ("$LIB is the directory of this machine's libraries",
        {"usr/bin/p": program(needed=["libx.so.1"], rpath="/opt/$LIB"),
        "opt/lib/x86_64-linux-gnu/libx.so.1": LIB}, {}, "/opt/lib/x86_64-linux-gnu/libx.so.1"),
    ("a path that is not absolute leads nowhere", {"usr/bin/p": program(needed=["libx.so.1"],
        rpath="lib:/b"), "lib/libx.so.1": LIB, "b/libx.so.1": LIB}, {}, "/b/libx.so.1"),
    ("another machine's library is passed over", {"usr/bin/p": program(needed=["libx.so.1"],
        rpath="/a:/b"), "a/libx.so.1": elf(machine=AARCH64), "b/libx.so.1": LIB}, {},
        "/b/libx.so.1"),
    ("so is what is no library", {"usr/bin/p": program(needed=["libx.so.1"], rpath="/a:/b"),
        "a/libx.so.1": b"INPUT(libx.so.2)", "b/libx.so.1": LIB}, {}, "/b/libx.so.1"),
    ("the default directories come last", {"usr/bin/p": program(needed=["libx.so.1"]),
        "usr/lib64/libx.so.1": LIB}, {}, "/usr/lib64/libx.so.1"),
    ("unless the file wants none", {"usr/bin/p": program(needed=["libx.so.1"], no_default=True),
        "usr/lib/libx.so.1": LIB}, {}, None),
    ("a name with a slash is that file", {"usr/bin/p": program(needed=["/opt/libx.so.1"]),
        "opt/libx.so.1": LIB}, {}, None),
    ("a library that is loaded already serves its soname",
        {"usr/bin/p": program(needed=["liby.so.1", "libx.so.1"], rpath="/a"),
        "a/liby.so.1": elf(soname="libx.so.1")}, {}, "/a/liby.so.1"),
    ("links are followed", {"usr/bin/p": program(needed=["libx.so.1"]),
        "usr/lib/libx.so.1": "libx.so.1.2", "usr/lib/libx.so.1.2": LIB, "lib": "usr/lib"}, {},
        "/usr/lib/libx.so.1.2"),
)  # fmt: skip
def test_the_loaders_order(files: Files, env: Mapping[str, str], where: str | None) -> None:
    found = look(files, {"PATH": "/usr/bin", **env})
    name = "/opt/libx.so.1" if "opt/libx.so.1" in files else "libx.so.1"
    one = need(found, name)
    if name.startswith("/"):
        assert (one.status, one.where) == ("found", "/opt/libx.so.1")
    else:
        assert one.where == where if where else one.status in {"missing", "elsewhere"}
        assert one.required


TORCH: Files = {
    "torch/lib/libc10.so": elf(soname="libc10.so"),
    f"torch/{MODULE}": elf(needed=["libc10.so"], rpath="$ORIGIN/lib"),
}


@cases(
    "packages file name expected",
    ("a package relies on one that it requires", [("vision",
        {"vision/_C.so": elf(needed=["libc10.so"])}, ["torch (==2.0.1)"])], "vision/_C.so",
        "libc10.so", ("loaded-before", True)),
    ("the framework's own library has been loaded by its program", [("audio",
        {"audio/_C.so": elf(needed=["libc10.so"])}, [])], "audio/_C.so", "libc10.so",
        ("loaded-before", True)),
    ("another's that nobody ties to it has not", [("alone",
        {"alone/_C.so": elf(needed=["libz9.so"])}, []), ("z9",
        {"z9/lib/libz9.so": elf(soname="libz9.so")}, [])], "alone/_C.so", "libz9.so", ("elsewhere",
        True)),
    ("the driver's libraries come from the host", [("a",
        {f"a/{MODULE}": elf(needed=["libcuda.so.1"])}, [])], f"a/{MODULE}", "libcuda.so.1",
        ("driver", True)),
    ("what is nowhere is missing", [("a", {f"a/{MODULE}": elf(needed=["libcusparse.so.11"])}, [])],
        f"a/{MODULE}", "libcusparse.so.11", ("missing", True)),
    ("one build of several for FFmpeg need not load", [("a",
        {"a/ffmpeg5.so": elf(needed=["libavutil.so.57"])}, [])], "a/ffmpeg5.so", "libavutil.so.57",
        ("optional", True)),
    ("a library that nothing loads need not load", [("a",
        {"a/libplugin.so": elf(needed=["libnothing.so"])}, [])], "a/libplugin.so", "libnothing.so",
        ("missing", False)),
    ("those of the framework itself must", [("torch2", {}, ["torch"]), ("torch",
        {"torch/lib/libmore.so": elf(needed=["libnothing.so"])}, [])], "torch/lib/libmore.so",
        "libnothing.so", ("missing", True)),
    ("a stub is for linkers", [("a", {"a/stubs/libcuda.so": elf(soname="libcuda.so.1",
        needed=["libq.so"])}, [])], "a/stubs/libcuda.so", "libq.so", ("missing", False)),
)  # fmt: skip
def test_what_packages_need(
    packages: list[tuple[str, Files, list[str]]], file: str, name: str, expected: tuple[str, bool]
) -> None:
    files: Files = {"usr/bin/python3.11": program(), "opt/venv/bin/python3": "/usr/bin/python3.11"}
    made = dict(installed("torch", "2.0.1", TORCH, site=SITE)) if packages[-1][0] != "torch" else {}
    for package, content, requires in packages:
        made |= installed(package, "1.0", content, site=SITE, requires=requires)
    one = need(look({**files, **made}, {"PATH": "/opt/venv/bin"}), name, f"{SITE}/{file}")
    assert (one.status, one.required) == expected


def test_a_module_inherits_the_path_of_the_python_that_imports_it() -> None:
    files: Files = {
        "opt/conda/bin/python3.11": program(rpath="$ORIGIN/../lib"),
        "opt/conda/bin/python3": "python3.11",
        "opt/conda/lib/libx.so.1": LIB,
    }
    module = installed("a", "1", {f"a/{MODULE}": elf(needed=["libx.so.1"])}, site=SITE)
    found = look({**files, **module}, {"PATH": "/opt/conda/bin"})
    assert need(found, "libx.so.1").status == "found"
    assert found.python == "3.11"


LIBC = elf(soname="libc.so.6", provides=["libc.so.6", "GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.17"])


@cases(
    "asked provider newest",
    ("the newest that is there", {"libc.so.6": ["GLIBC_2.17"]}, LIBC, None),
    ("2.17 is after 2.9", {"libc.so.6": ["GLIBC_2.99"]}, LIBC, "GLIBC_2.17"),
    ("an older one may be missing, too", {"libc.so.6": ["GLIBC_2.3"]}, LIBC, "GLIBC_2.17"),
    ("a library without versions serves all", {"libc.so.6": ["GLIBC_2.99"]},
     elf(soname="libc.so.6"), None),
)  # fmt: skip
def test_versions_are_those_of_the_library_that_is_found(
    asked: dict[str, list[str]], provider: bytes, newest: str | None
) -> None:
    found = look(
        {"usr/bin/p": program(needed=["libc.so.6"], versions=asked), "lib/libc.so.6": provider},
        {"PATH": "/usr/bin"},
    )
    assert found.needs is not None
    assert [v.newest for v in found.needs.versions] == ([newest] if newest else [])
    assert all(v.required for v in found.needs.versions)


def test_weak_versions_may_be_missing() -> None:
    made = program(needed=["libc.so.6"], weak={"libc.so.6": ["GLIBC_2.99"]})
    found = look({"usr/bin/p": made, "lib/libc.so.6": LIBC}, {"PATH": "/usr/bin"})
    assert found.needs is not None
    assert not found.needs.versions


def test_every_row_of_the_table_names_its_source_and_can_be_found() -> None:
    for row in known_libraries():
        assert row.source.startswith("https://")
        file = "/site/" + row.files[0].replace("*", "so") if row.files else ""
        assert all(find_known(name.replace("*", "1"), row.group, file) for name in row.names)
    assert find_known("libcuda.so.1", "driver")
    assert not find_known("libcudart.so.11.0", "driver")
    assert not find_known("libcublas.so.11", "optional")


def test_debian_packages_are_named_once() -> None:
    missing = ["libgthread-2.0.so.0", "libodd.so.1", "libGL.so.1", "libglib-2.0.so.0"]
    assert debian_packages(missing) == ("libglib2.0-0", "libgl1")
    libraries = [name for row in known_libraries() if row.group == "debian" for name in row.names]
    assert len(libraries) == len(set(libraries))


def test_a_library_can_be_optional_for_one_file_only() -> None:
    layers = "/opt/venv/lib/python3.11/site-packages/numba/np/ufunc/tbbpool.cpython-311.so"
    assert find_known("libtbb.so.12", "optional", layers)
    assert not find_known("libtbb.so.12", "optional", "/opt/venv/lib/open3d/libopen3d.so")


def host_tree() -> ImageTree:
    """This machine's own libraries and programs, read in place."""
    tree = ImageTree()
    tops = [Path(name) for name in ("/bin", "/sbin", "/lib", "/lib64")]
    for top in tops:
        if top.is_symlink():
            tree.add(str(top), SymbolicLink(target=str(top.readlink()), layer=0))
    places = [Path("/usr/bin"), Path("/usr/lib"), *(top for top in tops if not top.is_symlink())]
    for place in places:
        for path in sorted(place.iterdir() if place.name == "bin" else place.rglob("*.so*")):
            node = host_node(path)
            if node is not None:
                tree.add(str(path), node)
    cache = Path("/etc/ld.so.cache")
    tree.add(str(cache), ImageFile(size=0, layer=0, text=cache.read_bytes()))
    return tree


def host_node(path: Path) -> ImageFile | SymbolicLink | None:
    if path.is_symlink():
        return SymbolicLink(target=str(path.readlink()), layer=0)
    if not path.is_file():
        return None
    file = ImageFile(size=path.stat().st_size, layer=0, executable=True)
    reader = DynamicReader(file.size)
    with path.open("rb") as opened:
        if opened.read(4) != MAGIC:
            return None
        while file.elf is None:
            opened.seek(0)
            try:
                while reader.found is None and (piece := opened.read(1 << 20)):
                    reader.feed(piece)
                file.elf = reader.found or reader.finish()
            except DamagedElf:
                return None
    return file


@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists(), reason="no glibc loader here")
def test_the_loader_of_this_machine_finds_the_same_files() -> None:
    """`ldd` lets the real loader load a program, and prints where each library was found; with -r
    also which symbols were not.
    """
    contents = Contents(
        kind="image",
        shown="this machine",
        digest=None,
        machine="x86_64" if os.uname().machine == "x86_64" else "aarch64",
        tree=host_tree(),
        config={"config": {"Env": ["PATH=/usr/bin"]}},
    )
    found = conclude(contents)
    assert found.needs is not None
    mine: dict[str, dict[str, str | None]] = {}
    for one in found.needs.needs:
        mine.setdefault(one.file, {})[one.name] = one.where
    programs = sorted(path for path in mine if path.startswith("/usr/bin/"))
    chosen = [p for p in programs[:: max(1, len(programs) // 60)] if os.access(p, os.R_OK)]
    assert len(chosen) > 20
    for path in chosen:
        said = run_program(["ldd", path]).stdout
        theirs = dict(re.findall(r"^\s*(\S+) => (/\S+)", said, re.MULTILINE))
        for name, where in mine[path].items():
            if name in theirs:
                assert where is not None, (path, name)
                assert Path(where).samefile(theirs[name]), (path, name)
            else:
                assert "ld-linux" in name or "not found" in said, (path, name)
    symbols = found.needs.symbols
    assert symbols.found > 1000
    for lacks in [one for one in symbols.missing if one.required][:20]:  # there should be none
        argv = ["ldd", "-r", lacks.root]
        said = run_program(argv).stdout
        assert f"undefined symbol: {lacks.symbol}" in said, (lacks, said)


@cases(
    "of_the_package required",
    ("the package has one for the CUDA that is there", ("12", "13"), False),
    ("it has none", ("12",), True),
)
def test_a_library_for_another_cuda(of_the_package: tuple[str, ...], *, required: bool) -> None:
    modules: Files = {
        f"saver_cu{cuda}.abi3.so": elf(needed=[f"libcudart.so.{cuda}"], rpath="/cuda")
        for cuda in of_the_package
    }
    site = SITE[1:]
    found = look(
        {
            "cuda/libcudart.so.13": elf(soname="libcudart.so.13"),
            **installed("saver", "1.0", modules, site=site),
            **installed(
                "other", "1.0", {"o.abi3.so": elf(needed=["libcudart.so.13"], rpath="/cuda")},
                site=site,
            ),
        }
    )  # fmt: skip
    missing = need(found, "libcudart.so.12")
    assert (missing.status, missing.required) == ("missing", required)


def test_an_extension_of_the_framework_finds_what_an_extra_brought() -> None:
    """As torchaudio 2.11, which names no requirement, and torch 2.14: cuda-toolkit[cudart]."""
    site = SITE[1:]
    toolkit = ["nvidia-cuda-runtime; extra == 'cudart'", "nvidia-cufft; extra == 'cufft'"]
    runtime: Files = {"nvidia/cu13/lib/libcudart.so.13": elf(soname="libcudart.so.13")}
    other: Files = {"nvidia/fft/lib/libcufft.so.12": elf(soname="libcufft.so.12")}
    needed = ["libc10.so", "libcudart.so.13", "libcufft.so.12"]
    found = look(
        {
            **installed(
                "torch", "2.14.1", TORCH, site=site, requires=["cuda-toolkit[cudart]==13.0.2"]
            ),
            **installed("cuda-toolkit", "13.0.2", {}, site=site, requires=toolkit),
            **installed("nvidia-cuda-runtime", "13.0.96", runtime, site=site),
            **installed("nvidia-cufft", "12.0.0", other, site=site),
            **installed(
                "torchaudio", "2.11.0", {"audio/_C.abi3.so": elf(needed=needed)}, site=site
            ),
        }
    )
    statuses = {name: need(found, name, f"{SITE}/audio/_C.abi3.so").status for name in needed}
    assert statuses == {
        "libc10.so": "loaded-before",
        "libcudart.so.13": "loaded-before",
        "libcufft.so.12": "elsewhere",  # nobody asked for that extra
    }
