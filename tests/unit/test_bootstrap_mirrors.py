"""The Debian base: which of apt's sources serve it."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.bootstrap.host import read_sources
from images.bootstrap.mirrors import debian_lines, parse_deb822, parse_one_line, passwords_in

ONE_LINE = """
# deb http://old.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib   # the release
deb [signed-by=/k/debian-archive-keyring.gpg] http://mirror.example/debian bookworm-updates main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security/ bookworm-security main
deb http://mirror.example/debian bookworm-backports main
"""
DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
# inside
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
WANTED = (
    "deb http://mirror.example/debian trixie main",
    "deb http://mirror.example/debian trixie-updates main",
    "deb http://mirror.example/debian-security trixie-security main",
)


def test_one_line_sources_become_those_of_a_suite() -> None:
    lines = debian_lines(parse_one_line(ONE_LINE), "trixie")
    assert tuple(line.replace("security/", "security") for line in lines) == WANTED


def test_deb822_sources_become_those_of_a_suite() -> None:
    assert debian_lines(parse_deb822(DEB822), "trixie") == WANTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("deb http://u.example/ubuntu jammy main", (), id="Ubuntu is not Debian"),
        pytest.param(
            "deb http://d.example/linux/debian bookworm stable", (), id="another's component"
        ),
        pytest.param("deb http://p.example/php bookworm main", (), id="another's packages"),
        pytest.param("deb http://m.example/debian-security s-security main", (), id="no release"),
        pytest.param(
            "deb http://user:pw@m.example/repo/debian stable main",
            ("deb http://user:pw@m.example/repo/debian trixie main",),
            id="an internal mirror with a login, and a suite by another name",
        ),
        pytest.param(
            "deb [trusted=yes check-valid-until=no] http://s.example/debian/2025/ bookworm main",
            ("deb [check-valid-until=no trusted=yes] http://s.example/debian/2025/ trixie main",),
            id="what a snapshot needs is kept",
        ),
        pytest.param(
            "deb [signed-by=/etc/corp.gpg] http://m.example/debian bookworm main",
            ("deb [signed-by=/etc/corp.gpg] http://m.example/debian trixie main",),
            id="a mirror signed anew keeps its key",
        ),
        pytest.param("deb", (), id="half a line"),
        pytest.param("deb [ http://x", (), id="an open bracket"),
    ],
)
def test_only_debians_own_mirrors_count(text: str, expected: tuple[str, ...]) -> None:
    assert debian_lines(parse_one_line(text), "trixie") == expected


def test_a_key_inside_a_source_is_no_path() -> None:
    key = "Types: deb\nURIs: http://m.example/debian\nSuites: sid\nComponents: main\n"
    (source,) = parse_deb822(f"{key}Signed-By:\n -----BEGIN\n .\n abc\n")
    assert debian_lines([source], "sid") == ("deb http://m.example/debian sid main",)


def test_all_files_of_the_host_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "etc/apt/sources.list.d"
    parts.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(ONE_LINE)
    (parts / "debian.sources").write_text(DEB822)
    (parts / "off.sources.disabled").write_text(DEB822.replace("mirror", "off"))
    assert read_sources(tmp_path) == (*parse_one_line(ONE_LINE), *parse_deb822(DEB822))
    assert read_sources(tmp_path / "absent") == ()


def test_a_mirrors_password_is_known_as_a_secret() -> None:
    texts = ("deb http://me:s3cret@m.example/debian sid main", "http://m.example:80/@x", "")
    assert passwords_in(texts) == ("s3cret",)
