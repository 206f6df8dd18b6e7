"""Unpacked images are kept whole, one of them, and never taken away from who uses one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from images.engines.sandbox import roots as module
from images.engines.sandbox.errors import SandboxError
from images.engines.sandbox.roots import Root, Roots
from images.errors import DiskFullError
from images.oci.errors import ImageUnreadableError
from images.oci.sources import Image
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer

HOLD = """
import sys
from pathlib import Path
from images.engines.sandbox.roots import Roots
from tests.kit.sandbox_images import entry, image, layer
root = Roots(Path(sys.argv[1])).use(image([layer(entry(sys.argv[2], b"x"))]), lambda _: None)
print(root.place, flush=True)
sys.stdin.read()
"""


def one(name: str) -> Image:
    return image([layer(entry(name, name.encode()))])


def use(directory: Path, name: str) -> Root:
    return Roots(directory).use(one(name), lambda _: None)


def kept(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def test_a_root_is_unpacked_once(tmp_path: Path) -> None:
    told: list[int] = []
    roots = Roots(tmp_path)
    first = roots.use(one("a"), told.append)
    first.release()
    before = sum(told)
    again = roots.use(one("a"), told.append)
    assert (again.place, sum(told)) == (first.place, before)
    assert (again.tree / "a").read_text() == "a"
    assert again.config == one("a").config
    again.release()


def test_the_last_one_is_kept_and_no_other(tmp_path: Path) -> None:
    used = [use(tmp_path, "a")]
    for name in "bc":
        used[-1].release()
        used.append(use(tmp_path, name))
    used[-1].release()
    assert kept(tmp_path) == [used[-1].place.name]


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    first, second = use(tmp_path, "a"), use(tmp_path, "b")
    assert kept(tmp_path) == sorted([first.place.name, second.place.name])
    first.release()
    Roots(tmp_path).clear()
    assert kept(tmp_path) == [second.place.name]
    second.release()


def test_what_another_process_uses_stays_until_it_dies(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path), "theirs"]
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        use(tmp_path, "ours").release()
        assert theirs.name in kept(tmp_path)
        other.kill()
        other.wait(timeout=10)
    Roots(tmp_path).clear()
    assert theirs.name not in kept(tmp_path)


@cases(
    "damage",
    ("what it is cannot be read", "about.json"),
    ("the machine was restarted since", "boot"),
)
def test_what_may_not_be_whole_is_made_anew(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = use(tmp_path, "a")
    root.release()
    (root.tree / "a").write_text("")  # as after a power cut
    if damage == "boot":
        monkeypatch.setattr(module, "boot_id", lambda: "another")
    else:
        (root.place / damage).write_text("{")
    again = use(tmp_path, "a")
    assert (again.tree / "a").read_text() == "a"
    assert kept(tmp_path) == [again.place.name]
    again.release()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    bad = image([layer(entry("a", b"x")), layer(entry("../b", b"x"))])
    with pytest.raises(ImageUnreadableError):
        Roots(tmp_path).use(bad, lambda _: None)
    assert kept(tmp_path) == []


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Roots(tmp_path).use(one("a"), interrupt)
    assert kept(tmp_path) == []


def test_leftovers_of_the_killed_are_removed(tmp_path: Path) -> None:
    for name in (".work-x", ".gone-y", "0" * 64):
        (tmp_path / name / "root/d").mkdir(parents=True)
    root = use(tmp_path, "a")
    assert kept(tmp_path) == [root.place.name]
    root.release()


def test_a_link_among_the_roots_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots" / one("a").image_id.removeprefix("sha256:")).symlink_to(other)
    root = use(tmp_path / "roots", "a")
    assert (root.tree / "a").read_text() == "a"
    assert [path.name for path in other.iterdir()] == ["mine"]
    root.release()


def test_a_disk_that_cannot_hold_it_is_said_before_the_work(tmp_path: Path) -> None:
    big = layer(entry("a", b"x"))
    from dataclasses import replace

    big = replace(big, blob=replace(big.blob, size=1 << 50))
    with pytest.raises(DiskFullError, match="needs about 2251799"):
        Roots(tmp_path).use(image([big]), lambda _: None)


def test_a_place_where_one_may_not_write_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError, match="cannot be unpacked under"):
        use(tmp_path / "file", "a")


def test_an_image_whose_name_is_no_digest_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(ImageUnreadableError):
        Roots(tmp_path).use(replace(one("a"), image_id="../../x"), lambda _: None)


def test_a_directory_of_somebody_elses_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "roots").mkdir(mode=0o777)
    monkeypatch.setattr("images.engines.sandbox.roots.os.geteuid", lambda: 4242)
    with pytest.raises(SandboxError, match="belongs to user") as caught:
        use(tmp_path / "roots", "a")
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_a_directory_that_all_may_write_to_is_closed(tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots").chmod(0o777)
    use(tmp_path / "roots", "a").release()
    assert (tmp_path / "roots").stat().st_mode & 0o777 == 0o700
