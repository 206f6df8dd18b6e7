"""Inspection against real tools: a Debian base, skopeo, umoci, gcc's libraries, readelf.

The base is bootstrapped once; skopeo makes a layout of it, umoci puts layers on it, gcc links what
is put there. For each check a fault is seeded that it must name.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from images.assembly.opening import open_image
from images.inspect.dynamic import MAGIC, DynamicReader, ElfFile
from images.inspect.image import Inspection, inspect_image
from images.inspect.segments import DamagedElf
from images.oci.model import CONFIG, LAYER, MANIFEST, REF_NAME, descriptor_of
from provision.verification.inspection.report import make_report
from tests import need
from tests.engines.lab import ROOT, debian
from tests.kit.image_maker import tar_of
from tests.kit.index_wheels import downloaded
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker
TRIPLET = f"{os.uname().machine}-linux-gnu"
SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Layout:
    """An OCI layout that umoci may change, under names of its own."""

    path: Path

    def without(self, name: str, gone: str) -> str:
        """Let umoci take a file away in a layer; gives what to inspect."""
        words = ["--image", f"{self.path}:base", "--tag", name, "--whiteout", gone]
        run([need.program("umoci"), "insert", *words])
        return f"oci:{self.path}:{name}"

    def with_files(self, name: str, files: Mapping[str, Path]) -> str:
        """Put a layer of files upon the base; gives what to inspect."""
        tar = tar_of({path: file.read_bytes() for path, file in files.items()})
        index = json.loads((self.path / "index.json").read_bytes())
        base = next(m for m in index["manifests"] if m["annotations"][REF_NAME] == "base")
        manifest = json.loads(self._blob(base["digest"]).read_bytes())
        config = json.loads(self._blob(manifest["config"]["digest"]).read_bytes())
        layer = self._add(tar, LAYER)
        config["rootfs"]["diff_ids"].append(layer["digest"])
        manifest["layers"].append(layer)
        manifest["config"] = self._add(json.dumps(config).encode(), CONFIG)
        made = self._add(json.dumps(manifest).encode(), MANIFEST)
        index["manifests"].append({**made, "annotations": {REF_NAME: name}})
        (self.path / "index.json").write_text(json.dumps(index))
        return f"oci:{self.path}:{name}"

    def _blob(self, digest: str) -> Path:
        return self.path / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _add(self, content: bytes, media_type: str) -> dict[str, Any]:
        made = descriptor_of(media_type, content)
        self._blob(made.digest).write_bytes(content)
        return made.to_json()


def run(argv: Sequence[str | Path]) -> str:
    done = run_program([*map(str, argv)])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    skopeo, _ = need.program("skopeo"), need.program("umoci")
    path = tmp_path_factory.mktemp("layout") / "oci"
    base = f"docker-archive:{debian().archive}"
    run([skopeo, "--insecure-policy", "copy", base, f"oci:{path}:base"])
    return Layout(path)


@pytest.fixture(scope="module")
def found(layout: Layout) -> Inspection:
    return look(f"oci:{layout.path}:base")


def look(name: str) -> Inspection:
    return inspect_image(open_image(name))


def judged(found: Inspection) -> dict[str, Any]:
    report = make_report(found, (), seconds=1.0)
    jsonschema.validate(report, SCHEMA)
    return report


def check(report: dict[str, Any], name: str) -> dict[str, Any]:
    one: dict[str, Any] = next(c for c in report["checks"] if c["id"] == f"inspect.{name}")
    return one


def link(directory: Path, name: str, source: str, *words: str | Path) -> Path:
    """Compile and link with gcc."""
    code, made = directory / f"{name}.c", directory / name
    code.write_text(source)
    run([need.program("gcc"), "-o", made, code, *words])
    return made


def test_a_debian_base_is_whole(found: Inspection) -> None:
    report = judged(found)
    assert report["verdict"] == "fit"
    assert (found.python, report["environment"]["glibc"]) == ("3.11", "2.36")
    assert found.needs is not None
    assert found.needs.files > 400
    assert not [n for n in found.needs.needs if n.status not in {"found", "optional"}]
    names = {share.name for share in found.shares}
    assert {"libc6", "libpython3.11-stdlib"} <= names


def test_the_real_loader_finds_the_same_files_in_it(
    layout: Layout, found: Inspection, tmp_path: Path
) -> None:
    """The base's own loader, told to print where it finds what a program needs."""
    need.root()
    bundle = tmp_path / "bundle"
    run([need.program("umoci"), "unpack", "--image", f"{layout.path}:base", bundle])
    assert found.needs is not None
    mine: dict[str, dict[str, str | None]] = {}
    for one in found.needs.needs:
        mine.setdefault(one.file, {})[one.name] = one.where
    programs = sorted(path for path in mine if path.startswith("/usr/bin/"))[::4]
    for program in ["/usr/bin/python3.11", *programs]:
        loader = next(iter((bundle / "rootfs" / "lib64").glob("ld-linux*"))).name
        script = f"LD_TRACE_LOADED_OBJECTS=1 /lib64/{loader} {program}"
        said = run(["/usr/sbin/chroot", bundle / "rootfs", "/bin/sh", "-c", script])
        theirs = dict(re.findall(r"^\s*(\S+) => (/\S+)", said, re.MULTILINE))
        for name, where in mine[program].items():
            if name in theirs:
                real = found.contents.tree.real(theirs[name])
                assert where == real, (program, name)


def test_a_library_that_a_layer_takes_away_is_named(layout: Layout) -> None:
    name = layout.without("gone", f"/usr/lib/{TRIPLET}/libexpat.so.1")
    one = check(judged(look(name)), "needs")
    assert one["status"] == "fail"
    assert "needs libexpat.so.1" in one["message"]
    assert "/usr/bin/python3.11" in one["message"]


def test_what_was_linked_for_a_newer_glibc_is_named(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "map").write_text("GLIBC_2.99 { global: of_tomorrow; };")
    made = link(
        tmp_path, "libm.so.6", "int of_tomorrow(void) { return 0; }", "-shared", "-fPIC",
        "-nostdlib", "-Wl,-soname,libm.so.6", f"-Wl,--version-script={tmp_path / 'map'}",
    )  # fmt: skip
    program = link(
        tmp_path,
        "tomorrow",
        "int of_tomorrow(void); int main(void) { return of_tomorrow(); }",
        made,
    )
    name = layout.with_files("tomorrow", {"usr/bin/tomorrow": program})
    report = judged(look(name))
    one = check(report, "glibc")
    assert report["verdict"] == "unfit"
    assert "/usr/bin/tomorrow needs GLIBC_2.99 of" in one["message"]
    assert "libm.so.6, which has at most GLIBC_2.3" in one["message"]
    assert "--base" in one["fix"]


def test_what_gcc_gave_a_path_is_found_there_and_only_there(layout: Layout, tmp_path: Path) -> None:
    library = link(
        tmp_path, "libown.so.1", "int own(void) { return 0; }", "-shared", "-fPIC",
        "-Wl,-soname,libown.so.1",
    )  # fmt: skip
    source = "int own(void); int main(void) { return own(); }"
    with_path = link(tmp_path, "with", source, str(library), "-Wl,-rpath,$ORIGIN/../../opt/own")
    without = link(tmp_path, "without", source, str(library))
    own = {"opt/own/libown.so.1": library}
    name = layout.with_files("own", {**own, "usr/bin/with": with_path})
    assert judged(look(name))["verdict"] == "fit"
    name = layout.with_files("other", {**own, "usr/bin/without": without})
    one = check(judged(look(name)), "needs")
    assert "/usr/bin/without needs libown.so.1" in one["message"]
    assert "LD_LIBRARY_PATH=/opt/own" in one["fix"]


def test_every_place_of_an_image_tells_the_same(layout: Layout, tmp_path: Path) -> None:
    skopeo = need.program("skopeo")
    reports = []
    for kind in ("oci", "oci-archive", "docker-archive"):
        target = f"{kind}:{tmp_path / kind}" + (":x/y:z" if kind == "docker-archive" else "")
        run([skopeo, "--insecure-policy", "copy", f"oci:{layout.path}:base", target])
        report = judged(look(f"{kind}:{tmp_path / kind}"))
        reports.append([(c["id"], c["status"], c["cause"]) for c in report["checks"]])
    assert reports[0] == reports[1] == reports[2]


def test_the_command_does_it_with_little_memory(layout: Layout, tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import argparse, sys
        from provision.output.console import Console
        from provision.cli.commands.inspect import options, run
        parser = argparse.ArgumentParser()
        parser.add_argument("--json", action="store_true")
        options(parser)
        code = run(parser.parse_args(sys.argv[1:]), Console())
        # not getrusage: that counts what the process was before it became this program
        with open("/proc/self/status") as status:
            print(*(line.split()[1] for line in status if "VmHWM" in line), file=sys.stderr)
        sys.exit(code)
    """)
    junit = tmp_path / "junit.xml"
    done = run_program(
        [sys.executable, "-c", code, f"oci:{layout.path}:base", "--junit", junit], cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("verdict     fit")
    assert int(done.stderr.split()[-1]) < 300_000  # in kB
    assert "inspect.needs" in junit.read_text(encoding="utf-8")


def elves() -> list[Path]:
    places = (Path("/usr/lib") / TRIPLET, Path("/usr/bin"), Path("/usr/lib"))
    found = []
    for place in places:
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    if file.read(4) == MAGIC:
                        found.append(path)
    return found


def read(path: Path) -> ElfFile:
    reader = DynamicReader(path.stat().st_size)
    while True:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                reader.feed(piece)
        found = reader.finish()
        if found is not None:
            return found


def test_what_is_read_is_what_readelf_reads() -> None:
    readelf = need.program("readelf", "binutils")
    every = elves()
    chosen = every[:: max(1, len(every) // 150)]
    compared = 0
    for path in chosen:
        try:
            found = read(path)
        except DamagedElf:
            continue
        said = run_program(
            [readelf, "--dynamic", "--version-info", "--wide", path],
            env={**os.environ, "LC_ALL": "C"},
            check=True,
        ).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said)
        soname = re.findall(r"\(SONAME\).*\[(.*)\]", said)
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", said)
        versions = re.findall(r"Name: (\S+)  Flags: (\S+)  Version", said)
        assert list(found.needed) == needed, path
        assert found.soname == (soname or [None])[0], path
        assert ":".join(found.runpath or found.rpath) == ":".join(paths).strip(":"), path
        mine = [version for asked in found.versions.values() for version in asked]
        assert mine == [name for name, flags in versions if "WEAK" not in flags], path
        compared += 1
    assert compared > 50


SITE = "opt/venv/lib/python3.11/site-packages"
CUSPARSE, NVJITLINK = "nvidia-cusparse-cu12==12.5.8.93", "nvidia-nvjitlink-cu12=={}"


def in_site(wheel: Path, folder: Path) -> dict[str, Path]:
    """The wheel's files, by their path in an image."""
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {f"{SITE}/{path.relative_to(folder)}": path for path in files}


def using_it(library: Path, folder: Path) -> dict[str, Path]:
    """A package with a module that is linked to the library, by its place in an image."""
    name, info = f"solver.cpython-311-{TRIPLET}.so", folder / "info"
    paths = "-Wl,--allow-shlib-undefined,--no-as-needed,-rpath,$ORIGIN/nvidia/cusparse/lib"
    module = link(folder, name, "int one(void) { return 1; }", "-shared", paths, library)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: solver\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{name},,\nsolver-1.0.dist-info/METADATA,,\n")
    about = {f"{SITE}/solver-1.0.dist-info/{path.name}": path for path in info.iterdir()}
    return {f"{SITE}/{name}": module, **about}


def test_what_is_wrong_with_one_library_of_two_is_named(layout: Layout, tmp_path: Path) -> None:
    """NVIDIA's own wheels: cuSPARSE 12.5 opens nvJitLink and needs its functions of 12.8."""
    sparse = in_site(downloaded(CUSPARSE, tmp_path / "c"), tmp_path / "sparse")
    linker = in_site(downloaded(NVJITLINK.format("12.8.93"), tmp_path / "a"), tmp_path / "new")
    older = in_site(downloaded(NVJITLINK.format("12.3.101"), tmp_path / "b"), tmp_path / "old")
    [library] = [name for name in sparse if name.endswith("libcusparse.so.12")]
    sparse |= using_it(sparse[library], tmp_path)
    [other] = [name for name in linker if name.endswith("libnvJitLink.so.12")]

    def changed(path: Path, old: bytes, new: bytes) -> Path:
        content = path.read_bytes()
        assert len(old) == len(new)
        assert old in content
        made = tmp_path / f"changed-{path.name}"
        made.write_bytes(content.replace(old, new))
        return made

    def verdict(name: str, files: Mapping[str, Path]) -> tuple[str, str]:
        report = judged(look(layout.with_files(name, files)))
        return report["verdict"], " ".join(c["message"] for c in report["checks"])

    gone = changed(linker[other], b"__nvJitLinkComplete_12_8\0", b"__nvJitLinkRemoved__12_8\0")
    renamed = changed(sparse[library], b"libnvJitLink.so.12\0", b"libnvJitLink.so.99\0")
    assert verdict("as-locked", {**sparse, **linker})[0] == "fit"
    for name, files, words in (
        ("one-symbol-less", {**sparse, **linker, other: gone}, "__nvJitLinkComplete_12_8"),
        ("another-soname", {**sparse, **linker, library: renamed}, "libnvJitLink.so.99"),
        ("its-neighbour", {**sparse, **older}, "_12_8"),
    ):
        found, said = verdict(name, files)
        assert (found, words in said) == ("unfit", True), (name, said)
        assert "libcusparse.so.12" in said
