"""`provision verify`: the suite in an image, its report in files, and a record of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from images.errors import Failure, full_disk
from images.oci.reference import parse_reference
from images.registry.target import RegistryTarget
from images.system.interruption import HandedOn
from provision.attestation.provenance.attach import attach_signed, registry_manifest
from provision.attestation.provenance.public import public_name
from provision.attestation.record.host import RecordedHost
from provision.attestation.record.statement import make_statement
from provision.attestation.record.store import (
    RECORDS,
    host_now,
    record_path,
    signer_of,
    write_record,
)
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import Signer
from provision.catalog.catalog import Catalog
from provision.errors import BadInputError, Exit
from provision.host.gpu_request import gpus_to_request
from provision.lock.labels import LOCK_SHA256, cut_of, plan_of
from provision.model.plan import TITLES, Framework, HostFacts, Plan
from provision.output.console import Console
from provision.output.files import refuse_unwritable
from provision.resolve.packages import FRAMEWORKS, frameworks_in, seen_by
from provision.verification.cut import refuse_other_gpus
from provision.verification.report_files import (
    compared,
    refuse_unusable,
    write_failure,
    write_files,
)
from provision.verification.subject import ImagePlaces, Subject, find_subject, ready
from provision.verification.suite import (
    SuiteRequest,
    check_names,
    interruption,
    report_bytes,
    run_suite,
)
from provision.verification.tables import compare_tables

ENDING_S = 8.0
"""How long the suite may take to write its report after a signal: it gives itself 6 seconds."""
_EXIT = {"fit": Exit.DONE, "unfit": Exit.UNFIT, "no-verdict": Exit.NO_VERDICT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Whether and where a record is kept. `home` is the directory of this user's own records (in
    `folder`) and key; `path` and `key` replace them if given; `attach`: also to the image in its
    registry.
    """

    home: Path
    folder: str = RECORDS
    enabled: bool = True
    path: Path | None = None
    key: Path | None = None
    attach: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One verification: of which image, how, and what is kept. `framework`: of several, this."""

    image: str
    suite: SuiteRequest
    recording: Recording
    framework: Framework | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    baseline: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The result. `trouble` is what failed after the report was made; the exit code shows it unless
    something worse happened.
    """

    report: dict[str, Any]
    code: Exit
    trouble: Failure | None = None


def verify(
    order: Order,
    *,
    places: ImagePlaces,
    facts: Callable[[], HostFacts],
    catalog: Catalog,
    console: Console,
) -> VerifyResult:
    """Validate the request, run the suite, and keep its results. BadInputError: the request is
    invalid; else the error of the image's place or engine.
    """
    refuse_unusable(order.files, order.baseline)
    if order.recording.enabled and order.recording.path is not None:
        refuse_unwritable("--record", order.recording.path)
    with _failure_in_files(order):
        signer = _signer(order.recording, console)
        subject = find_subject(order.image, places)
        if order.recording.attach and subject.registry is None:
            raise BadInputError(
                f"{order.image} is not in a registry; --attach-record needs an image in one.",
                fix="Name it by its registry: docker://REGISTRY/PATH:TAG",
            )
        plan = _plan_for(order, plan_of(subject.labels, order.image), console)
        check_names(order.suite, plan.framework)
        here = facts()
        refuse_other_gpus(subject.labels, order.image, here, catalog)
        compare_tables(subject, places.state, console)
        with (
            console.step("verify", f"{order.image}, level {order.suite.level}", named=True),
            ready(subject, places, console) as (runner, handle),
            HandedOn(ENDING_S) as signals,
        ):
            report, notes = run_suite(
                runner,
                handle,
                plan,
                here,
                order.suite,
                image_id=subject.image_id,
                gpus=gpus_to_request(here),
                catalog=catalog,
                console=console,
                emulator=subject.emulator,
                cut=cut_of(subject.labels, order.image),
                signals=signals,
            )
            host = host_now(here, runner.name)
    for note in notes:
        console.note(note)
    trouble = _keep_files(order, report)
    if signer is not None and (cut := _part(report)):
        console.note(f"no record was saved: {cut} interrupted the run")
    elif signer is not None:
        inputs = _RecordInputs(subject, plan, subject.labels.get(LOCK_SHA256), host)
        trouble = _keep_record(order, report, inputs, signer, places, console) or trouble
    return VerifyResult(report=report, code=_exit_code(report, trouble), trouble=trouble)


def _plan_for(order: Order, plan: Plan, console: Console) -> Plan:
    """What the suite may expect of the requested framework; by default that of the plan."""
    others = [FRAMEWORKS[name] for name in frameworks_in(plan)]
    if order.framework in {None, plan.framework}:
        for other in others:
            console.note(
                f"{TITLES[other]} is in the image, too: provision verify {order.image} "
                f"--framework {other}"
            )
        return plan
    for other in others:
        if other == order.framework:
            return seen_by(plan, other)
    raise BadInputError(
        f"{order.image} was not made for --framework {order.framework}: it has "
        f"{' and '.join(TITLES[one] for one in (plan.framework, *others))}.",
        fix="Remove --framework.",
    )


@contextmanager
def _failure_in_files(order: Order) -> Iterator[None]:
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        with suppress(OSError):  # the reason why there is no report is the more useful error
            write_failure(order.files, order.image, error)
        raise


def _signer(recording: Recording, console: Console) -> Signer | None:
    """The signer. A named key must be usable; the default one is created if that is possible."""
    if not recording.enabled:
        return None
    try:
        return signer_of(recording.home, recording.key)
    except (StatementError, OSError) as error:
        if recording.path is not None or recording.key is not None:
            if isinstance(error, OSError):
                raise _no_key(recording, error) from error
            raise
        _warn_no_record(error, console)
        return None


def _keep_files(order: Order, report: dict[str, Any]) -> Failure | None:
    """Compare and write the files; a failure here does not lose the report."""
    trouble = None
    try:
        if order.baseline is not None and not interruption(report):
            report["comparison"] = compared(report, order.baseline)
    except Failure as failure:
        trouble = failure
    try:
        write_files(report, order.files)
    except Failure as failure:
        trouble = failure
    return trouble


@dataclass(frozen=True, slots=True)
class _RecordInputs:
    """What the record says beside the report."""

    subject: Subject
    plan: Plan
    lock: str | None
    host: RecordedHost


def _keep_record(
    order: Order,
    report: Mapping[str, Any],
    inputs: _RecordInputs,
    signer: Signer,
    places: ImagePlaces,
    console: Console,
) -> Failure | None:
    recording = order.recording
    statement = make_statement(
        report,
        report_sha256=hashlib.sha256(report_bytes(report)).hexdigest(),
        name=public_name(order.image) or "image",
        image=inputs.subject.image_id,
        also=(inputs.subject.digest,) if inputs.subject.digest else (),
        has_tables=inputs.subject.manifest is not None,
        plan=inputs.plan,
        lock=inputs.lock,
        host=inputs.host,
        level=order.suite.level,
        now=datetime.now(timezone.utc),
    )
    path = recording.path or record_path(
        recording.home, inputs.subject.image_id, inputs.host, recording.folder
    )
    try:
        write_record(path, statement, signer)
    except OSError as error:
        if recording.path is None:
            _warn_no_record(error, console)
            return None
        return full_disk(error, f"The record {path}") or RecordNotWrittenError(
            f"The record could not be written to {path}: {error.strerror}.",
            fix="Choose another place: --record FILE",
        )
    console.note(f"record: {path}")
    return _attach_record(inputs.subject, path, places, console) if recording.attach else None


def _attach_record(
    subject: Subject, path: Path, places: ImagePlaces, console: Console
) -> Failure | None:
    """Attach it to the image in its registry, where later users of the image find it."""
    assert subject.registry is not None
    try:
        repository = _repository(subject.registry)
        manifest = registry_manifest(f"{repository}@{subject.digest}", places.ca)
        with closing(RegistryTarget.open(repository, ca_bundle=places.ca)) as registry:
            attach_signed(registry, manifest, path.read_bytes())
    except (Failure, OSError) as error:
        if isinstance(error, Failure):
            return error
        raise
    console.note(f"attached to {subject.registry}")
    return None


def _repository(reference: str) -> str:
    """The name without tag and digest."""
    parsed = parse_reference(reference)
    return f"{parsed.registry}/{parsed.repository}"


class RecordNotWrittenError(Failure):
    """A requested record could not be written."""

    code = "record-not-written"
    exit_code = Exit.USAGE


def _no_key(recording: Recording, error: OSError) -> RecordNotWrittenError:
    return RecordNotWrittenError(
        f"No key can be kept in {recording.home / 'keys'}: {error.strerror}.",
        fix="Make that directory writable, name a key (--key FILE), or give --no-record.",
    )


def _warn_no_record(error: Failure | OSError, console: Console) -> None:
    why = error.message if isinstance(error, Failure) else f"{error.strerror}: {error.filename}"
    fix = "Make the place writable, name another (--record FILE), or give --no-record."
    console.warn(
        f"No record of this run was saved: {why}", error.fix if isinstance(error, Failure) else fix
    )


def _part(report: Mapping[str, Any]) -> str | None:
    """The signal that ended the run, unless a check had failed: that counts as in any run."""
    return None if report["verdict"] == "unfit" else interruption(report)


def _exit_code(report: Mapping[str, Any], trouble: Failure | None) -> Exit:
    """Worse than the baseline is unfit; what could not be kept counts only if all else is well."""
    if _part(report):
        return Exit.INTERRUPTED
    code = _EXIT[report["verdict"]]
    if report.get("comparison", {}).get("worse"):
        code = Exit.UNFIT
    return Exit(trouble.exit_code) if trouble is not None and code is not Exit.UNFIT else code
