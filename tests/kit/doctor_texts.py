"""One text as it comes from other places: coloured, escaped, stamped, wrapped, between other lines.

The doctor must name the same cause in each. Pure, and shared by the tests and the bench.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping


def coloured(text: str) -> str:
    return "\n".join(f"\033[1;31m{line[:7]}\033[0m{line[7:]}\033[K" for line in text.split("\n"))


def of_docker(text: str) -> str:
    """The json-file log of a container."""
    return "\n".join(
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-02-03T04:05:06.7Z"})
        for line in text.split("\n")
    )


def one_json_line(text: str) -> str:
    """A structured log whose message is the whole text."""
    return json.dumps({"level": "error", "msg": text, "logger": "train", "ts": 1767225600.1})


def stamped(text: str) -> str:
    return "\n".join(
        f"2026-02-03T04:05:06.789Z node7 app[4242]: {line}" for line in text.split("\n")
    )


def of_a_rank(text: str) -> str:
    lines = text.split("\n")
    ranks = [f"[rank{rank}]: {line}" for line in lines for rank in (3, 0)]
    return "\n".join(ranks)


def carriage_returns(text: str) -> str:
    return "\r\n".join(text.split("\n"))


def behind_a_progress_bar(text: str) -> str:
    bar = "".join(f"\r {n:3d}%|{'#' * (n // 10):<10}| {n}/100" for n in range(0, 100, 20))
    return f"{bar}\r{text}"


def among_others(text: str) -> str:
    before = "\n".join(f"INFO step {n} of 90, loss {3 / (n + 1):.4f}" for n in range(40))
    after = "\n".join(f"INFO shutting down worker {n}" for n in range(10))
    return f"{before}\n{text}\n{after}"


def utf16(text: str) -> bytes:
    return text.encode("utf-16")


def wrapped(text: str) -> str:
    """As a terminal of 80 columns shows it when it is copied."""
    return "\n".join(
        line if len(line) <= 80 else "\n".join(line[i : i + 80] for i in range(0, len(line), 80))
        for line in text.split("\n")
    )


def wrapped_at_words(text: str) -> str:
    """As a mail program sends it."""
    return "\n".join(
        textwrap.fill(line, 78, break_long_words=False, break_on_hyphens=False)
        if len(line) > 78
        else line
        for line in text.split("\n")
    )


VARIATIONS: Mapping[str, Callable[[str], str | bytes]] = {
    one.__name__.replace("_", " "): one
    for one in (
        coloured, of_docker, one_json_line, stamped, of_a_rank, carriage_returns,
        behind_a_progress_bar, among_others, utf16, wrapped, wrapped_at_words,
    )
}  # fmt: skip
