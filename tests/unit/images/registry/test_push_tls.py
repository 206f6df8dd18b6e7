"""Pushing with encryption, through a proxy: the same as without, and only to whom is trusted."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from images.net.errors import BadCaBundle
from images.net.retries import Retries
from images.oci.model import MANIFEST
from images.registry.auth import Login
from images.registry.errors import RegistryAnswerError, RegistryUnreachableError
from images.registry.reader import RepositoryReader
from images.registry.target import RegistryTarget
from tests.kit.fake_push_registry import PushRegistry
from tests.kit.package_server import Proxy
from tests.kit.private_index import Authority, make_authority
from tests.unit.images.registry.test_push import BRIEF, HASTY, MB, Layer, has, write

HOST = "registry.example"


@dataclass
class Place:
    registry: PushRegistry
    proxy: Proxy
    bundle: Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"), "here", HOST)


@pytest.fixture
def place(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.chain)
    registry = PushRegistry(context)
    proxy = Proxy(cast("Any", registry))
    for name in ("no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://{proxy.host}")
    yield Place(registry, proxy, authority.bundle)
    proxy.close()
    registry.close()


def opened(place: Place, retries: Retries = HASTY, **more: Any) -> RegistryTarget:
    more = {"ca_bundle": place.bundle, "login": Login, **more}
    return RegistryTarget.open(f"{HOST}/team/app:1", retries=retries, **more)


def test_an_image_is_pushed_and_read_through_a_proxy(place: Place) -> None:
    target = opened(place)
    layer = Layer(3 * MB)
    place.registry.rule("PATCH", "uploads", cut_after=MB)
    write(target, layer)
    target.publish(b"{}", MANIFEST, name="1")
    assert has(place.registry, layer)
    assert set(place.proxy.seen) == {f"{HOST}:443"}
    target.close()
    reader = RepositoryReader.open(
        f"{HOST}/team/app:1", ca_bundle=place.bundle, login=Login, mirrors={}, retries=HASTY
    )
    assert reader.manifest().content == b"{}"
    assert b"".join(reader.blob(layer.blob.digest, layer.blob.size)) == layer.content
    reader.close()


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_nothing_waits_for_ever(place: Place, how: str) -> None:
    target = opened(place, BRIEF)
    place.registry.rule("PATCH", "uploads", times=99, **{how: True})
    started = time.monotonic()
    with pytest.raises(RegistryUnreachableError, match="in time"):
        write(target, Layer(MB))
    assert time.monotonic() - started < 60
    target.close()


def test_a_registry_that_nobody_vouches_for_is_not_pushed_to(place: Place) -> None:
    target = opened(place, ca_bundle=None)
    with pytest.raises(RegistryUnreachableError, match="does not trust") as caught:
        write(target, Layer(5))
    assert "--ca-bundle" in caught.value.fix
    assert not place.registry.seen
    assert len(place.proxy.seen) == 1  # another try would not make it trustworthy
    target.close()


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_the_way_does_not_leave_encryption(place: Place, method: str) -> None:
    target = opened(place)
    away = {"Location": f"http://{HOST}/v2/team/app/blobs/uploads/1?_state=secret"}
    place.registry.rule(method, "uploads", status=202, headers=away)
    with pytest.raises(RegistryAnswerError, match="not encrypted") as caught:
        write(target, Layer(5))
    assert "X-Forwarded-Proto" in caught.value.fix
    assert "secret" not in caught.value.message
    target.close()


def test_a_bundle_that_is_none_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificates")
    with pytest.raises(BadCaBundle):
        RegistryTarget.open(f"{HOST}/team/app:1", ca_bundle=tmp_path / "ca.pem")
