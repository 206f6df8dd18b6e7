"""For every lane."""

from __future__ import annotations

import signal

# Started in the background of a script, we inherit an ignored SIGINT, and so would every program
# that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
