"""Logins and authorities serve a build and stay out of all that it leaves behind."""

from __future__ import annotations

import base64
import gzip
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pytest

from tests import need
from tests.engines.lab import Done, World, new_world
from tests.engines.private_engine import PrivateEngine
from tests.engines.small_build import CA_CANARY, PASSWORD, Source
from tests.kit.private_index import SIGNATURE, USER
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker

TAG = "gpu-provision-test:secrets"
CANARIES = {
    "the password as it is": PASSWORD,
    "the password in an address": quote(PASSWORD, safe=""),
    "the login in a header": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
    "the authority's bundle": CA_CANARY,
    "the signature of an address": SIGNATURE,
}
canary = pytest.mark.parametrize(
    "secret", [pytest.param(secret, id=name) for name, secret in CANARIES.items()]
)


@dataclass(frozen=True)
class Left:
    """What a build with secrets left behind."""

    done: Done
    world: World
    labels: str
    history: str
    archive: Path
    agents: frozenset[str]
    lock: Path


@pytest.fixture(scope="module")
def left(own_engine: PrivateEngine, source: Source) -> Iterator[Left]:
    with new_world(DOCKER_HOST=own_engine.url) as world, source.index("x = 1") as index:
        signed = source.signed(index)
        argv = source.words(index, TAG, "--no-verify", "--verbose", "--with", signed)
        done = world.provision(*argv, **source.env(index))
        assert done.code == 0, done.err
        archive = world.place / "saved.tar"
        with own_engine.client() as client:
            image = client.images.get(TAG)
            with archive.open("wb") as file:
                file.writelines(image.save(named=True))
            yield Left(
                done,
                world,
                str(image.attrs),
                str(image.history()),
                archive,
                frozenset(index.logins),
                Path(done.account["lock"]["path"]),
            )
            client.images.remove(TAG, force=True)


def contents(archive: IO[bytes]) -> Iterator[bytes]:
    """Every file of an image archive, and of the layers in it, unpacked where it is packed."""
    with tarfile.open(fileobj=archive) as outer:
        for member in outer:
            file = outer.extractfile(member) if member.isreg() else None
            if file is None:
                continue
            if member.name.endswith(("layer.tar", ".tar")) or "blobs/" in member.name:
                try:
                    yield from contents(file)
                except tarfile.ReadError:  # a blob that is no layer
                    file.seek(0)
                    yield file.read()
                continue
            data = file.read()
            yield member.name.encode() + repr(member.pax_headers).encode() + data
            if data.startswith(b"\x1f\x8b"):
                try:
                    yield gzip.decompress(data)
                except (OSError, EOFError):  # it only looks like one
                    continue


@pytest.fixture(scope="module")
def image_bytes(left: Left) -> bytes:
    with left.archive.open("rb") as file:
        return b"\n".join(contents(file))


def test_the_secrets_were_needed_and_used(left: Left) -> None:
    assert "uv" in left.agents


def test_the_image_was_searched_whole(image_bytes: bytes) -> None:
    assert b"pylock" in image_bytes
    assert b"x = 1" in image_bytes


def test_a_lock_alone_says_what_the_server_of_a_signed_wheel_lacks(
    left: Left, own_engine: PrivateEngine, source: Source
) -> None:
    with new_world(DOCKER_HOST=own_engine.url) as world:
        bundle = ("--ca-bundle", str(source.authority.bundle))
        lock = ("--lock", str(left.lock), "--tag", f"{TAG}-unsigned", "--no-verify")
        done = world.provision("build", "--builder", "docker", *lock, *bundle)
    assert done.code == 5, done.err
    assert "does not hand it over (HTTP 403) at the address without login and query" in done.err
    assert "--with 'signed @ https://" in done.err


@canary
def test_a_secret_is_in_no_layer(image_bytes: bytes, secret: str) -> None:
    assert secret.encode() not in image_bytes


@canary
def test_a_secret_is_in_no_label_and_no_history(left: Left, secret: str) -> None:
    assert secret not in left.labels + left.history


@canary
def test_a_secret_is_in_no_line_that_was_shown(left: Left, secret: str) -> None:
    assert "/opt/uv/bin/uv" in left.done.err  # the builder's own lines were shown
    assert secret not in left.done.out + left.done.err


@canary
def test_a_secret_is_in_no_file_that_is_kept(left: Left, secret: str) -> None:
    assert list((left.world.cache / "gpu-provision" / "locks").iterdir())
    assert not holding(secret, left.world.cache, left.world.temporary)


@canary
def test_a_secret_is_nowhere_on_the_engines_disk(
    left: Left, own_engine: PrivateEngine, secret: str
) -> None:
    del left
    assert not holding(secret, own_engine.data)


def holding(secret: str, *places: Path) -> str:
    """The files that hold a text."""
    grep = shutil.which("grep") or need.program("grep")
    done: Any = run_program([grep, "-rlaF", "--", secret, *map(str, places)])
    return str(done.stdout)
