"""What a registry asks for, and the logins of docker's configuration."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from images.registry.auth import Challenge, parse_challenges, read_login
from tests.kit.cases import cases


@cases(
    "header expected",
    ("commas inside quotes",
     'Bearer realm="https://a/t",service="s, t",scope="repository:x:pull,push"',
     [Challenge("bearer", {"realm": "https://a/t", "service": "s, t",
     "scope": "repository:x:pull,push"})]),
    ("no quotes", "Basic realm=x", [Challenge("basic", {"realm": "x"})]),
    ("two in one line", 'Basic realm="a", Bearer realm="b"',
     [Challenge("basic", {"realm": "a"}), Challenge("bearer", {"realm": "b"})]),
    ("escapes", r'Basic realm="a\"b"', [Challenge("basic", {"realm": 'a"b'})]),
    ("none", "", []),
    ("nonsense", "nonsense", []),
)  # fmt: skip
def test_challenges_are_read(header: str, expected: list[Challenge]) -> None:
    assert list(parse_challenges(header)) == expected


@pytest.fixture
def docker_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_login_of_the_file_is_found(docker_config: Path) -> None:
    auth = base64.b64encode(b"me:secret").decode()
    (docker_config / "config.json").write_text(json.dumps({"auths": {"r.io": {"auth": auth}}}))
    found = read_login("r.io")
    assert (found.username, found.password) == ("me", "secret")
    assert not read_login("other.io")
    assert "secret" not in repr(found)


def test_a_login_of_a_helper_is_found(docker_config: Path) -> None:
    helper = docker_config / "docker-credential-fake"
    helper.write_text(
        '#!/bin/sh\nread -r x; echo "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"idt\\"}"\n'
    )
    helper.chmod(0o755)
    (docker_config / "config.json").write_text(json.dumps({"credHelpers": {"r.io": "fake"}}))
    assert read_login("r.io").identity_token == "idt"


@cases(
    "text",
    ("a helper that is not installed", '{"credsStore": "absent"}'),
    ("not base64", '{"auths": {"r.io": {"auth": "%%%"}}}'),
    ("not an entry", '{"auths": {"r.io": 1}}'),
    ("a list", '{"auths": []}'),
    ("another document", "[]"),
    ("not JSON", "not json"),
)
def test_a_broken_configuration_is_no_login(docker_config: Path, text: str) -> None:
    (docker_config / "config.json").write_text(text)
    assert not read_login("r.io")
