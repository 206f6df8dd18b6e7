"""What a wheel becomes: the files, the modes and the RECORD that pip would give it."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from images.layers import unneeded
from images.layers.transcode import spared_in, wheel_layer, written_twice
from images.oci.sources import Unpacked
from tests.kit.cases import cases
from tests.kit.layer_maker import (
    PLACE,
    SITE,
    Piece,
    collect,
    craft,
    deflated,
    files_of,
    locked,
    pieces_of,
    row,
    stream_of,
    unpack,
)

INFO = f"{SITE}/example-1.0.dist-info"
CODE = Piece(name="example/__init__.py", content=b"def main(): return 0\n" * 40)
EXECUTABLE = 0o100755 << 16


def installed(directory: Path, *pieces: Piece, **options: object) -> dict[str, bytes]:
    data = craft(pieces_of(*pieces))
    return files_of(collect(stream_of(data, directory, **options))[0])  # type: ignore[arg-type]


def rows_of(files: dict[str, bytes]) -> list[list[str]]:
    return list(csv.reader(io.StringIO(files[f"{INFO}/RECORD"].decode(), newline="")))


def assert_record_is_true(files: dict[str, bytes]) -> None:
    """Each file has one row, and each row one file, of this size and digest."""
    rows = {SITE + "/" + path: (digest, size) for path, digest, size in rows_of(files)}
    rows = {str(Path("/", path).resolve())[1:]: said for path, said in rows.items()}
    assert len(rows) == len(rows_of(files))
    assert rows.keys() == files.keys()
    for path, content in files.items():
        if path != f"{INFO}/RECORD":
            assert ",".join(("", *rows[path])) == row("", content)


def test_a_plain_wheel_lies_in_the_site_directory_with_its_installer_named(tmp_path: Path) -> None:
    files = installed(tmp_path, CODE)
    assert files[f"{SITE}/example/__init__.py"] == CODE.content
    assert files[f"{INFO}/INSTALLER"] == b"gpu-provision\n"
    assert f"{INFO}/REQUESTED" not in files
    assert_record_is_true(files)


def test_no_code_of_a_wheel_runs(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    evil = f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n".encode()
    pieces = [
        Piece(name=name, content=evil)
        for name in ("evil.pth", "sitecustomize.py", "setup.py", "example/other.py")
    ]
    script = Piece(name="example-1.0.data/scripts/run", content=b"#!python\n" + evil)
    files = installed(tmp_path, CODE, *pieces, script)
    assert sum(evil in content for content in files.values()) == len(pieces) + 1
    assert not canary.exists()


def test_the_known_way_gives_the_same_bytes_as_the_learning_one(tmp_path: Path) -> None:
    data = craft(pieces_of(CODE, Piece(name="example/blob", content=bytes(90_000), method=0)))
    learned, unpacked = collect(stream_of(data, tmp_path))
    copied, again = collect(stream_of(data, tmp_path, unpacked))
    assert (copied, again) == (learned, unpacked)
    plain = gzip.decompress(learned)
    assert unpacked == Unpacked(
        diff_id=f"sha256:{hashlib.sha256(plain).hexdigest()}", size=len(plain)
    )


def test_the_wheels_own_compressed_bytes_are_in_the_layer(tmp_path: Path) -> None:
    layer, _ = collect(stream_of(craft(pieces_of(CODE)), tmp_path))
    assert deflated(CODE.content) in layer


def test_directories_come_once_and_before_what_lies_in_them(tmp_path: Path) -> None:
    deep = Piece(name="example/a/b/c.py")
    layer, _ = collect(stream_of(craft(pieces_of(CODE, deep)), tmp_path))
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as archive:
        names = [member.name for member in archive]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert len(names) == len(set(names))
    assert names[:4] == ["opt", "opt/venv", "opt/venv/lib", "opt/venv/lib/python3.11"]
    for name in names:
        assert "/" not in name or name.rpartition("/")[0] in names[: names.index(name)]


@cases(
    "attributes mode",
    ("a plain file", 0o100644 << 16, 0o644),
    ("an executable", 0o100755 << 16, 0o755),
    ("any x will do", 0o100010 << 16, 0o755),
    ("setuid is not kept", 0o104755 << 16, 0o755),
    ("everyone may read", 0o100600 << 16, 0o644),
    ("no attributes at all", 0, 0o644),
    ("bits of no kind of file mean nothing to pip", 0o755 << 16, 0o644),
)
def test_modes_are_pips(tmp_path: Path, attributes: int, mode: int) -> None:
    pieces = pieces_of(replace(CODE, attributes=attributes))
    layer, _ = collect(stream_of(craft(pieces), tmp_path))
    assert unpack(layer)[f"{SITE}/example/__init__.py"].mode == mode


def test_the_places_of_a_data_directory(tmp_path: Path) -> None:
    files = installed(
        tmp_path,
        Piece(name="example-1.0.data/purelib/pure.py", content=b"1"),
        Piece(name="example-1.0.data/platlib/example/native.so", content=b"2"),
        Piece(name="example-1.0.data/headers/example.h", content=b"3"),
        Piece(name="example-1.0.data/data/share/man/example.1", content=b"4"),
        Piece(name="example-1.0.data/data/lib64/example.so", content=b"5"),
        Piece(name="example-1.0.data/scripts/tool", content=b"\x7fELF", attributes=EXECUTABLE),
    )
    assert {path for path in files if not path.startswith(INFO)} == {
        f"{SITE}/pure.py",
        f"{SITE}/example/native.so",
        "opt/venv/include/site/python3.11/example/example.h",
        "opt/venv/share/man/example.1",
        "opt/venv/lib/example.so",
        "opt/venv/bin/tool",
    }
    assert_record_is_true(files)


@pytest.mark.parametrize("first", [b"#!python", b"#!pythonw", b"#!python -E", b"#!python\r"])
def test_scripts_get_the_interpreter(tmp_path: Path, first: bytes) -> None:
    script = Piece(name="example-1.0.data/scripts/run", content=first + b"\nprint(1)\n")
    layer, _ = collect(stream_of(craft(pieces_of(script)), tmp_path))
    found = unpack(layer)["opt/venv/bin/run"]
    assert (found.mode, found.content) == (0o755, b"#!/opt/venv/bin/python\nprint(1)\n")
    assert_record_is_true(files_of(layer))


@pytest.mark.parametrize("content", [b"#!/bin/sh\necho\n", b"", b"#!pytho", b"\x7fELF" * 90_000])
def test_other_scripts_stay_as_they_are(tmp_path: Path, content: bytes) -> None:
    script = Piece(name="example-1.0.data/scripts/run", content=content)
    files = installed(tmp_path, script)
    assert files["opt/venv/bin/run"] == content
    assert_record_is_true(files)


def test_an_interpreter_too_long_for_a_first_line_is_started_by_a_shell(tmp_path: Path) -> None:
    interpreter = "/" + "long/" * 30 + "python"
    points = Piece(
        name="example-1.0.dist-info/entry_points.txt", content=b"[console_scripts]\ngo=a:b\n"
    )
    files = installed(tmp_path, points, interpreter=interpreter)
    first, second, third = files["opt/venv/bin/go"].split(b"\n")[:3]
    assert first == b"#!/bin/sh"
    assert second == f"'''exec' {interpreter} \"$0\" \"$@\"".encode()
    assert third == b"' '''"


POINTS = """
; commands
[console_scripts]
go = example.cli:main
Deep.er-1 = example.cli : Group.main [extra]
# old
[gui_scripts]
window=example:show
[example.plugins]
no/command = whatever
"""


def test_commands_of_entry_points(tmp_path: Path) -> None:
    points = Piece(name="example-1.0.dist-info/entry_points.txt", content=POINTS.encode())
    layer, _ = collect(stream_of(craft(pieces_of(CODE, points)), tmp_path))
    found = unpack(layer)
    assert {path for path in found if path.startswith("opt/venv/bin/")} == {
        "opt/venv/bin/go",
        "opt/venv/bin/Deep.er-1",
        "opt/venv/bin/window",
    }
    assert found["opt/venv/bin/Deep.er-1"].mode == 0o755
    assert found["opt/venv/bin/Deep.er-1"].content.decode() == (
        "#!/opt/venv/bin/python\n"
        "import sys\n"
        "from example.cli import Group\n"
        "if __name__ == '__main__':\n"
        "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n"
        "    sys.exit(Group.main())\n"
    )
    assert_record_is_true(files_of(layer))


def test_commands_for_a_python_without_removesuffix(tmp_path: Path) -> None:
    points = Piece(name="example-1.0.dist-info/entry_points.txt", content=POINTS.encode())
    site = "opt/venv/lib/python3.8/site-packages"
    files = installed(tmp_path, points, site=site)
    assert b"re.sub(" in files["opt/venv/bin/go"]
    assert b"removesuffix" not in files["opt/venv/bin/go"]


def test_an_old_wrapper_is_replaced_by_the_command(tmp_path: Path) -> None:
    points = Piece(name="example-1.0.dist-info/entry_points.txt", content=POINTS.encode())
    old = Piece(name="example-1.0.data/scripts/go", content=b"#!python\nold\n")
    older = Piece(name="example-1.0.data/scripts/go-script.py", content=b"#!python\nold\n")
    files = installed(tmp_path, points, old, older)
    assert b"old" not in files["opt/venv/bin/go"]
    assert "opt/venv/bin/go-script.py" not in files
    assert_record_is_true(files)


def test_pips_commands_are_named_after_the_python_at_hand(tmp_path: Path) -> None:
    text = b"[console_scripts]\npip = p:m\npip3 = p:m\npip3.9 = p:m\npipx = p:x\n"
    points = Piece(name="example-1.0.dist-info/entry_points.txt", content=text)
    files = installed(tmp_path, points)
    commands = {path.rpartition("/")[2] for path in files if path.startswith("opt/venv/bin/")}
    assert commands == {"pip", "pip3", "pip3.11", "pipx"}


def test_a_record_without_a_last_newline_is_continued_on_a_new_line(tmp_path: Path) -> None:
    pieces = pieces_of(CODE)
    record = pieces[-1]
    pieces[-1] = replace(record, content=record.content.rstrip(b"\n"))
    files = files_of(collect(stream_of(craft(pieces), tmp_path))[0])
    assert_record_is_true(files)


def test_a_record_that_does_not_list_itself_does_so_in_the_end(tmp_path: Path) -> None:
    pieces = pieces_of(CODE, record=lambda rows: rows[:-1])
    assert_record_is_true(files_of(collect(stream_of(craft(pieces), tmp_path))[0]))


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_digests_longer_than_sha256_are_checked_too(tmp_path: Path, algorithm: str) -> None:
    def record(rows: list[str]) -> list[str]:
        return [row(CODE.name, CODE.content, algorithm=algorithm), *rows[1:]]  # type: ignore[arg-type]

    pieces = pieces_of(CODE, record=record)
    files = files_of(collect(stream_of(craft(pieces), tmp_path))[0])
    assert files[f"{SITE}/example/__init__.py"] == CODE.content


def test_names_with_commas_quotes_and_other_scripts_come_back(tmp_path: Path) -> None:
    odd = Piece(name="example/a, b.txt", content=b"x")
    umlaut = Piece(name="example/größe/名前.txt", content=b"y")
    data = Piece(name="example-1.0.data/data/share/ü, 1", content=b"z")
    files = installed(tmp_path, odd, umlaut, data)
    assert files[f"{SITE}/example/größe/名前.txt"] == b"y"
    assert_record_is_true(files)


def test_signatures_need_no_row(tmp_path: Path) -> None:
    signature = Piece(name="example-1.0.dist-info/RECORD.jws", content=b"{}")
    pieces = pieces_of(signature, record=lambda rows: [r for r in rows if "jws" not in r])
    files = files_of(collect(stream_of(craft(pieces), tmp_path))[0])
    assert f"{INFO}/RECORD.jws" in files


OTHER = row("example/__init__.py", b"another\n")


@cases(
    "change kept",
    ("another digest and size", lambda r: [OTHER, *r[1:]], OTHER),
    ("no digest", lambda r: ["example/__init__.py,,", *r[1:]], "example/__init__.py,,"),
    ("an md5", lambda r: ["example/__init__.py,md5=x,7", *r[1:]], "example/__init__.py,md5=x,7"),
    ("a file that is not there", lambda r: [row("example/ghost.py", b""), *r],
     row("example/ghost.py", b"")),
    ("a file is missing", lambda r: r[1:], "example/__init__.py,,"),
)  # fmt: skip
def test_a_record_that_does_not_fit_is_installed_as_pip_does(
    tmp_path: Path, change: Callable[[list[str]], list[str]], kept: str
) -> None:
    data = craft(pieces_of(CODE, record=change))
    files = files_of(collect(stream_of(data, tmp_path))[0])
    assert files[f"{SITE}/example/__init__.py"] == CODE.content
    assert kept in files[f"{INFO}/RECORD"].decode().splitlines()


def test_an_installer_in_the_wheel_is_replaced(tmp_path: Path) -> None:
    files = installed(tmp_path, Piece(name="example-1.0.dist-info/INSTALLER", content=b"other\n"))
    assert files[f"{INFO}/INSTALLER"] == b"gpu-provision\n"
    assert_record_is_true(files)


def test_a_package_of_its_own_address_says_so_without_the_login(tmp_path: Path) -> None:
    wheel = replace(locked(), url="https://me:word@index.invalid/example-1.0-py3-none-any.whl#x")
    files = files_of(
        collect(
            stream_of(craft(pieces_of(CODE)), tmp_path, wheel=wheel, direct=frozenset({"example"}))
        )[0]
    )
    said = json.loads(files[f"{INFO}/direct_url.json"])
    assert said == {
        "url": "https://index.invalid/example-1.0-py3-none-any.whl",
        "archive_info": {"hash": f"sha256={wheel.sha256}", "hashes": {"sha256": wheel.sha256}},
    }
    assert_record_is_true(files)


def test_several_wheels_in_one_layer_and_a_file_of_both(tmp_path: Path) -> None:
    shared = {"a": b"from a", "b": b"from b"}
    paths = {}
    for name, content in shared.items():
        paths[name] = tmp_path / f"{name}.whl"
        both = Piece(name="shared/__init__.py", content=content)
        paths[name].write_bytes(craft(pieces_of(both, name=name)))
    wheels = [locked("b"), locked("a")]
    made = [
        wheel_layer(order, **PLACE, exclude_unneeded=False, fetch=lambda w: paths[w.name])  # type: ignore[arg-type]
        for order in (wheels, wheels[::-1])
    ]
    layers = [collect(source.stream(None))[0] for source in made]
    assert layers[0] == layers[1]
    assert made[0].key == made[1].key
    assert files_of(layers[0])[f"{SITE}/shared/__init__.py"] == b"from b"
    assert made[0].title == "a 1.0, b 1.0"


def test_the_key_tells_apart_what_gives_other_bytes() -> None:
    def key(*, digest: str = "a" * 64, **changed: object) -> str:
        options = {**PLACE, "exclude_unneeded": False, "fetch": Path, **changed}
        return wheel_layer([locked(digest=digest)], **options).key  # type: ignore[arg-type]

    keys = [
        key(),
        key(digest="b" * 64),
        key(site="opt/venv/lib/python3.12/site-packages"),
        key(prefix="opt/other"),
        key(interpreter="/usr/bin/python3"),
        key(exclude_unneeded=True),
        key(direct=frozenset({"example"})),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == key(fetch=str)


def test_nothing_is_fetched_before_the_layer_is_written() -> None:
    def fetch(_: object) -> Path:
        raise AssertionError("not yet")

    source = wheel_layer([locked()], **PLACE, exclude_unneeded=False, fetch=fetch)  # type: ignore[arg-type]
    assert len(source.key) == 64
    assert "example==1.0" in source.created_by
    stream = source.stream(None)
    with pytest.raises(AssertionError, match="not yet"):
        next(stream)


def test_a_stream_that_is_closed_early_closes_the_wheel(tmp_path: Path) -> None:
    def open_files() -> int:
        """Of this test: what others left open may be closed at any moment."""
        found = 0
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the folder's own is closed by now
                found += entry.readlink().is_relative_to(tmp_path)
        return found

    noise = random.Random(0).randbytes(3_000_000)
    data = craft(pieces_of(Piece(name="example/noise", content=noise)))
    stream = stream_of(data, tmp_path)
    first = next(stream)
    assert len(first) <= 1 << 20
    assert open_files() == 1
    stream.close()
    assert open_files() == 0


@pytest.mark.parametrize(
    ("package", "name", "out"),
    [
        ("torch", "torch/include/ATen/ATen.h", True),
        ("torch", "torch/_inductor/codegen/cpp_prefix.h", False),
        ("torch", "torch/lib/libtorch.so", False),
        ("nvidia-cuda-runtime", "nvidia/cuda_runtime/lib/libcudart_static.a", True),
        ("nvidia-cuda-runtime", "nvidia/cuda_runtime/lib/libcudart.so.12", False),
        ("triton", "triton/third_party/cuda/include/cuda.h", False),
        ("pytorch-triton", "triton/backends/nvidia/include/cuda.h", False),
        ("cupy-cuda12x", "cupy/_core/include/cupy/complex.cuh", False),
        ("numpy", "numpy/linalg/tests/test_linalg.py", True),
        ("numpy", "numpy/core/tests/data/numbers.csv", True),
        ("numpy", "numpy/testing/__init__.py", False),
        ("astropy", "astropy/tests/runner.py", False),
        ("pandas", "pandas/conftest.py", False),
        ("pandas", "pandas/tests/extension/base/ops.py", False),
        ("django", "django/test/client.py", False),
        ("numpy", "numpy/__init__.pyi", False),
        ("x", "x-1.0.dist-info/tests/include/x.h", False),
        ("x", "x-1.0.data/headers/x.h", False),
        ("x", "test_x.py", False),
    ],
)
def test_what_is_not_needed_to_run(package: str, name: str, *, out: bool) -> None:
    assert unneeded.is_unneeded(package, name) is out


def test_what_is_left_out_is_in_no_record_and_its_bytes_are_told(tmp_path: Path) -> None:
    header = Piece(name="example/include/example.h", content=b"#define X\n" * 1000)
    test = Piece(name="example/tests/test_it.py", content=b"assert 1\n")
    files = installed(tmp_path, CODE, header, test, exclude_unneeded=True)
    assert {path for path in files if not path.startswith(INFO)} == {f"{SITE}/example/__init__.py"}
    assert_record_is_true(files)
    spared = spared_in([locked()], lambda _: tmp_path / "it.whl")
    assert (spared.files, spared.unpacked) == (2, 10_009)
    assert 0 < spared.compressed < 200


@cases(
    "first last expected",
    ("one name and other bytes", "cv2/a.py", "cv2/a.py", ["cv2/a.py"]),
    ("other names", "nvidia/__init__.py", "other/__init__.py", []),
    ("one place by another name", "cv2/a.py", "x-1.0.data/purelib/cv2/a.py", ["cv2/a.py"]),
    ("one script", "x-1.0.data/scripts/run", "y-1.0.data/scripts/run", ["scripts/run"]),
)
def test_two_packages_that_write_one_file_are_named(
    tmp_path: Path, first: str, last: str, expected: list[str]
) -> None:
    for name, path, content in (("a", first, b"1"), ("b", last, b"2"), ("c", last, b"2")):
        pieces = (Piece(name=path, content=content), Piece(name="same.py", content=b""))
        (tmp_path / f"{name}.whl").write_bytes(craft(pieces_of(*pieces)))
    wheels = [replace(locked(), name=name) for name in ("a", "b", "c")]
    found = written_twice(wheels, lambda wheel: tmp_path / f"{wheel.name}.whl")
    # here they share one .dist-info, too
    told = [
        (twice.first, twice.last, path)
        for twice in found
        for path in twice.paths
        if "dist-info" not in path
    ]
    assert told == [("a", "b", path) for path in expected]


def test_the_bytes_are_those_of_the_first_day(tmp_path: Path) -> None:
    """A change here changes every layer: then transcode.FORMAT is raised, and this digest."""
    points = Piece(name="example-1.0.dist-info/entry_points.txt", content=POINTS.encode())
    script = Piece(name="example-1.0.data/scripts/run", content=b"#!python\nrun\n" * 99)
    # stored, for what this machine's zlib would make of them is not the same everywhere
    data = craft(replace(piece, method=0) for piece in pieces_of(CODE, points, script))
    layer, _ = collect(stream_of(data, tmp_path))
    assert hashlib.sha256(layer).hexdigest() == GOLDEN


GOLDEN = "a1e5dd9e5ed2e25cb9553f4b1739cff898edff6c057c122ce429e6c610dcf0a7"
