"""The Debian base from request to archive: what the store keeps, and how the making can fail."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from images import process
from images.bootstrap import (
    BootstrapBase,
    BootstrapError,
    BootstrapToolError,
    BootstrapUnfitError,
    NoSpaceError,
    bootstrap,
    find,
    host,
)
from images.oci.archive_reading import open_archive
from images.oci.tarstream import layer_members
from tests.unit.bootstrap_tree import EPOCH, a_tree

HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


class FakeTool:
    """Stands in for the commands: mmdebstrap leaves a tree, or fails as told."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.tree = a_tree()
        self.code = 0
        self.output = ""
        self.error: BaseException | None = None
        self.squeezed = b""
        self.squeeze_code = 0

    def run(self, argv: list[str], **_: Any) -> process.Completed:
        if argv[0].endswith("/ld.so"):
            return self.compress(argv)
        if argv[0] == "mmdebstrap":
            self.calls.append(argv)
            target = Path(argv[argv.index("bookworm") + 1])
            target.write_bytes(self.tree)
            if self.error is not None:
                raise self.error
        return process.Completed(
            argv=tuple(argv), code=self.code, output=self.output, stdout="", seconds=0
        )

    def compress(self, argv: list[str]) -> process.Completed:
        """As the base's own gzip does: the file is replaced by the compressed one."""
        assert Path(argv[3]).read_bytes() == b"gzip"
        assert (Path(argv[2]) / "libc.so.6").read_bytes() == b"libc"
        layer = Path(argv[-1])
        content = self.squeezed or gzip.compress(layer.read_bytes(), mtime=0)
        layer.with_name(f"{layer.name}.gz").write_bytes(content)
        layer.unlink()
        return process.Completed(
            argv=tuple(argv), code=self.squeeze_code, output="", stdout="", seconds=0
        )


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> FakeTool:
    fake = FakeTool()
    monkeypatch.setattr(process, "run", fake.run)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    keyring = tmp_path_factory.mktemp("keys") / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(host, "KEYRING", keyring)
    return fake


def make(store: Path, **changes: Any) -> BootstrapBase:
    options: dict[str, Any] = {"python": "3.11", "arch": HERE, "store": store, "epoch": EPOCH}
    return bootstrap("bookworm", **{**options, **changes})


def names(store: Path) -> set[str]:
    return {path.name for path in (store / "bases").iterdir()}


def test_the_archive_is_what_docker_loads(tmp_path: Path, tool: FakeTool) -> None:
    base = make(tmp_path)
    with tarfile.open(base.archive) as archive:
        files = {
            member.name: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }
    (manifest,) = json.loads(files["manifest.json"])
    config = files[manifest["Config"]]
    assert base.image_id == f"sha256:{hashlib.sha256(config).hexdigest()}"
    layer = gzip.decompress(files[manifest["Layers"][0]])
    assert base.diff_id == f"sha256:{hashlib.sha256(layer).hexdigest()}"
    image = open_archive(base.archive, base.reference)
    assert (image.image_id, image.layers[0].diff_id) == (base.image_id, base.diff_id)
    assert "usr/bin/python3.11" in [member.name for member, _ in layer_members(image.layers[0])]
    assert json.loads(config)["rootfs"]["diff_ids"] == [base.diff_id]
    assert json.loads(config)["created"] == "2023-11-14T22:13:20Z"
    assert manifest["RepoTags"] == [base.reference]
    assert base.reference == f"gpu-provision/base:bookworm-py3.11-{base.image_id[7:19]}"
    assert base.packages == ("python3=3.11",)
    assert len(tool.calls) == 1
    assert names(tmp_path) == {f"{base.image_id[7:]}.tar", "index.json", ".lock"}


def test_the_same_request_is_answered_from_the_store(tmp_path: Path, tool: FakeTool) -> None:
    first = make(tmp_path)
    again = make(tmp_path, packages=("python3-venv", "python3", "ca-certificates", "python3"))
    assert (again.image_id, again.archive, again.seconds) == (first.image_id, first.archive, 0.0)
    assert len(tool.calls) == 1
    make(tmp_path, packages=("python3",))
    assert len(tool.calls) == 2


def test_an_old_base_is_made_again_and_still_found(tmp_path: Path, tool: FakeTool) -> None:
    first = make(tmp_path, clock=lambda: 0.0)
    tool.tree = a_tree().replace(b"Version: 3.11", b"Version: 3.12")
    later = make(tmp_path, clock=lambda: 7 * 86400.0)
    assert later.image_id != first.image_id
    assert find(tmp_path, first.image_id) == find(tmp_path, first.diff_id) is not None
    assert find(tmp_path, "sha256:other") is None


@pytest.mark.parametrize("damage", ["cut", "removed", "index lost", "index damaged"])
def test_a_damaged_store_is_mended(tmp_path: Path, tool: FakeTool, damage: str) -> None:
    base = make(tmp_path)
    index = tmp_path / "bases/index.json"
    if damage == "cut":
        base.archive.write_bytes(base.archive.read_bytes()[:-1])
    elif damage == "removed":
        base.archive.unlink()
    elif damage == "index lost":
        index.unlink()
    else:
        index.write_text('{"x": [1], "y": {}, ')
    assert find(tmp_path, base.image_id) is None
    assert make(tmp_path).archive.stat().st_size == base.archive.stat().st_size
    assert len(tool.calls) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BootstrapError("x", fix="y")], ids=str)
def test_nothing_is_left_of_what_ended_early(
    tmp_path: Path, tool: FakeTool, error: BaseException
) -> None:
    tool.error = error
    with pytest.raises(type(error)):
        make(tmp_path)
    assert names(tmp_path) == {".lock"}


def test_what_another_left_is_removed(tmp_path: Path, tool: FakeTool) -> None:
    (tmp_path / "bases/.work-left/tree").mkdir(parents=True)
    base = make(tmp_path)
    assert tool.calls
    assert names(tmp_path) == {base.archive.name, "index.json", ".lock"}


def test_a_full_disk_says_how_much_is_needed(tmp_path: Path, tool: FakeTool) -> None:
    tool.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(NoSpaceError, match="GB free") as caught:
        make(tmp_path)
    assert (caught.value.exit_code, "df -h" in caught.value.fix) == (6, True)


def test_a_disk_that_fills_under_the_tool_is_named(tmp_path: Path, tool: FakeTool) -> None:
    tool.code, tool.output = 1, "dpkg: error: write: No space left on device"
    with pytest.raises(NoSpaceError):
        make(tmp_path)


def test_too_little_space_is_seen_before_the_work(
    tmp_path: Path, tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(NoSpaceError):
        make(tmp_path)
    assert not tool.calls


def test_missing_tools_come_with_the_command(
    tmp_path: Path, tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name, **_: None)
    with pytest.raises(BootstrapToolError) as caught:
        make(tmp_path)
    assert caught.value.exit_code == 5
    assert "apt-get install -y --no-install-recommends mmdebstrap" in caught.value.fix
    assert not tool.calls


def test_missing_keys_come_with_the_command(
    tmp_path: Path, tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "KEYRING", tmp_path / "absent")
    with pytest.raises(BootstrapToolError, match="absent") as caught:
        make(tmp_path)
    assert "debian-archive-keyring" in caught.value.fix
    assert not tool.calls


@pytest.mark.parametrize(
    ("suite", "arch", "words"),
    [
        pytest.param("../x", HERE, "dists/", id="no suite's name"),
        pytest.param("--help", HERE, "dists/", id="an option in its place"),
        pytest.param("bookworm", "s390x", HERE, id="another machine's architecture"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    tmp_path: Path, tool: FakeTool, suite: str, arch: str, words: str
) -> None:
    with pytest.raises(BootstrapUnfitError) as caught:
        bootstrap(suite, python="3.11", arch=arch, store=tmp_path, epoch=EPOCH)
    assert words in f"{caught.value.message} {caught.value.fix}"
    assert not tool.calls


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param("python3.10", "gave Python 3.10; Python 3.11", id="another Python"),
        pytest.param("perl5", "gave no Python;", id="none"),
    ],
)
def test_a_tree_without_its_python_is_refused(
    tmp_path: Path, tool: FakeTool, found: str, words: str
) -> None:
    tool.tree = a_tree(python=found)
    with pytest.raises(BootstrapError, match=re.escape(words)) as caught:
        make(tmp_path)
    assert caught.value.exit_code == 6
    assert names(tmp_path) == {".lock"}


def test_a_store_that_is_a_file_is_a_plain_failure(tmp_path: Path, tool: FakeTool) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(BootstrapError, match="cannot be used"):
        make(tmp_path / "store")
    assert not tool.calls


SNAPSHOT = "20260301T000000Z"


def test_a_snapshot_is_what_the_service_had_then(
    tmp_path: Path, tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host.SNAPSHOT_VARIABLE, "http://past.example/archive/")
    made = make(tmp_path, snapshot=SNAPSHOT, clock=lambda: 0.0)
    lines = tool.calls[0][tool.calls[0].index("bookworm") + 2 :]
    start, place = "deb [check-valid-until=no] http://past.example/archive", f"{SNAPSHOT}/"
    assert lines == [
        f"{start}/debian/{place} bookworm main",
        f"{start}/debian/{place} bookworm-updates main",
        f"{start}/debian-security/{place} bookworm-security main",
    ]
    # what was then does not grow old, and is another thing than today's
    later = make(tmp_path, snapshot=SNAPSHOT, clock=lambda: 9e8)
    assert (later.image_id, len(tool.calls)) == (made.image_id, 1)
    make(tmp_path, snapshot="20260302T000000Z")
    make(tmp_path)
    assert len(tool.calls) == 3


def test_where_the_packages_came_from_does_not_show(
    tmp_path: Path, tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path / "a")
    monkeypatch.setenv(host.SNAPSHOT_VARIABLE, "http://past.example/archive")
    tool.tree = a_tree(sources=b"deb http://past.example/archive/debian/x bookworm main\n")
    again = make(tmp_path / "b", snapshot=SNAPSHOT)
    assert again.image_id == first.image_id
    assert again.archive.read_bytes() == first.archive.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"snapshot": "yesterday"}, "YYYYMMDDTHHMMSSZ", id="no time"),
        pytest.param({"snapshot": "20261399T000000Z"}, "YYYYMMDDTHHMMSSZ", id="no such day"),
        pytest.param({"snapshot": "20260301T000000Z/../x"}, "YYYYMMDD", id="a path"),
        pytest.param({"epoch": 1 << 40}, "SOURCE_DATE_EPOCH", id="a time that has not been"),
    ],
)
def test_times_that_cannot_be_are_refused(
    tmp_path: Path, tool: FakeTool, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BootstrapUnfitError) as caught:
        make(tmp_path, **changes)
    assert words in caught.value.fix
    assert not tool.calls


@pytest.mark.parametrize(
    ("code", "content", "words"),
    [
        pytest.param(126, b"", "own gzip ", id="a program that may not run"),
        pytest.param(0, gzip.compress(b"other"), "changed the layer", id="other bytes"),
        pytest.param(0, b"no gzip", "changed the layer", id="no gzip at all"),
    ],
)
def test_a_layer_that_was_not_compressed_well_is_not_kept(
    tmp_path: Path, tool: FakeTool, code: int, content: bytes, words: str
) -> None:
    tool.squeeze_code, tool.squeezed = code, content
    with pytest.raises(BootstrapError, match=words):
        make(tmp_path)
    assert names(tmp_path) == {".lock"}


def test_a_tree_without_gzip_is_told(tmp_path: Path, tool: FakeTool) -> None:
    tool.tree = a_tree(gzip="pigz")
    with pytest.raises(BootstrapError, match="has no gzip"):
        make(tmp_path)
