"""What is judged of an image and of a wheel, the report that says it, and the page for people."""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from images.errors import Failure
from images.inspect.contents import read_image, read_wheel
from images.inspect.coverage import cover, cover_flags
from images.inspect.image import Inspection, conclude
from images.inspect.model import LibraryCode
from provision.cli.commands.inspect import is_wheel
from provision.cli.commands.inspect import options as inspect_options
from provision.cli.commands.inspect import run as do_inspect
from provision.cli.help import HelpParser
from provision.cli.render.inspection import describe_inspection
from provision.errors import BadInputError
from provision.lock.labels import CUT, PLAN
from provision.model.plan import Gpu
from provision.model.planfile import plan_to_json
from provision.output.console import Console
from provision.verification.inspection.report import make_report
from provision.verification.report_files import page, write_files
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.image_maker import Files, image_of, installed, tar_of
from tests.kit.wheel_maker import InMemory, targets
from tests.kit.wheel_maker import wheel as wheel_of
from tests.unit.images.inspect.test_image_needs import LIBC, MODULE, SITE, program
from tests.unit.provision.lock.test_lock import PLAN as SMALL

SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text(encoding="utf-8"))
PYTHON: Files = {
    "usr/bin/python3.11": program(needed=["libc.so.6"], versions={"libc.so.6": ["GLIBC_2.2.5"]}),
    "opt/venv/bin/python3": "/usr/bin/python3.11",
    "lib/libc.so.6": LIBC,
    "etc/os-release": b"ID=debian\n",
}
ENV = {"PATH": "/opt/venv/bin:/usr/bin"}
PLAIN = ("sm_70", "sm_80")


def coded(*words: str, times: int = 20, **more: Any) -> bytes:
    """A library with device code: its fatbins lie behind all that the loader reads."""
    head = elf(**more)
    return head + b"\0" * (-len(head) % 16) + targets(*words) * times


def torch(**more: Any) -> dict[str, bytes | str | None]:
    """Something like PyTorch, and a library of NVIDIA's that it brings."""
    own: dict[str, bytes | str | None] = {
        f"torch/_C.{MODULE[2:]}": elf(needed=["libtorch_cuda.so"], rpath="$ORIGIN/lib"),
        "torch/lib/libtorch_cuda.so": coded(
            *more.get("targets", PLAIN),
            needed=["libcuda.so.1", "libnccl.so.2", *more.get("needed", [])],
            rpath="$ORIGIN:$ORIGIN/../../nvidia/nccl/lib",
            versions={"libc.so.6": more.get("asks", ["GLIBC_2.17"])},
        ),
        "torch/version.py": b"__version__ = '2.0.1+cu117'\ncuda = '11.7'\n",
    }
    nccl: Files = {"nvidia/nccl/lib/libnccl.so.2": coded("sm_80", times=1)}
    return {
        **installed("torch", "2.0.1", own, site=SITE, requires=["nvidia-nccl-cu11"]),
        **installed("nvidia_nccl_cu11", "2.14.3", nccl, site=SITE),
    }


def looked(*layers: Files | bytes, labels: Mapping[str, str] | None = None) -> Inspection:
    return conclude(read_image(image_of(PYTHON, *layers, env=ENV, labels=labels)))


def gpu(text: str) -> Gpu:
    major, _, minor = text.partition(".")
    return Gpu(compute_capability=(int(major), int(minor)))


def judged(found: Inspection, gpus: Sequence[str] = ()) -> dict[str, Any]:
    report = make_report(found, [gpu(one) for one in gpus], seconds=1.5)
    jsonschema.validate(report, SCHEMA)
    return report


def check(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in report["checks"] if c["id"] == f"inspect.{name}")
    return found


@cases(
    "gpus verdict words",
    ("the GPU that it was cut for", ["8.6"], "fit", "sm_80 binary"),
    ("another that it had code for", ["8.0"], "unfit", "its code was removed"),
    ("one of two", ["8.6", "8.0"], "unfit", "the image is for sm_86 alone"),
)
def test_a_cut_image_is_for_its_gpus_alone(gpus: list[str], verdict: str, words: str) -> None:
    found = looked(torch(), labels={CUT: "sm_86"})
    report = judged(found, gpus)
    row = check(report, "architectures")
    assert report["verdict"] == verdict
    assert words in row["message"]
    if verdict == "unfit":
        assert "provision build --cut sm_80,sm_86" in row["fix"]
    assert "code for sm_86 alone" in describe_inspection(report, found, [gpu(one) for one in gpus])


@cases(
    "layers gpus verdict failed words",
    ("a whole image", [torch()], [], "fit", None, ""),
    ("a GPU that it was built for", [torch()], ["8.0"], "fit", None, ""),
    ("a later one of its major", [torch()], ["8.6"], "fit", None, "sm_80 binary"),
    ("a later major, without PTX", [torch()], ["9.0"], "unfit", "architectures",
     "libtorch_cuda.so has no code"),
    ("a later major, by PTX", [torch(targets=("sm_80", "compute_80"))], ["9.0"], "fit", None,
     "PTX"),
    ("one of two GPUs lacks", [torch()], ["8.0", "6.1"], "unfit", "architectures", "6.1"),
    ("what the framework brings along is told, and not judged", [torch()], ["7.0"], "fit", None,
     "without code for it: libnccl.so.2"),
    ("a layer took a library away", [torch(), {f"{SITE}/torch/lib/.wh.libtorch_cuda.so": b""}], [],
     "unfit", "needs", "needs libtorch_cuda.so"),
    ("a layer took a whole directory away", [torch(), {f"{SITE}/nvidia/.wh.nccl": b""}], [],
     "unfit", "needs", "libnccl.so.2"),
    ("the base lacks a library", [torch(needed=["libz.so.1"])], [], "unfit", "needs", "libz.so.1"),
    ("the library is where nobody looks",
     [torch(needed=["libz.so.1"]), {"opt/z/libz.so.1": elf(soname="libz.so.1")}], [], "unfit",
     "needs", "libz.so.1"),
    ("the base is too old", [torch(needed=["libc.so.6"], asks=["GLIBC_2.99"])], [], "unfit",
     "glibc", "GLIBC_2.99 of /lib/libc.so.6, which has at most GLIBC_2.17"),
    ("a package was built for another release of torch",
     [torch(),
      installed("vision", "1.0", {"vision/_C.so": elf(needed=["libtorch_cuda.so"], wants=["gone"])},
                site=SITE, requires=["torch"])], [], "unfit", "symbols",
     "vision 1.0: _C.so needs gone, which torch 2.0.1 does not"),
    ("a library was cut off",
     [torch(), {f"{SITE}/torch/lib/libtorch_cuda.so": coded(*PLAIN)[:400]}], [], "unfit",
     "packages", "bytes of the"),
    ("two versions in one place", [torch(), installed("torch", "2.1.0", {}, site=SITE)], [],
     "unfit", "packages", "twice"),
    ("a library of another width is passed over",
     [torch(), {f"{SITE}/torch/lib/libtorch_cuda.so": b"\x7fELF" + b"\1" * 9000}], [], "unfit",
     "needs", "libtorch_cuda.so"),
    ("a library that is damaged",
     [torch(), {f"{SITE}/torch/lib/libtorch_cuda.so": coded(*PLAIN)[:64] + b"\xff" * 9000}], [],
     "unfit", "needs", "unreadable ELF file"),
    ("no device code", [{}], ["8.0"], "no-verdict", None, "cannot be checked"),
    ("no framework at all", [{}], [], "fit", None, ""),
)  # fmt: skip
def test_verdicts(
    layers: list[Files], gpus: list[str], verdict: str, failed: str | None, words: str
) -> None:
    report = judged(looked(*layers), gpus)
    assert report["verdict"] == verdict
    told = {c["id"]: c["message"] for c in report["checks"]}
    if failed is not None:
        one = check(report, failed)
        assert one["status"] == "fail"
        assert one["fix"]
        assert words in one["message"]
    else:
        assert words in " ".join(told.values())
        assert "fail" not in {c["status"] for c in report["checks"]}


def test_the_fix_names_who_would_bring_the_library() -> None:
    gone = looked(torch(), {f"{SITE}/nvidia/nccl/lib/.wh.libnccl.so.2": b""})
    fix = check(judged(gone), "needs")["fix"]
    assert "pip install --force-reinstall nvidia-nccl-cu11==2.14.3" in fix
    aside = looked(torch(needed=["libz.so.1"]), {"opt/z/libz.so.1": elf(soname="libz.so.1")})
    assert "LD_LIBRARY_PATH=/opt/z" in check(judged(aside), "needs")["fix"]


@cases(
    "needed programs words",
    ("all that are missing", ["libXrender.so.1", "libSM.so.6"], ["apt-get"],
     "apt-get, or build it with --apt libxrender1 --apt libsm6, or remove "),
    ("a library of no known package", ["libodd.so.4", "libSM.so.6"], ["apt-get"],
     "apt-file search libodd.so.4"),
    ("it has no apt-get", ["libSM.so.6"], ["microdnf"], "apt-file search libSM.so.6"),
)  # fmt: skip
def test_the_fix_names_the_debian_packages(
    needed: list[str], programs: list[str], words: str
) -> None:
    files: Files = {f"usr/bin/{name}": program() for name in programs}
    assert words in check(judged(looked(torch(needed=needed), files)), "needs")["fix"]


@cases(
    "change words",
    ("what the label says", {}, None),
    ("another version", {"framework_version": "2.1.0"}, "2.1.0"),
    ("another framework", {"framework": "tensorflow"}, "TensorFlow"),
    ("another Python", {"python": "3.10"}, "Python 3.10"),
    ("another CUDA", {"cuda": "12.1"}, "CUDA 12.1"),
)
def test_an_image_is_what_it_says_it_was_made_to_be(
    change: dict[str, Any], words: str | None
) -> None:
    made = SMALL._replace(cuda="11.7", framework_version="2.0.1", python="3.11")
    label = json.dumps(plan_to_json(made._replace(**change)))
    one = check(judged(looked(torch(), labels={PLAN: label})), "packages")
    assert one["status"] == ("fail" if words else "pass"), one
    assert words is None or words in one["message"]
    assert one["measured"]["plan"] == "read"


def test_a_plan_that_cannot_be_read_is_told() -> None:
    one = check(judged(looked(torch(), labels={PLAN: "{}"})), "packages")
    assert one["measured"]["plan"] == "unreadable"
    assert "plan label cannot be read" in one["message"]


def test_sizes_are_whose_they_are_and_add_up() -> None:
    found = looked(torch(), {"usr/bin/extra": b"x" * 1000}, {"usr/bin/extra": b"x" * 10})
    total = sum(share.size for share in found.shares)
    shares = {share.name: share.size for share in found.shares}
    assert shares["torch 2.0.1"] > shares["nvidia-nccl-cu11 2.14.3"] > 0
    assert found.hidden_bytes == 1000
    metrics = check(judged(found), "sizes")["measured"]["metrics"]
    assert [m["value"] for m in metrics if m["name"] == "size"] == [total]


WHEEL = {
    "torch/lib/libtorch_cuda.so": coded(*PLAIN, needed=["libcublas.so.11", "libc.so.6"]),
    "torch/lib/libmore.so": elf(needed=["libtorch_cuda.so"], rpath="$ORIGIN"),
}


@cases(
    "files requires gpus verdict",
    ("its code is enough", WHEEL, ("nvidia-cublas-cu11",), ["8.0"], "fit"),
    ("its code is not", WHEEL, ("nvidia-cublas-cu11",), ["9.0"], "unfit"),
    ("others must bring more", WHEEL, ("nvidia-cublas-cu11",), [], "no-verdict"),
    ("nobody would bring it", WHEEL, (), [], "unfit"),
    ("a wheel that is complete",
     {"a/_x.so": elf(needed=["libm.so.6", "libb.so"], rpath="$ORIGIN/../a.libs"),
      "a.libs/libb.so": elf()}, (), [], "fit"),
)  # fmt: skip
def test_a_wheel_alone(
    files: dict[str, bytes], requires: tuple[str, ...], gpus: list[str], verdict: str
) -> None:
    source = InMemory(wheel_of(files, name="torch", version="2.0.1", requires=requires))
    report = judged(conclude(read_wheel(source)), gpus)
    assert report["verdict"] == verdict
    if verdict == "fit":
        assert "1 package has all its libraries" in check(report, "packages")["message"]


@cases(
    "held capability runs whole",
    ("its own code", {"sm_86": 20, "sm_80": 20}, (8, 6), "sm_86", True),
    ("older code", {"sm_80": 20, "sm_75": 20}, (8, 6), "sm_80 binary", True),
    ("newer code does not run", {"sm_89": 20}, (8, 6), "none", False),
    ("PTX of any major", {"sm_70": 20, "compute_70": 20}, (9, 0), "PTX", True),
    ("PTX for a later GPU", {"compute_90": 20}, (8, 0), "none", False),
    ("code for this very GPU", {"sm_90a": 20}, (9, 0), "sm_90", True),
    ("and for no other", {"sm_100a": 20}, (10, 3), "none", False),
    ("code for a family", {"sm_100f": 20}, (10, 3), "sm_100 binary", True),
    ("a few kernels only", {"sm_90": 1, "sm_80": 20}, (9, 0), "sm_90", False),
)
def test_what_runs_where(
    held: dict[str, int],
    capability: tuple[int, int],
    runs: str,
    whole: bool,  # noqa: FBT001
) -> None:
    code = LibraryCode(
        name="x.so",
        fatbins=20,
        sass={word: n for word, n in held.items() if word.startswith("sm")},
        ptx={word: n for word, n in held.items() if not word.startswith("sm")},
    )
    found = cover(code, capability)
    assert (found.runs, found.whole) == (runs, whole)
    assert cover_flags(list(held), capability) == runs


def test_the_suites_own_renderers_take_the_report(tmp_path: Path) -> None:
    report = judged(looked(torch()), ["9.0"])
    names = ("report", "junit", "html", "markdown")
    write_files(report, {name: tmp_path / name for name in names})
    assert all((tmp_path / name).stat().st_size > 500 for name in names)
    assert "inspect.architectures" in (page(report) or "")


@pytest.mark.parametrize("gpus", [[], ["8.0"], ["9.0", "8.0"]])
def test_the_page_is_80_columns_and_says_first_what_to_do(gpus: list[str]) -> None:
    found = looked(
        torch(), {"usr/bin/a\x1b[31m\nb": b"x", **dict.fromkeys(["opt/" + "x" * 90], b"")}
    )
    text = describe_inspection(judged(found, gpus), found, [gpu(one) for one in gpus])
    assert "\x1b" not in text
    lines = text.splitlines()
    assert max(len(line) for line in lines if " " in line.strip()) <= 80
    assert lines[0].startswith("verdict")
    if "9.0" in gpus:
        assert lines[2].startswith("FAIL")
        assert any("provision plan --framework pytorch" in line for line in lines[:9])


def options(*words: str) -> argparse.Namespace:
    parser = HelpParser()
    parser.add_argument("--json", action="store_true")
    inspect_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("gpus", "code"), [([], 7), (["8.0"], 0), (["9.0"], 1), (["RTX 3090"], 0)])
def test_the_exit_code_is_the_verdicts(
    gpus: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "torch-2.0.1-cp311-cp311-manylinux_2_17_x86_64.whl"
    path.write_bytes(wheel_of(WHEEL, name="torch", version="2.0.1", requires=("nvidia-x",)))
    words = [word for one in gpus for word in ("--gpu", one)]
    assert do_inspect(options(str(path), "--json", *words), Console()) == code
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


@cases(
    "words",
    ("a GPU that nobody knows", ["x.whl", "--gpu", "no such card"]),
    ("a machine that is not supported", ["x.whl", "--arch", "mips"]),
    ("a file without a name", ["x.whl", "--html", ""]),
    ("an address, and no network", ["https://example.org/x.whl", "--offline"]),
)
def test_what_cannot_be_meant_is_refused(words: list[str]) -> None:
    with pytest.raises(BadInputError):
        do_inspect(options(*words), Console())


def test_where_there_is_no_report_the_files_say_why(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with pytest.raises(Failure):
        do_inspect(options(str(tmp_path / "none.whl"), "--junit", str(junit)), Console())
    assert "wheel-unreadable" in junit.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "wheel"),
    [
        ("a/b.whl", True),
        ("https://h/x.whl#sha256=1", True),
        ("oci:x.whl", False),
        ("torch:2", False),
    ],
)
def test_a_wheel_is_told_from_an_image(text: str, wheel: bool) -> None:  # noqa: FBT001
    assert is_wheel(text) is wheel


def test_an_archive_without_an_elf_header_is_a_wheel_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.py", "")
        archive.writestr("x-1.dist-info/METADATA", "Name: x\nVersion: 1\n\n")
    assert do_inspect(options(str(path)), Console()) == 7


def test_a_layer_may_hold_anything_that_is_no_file() -> None:
    found = looked(tar_of({"dev/null": None, "a": "a"}))
    assert judged(found)["verdict"] == "fit"
