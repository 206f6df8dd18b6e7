"""Reading shell texts: where commands end, which programs they start, what sudo is."""

from __future__ import annotations

import pytest

from provision.doctor.mending.shell import commands, needs_sudo, programs, without_sudo
from provision.doctor.mending.written_files import UNNAMED, written
from tests.kit.cases import cases


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


@cases(
    "text expected",
    ("rm names several", "rm -f /a '/b c' /d/*.x", ("/a", "/b c", "/d/*.x")),
    ("rm through sudo and env", "sudo env A=1 rm -- -x", ("-x",)),
    ("unlink and rmdir", "unlink /a; rmdir /b", ("/a", "/b")),
    ("mv removes one and overwrites the other", "mv /a /b", ("/a", "/b")),
    ("mv into a directory", "mv -t /d /x/a", ("/x/a", "/d/a")),
    ("cp overwrites the last", "cp -p /a /b", ("/b",)),
    ("cp into a directory", "cp /x/a /x/b /d/", ("/d/a", "/d/b")),
    ("install overwrites the last", "install -m 644 /a /b", ("/b",)),
    ("install makes a directory", "install -d /b", ()),
    ("ln replaces the last", "ln -sf /a /b", ("/b",)),
    ("dd writes its of", "dd if=/a of=/b", ("/b",)),
    ("truncate names several", "truncate -s 0 /a /b", ("/a", "/b")),
    ("tee names several", "x | tee -a /a /b", ("/a", "/b")),
    ("sed in place", "sed -i -E 's/a/b/' /a /b", ("/a", "/b")),
    ("sed with its script as an option", "sed -ne s/a/b/ -i.bak /a", ("/a",)),
    ("sed that only reads", "sed 's/a/b/' /a", ()),
    ("a redirection", "a > /x 2>&1", ("/x",)),
    ("redirections of each kind", ">/x a; b >>/y; c >| /z", ("/x", "/y", "/z")),
    ("what is read is not written", "a < /x; cat <<END > /y\nrm /z\nEND", ("/y",)),
    ("quotes and comments", "echo 'rm /a > /b' # rm > /c", ()),
    ("inside the shell's words", "if a; then rm /x; fi && ! rm /y", ("/x", "/y")),
    ("inside a substitution", 'a "$(rm /x)"', ("/x",)),
    ("a shell in the shell", "sh -c 'rm /a; echo > /b'", ("/a", "/b")),
    ("options that name a file", "curl -o /a u; gpg --output /b", ("/a", "/b")),
    ("files of the home directory", 'rm "$HOME/.x" ~/y', ("~/.x", "~/y")),
    ("a program that writes", 'python3 -c \'open("/x", "w").write("")\'', ("/x",)),
    ("a variable names it", "rm $X", (UNNAMED,)),
    ("a command names it", "rm $(ls /x)", (UNNAMED,)),
    ("xargs names it", "ls | xargs -r sudo rm -f", (UNNAMED,)),
    ("find names it", "find / -delete", (UNNAMED,)),
    ("perl in place", "perl -pi -e 's/a/b/' /x", (UNNAMED,)),
    ("other programs", "apt-get install -y -o A::B=c x; docker ps -q", ()),
)
def test_what_a_text_writes_or_removes_is_known(text: str, expected: tuple[str, ...]) -> None:
    assert written(text) == expected
