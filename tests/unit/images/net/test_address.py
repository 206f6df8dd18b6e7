"""What is shown and stored of an address: nothing that is secret, and all that finds the file."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from images.net.address import shown_text, shown_url, url_secrets, usable_url
from tests.kit.cases import cases

AWS = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDX%2F20260101&X-Amz-Signature=5ec4e7"
AZURE = "sv=2024-11-04&se=2026-01-01T00%3A00%3A00Z&sr=b&sp=r&sig=5ec4e7%2Fabc%3D"
PLACE = "https://h.example/w/a-1-py3-none-any.whl"


@cases(
    "url shown secrets",
    ("nothing secret", PLACE, PLACE, set()),
    ("a login", "https://me:5ec@h.example/x", "https://h.example/x", {"5ec"}),
    ("a token", "https://t0k@h.example:8/", "https://h.example:8/", {"t0k"}),
    ("S3", f"{PLACE}?{AWS}", PLACE, {AWS, "AKIDX%2F20260101", "AKIDX/20260101"}),
    ("Azure", f"{PLACE}?{AZURE}", PLACE, {AZURE, "5ec4e7%2Fabc%3D"}),
    ("a fragment", f"{PLACE}#sha256=ab", PLACE, set()),
    ("a slash", "http://u:5e/c@h.example/x", "http://h.example/x", {"5e/c"}),
    ("a ?", "http://u:5e?c@h.example/x", "http://h.example/x", {"5e?c"}),
    ("an @", "http://u:5e@c@h.example/x", "http://h.example/x", {"5e@c"}),
    ("encoded", "http://u:5e%2Fc@h/x", "http://h/x", {"5e%2Fc", "5e/c"}),
    ("@ in path", "http://h.example:80/@s/x", "http://h.example:80/@s/x", set()),
    ("@, and IPv6", "http://[::1]:80/@s/x", "http://[::1]:80/@s/x", set()),
    ("a login, and @ in path", "http://u:5e@h/@s/x", "http://h/@s/x", {"5e"}),
    ("@ in query", "http://h.example?m=a@b", "http://h.example", {"m=a@b"}),
    ("git's", "git+https://t0k@h/x.git", "git+https://h/x.git", {"t0k"}),
    ("uv's, with a name", "own=https://u:5e@h/s", "own=https://h/s", {"5e"}),
    ("a file", "file:///home/x/@a/b.whl", "file:///home/x/@a/b.whl", set()),
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str, secrets: set[str]) -> None:
    assert shown_url(url) == shown
    assert (
        shown_text(f"at {url}, see '{url}'.").replace(f"{shown}.", shown).startswith(f"at {shown}")
    )
    assert secrets <= set(url_secrets(url))
    assert bool(secrets) == bool(url_secrets(url))


@cases(
    "url shown",
    ("a proxy", "u:5e/c@proxy.example:3128", "proxy.example:3128"),
    ("a path", "/a/@b?c", "/a/@b"),
    ("nothing", "", ""),
    ("half an address", "https://[", "https://["),
)
def test_what_has_no_scheme_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


_WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'<>#:"))
_CANARY = "C4N4RY"


@given(_WORD, _WORD, _WORD)
def test_no_login_and_no_query_is_ever_shown(before: str, behind: str, query: str) -> None:
    for word in (f"{before}{_CANARY}{behind}", quote(f"{before}{_CANARY}{behind}", safe="")):
        host, slash, _ = word.partition("/")
        if host.isdecimal() or (slash and "@" in host):
            continue  # a host and a path, as every program reads it
        for url in (f"https://u:{word}@h.example/x", f"https://h.example/x?{query}={word}"):
            assert _CANARY not in shown_url(url)
            assert _CANARY not in shown_text(f"x {url} y")
            assert any(_CANARY in one for one in url_secrets(url))


@given(st.text())
def test_every_text_has_a_form_that_can_be_shown(text: str) -> None:
    assert shown_url(shown_url(text)) == shown_url(text) or "@" in text
    assert isinstance(usable_url(text), str)
    shown_text(text)


def test_a_login_with_a_slash_is_encoded_for_programs() -> None:
    assert usable_url("http://u:5e/c@h/x?q=/") == "http://u:5e%2Fc@h/x?q=/"
    assert usable_url("http://u:5e%2Fc@h/x") == "http://u:5e%2Fc@h/x"
    assert usable_url(PLACE) == PLACE
