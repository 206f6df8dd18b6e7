"""An image by what a person calls it, and a registry's image by way of the store."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from images.assembly.base import registry_image
from images.assembly.opening import ImageLocation, open_image, parse_place
from images.errors import Failure
from images.oci.archive import ArchiveTarget
from images.oci.errors import (
    DigestMismatchError,
    ImagePlaceError,
    ImageUnreadableError,
    PlatformMissingError,
)
from images.oci.layout import LayoutTarget
from images.oci.model import (
    CONFIG,
    DOCKER_CONFIG,
    DOCKER_INDEX,
    DOCKER_LAYER_GZIP,
    DOCKER_MANIFEST,
    INDEX,
    LAYER_GZIP,
    LAYER_ZSTD,
    MANIFEST,
    Platform,
    descriptor_of,
    digest_of,
    host_platform,
    platform_of,
    read_object,
    to_bytes,
)
from images.oci.reference import Reference, parse_reference
from images.oci.tarstream import layer_members
from images.store.store import Store
from tests.kit.cases import cases
from tests.kit.oci_images import AMD64, TARS, a_config, a_manifest, in_members, write_image

ARM64 = Platform(architecture="arm64")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a layout, an archive and other things in it."""
    monkeypatch.chdir(tmp_path)
    for target in (LayoutTarget.open(Path("lay")), ArchiveTarget.open(Path("app.tar"))):
        with contextlib.closing(target):
            target.publish(write_image(target), MANIFEST, name="app:1")
    Path("plain").mkdir()
    return tmp_path


@cases(
    "text place",
    ("a layout", "oci:lay", ImageLocation(kind="layout", path=Path("lay"))),
    ("its image", "oci:lay:app:1", ImageLocation(kind="layout", path=Path("lay"), name="app:1")),
    ("a name that is a whole reference", "oci:/x/y:r.example:5000/a:1",
     ImageLocation(kind="layout", path=Path("/x/y"), name="r.example:5000/a:1")),
    ("a directory that is one", "lay", ImageLocation(kind="layout", path=Path("lay"))),
    ("a path to one", "./lay", ImageLocation(kind="layout", path=Path("lay"))),
    ("both", "lay:app:1", ImageLocation(kind="layout", path=Path("lay"), name="app:1")),
    ("a tar file", "app.tar", ImageLocation(kind="archive", path=Path("app.tar"))),
    ("an archive's image", "docker-archive:x.tar:app:1",
     ImageLocation(kind="archive", path=Path("x.tar"), name="app:1")),
    ("a lost path", "./gone.tar", ImageLocation(kind="archive", path=Path("gone.tar"))),
    ("an engine's", "docker-daemon:a:1", ImageLocation(kind="engine", name="a:1")),
    ("a registry's", "docker://a:1", ImageLocation(kind="registry", name="a:1")),
    ("an image id", "sha256:0123456789ab",
     ImageLocation(kind="engine", name="sha256:0123456789ab")),
    ("a directory that is none", "plain", ImageLocation(kind="any", name="plain")),
    ("a name", "debian:12-slim", ImageLocation(kind="any", name="debian:12-slim")),
    ("a long name", "x" * 5000, ImageLocation(kind="any", name="x" * 5000)),
    ("a name with a zero", "a\0b", ImageLocation(kind="any", name="a\0b")),
)  # fmt: skip
def test_what_is_meant(here: Path, text: str, place: ImageLocation) -> None:
    del here
    assert parse_place(text) == place


def test_a_path_with_a_colon_is_taken_as_it_is_there(here: Path) -> None:
    (here / "lay").rename(here / "lay:v1")
    assert parse_place("oci:lay:v1").path == Path("lay:v1")
    assert open_image("oci:lay:v1").layers


@pytest.mark.parametrize(
    "text", ["oci:lay", "lay", "oci:lay:app:1", "oci-archive:app.tar", "docker-archive:app.tar"]
)
def test_an_image_on_this_disk_is_opened(here: Path, text: str) -> None:
    del here
    image = open_image(text, platform=AMD64)
    assert [m.name for layer in image.layers for m, _ in layer_members(layer)] == [
        "bin/tool",
        "etc/settings",
    ]


@cases(
    "text words",
    ("nothing", "oci:gone", "There is no directory gone"),
    ("no file", "./gone.tar", "There is no file gone.tar"),
    ("another directory", "oci:plain", "no file oci-layout"),
    ("a file for a directory", "oci:app.tar", "oci-archive:app.tar"),
    ("a directory for a file", "oci-archive:lay", "oci:lay"),
    ("no path", "oci:", "names no path"),
    ("nothing at all", "", "names no image"),
    ("no engine", "docker-daemon:app:1", "is not there to be asked"),
    ("an id, no engine", "sha256:0123456789ab", "is not there to be asked"),
)
def test_what_is_not_there_is_told(here: Path, text: str, words: str) -> None:
    del here
    with pytest.raises(ImagePlaceError) as caught:
        open_image(text)
    assert words in f"{caught.value.message} {caught.value.fix}"
    assert caught.value.exit_code == 2


def test_an_engines_image_is_read_from_what_it_saves(here: Path) -> None:
    asked = []

    def save(name: str) -> Path | None:
        asked.append(name)
        return here / "app.tar" if name == "app:1" else None

    image = open_image("app:1", engine_save=save)
    assert (image.shown, image.platform) == ("app:1", AMD64)
    with pytest.raises(ImagePlaceError, match="has no such image"):
        open_image("docker-daemon:other:1", engine_save=save)
    assert asked == ["app:1", "other:1"]


def test_the_words_for_this_machine() -> None:
    assert platform_of("x86_64") == platform_of("amd64") == AMD64
    assert platform_of("aarch64") == ARM64
    assert host_platform().os == "linux"


# -- a registry


@dataclass
class FakeRepository:
    """A registry's repository in memory, checked by digest as the real reader is."""

    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    root: bytes = b""
    asked: list[str] = field(default_factory=list)
    tag: str = "r.example/team/base:1"

    @property
    def reference(self) -> Reference:
        return parse_reference(self.tag)

    def manifest(self, reference: str | None = None) -> Answer:
        digest = reference or self.reference.digest or digest_of(self.root)
        self.asked.append(f"manifest {digest[7:13]}")
        content, media_type = self.manifests[digest]
        return Answer(content, media_type, digest)

    def blob(self, digest: str, size: int) -> Generator[bytes, None, None]:
        self.asked.append(f"blob {digest[7:13]}")
        content = self.blobs[digest]
        assert len(content) == size
        yield content

    def add(self, content: bytes, media_type: str) -> bytes:
        self.manifests[digest_of(content)] = (content, media_type)
        self.root = content
        return content


@dataclass
class Answer:
    content: bytes
    media_type: str
    digest: str


def a_repository(
    *, docker: bool = False, layer: str = LAYER_GZIP, architecture: str = "amd64"
) -> FakeRepository:
    found = FakeRepository()
    raw = a_config(architecture=architecture)
    packed = [in_members(tar) for tar in TARS]
    found.blobs = {digest_of(content): content for content in (raw, *packed)}
    layers = [descriptor_of(DOCKER_LAYER_GZIP if docker else layer, one) for one in packed]
    kind = DOCKER_MANIFEST if docker else MANIFEST
    described = descriptor_of(DOCKER_CONFIG if docker else CONFIG, raw)
    found.add(a_manifest(described, layers, mediaType=kind), kind)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as found:
        yield found


@pytest.mark.parametrize("docker", [False, True], ids=["OCI's types", "Docker's types"])
def test_a_registrys_image_is_asked_for_once(store: Store, docker: bool) -> None:  # noqa: FBT001
    repository = a_repository(docker=docker)
    repository.tag = f"r.example/team/base:1@{digest_of(repository.root)}"
    image = registry_image(repository, AMD64, store)
    assert len(repository.asked) == 2  # the manifest and the configuration: no layer yet
    assert {(layer.registry, layer.mount_from) for layer in image.layers} == {
        ("r.example", "team/base")
    }
    for _ in range(2):
        assert [m.name for m, _ in layer_members(image.layers[0])] == ["bin/tool"]
    assert len(repository.asked) == 3
    again = registry_image(repository, AMD64, store)
    assert (again.digest, again.layers[1].blob) == (image.digest, image.layers[1].blob)
    assert len(repository.asked) == 3  # all of it was in the store


@pytest.mark.parametrize("kind", [INDEX, DOCKER_INDEX])
def test_of_several_platforms_the_wanted_one_is_taken(store: Store, kind: str) -> None:
    repository = a_repository()
    parts = []
    for name in ("arm64", "amd64"):
        other = a_repository(architecture=name)
        repository.manifests |= other.manifests
        repository.blobs |= other.blobs
        part = descriptor_of(MANIFEST, other.root, platform=Platform(architecture=name))
        parts.append(part.to_json())
    attestation = {**parts[0], "platform": {"architecture": "unknown", "os": "unknown"}}
    index = {"schemaVersion": 2, "mediaType": kind, "manifests": [attestation, *parts]}
    repository.add(to_bytes(index), kind)
    assert registry_image(repository, ARM64, store).platform == ARM64
    assert registry_image(repository, AMD64, None).platform == AMD64
    with pytest.raises(PlatformMissingError, match=r"for: linux/arm64, linux/amd64"):
        registry_image(repository, Platform(architecture="s390x"), store)


def test_another_architecture_is_refused(store: Store) -> None:
    with pytest.raises(PlatformMissingError, match="linux/arm64"):
        registry_image(a_repository(architecture="arm64"), AMD64, store)


@cases(
    "kind words",
    ("a foreign layer", "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
     "does not keep"),
    ("a layer that may not be given away",
     "application/vnd.oci.image.layer.nondistributable.v1.tar", "does not keep"),
    ("something else", "application/x-helm-chart", "unsupported type"),
)  # fmt: skip
def test_layers_that_are_none_are_refused(store: Store, kind: str, words: str) -> None:
    with pytest.raises(ImageUnreadableError, match=words):
        registry_image(a_repository(layer=kind), AMD64, store)


def test_a_zstd_layer_is_passed_on_as_it_is(store: Store) -> None:
    image = registry_image(a_repository(layer=LAYER_ZSTD), AMD64, store)
    assert b"".join(image.layers[0].stream()) == in_members(TARS[0])


def test_dockers_first_schema_is_refused(store: Store) -> None:
    repository = FakeRepository()
    content = to_bytes({"schemaVersion": 1, "name": "x", "fsLayers": []})
    repository.add(content, "application/vnd.docker.distribution.manifest.v1+prettyjws")
    with pytest.raises(ImageUnreadableError, match="first schema"):
        registry_image(repository, AMD64, store)


def test_a_manifest_without_a_type_is_known_by_its_content(store: Store) -> None:
    repository = a_repository()
    document = repository.root.replace(to_bytes({"mediaType": MANIFEST})[1:-1] + b",", b"", 1)
    assert b"manifest.v1" not in document
    repository.add(document, MANIFEST)
    repository.tag = f"r.example/team/base@{digest_of(document)}"
    for _ in range(2):  # the second time it comes from the store, which knows no types
        assert registry_image(repository, AMD64, store).digest == digest_of(document)


@pytest.mark.parametrize("keep", [True, False], ids=["by the store", "without a store"])
def test_a_registry_that_gives_other_bytes_is_refused(store: Store, keep: bool) -> None:  # noqa: FBT001
    repository = a_repository()
    image = registry_image(repository, AMD64, store if keep else None)
    layer = image.layers[0].blob
    repository.blobs[layer.digest] = bytes(layer.size)
    with pytest.raises(DigestMismatchError):
        list(image.layers[0].stream())
    assert store.blob(layer.digest) is None


def test_a_damaged_blob_in_the_store_is_not_used(store: Store) -> None:
    repository = a_repository()
    image = registry_image(repository, AMD64, store)
    list(image.layers[0].stream())
    kept = store.blob(image.layers[0].blob.digest)
    assert kept is not None
    kept.chmod(0o600)
    kept.write_bytes(bytes(image.layers[0].blob.size))
    with pytest.raises(DigestMismatchError):
        list(image.layers[0].stream())


def test_offline_only_what_is_in_the_store_is_there(store: Store) -> None:
    repository = a_repository()
    name = f"r.example/team/base:1@{digest_of(repository.root)}"
    with pytest.raises(Failure, match="--offline") as caught:
        open_image(name, platform=AMD64, store=store, offline=True)
    assert caught.value.code == "offline"
    repository.tag = name
    registry_image(repository, AMD64, store)
    image = open_image(name, platform=AMD64, store=store, offline=True)
    with pytest.raises(Failure, match="bytes"):
        list(image.layers[0].stream())


def test_gzip_that_lies_about_its_layer_is_refused(store: Store) -> None:
    """The digest holds and the content is another: only the diffID can tell."""
    repository = a_repository()
    packed = gzip.compress(TARS[1], mtime=0)
    document = a_manifest(
        descriptor_of(CONFIG, a_config(TARS[:1])), [descriptor_of(LAYER_GZIP, packed)]
    )
    repository.blobs |= {digest_of(one): one for one in (packed, a_config(TARS[:1]))}
    repository.add(document, MANIFEST)
    with pytest.raises(DigestMismatchError, match="configuration"):
        list(layer_members(registry_image(repository, AMD64, store).layers[0]))


def test_half_a_character_is_read_as_engines_read_it() -> None:
    found = read_object(b'{"a\\ud800": ["\\udfff", {"b": "\\ud83d\\ude00 \\\\ud800"}]}', "it")
    assert found == {"a\ufffd": ["\ufffd", {"b": "\U0001f600 \\ud800"}]}
    with pytest.raises(ImageUnreadableError):
        read_object(b'{"\\u0041": ' + b"[" * 900 + b"]" * 900 + b"}" * 2, "it")
