"""Reading the host: `detect()` for facts, `in_short()` for people."""

from provision.host.probe import detect
from provision.host.show import in_short

__all__ = ["detect", "in_short"]
