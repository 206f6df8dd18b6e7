"""Reading shell texts: where commands end, which programs they start, what sudo is."""

from __future__ import annotations

import pytest

from provision.doctor.mending.shell import commands, needs_sudo, programs, without_sudo
from provision.doctor.mending.written_files import UNNAMED, written


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("rm -f /a '/b c' /d/*.x", ("/a", "/b c", "/d/*.x"), id="rm names several"),
        pytest.param("sudo env A=1 rm -- -x", ("-x",), id="rm through sudo and env"),
        pytest.param("unlink /a; rmdir /b", ("/a", "/b"), id="unlink and rmdir"),
        pytest.param("mv /a /b", ("/a", "/b"), id="mv removes one and overwrites the other"),
        pytest.param("mv -t /d /x/a", ("/x/a", "/d/a"), id="mv into a directory"),
        pytest.param("cp -p /a /b", ("/b",), id="cp overwrites the last"),
        pytest.param("cp /x/a /x/b /d/", ("/d/a", "/d/b"), id="cp into a directory"),
        pytest.param("install -m 644 /a /b", ("/b",), id="install overwrites the last"),
        pytest.param("install -d /b", (), id="install makes a directory"),
        pytest.param("ln -sf /a /b", ("/b",), id="ln replaces the last"),
        pytest.param("dd if=/a of=/b", ("/b",), id="dd writes its of"),
        pytest.param("truncate -s 0 /a /b", ("/a", "/b"), id="truncate names several"),
        pytest.param("x | tee -a /a /b", ("/a", "/b"), id="tee names several"),
        pytest.param("sed -i -E 's/a/b/' /a /b", ("/a", "/b"), id="sed in place"),
        pytest.param("sed -ne s/a/b/ -i.bak /a", ("/a",), id="sed with its script as an option"),
        pytest.param("sed 's/a/b/' /a", (), id="sed that only reads"),
        pytest.param("a > /x 2>&1", ("/x",), id="a redirection"),
        pytest.param(">/x a; b >>/y; c >| /z", ("/x", "/y", "/z"), id="redirections of each kind"),
        pytest.param(
            "a < /x; cat <<END > /y\nrm /z\nEND", ("/y",), id="what is read is not written"
        ),
        pytest.param("echo 'rm /a > /b' # rm > /c", (), id="quotes and comments"),
        pytest.param(
            "if a; then rm /x; fi && ! rm /y", ("/x", "/y"), id="inside the shell's words"
        ),
        pytest.param('a "$(rm /x)"', ("/x",), id="inside a substitution"),
        pytest.param("sh -c 'rm /a; echo > /b'", ("/a", "/b"), id="a shell in the shell"),
        pytest.param("curl -o /a u; gpg --output /b", ("/a", "/b"), id="options that name a file"),
        pytest.param('rm "$HOME/.x" ~/y', ("~/.x", "~/y"), id="files of the home directory"),
        pytest.param(
            'python3 -c \'open("/x", "w").write("")\'', ("/x",), id="a program that writes"
        ),
        pytest.param("rm $X", (UNNAMED,), id="a variable names it"),
        pytest.param("rm $(ls /x)", (UNNAMED,), id="a command names it"),
        pytest.param("ls | xargs -r sudo rm -f", (UNNAMED,), id="xargs names it"),
        pytest.param("find / -delete", (UNNAMED,), id="find names it"),
        pytest.param("perl -pi -e 's/a/b/' /x", (UNNAMED,), id="perl in place"),
        pytest.param("apt-get install -y -o A::B=c x; docker ps -q", (), id="other programs"),
    ],
)
def test_what_a_text_writes_or_removes_is_known(text: str, expected: tuple[str, ...]) -> None:
    assert written(text) == expected
