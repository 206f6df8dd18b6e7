"""The doctor's one entry: texts and facts in, ranked causes out."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO, cast

from provision.doctor.causes import find_causes
from provision.doctor.context import TextContext
from provision.doctor.contradictions import contradictions
from provision.doctor.knowledge import Knowledge, load
from provision.doctor.lines import Work
from provision.doctor.log_facts import ReportedFacts, merged, origin_of, read_log_facts
from provision.doctor.model import (
    Contradiction,
    Diagnosis,
    Evidence,
    Facts,
    FactsOf,
    Hit,
    PartlyRead,
    Symptom,
)
from provision.doctor.outline import Outline, is_warning, outline
from provision.doctor.reasons import reasons
from provision.doctor.scope import closest, is_together

_KEPT_IN_MEMORY = 8 << 20
Text = tuple[str, "BinaryIO | bytes | str"]


def diagnose(
    texts: Iterable[Text] = (),
    facts: Facts | None = None,
    *,
    facts_of: FactsOf = "subject",
    knowledge: Knowledge | None = None,
) -> Diagnosis:
    """What the texts (each a name and its content) and the machine's facts show. What a text
    states of the machine that it was written on is believed for what it shows; a fix is chosen by
    what is known of the machine here. Before anything is ranked it is decided whether the facts
    count. What they show alone never answers for a text: it is `besides`. A text that costs too
    much is read in part (Work).
    """
    known = knowledge or load()
    facts = facts or {}
    found, reading, partly = _read(texts, known)
    if facts_of == "subject":
        judged = find_causes(known, found, facts, reading)
        conflicts = _contradictions(judged, reading)
        return replace(judged, facts=facts, partly=partly, contradictions=conflicts)
    origin = origin_of(reading.reported, facts)
    counts = facts_of == "texts" or origin.agreement == "agrees"
    judged = find_causes(known, found, facts if counts else {}, reading, machine=False)
    shown = {cause.code for cause in judged.causes}
    alone = find_causes(known, {}, facts).causes
    return replace(
        judged,
        origin=replace(origin, counts=counts) if facts else None,
        facts=facts if facts and counts else reading.first_reported,
        partly=partly,
        besides=tuple(cause for cause in alone if cause.code not in shown),
        contradictions=_contradictions(judged, reading),
    )


def _contradictions(judged: Diagnosis, reading: TextContext) -> tuple[Contradiction, ...]:
    return () if judged.ended_well else contradictions(reading.reported)


def _read(
    texts: Iterable[Text], known: Knowledge
) -> tuple[dict[str, Hit], TextContext, tuple[PartlyRead, ...]]:
    """The first hit of each pattern, what else is known of the texts, and what is read in part."""
    found: dict[str, Hit] = {}
    reported: ReportedFacts = {}
    together: dict[tuple[str, ...], tuple[Hit, ...]] = {}
    last: dict[str, Hit] = {}
    outlines: list[Outline] = []
    stated_reasons: list[Evidence] = []
    partly: list[PartlyRead] = []
    for name, content in texts:
        work = Work()
        with _again(content) as stream:
            outlines.append(outline(stream, name))
            stated_reasons += reasons(stream, outlines[-1])
            stream.seek(0)
            hits = known.patterns.in_text(stream, name, work)

            def every_hit(
                patterns: Collection[str],
                stream: BinaryIO = stream,
                name: str = name,
                work: Work = work,
            ) -> dict[str, list[Hit]]:
                stream.seek(0)
                return known.patterns.every_hit(stream, name, patterns, work)

            apart = _apart(known, hits)
            wanted = _complete(known, hits) if apart or outlines[-1].ends else ()
            if wanted:
                every = every_hit(wanted)
                every = {part: every[part] or [hits[part]] for part in wanted}
                last = {**{part: each[-1] for part, each in every.items()}, **last}
                for symptom in apart:
                    chosen = closest(symptom.parts, every)
                    if chosen and is_together(symptom, chosen):
                        together.setdefault(symptom.parts, chosen)
                hits.update((part, _worst(each)) for part, each in every.items())
            reported = merged(reported, read_log_facts(known, hits, every_hit))
        found = {**hits, **found}
        partly += [work.partly] if work.partly else []
    reading = TextContext(
        together=together, last=last, outlines=outlines, reasons=stated_reasons, reported=reported
    )
    return found, reading, tuple(partly)


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
