"""The Debian base, made for real and run in the engine that the environment names."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.bootstrap import BootstrapBase, BootstrapUnfitError, bootstrap

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
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    return bootstrap("bookworm", python="3.11", arch=arch, store=store, epoch=EPOCH)


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
    assert "bookworm main" in run(engine, loaded, "sh", "-c", script)


def test_nothing_of_this_host_or_day_is_in_it(base: BootstrapBase) -> None:
    with tarfile.open(base.archive) as archive:
        (layer,) = [name for name in archive.getnames() if name.endswith(".tar")]
        with tarfile.open(fileobj=archive.extractfile(layer)) as files:
            members = files.getmembers()
    names = {member.name for member in members}
    assert not names & {"etc/hostname", "etc/resolv.conf", "etc/machine-id", "dev/null"}
    assert not [name for name in names if "mmdebstrap" in name or "__pycache__" in name]
    assert not [name for name in names if name.startswith("var/lib/apt/lists/")]
    assert max(member.mtime for member in members) <= EPOCH


def test_making_it_again_gives_the_same_image(base: BootstrapBase, tmp_path: Path) -> None:
    again = make(tmp_path)
    shutil.rmtree(tmp_path)
    assert (again.image_id, again.diff_id) == (base.image_id, base.diff_id)
    assert again.packages == base.packages
    assert [name for name in base.packages if name.startswith("python3.11=")]


def test_a_suite_that_the_mirror_lacks_is_named(tmp_path: Path) -> None:
    make_arch = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    if not shutil.which("mmdebstrap"):
        lacking("mmdebstrap is not installed: apt-get install mmdebstrap")
    lines: list[str] = []
    with pytest.raises(BootstrapUnfitError, match="nosuchsuite"):
        bootstrap(
            "nosuchsuite", python="3.11", arch=make_arch, store=tmp_path, epoch=EPOCH,
            on_line=lines.append,
        )  # fmt: skip
    assert lines
    assert [path.name for path in (tmp_path / "bases").iterdir()] == [".lock"]
