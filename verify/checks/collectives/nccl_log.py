"""Reads NCCL's own log (NCCL_DEBUG=INFO): its key warning, how far it got, its transports.

The lines are as NCCL 2.7 to 2.27 write them: `host:pid:tid [gpu] file.cc:line NCCL WARN text` and
`host:pid:tid [gpu] NCCL INFO text`.
"""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

WIDTH = 300
# Printed on every machine without InfiniBand or a network plugin, and by ranks that lost another.
_HARMLESS = re.compile(
    r"libibverbs|libmlx5|NET/Plugin|libnccl-net|libnccl-tuner|NET/IB : No device"
)
_AFTERMATH = re.compile(
    r"[Cc]onnection closed by|Connection reset|Broken pipe|Socket recv failed|"
    r"\[Service thread\]|\[Proxy Service|Timeout waiting for|remote process exited"
)
_CHANNEL = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via ([A-Z0-9]+)"
)
_PHASES = (
    ("Init COMPLETE", "after NCCL had started"),
    (" via ", "while NCCL connected the GPUs"),
    ("Using network", "while NCCL looked at the machine's links"),
    ("Bootstrap", "while NCCL's ranks looked for each other"),
)


def telling(log: str) -> str:
    """The first warning that does not just echo another rank's end, or an empty text."""
    warnings = [line for line in _lines(log) if "NCCL WARN" in line]
    warnings = [line for line in warnings if not _HARMLESS.search(line)]
    own = [line for line in warnings if not _AFTERMATH.search(line)]
    return next(iter(own or warnings), "")[:WIDTH]


def phase(log: str) -> Optional[str]:
    """How far NCCL got, in words that follow "hang"; None if the log does not show it."""
    return next((words for sign, words in _PHASES if sign in log), None)


def transports(log: str) -> Tuple[str, ...]:
    """The transports of the channels between GPUs: P2P, SHM (host memory), NET, ..."""
    return tuple(sorted(set(_CHANNEL.findall(log))))


def _lines(log: str) -> List[str]:
    return [line.strip() for line in log.splitlines() if line.strip()]
