"""A wheel that was built is written again, so that its bytes depend on its content alone."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from provision.build.source.repack import repacked
from provision.build.source.rules import BuiltWheelUnfitError
from tests.kit.cases import cases

RECORD = "quiet-1.2.dist-info/RECORD"


def wheel(place: Path, files: list[tuple[str, bytes, int]], *, hour: int, level: int) -> Path:
    place.mkdir()
    path = place / "quiet-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as target:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, (2024, 1, 1, hour, 0, 0))
            entry.external_attr = mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, data)
    return path


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    rows = [b"quiet.py,sha256=x,1\n", b"bin/tool,sha256=y,2\n"]
    files = [
        ("quiet.py", b"READY = True\n" * 50, 0o644),
        ("quiet-1.2.data/scripts/tool", b"#!python\n", 0o755),
        (RECORD, b"".join(rows), 0o644),
    ]
    other = [
        (RECORD, b"".join(rows[::-1]), 0o664),
        *((n, d, m | 0o020) for n, d, m in files[1::-1]),
    ]
    made = []
    for name, content, hour, level in (("a", files, 1, 9), ("b", other, 2, 1)):
        to = tmp_path / f"{name}-to"
        to.mkdir()
        path = wheel(tmp_path / name, content, hour=hour, level=level)
        version, found = repacked(path, to, "quiet", "1.2")
        assert version == "1.2"
        made.append(found.read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(io.BytesIO(made[0])) as found_zip:
        modes = {one.filename: one.external_attr >> 16 for one in found_zip.infolist()}
        assert modes["quiet-1.2.data/scripts/tool"] == 0o100755
        assert modes["quiet.py"] == 0o100644
        assert found_zip.read("quiet.py") == b"READY = True\n" * 50


@cases(
    "name said",
    ("another package", "loud-1.2-py3-none-any.whl", "not one of quiet"),
    ("another version", "quiet-1.3-py3-none-any.whl", "not one of quiet"),
    ("one machine", "quiet-1.2-cp311-cp311-linux_x86_64.whl", "compiled parts"),
    ("no name of a wheel", "quiet.whl", "malformed"),
    ("no archive", "quiet-1.2-py3-none-any.whl", "zip"),
)
def test_another_wheel_is_refused(name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"nonsense")
    to = tmp_path / "to"
    to.mkdir()
    with pytest.raises(BuiltWheelUnfitError, match=said):
        repacked(path, to, "quiet", "1.2")
