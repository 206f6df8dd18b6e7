"""The Debian base: the host's mirrors, what stays in the tree, the archive, the store."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from images import bootstrap as module
from images import process
from images.bootstrap import (
    BootstrapBase,
    BootstrapError,
    BootstrapToolError,
    BootstrapUnfitError,
    MirrorError,
    NoSpaceError,
    bootstrap,
    clean_content,
    debian_lines,
    explain,
    find,
    is_kept,
    parse_deb822,
    parse_one_line,
    parse_status,
)
from images.errors import Failure

EPOCH = 1_700_000_000
HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)

# --- mirrors ----------------------------------------------------------------------------------

ONE_LINE = """
# deb http://old.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib   # the release
deb [signed-by=/k/debian-archive-keyring.gpg] http://mirror.example/debian bookworm-updates main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security/ bookworm-security main
deb http://mirror.example/debian bookworm-backports main
"""
DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
# inside
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
WANTED = (
    "deb http://mirror.example/debian trixie main",
    "deb http://mirror.example/debian trixie-updates main",
    "deb http://mirror.example/debian-security trixie-security main",
)


def test_one_line_sources_become_those_of_a_suite() -> None:
    lines = debian_lines(parse_one_line(ONE_LINE), "trixie")
    assert tuple(line.replace("security/", "security") for line in lines) == WANTED


def test_deb822_sources_become_those_of_a_suite() -> None:
    assert debian_lines(parse_deb822(DEB822), "trixie") == WANTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("deb http://u.example/ubuntu jammy main", (), id="Ubuntu is not Debian"),
        pytest.param(
            "deb http://d.example/linux/debian bookworm stable", (), id="another's component"
        ),
        pytest.param("deb http://p.example/php bookworm main", (), id="another's packages"),
        pytest.param("deb http://m.example/debian-security s-security main", (), id="no release"),
        pytest.param(
            "deb http://user:pw@m.example/repo/debian stable main",
            ("deb http://user:pw@m.example/repo/debian trixie main",),
            id="an internal mirror with a login, and a suite by another name",
        ),
        pytest.param(
            "deb [trusted=yes check-valid-until=no] http://s.example/debian/2025/ bookworm main",
            ("deb [check-valid-until=no trusted=yes] http://s.example/debian/2025/ trixie main",),
            id="what a snapshot needs is kept",
        ),
        pytest.param(
            "deb [signed-by=/etc/corp.gpg] http://m.example/debian bookworm main",
            ("deb [signed-by=/etc/corp.gpg] http://m.example/debian trixie main",),
            id="a mirror signed anew keeps its key",
        ),
        pytest.param("deb", (), id="half a line"),
        pytest.param("deb [ http://x", (), id="an open bracket"),
    ],
)
def test_only_debians_own_mirrors_count(text: str, expected: tuple[str, ...]) -> None:
    assert debian_lines(parse_one_line(text), "trixie") == expected


def test_a_key_inside_a_source_is_no_path() -> None:
    key = "Types: deb\nURIs: http://m.example/debian\nSuites: sid\nComponents: main\n"
    (source,) = parse_deb822(f"{key}Signed-By:\n -----BEGIN\n .\n abc\n")
    assert debian_lines([source], "sid") == ("deb http://m.example/debian sid main",)


def test_all_files_of_the_host_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "etc/apt/sources.list.d"
    parts.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(ONE_LINE)
    (parts / "debian.sources").write_text(DEB822)
    (parts / "off.sources.disabled").write_text(DEB822.replace("mirror", "off"))
    assert not [source for source in module.read_sources(tmp_path) if "off" in source.uri]
    assert module.read_sources(tmp_path / "absent") == ()


def test_the_tools_get_the_mirror_and_never_a_made_up_one(tmp_path: Path) -> None:
    packages, target = ("python3",), tmp_path / "t"
    with_mirror = module.debootstrap_argv(
        suite="trixie", packages=packages, target=target, lines=WANTED
    )
    assert with_mirror[-3:] == ["trixie", str(target), "http://mirror.example/debian"]
    for argv in (
        module.debootstrap_argv(suite="sid", packages=packages, target=target, lines=()),
        module.mmdebstrap_argv(suite="sid", packages=packages, target=target, apt=(), lines=()),
    ):
        assert argv[-2:] == ["sid", str(target)]


# --- the tree ---------------------------------------------------------------------------------


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


def test_the_day_and_the_login_are_taken_out() -> None:
    shadow = b"root:*:20000:0:99999:7:::\nx:!::::::\n"
    assert clean_content("etc/shadow", shadow, 86400 * 5) == b"root:*:5:0:99999:7:::\nx:!:5:::::\n"
    source = b"deb https://me:pw@m.example/debian sid main\n"
    assert (
        clean_content("etc/apt/sources.list", source, 0)
        == b"deb https://m.example/debian sid main\n"
    )
    assert clean_content("etc/other", source, 0) == source


def test_installed_packages_are_listed() -> None:
    text = (
        "Package: b\nStatus: install ok installed\nVersion: 1:2-3\nDescription: x\n y: z\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: a\nStatus: install ok installed\nVersion: 4\n"
    )
    assert parse_status(text) == ("a=4", "b=1:2-3")


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=0o755)


STATUS = b"Package: python3\nStatus: install ok installed\nVersion: 3.11\n"


def a_tree(
    *,
    mtime: int = EPOCH + 5,
    owner: str = "root",
    shuffled: bool = False,
    python: str = "python3.11",
) -> bytes:
    """What a tool makes; the arguments vary what must not matter."""
    entries = [
        directory("./"),
        directory("./dev"),
        entry("./dev/null", type=tarfile.CHRTYPE),
        directory("./usr"),
        directory("./usr/bin"),
        entry("./usr/bin/zz", b"data", mode=0o4755),
        entry("./usr/bin/perl", type=tarfile.LNKTYPE, linkname="./usr/bin/zz"),
        entry(f"./usr/bin/{python}", b"py", mode=0o755),
        entry("./usr/bin/python3", type=tarfile.SYMTYPE, linkname=python),
        entry("./etc/hostname", b"secret-host"),
        entry("./etc/shadow", f"root:*:{mtime // 86400}:0:99999:7:::\n".encode()),
        entry("./var/lib/dpkg/status", STATUS),
        entry("./old", mtime=5),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in entries[:1] + (entries[:0:-1] if shuffled else entries[1:]):
            info.mtime = info.mtime or mtime
            info.uname = info.gname = owner
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def layer_of(tmp_path: Path, tree: bytes) -> tuple[str, Path]:
    source, layer = tmp_path / "tree.tar", tmp_path / "layer.tar"
    source.write_bytes(tree)
    diff_id, _ = module.write_layer(source, layer, EPOCH)
    return diff_id, layer


def test_the_same_files_give_the_same_layer(tmp_path: Path) -> None:
    first, _ = layer_of(tmp_path, a_tree())
    assert layer_of(tmp_path, a_tree(mtime=EPOCH + 999_999))[0] == first
    assert layer_of(tmp_path, a_tree(owner="somebody"))[0] == first
    assert layer_of(tmp_path, a_tree(shuffled=True))[0] == first
    assert layer_of(tmp_path, a_tree(mtime=5))[0] != first  # an old time is the file's own


def test_a_layer_is_sorted_and_clamped_and_links_point_back(tmp_path: Path) -> None:
    diff_id, layer = layer_of(tmp_path, a_tree())
    assert diff_id == f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"
    with tarfile.open(layer) as archive:
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


# --- the store --------------------------------------------------------------------------------


class FakeTool:
    """Stands in for the commands: mmdebstrap leaves a tree, or fails as told."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.tree = a_tree()
        self.code = 0
        self.output = ""
        self.error: BaseException | None = None

    def run(self, argv: list[str], **_: Any) -> process.Completed:
        if argv[0] == "mmdebstrap":
            self.calls.append(argv)
            target = Path(argv[argv.index("bookworm") + 1])
            target.write_bytes(self.tree)
            if self.error is not None:
                raise self.error
        return process.Completed(
            argv=tuple(argv), code=self.code, output=self.output, stdout="", seconds=0
        )


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> FakeTool:
    fake = FakeTool()
    monkeypatch.setattr(process, "run", fake.run)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    keyring = tmp_path_factory.mktemp("keys") / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(module, "_KEYRING", keyring)
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
    assert base.diff_id == f"sha256:{hashlib.sha256(files[manifest['Layers'][0]]).hexdigest()}"
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
    monkeypatch.setattr(module, "NEEDED_BYTES", 1 << 60)
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
    monkeypatch.setattr(module, "_KEYRING", tmp_path / "absent")
    with pytest.raises(BootstrapToolError, match="absent") as caught:
        make(tmp_path)
    assert "debian-archive-keyring" in caught.value.fix
    assert not tool.calls


@pytest.mark.parametrize(
    ("suite", "python", "arch", "words"),
    [
        pytest.param("bookworm", "3.12", HERE, "has Python 3.11", id="a Python the suite lacks"),
        pytest.param("bookworm", "3.13", HERE, "suite trixie", id="a Python another suite has"),
        pytest.param("../x", "3.11", HERE, "bookworm", id="no suite's name"),
        pytest.param("--help", "3.11", HERE, "bookworm", id="an option in its place"),
        pytest.param("bookworm", "3.11", "s390x", HERE, id="another machine's architecture"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    tmp_path: Path, tool: FakeTool, suite: str, python: str, arch: str, words: str
) -> None:
    with pytest.raises(BootstrapUnfitError) as caught:
        bootstrap(suite, python=python, arch=arch, store=tmp_path, epoch=EPOCH)
    assert words in f"{caught.value.message} {caught.value.fix}"
    assert not tool.calls


def test_a_tree_without_its_python_is_refused(tmp_path: Path, tool: FakeTool) -> None:
    tool.tree = a_tree(python="python3.10")
    with pytest.raises(BootstrapUnfitError, match=r"python3\.10"):
        make(tmp_path)
    assert names(tmp_path) == {".lock"}


def test_a_store_that_is_a_file_is_a_plain_failure(tmp_path: Path, tool: FakeTool) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(BootstrapError, match="cannot be used"):
        make(tmp_path / "store")
    assert not tool.calls


@pytest.mark.parametrize(
    ("output", "expected", "fix"),
    [
        pytest.param("GPG error: NO_PUBKEY 0E98", MirrorError, "keyring", id="an unknown key"),
        pytest.param(
            "W: Certificate verification failed: The certificate is NOT trusted.",
            MirrorError,
            "update-ca-certificates",
            id="an unknown certificate",
        ),
        pytest.param("Unable to locate package x", BootstrapUnfitError, "", id="no such package"),
        pytest.param("does not have a Release file.", BootstrapUnfitError, "suite", id="no suite"),
        pytest.param("Could not resolve 'm'", MirrorError, "apt-get update", id="no such host"),
        pytest.param(
            "E: unable to pick chroot mode automatically (use --mode)",
            BootstrapToolError,
            "uidmap",
            id="no user namespace",
        ),
        pytest.param(
            "I: Retrieving ca-certificates\nI: automatically chosen mode: unshare",
            None,
            "",
            id="nothing telling",
        ),
    ],
)
def test_the_telling_line_is_found(output: str, expected: type[Failure] | None, fix: str) -> None:
    found = explain(output, "bookworm")
    assert type(found) is (expected or type(None))
    assert found is None or fix in found.fix


def test_a_mirrors_password_is_known_as_a_secret() -> None:
    texts = ("deb http://me:s3cret@m.example/debian sid main", "http://m.example:80/@x", "")
    assert module._passwords(texts) == ("s3cret",)
