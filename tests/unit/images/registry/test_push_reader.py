"""Reading manifests and blobs: checked, gone on with where it broke, from mirrors first."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.errors import Failure
from images.net.http import HttpClient
from images.net.retries import Retries
from images.oci.errors import DigestMismatchError
from images.oci.model import INDEX, MANIFEST, descriptor_of, to_bytes
from images.oci.reference import parse_reference
from images.registry.auth import Login
from images.registry.errors import ImageNotFoundError, RegistryAnswerError, RegistryUnreachableError
from images.registry.mirrors import Mirror, Mirrors, parse_mirror, read_mirrors
from images.registry.reader import RepositoryReader
from images.registry.session import RepositorySession
from tests.kit.cases import cases
from tests.kit.fake_push_registry import PushRegistry, digest_of
from tests.unit.images.registry.test_push import BRIEF, HASTY, MB

CONTENT = hashlib.sha256(b"x").digest() * (3 * MB // 32)
DIGEST = digest_of(CONTENT)
IMAGE = to_bytes({"schemaVersion": 2, "mediaType": MANIFEST})


@pytest.fixture
def server() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    fill(fake)
    yield fake
    fake.close()


def fill(fake: PushRegistry) -> None:
    fake.blobs["team/app", DIGEST] = CONTENT
    fake.manifests["team/app", "1"] = fake.manifests["team/app", digest_of(IMAGE)] = (
        IMAGE,
        MANIFEST,
    )


@pytest.fixture
def reader(server: PushRegistry) -> Iterator[RepositoryReader]:
    opened = open_reader(server)
    yield opened
    opened.close()


def open_reader(server: PushRegistry, retries: Retries = HASTY) -> RepositoryReader:
    return RepositoryReader.open(f"{server.address}/team/app:1", login=Login, retries=retries)


def read(reader: RepositoryReader) -> bytes:
    return b"".join(reader.blob(DIGEST, len(CONTENT)))


class Truncating(PushRegistry):
    """Breaks the connection after so many bytes of a blob, for each number in turn."""

    def __init__(self, cuts: list[int]) -> None:
        super().__init__()
        self.cuts = cuts
        self.ignores_ranges = False

    def send(self, handler, status, body, headers):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        if "/blobs/" not in handler.path or status not in {200, 206} or not self.cuts:
            return super().send(handler, status, body, headers)
        cut = self.cuts.pop(0)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:cut])
        handler.close_connection = True  # without a reset, which would take what was sent with it
        return None

    def _blob(self, seen, repository, digest):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if self.ignores_ranges:
            seen.headers.pop("range", None)
        return super()._blob(seen, repository, digest)


# --- manifests ---


@pytest.mark.parametrize("name", [None, "1", digest_of(IMAGE)])
def test_a_manifest_is_read(reader: RepositoryReader, name: str | None) -> None:
    content, media_type, digest = reader.manifest(name)
    assert (content, media_type, digest) == (IMAGE, MANIFEST, digest_of(IMAGE))


def test_the_type_is_the_answers_where_the_manifest_has_none(
    server: PushRegistry, reader: RepositoryReader
) -> None:
    server.manifests["team/app", "2"] = (b"{}", f"{INDEX}; charset=utf-8")
    assert reader.manifest("2").media_type == INDEX


def test_a_manifest_that_is_not_there_is_not_found(reader: RepositoryReader) -> None:
    with pytest.raises(ImageNotFoundError, match="manifest absent"):
        reader.manifest("absent")


def test_a_manifest_of_another_digest_is_not_used(
    server: PushRegistry, reader: RepositoryReader
) -> None:
    server.manifests["team/app", digest_of(b"x")] = (IMAGE, MANIFEST)
    with pytest.raises(DigestMismatchError):
        reader.manifest(digest_of(b"x"))


def test_a_manifest_of_another_digest_than_announced_is_not_used(
    server: PushRegistry, reader: RepositoryReader
) -> None:
    told = {"Docker-Content-Digest": DIGEST}
    server.rule("GET", "manifests", status=200, headers=told, body=IMAGE)
    with pytest.raises(DigestMismatchError):
        reader.manifest()


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b" " * (5 * MB), b"[" * 100_000], ids=lambda b: str(b[:6])
)
def test_what_is_no_manifest_is_refused(
    server: PushRegistry, reader: RepositoryReader, body: bytes
) -> None:
    server.rule("GET", "manifests", status=200, body=body)
    with pytest.raises(RegistryAnswerError):
        reader.manifest()


# --- blobs ---


def test_a_blob_is_read_in_pieces(reader: RepositoryReader) -> None:
    pieces = list(reader.blob(DIGEST, len(CONTENT)))
    assert b"".join(pieces) == CONTENT
    assert max(map(len, pieces)) <= MB


def test_an_empty_blob_is_read(server: PushRegistry, reader: RepositoryReader) -> None:
    server.blobs["team/app", digest_of(b"")] = b""
    assert list(reader.blob(digest_of(b""), 0)) == []


def test_a_blob_is_read_from_its_middle(reader: RepositoryReader) -> None:
    begin = 1_000_000
    rest = reader.blob(DIGEST, len(CONTENT), offset=begin, hashed=hashlib.sha256(CONTENT[:begin]))
    assert b"".join(rest) == CONTENT[begin:]


def test_another_begin_is_found_out_at_the_end(reader: RepositoryReader) -> None:
    rest = reader.blob(DIGEST, len(CONTENT), offset=5, hashed=hashlib.sha256(b"other"))
    with pytest.raises(DigestMismatchError):
        list(rest)


@pytest.mark.parametrize("digest", ["sha256:x", "../../etc/passwd", f"sha256:{'A' * 64}"])
def test_a_blob_has_a_digest(reader: RepositoryReader, digest: str) -> None:
    with pytest.raises(ValueError, match="sha256"):
        list(reader.blob(digest, 5))


@cases(
    "content expected",
    ("other bytes", CONTENT[:-1] + b"?", DigestMismatchError),
    ("more bytes", CONTENT + b"?", DigestMismatchError),
    ("fewer bytes", CONTENT[:-1], RegistryUnreachableError),
    ("none", b"", RegistryUnreachableError),
)
def test_other_bytes_are_found_out(
    server: PushRegistry, reader: RepositoryReader, content: bytes, expected: type[Failure]
) -> None:
    server.blobs["team/app", DIGEST] = content
    taken: list[int] = []
    with pytest.raises(expected):
        taken.extend(len(piece) for piece in reader.blob(DIGEST, len(CONTENT)))
    assert sum(taken) <= len(CONTENT)


def test_a_blob_that_is_not_there_is_not_found(reader: RepositoryReader) -> None:
    with pytest.raises(ImageNotFoundError, match="blob unknown"):
        list(reader.blob(digest_of(b"absent"), 6))


def test_a_storage_elsewhere_sees_no_login(server: PushRegistry) -> None:
    server.realm = f"http://{server.address}/token"
    server.storage = f"http://localhost:{server.port}"
    reader = RepositoryReader.open(
        f"{server.address}/team/app:1", login=lambda: Login("me", "s3cret-word"), retries=HASTY
    )
    assert read(reader) == CONTENT
    at_storage = [one for one in server.seen if one.path.startswith("/storage/")]
    assert [one.authorization for one in at_storage] == [""]
    reader.close()


def test_redirects_end(server: PushRegistry, reader: RepositoryReader) -> None:
    server.rule("GET", "blobs", status=307, headers={"Location": "?again"}, times=99)
    with pytest.raises(RegistryAnswerError, match="redirects more than"):
        read(reader)


def test_a_redirect_without_encryption_is_not_followed(
    server: PushRegistry, reader: RepositoryReader
) -> None:
    far = {"Location": "http://storage.invalid/x?sig=1"}
    server.rule("GET", "blobs", status=307, headers=far)
    with pytest.raises(RegistryAnswerError, match="not encrypted"):
        read(reader)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_blob_is_asked_for_again(
    server: PushRegistry, reader: RepositoryReader, status: int
) -> None:
    server.rule("GET", "blobs", status=status, times=2)
    assert read(reader) == CONTENT


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_blob_is_not_waited_for_for_ever(server: PushRegistry, how: str) -> None:
    reader = open_reader(server, BRIEF)
    server.rule("GET", "blobs", times=99, **{how: True})
    started = time.monotonic()
    with pytest.raises(RegistryUnreachableError, match="in time"):
        read(reader)
    assert time.monotonic() - started < 60
    reader.close()


def test_a_blob_that_drips_is_given_up() -> None:
    class Dripping(PushRegistry):
        def send(self, handler, status, body, _headers):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            while not self.released.wait(0.05):
                handler.wfile.write(b"x")

    server = Dripping()
    fill(server)
    reader = open_reader(server, BRIEF)
    started = time.monotonic()
    with pytest.raises(RegistryUnreachableError, match="bytes had arrived"):
        read(reader)
    assert time.monotonic() - started < 60
    reader.close()
    server.close()


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, len(CONTENT)), max_size=6), ignores=st.booleans())
def test_whatever_breaks_what_is_read_is_whole(cuts: list[int], ignores: bool) -> None:  # noqa: FBT001
    server = Truncating(list(cuts))
    server.ignores_ranges = ignores
    fill(server)
    reader = open_reader(server, Retries(tries=9, first_wait_s=0, answer_s=5))
    assert read(reader) == CONTENT
    reader.close()
    server.close()


def test_a_blob_that_breaks_off_again_and_again_is_given_up() -> None:
    server = Truncating([10] * 99)
    fill(server)
    reader = open_reader(server)
    with pytest.raises(RegistryUnreachableError, match=rf"30 of {len(CONTENT)} bytes had arrived"):
        read(reader)
    reader.close()
    server.close()


# --- mirrors ---


def mirrored(server: PushRegistry, *mirrors: PushRegistry) -> RepositoryReader:
    client = HttpClient(retries=HASTY)

    def session(fake: PushRegistry) -> RepositorySession:
        reference = parse_reference(f"{fake.address}/team/app:1")
        return RepositorySession(reference, client, purpose="pull", login=Login)

    return RepositoryReader(session(server), [session(one) for one in mirrors])


@pytest.fixture
def mirror() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    fill(fake)
    yield fake
    fake.close()


def test_a_mirror_is_asked_first(server: PushRegistry, mirror: PushRegistry) -> None:
    reader = mirrored(server, mirror)
    assert reader.manifest().content == IMAGE
    assert read(reader) == CONTENT
    assert not server.seen
    assert reader.notes == []
    reader.close()


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_mirror_that_does_not_have_it_is_passed_over(
    server: PushRegistry, mirror: PushRegistry, status: int
) -> None:
    mirror.rule("*", "", status=status, times=99)
    reader = mirrored(server, mirror)
    assert reader.manifest().content == IMAGE
    assert read(reader) == CONTENT
    assert len(reader.notes) == 2
    assert mirror.address in reader.notes[0]
    reader.close()


def test_what_a_mirror_began_the_registry_ends(server: PushRegistry) -> None:
    broken = Truncating([MB] + [0] * 99)
    fill(broken)
    reader = mirrored(server, broken)
    assert read(reader) == CONTENT
    ranges = [one.headers.get("range") for one in server.seen]
    assert ranges == [f"bytes={MB}-{len(CONTENT) - 1}"]
    reader.close()
    broken.close()


def test_other_bytes_of_a_mirror_are_not_used(server: PushRegistry, mirror: PushRegistry) -> None:
    mirror.blobs["team/app", DIGEST] = CONTENT[:-1] + b"?"
    reader = mirrored(server, mirror)
    with pytest.raises(DigestMismatchError):
        read(reader)
    reader.close()


@cases(
    "text expected",
    ("an address", "https://mirror.example", Mirror(registry="mirror.example")),
    ("with a path", "mirror.example:5000/hub/", Mirror(registry="mirror.example:5000", path="hub")),
    ("this machine", "http://localhost:5000", Mirror(registry="localhost:5000")),
    ("not encrypted", "http://mirror.example", None),
    ("another scheme", "ftp://mirror.example", None),
    ("no host", "mirror", None),
    ("nothing", "", None),
    ("with a login", "https://user:pw@mirror.example", None),
)
def test_the_place_of_a_mirror_is_read(text: str, expected: Mirror | None) -> None:
    assert parse_mirror(text) == expected


def test_a_mirror_has_the_image_below_its_path() -> None:
    found = Mirror(registry="m.example", path="hub").of(parse_reference("debian:12"))
    assert str(found) == "m.example/hub/library/debian:12"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> Mirrors:
    monkeypatch.delenv("CONTAINERS_REGISTRIES_CONF", raising=False)
    return read_mirrors(root, root / "home/me")


def test_the_mirrors_of_this_hosts_engines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"registry-mirrors": ["https://a.example", "http://far.example", 3]}
    put(tmp_path, "etc/docker/daemon.json", json.dumps(listed))
    put(tmp_path, "etc/containers/registries.conf", """
        [[registry]]
        location = "docker.io"
        [[registry.mirror]]
        location = "b.example/hub"
        [[registry]]
        prefix = "quay.io/team"
        location = "quay.io/team"
        [[registry.mirror]]
        location = "c.example"
    """)  # fmt: skip
    put(tmp_path, "etc/containers/registries.conf.d/50.conf", """
        [[registry]]
        prefix = "quay.io"
        [[registry.mirror]]
        location = "a.example"
    """)  # fmt: skip
    assert found_in(tmp_path, monkeypatch) == {
        "docker.io": (Mirror(registry="a.example"), Mirror(registry="b.example", path="hub")),
        "quay.io": (Mirror(registry="a.example"),),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/docker/daemon.json", "not JSON"),
        ("etc/docker/daemon.json", "[]"),
        ("etc/docker/daemon.json", '{"registry-mirrors": "x"}'),
        ("etc/containers/registries.conf", "registry = 1"),
        ("etc/containers/registries.conf", "[[registry]]\nlocation = 1\nmirror = 2"),
        ("etc/containers/registries.conf", "[[registry]]\nlocation = 'a'\nmirror = [1, {}]"),
        ("etc/containers/registries.conf", "= broken"),
    ],
)
def test_settings_that_are_broken_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    put(tmp_path, name, text)
    assert found_in(tmp_path, monkeypatch) == {}


def test_a_registry_on_this_machine_has_no_mirrors(server: PushRegistry) -> None:
    table = {server.address: (Mirror(registry="m.example"),)}
    reader = RepositoryReader.open(
        f"{server.address}/team/app:1", login=Login, mirrors=table, retries=HASTY
    )
    assert reader.manifest().content == IMAGE
    assert reader.notes == []
    reader.close()


def test_a_descriptor_of_the_bytes_is_theirs() -> None:
    assert descriptor_of("x", CONTENT).digest == DIGEST
