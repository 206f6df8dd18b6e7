"""The Debian base: what the tools are told, and what is read from their failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.bootstrap import BootstrapToolError, BootstrapUnfitError, MirrorError
from images.bootstrap.tools import debootstrap_argv, explain, mmdebstrap_argv
from images.errors import Failure

LINES = (
    "deb http://mirror.example/debian trixie main",
    "deb http://mirror.example/debian trixie-updates main",
)


def test_the_tools_get_the_mirror_and_never_a_made_up_one(tmp_path: Path) -> None:
    packages, target = ("python3",), tmp_path / "t"
    with_mirror = debootstrap_argv(suite="trixie", packages=packages, target=target, lines=LINES)
    assert with_mirror[-3:] == ["trixie", str(target), "http://mirror.example/debian"]
    for argv in (
        debootstrap_argv(suite="sid", packages=packages, target=target, lines=()),
        mmdebstrap_argv(suite="sid", packages=packages, target=target, apt=(), lines=()),
    ):
        assert argv[-2:] == ["sid", str(target)]


@pytest.mark.parametrize(
    ("output", "expected", "fix"),
    [
        pytest.param("GPG error: NO_PUBKEY 0E98", MirrorError, "keyring", id="an unknown key"),
        pytest.param(
            "W: Certificate verification failed: The certificate is NOT trusted.",
            MirrorError,
            "update-ca-certificates",
            id="an unknown certificate",
        ),
        pytest.param("Unable to locate package x", BootstrapUnfitError, "", id="no such package"),
        pytest.param("does not have a Release file.", BootstrapUnfitError, "suite", id="no suite"),
        pytest.param("Could not resolve 'm'", MirrorError, "apt-get update", id="no such host"),
        pytest.param(
            "E: unable to pick chroot mode automatically (use --mode)",
            BootstrapToolError,
            "uidmap",
            id="no user namespace",
        ),
        pytest.param(
            "I: Retrieving ca-certificates\nI: automatically chosen mode: unshare",
            None,
            "",
            id="nothing telling",
        ),
    ],
)
def test_the_telling_line_is_found(output: str, expected: type[Failure] | None, fix: str) -> None:
    found = explain(output, "bookworm")
    assert type(found) is (expected or type(None))
    assert found is None or fix in found.fix
