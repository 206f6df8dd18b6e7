"""Judges a valid record here and now: does it prove this image on this machine?"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provision.attestation.record.host import RecordedHost
from provision.attestation.record.statement import LEVELS, Statement
from provision.attestation.signing.parser import CheckedStatement
from provision.errors import Exit

CLOCK_SKEW = timedelta(minutes=5)
"""How far two clocks may differ: the same as in Kerberos.

https://web.mit.edu/kerberos/krb5-latest/doc/admin/conf_files/krb5_conf.html (clockskew)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange:
    """A difference since the record. `matters`: it invalidates the proof."""

    what: str
    was: str | None
    now: str | None
    matters: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(CheckedStatement[Statement]):
    """Verified: proven here, and nothing that matters has changed since."""

    changed: tuple[RecordChange, ...] = ()


def judge(
    statement: Statement,
    *,
    image: str,
    name: str,
    lock: str | None,
    host: RecordedHost,
    level: str | None,
    now: datetime,
    contradiction: Callable[[Statement], str | None],
    also: Collection[str] = (),
    manifest: str | None = None,
    claims: Collection[str] = (),
) -> Judgement:
    """Check a record against an image, this machine, and the requested level (None: any).

    Anything that makes the record about something else comes before its content. `also` are other
    digests that the image is known by, such as that of its manifest; `claims` are those that a file
    only says it has, which proves nothing. `manifest`: the digest that the record must name, with
    the tables of contents that it covers; None: any digest is enough. `contradiction` says if the
    verdict differs from what the checks in the record amount to.
    """
    same = not statement.images.isdisjoint({image, *also})
    known = replace(statement, image=image) if same else statement
    changed = changes(known, image=image, lock=lock, host=host)
    again = f"provision verify {name}"
    here = host.gpus_in_words

    def no(code: str, message: str, fix: str, exit_code: Exit = Exit.NO_VERDICT) -> Judgement:
        return Judgement(
            code=code,
            message=message,
            fix=fix,
            exit_code=exit_code,
            statement=statement,
            changed=changed,
        )

    if not same and not statement.images.isdisjoint(claims):
        said = (
            f"The record is of the image that {name} says it is ({statement.image[:19]}), not of "
            f"this file ({image[:19]}): a file can claim to be any image."
        )
        return no(code="record-not-of-file", message=said, fix=f"Test the file: {again}")
    if not same:
        said = f"The record is of {statement.image}, but {name} is {image}."
        return no(code="record-other-image", message=said, fix=f"Test this one: {again}")
    if manifest is not None and not (statement.has_tables and manifest in statement.images):
        said = (
            f"{name} is a lazy image, and the record does not cover its tables of contents, which "
            "a lazy start reads instead of the layers."
        )
        return no(code="record-without-tables", message=said, fix=f"Make a new record: {again}")
    if statement.lock != lock:
        said = "The record is of an image built from another lock than this one."
        return no(code="record-other-lock", message=said, fix=f"Test this one: {again}")
    if not _gpus_known(host) or not statement.host.is_like(host):
        said = f"Tested on {_machine(statement.host)}; this is {_machine(host)}."
        return no(code="record-other-host", message=said, fix=f"Test it on this machine: {again}")
    if statement.host.driver != host.driver:
        said = (
            f"Tested on {here} with driver {statement.host.driver or 'none'}; "
            f"the driver is now {host.driver or 'none'}."
        )
        return no(code="record-driver-changed", message=said, fix=f"Test it again: {again}")
    if statement.ended > now + CLOCK_SKEW:
        said = f"The record says {statement.time}, which is in the future."
        fix = f"Check the clocks of both machines, or test it again: {again}"
        return no(code="record-from-future", message=said, fix=fix)
    if (why := contradiction(statement)) is not None:
        return no(code="record-contradiction", message=why, fix=f"Test it again: {again}")
    if statement.verdict == "unfit":
        said = f"Unfit on this kind of machine on {statement.time}: a check failed."
        fix = f"See which check and how to fix it: {again}"
        return no(code="record-unfit", message=said, fix=fix, exit_code=Exit.UNFIT)
    if statement.verdict == "no-verdict":
        said = f"Run on this kind of machine on {statement.time}, but no GPU check could run."
        return no(
            code="record-no-verdict", message=said, fix=f"Test it on a machine with GPUs: {again}"
        )
    if level is not None and LEVELS.index(statement.level) < LEVELS.index(level):
        said = f"Tested at level {statement.level} only; the requested level is {level}."
        return no(code="record-lower-level", message=said, fix=f"{again} --level {level}")
    said = f"Fit on this kind of machine on {statement.time}, at level {statement.level}."
    return Judgement(
        code=None, message=said, exit_code=Exit.DONE, statement=statement, changed=changed
    )


def missing(*, name: str, image: str, host: RecordedHost, elsewhere: bool) -> Judgement:
    """There is no record of this image on this kind of machine."""
    known = " There is one of another kind of machine." if elsewhere else ""
    return Judgement(
        code="record-missing",
        message=f"There is no record of {name} ({image[:19]}) on {_machine(host)}.{known}",
        fix=f"Test it on this machine: provision verify {name}",
    )


def changes(
    statement: Statement, *, image: str, lock: str | None, host: RecordedHost
) -> tuple[RecordChange, ...]:
    """All differences. Another version of a kernel or an engine is reported but does not invalidate
    the proof: the driver's version is that of its kernel module, and the image brings the rest.
    """
    was = statement.host
    rows = (
        ("image", statement.image, image, True),
        ("lock", statement.lock, lock, True),
        ("arch", was.arch, host.arch, True),
        ("gpus", was.gpus_in_words, host.gpus_in_words, True),
        ("driver", was.driver, host.driver, True),
        ("cards", _cards(was), _cards(host), False),
        ("kernel", was.kernel, host.kernel, False),
        ("engine", was.engine, host.engine, False),
    )
    return tuple(
        RecordChange(what=what, was=then, now=now, matters=matters)
        for what, then, now, matters in rows
        if then != now
    )


def _cards(host: RecordedHost) -> str | None:
    """The individual GPUs, in an order independent of slot numbers."""
    known = sorted(gpu.uuid_sha256[:12] for gpu in host.gpus or () if gpu.uuid_sha256)
    return ", ".join(known) or None


def _gpus_known(host: RecordedHost) -> bool:
    """GPUs that could not be read equal no others, not even themselves."""
    return host.gpus is not None and all(gpu.name for gpu in host.gpus)


def _machine(host: RecordedHost) -> str:
    return f"a machine with {host.gpus_in_words} ({host.arch or 'CPU unknown'})"
