"""Reads NCCL's own log (NCCL_DEBUG=INFO): its key warning, how far it got, its transports, NVLS.

The lines are as NCCL 2.7 to 2.29 write them (github.com/NVIDIA/nccl, src/transport, src/init.cc):
`host:pid:tid [gpu] file.cc:line NCCL WARN text` and `host:pid:tid [gpu] NCCL INFO text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

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
    r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via "
    r"(P2P/[A-Za-z]+|direct shared memory|NET/[^/\n]+(?:/\d+)?(?:\(\d+\))?(?:/GDRDMA)?|[A-Z0-9]+)"
)
_PROXY = re.compile(r"\(\d+\)")  # the rank that sends for another one: NET/IB/0(1)
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels,(?: \d+ collnet channels,)? (\d+) nvls ")
_MULTICAST = re.compile(r"NVLS multicast support is (not )?available")
_NVLS_FAILED = re.compile(r"nvls\.cc:\d+ NCCL WARN|NVLink SHARP \(NVLS\)")
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
    """The transports of the channels between GPUs: P2P/CUMEM, P2P/IPC, P2P/direct, SHM (host
    memory), NET with network and device ("NET/IB/0/GDRDMA").
    """
    found = {_PROXY.sub("", way) for way in _CHANNEL.findall(log)}
    return tuple(sorted("SHM" if way == "direct shared memory" else way for way in found))


def has(ways: Sequence[str], kind: str) -> bool:
    """Whether one of the transports is of this kind: P2P, SHM, NET."""
    return any(way.partition("/")[0] == kind for way in ways)


@dataclass(frozen=True)
class CollectiveSetup:
    """What NCCL set up for collectives. NVLS is NVLink SHARP: NVSwitches add up."""

    channels: int = 0
    nvls_channels: int = 0
    multicast: Optional[bool] = None  # whether the driver has it; None if the log does not say it
    nvls_failure: str = ""


def collective_setup(log: str) -> CollectiveSetup:
    """From the logs of all ranks; NVLS is for all of them or for none."""
    found = _CHANNELS.findall(log)
    lacks = _MULTICAST.findall(log)
    return CollectiveSetup(
        channels=min((int(count) for count, _ in found), default=0),
        nvls_channels=min((int(count) for _, count in found), default=0),
        multicast=not any(lacks) if lacks else None,
        nvls_failure=next((ln for ln in _lines(log) if _NVLS_FAILED.search(ln)), "")[:WIDTH],
    )


def _lines(log: str) -> List[str]:
    return [line.strip() for line in log.splitlines() if line.strip()]
