"""The registry client against a real registry."""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest
import urllib3

from images.oci.reference import parse_reference
from images.registry.auth import Login
from images.registry.digest import resolve_digest
from images.registry.errors import ImageNotFoundError
from tests import need

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


class Pushed:
    """A registry and what was pushed to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.http = urllib3.PoolManager(retries=False)

    def blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        start = self.http.request("POST", f"http://{self.address}/v2/t/a/blobs/uploads/")
        location = start.headers["Location"]
        done = self.http.request("PUT", f"{location}&digest={digest}", body=data)
        assert done.status == 201, done.data
        return digest

    def manifest(self, tag: str, kind: str, document: object) -> str:
        data = json.dumps(document).encode()
        url = f"http://{self.address}/v2/t/a/manifests/{tag}"
        done = self.http.request("PUT", url, body=data, headers={"Content-Type": kind})
        assert done.status == 201, done.data
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def image(self, tag: str, arch: str) -> tuple[str, int]:
        config = json.dumps({"os": "linux", "architecture": arch}).encode()
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": self.blob(config),
                "size": len(config),
            },
            "layers": [],
        }
        return self.manifest(tag, MANIFEST_TYPE, document), len(json.dumps(document))


@pytest.fixture(scope="module")
def pushed(registry: str) -> Pushed:
    return Pushed(registry)


def no_login() -> Login:
    return Login()


def test_an_image_has_the_digest_that_was_pushed(pushed: Pushed) -> None:
    digest, _ = pushed.image("one", "amd64")
    found = resolve_digest(f"{pushed.address}/t/a:one", arch="amd64", login=no_login)
    assert found == digest


def test_docker_itself_finds_the_same_digest(pushed: Pushed) -> None:
    skopeo = need.program("skopeo")
    pushed.image("two", "arm64")
    name = f"{pushed.address}/t/a:two"
    shown = subprocess.run(
        [skopeo, "inspect", "--tls-verify=false", "--raw", f"docker://{name}"],
        check=True, capture_output=True,
    )  # fmt: skip
    expected = f"sha256:{hashlib.sha256(shown.stdout).hexdigest()}"
    assert resolve_digest(name, arch="aarch64", login=no_login) == expected


def test_an_index_is_pinned_and_its_platforms_are_said(pushed: Pushed) -> None:
    digest, size = pushed.image("three", "arm64")
    entry = {
        "mediaType": MANIFEST_TYPE,
        "digest": digest,
        "size": size,
        "platform": {"os": "linux", "architecture": "arm64"},
    }
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    index = pushed.manifest("multi", INDEX_TYPE, document)
    name = f"{pushed.address}/t/a:multi"
    assert resolve_digest(name, arch="arm64", login=no_login) == index
    assert resolve_digest(f"{name}@{index}", arch="arm64", login=no_login) == index
    with pytest.raises(ImageNotFoundError, match="it exists for: linux/arm64"):
        resolve_digest(name, arch="amd64", login=no_login)


@pytest.mark.parametrize("name", ["t/a:absent", "t/other:one", f"t/a@sha256:{'0' * 64}"])
def test_what_was_not_pushed_is_not_found(pushed: Pushed, name: str) -> None:
    with pytest.raises(ImageNotFoundError) as caught:
        resolve_digest(f"{pushed.address}/{name}", arch="amd64", login=no_login)
    assert "UNKNOWN" in caught.value.detail


def test_the_name_is_read_as_a_local_one(pushed: Pushed) -> None:
    assert parse_reference(f"{pushed.address}/t/a").is_loopback
