"""Reading the host: `detect()` for facts, `describe()` and `in_short()` for people."""

from provision.host.probe import detect
from provision.host.show import describe, in_short

__all__ = ["describe", "detect", "in_short"]
