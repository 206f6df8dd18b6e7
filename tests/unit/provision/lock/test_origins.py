"""The index of each wheel: read from uv's listing, one that somebody named, and reported."""

from __future__ import annotations

import pytest

from provision.lock.lockfile import parse_lock
from provision.lock.origins import ForeignIndexError, account, with_indexes
from tests.kit.cases import cases

A, B, C = "https://a.example/simple", "https://b.example/simple", "https://c.example/simple"


def lock_of(*packages: str) -> str:
    """uv's lock: of each "name" a wheel, of each "@name" one that was requested by its address."""
    text = 'lock-version = "1.0"\ncreated-by = "uv"\n'
    for one in packages:
        name = one.lstrip("@")
        url = f"https://files.example/{name}-1-py3-none-any.whl"
        file = f'{{ url = "{url}", hashes = {{ sha256 = "0" }} }}'
        kind = f"archive = {file}" if one.startswith("@") else f"wheels = [{file}]"
        text += f'[[packages]]\nname = "{name}"\nversion = "1"\n{kind}\n'
    return text


def listing_of(**indexes: str) -> str:
    """uv's other format, with the lines that a user's configuration may add to it."""
    head = "--index-url https://user:word@a.example/simple\n--find-links /wheels\n\n"
    return head + "".join(
        f"{name}==1 ; python_version >= '3.9' \\\n    --hash=sha256:00\n    # via\n    #   -r -\n"
        f"    # from {index}\n"
        for name, index in indexes.items()
    )


@cases(
    "lock listing expected",
    ("one", lock_of("x"), listing_of(x=A), {"x": A}),
    ("two", lock_of("x", "y"), listing_of(y=B, x=A), {"x": A, "y": B}),
    ("with extras", lock_of("x"), listing_of(**{"x[a,b]": A}), {"x": A}),
    ("with a slash", lock_of("x"), listing_of(x=A + "/"), {"x": A + "/"}),
    ("an address", lock_of("@x"), "x @ https://files.example/x.whl\n", {"x": None}),
    ("PyTorch's own index, which uv's torch-backend asks", lock_of("x"),
     listing_of(x="https://download.pytorch.org/whl/cu128"),
     {"x": "https://download.pytorch.org/whl/cu128"}),
)  # fmt: skip
def test_each_wheel_has_the_index_that_listed_it(
    lock: str, listing: str, expected: dict[str, str | None]
) -> None:
    found = parse_lock(with_indexes(lock, listing, {A, B}))
    assert {package.name: package.index for package in found.packages} == expected


@cases(
    "index",
    ("another host", C),
    ("another port", "https://a.example:8443/simple"),
    ("not encrypted", "http://a.example/simple"),
    ("another path", "https://a.example/other"),
    ("a host that begins like it", "https://a.example.evil.example/simple"),
    ("like PyTorch's", "https://download.pytorch.org.evil.example/whl/cu128"),
    ("a directory", "file:///tmp/wheels"),
    ("the default one, which another one replaces", "https://pypi.example/simple"),
)
def test_an_index_that_nobody_named_is_an_error(index: str) -> None:
    with pytest.raises(ForeignIndexError) as caught:
        with_indexes(lock_of("x", "y"), listing_of(x=A, y=index), {A, B})
    assert index in caught.value.message
    assert caught.value.message.startswith("y 1 ")
    assert f"--index {index}" in caught.value.fix


@pytest.mark.parametrize(
    "listing",
    ["", "x==1\n", listing_of(y=A), listing_of(x=A).replace("x==1", "x==2"), f"    # from {A}\n"],
    ids=["nothing", "no index", "another package", "another version", "an index of nothing"],
)
def test_a_wheel_without_an_index_is_never_accepted(listing: str) -> None:
    with pytest.raises(ValueError, match="reports no index for x==1"):
        with_indexes(lock_of("x"), listing, {A})


@cases(
    "indexes expected",
    ("one, named", {"torch": A, "x": A + "/"}, "PyPI"),
    ("one without a name", {"torch": B, "x": B}, B),
    ("two", {"torch": B, "x": A, "y": A}, f"{B} (torch) and PyPI (x, y)"),
    ("three", {"torch": B, **dict.fromkeys("stuvw", A), "x": C},
     f"{B} (torch), PyPI (5 wheels) and {C} (x)"),
    ("a URL", {"torch": A, "x": ""}, "PyPI (torch) and addresses of their own (x)"),
)  # fmt: skip
def test_the_account_names_every_index(indexes: dict[str, str], expected: str) -> None:
    text = lock_of(*(name if index else f"@{name}" for name, index in indexes.items()))
    listing = listing_of(**{name: index for name, index in indexes.items() if index})
    found = with_indexes(text, listing, {A, B, C})
    assert account(found, first="torch", names={A: "PyPI"}) == expected
