"""The host's proxies and certificates, on the way to a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from images.net.connections import proxy_for, tls_context
from images.net.errors import BadCaBundle
from images.registry.digest import resolve_digest
from tests.kit.cases import cases


@cases(
    "environment url expected",
    ("none is set", {}, "https://r.io/", None),
    ("no scheme", {"https_proxy": "p:3128"}, "https://r.io/", "http://p:3128"),
    ("for the other scheme", {"https_proxy": "http://p"}, "http://r.io/", None),
    ("for all", {"all_proxy": "http://p"}, "https://r.io/", "http://p"),
    ("an exception", {"https_proxy": "http://p", "no_proxy": ".r.io"}, "https://a.r.io/", None),
    ("this machine", {"http_proxy": "http://p"}, "http://127.0.0.1:1/", None),
)
def test_the_proxy_is_the_environments(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], url: str, expected: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == expected


def test_a_bad_ca_bundle_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificates")
    with pytest.raises(BadCaBundle, match=r"ca\.pem"):
        resolve_digest("localhost:1/a", arch="amd64", ca_bundle=tmp_path / "ca.pem")


def test_the_same_files_give_the_same_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the authorities takes longer than a small request."""
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    first = tls_context(None)
    assert tls_context(None) is first
    os.utime(bundle, ns=(1, 1))
    assert tls_context(None) is not first
