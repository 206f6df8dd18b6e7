"""Reads statements strictly; each kind of statement has its own error messages.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar

from provision.attestation.signing.errors import StatementError
from provision.errors import Exit
from provision.model import grammar

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SHA256 = re.compile(r"[0-9a-f]{64}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
CLOCK = "%Y-%m-%dT%H:%M:%SZ"
_S = TypeVar("_S")


def clock_text(time: datetime) -> str:
    """A time as statements have it, in UTC."""
    return time.astimezone(timezone.utc).strftime(CLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStatement(Generic[_S]):
    """What a valid statement says about an image here. `code` None: it proves what it should."""

    code: str | None
    message: str
    fix: str | None = None
    exit_code: Exit = Exit.NO_VERDICT
    statement: _S | None = None

    @property
    def verified(self) -> bool:
        return self.code is None


def error_to_json(outcome: CheckedStatement[_S] | StatementError) -> dict[str, str | None] | None:
    """The member "error" of a check's result."""
    if isinstance(outcome, CheckedStatement) and outcome.verified:
        return None
    return {"code": outcome.code, "message": outcome.message, "fix": outcome.fix}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementKind:
    """A kind of statement: its predicate type, its name in errors ("record"), how to get a new one,
    and its own errors, which are raised with the path of what is wrong.
    """

    predicate_type: str
    name: str
    renew: str
    unreadable: type[StatementError]
    tampered: type[StatementError]
    unknown_key: type[StatementError]

    def statement(
        self, name: str, images: Iterable[str], predicate: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The statement about an image, by its name and digests ("sha256:...")."""
        return {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": image.removeprefix("sha256:")}}
                for image in dict.fromkeys(images)
            ],
            "predicateType": self.predicate_type,
            "predicate": predicate,
        }

    def unlike(self, what: str) -> StatementError:
        """The error for content of another kind, incomplete, or of a later version."""
        return self.unreadable(
            f"This is not a {self.name} of this version: {what}.", fix=self.renew
        )

    def predicate(self, payload: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """(statement, predicate) of a payload, if it is of this kind."""
        try:
            data = self.object_at("the statement", read_json(payload))
        except ValueError as error:
            raise self.unlike("it is not JSON, or not whole") from error
        if data.get("_type") != STATEMENT_TYPE or data.get("predicateType") != self.predicate_type:
            raise self.unlike("its type is another")
        return data, self.object_at("predicate", data.get("predicate"))

    def subjects(self, statement: Mapping[str, Any], *, most: int) -> tuple[str, tuple[str, ...]]:
        """One image under one name, with each of its digests ("sha256:...")."""
        rows = self.list_at("subject", statement.get("subject"))
        if not 0 < len(rows) <= most:
            raise self.unlike(f"it names no image, or more than {most} digests")
        found = [self.object_at("subject", row) for row in rows]
        names = {self.text_at("subject.name", row.get("name")) for row in found}
        if len(names) != 1:
            raise self.unlike("it names several images")
        digests = (self.sha256_at("subject.digest", row.get("digest")) for row in found)
        return names.pop(), tuple(f"sha256:{digest}" for digest in digests)

    def object_at(self, path: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.unlike(f"{path} is not an object")
        return value

    def list_at(self, path: str, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self.unlike(f"{path} is not a list")
        return value

    def text_at(self, path: str, value: object, pattern: re.Pattern[str] | None = None) -> str:
        """Printable text that is not empty, and that the pattern matches as a whole."""
        printable = isinstance(value, str) and value and grammar.TEXT.fits(value)
        if printable and (pattern is None or pattern.fullmatch(str(value))):
            return str(value)
        raise self.unlike(f"{path} is not valid")

    def optional_text_at(self, path: str, value: object) -> str | None:
        return value if value in (None, "") else self.text_at(path, value)

    def word_at(self, path: str, value: object, words: Collection[str]) -> str:
        """One of the words."""
        if not isinstance(value, str) or value not in words:
            raise self.unlike(f"{path} is not valid")
        return value

    def sha256_at(self, path: str, value: object) -> str:
        """The hex digits in {"sha256": "..."}."""
        return self.text_at(f"{path}.sha256", self.object_at(path, value).get("sha256"), SHA256)


def read_json(data: bytes) -> object:
    """Strict JSON; ValueError for duplicate names, for NaN, for excessive nesting."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_no_name_twice, parse_constant=_no_constant
        )
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _no_constant(name: str) -> object:
    raise ValueError(name)
