"""The files of a release: the suite as one file, and the wheel."""

from __future__ import annotations

import configparser
import os
import shutil
import zipfile
from pathlib import Path

from tests import ROOT
from tools.release import build_wheel, suite_files, write_suite

LIMIT_BYTES = 500_000


def test_the_suite_is_one_small_executable_file_and_the_same_each_time(tmp_path: Path) -> None:
    one = write_suite(tmp_path / "verify.pyz")
    shutil.copytree(ROOT / "verify", tmp_path / "verify")
    for path in (tmp_path / "verify").rglob("*"):
        os.utime(path, (1, 1))
    other = write_suite(tmp_path / "other.pyz", tmp_path / "verify")
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_size <= LIMIT_BYTES
    assert os.access(one, os.X_OK)
    assert {path.name for path in tmp_path.iterdir()} == {"verify", "verify.pyz", "other.pyz"}


def test_the_suite_has_each_file_of_its_package_and_no_other() -> None:
    with_suffix = {path.suffix for path in (ROOT / "verify").rglob("*") if path.is_file()}
    assert with_suffix <= {".py", ".json", ".pyc"}
    names = [name for name, _ in suite_files(ROOT / "verify")]
    assert "verify/report.schema.json" in names
    assert not [name for name in names if "__pycache__" in name]
    assert len(names) == len(set(names)) > 150


def test_the_wheel_has_both_names_of_the_command_and_no_test(tmp_path: Path) -> None:
    build_wheel(tmp_path)
    (wheel,) = tmp_path.glob("gpu_provision-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = (name for name in names if name.endswith("/entry_points.txt"))
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(points).decode())
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if ".dist-info" not in name} == {"provision", "images", "verify"}
    assert set(scripts["console_scripts"]) == {"provision", "gpu-provision", "verify"}
