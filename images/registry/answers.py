"""What a registry's refusals mean, and what its user can do about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from images.errors import Failure
from images.net.address import host_of
from images.net.head import Reply
from images.oci.reference import Reference
from images.registry.errors import (
    CONNECT_FIX,
    PUSH_FIX,
    ImageNotFoundError,
    PushRefusedError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from images.text.printable import printable

Purpose = Literal["push", "pull"]
_MOST_SAID = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRequest:
    """A request to a registry, for the message that reports its failure.

    `what` completes "could not"/"did not": "take the manifest 1.2". `clean` redacts secrets.
    """

    reference: Reference
    purpose: Purpose
    what: str
    problem: str = ""
    has_login: bool = False
    clean: Callable[[str], str] = str

    @property
    def fix(self) -> str:
        return PUSH_FIX if self.purpose == "push" else CONNECT_FIX


def said(reply: Reply) -> tuple[tuple[str, ...], str]:
    """Read the registry's error codes, and its message as one line for a terminal."""
    text = reply.body[:20_000].decode("utf-8", "replace")
    codes, words = [], []
    try:
        errors = json.loads(text).get("errors")
    except (ValueError, RecursionError, AttributeError):
        errors = None
    for error in errors if isinstance(errors, list) else ():
        if isinstance(error, dict):
            code, message = error.get("code"), error.get("message")
            codes += [code] if isinstance(code, str) else []
            words += [message] if isinstance(message, str) and message else []
    plain = "" if "<" in text[:200] or text[:1] in {"{", "["} else text
    line = " ".join("; ".join(words or codes or [plain]).split())
    return tuple(codes), printable(line)[:_MOST_SAID]


def parse_json_object(body: bytes, where: str) -> dict[str, Any]:
    """Parse an answer that must be a JSON object; `where` names its source in errors."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RegistryAnswerError(
            f"{where} did not answer like a registry: JSON was expected. "
            "A proxy or a login page may have answered instead.",
            fix=CONNECT_FIX,
            detail=printable_block(body),
        )
    return document


def refusal(asked: RegistryRequest, reply: Reply) -> Failure:
    """The error for an unexpected answer."""
    registry, status = asked.reference.registry, reply.status
    codes, words = said(reply)
    words = asked.clean(words)
    told = f': "{words}"' if words else ""
    detail = asked.clean(printable_block(reply.body))
    if 200 <= status < 400:
        return RegistryAnswerError(
            f"{registry} did not {asked.what}: it answered HTTP {status}, "
            "which is not what a registry answers there. A proxy or a login page may be between.",
            fix=asked.fix,
            detail=detail,
        )
    if status in {401, 403}:
        return _denied(asked, status, told, detail)
    if status == 404 and asked.purpose == "pull":
        return ImageNotFoundError(
            f"{registry} has no {asked.reference} (it did not {asked.what}{told}).",
            fix="Check the name and the tag; tags of old images get removed.",
            detail=detail,
        )
    if status == 429:
        return RegistryDeniedError(
            f"{registry} is rate-limiting requests from here (HTTP 429){told}.",
            fix=f"Log in, which raises the limit: docker login {registry}; or wait.",
            detail=detail,
        )
    if asked.purpose == "push" and (status == 507 or status < 500):
        return PushRefusedError(
            f"{registry} did not {asked.what} (HTTP {status}){told}.",
            fix=_refusal_fix(asked, status, codes, words),
            detail=detail,
        )
    where = host_of(reply.url) if reply.url else registry
    return RegistryUnreachableError(
        f"{registry} could not {asked.what}: HTTP {status} from {where}{told}.",
        fix=f"Try again later. {asked.fix}",
        detail=detail,
    )


def _denied(asked: RegistryRequest, status: int, told: str, detail: str) -> RegistryDeniedError:
    registry, repository = asked.reference.registry, asked.reference.repository
    right = "push to" if asked.purpose == "push" else "read"
    problem = f" ({asked.problem})" if asked.problem else ""
    gone = "" if asked.purpose == "push" else "it is not there, or "
    login = (
        f"the login that docker's configuration holds may not {right} it"
        if asked.has_login
        else f"{gone}a login that may {right} it is needed{problem}"
    )
    return RegistryDeniedError(
        f"{registry} denies permission to {right} {repository} (HTTP {status}){told}: {login}.",
        fix=f"docker login {registry}",
        detail=detail,
    )


def _refusal_fix(asked: RegistryRequest, status: int, codes: tuple[str, ...], words: str) -> str:
    registry, repository = asked.reference.registry, asked.reference.repository
    lower = words.lower()
    if status == 404 or "NAME_UNKNOWN" in codes:
        return f"Create the repository {repository} at {registry} first, or give another name."
    if status == 413:
        return (
            f"Let {registry}, or the proxy before it, take larger bodies "
            "(nginx: client_max_body_size 0)."
        )
    if status == 507 or "quota" in lower or "insufficient storage" in lower:
        return f"Free space at {registry}, or have its quota raised."
    if "TAG_INVALID" in codes or "immutable" in lower or status == 409:
        return "Give another tag: this one may not be changed."
    return f"See what {registry} says; its administrator can tell the rule."


def printable_block(body: bytes) -> str:
    """The beginning of a body, made printable line by line."""
    text = body[:2000].decode("utf-8", "replace")
    return "\n".join(map(printable, text.splitlines()))
