"""The errors. Imports nothing of this package."""

from __future__ import annotations

from collections.abc import Sequence


class SetupError(Exception):
    """An error that a user can correct. `code` is the exit code: 4 this host, 5 network or disk."""

    def __init__(self, message: str, fix: str, *, code: int = 5) -> None:
        super().__init__(message)
        self.fix = fix
        self.code = code


class FetchError(Exception):
    """A page or file could not be fetched. `fix` is empty if the user should check the network."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


class PipFailedError(Exception):
    """pip gave up. `lines` are what it printed."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("pip failed")
        self.lines = lines

    @property
    def changed_packages(self) -> bool:
        """Whether it had started to install."""
        return any(line.startswith("Installing collected packages") for line in self.lines)
