"""The Debian base, made for real and run in the engine that the environment names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.bootstrap import BootstrapBase, BootstrapUnfitError, bootstrap, host
from images.oci.archive_reading import open_archive
from images.oci.tarstream import layer_members
from tests.docker import need
from tests.docker.lab import ROOT
from tests.docker.snapshot_service import host_mirrors, snapshot_service

pytestmark = pytest.mark.docker
EPOCH = 1_700_000_000


def lacking(reason: str) -> None:
    """Fail where everything must run, and skip elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    import docker
    import docker.errors

    try:
        client = docker.from_env()
        client.ping()
    except (docker.errors.DockerException, OSError) as exc:
        lacking(f"no container engine answers: {exc}")
    else:
        yield client
        client.close()


def make(store: Path) -> BootstrapBase:
    if not shutil.which("mmdebstrap"):
        lacking("mmdebstrap is not installed: apt-get install mmdebstrap")
    return bootstrap("bookworm", python="3.11", arch=base_arch(), store=store, epoch=EPOCH)


def base_arch() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootstrapBase]:
    store = tmp_path_factory.mktemp("store")
    yield make(store)
    shutil.rmtree(store)


@pytest.fixture(scope="module")
def loaded(engine: Any, base: BootstrapBase) -> Iterator[Any]:
    with base.archive.open("rb") as archive:
        (image,) = engine.images.load(archive)
    yield image
    engine.images.remove(base.reference, force=True)


def run(engine: Any, image: Any, *command: str) -> str:
    output: bytes = engine.containers.run(image, command, network_mode="none", remove=True)
    return output.decode()


def test_the_engine_loads_it_under_its_name_and_id(
    engine: Any, base: BootstrapBase, loaded: Any
) -> None:
    assert base.reference in loaded.tags
    # an engine with containerd's store counts by the manifest that it makes itself
    if "io.containerd" not in str(engine.info().get("DriverStatus")):
        assert loaded.id == base.image_id
    assert loaded.attrs["RootFS"]["Layers"] == [base.diff_id]


def test_its_python_is_whole(engine: Any, loaded: Any) -> None:
    code = (
        "import venv, ssl, ctypes, sqlite3, sys, urllib.request\n"
        "assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 50\n"
        "venv.create('/tmp/v', with_pip=True)\n"
        "print(*sys.version_info[:2], sep='.')"
    )
    assert run(engine, loaded, "python3", "-c", code).split() == ["3.11"]


def test_its_package_manager_is_whole(engine: Any, loaded: Any) -> None:
    script = "dpkg --audit && dpkg --configure -a && apt-get check >&2 && cat /etc/apt/sources.list"
    lines = run(engine, loaded, "sh", "-c", script).splitlines()
    assert [line.split()[-2:] for line in lines] == [
        ["bookworm", "main"],
        ["bookworm-updates", "main"],
        ["bookworm-security", "main"],
    ]


def test_nothing_of_this_host_or_day_is_in_it(base: BootstrapBase) -> None:
    (layer,) = open_archive(base.archive).layers
    members = [member for member, _ in layer_members(layer)]
    names = {member.name for member in members}
    assert not names & {"etc/hostname", "etc/resolv.conf", "etc/machine-id", "dev/null"}
    assert not [name for name in names if "mmdebstrap" in name or "__pycache__" in name]
    assert not [name for name in names if name.startswith("var/lib/apt/lists/")]
    assert max(member.mtime for member in members) <= EPOCH


AGAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from images.bootstrap import bootstrap
made = bootstrap("bookworm", python="3.11", arch=sys.argv[2], store=Path(sys.argv[3]),
                 epoch=int(sys.argv[4]), snapshot="20260301T000000Z")
print(made.archive)
"""


def test_another_user_place_zone_and_mirror_give_the_same_bytes(base: BootstrapBase) -> None:
    """Another user makes it in a namespace, where root made the first, from a snapshot service."""
    mirrors = host_mirrors("bookworm")
    if not mirrors:
        pytest.skip("this host's apt has no mirror of Debian that could stand for a snapshot")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, snapshot_service(mirrors) as service:
        store = Path(place) / "other place"
        store.mkdir(mode=0o777)
        Path(place).chmod(0o755)
        store.chmod(0o777)
        made = subprocess.run(
            [
                *as_somebody_else(Path(place)),
                *(sys.executable, "-c", AGAIN, str(ROOT), base_arch(), str(store), str(EPOCH)),
            ],
            env={
                **os.environ,
                "HOME": str(store),
                "TZ": "Pacific/Kiritimati",
                "LANG": "tr_TR.UTF-8",
                "GZIP": "-1",
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


def as_somebody_else(place: Path) -> list[str]:
    """Run a command as a user without rights, who has user ids for a namespace while it runs."""
    if os.geteuid() != 0:
        return []
    for name, package in (("newuidmap", "uidmap"), ("setpriv", None), ("unshare", None)):
        need.program(name, package or "util-linux")
    readable = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    tried = [*readable, sys.executable, "-c", f"import sys, os; os.stat({str(ROOT)!r} + '/images')"]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        return []  # another user may not read this checkout: root makes it twice, then
    ids = place / "ids"
    ids.write_text("nobody:100000:65536\n")
    mounts = f"mount --bind '{ids}' /etc/subuid && mount --bind '{ids}' /etc/subgid && exec \"$@\""
    for name in ("/etc/subuid", "/etc/subgid"):
        Path(name).touch()
    return ["unshare", "--mount", "sh", "-c", mounts, "sh", *readable]


def test_a_suite_that_the_mirror_lacks_is_named(tmp_path: Path) -> None:
    if not shutil.which("mmdebstrap"):
        lacking("mmdebstrap is not installed: apt-get install mmdebstrap")
    lines: list[str] = []
    with pytest.raises(BootstrapUnfitError, match="nosuchsuite"):
        bootstrap(
            "nosuchsuite", python="3.11", arch=base_arch(), store=tmp_path, epoch=EPOCH,
            on_line=lines.append,
        )  # fmt: skip
    assert lines
    assert [path.name for path in (tmp_path / "bases").iterdir()] == [".lock"]
