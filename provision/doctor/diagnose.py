"""The doctor's one entry: texts and facts in, ranked causes out."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, cast

from provision.doctor.judge import Reading, judge
from provision.doctor.knowledge import Knowledge, load
from provision.doctor.model import Diagnosis, Facts, Hit, Symptom
from provision.doctor.outline import Outline, outline
from provision.doctor.scope import closest, is_together

_KEPT_IN_MEMORY = 8 << 20
Text = tuple[str, "BinaryIO | bytes | str"]


def diagnose(
    texts: Iterable[Text] = (), facts: Facts | None = None, *, knowledge: Knowledge | None = None
) -> Diagnosis:
    """What the texts (each a name and its content) and the machine's facts show."""
    known = knowledge or load()
    found: dict[str, Hit] = {}
    together: dict[tuple[str, ...], tuple[Hit, ...]] = {}
    outlines: list[Outline] = []
    for name, content in texts:
        with _again(content) as stream:
            outlines.append(outline(stream, name))
            stream.seek(0)
            hits = known.patterns.in_text(stream, name)
            apart = _apart(known, hits)
            if apart:
                stream.seek(0)
                wanted = {part for symptom in apart for part in symptom.parts}
                every = known.patterns.every_hit(stream, name, wanted)
                every = {part: every[part] or [hits[part]] for part in wanted}
                for symptom in apart:
                    chosen = closest(symptom.parts, every)
                    if chosen and is_together(symptom, chosen):
                        together.setdefault(symptom.parts, chosen)
        found = {**hits, **found}
    return judge(known, found, facts or {}, Reading(together=together, outlines=outlines))


def _apart(knowledge: Knowledge, hits: Mapping[str, Hit]) -> list[Symptom]:
    """The symptoms whose parts are all there, and not where their first lines are together."""
    return [
        symptom
        for failure in knowledge.failures
        for symptom in failure.symptoms
        if len(symptom.parts) > 1
        and all(part in hits for part in symptom.parts)
        and not is_together(symptom, [hits[part] for part in symptom.parts])
    ]


@contextlib.contextmanager
def _again(content: BinaryIO | bytes | str) -> Iterator[BinaryIO]:
    """A stream that can be read from its start again; what cannot, a pipe, is kept as it comes."""
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    if isinstance(content, bytes):
        yield io.BytesIO(content)
    elif content.seekable():
        yield content
    else:
        with tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY) as kept:
            shutil.copyfileobj(content, kept)
            kept.seek(0)
            yield cast("BinaryIO", kept)
