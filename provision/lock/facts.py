"""What was read of wheels in this job and in earlier ones.

An index names a wheel by its address and its sha256, so what was once read of it stays true.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from images.net.address import shown_url
from images.store.store import Store
from provision.lock.lockfile import parse_lock
from provision.version import VERSION

_NAMESPACE = "wheel-facts"
_FORMAT = 1


class WheelFacts:
    """Facts about wheels, kept in this user's own store. `state`: the directory that has the store;
    None: they are kept for this job alone.
    """

    def __init__(self, state: Path | None) -> None:
        self._state = state
        self._sha256: dict[str, str] = {}
        self._known: dict[tuple[str, str], Mapping[str, Any]] = {}

    def learn(self, text: str) -> None:
        """Note the sha256 of each wheel of a lock by uv; only of such wheels facts are kept."""
        for package in parse_lock(text).packages:
            for wheel in package.wheels or ():
                if wheel.url and "sha256" in wheel.hashes:
                    self._sha256[wheel.url] = wheel.hashes["sha256"]

    def of(
        self,
        kind: str,
        addresses: Iterable[str],
        read: Callable[[list[str]], Mapping[str, Mapping[str, Any]]],
    ) -> dict[str, Mapping[str, Any]]:
        """The facts of a kind, JSON values, by address: `read` gets the addresses whose facts are
        not known, and what it leaves out is read again next time.
        """
        wanted = dict.fromkeys(addresses)
        new = [address for address in wanted if (kind, address) not in self._known]
        with contextlib.ExitStack() as held:
            store = Store.private(self._state) if self._state is not None and new else None
            keyed = {a: self._key(kind, a) for a in new if a in self._sha256} if store else {}
            if store is not None:
                held.enter_context(store)
                for address, key in keyed.items():
                    if (kept := store.facts(_NAMESPACE, key)) is not None:
                        self._known[kind, address] = kept
            left = [address for address in new if (kind, address) not in self._known]
            for address, fact in (read(left) if left else {}).items():
                self._known[kind, address] = fact
                if store is not None and address in keyed:
                    store.remember_facts(_NAMESPACE, keyed[address], fact)
        known = self._known
        return {one: known[kind, one] for one in wanted if (kind, one) in known}

    def _key(self, kind: str, address: str) -> str:
        """The version is part of it: another one may read more of a wheel."""
        return f"{VERSION} {_FORMAT} {kind} {self._sha256[address]} {shown_url(address)}"
