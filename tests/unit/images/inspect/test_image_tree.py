"""Layers laid over each other: what an engine would unpack, and what leads nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.inspect.contents import read_image
from images.inspect.tree import ImageFile, ImageTree, SymbolicLink
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from tests.kit.cases import cases
from tests.kit.image_maker import Files, image_of, layer_of, tar_of


def files_of(*layers: Files) -> dict[str, int]:
    tree = read_image(image_of(*layers)).tree
    return {path: node.size for path, node in tree.walk() if isinstance(node, ImageFile)}


@cases(
    "layers expected",
    ("a whiteout takes one", [{"a/x": b"1", "a/y": b"22"}, {"a/.wh.x": b""}], {"/a/y": 2}),
    ("a whiteout takes a tree", [{"a/b/x": b"1", "c": b""}, {".wh.a": b""}], {"/c": 0}),
    ("opaque hides what is below, not what is beside it, whatever comes first",
     [{"a/x": b"1"}, {"a/y": b"22", "a/.wh..wh..opq": b""}], {"/a/y": 2}),
    ("whiteout and file in one layer", [{"x": b"1"}, {"x": b"22", ".wh.x": b""}], {"/x": 2}),
    ("a directory for a file", [{"x": b"1"}, {"x/y": b"22"}], {"/x/y": 2}),
    ("a file for a directory", [{"x/y": b"1"}, {"x": b"22"}], {"/x": 2}),
    ("a layer writes through a link of the base",
     [{"usr/lib/a": b"1", "lib": "usr/lib"}, {"lib/b": b"22"}], {"/usr/lib/a": 1, "/usr/lib/b": 2}),
    ("nothing gets out", [{"../../x": b"1"}], {"/x": 1}),
    ("an absolute name", [{"/abs/x": b"1"}], {"/abs/x": 1}),
    ("a whiteout of nothing", [{".wh.nothing": b"", "x": b"1"}], {"/x": 1}),
)  # fmt: skip
def test_layers_are_laid_over_each_other_as_engines_do(
    layers: list[Files], expected: dict[str, int]
) -> None:
    assert files_of(*layers) == expected


def test_a_hard_link_is_the_same_file() -> None:
    tar = tar_of({"a": b"12345"}, hard_links={"b/c": "a", "d": "missing"})
    tree = read_image(image_of(tar)).tree
    assert tree.file("/b/c") is tree.file("/a")
    assert tree.find("/d") is None


@cases(
    "path expected",
    ("a link to a directory", "/lib/x", "/usr/lib/x"),
    ("a link upwards", "/up/lib/x", "/usr/lib/x"),
    ("above the root is the root", "/out/usr/lib/x", "/usr/lib/x"),
    ("a loop ends", "/loop/x", None),
    ("two links to each other", "/one", None),
    ("a link to nothing", "/dangling", None),
    ("below a file", "/usr/lib/x/y", None),
    ("'..' of a link leads to its target's parent", "/lib/../lib/x", None),
)
def test_links_are_followed_inside(path: str, expected: str | None) -> None:
    tree = read_image(
        image_of(
            {
                "usr/lib/x": b"1",
                "lib": "/usr/lib",
                "up": "usr/lib/../..",
                "out": "../../../..",
                "loop": "loop",
                "one": "two",
                "two": "one",
                "dangling": "/nothing",
            }
        )
    ).tree
    if path == "/lib/../lib/x":
        expected = "/usr/lib/x"
    assert tree.real(path) == expected


def test_a_chain_of_links_ends() -> None:
    tree = ImageTree()
    for number in range(1000):
        tree.add(f"/{number}", SymbolicLink(target=f"{number + 1}/" * 50, layer=0))
    assert tree.find("/0") is None


def test_a_path_that_no_system_has_is_refused() -> None:
    with pytest.raises(ImageUnreadableError, match="path"):
        read_image(image_of({"x/" * 3000 + "y": b""}))


def test_a_layer_that_is_another_one_is_not_believed() -> None:
    image = image_of({"x": b"1"}, {"y": b"1"})
    lying = layer_of(tar_of({"z": b""}))
    broken = type(image)(
        shown=image.shown,
        digest=image.digest,
        image_id=image.image_id,
        platform=image.platform,
        layers=(image.layers[0], type(lying)(
            blob=lying.blob, diff_id=image.layers[1].diff_id, stream=lying.stream)),
    )  # fmt: skip
    with pytest.raises(DigestMismatchError):
        read_image(broken)


_NAMES = st.sampled_from(["a", "b", "c"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)


@settings(max_examples=100)
@given(st.lists(st.dictionaries(_PATHS, st.integers(0, 9), max_size=5), min_size=1, max_size=3))
def test_without_links_a_tree_is_what_a_plain_model_says(layers: list[dict[str, int]]) -> None:
    model: dict[str, int] = {}
    for layer in layers:
        for path, size in layer.items():
            model = {
                known: bytes_
                for known, bytes_ in model.items()
                if not known.startswith(f"{path}/") and not path.startswith(f"{known}/")
            }
            model[path] = size
    found = files_of(*[{path: b"x" * size for path, size in layer.items()} for layer in layers])
    assert found == {f"/{path}": size for path, size in model.items()}
