"""Keys and tokens in texts: every format is found, and what documentation writes is not."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.text import tokens
from images.text.tokens import find_tokens, is_placeholder, token_pattern
from tests.kit.cases import cases

CHANCE = random.Random(5)
LETTERS, DIGITS = string.ascii_letters, string.digits
BASE62, HEX = LETTERS + DIGITS, "0123456789abcdef"


def some(alphabet: str, count: int) -> str:
    """Characters as a service would draw them."""
    while is_placeholder(found := "".join(CHANCE.choices(alphabet, k=count))):
        pass
    return found


def pem(kind: str, *, head: str = "") -> str:
    body = base64.encodebytes(CHANCE.randbytes(120)).decode()
    return f"-----BEGIN {kind}-----\n{head}{body}-----END {kind}-----\n"


# Tokens are put together here, so that no scanner takes this file for one that holds some.
TOKENS: dict[str, Callable[[], str]] = {
    "a private key": lambda: pem("RSA PRIVATE KEY"),
    "a private key, encrypted": lambda: pem(
        "EC PRIVATE KEY", head="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n"
    ),
    "a private key, in a service account's JSON": lambda: json.dumps(pem("PRIVATE KEY")),
    "a private key, of PGP": lambda: pem("PGP PRIVATE KEY BLOCK", head="Version: 1\n\n"),
    "a key of AWS": lambda: f"AKIA{some('ABCDEFGHIJ234567', 16)}\nsecret = {some(BASE62, 40)}",
    "a key of AWS, alone": lambda: f"aws_secret_access_key = {some(BASE62 + '/+', 40)}",
    "a signed address of AWS": lambda: f"https://h/a?X-Amz-Signature={some(HEX, 64)}",
    "a signed address of Google": lambda: f"https://h/a?X-Goog-Signature={some(HEX, 512)}",
    "a signed address of Azure": lambda: f"https://h/a?sv=2024&sig={some(BASE62, 43)}%3D",
    "a key of Azure": lambda: f"AccountKey={some(BASE62, 86)}==",
    "a token of GitHub": lambda: "ghp_" + some(BASE62, 36),
    "a token of GitHub, of the finer kind": lambda: "github_pat_" + some(BASE62, 82),
    "a token of GitLab": lambda: "glpat-" + some(BASE62, 20),
    "a token of Hugging Face": lambda: "hf_" + some(LETTERS, 34),
    "a key of OpenAI": lambda: "sk-proj-" + some(BASE62, 74) + "T3BlbkFJ" + some(BASE62, 74),
    "a key of Anthropic": lambda: "sk-ant-api03-" + some(BASE62, 93) + "AA",
    "a key of Google": lambda: "AIza" + some(BASE62, 35),
    "a client secret of Google": lambda: "GOCSPX-" + some(BASE62, 28),
    "a refresh token of Google": lambda: "1//0" + some(BASE62, 60),
    "a token of Slack": lambda: f"xoxb-{some(DIGITS, 12)}-{some(DIGITS, 12)}-{some(BASE62, 24)}",
    "a webhook of Slack": lambda: (
        f"https://hooks.slack.com/services/T{some(BASE62, 8)}/B{some(BASE62, 8)}/{some(BASE62, 24)}"
    ),
    "a key of Stripe": lambda: "sk_live_" + some(BASE62, 24),
    "a token of npm": lambda: "npm_" + some(BASE62, 36),
    "a token of PyPI": lambda: "pypi-AgEIcHlwaS5vcmc" + some(BASE62, 120),
    "a token of Databricks": lambda: "dapi" + some(HEX, 32),
    "a token of DigitalOcean": lambda: "dop_v1_" + some(HEX, 64),
    "a key of SendGrid": lambda: f"SG.{some(BASE62, 22)}.{some(BASE62, 43)}",
    "a token of Docker Hub": lambda: "dckr_pat_" + some(BASE62, 27),
    "a token of Vault": lambda: "hvs." + some(BASE62, 95),
    "a key of age": lambda: "AGE-SECRET-KEY-1" + some("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "a token of Grafana": lambda: f"glsa_{some(BASE62, 32)}_{some(HEX, 8)}",
    "a token of Replicate": lambda: "r8_" + some(BASE62, 37),
    "a key of Groq": lambda: "gsk_" + some(BASE62, 52),
    "a key of NVIDIA": lambda: "nvapi-" + some(BASE62, 64),
    "a key of xAI": lambda: "xai-" + some(BASE62, 80),
    "a key of Perplexity": lambda: "pplx-" + some(BASE62, 48),
    "a token of 1Password": lambda: "ops_eyJ" + some(BASE62, 300),
    "a key of Tailscale": lambda: f"tskey-auth-{some(BASE62, 12)}-{some(BASE62, 32)}",
    "a token of Sentry": lambda: "sntryu_" + some(HEX, 64),
    "a key of Heroku": lambda: "HRKU-AA" + some(BASE62, 58),
    "a token of Shopify": lambda: "shpat_" + some(HEX, 32),
    "a key of Linear": lambda: "lin_api_" + some(BASE62, 40),
}


def found(text: str) -> list[tuple[int, str]]:
    return [(one.line, one.kind) for one in find_tokens(text.encode())]


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("form", ["X='{}'\n", '{{"k": "{}"}}', "X={}", "- {}  # used\n", "`{}`"])
def test_a_token_is_found_with_its_line(kind: str, form: str) -> None:
    assert found("\n" + form.format(TOKENS[kind]())) == [(2, kind.partition(",")[0])]


def test_every_format_has_a_case() -> None:
    data = json.loads(Path(tokens.__file__).with_name("data").joinpath("tokens.json").read_text())
    assert {row["kind"] for row in data["tokens"]} == {one.partition(",")[0] for one in TOKENS}
    assert all(row["source"].startswith("https://") for row in data["tokens"])


@cases(
    "text",
    ("crosses", "hf_" + "x" * 34),
    ("words", "hf_" + "YourHuggingFaceTokenGoesRightHereOk"),
    ("the alphabet", "ghp_1234567890" + "abcdefghijklmnopqrstuvwxyz"),
    ("an id of AWS alone", "AKIAIOSFODNN7" + "EXAMPLE"),
    (
        "AWS's own example",
        "AKIAIOSFODNN7" + "EXAMPLE\nwJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
    ),
    ("an id and a digest", f"AKIA{'ABCD2345' * 2} at {'0a1b2c3d4e' * 4}"),
    ("dots", "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----"),
    ("code that reads keys", 'if "-----BEGIN RSA PRIVATE KEY-----" in text:'),
    ("a certificate", pem("CERTIFICATE")),
    ("a public key", pem("PUBLIC KEY")),
    ("a word that ends like a start", "task-force-" + "a" * 40),
    ("a name", "sk-learn-contrib-a-very-long-name-of-a-package"),
    ("a longer word", "xghp_" + some(BASE62, 36)),
    ("too long", "hf_" + some(LETTERS, 60)),
    ("a key for tests", "sk_test_" + some(BASE62, 24)),
    ("a short parameter", "https://h/a?sig=abc"),
    ("nothing", ""),
)
def test_what_is_no_token_is_not_found(text: str) -> None:
    assert found(text) == []


def test_logs_are_searched_for_the_tokens_that_are_one_word() -> None:
    pattern = re.compile(token_pattern())
    assert pattern.groups == 0
    for kind in ("a token of GitHub", "a key of OpenAI", "a token of Docker Hub"):
        token = TOKENS[kind]()
        assert pattern.fullmatch(token)
    assert not pattern.search("ops_with_inplace_method hf_xet-1.8.0-cp38-abi3-linux_x86_64.whl")


@given(st.text())
def test_no_text_is_a_bug(text: str) -> None:
    found(text)
    found(f"hf_{text} sk-{text} -----BEGIN {text}")
