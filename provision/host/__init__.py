"""Reading the host: `detect()` for facts, `describe()` for people."""

from provision.host.probe import detect
from provision.host.show import describe

__all__ = ["describe", "detect"]
