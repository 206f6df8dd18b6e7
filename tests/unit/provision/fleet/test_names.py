"""Lists of nodes, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import BadInputError
from provision.fleet.nodes.calls import NodeCall
from provision.fleet.nodes.names import choose_calls, expand_names
from verify.fleet.nodes import fold_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("n1", ["n1"], id="one name"),
        pytest.param("n1, n0,n1", ["n1", "n0"], id="each once, in their order"),
        pytest.param("n[0-2,7],login1", ["n0", "n1", "n2", "n7", "login1"], id="as Slurm folds"),
        pytest.param("n[08-10]", ["n08", "n09", "n10"], id="numbers keep their width"),
        pytest.param("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"], id="more behind the numbers"),
        pytest.param("10.0.0.7,fe80__1", ["10.0.0.7", "fe80__1"], id="addresses"),
    ],
)
def test_a_list_is_expanded(text: str, names: list[str]) -> None:
    assert list(expand_names(text)) == names


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("n1,,n2", id="an empty name"),
        pytest.param("n[1-", id="no end"),
        pytest.param("n[2-1]", id="backwards"),
        pytest.param("n[]", id="empty brackets"),
        pytest.param("n[a-b]", id="letters"),
        pytest.param("[1-2]", id="numbers alone"),
        pytest.param("n1 n2", id="a space for a comma"),
        pytest.param("-x; reboot", id="a command"),
    ],
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
