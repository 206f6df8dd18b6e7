"""The words that a pattern needs: no line that it matches may be without them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.doctor import load
from provision.doctor.knowledge import patterns_of
from provision.doctor.literals import needs_of
from provision.doctor.matching import searched


@pytest.mark.parametrize(
    ("pattern", "first"),
    [
        (r"undefined symbol:\s*nccl[A-Z]\w+", {"undefined symbol:"}),
        (r"(?i)Could NOT load (the )?libnccl\.so", {"libnccl.so"}),
        (r"NCCL (too old|not backwards)", {"too old", "not backwards"}),
        (r"abcd?efgh+ijklm", {"ijklm"}),
        (r"(?:abcdef|ghijkl)?xyz9", {"xyz9"}),
        (r"[a\]b]word(?P<n>\d+)tails", {"tails"}),
        (r"[^]x]words[[:alpha:]]", {"words"}),
        (r"\bX[Ii][Dd]\s*79", {"xid"}),
        (r"before\x41\pLafterwards", {"afterwards"}),
        (r"^exactly this$", {"exactly this"}),
        (r"(?i:Hello)\.World|(?:other){2,}", {".world", "other"}),
        (r"failed: (nvml|cudnn)", {"nvml", "cudnn"}),
        # what every log of a GPU says is less telling than a number, and a number than a word
        (r"cuda error 719", {"cuda error 719"}),
        (r"cuda \w+ 719", {" 719"}),
        (r"cuda \w+ 719\s+deadlock", {"deadlock"}),
        (r"docker\.(io|com)/nvidia", {"/nvidia"}),
        (r"a{0,2}bcdef", {"bcdef"}),
        (r"a{3}bcdef", {"bcdef"}),
    ],
)
def test_the_most_telling_need_of_a_pattern(pattern: str, first: set[str]) -> None:
    assert set(needs_of(pattern)[0]) == first


@pytest.mark.parametrize("pattern", [r"\d+", r"abc|", r"(?:abc)?", r".*", r"[abc]+"])
def test_a_pattern_without_a_certain_word_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no word"):
        needs_of(pattern)


WORDS = st.sampled_from(["cuda", "nccl", "Error", "x", "/dev/", "is lost", "=", " "])
LEAVES = st.one_of(
    WORDS.map(lambda word: word.replace(".", r"\.")),
    st.sampled_from([r"\d", r"\s*", ".*", "[abc]", "[Xx]", r"\w+", "y?", r"\b"]),
)
PATTERNS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        inner.map(lambda part: f"(?:{part})?"),
        inner.map(lambda part: f"(?i:{part})"),
        inner.map(lambda part: f"(?:{part}){{0,2}}"),
        inner.map(lambda part: f"(?P<name>{part})+" if "(?P" not in part else part),
    ),
    max_leaves=8,
)
TEXTS = st.lists(
    st.sampled_from(["cuda", "NCCL", "error", "x", "X", "/dev/", "is lost", "=", " ", "7", "y"]),
    max_size=8,
).map("".join)


@settings(max_examples=400)
@given(PATTERNS, TEXTS)
def test_what_a_pattern_matches_holds_a_word_of_each_need(pattern: str, text: str) -> None:
    try:
        needs = needs_of(pattern)
    except ValueError:
        return
    if searched(pattern, text):
        assert all(any(word in text.lower() for word in need) for need in needs)


def test_every_pattern_that_is_shipped_has_a_word() -> None:
    patterns = {pattern for one in load().failures for pattern in patterns_of(one)}
    assert min(len(needs_of(pattern)) for pattern in patterns) >= 1
