"""The logins of a build: read as they are written, and for no other host than theirs."""

from __future__ import annotations

import base64
import netrc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from images.net.logins import authorization, read_logins
from provision.lock.network import make_secrets
from tests.kit.cases import cases

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(user=WORDS, password=WORDS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_build_is_given_is_read_as_it_was_meant(
    monkeypatch: pytest.MonkeyPatch, user: str, password: str
) -> None:
    login = {"pypi.example": (user, password)}
    monkeypatch.setattr("provision.host.uv.netrc_logins", lambda _: login)
    made = make_secrets(ca=None, index=None, hosts=["pypi.example"], env={"UV_DEFAULT_INDEX": "x"})
    assert read_logins(made.netrc) == login


@cases(
    "text logins",
    ("nothing", "", {}),
    ("one line", "machine a login b password c", {"a": ("b", "c")}),
    ("three lines", "machine a\n\tlogin b\n\tpassword c\n", {"a": ("b", "c")}),
    ("another order", "machine A.B password c login b", {"a.b": ("b", "c")}),
    ("no user", "machine a password c", {"a": ("", "c")}),
    ("an account", "machine a login b account x password c", {"a": ("b", "c")}),
    ("a default login", "default login b password c", {}),
    ("a host, then a default", "machine a login b password c default login x password y",
     {"a": ("b", "c")}),
    ("quoted", 'machine a login b password "c \\"d\\\\"', {"a": ("b", 'c "d\\')}),
    ("torn off", "machine", {"": ("", "")}),
    ("torn off later", "machine a login", {"a": ("", "")}),
)  # fmt: skip
def test_lines_of_a_netrc(text: str, logins: dict[str, tuple[str, str]]) -> None:
    assert read_logins(text) == logins


@given(
    hosts=st.dictionaries(
        st.from_regex(r"[a-z0-9.-]{1,10}", fullmatch=True).filter(
            lambda host: host not in {"default", "macdef", "machine", "login", "password"}
        ),
        st.tuples(*[st.from_regex(r"[A-Za-z0-9_.@%-]{1,10}", fullmatch=True)] * 2).filter(
            lambda pair: not {"machine", "login", "password", "account", "default"} & {*pair}
        ),
        max_size=4,
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_lines_are_read_as_the_standard_library_reads_them(
    tmp_path: Path, hosts: dict[str, tuple[str, str]]
) -> None:
    text = "".join(f"machine {h} login {u} password {p}\n" for h, (u, p) in hosts.items())
    path = tmp_path / "netrc"
    path.write_text(text)
    found = {host: (login, word) for host, (login, _, word) in netrc.netrc(path).hosts.items()}
    assert read_logins(text) == found


@cases(
    "url sent",
    ("the host", "https://host.example/x.whl", "ann:secret"),
    ("in capitals", "https://HOST.example/x.whl", "ann:secret"),
    ("at another port", "https://host.example:8443/x.whl", "ann:secret"),
    ("the address's own", "https://u%40x:p%3A@host.example/x.whl", "u@x:p:"),
    ("another host", "https://other.example/x.whl", None),
    ("a host that begins so", "https://host.example.evil/x.whl", None),
    ("a host below it", "https://sub.host.example/x.whl", None),
    ("a host above it", "https://example/x.whl", None),
    ("a path like it", "https://evil/host.example/x.whl", None),
)
def test_a_login_is_for_exactly_its_host(url: str, sent: str | None) -> None:
    headers = authorization(url, {"host.example": ("ann", "secret")})
    word = headers.get("Authorization", "").removeprefix("Basic ")
    assert (base64.b64decode(word).decode() or None) == sent


def test_a_password_of_other_letters_is_sent_as_utf_8() -> None:
    headers = authorization("https://h/x", {"h": ("ann", "pässwörd ✓")})
    assert base64.b64decode(headers["Authorization"][6:]).decode() == "ann:pässwörd ✓"
