"""Layouts and archives before those who have to read them: engines, OCI tools, a registry."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from images.assembly.opening import open_image
from images.oci.archive import ArchiveTarget
from images.oci.archive_reader import open_archive
from images.oci.layout import LayoutTarget
from images.oci.layout_reader import open_layout
from images.oci.model import (
    INDEX,
    MANIFEST,
    Descriptor,
    Platform,
    digest_of,
    host_platform,
    to_bytes,
)
from images.oci.sources import Image
from images.oci.tarstream import layer_members
from images.store.store import Store
from tests import need
from tests.kit.oci_images import a_config, a_tar, write_image
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker
NAME = "gpu-provision-test/oci:1"
LIMIT_S = 120


def a_program() -> bytes:
    """A program that needs nothing else: the C library's own `ldconfig` is linked statically."""
    for path in map(Path, ("/sbin/ldconfig.real", "/sbin/ldconfig")):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            return path.read_bytes()
    return need.lacking("there is no ldconfig here that is a program", "apt-get install libc-bin")


@dataclass(frozen=True)
class Written:
    """One image, as a layout and as an archive."""

    layout: Path
    archive: Path
    digest: str
    image_id: str


def files() -> tuple[bytes, ...]:
    return a_tar({"bin/tool": a_program()}), a_tar({"etc/settings": b"on\n"})


def put(target: LayoutTarget | ArchiveTarget, name: str | None, **config: Any) -> Descriptor:
    manifest = write_image(target, files(), config={"Cmd": ["/bin/tool", "--version"]}, **config)
    return target.publish(manifest, MANIFEST, name=name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    place = tmp_path_factory.mktemp("oci")
    arch = host_platform().architecture
    found = set()
    for target in (LayoutTarget.open(place / "l"), ArchiveTarget.open(place / "a.tar")):
        with contextlib.closing(target):
            found.add(put(target, NAME, architecture=arch).digest)
    config = a_config(files(), config={"Cmd": ["/bin/tool", "--version"]}, architecture=arch)
    (digest,) = found
    return Written(place / "l", place / "a.tar", digest, digest_of(config))


def run(*argv: object, env: Mapping[str, str] | None = None) -> str:
    words = [str(one) for one in argv]
    done = run_program(words, env=env, timeout=LIMIT_S)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def names_in(image: Image) -> list[str]:
    return [member.name for layer in image.layers for member, _ in layer_members(layer)]


def test_the_engine_loads_and_runs_the_archive(own_client: Any, written: Written) -> None:
    with written.archive.open("rb") as file:
        (image,) = own_client.images.load(file)
    try:
        assert NAME in image.tags
        if "io.containerd" not in str(own_client.info().get("DriverStatus")):
            assert image.id == written.image_id
        said = own_client.containers.run(NAME, network_mode="none", remove=True)
        assert b"ldconfig" in said
    finally:
        own_client.images.remove(NAME, force=True)


def test_what_the_engine_saves_is_read(own_client: Any, written: Written, tmp_path: Path) -> None:
    with written.archive.open("rb") as file:
        own_client.images.load(file)
    try:
        saved = tmp_path / "saved.tar"
        with saved.open("wb") as out:
            for piece in own_client.images.get(NAME).save(named=True):
                out.write(piece)
    finally:
        own_client.images.remove(NAME, force=True)
    image = open_image(NAME, engine_save=lambda _: saved, platform=host_platform())
    assert image.image_id == written.image_id
    assert names_in(image) == ["bin/tool", "etc/settings"]
    assert names_in(open_archive(saved, NAME)) == ["bin/tool", "etc/settings"]


@pytest.fixture
def podman() -> Iterator[Callable[..., str]]:
    """Podman with a place of its own, which is removed; it takes short paths only."""
    with tempfile.TemporaryDirectory(prefix="p-", ignore_cleanup_errors=True) as place:
        yield from podman_in(Path(place))


def podman_in(place: Path) -> Iterator[Callable[..., str]]:
    program = need.program("podman")
    settings = place / "containers.conf"
    settings.write_text('[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n')
    where = ["--root", place / "root", "--runroot", place / "run"]
    env = {**os.environ, "CONTAINERS_CONF": str(settings)}

    def call(*argv: object) -> str:
        return run(program, *where, "--storage-driver", "vfs", *argv, env=env)

    yield call
    call("rmi", "--all", "--force")


def test_podman_loads_the_archive_and_pulls_the_layout(
    podman: Callable[..., str], written: Written
) -> None:
    for place in (("load", "--input", written.archive), ("pull", f"oci:{written.layout}:{NAME}")):
        podman(*place)
        (image,) = json.loads(podman("image", "ls", "--format", "json"))
        assert image["Id"] == written.image_id[7:]
        if place[0] == "load":
            assert any(name.endswith(NAME) for name in image["Names"])
        podman("rmi", image["Id"])


def test_skopeo_and_umoci_read_both(written: Written, tmp_path: Path) -> None:
    skopeo, umoci = need.program("skopeo"), need.program("umoci")
    for place in (f"oci:{written.layout}:{NAME}", f"oci-archive:{written.archive}"):
        assert run(skopeo, "inspect", "--format", "{{.Digest}}", place).strip() == written.digest
    copy = tmp_path / "copy"
    run(skopeo, "copy", f"oci:{written.layout}:{NAME}", f"oci:{copy}:again")
    assert open_layout(copy, "again").digest == written.digest
    assert run(umoci, "ls", "--layout", written.layout).split() == [NAME]
    run(umoci, "unpack", "--rootless", "--image", f"{written.layout}:{NAME}", tmp_path / "bundle")
    assert (tmp_path / "bundle/rootfs/etc/settings").read_text() == "on\n"
    run(skopeo, "copy", f"docker-archive:{written.archive}", f"oci:{tmp_path}/from-docker:1")
    assert names_in(open_layout(tmp_path / "from-docker")) == ["bin/tool", "etc/settings"]


def test_what_other_tools_write_is_read(written: Written, tmp_path: Path) -> None:
    skopeo, umoci = need.program("skopeo"), need.program("umoci")
    source = f"oci:{written.layout}:{NAME}"
    for kind in ("oci-archive", "docker-archive"):
        archive = tmp_path / f"{kind}.tar"
        run(skopeo, "copy", source, f"{kind}:{archive}:app:1")
        image = open_image(f"{kind}:{archive}", platform=host_platform())
        assert names_in(image) == ["bin/tool", "etc/settings"]
    layout = tmp_path / "umoci"
    run(umoci, "init", "--layout", layout)
    run(umoci, "new", "--image", f"{layout}:empty")
    assert names_in(open_layout(layout, "empty")) == []
    # and what umoci has begun, we go on with
    with contextlib.closing(LayoutTarget.open(layout)) as target:
        put(target, "ours:1")
    assert set(run(umoci, "ls", "--layout", layout).split()) == {"empty", "ours:1"}


def test_a_layer_by_zstd_is_passed_on_and_read(written: Written, tmp_path: Path) -> None:
    layout = tmp_path / "zstd"
    run(
        need.program("skopeo"), "copy", "--dest-compress-format", "zstd", "--dest-compress",
        f"oci:{written.layout}:{NAME}", f"oci:{layout}:1",
    )  # fmt: skip
    image = open_layout(layout)
    assert names_in(image) == ["bin/tool", "etc/settings"]


def test_an_image_of_two_platforms_is_what_skopeo_expects(tmp_path: Path) -> None:
    skopeo = need.program("skopeo")
    digests = {}
    for target in (LayoutTarget.open(tmp_path / "l"), ArchiveTarget.open(tmp_path / "a.tar")):
        with contextlib.closing(target):
            parts = []
            for arch in ("amd64", "arm64"):
                part = put(target, None, architecture=arch)
                digests[arch] = part.digest
                parts.append({**part.to_json(), "platform": Platform(architecture=arch).to_json()})
            document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": parts}
            target.publish(to_bytes(document), INDEX, name=NAME)
    for place in (f"oci:{tmp_path}/l:{NAME}", f"oci-archive:{tmp_path}/a.tar"):
        for arch in ("amd64", "arm64"):
            copy = tmp_path / f"{arch}-{place.partition(':')[0]}"
            run(skopeo, "--override-arch", arch, "copy", place, f"oci:{copy}:1")
            assert open_layout(copy).digest == digests[arch]


def test_a_base_comes_from_a_registry_once(written: Written, registry: str, tmp_path: Path) -> None:
    name = f"{registry}/team/base"
    push = (need.program("skopeo"), "copy", "--dest-tls-verify=false")
    run(*push, f"oci:{written.layout}:{NAME}", f"docker://{name}:1")
    run(*push, "--format", "v2s2", f"oci:{written.layout}:{NAME}", f"docker://{name}:docker")
    with Store.open(tmp_path / "store") as store:
        image = open_image(f"{name}:1", platform=host_platform(), store=store)
        assert (image.digest, image.image_id) == (written.digest, written.image_id)
        assert {layer.mount_from for layer in image.layers} == {"team/base"}
        assert names_in(image) == ["bin/tool", "etc/settings"]
        docker = open_image(f"{name}:docker", platform=host_platform(), store=store)
        assert docker.image_id == written.image_id
        pinned = f"{name}:1@{written.digest}"
        assert open_image(pinned, platform=host_platform(), store=store).layers
    # the network is not needed again
    with Store.open(tmp_path / "store") as store:
        again = open_image(pinned, platform=host_platform(), store=store, offline=True)
        assert names_in(again) == ["bin/tool", "etc/settings"]
        for layer in again.layers:
            kept = store.blob(layer.blob.digest)
            assert kept is not None
            assert hashlib.sha256(kept.read_bytes()).hexdigest() == layer.blob.hex
