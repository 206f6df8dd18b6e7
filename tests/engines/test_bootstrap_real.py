"""The Debian base, made for real and run in an engine."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from images.bootstrap import host
from images.bootstrap.errors import BootstrapUnfitError
from images.bootstrap.make import DEFAULT_PACKAGES, bootstrap
from images.bootstrap.mirrors import debian_sources
from images.bootstrap.store import BootstrapBase
from images.bootstrap.tree import is_kept
from images.oci.archive_reader import open_archive
from images.oci.tarstream import layer_members
from images.system.ldcache import read_cache
from provision.build.base import _EPOCH
from tests import need
from tests.engines.lab import ARCH, ROOT, ca_bundle, debian
from tests.engines.snapshot_service import host_mirrors, snapshot_service
from tests.kit.cases import cases
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def base() -> BootstrapBase:
    return debian()


@pytest.fixture(scope="module")
def loaded(own_client: Any, base: BootstrapBase) -> Iterator[Any]:
    with base.archive.open("rb") as archive:
        (image,) = own_client.images.load(archive)
    yield image
    own_client.images.remove(base.reference, force=True)


def run(own_client: Any, image: Any, *command: str) -> str:
    output: bytes = own_client.containers.run(image, command, network_mode="none", remove=True)
    return output.decode()


def test_the_engine_loads_it_under_its_name_and_id(
    own_client: Any, base: BootstrapBase, loaded: Any
) -> None:
    assert base.reference in loaded.tags
    # an engine with containerd's store counts by the manifest that it makes itself
    if "io.containerd" not in str(own_client.info().get("DriverStatus")):
        assert loaded.id == base.image_id
    assert loaded.attrs["RootFS"]["Layers"] == [base.diff_id]


def test_its_python_is_whole(own_client: Any, loaded: Any) -> None:
    code = (
        "import venv, ssl, ctypes, sqlite3, sys, urllib.request\n"
        "assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 50\n"
        "venv.create('/tmp/v', with_pip=True)\n"
        "print(*sys.version_info[:2], sep='.')"
    )
    assert run(own_client, loaded, "python3", "-c", code).split() == ["3.11"]


def test_its_package_manager_is_whole(own_client: Any, loaded: Any) -> None:
    script = "dpkg --audit && dpkg --configure -a && apt-get check >&2 && cat /etc/apt/sources.list"
    lines = run(own_client, loaded, "sh", "-c", script).splitlines()
    assert [line.split()[-2:] for line in lines] == [
        ["bookworm", "main"],
        ["bookworm-updates", "main"],
        ["bookworm-security", "main"],
    ]


def test_added_packages_work_in_it(own_client: Any, base: BootstrapBase) -> None:
    """Programs, a library that is an alternative, and dpkg's own judgement."""
    more = ("git", "less", "libopenblas0", "openssh-client")
    made = bootstrap(
        "bookworm", python="3.11", arch=ARCH, store=base.archive.parent.parent, epoch=_EPOCH,
        more=more, ca_bundle=ca_bundle(),
    )  # fmt: skip
    assert {one.name for one in made.added} >= {*more, "libopenblas0-pthread", "perl"}
    script = (
        "set -e; dpkg --audit; apt-get check >&2; readlink -f /usr/lib/*/libblas.so.3; "
        "git init -q /tmp/x; ssh -V 2>&1; pager --version | head -1; "
        "stat -c '%a %G' /usr/bin/ssh-agent; "
        "python3 -c 'import ctypes; ctypes.CDLL(\"libblas.so.3\").cblas_ddot'"
    )
    with made.archive.open("rb") as archive:
        (image,) = own_client.images.load(archive)
    try:
        lines = run(own_client, image, "sh", "-c", script).splitlines()
    finally:
        own_client.images.remove(made.reference, force=True)
    assert "/openblas-pthread/libblas.so.3" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["OpenSSH_9.2p1", "less", "2755"]
    assert lines[-1] == "2755 _ssh"


def test_nothing_of_this_host_or_day_is_in_it(base: BootstrapBase) -> None:
    (layer,) = open_archive(base.archive).layers
    members = [member for member, _ in layer_members(layer)]
    names = {member.name for member in members}
    assert not names & {"etc/hostname", "etc/resolv.conf", "etc/machine-id", "dev/null"}
    assert not [name for name in names if "mmdebstrap" in name or "__pycache__" in name]
    assert [name for name in names if name.startswith("var/lib/apt/lists/")] == [
        "var/lib/apt/lists/partial"
    ]
    assert max(member.mtime for member in members) <= _EPOCH


AGAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from images.bootstrap.make import bootstrap
made = bootstrap("bookworm", python="3.11", arch=sys.argv[2], store=Path(sys.argv[3]),
                 epoch=int(sys.argv[4]), snapshot="20260301T000000Z")
print(made.archive)
"""


def test_another_user_place_zone_and_mirror_give_the_same_bytes(base: BootstrapBase) -> None:
    """A user without any rights makes it from a snapshot service, where root made the first."""
    mirrors = host_mirrors("bookworm")
    if not mirrors:
        pytest.skip("this host's apt has no mirror of Debian that could stand for a snapshot")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, snapshot_service(mirrors) as service:
        store = Path(place) / "other place"
        store.mkdir()
        Path(place).chmod(0o755)
        store.chmod(0o777)
        made = subprocess.run(
            [
                *as_somebody_else(),
                *(sys.executable, "-c", AGAIN, str(ROOT), ARCH, str(store), str(_EPOCH)),
            ],
            env={
                **os.environ,
                "HOME": str(store),
                "TZ": "Pacific/Kiritimati",
                "LANG": "tr_TR.UTF-8",
                host.SNAPSHOT_VARIABLE: service.address,
                "no_proxy": "127.0.0.1",
            },
            umask=0o077,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert made.returncode == 0, made.stderr
        assert service.stamps == {"20260301T000000Z"}
        again = Path(made.stdout.strip())
        assert again.name == base.archive.name
        assert again.read_bytes() == base.archive.read_bytes()
    assert [name for name in base.packages if name.startswith("python3.11=")]


def as_somebody_else() -> list[str]:
    """Run a command as a user without rights, who may read this checkout."""
    if os.geteuid() != 0:
        return []
    nobody = [need.program("setpriv"), "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    tried = [*nobody, sys.executable, "-c", f"import sys, os; os.stat({str(ROOT)!r} + '/images')"]
    readable = subprocess.run(tried, capture_output=True, check=False).returncode == 0
    return nobody if readable else []  # else root makes it twice


# --- the same as dpkg makes it ------------------------------------------------------------------

_ALIASED = re.compile(r"^(bin|sbin|lib|lib32|lib64|libx32)(?=/)")
_NOT_COMPARED = re.compile(
    r"""
      (dev|proc|run|tmp)/.*
    | .*/__pycache__(/.*)? | .*\.pyc                          # made when it is first needed
    | etc/systemd/.* | var/lib/systemd/.* | etc/rc.\.d/.*  # a container starts none of it
    | var/cache/debconf/.* | var/cache/ldconfig(/.*)?         # caches, and answers of nobody
    | var/log/.* | etc/fstab | etc/hostname | etc/resolv\.conf
    | .*-old | .*/[lL]ock(-frontend)? | etc/\.pwd\.lock | etc/(passwd|group|g?shadow)-
    | var/lib/dpkg/(arch|arch-native|available) | var/lib/apt/extended_states
    | etc/apt/(sources\.list|apt\.conf\.d/99mmdebstrap)       # where this host's packages are
    | etc/ca-certificates\.conf                               # the same names below another heading
    | usr/share/mime/([a-z-]+/.*\.xml|mime\.cache|globs2?|subclasses|generic-icons)  # other order
    | (usr/)?lib/.*/loaders\.cache                            # without its heading
    | var/cache/fontconfig/.*                                 # made when they are first needed
    | etc/pam\.d/common-.* | etc/(hosts|networks)             # the same but for blanks
    | etc/alternatives/.*\.gz | var/lib/dpkg/alternatives/.*  # of manual pages, which are not kept
    | etc/ld\.so\.cache | var/lib/dpkg/(diversions|triggers/File|status)  # compared by parts
    | (usr/)?lib(x?32)                                        # made by mmdebstrap's hook
    | usr/share/doc/usr-is-merged(/.*)? | var/lib/dpkg/info/usr-is-merged\..*  # and this
    | var/(cache|lib)/apt/.*/partial                          # apt makes them its own user's
    """,
    re.VERBOSE,
)


_ADDED = ("git", "less", "libgdk-pixbuf-2.0-0", "libopenblas0", "openssh-client", "tmux")
"""Packages with scripts of several kinds: read ones, those in the data, and MIME types."""


@cases(
    "suite python packages",
    ("Debian 11", "bullseye", "3.9", DEFAULT_PACKAGES),
    ("Debian 12", "bookworm", "3.11", (*DEFAULT_PACKAGES, *_ADDED)),
    ("Debian 13", "trixie", "3.13", DEFAULT_PACKAGES),
)
def test_a_base_is_what_dpkg_makes_of_the_same_packages(
    tmp_path: Path, suite: str, python: str, packages: tuple[str, ...]
) -> None:
    """mmdebstrap runs dpkg and all scripts; what it leaves is what our data must say."""
    need.root()
    made = bootstrap(
        suite,
        python=python,
        arch=ARCH,
        store=tmp_path,
        epoch=_EPOCH,
        packages=packages,
        ca_bundle=ca_bundle(),
    )
    ours_kept: dict[str, bytes] = {}
    theirs_kept: dict[str, bytes] = {}
    ours = merged(_ours(made, ours_kept))
    theirs = merged(_by_dpkg(suite, packages, tmp_path, theirs_kept))
    wrong = []
    for path in sorted({*ours, *theirs}):
        if not path or _NOT_COMPARED.fullmatch(path) or not is_kept(path):
            continue
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None:
            wrong.append(f"{path}: only {'dpkg has it' if one is None else 'we have it'}")
        elif one != other:
            wrong.append(f"{path}: {one} where dpkg has {other}")
    known_wrong = _KNOWN_DIFFERENCES.get(suite, set())
    for path, parts in _COMPARED_BY_PARTS.items():
        differing = parts(ours_kept.get(path, b"")) ^ parts(theirs_kept.get(path, b""))
        wrong += [f"{path}: {sorted(differing)}"] if differing else []
    offenders = [line for line in wrong if line.partition(":")[0] not in known_wrong]
    assert not offenders, "\n".join(offenders)


# bullseye's packages are older than merged /usr, which dpkg there does not make by itself
_KNOWN_DIFFERENCES: dict[str, set[str]] = {
    "bullseye": {
        "bin", "sbin", "lib", "lib64", "usr/lib64", "usr/bin/touch", "etc/shells",
    },
}  # fmt: skip


def merged(found: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {_ALIASED.sub(r"usr/\1", path): facts for path, facts in found.items()}


def _paragraphs(content: bytes) -> frozenset[str]:
    """Of dpkg's status; usr-is-merged is mmdebstrap's, and one flag of a file is dpkg's own."""
    flag = r"Conffiles:\n \S+ newconffile remove-on-upgrade\n"
    text = re.sub(flag, "", content.decode())
    found = (part.strip() for part in text.split("\n\n"))
    return frozenset(part for part in found if not part.startswith("Package: usr-is-merged\n"))


def _triples(content: bytes) -> frozenset[str]:
    lines = content.decode().split("\n")
    return frozenset(" ".join(lines[at : at + 3]) for at in range(0, len(lines) - 2, 3))


def _libraries(content: bytes) -> frozenset[str]:
    """Each library's name and directory; Debian 11's, unmerged, has the same in other places."""
    entries = read_cache(content) or ()
    return frozenset(posixpath.basename(entry.path) for entry in entries)


_COMPARED_BY_PARTS: dict[str, Callable[[bytes], frozenset[str]]] = {
    "var/lib/dpkg/status": _paragraphs,
    "var/lib/dpkg/diversions": _triples,
    "etc/ld.so.cache": _libraries,
    "var/lib/dpkg/triggers/File": lambda content: frozenset(content.decode().splitlines()),
}


def _ours(base: BootstrapBase, kept: dict[str, bytes]) -> dict[str, tuple[Any, ...]]:
    (layer,) = open_archive(base.archive).layers
    found = {}
    for member, stream in layer_members(layer):
        content = stream.read() if stream else b""
        found[member.name] = _facts(member, content, member.name)
        if member.name in _COMPARED_BY_PARTS:
            kept[member.name] = content
    return found


def _by_dpkg(
    suite: str, packages: tuple[str, ...], work: Path, kept: dict[str, bytes]
) -> dict[str, tuple[Any, ...]]:
    target = work / "theirs.tar"
    lines = [
        f"deb {source.uri} {source.suite} main"
        for source in debian_sources(host.read_sources(), suite)
    ]
    hooks = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
    argv = [
        need.program("mmdebstrap"),
        *("-q", "--variant=minbase", "--mode=root", "--format=tar"),
        f"--hook-dir={hooks}",
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Check-Valid-Until "false"',
        *(suite, str(target), *lines),
    ]
    done = run_program(argv, timeout=1500)
    if done.returncode != 0:
        need.lacking(f"mmdebstrap could not make {suite}: {done.stderr[-1500:]}")
    with tarfile.open(target) as tar:
        found = {}
        for member in tar:
            name = member.name.removeprefix(".").strip("/")
            stream = tar.extractfile(member) if member.isreg() else None
            content = stream.read() if stream else b""
            found[name] = _facts(member, content, name)
            if name in _COMPARED_BY_PARTS:
                kept[name] = content
    target.unlink()
    return found


def _facts(member: tarfile.TarInfo, content: bytes, name: str) -> tuple[Any, ...]:
    """What counts of a member; two names of one file are two files."""
    kind = {tarfile.SYMTYPE: "link", tarfile.DIRTYPE: "directory"}.get(member.type, "file")
    if kind == "link":
        return kind, member.linkname
    if name == "etc/shadow":
        content = re.sub(rb":\d{5}:", b":day:", content)
    digest = (
        "" if member.islnk() or kind == "directory" else hashlib.sha256(content).hexdigest()[:12]
    )
    return kind, oct(member.mode), member.uid, member.gid, digest


def test_a_suite_that_the_mirror_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(BootstrapUnfitError, match="nosuchsuite"):
        bootstrap(
            "nosuchsuite", python="3.11", arch=ARCH, store=tmp_path, epoch=_EPOCH,
            ca_bundle=ca_bundle(),
        )  # fmt: skip
    assert [path.name for path in (tmp_path / "bases").iterdir()] == [".lock"]
