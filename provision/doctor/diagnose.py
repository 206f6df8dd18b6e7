"""The doctor's one entry: texts and facts in, ranked causes out."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, cast

from provision.doctor.context import TextContext
from provision.doctor.judge import judge
from provision.doctor.knowledge import Knowledge, load
from provision.doctor.model import Diagnosis, Evidence, Fact, Facts, Hit, Symptom, Value
from provision.doctor.outline import Outline, is_warning, outline
from provision.doctor.reasons import reasons
from provision.doctor.scope import closest, is_together

_KEPT_IN_MEMORY = 8 << 20
Text = tuple[str, "BinaryIO | bytes | str"]


def diagnose(
    texts: Iterable[Text] = (), facts: Facts | None = None, *, knowledge: Knowledge | None = None
) -> Diagnosis:
    """What the texts (each a name and its content) and the machine's facts show. What a text
    states of the machine that it was written on is believed for what it shows; a fix is chosen by
    what is known of the machine here.
    """
    known = knowledge or load()
    found: dict[str, Hit] = {}
    stated: dict[str, Fact] = {}
    together: dict[tuple[str, ...], tuple[Hit, ...]] = {}
    last: dict[str, Hit] = {}
    outlines: list[Outline] = []
    stated_reasons: list[Evidence] = []
    for name, content in texts:
        with _again(content) as stream:
            outlines.append(outline(stream, name))
            stated_reasons += reasons(stream, outlines[-1])
            stream.seek(0)
            hits = known.patterns.in_text(stream, name)
            apart = _apart(known, hits)
            wanted = _complete(known, hits) if apart or outlines[-1].ends else ()
            if wanted:
                stream.seek(0)
                every = known.patterns.every_hit(stream, name, wanted)
                every = {part: every[part] or [hits[part]] for part in wanted}
                last = {**{part: each[-1] for part, each in every.items()}, **last}
                for symptom in apart:
                    chosen = closest(symptom.parts, every)
                    if chosen and is_together(symptom, chosen):
                        together.setdefault(symptom.parts, chosen)
                hits.update((part, _worst(each)) for part, each in every.items())
            stream.seek(0)
            stated = {**_stated(known, hits, stream, name), **stated}
        found = {**hits, **found}
    reading = TextContext(
        together=together, last=last, outlines=outlines, reasons=stated_reasons, stated=stated
    )
    return judge(known, found, facts or {}, reading)


def _complete(knowledge: Knowledge, hits: Mapping[str, Hit]) -> set[str]:
    """The parts of the symptoms whose parts are all there."""
    return {
        part
        for failure in knowledge.candidates(hits)
        for symptom in failure.symptoms
        if all(part in hits for part in symptom.parts)
        for part in symptom.parts
    }


def _worst(hits: Sequence[Hit]) -> Hit:
    """The first hit that is more than a warning, else the first one."""
    return next((hit for hit in hits if not is_warning(hit.line)), hits[0])


def _stated(
    knowledge: Knowledge, hits: Mapping[str, Hit], stream: BinaryIO, name: str
) -> dict[str, Fact]:
    """The facts that a text's lines state; of several such lines the first one counts."""
    seen = [
        (fact, kind.kind, one, hits[one.pattern])
        for fact, kind in knowledge.facts.items()
        for one in kind.stated
        if one.pattern in hits and one.unless not in hits
    ]
    compared = [one.pattern for _, _, one, _ in seen if one.differs]
    every = knowledge.patterns.every_hit(stream, name, compared) if compared else {}
    found: dict[str, Fact] = {}
    for fact, kind, one, hit in sorted(seen, key=lambda each: each[3].number):
        value: Value | None
        if one.differs:
            other = _differs(every[one.pattern])
            value, where = (True, other.where) if other else (None, "")
        else:
            said = hit.groups.get("value", "")
            value, where = _value(kind, said) if one.value is None else one.value, hit.where
        if value is not None:
            found.setdefault(fact, Fact(value=value, where=where))
    return found


def _value(kind: str, said: str) -> Value | None:
    if kind == "int":
        return int(said) if said.isdecimal() else None
    return tuple(said.split()) if kind == "list" else said


def _differs(hits: Iterable[Hit]) -> Hit | None:
    """The first line that says something else than one before it about the same."""
    said: dict[str | None, str | None] = {}
    for hit in hits:
        value = hit.groups.get("value")
        if said.setdefault(hit.groups.get("of"), value) != value:
            return hit
    return None


def _apart(knowledge: Knowledge, hits: Mapping[str, Hit]) -> list[Symptom]:
    """The symptoms whose parts are all there, and not where their first lines are together."""
    return [
        symptom
        for failure in knowledge.candidates(hits)
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
