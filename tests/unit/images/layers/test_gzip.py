"""Our deflate: what any library reads back, and the same bytes for ever."""

from __future__ import annotations

import gzip as standard
import hashlib
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.layers import gzip

texts = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(1, 1200).map(bytes),
        st.sampled_from([b"sha256=", b"opt/venv/lib/", b"\xff\x90", b"abcabcabc"]),
    ),
    max_size=30,
).map(b"".join)


@given(content=texts, search=st.booleans())
def test_any_library_inflates_what_we_deflate(content: bytes, search: bool) -> None:  # noqa: FBT001
    packed = gzip.deflate(content, search=search)
    inflater = zlib.decompressobj(-15)
    assert inflater.decompress(packed) == content
    assert inflater.eof
    assert not inflater.unused_data


@given(contents=st.lists(texts, max_size=5))
def test_members_one_behind_the_other_are_one_file(contents: list[bytes]) -> None:
    assert standard.decompress(b"".join(map(gzip.pack, contents))) == b"".join(contents)


@given(content=st.binary(max_size=3000), search=st.booleans())
def test_nothing_grows_by_more_than_the_frame_of_a_stored_block(
    content: bytes,
    search: bool,  # noqa: FBT001
) -> None:
    assert len(gzip.deflate(content, search=search)) <= len(content) + 5


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize(
    "count", [*range(12), *range(255, 265), 516, 517, 4095, 4096, 4097, 70_000]
)
def test_runs_of_any_length_come_back(count: int, *, search: bool) -> None:
    content = b"a" + bytes(count) + b"b"
    packed = gzip.deflate(content, search=search)
    assert zlib.decompress(packed, -15) == content
    assert len(packed) < 40 + count / 100


@pytest.mark.parametrize(
    "distance", [5, 6, 7, 8, 9, 255, 256, 257, 258, 4097, 32_767, 32_768, 32_769]
)
def test_matches_at_any_distance_come_back(distance: int) -> None:
    noise = random.Random(distance).randbytes(distance)
    content = noise + noise[:300]
    packed = gzip.deflate(content, search=True)
    assert zlib.decompress(packed, -15) == content


def test_large_contents_that_do_not_compress_are_stored_in_blocks() -> None:
    content = random.Random(1).randbytes(200_000)
    packed = gzip.deflate(content, search=True)
    assert zlib.decompress(packed, -15) == content
    assert len(packed) == 200_000 + 5 * 4


def test_text_that_repeats_is_less_than_half() -> None:
    content = b"".join(
        b"    def test_%d(self) -> None:\n        assert it\n" % i for i in range(500)
    )
    assert len(gzip.deflate(content, search=True)) < len(content) / 3


def test_the_bytes_are_those_of_the_first_day() -> None:
    """A change here changes every layer: then transcode.FORMAT is raised, and this digest."""
    text = b"".join(b"row %d, sha256=%d\n" % (i, i * i * 7919) for i in range(2000)) + bytes(999)
    packed = gzip.pack(text) + gzip.pack(text, search=True)
    assert hashlib.sha256(packed).hexdigest() == GOLDEN


GOLDEN = "aca4de7ff56846da535830a9ee1648fda4ed2f1e12df7bec51571c7e78b42ce1"
