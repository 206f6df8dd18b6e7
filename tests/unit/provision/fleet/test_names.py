"""Lists of nodes, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import BadInputError
from provision.fleet.nodes.calls import NodeCall
from provision.fleet.nodes.names import choose_calls, expand_names
from tests.kit.cases import cases
from verify.fleet.nodes import fold_names


@cases(
    "text names",
    ("one name", "n1", ["n1"]),
    ("each once, in their order", "n1, n0,n1", ["n1", "n0"]),
    ("as Slurm folds", "n[0-2,7],login1", ["n0", "n1", "n2", "n7", "login1"]),
    ("numbers keep their width", "n[08-10]", ["n08", "n09", "n10"]),
    ("more behind the numbers", "gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
    ("addresses", "10.0.0.7,fe80__1", ["10.0.0.7", "fe80__1"]),
)
def test_a_list_is_expanded(text: str, names: list[str]) -> None:
    assert list(expand_names(text)) == names


@cases(
    "text",
    ("nothing", ""),
    ("an empty name", "n1,,n2"),
    ("no end", "n[1-"),
    ("backwards", "n[2-1]"),
    ("empty brackets", "n[]"),
    ("letters", "n[a-b]"),
    ("numbers alone", "[1-2]"),
    ("a space for a comma", "n1 n2"),
    ("a command", "-x; reboot"),
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="is not a list of nodes"):
        expand_names(text)


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(BadInputError, match="more than 100,000 names"):
        expand_names("n[0-999999999]")


@given(st.lists(st.from_regex(r"\A[a-z]{1,4}[0-9]{0,15}\Z"), min_size=1, max_size=40, unique=True))
def test_what_the_page_folds_is_a_list(names: list[str]) -> None:
    assert sorted(expand_names(fold_names(names, most=10_000))) == sorted(names)


def test_only_the_named_nodes_are_asked() -> None:
    calls = [NodeCall(name) for name in ("a", "b", "c")]
    assert [call.name for call in choose_calls(calls, ("c", "a"))] == ["a", "c"]
    with pytest.raises(BadInputError, match="there is no node x, y, z and 1 more") as raised:
        choose_calls(calls, ("a", "z", "y", "x", "zz"))
    assert "fleet detect" in raised.value.fix
