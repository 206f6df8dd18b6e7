"""What is read of a base: its Python, its loader's cache; layer over layer, and hostile ones."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable

import pytest

from images.errors import Failure
from images.layers.base_facts import (
    DEFAULT_PATH,
    BaseFacts,
    directories_of,
    facts_from_json,
    read_base_facts,
    search_path,
)
from images.layers.own_errors import BaseUnfitError
from images.oci.errors import ImageUnreadableError
from images.oci.sources import Image
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, layer, layer_of, link
from tests.kit.sandbox_images import image as image_of

PYTHON = b"\x7fELF" + b"x" * 3_000_000 + b"\x003.40.1\x003.11.2\x00more"
LIBC = b"\x7fELF..GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"


Members = Iterable[tuple[tarfile.TarInfo, bytes]]


def file(name: str, content: bytes = b"", mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, content, mode=mode)


def image(*layers: Members, architecture: str = "amd64") -> Image:
    return image_of([layer(*members) for members in layers], arch=architecture)


def debian() -> list[tuple[tarfile.TarInfo, bytes]]:
    """What matters of a merged-/usr Debian with Python."""
    return [
        link("bin", "usr/bin"),
        link("lib", "usr/lib"),
        link("./lib64", "usr/lib64"),
        entry("./etc"),
        file("./etc/ld.so.cache", b"cache"),
        file("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n"),
        file("etc/ld.so.conf.d/x.conf", b"# first\n/usr/local/lib\n/lib/x86_64-linux-gnu # why\n"),
        file("usr/bin/bash"),
        link("usr/bin/sh", "/usr/bin/bash"),
        file("usr/bin/python3.11", PYTHON),
        link("usr/bin/python3", "python3.11"),
        link("usr/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        file("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        file("usr/lib/x86_64-linux-gnu/libc.so.6", LIBC),
        file("usr/lib/x86_64-linux-gnu/libz.so.1.2.13"),
        link("usr/lib/x86_64-linux-gnu/libz.so.1", "libz.so.1.2.13"),
        file("usr/lib/python3.11/os.py"),
    ]


def test_a_debian_is_told_in_full() -> None:
    facts = read_base_facts(image(debian()), "3.11")
    there = "/usr/lib/x86_64-linux-gnu"
    assert facts == BaseFacts(
        python="/usr/bin/python3.11",
        python_full="3.11.2",
        glibc="2.36",
        bash=True,
        cuda=False,
        ld_cache=b"cache",
        ld_conf={
            "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
            "/etc/ld.so.conf.d/x.conf": "# first\n/usr/local/lib\n/lib/x86_64-linux-gnu # why\n",
        },
        library_dirs=("/usr/local/lib", "/lib/x86_64-linux-gnu"),
        loader=f"{there}/ld-linux-x86-64.so.2",
        stdlib="/usr/lib/python3.11",
        runtime={
            "libc.so.6": f"{there}/libc.so.6",
            "libz.so.1": f"{there}/libz.so.1.2.13",
            "libz.so.1.2.13": f"{there}/libz.so.1.2.13",
        },
    )


def test_facts_survive_json() -> None:
    facts = read_base_facts(image(debian()), "3.11")
    assert facts_from_json(json.loads(json.dumps(facts.to_json()))) == facts


@cases(
    "change",
    ("another format", {"format": 0}),
    ("no interpreter", {"python": None}),
    ("a cache that is no base64", {"ld_cache": "no base64!"}),
    ("a number for a text", {"ld_conf": {"/etc/ld.so.conf": 5}}),
    ("a text for a list", {"library_dirs": "/lib"}),
    ("a list for a table", {"runtime": []}),
)
def test_remembered_facts_that_are_none_are_forgotten(change: dict[str, object]) -> None:
    facts = read_base_facts(image(debian()), "3.11").to_json()
    assert facts_from_json({**facts, **change}) is None
    assert facts_from_json([]) is None


@cases(
    "above python full",
    ("what comes first on PATH is taken", [file("usr/local/bin/python3.11", b"\x003.11.9\0")],
     "/usr/local/bin/python3.11", "3.11.9"),
    ("links are followed inside the image",
     [link("usr/local/bin/python3.11", "/opt/py/bin/python3.11"), file("opt/py/bin/python3.11",
     b"\x003.11.9\x00")], "/opt/py/bin/python3.11", "3.11.9"),
    ("no link leads out of the image",
     [link("usr/local/bin/python3.11", "../../../../../usr/bin/python3.11")], "/usr/bin/python3.11",
     "3.11.2"),
    ("what is no program is passed over",
     [file("usr/local/bin/python3.11", b"\x003.11.9\0", mode=0o644)], "/usr/bin/python3.11",
     "3.11.2"),
    ("a link to itself is passed over", [link("usr/local/bin/python3.11", "python3.11")],
     "/usr/bin/python3.11", "3.11.2"),
    ("a hard link is the file that it names",
     [link("usr/local/bin/python3.11", "usr/bin/python3.11", hard=True)],
     "/usr/local/bin/python3.11", "3.11.2"),
    ("the version may be in the library",
     [file("usr/bin/python3.11", b"a door"), file("usr/lib/libpython3.11.so.1.0",
     b"\x003.11.7\x00")], "/usr/bin/python3.11", "3.11.7"),
    ("a file in what is a link below lands where that leads",
     [file("bin/python3.11", b"\x003.11.8\0")], "/usr/bin/python3.11", "3.11.8"),
    ("what is hidden by name only is missing alone", [file("usr/bin/.wh.python3")],
     "/usr/bin/python3.11", "3.11.2"),
)  # fmt: skip
def test_layers_lie_over_each_other(above: Members, python: str, full: str) -> None:
    facts = read_base_facts(image(debian(), above), "3.11")
    assert (facts.python, facts.python_full) == (python, full)


@cases(
    "above",
    ("hidden by its name", [file("usr/bin/.wh.python3.11")]),
    ("hidden with a directory above it", [file(".wh.usr")]),
    ("hidden by an opaque directory", [file("usr/bin/.wh..wh..opq")]),
    ("hidden by a file in place of the directory", [file("usr/bin", b"")]),
    ("hidden by a link in place of the directory", [link("usr", "/other")]),
)
def test_a_hidden_python_is_no_python(above: Members) -> None:
    with pytest.raises(BaseUnfitError) as caught:
        read_base_facts(image(debian(), above), "3.11")
    assert "it has no Python" in caught.value.message
    assert "--base bootstrap" in caught.value.fix
    assert "--builder docker" in caught.value.fix


def test_a_layer_does_not_hide_what_is_its_own() -> None:
    above = [file("usr/bin/.wh..wh..opq"), file("usr/bin/python3.11", b"\x003.11.9\0")]
    assert read_base_facts(image(debian(), above), "3.11").python_full == "3.11.9"


def test_another_python_is_named() -> None:
    with pytest.raises(BaseUnfitError, match=r"it has /usr/bin/python3\.11"):
        read_base_facts(image(debian()), "3.12")


def test_a_base_on_musl_is_refused() -> None:
    members = [file("usr/bin/python3.11", PYTHON), file("lib/ld-musl-x86_64.so.1")]
    with pytest.raises(BaseUnfitError, match="musl"):
        read_base_facts(image(members), "3.11")


def test_a_base_s_own_cuda_is_seen() -> None:
    above = [link("usr/local/cuda", "/etc/alternatives/cuda")]
    assert read_base_facts(image(debian(), above), "3.11").cuda


def test_a_name_outside_of_the_image_is_refused() -> None:
    with pytest.raises(ImageUnreadableError, match="outside"):
        read_base_facts(image(debian(), [file("../etc/passwd")]), "3.11")


def test_a_base_of_endless_links_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.layers.base_tree.MOST_KEPT", 50)
    with pytest.raises(ImageUnreadableError, match="more than a base image has"):
        read_base_facts(image([link(f"l{n}", "x") for n in range(60)]), "3.11")


def test_an_unpacked_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.layers.base_tree.MOST_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ImageUnreadableError):
        read_base_facts(image(debian()), "3.11")


def test_a_damaged_layer_is_a_failure() -> None:
    broken = image_of([layer(*debian()), layer_of(b"\1" * 5000)])
    with pytest.raises(Failure):
        read_base_facts(broken, "3.11")


def test_a_configuration_that_includes_itself_ends() -> None:
    files = {
        "/etc/ld.so.conf": "/a\ninclude ld.so.conf.d/*.conf\n/b:/c,/a\nhwcap 1 x\n",
        "/etc/ld.so.conf.d/1.conf": "include /etc/ld.so.conf /etc/ld.so.conf.d/*.conf\n/d/\n",
    }
    assert list(directories_of(files)) == ["/a", "/d", "/b", "/c"]


@cases(
    "config expected",
    ("the image's own", {"config": {"Env": ["A=1", "PATH=/x:/y"]}}, "/x:/y"),
    ("a container's, without any", {"config": {"Env": None}}, DEFAULT_PATH),
    ("a container's, without a configuration", {}, DEFAULT_PATH),
)
def test_path_is_that_of_the_image(config: dict[str, object], expected: str) -> None:
    assert search_path(config) == expected
