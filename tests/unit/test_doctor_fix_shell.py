"""Reading shell texts: where commands end, which programs they start, what sudo is."""

from __future__ import annotations

import pytest

from provision.doctor.mending.shell import commands, needs_sudo, programs, without_sudo


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", ("a", "b")),
        ("\n# only a comment\na\n\n", ("a",)),
        ("a \\\n  b\nc", ("a \\\n  b", "c")),
        ("a |\nb\nc", ("a |\nb", "c")),
        ("a &&\nb", ("a &&\nb",)),
        ("a 'one\ntwo' b\nc", ("a 'one\ntwo' b", "c")),
        ('a "one\n$(b "c\nd")" e\nf', ('a "one\n$(b "c\nd")" e', "f")),
        ("cat <<'END'\nit's\nEND\nb", ("cat <<'END'\nit's\nEND", "b")),
        ("a \\\\\nb", ("a \\\\", "b")),
        ("a 'never closed", ("a 'never closed",)),
        ("", ()),
    ],
)
def test_a_command_ends_where_the_shell_says(text: str, expected: tuple[str, ...]) -> None:
    assert commands(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sudo apt-get install -y x", {"sudo", "apt-get"}),
        ("sudo env A=1 apt-get update", {"sudo", "env", "apt-get"}),
        ("A=1 b c", {"b"}),
        ("VERSION=$(cat /x)", {"cat"}),
        ("a | b && c || d; e & f", {"a", "b", "c", "d", "e", "f"}),
        ("if a; then b; else c; fi", {"a", "b", "c"}),
        ("! a", {"a"}),
        ("a >b 2>&1 <c", {"a"}),
        (">b a", {"a"}),
        ('a "$(b "$(c)")" \'$(d)\'', {"a", "b", "c"}),
        ("a $((1 + 2))", {"a"}),
        ("for x in a b; do c; done", {"c"}),
        ("sudo -E a", {"sudo", "a"}),
        ("x | xargs -r sudo a", {"x", "xargs", "sudo", "a"}),
        ("env -u NAME a | xargs -n 1 b", {"env", "a", "xargs", "b"}),
        ("sudo -u somebody a", {"sudo", "a"}),
        ("command -v a", {"command"}),
        ("echo 'sudo rm' # sudo rm", {"echo"}),
        ("cat <<END\nrm x\nEND", {"cat"}),
        ("'quoted' x", {"quoted"}),
    ],
)
def test_the_programs_of_a_text_are_those_that_the_shell_starts(
    text: str, expected: set[str]
) -> None:
    assert programs(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sudo a b", "a b"),
        ("sudo -E a", "a"),
        ("sudo A=1 b", "A=1 b"),
        ("a | sudo tee b", "a | tee b"),
        ("a && sudo b || sudo c", "a && b || c"),
        ("if a; then sudo b; fi", "if a; then b; fi"),
        ('x "$(sudo b)"', 'x "$(b)"'),
        ("x | xargs -r sudo a", "x | xargs -r a"),
        ("test -e f || sudo sed -i 's/sudo x/y/' f", "test -e f || sed -i 's/sudo x/y/' f"),
        ("echo sudo a", "echo sudo a"),
        ("sudo -u somebody a", "sudo -u somebody a"),
        ("sudo", "sudo"),
    ],
)
def test_sudo_goes_where_it_is_run_and_nowhere_else(text: str, expected: str) -> None:
    assert without_sudo(text) == expected


def test_a_word_that_only_looks_like_sudo_needs_none() -> None:
    assert needs_sudo("a | sudo b")
    assert not needs_sudo("echo sudo; a 'sudo b'; pseudo c")
