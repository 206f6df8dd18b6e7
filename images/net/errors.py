"""Errors from requests to servers, and what to type then."""

from __future__ import annotations

from typing import Literal

from images.errors import Failure

REACH_FIX = (
    "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE), "
    "or download the wheel and give the file."
)
TRUST_FIX = "Name your organisation's certificates: --ca-bundle FILE, or set SSL_CERT_FILE."

Kind = Literal[
    "broken",
    "busy",
    "late",
    "slow",
    "unreachable",
    "name",
    "certificate",
    "address",
    "redirect",
    "unencrypted",
]
_FINAL = frozenset({"certificate", "address", "redirect", "unencrypted"})


class BadCaBundle(Failure):
    """A CA bundle that is unreadable or has no certificate."""

    code = "bad-ca-bundle"
    exit_code = 2


class BrokenOff(Exception):  # noqa: N818  callers turn it into a Failure
    """A request that failed; the next try may succeed, unless it is `final`.

    `why` completes "the server ..."; it contains no address, which may have a signature in it.
    `asked_s`: the wait that the server requests (Retry-After).
    """

    def __init__(
        self,
        why: str,
        *,
        host: str = "",
        kind: Kind = "broken",
        fix: str = REACH_FIX,
        final: bool = False,
        asked_s: float | None = None,
    ) -> None:
        super().__init__(f"{host} {why}".strip())
        self.why = why
        self.host = host
        self.kind: Kind = kind
        self.fix = TRUST_FIX if kind == "certificate" else fix
        self.final = final or kind in _FINAL
        self.asked_s = asked_s
