"""A command's output: redacts secrets, splits lines, keeps the last ones."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable

CAPTURE_BYTES = 64 * 1024 * 1024
"""The most that is kept of standard output when it is captured separately."""


class SecretFilter:
    """Redacts secrets in text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # output is handled line by line, so each line of a long secret is redacted separately
        found = {line for secret in secrets for line in secret.splitlines() if line.strip()}
        self._secrets = sorted(found, key=len, reverse=True)
        self.longest = len(self._secrets[0]) if self._secrets else 0

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class Tail:
    """The last lines of a stream, within a number of characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > self._limit and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1

    def text(self) -> str:
        return "\n".join(self._lines)[-self._limit :]


class LineStream:
    """Bytes in, finished lines out. A carriage return ends a line too: progress bars use it."""

    def __init__(self, emit: Callable[[str], None], redact: SecretFilter, limit: int) -> None:
        self._emit = emit
        self._redact = redact
        self._limit = max(limit, 4 * redact.longest, 1)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> None:
        text = self._rest + self._decoder.decode(data, final)
        # a carriage return at the very end may be half of a line end
        held = "\r" if text.endswith("\r") and not final else ""
        text = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        for line in lines:
            self._emit(self._redact(line))
        rest += held
        if len(rest) > self._limit:
            # never cut a secret in two: its first part would not be redacted
            rest = self._redact(rest)
            cut = len(rest) - self._redact.longest
            self._emit(rest[:cut])
            rest = rest[cut:]
        if final and rest:
            self._emit(self._redact(rest))
            rest = ""
        self._rest = rest


class Capture:
    """All of a stream, up to a limit that only a broken command reaches."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes, *, final: bool = False) -> None:
        del final
        self._data += data[: CAPTURE_BYTES - len(self._data)]

    def text(self) -> str:
        return self._data.decode("utf-8", "replace")
