"""The index of each wheel: read from uv's listing, one that somebody named, and reported."""

from __future__ import annotations

import pytest

from provision.lock.lockfile import parse_lock
from provision.lock.origins import ForeignIndexError, account, with_indexes

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


@pytest.mark.parametrize(
    ("lock", "listing", "expected"),
    [
        pytest.param(lock_of("x"), listing_of(x=A), {"x": A}, id="one"),
        pytest.param(lock_of("x", "y"), listing_of(y=B, x=A), {"x": A, "y": B}, id="two"),
        pytest.param(lock_of("x"), listing_of(**{"x[a,b]": A}), {"x": A}, id="with extras"),
        pytest.param(lock_of("x"), listing_of(x=A + "/"), {"x": A + "/"}, id="with a slash"),
        pytest.param(lock_of("@x"), "x @ https://files.example/x.whl\n", {"x": None},
                     id="an address"),
        pytest.param(lock_of("x"), listing_of(x="https://download.pytorch.org/whl/cu128"),
                     {"x": "https://download.pytorch.org/whl/cu128"},
                     id="PyTorch's own index, which uv's torch-backend asks"),
    ],
)  # fmt: skip
def test_each_wheel_has_the_index_that_listed_it(
    lock: str, listing: str, expected: dict[str, str | None]
) -> None:
    found = parse_lock(with_indexes(lock, listing, {A, B}))
    assert {package.name: package.index for package in found.packages} == expected


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(C, id="another host"),
        pytest.param("https://a.example:8443/simple", id="another port"),
        pytest.param("http://a.example/simple", id="not encrypted"),
        pytest.param("https://a.example/other", id="another path"),
        pytest.param("https://a.example.evil.example/simple", id="a host that begins like it"),
        pytest.param("https://download.pytorch.org.evil.example/whl/cu128", id="like PyTorch's"),
        pytest.param("file:///tmp/wheels", id="a directory"),
        pytest.param(
            "https://pypi.example/simple", id="the default one, which another one replaces"
        ),
    ],
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


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        pytest.param({"torch": A, "x": A + "/"}, "PyPI", id="one, named"),
        pytest.param({"torch": B, "x": B}, B, id="one without a name"),
        pytest.param({"torch": B, "x": A, "y": A}, f"{B} (torch) and PyPI (x, y)", id="two"),
        pytest.param({"torch": B, **dict.fromkeys("stuvw", A), "x": C},
                     f"{B} (torch), PyPI (5 wheels) and {C} (x)", id="three"),
        pytest.param({"torch": A, "x": ""}, "PyPI (torch) and addresses of their own (x)",
                     id="a URL"),
    ],
)  # fmt: skip
def test_the_account_names_every_index(indexes: dict[str, str], expected: str) -> None:
    text = lock_of(*(name if index else f"@{name}" for name, index in indexes.items()))
    listing = listing_of(**{name: index for name, index in indexes.items() if index})
    found = with_indexes(text, listing, {A, B, C})
    assert account(found, first="torch", names={A: "PyPI"}) == expected
