"""The Debian base: which of apt's sources serve it."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.bootstrap.errors import BootstrapUnfitError, MirrorError
from images.bootstrap.host import (
    MIRROR_VARIABLE,
    SNAPSHOT_VARIABLE,
    AptSettings,
    debians_own,
    read_sources,
    snapshot_service,
    sources_for,
)
from images.bootstrap.mirrors import (
    MirrorSuite,
    Snapshot,
    canonical_sources,
    debian_sources,
    is_stamp,
    parse_deb822,
    parse_one_line,
    snapshot_address,
    snapshot_sources,
    stamp_before,
    standard_sources,
)
from tests.kit.cases import cases

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


def lines(sources: tuple[MirrorSuite, ...]) -> tuple[str, ...]:
    """As apt's own configuration has them."""
    found = []
    for one in sources:
        options = " ".join(f"{name}={value}" for name, value in sorted(one.options.items()))
        found.append(f"deb {f'[{options}] ' if options else ''}{one.uri} {one.suite} main")
    return tuple(found)


def test_one_line_sources_become_those_of_a_suite() -> None:
    found = lines(debian_sources(parse_one_line(ONE_LINE), "trixie"))
    assert sorted(line.replace("security/", "security") for line in found) == sorted(WANTED)


def test_deb822_sources_become_those_of_a_suite() -> None:
    assert lines(debian_sources(parse_deb822(DEB822), "trixie")) == WANTED


@cases(
    "text expected",
    ("Ubuntu is not Debian", "deb http://u.example/ubuntu jammy main", ()),
    ("another's component", "deb http://d.example/linux/debian bookworm stable", ()),
    ("another's packages", "deb http://p.example/php bookworm main", ()),
    ("no release", "deb http://m.example/debian-security s-security main", ()),
    ("an internal mirror with a login, and a suite by another name",
     "deb http://user:pw@m.example/repo/debian stable main",
     ("deb http://user:pw@m.example/repo/debian trixie main",)),
    ("what a snapshot needs is kept",
     "deb [trusted=yes check-valid-until=no] http://s.example/debian/2025/ bookworm main",
     ("deb [check-valid-until=no trusted=yes] http://s.example/debian/2025/ trixie main",)),
    ("a mirror that is signed again keeps its key",
     "deb [signed-by=/etc/corp.gpg] http://m.example/debian bookworm main",
     ("deb [signed-by=/etc/corp.gpg] http://m.example/debian trixie main",)),
    ("half a line", "deb", ()),
    ("an open bracket", "deb [ http://x", ()),
)  # fmt: skip
def test_only_debians_own_mirrors_count(text: str, expected: tuple[str, ...]) -> None:
    assert lines(debian_sources(parse_one_line(text), "trixie")) == expected


def test_a_key_inside_a_source_is_no_path() -> None:
    key = "Types: deb\nURIs: http://m.example/debian\nSuites: sid\nComponents: main\n"
    (source,) = parse_deb822(f"{key}Signed-By:\n -----BEGIN\n .\n abc\n")
    assert lines(debian_sources([source], "sid")) == ("deb http://m.example/debian sid main",)


def test_the_likely_ones_come_first() -> None:
    """Many keep packages for Debian at an address that ends like Debian's own."""
    text = (
        "deb [signed-by=/k/other.gpg] https://p.example/debian bookworm main\n"
        "deb https://q.example/some/debian/12 bookworm main\n"
        "deb http://mirror.example/debian bookworm main\n"
        "deb [signed-by=/k/debian-archive-keyring.gpg] http://corp.example/apt bookworm main\n"
    )
    found = debian_sources(parse_one_line(text), "bookworm")
    hosts = [source.uri.split("/")[2].partition(".")[0] for source in found]
    assert hosts == ["corp", "mirror", "p", "q"]


def test_a_list_of_mirrors_as_cloud_images_have_it_is_read(tmp_path: Path) -> None:
    apt = tmp_path / "etc/apt"
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "mirrors").mkdir()
    (apt / "mirrors/debian.list").write_text("http://a.example/debian\tpriority:1\n# b\n")
    (apt / "sources.list").write_text("deb mirror+file:/etc/apt/mirrors/debian.list sid main\n")
    assert lines(sources_for("sid", tmp_path)) == ("deb http://a.example/debian sid main",)


@cases(
    "sources named expected",
    ("apt's own mirror", "deb http://m.example/debian sid main", "", "http://m.example/debian"),
    ("the one that was named", "deb http://m.example/debian sid main", "https://n.example/debian/",
     "https://n.example/debian"),
    ("on Ubuntu: Debian's own", "deb http://u.example/ubuntu noble main", "", None),
    ("without apt: Debian's own", "", "", None),
)  # fmt: skip
def test_a_base_comes_from_the_hosts_mirror_or_debians_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str, named: str, expected: str | None
) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, named)
    (tmp_path / "etc/apt").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(sources)
    found = sources_for("sid", tmp_path)
    assert found[0].uri == (expected or debians_own())
    if named or expected is None:
        assert [source.suite for source in found] == ["sid", "sid-updates", "sid-security"]
        assert found[2].uri == found[0].uri.replace("/debian", "/debian-security")


def test_debians_own_mirror_has_an_address_of_debian() -> None:
    assert debians_own().startswith("https://")
    assert debians_own().endswith("debian.org/debian")


def test_a_named_mirror_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, "m.example/debian")
    with pytest.raises(BootstrapUnfitError, match="not an address"):
        sources_for("sid")


@cases(
    "settings url expected",
    ("nothing is set", {}, "http://m.example/x", "otherwise"),
    ("for http", {"http": "http://p:1"}, "http://m.example/x", "http://p:1"),
    ("https takes http's", {"http": "http://p:1"}, "https://m.example/x", "http://p:1"),
    ("https has its own", {"http": "http://p:1", "https": "http://q:2"}, "https://m.example/x",
     "http://q:2"),
    ("none for this host", {"http": "http://p:1", "http::m.example": "DIRECT"},
     "http://m.example/x", None),
)  # fmt: skip
def test_apts_proxy_is_used(settings: dict[str, str], url: str, expected: str | None) -> None:
    assert AptSettings(proxies=settings).proxy(url, lambda _: "otherwise") == expected


def test_a_snapshots_sources_do_not_expire() -> None:
    found = snapshot_sources(Snapshot("http://past.example/archive", "20260301T000000Z"), "trixie")
    start, place = "deb [check-valid-until=no] http://past.example/archive", "20260301T000000Z/"
    assert lines(found) == (
        f"{start}/debian/{place} trixie main",
        f"{start}/debian/{place} trixie-updates main",
        f"{start}/debian-security/{place} trixie-security main",
    )


def test_all_files_of_the_host_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "etc/apt/sources.list.d"
    parts.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(ONE_LINE)
    (parts / "debian.sources").write_text(DEB822)
    (parts / "off.sources.disabled").write_text(DEB822.replace("mirror", "off"))
    assert read_sources(tmp_path) == (*parse_one_line(ONE_LINE), *parse_deb822(DEB822))
    assert read_sources(tmp_path / "absent") == ()


def test_a_mirrors_password_is_not_shown() -> None:
    (source, *_) = standard_sources("http://me:s3cret@m.example/debian", "sid")
    assert source.shown == "sid (http://m.example/debian)"


@cases(
    "sources address",
    ("a source that is a snapshot",
     "deb http://past.example/archive/debian/20260301T000000Z bookworm main",
     "http://past.example/archive"),
    ("a comment, as Debian's images have",
     "# https://past.example/a/debian-security/20260301T000000Z\nURIs: http://m/debian",
     "https://past.example/a"),
    ("a mirror", "deb http://mirror.example/debian bookworm main", None),
    ("words", "# snapshot 20260301T000000Z of debian", None),
)  # fmt: skip
def test_the_snapshot_service_is_found_in_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str, address: str | None
) -> None:
    monkeypatch.delenv(SNAPSHOT_VARIABLE, raising=False)
    assert snapshot_address(sources) == address
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text(sources)
    if address is not None:
        assert snapshot_service(tmp_path) == address
        return
    with pytest.raises(MirrorError) as caught:
        snapshot_service(tmp_path)
    assert f"{SNAPSHOT_VARIABLE}=" in caught.value.fix


def test_a_snapshot_service_that_was_named_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "https://mine.example/archive/")
    assert snapshot_service(tmp_path) == "https://mine.example/archive"
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "mine.example [trusted=yes]")
    with pytest.raises(BootstrapUnfitError, match="not an address"):
        snapshot_service(tmp_path)


def test_a_stamp_lies_behind_all_that_a_service_will_still_take_in() -> None:
    assert stamp_before(1_700_000_000.0) == "20231113T000000Z"  # at 22:13 on the 14th
    assert is_stamp(stamp_before(0.0))
    assert not is_stamp("20231345T000000Z")
    assert not is_stamp("x")


@cases(
    "example expected",
    ("one line each", ONE_LINE, WANTED),
    ("in paragraphs", DEB822, WANTED),
    ("none", "", ("# Name a mirror of Debian here, for apt-get to install from.",)),
)
def test_a_base_has_debians_own_sources(example: str, expected: tuple[str, ...]) -> None:
    found = canonical_sources(example, "trixie").decode().replace("security/ ", "security ")
    assert tuple(found.splitlines()) == expected
