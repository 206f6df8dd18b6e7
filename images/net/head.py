"""The status and headers of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and headers of an answer; names in lower case. `url`: its address after redirects."""

    status: int
    headers: Mapping[str, str]
    url: str = ""

    @property
    def range(self) -> tuple[int, int, int | None] | None:
        """(first byte, last byte, total size) from Content-Range; a total of None means "*"."""
        text = self.headers.get("content-range", "")
        match = re.fullmatch(r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", text.strip())
        if match is None:
            return None
        return int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])

    @property
    def length(self) -> int | None:
        """The size of the body, if the server sent it."""
        text = self.headers.get("content-length", "")
        return int(text) if re.fullmatch(r"\d{1,18}", text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Head):
    """An answer with its whole body."""

    body: bytes = b""
