"""The doctor's one entry: texts and facts in, ranked causes out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from provision.doctor.judge import judge
from provision.doctor.knowledge import Knowledge, load
from provision.doctor.model import Diagnosis, Facts, Hit

Text = tuple[str, "BinaryIO | bytes | str"]


def diagnose(
    texts: Iterable[Text] = (), facts: Facts | None = None, *, knowledge: Knowledge | None = None
) -> Diagnosis:
    """What the texts (each a name and its content) and the machine's facts show."""
    known = knowledge or load()
    found: dict[str, Hit] = {}
    for name, content in texts:
        stream = _stream(content)
        hits: Mapping[str, Hit] = known.patterns.in_text(stream, name)
        found = {**hits, **found}
    return judge(known, found, facts or {})


def _stream(content: BinaryIO | bytes | str) -> BinaryIO:
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    return io.BytesIO(content) if isinstance(content, bytes) else content
