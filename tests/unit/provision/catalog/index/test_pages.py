"""Pages of an index and names of wheels: every form is understood, and no text is a crash."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog.index.pages import PageError, PageFile, parse_page
from provision.catalog.index.wheels import (
    cpython_tags,
    linux_wheels,
    parse_metadata,
    read_wheel_name,
)
from tests.kit.cases import cases
from tests.kit.simple_index import JSON_TYPE

URL = "https://packages.example/simple/torch/"
SHA = "ab" * 32
NAME = "torch-2.0.1+cu117-cp311-cp311-linux_x86_64.whl"


def html(*anchors: str, head: str = "") -> bytes:
    body = "<br>\n".join(anchors)
    return f"<!DOCTYPE html><html><head>{head}</head><body>{body}</body></html>".encode()


def one(body: bytes, kind: str = "text/html") -> PageFile:
    files = parse_page(body, kind, URL).files
    assert len(files) == 1
    return files[0]


HERE = "https://packages.example"
PLUS = f"/whl/cu117/{NAME.replace('+', '%2B')}"


@cases(
    "anchor said",
    ("an absolute address and its checksum",
     f'href="https://files.example/a-1.tar.gz#sha256={SHA}"',
     {"url": "https://files.example/a-1.tar.gz", "sha256": SHA}),
    ("a relative address", 'href="../../files/a-1.tar.gz"', {"url": f"{HERE}/files/a-1.tar.gz"}),
    ("an encoded plus, as the PyTorch index writes it", f'href="{PLUS}"',
     {"name": NAME, "url": f"{HERE}{PLUS}"}),
    ("withdrawn, in capitals and without quotes",
     'HREF=a-1.tar.gz DATA-YANKED data-requires-python="&gt;=3.8,&lt;4"',
     {"yanked": True, "requires_python": ">=3.8,<4"}),
    ("a bare > inside quotes", "data-requires-python='>=3.8' href='a-1.tar.gz'",
     {"requires_python": ">=3.8"}),
    ("METADATA beside it, by the attribute's older name",
     f'href="a-1.tar.gz" data-dist-info-metadata="sha256={SHA}"',
     {"metadata": True, "metadata_sha256": SHA}),
    ("METADATA without a checksum, and a time",
     'href="a-1.tar.gz" data-core-metadata="true" data-upload-time="2030-01-02T03:04:05.678Z"',
     {"metadata": True, "uploaded": "2030-01-02T03:04:05"}),
    ("a checksum of another kind is none", 'href="a-1.tar.gz#md5=12"', {}),
)  # fmt: skip
def test_links_of_html_pages_are_files(anchor: str, said: dict[str, Any]) -> None:
    expected = PageFile(**{"name": "a-1.tar.gz", "url": f"{URL}a-1.tar.gz"} | said)
    assert one(html(f"<a {anchor}>x</a>".replace("<a HREF", "<A HREF"))) == expected


def test_a_base_moves_relative_addresses() -> None:
    page = html('<a href="a-1.tar.gz">x</a>', head='<base href="https://cdn.example/d/">')
    assert one(page).url == "https://cdn.example/d/a-1.tar.gz"


def test_a_comment_holds_no_link() -> None:
    page = html('<!-- <a href="old-1.tar.gz">x</a> -->', '<a href="a-1.tar.gz">x</a>')
    assert one(page).name == "a-1.tar.gz"


def test_a_file_that_is_listed_twice_counts_once_and_the_first_counts() -> None:
    page = html('<a href="/one/a-1.tar.gz">x</a>', '<a href="/two/a-1.tar.gz">x</a>')
    assert one(page).url == "https://packages.example/one/a-1.tar.gz"


def test_other_links_are_no_files_and_are_kept_as_links() -> None:
    page = parse_page(html('<a href="cu117/">cu117</a>', '<a href="mailto:x">x</a>'), "", URL)
    assert page.files == ()
    assert page.links == (f"{URL}cu117/",)


def json_page(**entry: Any) -> bytes:
    file = {"filename": "a-1.tar.gz", "url": "../a-1.tar.gz", "hashes": {}, **entry}
    return json.dumps({"meta": {"api-version": "1.4"}, "files": [file]}).encode()


@cases(
    "entry said",
    ("the least that a file must say", {}, {}),
    ("size", {"hashes": {"sha256": SHA}, "size": 7}, {"sha256": SHA, "size": 7}),
    ("withdrawn with a reason", {"yanked": "why"}, {"yanked": True}),
    ("new", {"core-metadata": {"sha256": SHA}}, {"metadata": True, "metadata_sha256": SHA}),
    ("older name", {"dist-info-metadata": True}, {"metadata": True}),
    ("no METADATA", {"core-metadata": False}, {}),
    ("values of a wrong shape", {"size": "7", "yanked": None, "hashes": 3}, {}),
    ("time", {"upload-time": "2030-01-02T03:04:05.5Z"}, {"uploaded": "2030-01-02T03:04:05"}),
)
def test_entries_of_json_pages_are_files(entry: dict[str, Any], said: dict[str, Any]) -> None:
    expected = PageFile(
        **{"name": "a-1.tar.gz", "url": "https://packages.example/simple/a-1.tar.gz"} | said
    )
    assert one(json_page(**entry), JSON_TYPE) == expected


@cases(
    "body kind",
    ("an image", b"\x89PNG", "image/png"),
    ("JSON that is cut off", b'{"files": [', JSON_TYPE),
    ("JSON that is no page", b"[]", JSON_TYPE),
    ("files that are no list", b'{"files": {}}', "application/json"),
    ("JSON nested without end", b"[" * 100_000, JSON_TYPE),
    ("a later JSON", b'{"meta": {"api-version": "2.0"}, "files": []}', JSON_TYPE),
    ("a later HTML", html(head='<meta name="pypi:repository-version" content="2.0">'), "text/html"),
    ("HTML cut off", html('<a href="a-1.tar.gz">x</a>')[:-10], "text/html"),
)
def test_what_is_no_page_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(PageError):
        parse_page(body, kind, URL)


_PIECES = st.sampled_from(
    ["<a ", 'href="', "'", '"', ">", "</a>", "<!--", "-->", "#sha256=", "x-1.tar.gz", "<base ",
     "<meta ", "data-yanked", "=", " ", "[", "http://[", "{", '"files":', "}", "]", "\0", "é"]
)  # fmt: skip
_TEXTS = st.one_of(st.binary(), st.lists(_PIECES).map(lambda parts: "".join(parts).encode()))


@given(
    body=_TEXTS,
    kind=st.sampled_from(["", "text/html", "text/html; charset=nosuch", JSON_TYPE, "a/b"]),
)
def test_no_text_of_a_page_is_a_crash(body: bytes, kind: str) -> None:
    try:
        page = parse_page(body, kind, URL)
    except PageError:
        return
    linux_wheels(page.files, "torch")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_KEYS = ("filename", "url", "hashes", "size", "requires-python", "yanked", "core-metadata")


@given(entries=st.lists(st.dictionaries(st.sampled_from(_KEYS), _VALUES)))
def test_no_entry_of_a_json_page_is_a_crash(entries: list[dict[str, Any]]) -> None:
    body = json.dumps({"files": entries}).encode()
    linux_wheels(parse_page(body, JSON_TYPE, URL).files, "torch")


@given(name=st.text(st.sampled_from("abc019.-_+linuxmany86 "), max_size=60))
def test_no_name_of_a_file_is_a_crash(name: str) -> None:
    read_wheel_name(PageFile(name=f"{name}.whl", url=URL))


@given(data=st.one_of(st.binary(), st.text().map(str.encode)))
def test_no_text_inside_a_wheel_is_a_crash(data: bytes) -> None:
    parse_metadata(b"Name: a\nVersion: 1\nRequires-Dist: " + data)
    with contextlib.suppress(ValueError):
        parse_metadata(data)


@cases(
    "piece",
    ("quotes that never close", '<a "'),
    ("comments that never close", "<!--"),
    ("many comments", "<!-- -->"),
    ("attributes that never close", "<a x='"),
    ("links to nothing", '<a href="x">'),
)
def test_a_page_costs_no_more_than_its_length(piece: str) -> None:
    started = time.process_time()
    parse_page((piece * (2_000_000 // len(piece))).encode(), "text/html", URL)
    assert time.process_time() - started < 20


@cases(
    "name arch tags glibc",
    ("of today", "torch-2-cp313-cp313t-manylinux_2_28_aarch64", "aarch64", ("cp313-cp313t",),
     "2.28"),
    ("two names", "a-2-cp39-cp39-manylinux_2_17_x86_64.manylinux2014_x86_64", "x86_64",
     ("cp39-cp39",), "2.17"),
    ("the older glibc is enough", "a-1-cp39-cp39-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
     "x86_64", ("cp39-cp39",), "2.27"),
    ("manylinux1", "torch-1-cp37-cp37m-manylinux1_x86_64", "x86_64", ("cp37-cp37m",), "2.5"),
    ("no glibc", NAME.removesuffix(".whl"), "x86_64", ("cp311-cp311",), None),
    ("any", "a-1-py2.py3-none-any", None, ("py2-none", "py3-none"), None),
)  # fmt: skip
def test_names_of_wheels_for_linux_are_read(
    name: str, arch: str | None, tags: tuple[str, ...], glibc: str | None
) -> None:
    wheel = read_wheel_name(PageFile(name=f"{name}.whl", url=URL))
    assert wheel is not None
    assert (wheel.arch, wheel.python_tags, wheel.glibc) == (arch, tags, glibc)


@cases(
    "name",
    ("for Windows", "torch-2.0.1-cp311-cp311-win_amd64.whl"),
    ("for another libc", "torch-2.0.1-cp311-cp311-musllinux_1_1_x86_64.whl"),
    ("another machine", "torch-2.0.1-cp311-cp311-manylinux2014_ppc64le.whl"),
    ("no wheel", "torch-2.0.1.tar.gz"),
    ("no version", "torch-not.a.version-cp311-cp311-linux_x86_64.whl"),
)
def test_other_names_are_passed_over(name: str) -> None:
    assert read_wheel_name(PageFile(name=name, url=URL)) is None


def test_pythons_stand_oldest_first_and_free_threads_behind() -> None:
    names = [f"a-1-{tag}-linux_x86_64.whl" for tag in ("cp313-cp313t", "cp39-cp39", "cp313-cp313")]
    wheels = linux_wheels([PageFile(name=name, url=URL) for name in names], "a")
    assert cpython_tags(wheels) == ("cp39-cp39", "cp313-cp313", "cp313-cp313t")
