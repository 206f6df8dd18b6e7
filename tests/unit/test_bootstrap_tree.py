"""The Debian base: what stays of the tree, and that a layer depends on nothing else."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from images.bootstrap.tree import Layer, clean_passwords, is_kept, parse_status, write_layer
from tests.unit.bootstrap_tree import EPOCH, a_tree


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        pytest.param("usr/bin/python3.11", True, id="a program"),
        pytest.param("usr/lib/python3.11/ssl.py", True, id="a module"),
        pytest.param("usr/lib/python3.11/__pycache__/ssl.cpython-311.pyc", False, id="byte code"),
        pytest.param("usr/share/doc/libc6/copyright", True, id="a licence"),
        pytest.param("usr/share/doc/libc6/changelog.gz", False, id="a change log"),
        pytest.param("usr/share/locale/de/LC_MESSAGES/apt.mo", False, id="a translation"),
        pytest.param("usr/share/locale/locale.alias", True, id="the names of languages"),
        pytest.param("etc/machine-id", False, id="the machine's name"),
        pytest.param("etc/hostname", False, id="the host's name"),
        pytest.param("etc/resolv.conf", False, id="the host's name servers"),
        pytest.param("etc/shadow", True, id="the passwords"),
        pytest.param("etc/shadow-", False, id="the passwords before the last change"),
        pytest.param("etc/ssl/certs/ca-certificates.crt", True, id="certificates"),
        pytest.param("etc/apt/sources.list", True, id="apt's sources"),
        pytest.param("etc/apt/sources.list.d/x.list", False, id="the host's mirrors"),
        pytest.param("etc/apt/auth.conf", False, id="logins to mirrors"),
        pytest.param("etc/apt/apt.conf.d/99mmdebstrap", False, id="the host's proxies"),
        pytest.param("etc/apt/apt.conf.d/70debconf", True, id="apt's settings"),
        pytest.param("var/log/dpkg.log", False, id="a log"),
        pytest.param("var/cache/ldconfig/aux-cache", False, id="the linker's cache"),
        pytest.param("var/cache/debconf/templates.dat", True, id="what debconf knows"),
        pytest.param("var/cache/debconf/templates.dat-old", False, id="what debconf knew"),
        pytest.param("var/lib/dpkg/status", True, id="the list of packages"),
        pytest.param("var/lib/dpkg/status-old", False, id="the list of packages before"),
        pytest.param("var/lib/apt/lists/m_InRelease", False, id="apt's lists"),
        pytest.param("dev/null", False, id="a device"),
        pytest.param("run/x", False, id="something of a running system"),
        pytest.param("debootstrap/debpaths", False, id="the tool's own notes"),
        pytest.param("devices/x", True, id="a name that begins alike"),
    ],
)
def test_what_stays_in_the_tree(name: str, *, kept: bool) -> None:
    assert is_kept(name, directory=False) is kept


@pytest.mark.parametrize(
    "name", ["dev", "proc", "run/lock", "tmp", "var/log", "var/log/apt", "var/cache/apt/archives"]
)
def test_directories_that_programs_expect_stay(name: str) -> None:
    assert is_kept(name, directory=True)


def test_the_day_is_taken_out() -> None:
    shadow = b"root:*:20000:0:99999:7:::\nx:!::::::\n"
    assert clean_passwords(shadow, 86400 * 5) == b"root:*:5:0:99999:7:::\nx:!:5:::::\n"


def test_the_sources_are_debians_own_whichever_mirror_was_used(tmp_path: Path) -> None:
    _, target = layer_of(tmp_path, a_tree())
    with tarfile.open(target) as archive:
        member = archive.getmember("etc/apt/sources.list")
        content = archive.extractfile(member)
        assert content is not None
        assert content.read().decode().splitlines() == [
            "deb http://mirror.example/debian bookworm main",
            "deb http://mirror.example/debian-security bookworm-security main",
        ]
        assert "etc/apt/sources.list.d/more.list" not in archive.getnames()
    assert (member.mode, member.mtime) == (0o644, EPOCH)
    assert b"internal.example" not in target.read_bytes()


def test_installed_packages_are_listed() -> None:
    text = (
        "Package: b\nStatus: install ok installed\nVersion: 1:2-3\nDescription: x\n y: z\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: a\nStatus: install ok installed\nVersion: 4\n"
    )
    assert parse_status(text) == ("a=4", "b=1:2-3")


def layer_of(tmp_path: Path, tree: bytes) -> tuple[Layer, Path]:
    source, target = tmp_path / "tree.tar", tmp_path / "layer.tar"
    source.write_bytes(tree)
    return write_layer(source, target, EPOCH, "bookworm"), target


def test_the_same_files_give_the_same_layer(tmp_path: Path) -> None:
    first, _ = layer_of(tmp_path, a_tree())
    assert layer_of(tmp_path, a_tree(mtime=EPOCH + 999_999))[0] == first
    assert layer_of(tmp_path, a_tree(owner="somebody"))[0] == first
    assert layer_of(tmp_path, a_tree(sources=b"deb http://x.example/debian x main"))[0] == first
    assert layer_of(tmp_path, a_tree(shuffled=True))[0] == first
    # an old time is the file's own
    assert layer_of(tmp_path, a_tree(mtime=5))[0].diff_id != first.diff_id


def test_a_layer_says_what_is_in_it(tmp_path: Path) -> None:
    layer, _ = layer_of(tmp_path, a_tree())
    assert (layer.packages, layer.pythons) == (("python3=3.11",), ("3.11",))


def test_a_layer_is_sorted_and_clamped_and_links_point_back(tmp_path: Path) -> None:
    layer, target = layer_of(tmp_path, a_tree())
    assert layer.diff_id == f"sha256:{hashlib.sha256(target.read_bytes()).hexdigest()}"
    with tarfile.open(target) as archive:
        members = {member.name: member for member in archive}
        perl = archive.extractfile("usr/bin/zz")
        assert perl is not None
        assert perl.read() == b"data"
    assert list(members) == sorted(members)
    assert {"dev/null", "etc/hostname", ".", ""}.isdisjoint(members)
    assert max(member.mtime for member in members.values()) == EPOCH
    assert members["old"].mtime == 5
    assert {(member.uname, member.gname) for member in members.values()} == {("", "")}
    # the first name in the order carries the data
    assert (members["usr/bin/perl"].isreg(), members["usr/bin/perl"].mode) == (True, 0o4755)
    assert (members["usr/bin/zz"].islnk(), members["usr/bin/zz"].linkname) == (True, "usr/bin/perl")
