"""The table of layers that are known to all: its rows are what they say they are."""

from __future__ import annotations

import json

from images.layers.shared import TABLE, shared_layer
from images.layers.transcode import FORMAT
from images.oci.model import is_digest

DOCUMENT = json.loads(TABLE.read_bytes())
ROWS = DOCUMENT["layers"]


def test_the_rows_are_of_the_format_of_today() -> None:
    assert DOCUMENT["format"] == FORMAT, "make them anew: python -m images.layers.shared"


def test_every_row_is_whole_and_is_found() -> None:
    for row in ROWS:
        assert is_digest(row["digest"]), row
        assert is_digest(row["diff_id"]), row
        known = shared_layer(str(row["key"]))
        assert known is not None, row
        assert (known.digest, known.size) == (row["digest"], row["size"])
        assert known.unpacked.size > known.size > 5_000_000, row


def test_no_two_rows_are_of_one_layer() -> None:
    assert len({row["key"] for row in ROWS}) == len(ROWS)
    assert len({row["digest"] for row in ROWS}) == len(ROWS)


def test_what_is_in_no_row_is_not_known() -> None:
    assert shared_layer("0" * 64) is None
