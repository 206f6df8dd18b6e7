"""Layers laid over each other: what an engine would unpack, and what leads nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.inspect.contents import read_image
from images.inspect.tree import ImageFile, ImageTree, SymbolicLink
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from tests.kit.image_maker import Files, image_of, layer_of, tar_of


def files_of(*layers: Files) -> dict[str, int]:
    tree = read_image(image_of(*layers)).tree
    return {path: node.size for path, node in tree.walk() if isinstance(node, ImageFile)}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        pytest.param(
            [{"a/x": b"1", "a/y": b"22"}, {"a/.wh.x": b""}], {"/a/y": 2}, id="a whiteout takes one"
        ),
        pytest.param(
            [{"a/b/x": b"1", "c": b""}, {".wh.a": b""}], {"/c": 0}, id="a whiteout takes a tree"
        ),
        pytest.param(
            [{"a/x": b"1"}, {"a/y": b"22", "a/.wh..wh..opq": b""}],
            {"/a/y": 2},
            id="opaque hides what is below, not what is beside it, whatever comes first",
        ),
        pytest.param(
            [{"x": b"1"}, {"x": b"22", ".wh.x": b""}],
            {"/x": 2},
            id="whiteout and file in one layer",
        ),
        pytest.param([{"x": b"1"}, {"x/y": b"22"}], {"/x/y": 2}, id="a directory for a file"),
        pytest.param([{"x/y": b"1"}, {"x": b"22"}], {"/x": 2}, id="a file for a directory"),
        pytest.param(
            [{"usr/lib/a": b"1", "lib": "usr/lib"}, {"lib/b": b"22"}],
            {"/usr/lib/a": 1, "/usr/lib/b": 2},
            id="a layer writes through a link of the base",
        ),
        pytest.param([{"../../x": b"1"}], {"/x": 1}, id="nothing gets out"),
        pytest.param([{"/abs/x": b"1"}], {"/abs/x": 1}, id="an absolute name"),
        pytest.param([{".wh.nothing": b"", "x": b"1"}], {"/x": 1}, id="a whiteout of nothing"),
    ],
)
def test_layers_are_laid_over_each_other_as_engines_do(
    layers: list[Files], expected: dict[str, int]
) -> None:
    assert files_of(*layers) == expected


def test_a_hard_link_is_the_same_file() -> None:
    tar = tar_of({"a": b"12345"}, hard_links={"b/c": "a", "d": "missing"})
    tree = read_image(image_of(tar)).tree
    assert tree.file("/b/c") is tree.file("/a")
    assert tree.find("/d") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/lib/x", "/usr/lib/x", id="a link to a directory"),
        pytest.param("/up/lib/x", "/usr/lib/x", id="a link upwards"),
        pytest.param("/out/usr/lib/x", "/usr/lib/x", id="above the root is the root"),
        pytest.param("/loop/x", None, id="a loop ends"),
        pytest.param("/one", None, id="two links to each other"),
        pytest.param("/dangling", None, id="a link to nothing"),
        pytest.param("/usr/lib/x/y", None, id="below a file"),
        pytest.param("/lib/../lib/x", None, id="'..' of a link leads to its target's parent"),
    ],
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
