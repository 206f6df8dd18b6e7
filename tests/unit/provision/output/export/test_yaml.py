"""What is written is read back the same, by readers of YAML 1.1 and 1.2."""

from __future__ import annotations

import io
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from provision.output.export.yaml import Remark, scalar, to_yaml
from tests.kit.exports import HOSTILE

TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec="utf-8")))
KEYS = st.one_of(st.sampled_from(HOSTILE[1:]), st.text(st.characters(codec="utf-8"), min_size=1))
LEAVES = st.one_of(TEXTS, st.integers(-(2**60), 2**60), st.booleans())
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4),
        st.dictionaries(KEYS, inner, min_size=1, max_size=4),
    ),
    max_leaves=8,
)


def read_both(text: str) -> list[Any]:
    """By PyYAML (1.1) and by ruamel (1.2)."""
    return [yaml.safe_load(text), YAML(typ="safe", pure=True).load(io.StringIO(text))]


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4))
def test_any_tree_is_read_back(tree: dict[str, Any]) -> None:
    assert read_both(to_yaml(tree)) == [tree, tree]


@given(TEXTS)
def test_a_comment_changes_no_value(text: str) -> None:
    written = to_yaml({"a": Remark("why", text), "b": [Remark("why", {"c": text})]})
    assert read_both(written) == [{"a": text, "b": [{"c": text}]}] * 2
    assert written.count("# why") == 2


def test_only_what_needs_quotes_has_them() -> None:
    plain = ["train.py", "--lr", "/dev/shm", "a/b:c", "8Gi", "nvidia.com/gpu", "verify", "-m"]
    assert [scalar(text) for text in plain] == plain
    quoted = ["no", "On", "1e3", "0x10", "null", "a b", "", "-1", "1:30", "~", "a:", "-n"]
    assert [scalar(text)[0] for text in quoted] == ['"'] * len(quoted)
