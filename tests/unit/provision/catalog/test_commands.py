"""`provision catalog refresh` and `measure`, as they are typed, against a real index and wheels."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.loading import load
from provision.catalog.overlay import read_overlay
from provision.cli import main as cli
from provision.errors import Exit
from tests.kit.cases import cases
from tests.kit.simple_index import Fault, SimpleIndex, world
from tests.kit.wheel_maker import library, wheel

ASK = "plan --json --gpu 8.0 --driver 580.95.05 --cuda 13.0 --framework-version "


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    with world().serving() as running:
        yield running


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's copy of the catalog lies; there is none yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "gpu-provision" / "catalog.json"


def typed(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(shlex.split(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def refresh_from(index: SimpleIndex) -> str:
    return (
        f"catalog refresh --index {index.url} --pytorch-index {index.whl} --nvidia {index.nvidia}"
    )


def test_what_a_refresh_found_is_planned_with(
    index: SimpleIndex, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out, _ = typed(ASK + "9.1.0", capsys)
    assert (before, json.loads(out)["error"]["code"]) == (3, "no-such-build")
    code, out, _ = typed(refresh_from(index), capsys)
    assert code == Exit.DONE
    assert "9.1.0" in out
    assert str(copy) in out
    after, out, err = typed(ASK + "9.1.0", capsys)
    plan: dict[str, Any] = json.loads(out)
    assert (after, err) == (0, "")
    assert (plan["verdict"], plan["wheel_tag"]) == ("unverified", "cu130")
    assert "code-not-known" in {row["code"] for row in plan["warnings"]}
    code, out, _ = typed("catalog show torch 9.1.0", capsys)
    assert "the package index at 127.0.0.1" in " ".join(out.split())


def test_a_second_refresh_finds_nothing_and_writes_nothing(
    index: SimpleIndex, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(refresh_from(index), capsys)
    written = copy.stat().st_mtime_ns
    code, out, _ = typed(refresh_from(index) + " --json", capsys)
    assert code == Exit.DONE
    assert json.loads(out)["written"] is None
    assert copy.stat().st_mtime_ns == written


def test_a_dry_run_shows_and_does_not_write(
    index: SimpleIndex, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(refresh_from(index) + " --dry-run", capsys)
    assert code == Exit.DONE
    assert "9.1.0" in out
    assert not copy.exists()


def test_a_source_that_fails_leaves_the_others(
    index: SimpleIndex, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.faults["/simple/torch/"] = Fault(status=500)
    code, out, err = typed(refresh_from(index) + " --json", capsys)
    found = json.loads(out)
    assert (code, err) == (Exit.DONE, "")
    assert "torch" in {row["source"] for row in found["failures"]}
    assert copy.exists()


@cases(
    "words code said",
    ("offline", "catalog refresh --offline", Exit.UNREACHABLE, "--offline"),
    ("no such source", "catalog refresh --from nosuch", Exit.USAGE, "nosuch"),
    ("a source of the maintainers", "catalog refresh --from registry", Exit.USAGE,
     "pypi, pytorch, nvidia"),
    ("no such wheel", "catalog measure nosuch.whl", Exit.USAGE, "nosuch.whl"),
    ("nobody answers there", "catalog measure http://127.0.0.1:9/a-1-py3-none-any.whl",
     Exit.UNREACHABLE, "127.0.0.1"),
    ("no action", "catalog", Exit.USAGE, "ACTION"),
    ("two names", "catalog show torch 2.0.1 cu118", Exit.USAGE, "one name"),
)  # fmt: skip
def test_what_is_refused(
    words: str, code: int, said: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = typed(words, capsys)
    assert (got, out) == (code, "")
    assert said in err
    assert "fix:" in err
    assert not copy.exists()


def test_a_broken_copy_is_left_aside_and_said(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy.parent.mkdir()
    copy.write_text('{"schema": 1, "cut')
    code, out, err = typed(ASK + "2.14.1", capsys)
    assert code == Exit.DONE
    assert json.loads(out)["wheel_tag"] == "cu130"
    assert "provision catalog refresh" in " ".join(err.split())


def test_a_refresh_mends_a_broken_copy(
    index: SimpleIndex, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy.parent.mkdir()
    copy.write_text("{}")
    code, _, err = typed(refresh_from(index), capsys)
    assert code == Exit.DONE
    assert "It will be replaced" in " ".join(err.split())
    assert read_overlay(copy) is not None


def wheel_file(directory: Path, flags: bytes, version: str = "2.0.1", tag: str = "cu117") -> Path:
    """A wheel laid out like torch's, by what it says of itself."""
    cuda = f"{tag[2:-1]}.{tag[-1]}"
    files = {
        "torch/lib/libtorch_python.so": library({".rodata": b"x\0" + flags + b"\0"}),
        "torch/version.py": f"__version__ = '{version}+{tag}'\ncuda = '{cuda}'\n".encode(),
    }
    path = directory / f"torch-{version}-cp311-cp311-manylinux1_x86_64.whl"
    path.write_bytes(wheel(files, name="torch", version=version))
    return path


def test_a_measurement_that_agrees(
    tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wheel_file(tmp_path, b"sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86")
    code, out, _ = typed(f"catalog measure {path}", capsys)
    assert code == Exit.DONE
    assert "The catalog says the same." in out
    assert not copy.exists()


def test_a_measurement_that_disagrees_is_a_finding_and_outranks(
    tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wheel_file(tmp_path, b"sm_80 sm_90 compute_90")
    code, out, _ = typed(f"catalog measure {path} --write --json", capsys)
    found = json.loads(out)
    assert code == Exit.DONE
    assert (found["sm"], found["ptx"]) == (["sm_80", "sm_90"], "compute_90")
    assert found["catalog"]["agrees"] is False
    assert found["written"] == str(copy)
    ask = "plan --json --cuda 11.7 --framework-version 2.0.1 --driver 580.95.05 --gpu "
    code, out, _ = typed(ask + "9.0", capsys)
    plan = json.loads(out)
    assert plan["gpus"][0]["runs"] == "sm_90"
    assert "measured" in next(r["source"] for r in plan["reasons"] if r["code"] == "gpu-code")
    code, out, _ = typed(ask + "7.0", capsys)
    assert json.loads(out)["error"]["code"] == "no-gpu-code"


def test_a_wheel_that_the_catalog_does_not_have_is_measured_and_not_kept(
    tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wheel_file(tmp_path, b"sm_80", "99.0.0", "cu130")
    code, out, _ = typed(f"catalog measure {path}", capsys)
    assert (code, "has no row" in out) == (Exit.DONE, True)
    code, _, err = typed(f"catalog measure {path} --write", capsys)
    assert code == Exit.USAGE
    assert "provision catalog refresh" in err
    assert not copy.exists()


def test_a_build_that_a_refresh_found_is_measured_and_stays(
    index: SimpleIndex, tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        refresh_from(index),
        f"catalog measure {wheel_file(tmp_path, b'sm_80 sm_90', '9.1.0', 'cu130')} --write",
        refresh_from(index),
    ):
        assert typed(words, capsys)[0] == Exit.DONE
    kept = load(overlay=read_overlay(copy))
    (build,) = [b for b in kept.torch_builds("9.1.0", "13.0") if b.arch == "x86_64"]
    assert (build.sm, build.sm_confidence, build.glibc) == (((8, 0), (9, 0)), "confirmed", "2.28")
    assert "the package index at 127.0.0.1" in build.source
    assert "measured" in str(build.sm_source)
