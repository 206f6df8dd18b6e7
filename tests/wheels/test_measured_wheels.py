"""Real wheels of the package index, measured from afar: torch 2.0.1, and one with PTX in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from images.inspect.measuring import measure
from images.wheels.errors import WheelUnreachableError
from provision.host.uv import uv_program
from provision.lock.network import ca_bundle
from provision.lock.uv import uv_environment
from tests.kit.programs import run_program
from tests.need import lacking

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def address(requirement: str, place: Path) -> str:
    """Where the index that this machine is configured for has the wheel for x86_64 Linux."""
    out = place / "pylock.toml"
    changed = uv_environment(os.environ, ca_bundle(None, os.environ))
    argv = [uv_program(), "pip", "compile", "-", "--format", "pylock.toml", "--no-deps", "--quiet"]
    argv += ["--only-binary", ":all:", "--python-version", "3.11", "--output-file", str(out)]
    argv += ["--python-platform", "x86_64-manylinux_2_28"]
    done = run_program(
        argv,
        given=requirement,
        env={**os.environ, **{name: value for name, value in changed.items() if value}},
        timeout=300,
    )
    if done.returncode:
        lacking(f"the package index cannot be read: {done.stderr[-500:]}")
    (package,) = tomllib.loads(out.read_text(encoding="utf-8"))["packages"]
    urls: list[str] = [wheel["url"] for wheel in package["wheels"]]
    return next(url for url in urls if "x86_64" in url)


def test_torch_2_0_1_is_measured_by_a_hundredth_of_it(tmp_path: Path) -> None:
    url = address("torch==2.0.1", tmp_path)
    try:
        code = measure(url, ca_bundle=ca_bundle(None, os.environ))
    except WheelUnreachableError as error:
        lacking(f"the package index cannot be read: {error.message}")
    assert (code.name, code.version, code.cuda, code.cudnn) == (
        "torch",
        "2.0.1+cu117",
        "11.7",
        "8.5.0.96",
    )
    assert code.sm == ((3, 7), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6))
    assert code.ptx is None
    assert code.how == "flags"
    assert code.arch == "x86_64"
    assert code.bytes_total > 600_000_000
    assert code.bytes_read < code.bytes_total / 50
    assert code.notes == ()


def test_the_libraries_of_torchvision_0_15_2_are_counted(tmp_path: Path) -> None:
    """Six megabytes; cuobjdump does not know sm_35 any more, so the counts are our own."""
    url = address("torchvision==0.15.2", tmp_path)
    try:
        code = measure(url, ca_bundle=ca_bundle(None, os.environ))
    except WheelUnreachableError as error:
        lacking(f"the package index cannot be read: {error.message}")
    assert (code.how, code.version) == ("fatbins", "0.15.2+cu117")
    assert code.sm == ((3, 5), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6))
    assert {library.name.rpartition("/")[2]: library.fatbins for library in code.libraries} == {
        "_C.so": 6,
        "libnvjpeg.9b083ad7.so.11": 8,
    }
    own = next(library for library in code.libraries if library.name.endswith("_C.so"))
    assert own.ptx == {"compute_50": 6}
    assert code.ptx is None
    assert any("No PTX is claimed" in note for note in code.notes)
