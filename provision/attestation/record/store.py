"""Reads and writes records, and knows where they are."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from images.errors import Failure
from images.text.suggestions import no_such, or_nearby
from provision.attestation.record.errors import RecordUnreadableError
from provision.attestation.record.host import RecordedHost, recorded_host
from provision.attestation.record.statement import RECORD, VERDICTS, Statement, parse_statement
from provision.attestation.signing.envelope import seal, unseal
from provision.attestation.signing.errors import BadKeyError
from provision.attestation.signing.keys import (
    PublicKey,
    Signer,
    own_public,
    own_signer,
    read_public,
    read_signer,
)
from provision.model.plan import HostFacts
from provision.output.files import write_whole

_LARGEST = 32 << 20


def host_now(facts: HostFacts, engine: str) -> RecordedHost:
    """This machine, as a record describes one; `engine`: what ran the image ("docker 26.1")."""
    return recorded_host(facts, kernel=platform.release(), engine=engine)


RECORDS = "records"
GATE_RECORDS = "gate"
"""Where `gate` keeps its own: a quick run of its does not replace a longer run's record."""


BUILDS = "builds"
"""Where the verdicts of builds are kept."""


def records(home: Path, folder: str = RECORDS) -> Path:
    """The directory of this user's records."""
    return home / folder


def record_path(home: Path, image: str, host: RecordedHost, folder: str = RECORDS) -> Path:
    """The record of this image on this kind of machine: the latest run, whatever its verdict."""
    return records(home, folder) / f"{_short(image)}.{host.slug}.json"


def elsewhere(home: Path, image: str) -> bool:
    """Whether this image has a record of any kind of machine."""
    return any(records(home).glob(f"{_short(image)}.*.json"))


def write_verdict(home: Path, image: str, verdict: str) -> None:
    """Keep the verdict of a build, which makes no record. It is shown and proves nothing, so it is
    not signed; a failed write is not an error.
    """
    with contextlib.suppress(OSError):
        path = records(home, BUILDS) / f"{_short(image)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"image": image, "verdict": verdict}).encode())


def last_verdict(home: Path, image: str) -> str | None:
    """The verdict of the last test of an image by `verify` or `build`; None: there is none that can
    be read, or that this user has signed.
    """
    for path in sorted(_kept(home, image, (RECORDS, BUILDS)), key=_age):
        try:
            if path.parent.name == BUILDS:
                found = json.loads(path.read_bytes())
                image_id, verdict = found["image"], found["verdict"]
            else:
                statement, _ = read_record(path, trusted_keys(home, ()))
                image_id, verdict = statement.image, statement.verdict
        except (Failure, OSError, ValueError, KeyError, TypeError):
            continue
        if image_id == image and verdict in VERDICTS:
            return str(verdict)
    return None


def forget(home: Path, image: str) -> None:
    """Remove all records of an image on this machine."""
    for path in _kept(home, image, (RECORDS, GATE_RECORDS, BUILDS)):
        path.unlink(missing_ok=True)


def _kept(home: Path, image: str, folders: Iterable[str]) -> list[Path]:
    return [path for one in folders for path in records(home, one).glob(f"{_short(image)}.*json")]


def _age(path: Path) -> float:
    """Negative seconds since the epoch, so that the newest comes first."""
    try:
        return -path.lstat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def signer_of(home: Path, key: Path | None) -> Signer:
    """The named key, else this user's own."""
    return read_signer(key) if key is not None else own_signer(home / "keys")


def trusted_keys(home: Path, named: Iterable[Path]) -> dict[str, PublicKey]:
    """The keys that are trusted for records: this user's own, and the named ones.

    BadKeyError: a named one cannot be used, or none is named and this user's own cannot.
    """
    keys = [read_public(path) for path in named]
    try:
        own = own_public(home / "keys")
    except BadKeyError:
        if not keys:
            raise
        own = None
    return {key.keyid: key for key in [*keys, *([own] if own is not None else [])]}


def write_record(path: Path, statement: Mapping[str, Any], signer: Signer) -> None:
    """Sign the record and write it whole; OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, seal(statement, signer))


def read_record(path: Path, trusted: Mapping[str, PublicKey]) -> tuple[Statement, str]:
    """The content of a record, and the id of its key. RecordUnreadableError: there is no readable
    one; other errors of records: it is not trustworthy.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        raise RecordUnreadableError(
            no_such("record", path), fix=or_nearby(path, "Make one: provision verify IMAGE")
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > _LARGEST:
        raise RecordUnreadableError(
            f"{path} is larger than {_LARGEST >> 20} MiB, more than any record.",
            fix="Name a record: provision verify IMAGE makes one.",
        )
    payload, keyid = unseal(data, trusted, RECORD)
    return parse_statement(payload), keyid


def is_there(path: Path) -> bool:
    """Whether there is a file at `path`. RecordUnreadableError: this user may not know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def _unreadable(path: Path, error: OSError) -> RecordUnreadableError:
    return RecordUnreadableError(
        f"The record {path} cannot be read: {error.strerror}.",
        fix="Name a record that you may read, or make one where you may write: "
        "XDG_STATE_HOME=DIR provision verify IMAGE",
    )


def _short(image: str) -> str:
    return image.removeprefix("sha256:")[:12]
