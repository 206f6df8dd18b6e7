"""The Debian base from request to archive, on a small mirror: what is in it, and how it fails."""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import re
import tarfile
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from images.bootstrap import download, host, signature
from images.bootstrap.errors import BootstrapError, BootstrapUnfitError, MirrorError
from images.bootstrap.host import AptSettings
from images.bootstrap.make import bootstrap
from images.bootstrap.store import BootstrapBase, find
from images.errors import DiskFullError, Failure
from images.net.retries import Retries
from images.oci.archive_reader import open_archive
from images.oci.tarstream import layer_members
from images.store.errors import OfflineError
from tests.kit.cases import cases
from tests.kit.debian_mirror import EPOCH, FakeDeb, Key, ar, data_tar, minimal, serving, write_suite

SNAPSHOT = "20260301T000000Z"
KEY = Key()


class Mirror:
    """A mirror with its security suite beside it, both below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages = minimal()
        self.security: list[FakeDeb] = []
        self.key: Key | None = KEY
        self.changes: dict[str, str] = {}
        self.by_hash = True
        self.write()

    def write(self) -> None:
        more: dict[str, Any] = {"key": self.key, "by_hash": self.by_hash}
        debian, security = self.root / "debian", self.root / "debian-security"
        write_suite(debian, "bookworm", self.packages, changes=self.changes, **more)
        write_suite(debian, "bookworm-updates", [], **more)
        write_suite(security, "bookworm-security", self.security, **more)

    @property
    def index(self) -> Path:
        return self.root / "debian/dists/bookworm/main/binary-amd64/Packages.xz"

    def deb(self, name: str) -> Path:
        (found,) = (self.root / "debian/pool/main").glob(f"{name}_*.deb")
        return found


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    made = Mirror(tmp_path / "mirror")
    monkeypatch.setenv(host.MIRROR_VARIABLE, f"file://{made.root}/debian")
    monkeypatch.setattr(download, "debian_keys", lambda: signature._certificates(KEY.public))
    monkeypatch.setattr(host, "read_apt_settings", lambda _: AptSettings())
    return made


def make(store: Path, **changes: Any) -> BootstrapBase:
    options: dict[str, Any] = {"python": "3.11", "arch": "x86_64", "store": store, "epoch": EPOCH}
    return bootstrap("bookworm", **{**options, **changes})


def names(store: Path) -> set[str]:
    return {path.name for path in (store / "bases").iterdir()}


def contents(base: BootstrapBase) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    (layer,) = open_archive(base.archive).layers
    return {
        member.name: (member, content.read() if content else b"")
        for member, content in layer_members(layer)
    }


def text_of(base: BootstrapBase, path: str) -> str:
    return contents(base)[path][1].decode()


# --- what a base is -----------------------------------------------------------------------------


def test_the_archive_is_what_docker_loads(tmp_path: Path) -> None:
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
    image = open_archive(base.archive, base.reference)
    assert (image.image_id, image.layers[0].diff_id) == (base.image_id, base.diff_id)
    assert json.loads(config)["rootfs"]["diff_ids"] == [base.diff_id]
    assert json.loads(config)["created"] == "2023-11-14T22:13:20Z"
    assert manifest["RepoTags"] == [base.reference]
    assert base.reference == f"gpu-provision/base:bookworm-py3.11-{base.image_id[7:19]}"
    assert "python3.11=3.11.2-6" in base.packages
    assert names(tmp_path) == {f"{base.image_id[7:]}.tar", "index.json", ".lock"}


def test_a_base_has_what_its_packages_bring_and_their_scripts_would_write(tmp_path: Path) -> None:
    found = contents(make(tmp_path))
    assert found["bin"][0].linkname == "usr/bin"
    assert found["lib"][0].linkname == "usr/lib"
    assert "usr/lib/x86_64-linux-gnu/libc.so.6" in found
    assert found["usr/bin/python3"][0].linkname == "python3.11"
    assert found["usr/bin/python3.11"][0].mode == 0o755
    assert found["var/run"][0].linkname == "/run"
    assert found["usr/bin/awk"][0].linkname == "/etc/alternatives/awk"
    assert found["etc/alternatives/awk"][0].linkname == "/usr/bin/mawk"
    assert found["etc/passwd"][1].splitlines()[0] == b"root:x:0:0:root:/root:/bin/bash"
    assert found["etc/passwd"][1].splitlines()[-1].startswith(b"_apt:x:100:65534:")
    assert (found["etc/shadow"][0].mode, found["etc/shadow"][0].gid) == (0o640, 42)
    assert found["etc/shadow"][1].splitlines()[0] == b"root:*:19675:0:99999:7:::"
    assert found["etc/profile"][1] == b"# profile\n"
    assert found["etc/apt/sources.list"][1].decode() == (
        "deb http://mirror.example/debian bookworm main\n"
        "deb http://mirror.example/debian bookworm-updates main\n"
        "deb http://mirror.example/debian-security bookworm-security main\n"
    )
    assert "usr/share/doc/base-files/copyright" in found
    assert "usr/share/doc/base-files/changelog.gz" not in found
    assert max(member.mtime for member, _ in found.values()) == EPOCH
    assert list(found).index("usr/bin") < list(found).index("usr/bin/python3")


def test_dpkg_knows_what_is_installed(tmp_path: Path) -> None:
    found = contents(make(tmp_path))
    status = found["var/lib/dpkg/status"][1].decode()
    assert status.count("Status: install ok installed\n") == len(minimal())
    python = next(part for part in status.split("\n\n") if part.startswith("Package: python3.11\n"))
    digest = hashlib.md5(b"x", usedforsecurity=False).hexdigest()
    assert f"Conffiles:\n /etc/python3.11/conf {digest}\n" in f"{python}\n"
    listed = found["var/lib/dpkg/info/libc6.list"][1].decode()
    assert listed == "/.\n/lib\n/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu/libc.so.6\n"
    assert found["var/lib/dpkg/info/mawk.postinst"][0].mode == 0o755


def test_scripts_that_are_not_known_are_left_to_dpkg(tmp_path: Path, mirror: Mirror) -> None:
    mirror.packages.append(FakeDeb("novel", control={"postinst": "#!/bin/sh\nnovel --do\n"}))
    mirror.write()
    lines: list[str] = []
    base = make(tmp_path, packages=("python3", "novel"), on_line=lines.append)
    status = text_of(base, "var/lib/dpkg/status")
    novel = next(part for part in status.split("\n\n") if part.startswith("Package: novel\n"))
    assert "Status: install ok unpacked" in novel
    assert any("dpkg --configure -a" in line and "novel" in line for line in lines)


# --- packages beside the base's own -------------------------------------------------------------

MORE = (
    FakeDeb("less", "590-2", fields={"Depends": "libtinfo6"}, files={"usr/bin/less": b"less"},
            control={"postinst": "#!/bin/sh\nupdate-alternatives --install /usr/bin/pager pager"
                                 " /usr/bin/less 77\n"}),
    FakeDeb("libtinfo6", "6.4-4"),
    FakeDeb("git", "1:2.39.5", files={"usr/bin/git": b"git"}),
    FakeDeb("clash", files={"usr/bin/git": b"another"}),
    FakeDeb("folder", files={"usr/bin/git": None}),
    FakeDeb("novel", fields={"Depends": "novel-data"},
            control={"postinst": "#!/bin/sh\nset -e\nnovel --do\n"}),
    FakeDeb("novel-data", control={"preinst": "#!/usr/bin/perl\n"}),
    FakeDeb("openssh-server", control={"postinst": "#!/bin/sh\n"}),
)  # fmt: skip


@pytest.fixture
def larger(mirror: Mirror) -> Mirror:
    mirror.packages += MORE
    mirror.write()
    return mirror


@pytest.mark.usefixtures("larger")
def test_added_packages_are_configured_and_named_with_their_digests(tmp_path: Path) -> None:
    base = make(tmp_path, more=("less",))
    assert [(one.name, one.version) for one in base.added] == [
        ("less", "590-2"), ("libtinfo6", "6.4-4"),
    ]  # fmt: skip
    assert all(re.fullmatch("[0-9a-f]{64}", one.sha256) for one in base.added)
    assert contents(base)["etc/alternatives/pager"][0].linkname == "/usr/bin/less"
    again = make(tmp_path, more=("less",))
    assert (again.seconds, again.added) == (0.0, base.added)


@pytest.mark.usefixtures("larger")
def test_the_order_of_added_packages_does_not_matter(tmp_path: Path) -> None:
    found = {
        (base.image_id, base.added)
        for number, more in enumerate((("git", "less"), ("less", "git"), ("less", "git", "less")))
        for base in [make(tmp_path / str(number), more=more)]
    }
    assert len(found) == 1
    assert found.pop()[0] != make(tmp_path / "0").image_id


@pytest.mark.usefixtures("larger")
@cases(
    "more message",
    ("two files of one name", ("git", "clash"), "git and clash both install /usr/bin/git."),
    ("a file and a directory", ("git", "folder"), "git and folder both install /usr/bin/git."),
    ("scripts that are not understood, also of what it needs", ("novel",),
     "novel: its script runs 'novel --do'; novel-data: its script runs '#!/usr/bin/perl'."),
    ("scripts that no image should have run", ("openssh-server",),
     "openssh-server: its script creates the keys of the host"),
    ("a name without package", ("gti",), "Debian bookworm has no package gti."),
)  # fmt: skip
def test_added_packages_that_would_be_broken_are_refused(
    tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Failure) as caught:
        make(tmp_path, more=more)
    assert message in caught.value.message
    assert names(tmp_path) == {".lock"}


def test_security_updates_are_what_is_installed(tmp_path: Path, mirror: Mirror) -> None:
    mirror.security = [
        FakeDeb("python3.11", "3.11.2-6+deb12u9", files={"usr/bin/python3.11": b"!"})
    ]
    mirror.write()
    base = make(tmp_path)
    assert "python3.11=3.11.2-6+deb12u9" in base.packages
    assert text_of(base, "usr/bin/python3.11") == "!"


def test_a_base_for_another_architecture_is_made_here(tmp_path: Path, mirror: Mirror) -> None:
    debian, security = mirror.root / "debian", mirror.root / "debian-security"
    write_suite(debian, "bookworm", mirror.packages, key=KEY, arch="arm64")
    write_suite(debian, "bookworm-updates", [], key=KEY, arch="arm64")
    write_suite(security, "bookworm-security", [], key=KEY, arch="arm64")
    base = make(tmp_path, arch="aarch64")
    image = open_archive(base.archive)
    assert str(image.platform) == "linux/arm64"


# --- the same bytes -----------------------------------------------------------------------------


def test_where_the_packages_came_from_does_not_show(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path / "a")
    with serving(mirror.root) as address:
        monkeypatch.setenv(host.MIRROR_VARIABLE, f"{address}/debian")
        again = make(tmp_path / "b")
    assert again.image_id == first.image_id
    assert again.archive.read_bytes() == first.archive.read_bytes()


def test_the_order_of_an_index_does_not_show(tmp_path: Path, mirror: Mirror) -> None:
    first = make(tmp_path / "a")
    mirror.packages.reverse()
    mirror.write()
    assert make(tmp_path / "b").archive.read_bytes() == first.archive.read_bytes()


def test_a_snapshot_is_what_the_service_had_then(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = tmp_path / "past"
    for name in ("debian", "debian-security"):
        (past / name).mkdir(parents=True)
        (past / name / SNAPSHOT).symlink_to(mirror.root / name)
    mirror.changes = {"Valid-Until": formatdate(EPOCH, usegmt=True)}
    mirror.write()
    monkeypatch.setenv(host.SNAPSHOT_VARIABLE, f"file://{past}/")
    made = make(tmp_path, snapshot=SNAPSHOT, clock=lambda: 0.0)
    # what was then does not grow old, and is another thing than today's
    mirror.root.rename(tmp_path / "gone")
    assert make(tmp_path, snapshot=SNAPSHOT, clock=lambda: 9e8).image_id == made.image_id
    with pytest.raises(MirrorError):
        make(tmp_path, snapshot="20260302T000000Z")


# --- the store ----------------------------------------------------------------------------------


def test_the_same_request_is_answered_from_the_store(tmp_path: Path, mirror: Mirror) -> None:
    first = make(tmp_path)
    mirror.root.rename(tmp_path / "gone")
    again = make(tmp_path, packages=("python3-venv", "python3", "ca-certificates", "python3"))
    assert (again.image_id, again.archive, again.seconds) == (first.image_id, first.archive, 0.0)
    with pytest.raises(MirrorError):
        make(tmp_path, packages=("python3",))


@pytest.mark.usefixtures("mirror")
def test_bases_of_another_user_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache that several users share, anybody can have put one there."""
    first = make(tmp_path)
    assert find(tmp_path, first.image_id) is not None
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert find(tmp_path, first.image_id) is None
    with pytest.raises(BootstrapError, match=f"belongs to user {mine}, and you are") as caught:
        make(tmp_path)
    assert "XDG_CACHE_HOME=" in caught.value.fix


def test_packages_that_were_downloaded_once_are_not_downloaded_again(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(mirror.root) as address:
        monkeypatch.setenv(host.MIRROR_VARIABLE, f"{address}/debian")
        make(tmp_path)
        for deb in mirror.root.rglob("*.deb"):
            deb.unlink()
        base = make(tmp_path, packages=("python3",))
    assert "python3-venv=3.11.2-1" not in base.packages


@pytest.mark.parametrize("damage", ["nothing", "a byte", "cut", "gone", "not JSON"])
def test_what_is_kept_of_packages_gives_the_same_base(
    tmp_path: Path, mirror: Mirror, damage: str
) -> None:
    """... and what was damaged in the store is unpacked again."""
    first = make(tmp_path, clock=lambda: float(EPOCH)).archive.read_bytes()
    if damage not in {"nothing", "not JSON"}:
        (kept,) = (
            p for p in (tmp_path / "store-1/blobs").iterdir() if b'"control"' in p.read_bytes()
        )
        content = kept.read_bytes()
        changed = {"a byte": content[:-1] + b"x", "cut": content[:-9]}.get(damage)
        kept.unlink() if changed is None else kept.write_bytes(changed)
    elif damage == "not JSON":
        for memo in (tmp_path / "store-1/memo").rglob("*.json"):
            memo.write_text("{")
    else:
        for deb in mirror.root.rglob("*.deb"):
            deb.unlink()  # they are not asked for
    again = make(tmp_path, clock=lambda: EPOCH + 8 * 86400.0)
    assert again.archive.read_bytes() == first


def test_an_old_base_is_made_again_and_still_found(tmp_path: Path, mirror: Mirror) -> None:
    first = make(tmp_path, clock=lambda: float(EPOCH))
    mirror.security = [FakeDeb("mawk", "2", files={"usr/bin/mawk": b"new"})]
    mirror.write()
    later = make(tmp_path, clock=lambda: EPOCH + 7 * 86400.0)
    assert later.image_id != first.image_id
    assert find(tmp_path, first.image_id) == find(tmp_path, first.diff_id) is not None
    assert find(tmp_path, "sha256:other") is None


@pytest.mark.parametrize("damage", ["cut", "removed", "index lost", "index damaged"])
def test_a_damaged_store_repairs_itself(tmp_path: Path, damage: str) -> None:
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


def test_offline_says_that_the_base_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(OfflineError, match="bookworm is not on this machine"):
        make(tmp_path, offline=True)
    base = make(tmp_path)
    assert make(tmp_path, offline=True).image_id == base.image_id


def test_what_another_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "bases/.work-left/tree").mkdir(parents=True)
    base = make(tmp_path)
    assert names(tmp_path) == {base.archive.name, "index.json", ".lock"}


# --- what is refused ----------------------------------------------------------------------------


def unsigned(mirror: Mirror) -> None:
    mirror.key = None
    mirror.write()


def signed_by_another(mirror: Mirror) -> None:
    mirror.key = Key()
    mirror.write()


def changed_after_signing(mirror: Mirror) -> None:
    release = mirror.root / "debian/dists/bookworm/InRelease"
    release.write_bytes(release.read_bytes().replace(b"Origin: Debian", b"Origin: Debiam"))


def another_suite(mirror: Mirror) -> None:
    mirror.changes = {"Codename": "bullseye"}
    mirror.write()


def expired(mirror: Mirror) -> None:
    mirror.changes = {"Valid-Until": "Sat, 01 Jan 2022 00:00:00 UTC"}
    mirror.write()


def without_hashes(mirror: Mirror) -> None:
    mirror.changes = {"SHA256": ""}
    mirror.write()


def without_the_architecture(mirror: Mirror) -> None:
    mirror.changes = {"SHA256": f"\n {'0' * 64} 1 main/binary-mips/Packages.xz"}
    mirror.write()


def another_index(mirror: Mirror) -> None:
    other = lzma.compress(b"Package: evil\n")
    for path in (mirror.index, *mirror.index.parent.glob("by-hash/SHA256/*")):
        path.write_bytes(other)


def another_package(mirror: Mirror) -> None:
    mirror.deb("mawk").write_bytes(FakeDeb("mawk", files={"usr/bin/mawk": b"evil"}).build())


def package_gone(mirror: Mirror) -> None:
    mirror.deb("mawk").unlink()


def dependency_gone(mirror: Mirror) -> None:
    mirror.packages = [one for one in mirror.packages if one.name != "libc6"]
    mirror.write()


def older_than_needed(mirror: Mirror) -> None:
    mirror.packages = [
        FakeDeb("libc6", "2.31") if p.name == "libc6" else p for p in mirror.packages
    ]
    mirror.write()


def in_conflict(mirror: Mirror) -> None:
    mirror.packages.append(FakeDeb("x", fields={"Essential": "yes", "Breaks": "mawk (<< 2)"}))
    mirror.write()


def two_with_one_file(mirror: Mirror) -> None:
    mirror.packages.append(FakeDeb("x", fields={"Essential": "yes"}, files={"bin/mawk": b""}))
    mirror.write()


def outside_of_the_tree(mirror: Mirror) -> None:
    data = data_tar({"../../etc/cron.d/x": b"evil"}, {})
    mirror.packages.append(FakeDeb("x", fields={"Essential": "yes"}, data=data))
    mirror.write()


def not_a_tar(mirror: Mirror) -> None:
    mirror.packages.append(FakeDeb("x", fields={"Essential": "yes"}, data=b"no tar" * 200))
    mirror.write()


def no_python(mirror: Mirror) -> None:
    for package in mirror.packages:
        if package.name == "python3.11":
            package.files = {"usr/bin/python3.10": b""}
    mirror.write()


def index_without_hashes(mirror: Mirror) -> None:
    text = b"Package: apt\nVersion: 1\nFilename: ../../x\nSize: 1\nSHA256: 00\n"
    content = lzma.compress(text)
    digest = hashlib.sha256(content).hexdigest()
    mirror.changes = {"SHA256": f"\n {digest} {len(content)} main/binary-amd64/Packages.xz"}
    mirror.write()
    (mirror.index.parent / "by-hash/SHA256" / digest).write_bytes(content)


@cases(
    "fault error words",
    ("unsigned", unsigned, MirrorError, "signature of bookworm .* is not valid"),
    ("signed by an unknown key", signed_by_another, MirrorError, "is not valid"),
    ("changed after signing", changed_after_signing, MirrorError, "not valid"),
    ("another suite's Release, well signed", another_suite, MirrorError,
     "of bullseye or oldstable, not of bookworm"),
    ("out of date", expired, MirrorError, "expired on Sat, 01 Jan 2022"),
    ("no digests", without_hashes, MirrorError, "lists no SHA256"),
    ("an architecture that the mirror lacks", without_the_architecture, BootstrapUnfitError,
     "has no packages for amd64"),
    ("another index", another_index, MirrorError, "expected .* found"),
    ("another package", another_package, MirrorError, "expected .* found"),
    ("a package is gone", package_gone, MirrorError, "mawk_1.deb .* is not there"),
    ("a dependency is gone", dependency_gone, BootstrapUnfitError,
     r"apt 1 .* needs libc6 \(>= 2.36\)"),
    ("a dependency is too old", older_than_needed, BootstrapUnfitError, r"needs libc6 \(>= 2.36\)"),
    ("a conflict", in_conflict, BootstrapUnfitError, "x 1 conflicts with mawk 1"),
    ("two packages with one file, by two names of its directory", two_with_one_file, BootstrapError,
     "both install /usr/bin/mawk"),
    ("a path upwards", outside_of_the_tree, BootstrapError, "outside of the tree"),
    ("a package that is damaged", not_a_tar, BootstrapError, "x 1"),
    ("another Python", no_python, BootstrapError, "gave Python 3.10; Python 3.11 was asked for"),
    ("an index that leads elsewhere", index_without_hashes, MirrorError,
     "does not say where apt is"),
)  # fmt: skip
def test_a_mirror_that_cannot_be_trusted_gives_no_base(
    tmp_path: Path,
    mirror: Mirror,
    fault: Callable[[Mirror], None],
    error: type[Failure],
    words: str,
) -> None:
    fault(mirror)
    with pytest.raises(error, match=words) as caught:
        make(tmp_path)
    assert caught.value.fix
    assert names(tmp_path) == {".lock"}


def test_a_mirror_in_the_middle_of_an_update_still_serves(tmp_path: Path, mirror: Mirror) -> None:
    mirror.index.write_bytes(b"the next one, half written")
    assert make(tmp_path).packages


def test_a_mirror_without_by_hash_serves_too(tmp_path: Path, mirror: Mirror) -> None:
    mirror.by_hash = False
    mirror.write()
    assert make(tmp_path).packages


def test_a_suite_that_the_mirror_lacks_is_named(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(mirror.root) as address:
        monkeypatch.setenv(host.MIRROR_VARIABLE, f"{address}/debian")
        with pytest.raises(BootstrapUnfitError, match="does not have the suite forky") as caught:
            bootstrap("forky", python="3.14", arch="x86_64", store=tmp_path, epoch=EPOCH)
    assert caught.value.exit_code == 3


@cases(
    "status error words",
    ("busy for a moment: asked again", 503, None, ""),
    ("not there", 404, BootstrapUnfitError, "does not have the suite"),
    ("a login is needed", 401, MirrorError, "asks for a login"),
    ("refused", 403, MirrorError, "denies access"),
)
def test_answers_of_a_server(
    tmp_path: Path,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    error: type[Failure] | None,
    words: str,
) -> None:
    monkeypatch.setattr(download, "TRIES", Retries(tries=2, first_wait_s=0.0))
    with serving(mirror.root, {"bookworm/InRelease": [status]}) as address:
        monkeypatch.setenv(host.MIRROR_VARIABLE, f"{address}/debian")
        if error is None:
            assert make(tmp_path).packages
            return
        with pytest.raises(error, match=words):
            make(tmp_path)


def test_a_mirror_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TRIES", Retries(tries=1))
    monkeypatch.setenv(host.MIRROR_VARIABLE, "http://user:s3cret@127.0.0.1:9/debian")
    with pytest.raises(MirrorError, match=r"The Debian mirror 127\.0\.0\.1 refuses") as caught:
        make(tmp_path)
    assert host.MIRROR_VARIABLE in caught.value.fix
    assert "s3cret" not in str(vars(caught.value))


def test_a_full_disk_says_how_much_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("images.bootstrap.make.write_archive", full)
    with pytest.raises(DiskFullError, match="GB free") as caught:
        make(tmp_path)
    assert (caught.value.exit_code, "df -h" in caught.value.fix) == (4, True)
    assert names(tmp_path) == {".lock"}


def test_too_little_space_is_seen_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(DiskFullError):
        make(tmp_path)
    assert not (tmp_path / "store-1").exists()


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("images.bootstrap.layer.configure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    assert names(tmp_path) == {".lock"}


@cases(
    "changes words",
    ("no time", {"snapshot": "yesterday"}, "YYYYMMDDTHHMMSSZ"),
    ("no such day", {"snapshot": "20261399T000000Z"}, "YYYYMMDDTHHMMSSZ"),
    ("a path", {"snapshot": "20260301T000000Z/../x"}, "YYYYMMDD"),
    ("a time that has not been", {"epoch": 1 << 40}, "SOURCE_DATE_EPOCH"),
)
def test_times_that_cannot_be_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BootstrapUnfitError) as caught:
        make(tmp_path, **changes)
    assert words in caught.value.fix


@pytest.mark.parametrize("suite", ["../x", "--help", "Bookworm", ""])
def test_what_is_not_a_suites_name_is_refused(tmp_path: Path, suite: str) -> None:
    with pytest.raises(BootstrapUnfitError, match=re.escape(repr(suite))):
        bootstrap(suite, python="3.11", arch="x86_64", store=tmp_path, epoch=EPOCH)


def test_a_store_that_is_a_file_is_a_plain_failure(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(BootstrapError, match="cannot be used"):
        make(tmp_path / "store")


def test_a_package_that_is_no_archive_is_named(tmp_path: Path, mirror: Mirror) -> None:
    for content, words in (
        (b"<html>", "not an ar archive"),
        (ar({"debian-binary": b"2.0\n"}), "no control.tar"),
        (ar({"control.tar.zst": b"", "data.tar.xz": b""}), "compressed with zst"),
        (mirror.deb("mawk").read_bytes()[:-40], "damaged|cut off"),
    ):
        path = tmp_path / "x.deb"
        path.write_bytes(content)
        from images.bootstrap.deb import read_deb

        with pytest.raises(BootstrapError, match=words):
            read_deb(path, shown="x 1")
